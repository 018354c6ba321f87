"""Roots as people see them: which there are, where one is now, and that what is gone from one is really gone."""

from __future__ import annotations

import os
from collections.abc import Iterator

from casstore import fsio
from casstore.core.directory import is_store
from casstore.core.handle import Handle
from casstore.errors import StorePermissionError, UsageError
from casstore.identity.digests import signed
from casstore.index.directories import all_directories
from casstore.index.roots import RootRow, count_sources, forget_mounts, is_in, known_roots, move_root, note_root
from casstore.index.sources import mark_missing, names_in
from casstore.model import ConfirmReport, Root
from casstore.sources.losses import is_there


def list_roots(handle: Handle) -> list[Root]:
    """All roots, in order of their names."""
    with handle.index.read() as connection:
        rows = known_roots(connection).values()
        counts = count_sources(connection)
    none = (0, 0)
    return [
        Root(row.name, row.path, row.state, *counts.get(row.id, none), row.last_seen_at)
        for row in sorted(rows, key=lambda row: row.name)
    ]


def move(handle: Handle, name: str, path: str) -> Root:
    """Say that a root is at another place now; nothing is read but the state of some files.

    Args:
        handle: the open store.
        name: of the root, or its path.
        path: absolute, of the folder that holds its files now.

    Raises:
        UsageError: there is no such root or folder, another root is there, or it holds other files.
    """
    handle.check_writable()
    place = fsio.spelling(path)
    if not fsio.is_directory(place) or is_store(place):
        raise UsageError(f"{place} isn't a folder of files; say where the root's files are now")
    with handle.index.write() as connection:
        known = known_roots(connection)
        row = _named(known, name)
        for other in known:
            if other != row.path and (is_in(place, other) or is_in(other, place)):
                raise UsageError(f"{place} and the root {known[other].name} ({other}) lie in each other; roots don't")
    if not is_there(handle, row, "", place):
        raise UsageError(
            f"{place} doesn't hold the files of {row.name} (most are missing, or have another size or time); "
            "nothing was changed. Scan it instead: equal content is found again by its hash"
        )
    with handle.index.write() as connection:
        move_root(connection, row.id, place)
    return next(root for root in list_roots(handle) if root.path == place)


def confirm(handle: Handle, name: str, *, yes: bool) -> ConfirmReport:
    """Believe that what isn't at a root any more is gone, however much it is, and that the folder there is the root.

    Args:
        handle: the open store.
        name: of the root, or its path.
        yes: note it; otherwise only count.

    Raises:
        UsageError: there is no such root.
        StorePermissionError: a folder can't be listed, so nobody can tell what is in it.
    """
    handle.check_writable()
    with handle.index.read() as connection:
        row = _named(known_roots(connection), name)
    gone = list(_gone(handle, row))
    if yes:
        state = fsio.look(row.path)
        found_at = (None, None) if state is None else (fsio.filesystem_id(row.path), signed(state.st_ino))
        with handle.index.write() as connection:
            mark_missing(connection, gone)
            forget_mounts(connection, row.id)
            note_root(connection, row.id, "whole", *found_at)
    there = count_sources_of(handle, row)
    return ConfirmReport(row.name, row.path, len(gone), there if yes else there - len(gone))


def count_sources_of(handle: Handle, row: RootRow) -> int:
    """How many files a root has that aren't missing."""
    with handle.index.read() as connection:
        return count_sources(connection).get(row.id, (0, 0))[0]


def _gone(handle: Handle, root: RootRow) -> Iterator[int]:
    """Ids of the sources that aren't where they were."""
    with handle.index.read() as connection:
        directories = all_directories(connection, root.id)
    for relpath, id_ in directories.items():
        place = os.path.join(root.path, relpath)
        try:
            names = set(os.listdir(place))
        except (FileNotFoundError, NotADirectoryError):
            names = set()
        except OSError as error:
            raise StorePermissionError(
                f"can't list {place}: {fsio.reason(error)}; what is in it can't be told, so nothing was changed"
            ) from error
        with handle.index.glance() as connection:
            yield from (row.id for row in names_in(connection, id_) if not row.missing and row.name not in names)


def _named(known: dict[str, RootRow], name: str) -> RootRow:
    for row in known.values():
        if name in (row.name, row.path):
            return row
    names = ", ".join(sorted(row.name for row in known.values())) or "none yet"
    raise UsageError(f"there is no root {name!r}; there is: {names} (casstore roots ls)")
