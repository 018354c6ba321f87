"""What a scan has found: a handle whose rows are read from the index, all at once, when somebody asks for them."""

from __future__ import annotations

import os
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from casstore.core.handle import Handle
from casstore.index.roots import known_roots, root_above
from casstore.index.sources import BelowRow, sources_below
from casstore.sources.columns import FileRows, Files
from casstore.sources.inputs import Inputs, Row
from casstore.sources.links import File, Link
from casstore.sources.rows import make_rows
from casstore.sources.walk import Filter

PRIMARY = "image"
"""The role of the files that a scan looks for."""


@dataclass(frozen=True, slots=True)
class ScanReport:
    """What a scan did.

    Attributes:
        files: found.
        unchanged: known, and as they were.
        hashed: opened, since they were new or may have changed.
        new, edited: of these, those that weren't known, and those whose content is another.
        missing: known, but not there any more; noted as such.
        failed: files that can't be read, and folders that can't be listed.
        trusted: a quick check: known files weren't looked at, so edits may have been missed.
        warnings: why files that aren't there weren't noted as missing.
    """

    files: int
    unchanged: int
    hashed: int
    new: int
    edited: int
    missing: int
    failed: int
    trusted: bool
    seconds: float
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(cls, reports: Sequence[ScanReport]) -> ScanReport:
        """One for several folders."""
        names = ("files", "unchanged", "hashed", "new", "edited", "missing", "failed", "seconds")
        sums = {name: sum(getattr(report, name) for report in reports) for name in names}
        trusted = any(report.trusted for report in reports)
        return cls(**sums, trusted=trusted, warnings=tuple(w for report in reports for w in report.warnings))


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder that was scanned.

    Attributes:
        root_id: of the root that it belongs to.
        root: that one's path.
        inside: where the folder is below it; "": it is the root.
        prefix: in front of its rows' names.
        wanted: what was looked for.
        listed: relpaths of the directories that were listed.
        absent: (relpath, name) of known files that weren't there.
        failed: {relpath: why a directory can't be listed}.
        report: what the scan did.
    """

    root_id: int
    root: str
    inside: str
    prefix: str
    wanted: Filter
    listed: frozenset[str]
    absent: frozenset[tuple[str, str]]
    failed: dict[str, str]
    report: ScanReport


class Scan(Inputs):
    """The rows of the scanned folders, in the order of the bytes of their paths.

    Attributes:
        report: what the scan did.

    Raises:
        UsageError: two rows have the same name.
    """

    def __init__(
        self,
        handle: Handle,
        folders: Sequence[Folder],
        extensions: Sequence[str],
        links: Mapping[str, Link],
        reader: str,
    ) -> None:
        self._handle, self._folders = handle, folders
        self._extensions, self._links, self._reader = extensions, links, reader
        self.report = ScanReport.of([folder.report for folder in folders])
        if len(folders) > 1:
            # Names may stand twice, and that is to be told now.
            super().__init__([row for folder in folders for row in self._rows_of(folder)])

    def __getattr__(self, name: str) -> object:
        if name != "_rows":
            raise AttributeError(name)
        self._rows = self._rows_of(self._folders[0])
        return self._rows

    def _root_of(self, folder: Folder) -> tuple[int, str]:
        """The id of the root that a folder belongs to now, and what its relpaths begin with there: a root above may
        have adopted the folder's own since the scan."""
        with self._handle.index.read() as connection:
            roots = known_roots(connection)
        adopted = None if any(row.id == folder.root_id for row in roots.values()) else root_above(roots, folder.root)
        return (folder.root_id, "") if adopted is None else (adopted[0].id, adopted[1] + "/")

    def _rows_of(self, folder: Folder) -> Sequence[Row]:
        files = self._files_in(folder)
        # The bytes of UTF-8 are in the order of the code points, but for those that stand for anything else.
        keys = files.places if all(map(_is_utf8, files.places)) else [_bytes(place) for place in files.places]
        order = array("i", sorted(range(len(files)), key=keys.__getitem__))
        above = folder.root.rstrip("/") + "/"
        if not self._links:
            return FileRows(files, order, above, folder.inside, folder.prefix, PRIMARY)
        return make_rows(
            self._handle,
            folder.root,
            folder.inside,
            folder.prefix,
            [_file(files, number, folder) for number in order],
            extensions=self._extensions,
            links=self._links,
            reader=self._reader,
        )

    def _files_in(self, folder: Folder) -> Files:
        """What is known of the files that the scan has found."""
        files = Files()
        listed, absent, matches = folder.listed, folder.absent, folder.wanted.matches
        root_id, start = self._root_of(folder)
        before, above, relpath, wanted = None, "", "", False

        def take(rows: Sequence[BelowRow]) -> None:
            nonlocal before, above, relpath, wanted
            for row in rows:
                if row[0] != before:  # most rows come from the directory of the row before
                    before = row[0]
                    place = os.fsdecode(before)
                    relpath = place[len(start) :]
                    wanted = (place == start[:-1] or place.startswith(start)) and relpath in listed
                    above = relpath + "/" if relpath else ""
                if wanted:
                    name = row[1] if isinstance(row[1], str) else os.fsdecode(row[1])
                    if matches(name) and not (absent and (relpath, name) in absent):
                        files.add(above + name, row)

        with self._handle.index.glance() as connection:
            sources_below(connection, root_id, (start + folder.inside).strip("/"), take)
        for relpath, error in folder.failed.items():  # a row, so that nobody takes the rest for everything
            files.add_error(relpath, f"can't list the folder {os.path.join(folder.root, relpath)}: {error}")
        return files


def _is_utf8(path: str) -> bool:
    return path.isascii() or not any("\udc80" <= character <= "\udcff" for character in path)


def _bytes(path: str) -> bytes:
    """A path's bytes, whatever the locale (os.fsencode goes by it)."""
    return path.encode("utf-8", "surrogateescape")


def _file(files: Files, number: int, folder: Folder) -> File:
    place, error = files.places[number], files.error(number)
    relpath, name = os.path.split(place)
    if error is not None and place in folder.failed:
        return File(relpath, name, None, error, is_folder=True)
    return File(relpath, name, files.content(number), error)
