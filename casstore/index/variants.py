"""Rows of variants: found by key, checked at every lookup, written in groups, forgotten."""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import xxhash
from sqlalchemy import Connection, Integer, Select, bindparam, delete, select, update
from sqlalchemy.dialects.sqlite import insert

from casstore.identity.digests import plain_digest, repeated_digest, signed
from casstore.identity.keys import Key, Together
from casstore.index.bulk import AnyConnection, ByDigest, Interned, Statement, chunks, last_id, now_ms
from casstore.index.contents import save_inputs
from casstore.index.recipes import unretire_used
from casstore.index.tables import (
    claims,
    failures,
    hashes,
    layouts,
    objects,
    recipes,
    schema_stamps,
    value_sets,
    variant_parts,
    variants,
)
from casstore.model import Stored

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
class Stamp:
    """What a part was written with.

    Attributes:
        names: JSON text: its tensors with dtype and rank, and the names of the values.
        method: how it came to its variant: "added" to what was there; "taken over" from a variant of the same primary;
            None: encoded with it.
        bucket_method: what chose the resolution; for information.
    """

    names: str
    method: str | None = None
    bucket_method: str | None = None

    @property
    def digest(self) -> bytes:
        """The name of its row."""
        if self.method is None and self.bucket_method is None:
            return plain_digest(self.names)
        return plain_digest(f"{self.names}\n{self.method}\n{self.bucket_method}")


class NewPart(NamedTuple):
    """A part to be written; its object has a row already.

    Attributes:
        stamp: a new one, or the digest of one that has a row.
        inputs: what its names depend on; None: all that the variant is made from. Where they have a row already, their
            digest.
    """

    object_digest: bytes
    stamp: Stamp | bytes
    inputs: Together | bytes | None = None


@dataclass(frozen=True, slots=True)
class NewVariant:
    """A variant to be written.

    Attributes:
        values: JSON text.
        id: of the row whose parts and values become these; None: a new row.
    """

    key: Key
    parts: tuple[NewPart, ...]
    values: str | None
    reason: str
    encode_us: int | None
    id: int | None = None


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
    told = _told(resolution, variation, params)
    pieces = [_counted(kind), _LENGTH, content, _LENGTH, inputs, _LENGTH, recipe, told, values or _NO_VALUES]
    for part in parts:
        pieces += part
    return signed(xxhash.xxh3_64_intdigest(b"".join(pieces)))


_LENGTH = struct.pack("<I", 32)  # of a digest
_NO_VALUES = bytes(32)


@functools.lru_cache(maxsize=4096)
def _counted(text: str) -> bytes:
    """A text behind its length, so that no two lists of texts look alike."""
    data = text.encode("utf-8", "surrogateescape")
    return struct.pack("<I", len(data)) + data


@functools.lru_cache(maxsize=4096)
def _told(resolution: str, variation: int, params: str) -> bytes:
    return _counted(resolution) + _counted(str(variation)) + _counted(params)


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


_by_id = ByDigest(lambda ids: _query(of_all=True).where(variants.c.id.in_(ids)), Integer)


def find_variants(connection: AnyConnection, keys: Sequence[Key]) -> dict[bytes, VariantRow]:
    """{key digest: row} of those of the keys that are stored."""
    wanted = {identity(key): key.digest for key in keys}
    rows = _by_content.rows(connection, list({key.primary.digest for key in keys}))
    return {wanted[key]: row for key, row in _collect(rows) if key in wanted}


def variants_of(connection: AnyConnection, contents: Sequence[bytes]) -> list[tuple[Identity, VariantRow]]:
    """All variants of these contents."""
    return list(_collect(_by_content.rows(connection, contents))) if contents else []


def variants_by_id(connection: AnyConnection, ids: Sequence[int]) -> list[tuple[Identity, VariantRow]]:
    """Variants by their row ids, in no order."""
    return list(_collect(_by_id.rows(connection, ids))) if ids else []


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


_recipes = Interned(recipes, ("name", "spec"), first=("created_at", "codec", "namespace"))
_stamps = Interned(schema_stamps, ("names", "method", "bucket_method"))
_stamp_ids = ByDigest(
    lambda digests: select(schema_stamps.c.digest, schema_stamps.c.id).where(schema_stamps.c.digest.in_(digests))
)
_hash_ids = ByDigest(
    lambda digests: select(hashes.c.digest, hashes.c.kind, hashes.c.id).where(hashes.c.digest.in_(digests))
)
_change_variant = Statement(
    update(variants)
    .where(variants.c.id == bindparam("known"))
    .values(values_id=bindparam("values_id", type_=Integer), checksum=bindparam("checksum", type_=Integer))
)
_drop_parts = Statement(delete(variant_parts).where(variant_parts.c.variant_id == bindparam("known")))
_values = Interned(value_sets, ("data",))
_object_ids = ByDigest(lambda digests: select(objects.c.digest, objects.c.id).where(objects.c.digest.in_(digests)))
_VARIANT = tuple(column.name for column in variants.columns)
_save_variant = Statement(insert(variants), _VARIANT)
_save_part = Statement(insert(variant_parts), tuple(column.name for column in variant_parts.columns))
_drop_claim = Statement(delete(claims).where(claims.c.key == bindparam("wanted")))
_forget_failure = Statement(delete(failures).where(failures.c.key == bindparam("wanted")))


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
    parts = [part for v in new for part in v.parts]
    content_ids = save_inputs(
        connection, [*(v.key.together for v in new), *(p.inputs for p in parts if isinstance(p.inputs, Together))]
    )
    recipe_ids = save_recipes(connection, (v.key for v in new))
    stamps = {p.stamp: p.stamp.digest for p in parts if isinstance(p.stamp, Stamp)}
    values = {v.values: plain_digest(v.values) for v in new if v.values is not None}
    stamp_ids = _stamps.save(connection, {digest: (s.names, s.method, s.bucket_method) for s, digest in stamps.items()})
    known = {p.stamp for p in parts if isinstance(p.stamp, bytes)} - stamp_ids.keys()
    stamp_ids |= dict(_stamp_ids.rows(connection, list(known))) if known else {}
    value_ids = _values.save(connection, {digest: (data,) for data, digest in values.items()})
    object_ids: dict[bytes, int] = dict(_object_ids.rows(connection, list({p.object_digest for p in parts})))
    inputs_ids = _ids_of_inputs(connection, new)
    rows, changed, part_rows = [], [], []
    next_id = last_id(connection, variants) + 1
    for v in new:
        key, value = v.key, None if v.values is None else values[v.values]
        names = [
            (p.object_digest, stamps[p.stamp] if isinstance(p.stamp, Stamp) else p.stamp, _inputs_digest(key, p))
            for p in v.parts
        ]
        told = checksum(identity(key), value, names)
        value_id = None if value is None else value_ids[value]
        id_ = next_id if v.id is None else v.id
        if v.id is not None:
            changed.append((value_id, told, id_))
        else:
            next_id += 1
            rows.append(
                (
                    *(id_, content_ids[key.primary.kind, key.primary.digest]),
                    *(content_ids[key.inputs.kind, key.inputs.digest], recipe_ids[key.recipe.digest]),
                    *(key.resolution, key.variation, key.params, value_id, run_id, v.reason, v.encode_us, told),
                )
            )
        for ordinal, (object_digest, stamp, inputs) in enumerate(names):
            inputs_id = None if inputs == key.inputs.digest else inputs_ids[inputs]
            part_rows.append((id_, ordinal, object_ids[object_digest], stamp_ids[stamp], inputs_id))
    _drop_parts.many(connection, [(id_,) for _, _, id_ in changed])
    _change_variant.many(connection, changed)
    _save_variant.many(connection, rows)
    _save_part.many(connection, part_rows)
    _forget_failure.many(connection, [(v.key.digest,) for v in new])
    _drop_claim.many(connection, [(v.key.digest,) for v in new])


_stamp_names = ByDigest(
    lambda digests: select(schema_stamps.c.digest, schema_stamps.c.names).where(schema_stamps.c.digest.in_(digests))
)


def stamp_names(connection: AnyConnection, digests: Sequence[bytes]) -> dict[bytes, str]:
    """{stamp digest: its names, as JSON text}"""
    return dict(_stamp_names.rows(connection, list(set(digests)))) if digests else {}


def _inputs_digest(key: Key, part: NewPart) -> bytes:
    if part.inputs is None:
        return key.inputs.digest
    return part.inputs if isinstance(part.inputs, bytes) else part.inputs.inputs.digest


def _ids_of_inputs(connection: AnyConnection, new: Sequence[NewVariant]) -> dict[bytes, int]:
    """{digest: id} of what parts depend on, where that isn't all that their variant is made from."""
    wanted = {digest for v in new for p in v.parts if (digest := _inputs_digest(v.key, p)) != v.key.inputs.digest}
    if not wanted:
        return {}
    found = {(kind, digest): id_ for digest, kind, id_ in _hash_ids.rows(connection, list(wanted))}
    kinds = {v.key.primary.digest: v.key.primary.kind for v in new}  # a part of the primary alone
    return {digest: found[kinds.get(digest, "composite"), digest] for digest in wanted}


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
