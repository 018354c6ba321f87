"""The freshness rule: what files hold now, for the price of one stat each if they are known and unchanged."""

from __future__ import annotations

import os
from collections.abc import Sequence

from casstore import fsio
from casstore.core.handle import Handle
from casstore.errors import SourceNotFoundError
from casstore.identity.digests import signed
from casstore.index.roots import RootRow, known_roots, root_above, save_root
from casstore.index.sources import KnownSource, SeenSource, Stat, find_source, save_sources, sources_in
from casstore.model import Content
from casstore.sources import clock
from casstore.sources.hashing import Found, Hasher
from casstore.sources.images import EXTENSIONS
from casstore.sources.inputs import Cell
from casstore.sources.read import hash_source, read_source


def content_of(handle: Handle, path: str | os.PathLike[str]) -> Content:
    """The present content of a file.

    A known file whose size, times and inode are those of the last scan isn't opened; any other is read and hashed.

    Raises:
        SourceNotFoundError: it isn't there or can't be read.
    """
    place = os.path.abspath(os.fspath(path))
    try:
        state = Stat.of(os.stat(place))
    except OSError as error:
        raise SourceNotFoundError(f"can't read {place}: {fsio.reason(error)}") from error
    except ValueError as error:  # a name with a NUL
        raise SourceNotFoundError(f"can't read {place!r}: {error}") from error
    with handle.index.read() as connection:
        row = find_source(connection, place)
    if row is not None and row.settled and row.content is not None:
        ctime, inode = what_counts(handle)
        if row.stat.agrees(state, ctime=ctime, inode=inode):
            return row.content
    whole = place.lower().endswith(EXTENSIONS)
    return (read_source(place) if whole else hash_source(place)).content


def known_content_of(handle: Handle, path: str | os.PathLike[str]) -> Content:
    """The content of a file that may be gone: what it holds now, else what it held at the last scan.

    Raises:
        SourceNotFoundError: it is neither there nor known.
    """
    try:
        return content_of(handle, path)
    except SourceNotFoundError:
        with handle.index.read() as connection:
            row = find_source(connection, os.path.abspath(os.fspath(path)))
        if row is None or row.content is None:
            raise
        return row.content


def what_counts(handle: Handle) -> tuple[bool, bool]:
    """Whether ctimes and inodes tell changes here: yes, unless casstore.toml says that some disk makes them up."""
    return handle.counts("ctime"), handle.counts("inode")


def contents_of(handle: Handle, paths: Sequence[str | os.PathLike[str]]) -> list[Cell]:
    """The present contents of many files, in order: one stat each, and the rows of each folder at once.

    What is new or changed is hashed by threads and noted, if the store can be written. Files outside all roots make
    their deepest common folder, on each file system, a root. A file that can't be read is a cell with an error.

    Args:
        handle: the open store.
        paths: relative ones count from the current folder.
    """
    cells: list[Cell | None] = [None] * len(paths)
    folders: dict[str, dict[str, list[int]]] = {}
    places: list[str] = []
    for i, path in enumerate(paths):
        place = os.fspath(path)
        if place[:1] != "/" or "/." in place or "//" in place:
            place = os.path.abspath(place)
        places.append(place)
        above, _, name = place.rpartition("/")
        folders.setdefault(above or "/", {}).setdefault(name, []).append(i)
    counted = what_counts(handle)
    with handle.index.read() as connection:
        roots = known_roots(connection)
    changed: dict[str, dict[str, os.stat_result]] = {}
    for folder, names in folders.items():
        known = _known(handle, roots, folder)
        for name, numbers in names.items():
            place = places[numbers[0]]
            try:
                state = os.stat(place)
            except (OSError, ValueError) as error:
                told = fsio.reason(error) if isinstance(error, OSError) else str(error)
                cell = Cell(None, place, f"can't read {place}: {told}")
            else:
                row = known.get(name)
                if row is None or not _unchanged(row, state, *counted):
                    changed.setdefault(folder, {})[name] = state
                    continue
                cell = Cell(row.content, place)
            for number in numbers:
                cells[number] = cell
    for seen, folder in _hashed(handle, roots, changed, ctime=counted[0]):
        place = os.path.join(folder, seen.name)
        for number in folders[folder][seen.name]:
            cells[number] = Cell(seen.content, place, seen.error)
    return [cell for cell in cells if cell is not None]


def _unchanged(row: KnownSource, state: os.stat_result, ctime: bool, inode: bool) -> bool:
    return bool(
        row.usable
        and row.size == state.st_size
        and row.mtime_ns == state.st_mtime_ns
        and (not ctime or row.ctime_ns == state.st_ctime_ns)
        and (not inode or row.inode == signed(state.st_ino))
    )


def _known(handle: Handle, roots: dict[str, RootRow], folder: str) -> dict[str, KnownSource]:
    above = root_above(roots, folder)
    if above is None:
        return {}
    with handle.index.glance() as connection:
        return {row.name: row for row in sources_in(connection, above[0].id, above[1])}


def _hashed(
    handle: Handle, roots: dict[str, RootRow], changed: dict[str, dict[str, os.stat_result]], *, ctime: bool
) -> list[tuple[SeenSource, str]]:
    """Hash files, {folder: {name: state}}, and note them; (what was seen, folder) of each."""
    found: list[tuple[SeenSource, str]] = []
    groups: dict[str, list[str]] = {}  # root path -> folders
    outside: dict[int, list[str]] = {}  # device -> folders
    for folder, names in changed.items():
        above = root_above(roots, folder)
        if above is None:
            outside.setdefault(next(iter(names.values())).st_dev, []).append(folder)
        else:
            groups.setdefault(above[0].path, []).append(folder)
    for some in outside.values():
        common = os.path.commonpath(some)
        # Not the whole machine: each folder for itself then.
        for top in [common] if common != "/" else some:
            groups.setdefault(top, []).extend(some if common != "/" else [top])
    for root, below in groups.items():
        seen: list[SeenSource] = []
        device = next(iter(changed[below[0]].values())).st_dev
        with Hasher(root, clock.now_ns(handle, device), ctime=ctime, probe=None) as hasher:
            relpaths = {os.path.relpath(folder, root) if folder != root else "": folder for folder in below}
            for relpath, folder in relpaths.items():
                hasher.submit(Found(relpath, name, state.st_size) for name, state in changed[folder].items())
            try:
                while some_seen := hasher.wait():
                    seen += some_seen
            finally:
                seen += hasher.stop()
                if seen and not handle.read_only:
                    with handle.index.write() as connection:
                        save_sources(connection, save_root(connection, root), seen)
        found += [(each, relpaths[each.relpath]) for each in seen]
    return found
