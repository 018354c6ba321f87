"""What became of many contents with one recipe: stored, or why not. Sets of row ids, for counting and listing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, Integer, bindparam, literal_column, or_, select

from casstore.index.bulk import Statement
from casstore.index.members import TEXT
from casstore.index.reasons import PICTURE_FAILURE
from casstore.index.tables import (
    directories,
    failures,
    hash_members,
    hashes,
    objects,
    source_contents,
    sources,
    variant_parts,
    variants,
)
from casstore.model import Miss

_member = hashes.alias("member")
_FILE: ColumnElement[str] = literal_column("'file'")
_RECIPE = bindparam("recipe", type_=Integer)
_there = sources.c.missing_since.is_(None)

_stored = Statement(select(variants.c.hash_id).where(variants.c.recipe_id == _RECIPE).distinct())
_sizes = Statement(
    select(variants.c.hash_id, variants.c.resolution, hashes.c.width, hashes.c.height, hashes.c.orientation)
    .join_from(variants, hashes, hashes.c.id == variants.c.hash_id)
    .where(variants.c.recipe_id == _RECIPE)
)
# From the damaged objects, of which there are few, to their variants.
_damaged = Statement(
    select(variants.c.hash_id)
    .join_from(objects, variant_parts, variant_parts.c.object_id == objects.c.id)
    .join(variants, variants.c.id == variant_parts.c.variant_id)
    .where(objects.c.damaged_at.is_not(None), literal_column("+variants.recipe_id", Integer) == _RECIPE)
)
_failed = Statement(
    select(failures.c.hash_id, failures.c.error_type, failures.c.message).where(failures.c.recipe_id == _RECIPE)
)
_before = Statement(
    select(sources.c.hash_id, source_contents.c.hash_id)
    .join_from(source_contents, sources, sources.c.id == source_contents.c.source_id)
    .where(_there, sources.c.hash_id.is_not(None))
)
_texts = Statement(
    select(hash_members.c.hash_id, hash_members.c.role, hash_members.c.ordinal, hash_members.c.member_id)
    .join_from(hash_members, _member, _member.c.id == hash_members.c.member_id)
    .join(hashes, hashes.c.id == hash_members.c.hash_id)
    .where(_member.c.kind == TEXT, hashes.c.kind == _FILE)
)
_refused = Statement(select(hashes.c.id, hashes.c.note).where(hashes.c.width.is_(None), hashes.c.note.is_not(None)))


class FileRow(NamedTuple):
    """A file that is there, at `relpath` / `name` in its root; `content`: row id of what it holds, unless `error`."""

    relpath: str
    name: str
    content: int | None
    error: str | None

    @property
    def place(self) -> str:
        """Its path below the root."""
        return f"{self.relpath}/{self.name}" if self.relpath else self.name


class Contents:
    """What the files that are there hold, and held before.

    Attributes:
        texts: {row id of a caption file's content: those of its texts}.
    """

    def __init__(self, connection: Connection) -> None:
        members: dict[int, dict[tuple[str, int], int]] = defaultdict(dict)
        for file, reader, ordinal, text in _texts.rows(connection):
            members[file][reader, ordinal] = text
        self.texts = {file: tuple(dict.fromkeys(each.values())) for file, each in members.items()}
        self._before: dict[int, set[int]] = defaultdict(set)
        for now, then in _before.rows(connection):
            self._before[now].add(then)
            later = members.get(now, {})
            for place, text in members.get(then, {}).items():
                if place in later:
                    self._before[later[place]].add(text)

    def before(self, content: int) -> Iterable[int]:
        """What the files with this content, or the caption files with this text, held before."""
        return self._before.get(content, ())

    def inside(self, content: int) -> tuple[int, ...]:
        """A content, and the texts in it."""
        return (content, *self.texts.get(content, ()))


class Fates:
    """What became of contents with one recipe.

    Args:
        connection: for reading.
        recipe: its row id; None: the index doesn't know it.
        namesakes: row ids of other recipes of its name.
        contents: see there.
    """

    def __init__(
        self, connection: Connection, recipe: int | None, namesakes: Sequence[int], contents: Contents
    ) -> None:
        self._contents = contents
        own = (recipe,)
        self.stored = stored_with(connection, recipe)
        self.damaged = set() if recipe is None else {id_ for (id_,) in _damaged.rows(connection, own)}
        self._failed = {} if recipe is None else {id_: told for id_, *told in _failed.rows(connection, own)}
        self._refused: dict[int, str] = dict(_refused.rows(connection))
        self.namesakes = {id_ for each in namesakes for id_ in stored_with(connection, each)}

    def miss(self, content: int) -> Miss | None:
        """Why a content isn't served; None: it is, at some resolution."""
        if content in self.damaged:
            return Miss("damaged", "an object of it is marked as damaged")
        if content in self.stored:
            return None
        if content in self._failed:
            kind, message = self._failed[content]
            return Miss("failed" if kind == PICTURE_FAILURE else "retry", message)
        before = self._contents.before(content)
        if not self.stored.isdisjoint(before):
            return Miss("edited", "the file was edited since its last encoding")
        if content in self.namesakes or not self.namesakes.isdisjoint(before):
            return Miss("recipe", "stored with another recipe of this name")
        if content in self._refused:
            return Miss("failed", self._refused[content])
        return Miss("new")


def stored_with(connection: Connection, recipe: int | None) -> set[int]:
    """Row ids of the contents that something is stored of with this recipe."""
    return set() if recipe is None else {id_ for (id_,) in _stored.rows(connection, (recipe,))}


def failed_with(connection: Connection, recipe: int) -> set[int]:
    """Row ids of the contents that couldn't be encoded with this recipe."""
    return {row[0] for row in _failed.rows(connection, (recipe,))}


Sized = tuple[int, str, int | None, int | None, int | None]
"""Row id of a content, a resolution at which it is stored, its width, height and orientation."""


def stored_sizes(connection: Connection, recipe: int) -> list[Sized]:
    """What is stored with a recipe at which resolution."""
    return [(id_, resolution, *rest) for id_, resolution, *rest in _sizes.rows(connection, (recipe,))]


def present_contents(connection: Connection, contents: Contents) -> set[int]:
    """Row ids of what the files that are there hold, and of the texts in them."""
    query = select(sources.c.hash_id).where(_there, sources.c.hash_id.is_not(None)).distinct()
    return {id_ for file in connection.scalars(query) for id_ in contents.inside(file)}


def present_files(connection: Connection, root_id: int, inside: str) -> Iterator[FileRow]:
    """The files at and below a directory of a root ("": all of them) that are there, in order of their places."""
    query = (
        select(directories.c.relpath, sources.c.name, sources.c.hash_id, sources.c.error)
        .join_from(sources, directories, directories.c.id == sources.c.directory_id)
        .where(directories.c.root_id == root_id, _there)
    )
    rows = [FileRow(*row) for row in connection.execute(query)]
    if inside:
        rows = [row for row in rows if row.relpath == inside or row.relpath.startswith(inside + "/")]
    return iter(sorted(rows, key=lambda row: row.place))


def companions(connection: Connection) -> set[int]:
    """Row ids of the contents that are stored only as members of others: masks, for example."""
    composite = hashes.alias("composite")
    members = (
        select(hash_members.c.member_id)
        .join_from(hash_members, composite, composite.c.id == hash_members.c.hash_id)
        .where(composite.c.kind == "composite")
        .distinct()
    )
    primaries = select(variants.c.hash_id).distinct()
    failed = select(failures.c.hash_id).distinct()
    found, others, more = (set[int](connection.scalars(query)) for query in (members, primaries, failed))
    return found - others - more


def ids_of(connection: Connection, contents: Iterable[tuple[str, bytes]]) -> set[int]:
    """Row ids of contents, given by kind and digest; those that have none are left out."""
    wanted = set(contents)
    condition = or_(*((hashes.c.kind == kind) & (hashes.c.digest == digest) for kind, digest in sorted(wanted)))
    return set(connection.scalars(select(hashes.c.id).where(condition))) if wanted else set()


def digests_by_id(connection: Connection, recipe: int) -> dict[int, bytes]:
    """{row id: digest} of the contents that something is stored of with a recipe."""
    query = select(hashes.c.id, hashes.c.digest).join_from(variants, hashes, hashes.c.id == variants.c.hash_id)
    rows = connection.execute(query.where(variants.c.recipe_id == recipe).distinct())
    return {row[0]: row[1] for row in rows}
