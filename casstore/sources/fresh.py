"""The freshness rule: what files hold now, for the price of one stat each if they are known and unchanged."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Sequence
from typing import Any

from casstore import fsio
from casstore.core.handle import Handle
from casstore.errors import SourceNotFoundError
from casstore.identity.digests import signed
from casstore.index.roots import RootRow, is_in, known_roots, root_above, root_for
from casstore.index.sources import (
    SeenSource,
    Stat,
    UsableRow,
    contents_by_id,
    find_source,
    save_sources,
    usable_at,
)
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
    with handle.index.glance() as connection:
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


class Cells(Sequence[Cell]):
    """Cells, made when they are asked for: making them takes longer than finding out what is in them.

    Args:
        handle: the open store.
        places: absolute paths.
        found: the row id of each content, or a cell.
    """

    def __init__(self, handle: Handle, places: Sequence[str], found: Sequence[int | Cell]) -> None:
        self._handle, self._places, self._found = handle, places, found

    @functools.cached_property
    def _contents(self) -> dict[int, Content]:
        with self._handle.index.glance() as connection:
            return contents_by_id(connection, (each for each in self._found if isinstance(each, int)))

    def __len__(self) -> int:
        return len(self._found)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        found = self._found[index]
        return found if isinstance(found, Cell) else Cell(self._contents[found], self._places[index])


_UNKNOWN: UsableRow = (None,) * 6


def contents_of(handle: Handle, paths: Sequence[str | os.PathLike[str]]) -> Sequence[Cell]:
    """The present contents of many files, in order: one stat each, and the rows of each folder at once.

    What is new or changed is hashed by threads and noted, if the store can be written. Files outside all roots make
    their deepest common folder, on each file system, a root. A file that can't be read is a cell with an error.

    Args:
        handle: the open store.
        paths: relative ones count from the current folder.
    """
    places: list[str] = []
    names: list[str] = []
    folders: dict[str, list[int]] = {}
    for i, path in enumerate(paths):
        place = os.fspath(path)
        above, _, name = place.rpartition("/")
        numbers = folders.get(above)
        if numbers is None or not name or name[0] == ".":  # not surely absolute and without detours
            place = os.path.abspath(place)
            above, _, name = place.rpartition("/")
            numbers = folders.setdefault(above or "/", [])
        places.append(place)
        names.append(name)
        numbers.append(i)
    found: list[Any] = [None] * len(places)
    changed: dict[str, dict[str, os.stat_result]] = {}
    ctime, inode = what_counts(handle)
    with handle.index.read() as connection:
        roots = known_roots(connection)
    stat = os.stat
    for folder, numbers in folders.items():
        known = _known(handle, roots, folder).get
        with _opened(folder) as descriptor:
            for i in numbers:
                name = names[i]
                try:
                    state = stat(places[i]) if descriptor is None else stat(name, dir_fd=descriptor)
                except (OSError, ValueError) as error:
                    told = fsio.reason(error) if isinstance(error, OSError) else str(error)
                    found[i] = Cell(None, places[i], f"can't read {places[i]}: {told}")
                    continue
                _, size, mtime_ns, ctime_ns, inode_number, hash_id = known(name, _UNKNOWN)
                if (
                    size == state.st_size
                    and mtime_ns == state.st_mtime_ns
                    and (ctime_ns == state.st_ctime_ns or not ctime)
                    and (inode_number == state.st_ino or not inode or inode_number == signed(state.st_ino))
                ):
                    found[i] = hash_id
                else:
                    changed.setdefault(folder, {})[name] = state
    cells = {
        (folder, seen.name): Cell(seen.content, os.path.join(folder, seen.name), seen.error)
        for seen, folder in _hashed(handle, roots, changed, ctime=ctime)
    }
    for folder, some in changed.items():
        for i in folders[folder]:
            if names[i] in some:
                found[i] = cells[folder, names[i]]
    return Cells(handle, places, found)


@contextlib.contextmanager
def _opened(folder: str) -> Iterator[int | None]:
    """A descriptor of a folder, below which each stat walks one name, not a path; None: it can't be opened."""
    try:
        descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except (OSError, ValueError):
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _known(handle: Handle, roots: dict[str, RootRow], folder: str) -> dict[str, UsableRow]:
    above = root_above(roots, folder)
    if above is None:
        return {}
    try:
        with handle.index.glance() as connection:
            return usable_at(connection, above[0].id, above[1])
    except UnicodeEncodeError:  # no file can have such a name, as its stat will tell
        return {}


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
        for folder in some:
            # Not the whole machine: then each folder, unless it lies in another one, is for itself.
            top = min((each for each in some if is_in(folder, each)), key=len) if common == "/" else common
            groups.setdefault(top, []).append(folder)
    for root, below in groups.items():
        seen: list[SeenSource] = []
        device = next(iter(changed[below[0]].values())).st_dev
        with Hasher(root, clock.now_ns(handle, device), ctime=ctime) as hasher:
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
                        now_in, inside = root_for(connection, root)  # somebody may have scanned a folder above
                        save_sources(connection, now_in.id, [each.below(inside) for each in seen])
        found += [(each, relpaths[each.relpath]) for each in seen]
    return found
