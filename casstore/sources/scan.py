"""Scanning folders: which pictures are there, and which of them are new or changed since the last scan."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from casstore import fsio
from casstore.core.directory import is_store
from casstore.core.handle import Handle
from casstore.errors import SourceNotFoundError, UsageError
from casstore.index.sources import (
    SeenSource,
    SourceRow,
    Stat,
    known_roots,
    mark_missing,
    save_root,
    save_sources,
    sources_below,
)
from casstore.sources.images import EXTENSIONS
from casstore.sources.inputs import Inputs, Row
from casstore.sources.links import File, Link, endings
from casstore.sources.read import is_settled, read_source
from casstore.sources.rows import make_rows

HASH_THREADS = 4
COMMIT_FILES = 256  # what was hashed is committed at least this often, so that a stop keeps it
COMMIT_SECONDS = 2.0

Progress = Callable[[int, int], None]
"""progress(files hashed, files to hash)"""


@dataclass(frozen=True, slots=True)
class _Found:
    """A file in a listing: where it is below the root, and its state, or why that can't be told."""

    relpath: str
    name: str
    stat: Stat | None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class _Listing:
    """All files with the wanted endings; the directories that were listed, those that weren't entered, and of these
    the ones that can't be, with the reason."""

    found: list[_Found]
    listed: set[str]
    failed: set[str]
    unreadable: list[_Found]


def scan(
    handle: Handle,
    folders: Sequence[str],
    *,
    extensions: Sequence[str] = EXTENSIONS,
    links: Mapping[str, Link] | None = None,
    reader: str = "caption-1",
    progress: Progress | None = None,
) -> Inputs:
    """Find the pictures below folders, hash what is new or changed, and note what has gone.

    Files are recognised by size, mtime, ctime and inode; one that changed less than two seconds before it was looked at
    is hashed again next time. Sub-folders are searched, hidden ones and stores aren't; links are followed, each real
    folder once. Rows come in order of their paths' bytes.

    Args:
        handle: the open store.
        folders: existing folders.
        extensions: endings, in lower case, of the files to take.
        links: {role: template or function}: what else belongs to a picture.
        reader: what makes texts of text files.
        progress: called now and then with (hashed, to hash).

    Raises:
        UsageError: a folder doesn't exist, or two rows have the same name.
    """
    handle.check_writable()
    places = [os.path.abspath(folder) for folder in folders]
    for place in places:
        if not fsio.is_directory(place):
            raise UsageError(f"{place} isn't a folder; give the folder that holds the pictures")
        if is_store(place):
            raise UsageError(f"{place} is a casstore store; give the folder that holds the pictures")
    rows: list[Row] = []
    for place in places:
        prefix = os.path.basename(place) + "/" if len(places) > 1 else ""
        scanned = _scan_folder(handle, place, (*extensions, *sorted(endings(links))), progress)
        rows += make_rows(handle, *scanned[:2], prefix, scanned[2], extensions=extensions, links=links, reader=reader)
    return Inputs(rows)


def _scan_folder(
    handle: Handle, folder: str, extensions: tuple[str, ...], progress: Progress | None
) -> tuple[str, str, list[File]]:
    now = time.time_ns()
    root, inside = _root_of(handle, folder)
    listing = _walk(root, inside, extensions)
    with handle.index.write() as connection:
        root_id = save_root(connection, root)
    with handle.index.read() as connection:
        known = sources_below(connection, root_id, inside)
    rows: dict[tuple[str, str], File] = {}
    todo: list[_Found] = []
    for file in listing.found:
        place = (file.relpath, file.name)
        row = known.get(place)
        if file.stat is not None and row is not None and _unchanged(row, file.stat):
            rows[place] = File(*place, row.content)
        else:
            todo.append(file)
    for seen in _hash_and_save(handle, root_id, root, todo, now, progress):
        place = (seen.relpath, seen.name)
        rows[place] = File(*place, seen.content, seen.error)
    for folder_ in listing.unreadable:  # a row, so that nobody takes the rest for everything
        place = (folder_.relpath, folder_.name)
        rows[place] = File(*place, None, folder_.error, True)
    present = {(file.relpath, file.name) for file in listing.found}
    gone = [
        place
        for place, row in known.items()
        if place not in present and not row.missing and _has_gone(place, listing, extensions)
    ]
    if gone:
        with handle.index.write() as connection:
            mark_missing(connection, root_id, gone)
    return root, inside, [rows[place] for place in sorted(rows, key=lambda p: os.fsencode(os.path.join(*p)))]


def _root_of(handle: Handle, folder: str) -> tuple[str, str]:
    """(root path, path of the folder below it): a known root at or above the folder, else the folder itself."""
    with handle.index.read() as connection:
        paths = known_roots(connection)
    above = [path for path in paths if folder == path or folder.startswith(path.rstrip("/") + "/")]
    root = max(above, key=len, default=folder)
    return root, os.path.relpath(folder, root) if folder != root else ""


def _walk(root: str, inside: str, extensions: tuple[str, ...]) -> _Listing:
    found: list[_Found] = []
    listed: set[str] = set()
    failed: set[str] = set()
    unreadable: list[_Found] = []
    visited: set[tuple[int, int]] = set()
    pending, links = [inside], list[str]()
    while pending or links:
        relpath = pending.pop() if pending else links.pop()  # a folder is known by its own name before that of a link
        place = os.path.join(root, relpath) if relpath else root
        try:
            identity = os.stat(place)
            if (identity.st_dev, identity.st_ino) in visited or (relpath and is_store(place)):
                failed.add(relpath)
                continue
            visited.add((identity.st_dev, identity.st_ino))
            with os.scandir(place) as entries:
                listing = sorted(entries, key=lambda entry: os.fsencode(entry.name), reverse=True)
        except OSError as error:
            failed.add(relpath)
            above, name = os.path.split(relpath)
            unreadable.append(_Found(above, name, None, f"can't list the folder {place}: {fsio.reason(error)}"))
            continue
        listed.add(relpath)
        for entry in listing:
            if entry.name.startswith("."):
                continue
            if _is_directory(entry):
                (links if entry.is_symlink() else pending).append(os.path.join(relpath, entry.name))
            elif entry.name.lower().endswith(extensions):
                found.append(_look(relpath, entry))
    return _Listing(found, listed, failed, unreadable)


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _look(relpath: str, entry: os.DirEntry[str]) -> _Found:
    try:
        return _Found(relpath, entry.name, Stat.of(entry.stat()))
    except OSError as error:
        return _Found(relpath, entry.name, None, f"can't read {entry.path}: {fsio.reason(error)}")


def _unchanged(row: SourceRow, state: Stat) -> bool:
    return row.settled and row.error is None and not row.missing and row.content is not None and row.stat == state


def _has_gone(place: tuple[str, str], listing: _Listing, extensions: tuple[str, ...]) -> bool:
    """Whether a known file that wasn't found is missing: only a listing can say so, its folder's or that of a folder
    above from which the way down has vanished. A folder that can't be listed says nothing about what is in it."""
    relpath, name = place
    if not name.lower().endswith(extensions):
        return False
    while relpath not in listing.listed:
        if relpath in listing.failed or not relpath:
            return False
        relpath = os.path.dirname(relpath)
    return True


def _hash_and_save(
    handle: Handle, root_id: int, root: str, todo: list[_Found], now: int, progress: Progress | None
) -> list[SeenSource]:
    """Hash files in threads and commit them as they come; a stop keeps what was hashed."""
    seen: list[SeenSource] = []
    saved, last = 0, time.monotonic()

    def save() -> None:
        nonlocal saved, last
        with handle.index.write() as connection:
            save_sources(connection, root_id, seen[saved:])
        saved, last = len(seen), time.monotonic()

    with ThreadPoolExecutor(HASH_THREADS, thread_name_prefix="casstore-hash") as pool:
        try:
            for start in range(0, len(todo), COMMIT_FILES):  # bounds what is in flight
                jobs = [pool.submit(_hash, root, file, now) for file in todo[start : start + COMMIT_FILES]]
                for job in as_completed(jobs):
                    seen.append(job.result())
                    if progress is not None:
                        progress(len(seen), len(todo))
                    if len(seen) - saved >= COMMIT_FILES or time.monotonic() - last > COMMIT_SECONDS:
                        save()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            if saved < len(seen):
                save()
    return seen


def _hash(root: str, file: _Found, now: int) -> SeenSource:
    path = os.path.join(root, file.relpath, file.name)
    state = file.stat or Stat(0, 0, 0, 0)
    if file.error is not None:
        return SeenSource(file.relpath, file.name, state, False, None, file.error)
    try:
        source = read_source(path)
    except SourceNotFoundError as error:
        return SeenSource(file.relpath, file.name, state, False, None, str(error))
    return SeenSource(file.relpath, file.name, source.stat, is_settled(source.stat, now), source.content)
