"""Rows of sources: which files were seen, in which state, with which content."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, NamedTuple

from sqlalchemy import Connection, Integer, and_, bindparam, literal_column, not_, null, select, update
from sqlalchemy.dialects.sqlite import insert

from casstore.identity.digests import signed
from casstore.index.bulk import AnyConnection, ByDigest, Statement, chunks, now_ms, storable
from casstore.index.contents import save_contents
from casstore.index.directories import BELOW, below, place_below, remove_prints, save_directories
from casstore.index.roots import known_roots, root_above
from casstore.index.tables import FileName, directories, hashes, source_contents, sources, to_sql
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

    def agrees(self, other: Stat, *, ctime: bool, inode: bool) -> bool:
        """Whether two states are the same in what counts."""
        return (
            (self.size, self.mtime_ns) == (other.size, other.mtime_ns)
            and (not ctime or self.ctime_ns == other.ctime_ns)
            and (not inode or self.inode == other.inode)
        )


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

    def below(self, relpath: str) -> SeenSource:
        """The same in a root above, where this one's is at `relpath`."""
        if not relpath:
            return self
        return replace(self, relpath=f"{relpath}/{self.relpath}" if self.relpath else relpath)


_CONTENT = (
    hashes.c.kind,
    hashes.c.digest,
    hashes.c.nbytes,
    hashes.c.width,
    hashes.c.height,
    hashes.c.orientation,
    hashes.c.note,
    null(),  # text
    hashes.c.frames,
    hashes.c.rate,
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


# Whether an equal state means equal content. (A number in the code would be one more parameter.)
_usable = and_(
    sources.c.settled == literal_column("1"),
    sources.c.hash_id.is_not(None),
    sources.c.error.is_(None),
    sources.c.missing_since.is_(None),
)
_state = (sources.c.name, sources.c.st_size, sources.c.st_mtime_ns, sources.c.st_ctime_ns, sources.c.st_ino)
_usable_in = Statement(
    select(*_state, sources.c.hash_id, sources.c.id).where(sources.c.directory_id == bindparam("directory"), _usable)
)
_rest = select(sources.c.name, sources.c.missing_since.is_not(None), sources.c.error.is_not(None), sources.c.hash_id)
_rest = _rest.add_columns(sources.c.id).where(sources.c.directory_id == bindparam("directory"))
_all_in = Statement(_rest)
_named_in = ByDigest(lambda names: _rest.where(sources.c.name.in_(names)), FileName)
_others_in = Statement(_rest.where(not_(_usable)))

UsableRow = tuple[Any, ...]
"""A file that is unchanged if its state is: name, size, mtime, ctime, inode, row ids of its content and of itself. A
plain tuple, since anything made of it takes longer than reading it."""


class SourceName(NamedTuple):
    """A source without its state."""

    name: str
    missing: int
    failed: int
    hash_id: int | None
    id: int

    @property
    def served(self) -> bool:
        """Whether it is there, and its content is known."""
        return not self.missing and not self.failed and self.hash_id is not None


def _by_name(rows: list[UsableRow]) -> dict[str, UsableRow]:
    found = dict(zip(map(itemgetter(0), rows), rows, strict=True))
    for name in [name for name in found if not isinstance(name, str)]:
        found[os.fsdecode(name)] = found.pop(name)
    return found


def usable_in(connection: AnyConnection, directory_id: int) -> dict[str, UsableRow]:
    """{name: row} of the sources of a directory that are unchanged if their state is."""
    rows = _usable_in.rows(connection, (directory_id,))
    return _by_name(rows)


def names_in(connection: AnyConnection, directory_id: int, *, unusable: bool = False) -> list[SourceName]:
    """The sources of a directory; `unusable`: only those that aren't in `usable_in`."""
    rows = (_others_in if unusable else _all_in).rows(connection, (directory_id,))
    return [SourceName(os.fsdecode(row[0]), *row[1:]) for row in rows]


def named_in(connection: AnyConnection, directory_id: int, names: Iterable[str]) -> list[SourceName]:
    """The sources of a directory that have one of these names."""
    rows = _named_in.rows(connection, [to_sql(name) for name in names], (directory_id,))
    return [SourceName(os.fsdecode(row[0]), *row[1:]) for row in rows]


_usable_at = Statement(
    select(*_state, sources.c.hash_id)
    .join_from(directories, sources, directories.c.id == sources.c.directory_id)
    .where(directories.c.root_id == bindparam("root"), directories.c.relpath == bindparam("relpath"), _usable)
)


def usable_at(connection: AnyConnection, root_id: int, relpath: str) -> dict[str, UsableRow]:
    """As `usable_in`, for a directory of a root; the rows have no id of their own."""
    rows = _usable_at.rows(connection, (root_id, to_sql(relpath)))
    return _by_name(rows)


_by_id = ByDigest(lambda ids: select(hashes.c.id, *_CONTENT).where(hashes.c.id.in_(ids)), Integer)


def contents_by_id(connection: AnyConnection, ids: Iterable[int]) -> dict[int, Content]:
    """{row id: content}"""
    return {row[0]: Content(*row[1:]) for row in _by_id.rows(connection, sorted(set(ids)))}


_there = (
    select(directories.c.relpath, sources.c.name, sources.c.error, *_CONTENT, sources.c.hash_id)
    .join_from(sources, directories, directories.c.id == sources.c.directory_id)
    .outerjoin(hashes, hashes.c.id == sources.c.hash_id)
    .where(directories.c.root_id == bindparam("root"), sources.c.missing_since.is_(None))
)
_in_root = Statement(_there)
_below = Statement(_there.where(below(BELOW)))


BelowRow = tuple[Any, ...]
"""Relpath of the directory, name and error of a file, what it holds, and that one's row id; names that aren't UTF-8 are
bytes."""


def sources_below(connection: AnyConnection, root_id: int, inside: str, take: Callable[[list[BelowRow]], None]) -> None:
    """Hand the files that are there at and below a directory of a root ("": all of them) to `take`, in no order."""
    if not inside:
        return _in_root.in_parts(connection, (root_id,), take)
    return _below.in_parts(connection, (root_id, *place_below(inside)), take)


def digests_of(connection: Connection, source_ids: Sequence[int]) -> dict[int, bytes]:
    """{source id: digest of what it held last}"""
    found: dict[int, bytes] = {}
    for part in chunks(source_ids):
        query = select(sources.c.id, hashes.c.digest).join_from(sources, hashes, hashes.c.id == sources.c.hash_id)
        found.update((id_, digest) for id_, digest in connection.execute(query.where(sources.c.id.in_(part))))
    return found


_at = Statement(
    select(*_SOURCE)
    .join_from(sources, directories, directories.c.id == sources.c.directory_id)
    .outerjoin(hashes, hashes.c.id == sources.c.hash_id)
    .where(
        directories.c.root_id == bindparam("root"),
        directories.c.relpath == bindparam("relpath"),
        sources.c.name == bindparam("wanted"),
    )
)


def find_source(connection: AnyConnection, path: str) -> SourceRow | None:
    """What is known of the file at this absolute path, in the deepest root that holds it."""
    above = root_above(known_roots(connection), os.path.dirname(path))
    if above is None:
        return None
    root, relpath = above
    rows = _at.rows(connection, (root.id, to_sql(relpath), to_sql(os.path.basename(path))))
    return _source(rows[0]) if rows else None


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


def save_sources(connection: Connection, root_id: int, seen: Sequence[SeenSource]) -> dict[tuple[str, bytes], int]:
    """Write what a scan found. What a file held before goes into `source_contents`; the fingerprints of the directories
    go, since their rows change.

    Returns:
        {(kind, digest): row id} of their contents.
    """
    if not seen:
        return {}
    content_ids = save_contents(connection, (s.content for s in seen if s.content is not None))
    directory_ids = save_directories(connection, root_id, {s.relpath for s in seen})
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
    remove_prints(connection, directory_ids.values())
    return content_ids


def mark_missing(connection: Connection, source_ids: Sequence[int]) -> None:
    """Note that these files weren't in their folder's listing any more."""
    now = now_ms()
    changed: set[int] = set()
    for part in chunks(source_ids):
        connection.execute(update(sources).where(sources.c.id.in_(part)).values(missing_since=now))
        changed.update(connection.scalars(select(sources.c.directory_id).where(sources.c.id.in_(part)).distinct()))
    remove_prints(connection, changed)
