"""What a plan has to know of many keys: whether each can be served, and which names are stored under it.

The same as `find_variants` and its checks, with one join of four tables per row: what rows share (layouts, stamps,
values, composites) is fetched and checked once per plan.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, FromClause, Integer, LargeBinary, Select, Text, bindparam, literal_column, select

from casstore.identity.digests import plain_digest
from casstore.index.bulk import AnyConnection, ByDigest, Statement
from casstore.index.tables import (
    hashes,
    layouts,
    objects,
    recipes,
    schema_stamps,
    value_sets,
    variant_parts,
    variants,
)
from casstore.index.variants import Identity, checksum

_NO_NAMES: frozenset[str] = frozenset()


_COLUMNS = (
    variants.c.id,
    variants.c.hash_id,
    variants.c.inputs_id,
    variants.c.resolution,
    variants.c.variation,
    variants.c.params,
    variants.c.values_id,
    variants.c.checksum,
    variant_parts.c.ordinal,
    variant_parts.c.stamp_id,
    variant_parts.c.inputs_id,
    objects.c.digest,
    objects.c.layout_id,
    objects.c.damaged_at,
)
_ORDINAL, _STAMP, _FILE = 8, 9, 14  # where these are in a row; after them come those of files and of contents


def _query(*more: ColumnElement[Any], contents: bool = False) -> Select[Any]:
    columns: tuple[ColumnElement[Any], ...] = (*_COLUMNS, *more)
    start: FromClause = variants
    if contents:
        columns = (*columns, hashes.c.kind, hashes.c.digest)
        start = variants.join(hashes, hashes.c.id == variants.c.hash_id)
    parts = start.outerjoin(variant_parts, variant_parts.c.variant_id == variants.c.id)
    # Of a recipe by a condition that no index can serve: SQLite would walk all variants of that recipe.
    return (
        select(*columns)
        .select_from(parts.outerjoin(objects, objects.c.id == variant_parts.c.object_id))
        .where(literal_column("+variants.recipe_id", Integer) == bindparam("recipe"))
    )


_FILES = (objects.c.codec, objects.c.stored_bytes, objects.c.stored_xxh3)
_by_content = ByDigest(lambda digests: _query(contents=True).where(hashes.c.digest.in_(digests)))
_with_files = ByDigest(lambda digests: _query(*_FILES, contents=True).where(hashes.c.digest.in_(digests)))
_by_id = ByDigest(lambda ids: _query().where(variants.c.hash_id.in_(ids)), Integer)
_recipe_ids = ByDigest(lambda digests: select(recipes.c.id).where(recipes.c.digest.in_(digests)))


class State(NamedTuple):
    """What is stored under a key.

    Attributes:
        whole: it can be served, as far as the index knows.
        names: of its tensors and values.
        values_id: row id of its values, for `States.values`.
        parts: its objects, in order; nothing unless the states were asked for with files.
    """

    whole: bool
    names: frozenset[str]
    values_id: int | None = None
    parts: tuple[PartFile, ...] = ()


class PartFile(NamedTuple):
    """The object of one part, as the index knows it; `layout_id` is for `States.layout`."""

    object_digest: bytes
    layout_id: int
    codec: str
    stored_bytes: int
    stored_xxh3: int


class _Shared:
    """Rows that many variants share, by id: fetched once, None where the row is gone or isn't what its digest says."""

    def __init__(self, query: Callable[[list[Any]], Any], read: Callable[..., Any]) -> None:
        self._query, self._read = ByDigest(query, Integer), read
        self.known: dict[int | None, Any] = {}

    def fetch(self, connection: AnyConnection, ids: Iterable[int | None]) -> dict[int | None, Any]:
        """All that is known; at least these ids are in it."""
        new = [id_ for id_ in set(ids) if id_ not in self.known]
        if new:
            self.known.update(dict.fromkeys(new))
            asked = [id_ for id_ in new if id_ is not None]
            rows = self._query.rows(connection, asked) if asked else []
            self.known.update((id_, self._read(*rest)) for id_, *rest in rows)
        return self.known


class _Told(NamedTuple):
    """A layout or a set of values: its digest, its names, and its text where that is wanted."""

    digest: bytes
    names: frozenset[str]
    text: str | None


def _told(digest: bytes, data: str, keep: bool) -> _Told | None:
    return _Told(digest, frozenset(json.loads(data)), data if keep else None) if plain_digest(data) == digest else None


TIMED = 256  # variants; their mean is the usual time of an encode
_last_times = Statement(
    select(variants.c.encode_us)
    .join_from(variants, recipes, recipes.c.id == variants.c.recipe_id)
    .where(recipes.c.digest == bindparam("recipe", type_=LargeBinary), variants.c.encode_us.is_not(None))
    .order_by(variants.c.id.desc())
    .limit(literal_column(str(TIMED), Integer))
    .offset(literal_column("0", Integer))
)
_last_times_by_name = Statement(
    select(variants.c.encode_us)
    .join_from(variants, recipes, recipes.c.id == variants.c.recipe_id)
    .where(recipes.c.name == bindparam("name", type_=Text), variants.c.encode_us.is_not(None))
    .order_by(variants.c.id.desc())
    .limit(literal_column(str(TIMED), Integer))
    .offset(literal_column("0", Integer))
)


def usual_encode_us(connection: AnyConnection, recipe: bytes, name: str) -> float | None:
    """How long an encode has taken lately with a recipe, or with others of its name, in microseconds."""
    found = _last_times.rows(connection, (recipe,)) or _last_times_by_name.rows(connection, (name,))
    return sum(us for (us,) in found) / len(found) if found else None


_last_sizes = Statement(
    select(objects.c.stored_bytes, variants.c.id)
    .join_from(variants, recipes, recipes.c.id == variants.c.recipe_id)
    .join(variant_parts, variant_parts.c.variant_id == variants.c.id)
    .join(objects, objects.c.id == variant_parts.c.object_id)
    .where(recipes.c.digest == bindparam("recipe", type_=LargeBinary))
    .order_by(variants.c.id.desc())
    .limit(literal_column(str(TIMED), Integer))
    .offset(literal_column("0", Integer))
)


def usual_stored_bytes(connection: AnyConnection, recipe: bytes) -> float | None:
    """The mean size on disk of the newest variants of a recipe; None: it has none."""
    found = _last_sizes.rows(connection, (recipe,))
    return sum(nbytes for nbytes, _ in found) / len({id_ for _, id_ in found}) if found else None


class States:
    """What is stored with one recipe, asked for in chunks.

    Args:
        recipe: its digest.
        files: tell the objects, too, and keep the texts of layouts and values.
    """

    def __init__(self, recipe: bytes, *, files: bool = False) -> None:
        self._recipe, self._files = recipe, files
        self._recipe_id: int | None = None
        self._inputs = _Shared(
            lambda ids: select(hashes.c.id, hashes.c.digest).where(hashes.c.id.in_(ids)), lambda digest: digest
        )
        self._stamps = _Shared(
            lambda ids: select(schema_stamps.c.id, schema_stamps.c.digest).where(schema_stamps.c.id.in_(ids)),
            lambda digest: digest,
        )
        self._values = _Shared(
            lambda ids: select(value_sets.c.id, value_sets.c.digest, value_sets.c.data).where(value_sets.c.id.in_(ids)),
            lambda digest, data: _told(digest, data, files),
        )
        self._layouts = _Shared(
            lambda ids: select(layouts.c.id, layouts.c.digest, layouts.c.tensors).where(layouts.c.id.in_(ids)),
            lambda digest, data: _told(digest, data, files),
        )
        self._names: dict[tuple[Any, ...], frozenset[str]] = {}
        self._shared: dict[tuple[Any, ...], Any] = {}

    @property
    def known(self) -> bool:
        """Whether the index knows the recipe; told after a `find`."""
        return self._recipe_id is not None

    def layout(self, layout_id: int) -> str:
        """The text of a layout that a `find` with files told of."""
        found: str = self._layouts.known[layout_id].text
        return found

    def values(self, values_id: int | None) -> str | None:
        """The values of a variant that a `find` with files told of, as JSON text."""
        return None if values_id is None else self._values.known[values_id].text

    def find(self, connection: AnyConnection, contents: Sequence[bytes]) -> dict[Identity, State]:
        """{key as plain values: state} of all that is stored of these contents with the recipe."""
        if not self._is_known(connection):
            return {}
        rows = (_with_files if self._files else _by_content).rows(connection, contents, (self._recipe_id,))
        return self._states(connection, rows, {row[1]: row[-2:] for row in rows})

    def find_files(self, connection: AnyConnection, contents: Mapping[int, bytes]) -> dict[Identity, State]:
        """As `find`, of files whose row ids are known: much faster, since these lie in the order of scans and digests
        anywhere. An id that stands for another content by now finds nothing whole: checksums go by digests.

        Args:
            connection: for reading.
            contents: {row id: digest}.
        """
        if not self._is_known(connection):
            return {}
        rows = _by_id.rows(connection, list(contents), (self._recipe_id,))
        return self._states(connection, rows, {id_: ("file", digest) for id_, digest in contents.items()})

    def _is_known(self, connection: AnyConnection) -> bool:
        if self._recipe_id is None:
            known = _recipe_ids.rows(connection, [self._recipe])
            self._recipe_id = known[0][0] if known else None
        return self._recipe_id is not None

    def _states(
        self, connection: AnyConnection, rows: Sequence[Any], contents: Mapping[int, tuple[str, bytes]]
    ) -> dict[Identity, State]:
        inputs = self._inputs.fetch(connection, {each for row in rows for each in (row[2], row[10]) if each != row[1]})
        stamps = self._stamps.fetch(connection, {row[9] for row in rows})
        values = self._values.fetch(connection, {row[6] for row in rows})
        tensors = self._layouts.fetch(connection, {row[12] for row in rows})
        if not self._files and len({row[0] for row in rows}) == len(rows):
            return self._of_one_part(rows, contents, inputs, stamps, values, tensors)
        groups: dict[int, list[Any]] = {}
        for row in rows:
            group = groups.get(row[0])
            if group is None:
                groups[row[0]] = [row]
            else:
                group.append(row)
        found: dict[Identity, State] = {}
        for group in groups.values():
            _, hash_id, inputs_id, resolution, variation, params, values_id, told, *_ = group[0]
            kind, digest = contents[hash_id]
            if len(group) > 1:
                group.sort(key=lambda row: str(row[_ORDINAL]).zfill(20))
            all_inputs = digest if inputs_id == hash_id else inputs[inputs_id]
            key: Identity = (kind, digest, all_inputs, self._recipe, resolution, variation, params)
            value = values[values_id]
            whole = values_id is None or value is not None
            parts = []
            named = [values_id]
            for row in group:
                stamp_id, part_inputs, object_digest, layout_id, damaged = row[_STAMP:_FILE]
                depends = (
                    all_inputs if part_inputs is None else digest if part_inputs == hash_id else inputs[part_inputs]
                )
                parts.append((object_digest, stamps[stamp_id], depends))
                named.append(layout_id)
                whole = whole and damaged is None and tensors[layout_id] is not None
            try:
                whole = whole and told == checksum(key, None if value is None else value.digest, parts)
            except (AttributeError, TypeError):
                whole = False  # a row that lost what it points to, or a flipped bit made a value one of another type
            shared = tuple(named)
            names = self._names.get(shared)
            if names is None:
                told_names = (tensors[id_].names for id_ in shared[1:] if tensors[id_])
                names = _NO_NAMES.union(*told_names, value.names if value else ())
                self._names[shared] = names
            files = tuple(PartFile(row[_STAMP + 2], row[_STAMP + 3], *row[_FILE:-2]) for row in group if self._files)
            found[key] = State(whole, names, values_id, files)
        return found

    def _of_one_part(
        self,
        rows: Sequence[Any],
        contents: Mapping[int, tuple[str, bytes]],
        inputs: Any,
        stamps: Any,
        values: Any,
        tensors: Any,
    ) -> dict[Identity, State]:
        """As `find`, where no variant has several parts, as is usual: what variants share is told once."""
        recipe = self._recipe
        found: dict[Identity, State] = {}
        for row in rows:
            _, hash_id, inputs_id, resolution, variation, params, values_id, told, *part = row
            _, stamp_id, part_inputs, object_digest, layout_id, damaged, *_ = part
            kind, digest = contents[hash_id]
            shared = self._shared.get((values_id, stamp_id, layout_id))
            if shared is None:
                value, layout = values[values_id], tensors[layout_id]
                whole = (values_id is None or value is not None) and layout is not None
                names = _NO_NAMES.union(layout.names if layout else (), value.names if value else ())
                good, bad = State(True, names, values_id), State(False, names, values_id)
                shared = value and value.digest, stamps[stamp_id], whole, good, bad
                self._shared[values_id, stamp_id, layout_id] = shared
            value_digest, stamp, whole, good, bad = shared
            together = digest if inputs_id == hash_id else inputs[inputs_id]
            key: Identity = (kind, digest, together, recipe, resolution, variation, params)
            depends = together if part_inputs is None else digest if part_inputs == hash_id else inputs[part_inputs]
            try:
                sound = whole and damaged is None
                sound = sound and told == checksum(key, value_digest, ((object_digest, stamp, depends),))
            except (AttributeError, TypeError):
                sound = False
            found[key] = good if sound else bad
        return found
