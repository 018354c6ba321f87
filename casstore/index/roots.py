"""Rows of roots: the dataset folders, where they were mounted, and whether they were whole when last seen."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import Connection, func, select, update
from sqlalchemy.dialects.sqlite import insert

from casstore.index.bulk import AnyConnection, Statement, now_ms
from casstore.index.tables import directories, directory_prints, roots, sources

State = Literal["whole", "unavailable", "suspicious"]
"""Of a root: all there at the last scan; not the folder it was (another disk, or nothing, is mounted there); so much
was gone that it has to be confirmed. In the latter two nothing was noted as missing."""


@dataclass(frozen=True, slots=True)
class RootRow:
    """A root as the index knows it; `fs_id` and `inode` say which folder of which file system it was."""

    id: int
    name: str
    path: str
    fs_id: str | None
    inode: int | None
    state: State
    last_seen_at: int


_all = Statement(
    select(roots.c.id, roots.c.name, roots.c.path, roots.c.fs_id, roots.c.inode, roots.c.state, roots.c.last_seen_at)
)


def known_roots(connection: AnyConnection) -> dict[str, RootRow]:
    """{path: row} of all roots."""
    found = (RootRow(id_, name, os.fsdecode(path), *rest) for id_, name, path, *rest in _all.rows(connection))
    return {row.path: row for row in found}


def is_in(path: str, folder: str) -> bool:
    """Whether a path is a folder, or lies in it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def is_root(connection: Connection, root_id: int) -> bool:
    """Whether this row id is still that of a root: one above may have taken it in."""
    return connection.execute(select(roots.c.id).where(roots.c.id == root_id)).scalar() is not None


def root_above(known: dict[str, RootRow], folder: str) -> tuple[RootRow, str] | None:
    """The deepest root at or above a folder, and the folder's path below it ("" for the root itself)."""
    place = folder
    while True:
        if place in known:
            return known[place], os.path.relpath(folder, place) if folder != place else ""
        above = os.path.dirname(place)
        if above == place:
            return None
        place = above


def save_root(connection: Connection, path: str, fs_id: str | None = None, inode: int | None = None) -> int:
    """The id of the root at `path`. A new one is named after its folder, and adopts the roots below it."""
    known = known_roots(connection)
    if path in known:
        return known[path].id
    taken = {row.name for row in known.values()}
    plain = os.path.basename(path).encode("utf-8", "backslashreplace").decode() or "root"
    name, number = plain, 2
    while name in taken:
        name, number = f"{plain}-{number}", number + 1
    statement = insert(roots).values(name=name, path=path, last_seen_at=now_ms(), fs_id=fs_id, inode=inode)
    id_ = int(connection.execute(statement.returning(roots.c.id)).scalar_one())
    below = path.rstrip("/") + "/"
    # The deepest first: a root inside another one keeps its own directories' rows.
    for row in sorted(known.values(), key=lambda row: -len(row.path)):
        if row.path.startswith(below):
            _adopt(connection, id_, row, row.path[len(below) :])
    return id_


def root_for(
    connection: Connection, path: str, fs_id: str | None = None, inode: int | None = None
) -> tuple[RootRow, str]:
    """The root that a folder belongs to, and the folder's path below it; if it is in none, it becomes one."""
    above = root_above(known_roots(connection), path)
    if above is None:
        save_root(connection, path, fs_id, inode)
        above = known_roots(connection)[path], ""
    return above


def _adopt(connection: Connection, root_id: int, child: RootRow, relpath: str) -> None:
    """Give the directories of a root below to the new one."""
    query = select(directories.c.id, directories.c.relpath).where(directories.c.root_id == child.id)
    for id_, below in connection.execute(query).all():
        place = f"{relpath}/{below}" if below else relpath
        connection.execute(update(directories).where(directories.c.id == id_).values(root_id=root_id, relpath=place))
    connection.execute(roots.delete().where(roots.c.id == child.id))


def note_root(connection: Connection, root_id: int, state: State, fs_id: str | None, inode: int | None) -> None:
    """Note how a root was found just now."""
    values = {"last_seen_at": now_ms(), "state": state, "fs_id": fs_id, "inode": inode}
    connection.execute(update(roots).where(roots.c.id == root_id).values(values))


def move_root(connection: Connection, root_id: int, path: str) -> None:
    """A root is at another place now; where it is mounted there has to be seen."""
    connection.execute(update(roots).where(roots.c.id == root_id).values(path=path, fs_id=None, inode=None))
    connection.execute(update(directories).where(directories.c.root_id == root_id).values(fs_id=None))


def forget_mounts(connection: Connection, root_id: int) -> None:
    """Take the present file systems of a root's directories as they are found next."""
    connection.execute(update(directories).where(directories.c.root_id == root_id).values(fs_id=None))


def sample_of(connection: Connection, root_id: int, relpath: str, count: int) -> list[tuple[str, str, int, int]]:
    """Some files that should be at or below a directory of a root: (directory relpath, name, size, mtime in ns)."""
    query = (
        select(directories.c.relpath, sources.c.name, sources.c.st_size, sources.c.st_mtime_ns)
        .join_from(sources, directories, directories.c.id == sources.c.directory_id)
        .where(directories.c.root_id == root_id, sources.c.missing_since.is_(None), sources.c.hash_id.is_not(None))
        # Spread over all of them, and the same ones each time.
        .order_by(sources.c.id * 2654435761 % 4294967296)
    )
    if relpath:
        # Compared as ranges: a pattern would take % and _ in names for more than they are.
        query = query.where(
            (directories.c.relpath == relpath)
            | ((directories.c.relpath > relpath + "/") & (directories.c.relpath < relpath + "0"))
        )
    return [(row[0], row[1], row[2], row[3]) for row in connection.execute(query.limit(count))]


def count_sources(connection: Connection) -> dict[int, tuple[int, int]]:
    """{root id: (files that are there, files that are missing)}"""
    query = (
        select(
            directories.c.root_id,
            func.count() - func.count(sources.c.missing_since),
            func.count(sources.c.missing_since),
        )
        .join_from(sources, directories, directories.c.id == sources.c.directory_id)
        .group_by(directories.c.root_id)
    )
    return {row[0]: (row[1], row[2]) for row in connection.execute(query)}


def forget_prints(connection: Connection, root_id: int) -> None:
    """Let the next scans of a root compare all rows."""
    below = select(directories.c.id).where(directories.c.root_id == root_id)
    connection.execute(directory_prints.delete().where(directory_prints.c.directory_id.in_(below)))
