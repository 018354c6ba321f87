"""Rows of directories, and the fingerprints that stand for their sources' rows.

A fingerprint is written with or after the rows it stands for, and only when all of these agree with the disk, are
settled and without error; whatever changes a row of the directory removes it. Directories count their changes, so that
a scan doesn't write one for rows that another process has changed since they were compared.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    and_,
    bindparam,
    delete,
    literal_column,
    or_,
    select,
    update,
)
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.types import NullType

from casstore.index.bulk import AnyConnection, Statement, chunks, now_ms
from casstore.index.tables import directories, directory_prints, to_sql


class Print(NamedTuple):
    """What a scan with some filter saw of a directory.

    Attributes:
        fingerprint: of the states of its files; None: some aren't settled, or weren't looked at.
        files: how many.
        mtime_ns, inode: of the directory; None: it changed just then.
        states: the names and states of the files, as `sources.states` packs them; None: they weren't looked at. Large,
            so that nobody reads those of all directories: see `states_in`.
    """

    fingerprint: bytes | None
    files: int
    mtime_ns: int | None
    inode: int | None
    states: bytes | None = None


class DirectoryRow(NamedTuple):
    """A directory as the index knows it; `changes` counts those of its rows, `print` is the filter's."""

    id: int
    fs_id: str | None
    changes: int
    print: Print | None


def below(parameters: Sequence[BindParameter[Any]]) -> ColumnElement[bool]:
    """Whether a directory is at or below another one; `place_below` gives the values for the five parameters."""
    place, *ends = parameters
    ranges = [and_(directories.c.relpath > low, directories.c.relpath < high) for low, high in (ends[:2], ends[2:])]
    return or_(directories.c.relpath == place, *ranges)


def place_below(relpath: str) -> tuple[Any, ...]:
    """For `below`: the directory itself, and where what is below it begins and ends, as text and as raw bytes, in which
    names are that aren't UTF-8. ("0" comes after "/".)"""
    place, raw = to_sql(relpath), os.fsencode(relpath)
    texts = ("", "") if isinstance(place, bytes) else (f"{place}/", f"{place}0")
    return (place, *texts, raw + b"/", raw + b"0")


BELOW = [bindparam(f"below_{number}", type_=NullType()) for number in range(5)]

_all = (
    select(
        directories.c.relpath,
        directories.c.id,
        directories.c.fs_id,
        directories.c.changes,
        directory_prints.c.files,
        directory_prints.c.fingerprint,
        directory_prints.c.st_mtime_ns,
        directory_prints.c.st_ino,
    )
    .outerjoin_from(
        directories,
        directory_prints,
        and_(directory_prints.c.directory_id == directories.c.id, directory_prints.c.filter == bindparam("filter")),
    )
    .where(directories.c.root_id == bindparam("root"))
)
_known = Statement(_all)
_known_below = Statement(_all.where(below(BELOW)))


def known_directories(connection: AnyConnection, root_id: int, inside: str, filter_: str) -> dict[str, DirectoryRow]:
    """{relpath: row} of the directories at and below one of a root ("": all of them)."""
    found: dict[str, DirectoryRow] = {}
    if inside:
        rows = _known_below.rows(connection, (filter_, root_id, *place_below(inside)))
    else:
        rows = _known.rows(connection, (filter_, root_id))
    for relpath, id_, fs_id, changes, files, fingerprint, mtime, inode in rows:
        seen = None if files is None else Print(fingerprint, files, mtime, inode)
        found[os.fsdecode(relpath)] = DirectoryRow(id_, fs_id, changes, seen)
    return found


_states = Statement(
    select(directory_prints.c.files, directory_prints.c.states).where(
        directory_prints.c.directory_id == bindparam("directory"),
        directory_prints.c.filter == bindparam("filter"),
        directory_prints.c.states.is_not(None),
    )
)


def states_in(connection: AnyConnection, directory_id: int, filter_: str) -> tuple[int, bytes] | None:
    """How many files a scan with some filter saw in a directory, and their packed states, if its rows haven't changed
    since."""
    for files, packed in _states.rows(connection, (directory_id, filter_)):
        return files, packed
    return None


def all_directories(connection: Connection, root_id: int) -> dict[str, int]:
    """{relpath: id} of all directories of a root."""
    query = select(directories.c.relpath, directories.c.id).where(directories.c.root_id == root_id)
    return {row.relpath: row.id for row in connection.execute(query)}


_insert = Statement(insert(directories).on_conflict_do_nothing(), ("root_id", "relpath"))
_place = Statement(
    update(directories)
    .where(directories.c.id == bindparam("wanted"))
    .values(fs_id=bindparam("fs_id"), listed_at=bindparam("listed_at"))
)


def save_directories(connection: Connection, root_id: int, relpaths: Iterable[str]) -> dict[str, int]:
    """The ids of directories, inserted where they are new."""
    wanted = sorted(set(relpaths))
    _insert.many(connection, [(root_id, to_sql(relpath)) for relpath in wanted])
    found: dict[str, int] = {}
    for part in chunks(wanted):
        query = select(directories.c.relpath, directories.c.id)
        query = query.where(directories.c.root_id == root_id, directories.c.relpath.in_(part))
        found.update((row.relpath, row.id) for row in connection.execute(query))
    return found


def place_directories(connection: Connection, places: Iterable[tuple[int, str]]) -> None:
    """Note on which file system directories are: (directory id, file system id)."""
    now = now_ms()
    _place.many(connection, [(fs_id, now, id_) for id_, fs_id in places])


_PRINT = ("fingerprint", "files", "st_mtime_ns", "st_ino", "states")


def _save_print() -> Statement:
    given = [bindparam(name, type_=directory_prints.c[name].type) for name in ("filter", *_PRINT)]
    unchanged = select(directories.c.id, *given).where(
        directories.c.id == bindparam("wanted"), directories.c.changes == bindparam("changes")
    )
    statement = insert(directory_prints).from_select(["directory_id", "filter", *_PRINT], unchanged)
    new = {name: statement.excluded[name] for name in _PRINT}
    return Statement(statement.on_conflict_do_update(index_elements=["directory_id", "filter"], set_=new))


_print = _save_print()


def save_prints(connection: AnyConnection, filter_: str, prints: Sequence[tuple[int, int, Print]]) -> None:
    """Write prints of one filter: (directory id, how many changes it had when its rows were as they are, print)."""
    named = [
        dict(zip(("wanted", "changes", "filter", *_PRINT), (id_, changes, filter_, *each), strict=True))
        for id_, changes, each in prints
    ]
    _print.many(connection, [tuple(row[name] for name in _print.names) for row in named])


_change = Statement(
    update(directories)
    .where(directories.c.id == bindparam("wanted"))
    .values(changes=directories.c.changes + literal_column("1"))
)
_remove = Statement(delete(directory_prints).where(directory_prints.c.directory_id == bindparam("wanted")))


def remove_prints(connection: Connection, directory_ids: Iterable[int]) -> None:
    """Remove the fingerprints of directories, of all filters: their rows change."""
    ids = [(id_,) for id_ in sorted(set(directory_ids))]
    _change.many(connection, ids)
    _remove.many(connection, ids)
