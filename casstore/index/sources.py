"""Rows of roots, directories and sources: which files were seen, in which state, with which content."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Integer, bindparam, select, update
from sqlalchemy.dialects.sqlite import insert

from casstore.identity.digests import signed
from casstore.index.bulk import Statement, chunks, now_ms, storable
from casstore.index.tables import FileName, directories, hashes, roots, source_contents, sources, to_sql
from casstore.index.variants import save_contents
from casstore.model import Content


@dataclass(frozen=True, slots=True)
class Stat:
    """What tells that a file hasn't changed: size, times in ns, inode (as the signed integer that SQLite holds)."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @classmethod
    def of(cls, found: os.stat_result) -> Stat:
        return cls(found.st_size, found.st_mtime_ns, found.st_ctime_ns, signed(found.st_ino))


@dataclass(frozen=True, slots=True)
class SourceRow:
    """A file as the index knows it. `settled`: it was old enough, when it was hashed, for its times to be trusted."""

    stat: Stat
    settled: bool
    missing: bool
    error: str | None
    content: Content | None


@dataclass(frozen=True, slots=True)
class SeenSource:
    """A file as a scan has just found it: hashed, or with the error that kept it from being read."""

    relpath: str
    name: str
    stat: Stat
    settled: bool
    content: Content | None
    error: str | None = None


_CONTENT = (
    hashes.c.kind,
    hashes.c.digest,
    hashes.c.nbytes,
    hashes.c.width,
    hashes.c.height,
    hashes.c.orientation,
    hashes.c.note,
)
_SOURCE = (
    sources.c.st_size,
    sources.c.st_mtime_ns,
    sources.c.st_ctime_ns,
    sources.c.st_ino,
    sources.c.settled,
    sources.c.missing_since.is_not(None),
    sources.c.error,
    *_CONTENT,
)


def _source(row: Sequence[object]) -> SourceRow:
    size, mtime, ctime, inode, settled, missing, error, *content = row
    found = Content(*content) if content[0] is not None else None  # type: ignore[arg-type]
    return SourceRow(Stat(size, mtime, ctime, inode), bool(settled), bool(missing), error, found)  # type: ignore[arg-type]


def known_roots(connection: Connection) -> dict[str, int]:
    """{path: id} of all roots."""
    return {row.path: row.id for row in connection.execute(select(roots.c.path, roots.c.id))}


def save_root(connection: Connection, path: str) -> int:
    """The id of the root at `path`; a new one is named after its folder."""
    found = connection.execute(select(roots.c.id).where(roots.c.path == path)).scalar()
    if found is not None:
        connection.execute(update(roots).where(roots.c.id == found).values(last_seen_at=now_ms()))
        return int(found)
    taken = set(connection.scalars(select(roots.c.name)))
    plain = os.path.basename(path).encode("utf-8", "backslashreplace").decode() or "root"
    name, number = plain, 2
    while name in taken:
        name, number = f"{plain}-{number}", number + 1
    statement = insert(roots).values(name=name, path=path, last_seen_at=now_ms()).returning(roots.c.id)
    return int(connection.execute(statement).scalar_one())


def sources_below(connection: Connection, root_id: int, relpath: str) -> dict[tuple[str, str], SourceRow]:
    """{(directory relpath, name): row} of all sources at or below a directory of a root."""
    query = (
        select(directories.c.relpath, sources.c.name, *_SOURCE)
        .join_from(sources, directories, directories.c.id == sources.c.directory_id)
        .outerjoin(hashes, hashes.c.id == sources.c.hash_id)
        .where(directories.c.root_id == root_id)
    )
    inside = relpath + "/"
    return {
        (row[0], row[1]): _source(row[2:])
        for row in connection.execute(query)
        if not relpath or row[0] == relpath or str(row[0]).startswith(inside)
    }


def find_source(connection: Connection, path: str) -> SourceRow | None:
    """What is known of the file at this absolute path, in the deepest root that holds it."""
    for root, root_id in sorted(known_roots(connection).items(), key=lambda pair: -len(pair[0])):
        prefix = root.rstrip("/") + "/"
        if path.startswith(prefix):
            relpath, name = os.path.split(path[len(prefix) :])
            query = (
                select(*_SOURCE)
                .join_from(sources, directories, directories.c.id == sources.c.directory_id)
                .outerjoin(hashes, hashes.c.id == sources.c.hash_id)
                .where(directories.c.root_id == root_id, directories.c.relpath == relpath, sources.c.name == name)
            )
            row = connection.execute(query).first()
            if row is not None:
                return _source(row)
    return None


_STATE = ("hash_id", "st_size", "st_mtime_ns", "st_ctime_ns", "st_ino", "settled", "missing_since", "error")


def _upsert_source() -> Statement:
    statement = insert(sources)
    new = {name: statement.excluded[name] for name in _STATE}
    upsert = statement.on_conflict_do_update(index_elements=["directory_id", "name"], set_=new)
    return Statement(upsert, ("directory_id", "name", *_STATE))


def _note_content() -> Statement:
    """What a file has held until now, if that is to be another content."""
    before = select(sources.c.id, sources.c.hash_id, bindparam("now", type_=Integer)).where(
        sources.c.directory_id == bindparam("directory"),
        sources.c.name == bindparam("file", type_=FileName()),
        sources.c.hash_id.is_not(None),
        sources.c.hash_id.is_distinct_from(bindparam("content", type_=Integer)),
    )
    statement = insert(source_contents).from_select(["source_id", "hash_id", "last_seen"], before)
    return Statement(
        statement.on_conflict_do_update(
            index_elements=["source_id", "hash_id"], set_={"last_seen": statement.excluded.last_seen}
        )
    )


_save_source = _upsert_source()
_remember_content = _note_content()


def save_sources(connection: Connection, root_id: int, seen: Sequence[SeenSource]) -> None:
    """Write what a scan found. What a file held before goes into `source_contents`."""
    if not seen:
        return
    content_ids = save_contents(connection, (s.content for s in seen if s.content is not None))
    directory_ids = _save_directories(connection, root_id, {s.relpath for s in seen})
    rows = [
        (
            *(directory_ids[s.relpath], to_sql(s.name)),
            None if s.content is None else content_ids[s.content.kind, s.content.digest],
            *(s.stat.size, s.stat.mtime_ns, s.stat.ctime_ns, s.stat.inode),
            *(int(s.settled), None, storable(s.error)),
        )
        for s in seen
    ]
    now = now_ms()
    _remember_content.many(connection, [(now, *row[:3]) for row in rows])
    _save_source.many(connection, rows)


def mark_missing(connection: Connection, root_id: int, gone: Iterable[tuple[str, str]]) -> None:
    """Note that these files, (directory relpath, name), weren't in their folder's listing any more."""
    wanted = set(gone)
    if not wanted:
        return
    query = (
        select(sources.c.id, directories.c.relpath, sources.c.name)
        .join_from(sources, directories, directories.c.id == sources.c.directory_id)
        .where(directories.c.root_id == root_id, sources.c.missing_since.is_(None))
    )
    ids = [id_ for id_, relpath, name in connection.execute(query).all() if (relpath, name) in wanted]
    for part in chunks(ids):
        connection.execute(update(sources).where(sources.c.id.in_(part)).values(missing_since=now_ms()))


def _save_directories(connection: Connection, root_id: int, relpaths: set[str]) -> dict[str, int]:
    wanted = sorted(relpaths)
    rows = [{"root_id": root_id, "relpath": relpath} for relpath in wanted]
    connection.execute(insert(directories).on_conflict_do_nothing(), rows)
    found: dict[str, int] = {}
    for part in chunks(wanted):
        query = select(directories.c.relpath, directories.c.id)
        query = query.where(directories.c.root_id == root_id, directories.c.relpath.in_(part))
        found.update((row.relpath, row.id) for row in connection.execute(query))
    return found
