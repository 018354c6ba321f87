"""Rows of directories, and the fingerprints that stand for their sources' rows.

A fingerprint is written in the transaction that writes the rows it stands for, and only when all of these agree with
the disk, are settled and without error; whatever changes a row of the directory removes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, and_, bindparam, delete, select, update
from sqlalchemy.dialects.sqlite import insert

from casstore.index.bulk import AnyConnection, Statement, chunks, now_ms
from casstore.index.tables import directories, directory_prints, to_sql


class Print(NamedTuple):
    """What a scan with some filter saw of a directory.

    Attributes:
        fingerprint: of the states of its files; None: some aren't settled, or weren't looked at.
        files: how many.
        mtime_ns, inode: of the directory; None: it changed just then.
    """

    fingerprint: bytes | None
    files: int
    mtime_ns: int | None
    inode: int | None


class DirectoryRow(NamedTuple):
    """A directory as the index knows it; `print` is that of the filter asked for."""

    id: int
    fs_id: str | None
    print: Print | None


_known = Statement(
    select(
        directories.c.relpath,
        directories.c.id,
        directories.c.fs_id,
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


def known_directories(connection: AnyConnection, root_id: int, inside: str, filter_: str) -> dict[str, DirectoryRow]:
    """{relpath: row} of the directories at and below one of a root."""
    found: dict[str, DirectoryRow] = {}
    below = inside + "/"
    for relpath, id_, fs_id, files, fingerprint, mtime, inode in _known.rows(connection, (filter_, root_id)):
        place = relpath if isinstance(relpath, str) else _text(relpath)
        if not inside or place == inside or place.startswith(below):
            seen = None if files is None else Print(fingerprint, files, mtime, inode)
            found[place] = DirectoryRow(id_, fs_id, seen)
    return found


def all_directories(connection: Connection, root_id: int) -> dict[str, int]:
    """{relpath: id} of all directories of a root."""
    query = select(directories.c.relpath, directories.c.id).where(directories.c.root_id == root_id)
    return {row.relpath: row.id for row in connection.execute(query)}


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


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


def _save_print() -> Statement:
    statement = insert(directory_prints)
    names = ("fingerprint", "files", "st_mtime_ns", "st_ino")
    upsert = statement.on_conflict_do_update(
        index_elements=["directory_id", "filter"], set_={name: statement.excluded[name] for name in names}
    )
    return Statement(upsert, ("directory_id", "filter", *names))


_print = _save_print()


def save_prints(connection: AnyConnection, filter_: str, prints: Sequence[tuple[int, Print]]) -> None:
    """Write (directory id, print)s of one filter."""
    _print.many(connection, [(id_, filter_, p.fingerprint, p.files, p.mtime_ns, p.inode) for id_, p in prints])


def remove_prints(connection: Connection, directory_ids: Iterable[int]) -> None:
    """Remove the fingerprints of directories, of all filters: their rows change."""
    for part in chunks(list(directory_ids)):
        connection.execute(delete(directory_prints).where(directory_prints.c.directory_id.in_(part)))
