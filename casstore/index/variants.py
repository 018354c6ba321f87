"""Rows of variants: found by key, checked at every lookup, written in groups, forgotten."""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import xxhash
from sqlalchemy import Connection, Select, and_, bindparam, delete, select, update
from sqlalchemy.dialects.sqlite import insert

from casstore.identity.digests import plain_digest, repeated_digest, signed
from casstore.identity.keys import Key
from casstore.index.bulk import AnyConnection, ByDigest, Interned, Statement, chunks, last_id, now_ms
from casstore.index.recipes import unretire_used
from casstore.index.tables import (
    failures,
    hash_members,
    hashes,
    layouts,
    objects,
    recipes,
    schema_stamps,
    texts,
    value_sets,
    variant_parts,
    variants,
)
from casstore.model import Content, Stored

Identity = tuple[str, bytes, bytes, bytes, str, int, str]
"""(kind, content digest, inputs digest, recipe digest, resolution, variation, params): a key as plain values."""


class PartRow(NamedTuple):
    """One part of a variant: its object, as the index knows it."""

    object_digest: bytes
    stamp_digest: bytes
    inputs_digest: bytes
    layout: str
    codec: str
    stored_bytes: int
    stored_xxh3: int
    condemned: bool
    damaged: bool

    @property
    def stored(self) -> Stored:
        """Its object's file."""
        return Stored(self.object_digest, self.codec, self.layout, self.stored_bytes, self.stored_xxh3)


class VariantRow(NamedTuple):
    """A variant as the index has it.

    Attributes:
        values: JSON text, or None.
        sound: the row's checksum fits everything it says, and no bit of its values or layouts has changed.
    """

    id: int
    values: str | None
    parts: tuple[PartRow, ...]
    sound: bool

    @property
    def damaged(self) -> bool:
        """Whether the index itself knows that this can't be served."""
        return not self.sound or any(part.damaged for part in self.parts)


@dataclass(frozen=True, slots=True)
class NewVariant:
    """A variant of one part to be written."""

    key: Key
    object_digest: bytes
    names: str  # JSON of the stamp
    values: str | None
    reason: str
    encode_us: int | None


def identity(key: Key) -> Identity:
    """The plain values of a key."""
    content, inputs = key.primary.digest, key.inputs.digest
    return key.primary.kind, content, inputs, key.recipe.digest, key.resolution, key.variation, key.params


def checksum(key: Identity, values: bytes | None, parts: Iterable[tuple[bytes, bytes, bytes]]) -> int:
    """XXH3-64, as a signed integer, of all that a variant's row means: digests, not row ids.

    Args:
        key: what it is stored under.
        values: digest of its values.
        parts: (object, stamp, inputs) digests in order.
    """
    kind, content, inputs, recipe, resolution, variation, params = key
    pieces = [
        *(_counted(kind), _DIGEST_LENGTH, content, _DIGEST_LENGTH, inputs, _DIGEST_LENGTH, recipe),
        *(_counted(resolution), _counted(str(variation)), _counted(params), values or _NO_VALUES),
    ]
    for part in parts:
        pieces += part
    return signed(xxhash.xxh3_64_intdigest(b"".join(pieces)))


_DIGEST_LENGTH = struct.pack("<I", 32)
_NO_VALUES = bytes(32)


@functools.lru_cache(maxsize=4096)
def _counted(text: str) -> bytes:
    """A text behind its length, so that no two lists of texts look alike."""
    data = text.encode("utf-8", "surrogateescape")
    return struct.pack("<I", len(data)) + data


_ORDINAL = 11  # where that column is in a row of the query below
_inputs = hashes.alias("inputs")
_part_inputs = hashes.alias("part_inputs")


def _query(*, of_all: bool = False) -> Select[Any]:
    """The query for variants; `of_all`: for walking over all of them, also those whose content is gone."""
    # Outer joins: a row whose ids lead nowhere (a flipped bit) has to be found to be told. But where contents are asked
    # for, the join with them has to be an inner one, or SQLite walks all variants instead of looking them up.
    return (
        select(
            variants.c.id,
            hashes.c.kind,
            hashes.c.digest,
            _inputs.c.digest,
            recipes.c.digest,
            variants.c.resolution,
            variants.c.variation,
            variants.c.params,
            variants.c.checksum,
            value_sets.c.digest,
            value_sets.c.data,
            variant_parts.c.ordinal,  # _ORDINAL
            objects.c.digest,
            schema_stamps.c.digest,
            _part_inputs.c.digest,
            layouts.c.digest,
            layouts.c.tensors,
            objects.c.codec,
            objects.c.stored_bytes,
            objects.c.stored_xxh3,
            objects.c.condemned_at.is_not(None),
            objects.c.damaged_at.is_not(None),
        )
        .join_from(variants, hashes, hashes.c.id == variants.c.hash_id, isouter=of_all)
        .outerjoin(_inputs, _inputs.c.id == variants.c.inputs_id)
        .outerjoin(recipes, recipes.c.id == variants.c.recipe_id)
        .outerjoin(value_sets, value_sets.c.id == variants.c.values_id)
        .outerjoin(variant_parts, variant_parts.c.variant_id == variants.c.id)
        .outerjoin(objects, objects.c.id == variant_parts.c.object_id)
        .outerjoin(layouts, layouts.c.id == objects.c.layout_id)
        .outerjoin(schema_stamps, schema_stamps.c.id == variant_parts.c.stamp_id)
        .outerjoin(_part_inputs, _part_inputs.c.id == variant_parts.c.inputs_id)
    )


# Only the content is asked for: a condition on the recipe would make SQLite walk all variants of that recipe.
_by_content = ByDigest(lambda digests: _query().where(hashes.c.digest.in_(digests)))


def find_variants(connection: AnyConnection, keys: Sequence[Key]) -> dict[bytes, VariantRow]:
    """{key digest: row} of those of the keys that are stored."""
    wanted = {identity(key): key.digest for key in keys}
    rows = _by_content.rows(connection, list({key.primary.digest for key in keys}))
    return {wanted[key]: row for key, row in _collect(rows) if key in wanted}


def variants_after(connection: Connection, id_: int, limit: int) -> list[tuple[Identity, VariantRow]]:
    """The next `limit` variants in order of their ids, for walking over all of them in short transactions."""
    ids = select(variants.c.id).where(variants.c.id > id_).order_by(variants.c.id).limit(limit)
    return list(_collect(connection.execute(_query(of_all=True).where(variants.c.id.in_(ids.scalar_subquery())))))


def _collect(rows: Iterable[Sequence[Any]]) -> Iterable[tuple[Identity, VariantRow]]:
    groups: dict[int, list[Sequence[Any]]] = {}
    for row in rows:
        groups.setdefault(row[0], []).append(row)
    for group in groups.values():
        key: Identity = tuple(group[0][1:8])
        yield key, _variant(key, group)


def _variant(key: Identity, rows: list[Sequence[Any]]) -> VariantRow:
    id_, told, values_digest, data = rows[0][0], *rows[0][8:_ORDINAL]
    sound = None not in key and (data is None or repeated_digest(data) == values_digest)
    parts: list[PartRow] = []
    names = []
    if len(rows) > 1:
        # Ordered here: asked to do it, SQLite may walk all variants in order instead of looking up the wanted ones.
        rows.sort(key=lambda row: str(row[_ORDINAL]).zfill(20))
    for row in rows:
        object_digest, stamp, inputs, layout_digest, layout, codec, nbytes, xxh3, condemned, damaged = row[
            _ORDINAL + 1 :
        ]
        if object_digest is None or stamp is None or layout is None:
            sound = False  # a row that lost what it points to
            continue
        inputs = inputs or key[2]
        sound = sound and repeated_digest(layout) == layout_digest
        names.append((object_digest, stamp, inputs))
        parts.append(PartRow(object_digest, stamp, inputs, layout, codec, nbytes, xxh3, condemned == 1, damaged == 1))
    try:
        sound = sound and told == checksum(key, values_digest, names)
    except (AttributeError, TypeError):
        sound = False  # a flipped bit made a value one of another type
    return VariantRow(id_, data, tuple(parts), sound)


_MEASURES = ("width", "height", "orientation", "note", "frames", "rate")
_CONTENT = ("id", "kind", "digest", "nbytes", *_MEASURES)
_insert_content = Statement(insert(hashes), _CONTENT)
_complete_content = Statement(
    update(hashes).where(hashes.c.id == bindparam("known")).values({name: bindparam(name) for name in _MEASURES})
)
_contents = ByDigest(
    lambda digests: select(
        hashes.c.kind,
        hashes.c.digest,
        hashes.c.id,
        hashes.c.width.is_(None),
        and_(hashes.c.frames.is_(None), hashes.c.rate.is_(None)),
        hashes.c.note.is_(None),
    ).where(hashes.c.digest.in_(digests))
)
_save_text = Statement(insert(texts).on_conflict_do_nothing(), ("hash_id", "text"))
_save_member = Statement(
    insert(hash_members).on_conflict_do_nothing(), tuple(column.name for column in hash_members.columns)
)
_recipes = Interned(recipes, ("name", "spec"), first=("created_at", "codec", "namespace"))
_stamps = Interned(schema_stamps, ("names",))
_values = Interned(value_sets, ("data",))
_object_ids = ByDigest(lambda digests: select(objects.c.digest, objects.c.id).where(objects.c.digest.in_(digests)))
_VARIANT = tuple(column.name for column in variants.columns)
_save_variant = Statement(insert(variants), _VARIANT)
_save_part = Statement(insert(variant_parts), tuple(column.name for column in variant_parts.columns))
_forget_failure = Statement(delete(failures).where(failures.c.key == bindparam("wanted")))


def measures(content: Content) -> tuple[Any, ...]:
    """What is known of a content besides its bytes, as columns of `hashes`."""
    return content.width, content.height, content.orientation, content.note, content.frames, content.rate


def save_contents(connection: AnyConnection, contents: Iterable[Content]) -> dict[tuple[str, bytes], int]:
    """The ids of contents, inserted or completed with what is newly known of them.

    Returns:
        {(kind, digest): id}
    """
    wanted = {(content.kind, content.digest): content for content in contents}
    found: dict[tuple[str, bytes], int] = {}
    incomplete = []
    for kind, digest, id_, unmeasured, untimed, silent in _contents.rows(connection, [digest for _, digest in wanted]):
        content = wanted.get((kind, digest))
        if content is None:
            continue  # another kind of the same digest
        found[kind, digest] = id_
        timed = content.frames is not None or content.rate is not None
        news = untimed and (timed or (silent and content.note is not None))
        if unmeasured and (content.width is not None or news):
            incomplete.append((*measures(content), id_))
    # In the order of the digests, which is that of their index: neighbours share pages.
    new = sorted((c for key, c in wanted.items() if key not in found), key=lambda c: c.digest)
    ids = {(c.kind, c.digest): id_ for id_, c in enumerate(new, start=last_id(connection, hashes) + 1)} if new else {}
    _insert_content.many(
        connection,
        [(ids[c.kind, c.digest], c.kind, c.digest, c.nbytes, *measures(c)) for c in new],
    )
    _complete_content.many(connection, incomplete)
    found |= ids
    _save_text.many(connection, [(found[key], c.text) for key, c in wanted.items() if c.text is not None])
    return found


def save_inputs(connection: AnyConnection, keys: Iterable[Key]) -> dict[tuple[str, bytes], int]:
    """The ids of all contents of these keys: primaries, members and what they are together.

    Returns:
        {(kind, digest): id}
    """
    known = {(key.primary, key.inputs): key.members for key in keys}
    contents = [content for pair in known for content in pair]
    contents += [member.content for members in known.values() for member in members]
    ids = save_contents(connection, contents)
    rows = [
        (ids[inputs.kind, inputs.digest], role, ordinal, ids[content.kind, content.digest])
        for (_, inputs), members in known.items()
        for role, ordinal, content in members
    ]
    _save_member.many(connection, rows)
    return ids


def save_recipes(connection: AnyConnection, keys: Iterable[Key]) -> dict[bytes, int]:
    """{recipe digest: id} of the recipes of these keys, inserted where they are new; none of them stays retired."""
    wanted = {key.recipe.digest: key.recipe for key in keys}
    now = now_ms()
    rows = {digest: (r.name, r.spec, now, r.codec, r.namespace) for digest, r in wanted.items()}
    unretire_used(connection, list(wanted))
    return _recipes.save(connection, rows)


def save_variants(
    connection: Connection, new: Sequence[NewVariant], replaced: Iterable[int], run_id: int | None
) -> None:
    """Write variants whose objects have rows already.

    Args:
        connection: in a write transaction.
        new: the variants; their keys differ.
        replaced: row ids of variants under the same keys that couldn't be served; they go.
        run_id: of the build that made them.
    """
    delete_variants(connection, replaced)
    if not new:
        return
    content_ids = save_inputs(connection, (v.key for v in new))
    recipe_ids = save_recipes(connection, (v.key for v in new))
    stamps = {v.names: plain_digest(v.names) for v in new}
    values = {v.values: plain_digest(v.values) for v in new if v.values is not None}
    stamp_ids = _stamps.save(connection, {digest: (names,) for names, digest in stamps.items()})
    value_ids = _values.save(connection, {digest: (data,) for data, digest in values.items()})
    object_ids: dict[bytes, int] = dict(_object_ids.rows(connection, [v.object_digest for v in new]))
    rows, parts = [], []
    for id_, v in enumerate(new, start=last_id(connection, variants) + 1):
        key, stamp = v.key, stamps[v.names]
        hash_id = content_ids[key.primary.kind, key.primary.digest]
        inputs_id = content_ids[key.inputs.kind, key.inputs.digest]
        value = None if v.values is None else values[v.values]
        told = checksum(identity(key), value, [(v.object_digest, stamp, key.inputs.digest)])
        rows.append(
            (
                *(id_, hash_id, inputs_id, recipe_ids[key.recipe.digest], key.resolution, key.variation, key.params),
                *(None if value is None else value_ids[value], run_id, v.reason, v.encode_us, told),
            )
        )
        parts.append((id_, 0, object_ids[v.object_digest], stamp_ids[stamp], None))
    _save_variant.many(connection, rows)
    _save_part.many(connection, parts)
    _forget_failure.many(connection, [(v.key.digest,) for v in new])


def delete_variants(connection: Connection, ids: Iterable[int]) -> int:
    """Delete variants by row id; their objects stay for gc. Returns how many there were."""
    count = 0
    for part in chunks(list(ids)):
        connection.execute(delete(variant_parts).where(variant_parts.c.variant_id.in_(part)))
        count += connection.execute(delete(variants).where(variants.c.id.in_(part))).rowcount
    return count


def select_for_forget(
    connection: Connection, *, recipe: bytes | None = None, contents: Sequence[bytes] = (), key: Key | None = None
) -> list[int]:
    """Row ids of the variants of one key, of one recipe, or of some contents."""
    query = select(variants.c.id).join_from(variants, hashes, hashes.c.id == variants.c.hash_id)
    query = query.join(recipes, recipes.c.id == variants.c.recipe_id)
    if key is not None:
        row = find_variants(connection, [key]).get(key.digest)
        return [] if row is None else [row.id]
    if recipe is not None:
        return list(connection.scalars(query.where(recipes.c.digest == recipe)))
    return [id_ for part in chunks(contents) for id_ in connection.scalars(query.where(hashes.c.digest.in_(part)))]
