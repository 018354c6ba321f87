"""Rows of variants: found by key, checked at every lookup, written in groups, forgotten."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import xxhash
from sqlalchemy import Connection, Select, delete, select
from sqlalchemy.dialects.sqlite import insert

from casstore.identity.digests import plain_digest
from casstore.identity.keys import Key
from casstore.index.bulk import chunks, ids_of, intern, now_ms
from casstore.index.tables import (
    failures,
    hashes,
    layouts,
    objects,
    recipes,
    schema_stamps,
    signed,
    texts,
    value_sets,
    variant_parts,
    variants,
)
from casstore.model import Content

Identity = tuple[str, bytes, bytes, bytes, str, int, str]
"""(kind, content digest, inputs digest, recipe digest, resolution, variation, params): a key as plain values."""


@dataclass(frozen=True, slots=True)
class PartRow:
    """One part of a variant: its object, as the index knows it."""

    object_digest: bytes
    stamp_digest: bytes
    inputs_digest: bytes
    layout: str
    stored_bytes: int
    condemned: bool
    damaged: bool


@dataclass(frozen=True, slots=True)
class VariantRow:
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
    digest = key.primary.digest
    return key.primary.kind, digest, digest, key.recipe.digest, key.resolution, key.variation, key.params


def checksum(key: Identity, values: bytes | None, parts: Iterable[tuple[bytes, bytes, bytes]]) -> int:
    """XXH3-64, as a signed integer, of all that a variant's row means: digests, not row ids.

    Args:
        key: what it is stored under.
        values: digest of its values.
        parts: (object, stamp, inputs) digests in order.
    """
    kind, content, inputs, recipe, resolution, variation, params = key
    hasher = xxhash.xxh3_64()
    pieces = (kind, content, inputs, recipe, resolution, str(variation), params)
    for piece in (p if isinstance(p, bytes) else p.encode("utf-8", "surrogateescape") for p in pieces):
        hasher.update(struct.pack("<I", len(piece)) + piece)
    hasher.update(values or bytes(32))
    for part in parts:
        hasher.update(b"".join(part))
    return signed(hasher.intdigest())


_inputs = hashes.alias("inputs")
_part_inputs = hashes.alias("part_inputs")


def _query() -> Select[Any]:
    # Outer joins: a row whose ids lead nowhere (a flipped bit) has to be found to be told. Where a condition asks for
    # more, SQLite turns them into inner ones.
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
            objects.c.digest,
            schema_stamps.c.digest,
            _part_inputs.c.digest,
            layouts.c.digest,
            layouts.c.tensors,
            objects.c.stored_bytes,
            objects.c.condemned_at.is_not(None),
            objects.c.damaged_at.is_not(None),
        )
        .join_from(variants, hashes, hashes.c.id == variants.c.hash_id, isouter=True)
        .outerjoin(_inputs, _inputs.c.id == variants.c.inputs_id)
        .outerjoin(recipes, recipes.c.id == variants.c.recipe_id)
        .outerjoin(value_sets, value_sets.c.id == variants.c.values_id)
        .outerjoin(variant_parts, variant_parts.c.variant_id == variants.c.id)
        .outerjoin(objects, objects.c.id == variant_parts.c.object_id)
        .outerjoin(layouts, layouts.c.id == objects.c.layout_id)
        .outerjoin(schema_stamps, schema_stamps.c.id == variant_parts.c.stamp_id)
        .outerjoin(_part_inputs, _part_inputs.c.id == variant_parts.c.inputs_id)
        .order_by(variants.c.id, variant_parts.c.ordinal)
    )


def find_variants(connection: Connection, keys: Sequence[Key]) -> dict[bytes, VariantRow]:
    """{key digest: row} of those of the keys that are stored."""
    wanted = {identity(key): key.digest for key in keys}
    found = {}
    for part in chunks(list({key.primary.digest for key in keys})):
        # Only the content is asked for: a condition on the recipe would make SQLite walk all variants of that recipe.
        query = _query().where(hashes.c.digest.in_(part))
        for key, row in _collect(connection, query):
            if key in wanted:
                found[wanted[key]] = row
    return found


def variants_after(connection: Connection, id_: int, limit: int) -> list[tuple[Identity, VariantRow]]:
    """The next `limit` variants in order of their ids, for walking over all of them in short transactions."""
    ids = select(variants.c.id).where(variants.c.id > id_).order_by(variants.c.id).limit(limit)
    return list(_collect(connection, _query().where(variants.c.id.in_(ids.scalar_subquery()))))


def _collect(connection: Connection, query: Select[Any]) -> Iterable[tuple[Identity, VariantRow]]:
    rows: dict[int, list[tuple[Any, ...]]] = {}
    for row in connection.execute(query):
        rows.setdefault(row[0], []).append(tuple(row))
    for id_, group in rows.items():
        key: Identity = group[0][1:8]
        told, values_digest, data = group[0][8:11]
        parts = []
        sound = None not in key and (data is None or plain_digest(data) == values_digest)
        for *_, object_digest, stamp, inputs, layout_digest, layout, stored, condemned, damaged in group:
            if None in (object_digest, stamp, inputs, layout):
                sound = False  # a row that lost what it points to
            else:
                sound = sound and plain_digest(layout) == layout_digest
                parts.append(PartRow(object_digest, stamp, inputs, layout, stored, bool(condemned), bool(damaged)))
        sound = sound and told == checksum(
            key, values_digest, ((p.object_digest, p.stamp_digest, p.inputs_digest) for p in parts)
        )
        yield key, VariantRow(id_, data, tuple(parts), sound)


def save_contents(connection: Connection, contents: Iterable[Content]) -> dict[tuple[str, bytes], int]:
    """The ids of contents, inserted or completed with what is newly known of them.

    Returns:
        {(kind, digest): id}
    """
    wanted = {(content.kind, content.digest): content for content in contents}
    if not wanted:
        return {}
    statement = insert(hashes)
    learned = {name: statement.excluded[name] for name in ("width", "height", "orientation", "note")}
    statement = statement.on_conflict_do_update(
        index_elements=["digest", "kind"],
        set_=learned,
        where=hashes.c.width.is_(None) & (statement.excluded.width.is_not(None) | hashes.c.note.is_(None)),
    )
    rows = [
        {
            "kind": c.kind,
            "digest": c.digest,
            "nbytes": c.nbytes,
            "width": c.width,
            "height": c.height,
            "orientation": c.orientation,
            "note": c.note,
        }
        for c in wanted.values()
    ]
    connection.execute(statement, rows)
    found = {}
    for part in chunks([digest for _, digest in wanted]):
        for kind, digest, id_ in connection.execute(
            select(hashes.c.kind, hashes.c.digest, hashes.c.id).where(hashes.c.digest.in_(part))
        ):
            found[kind, digest] = id_
    new_texts = [{"hash_id": found[key], "text": c.text} for key, c in wanted.items() if c.text is not None]
    if new_texts:
        connection.execute(insert(texts).on_conflict_do_nothing(), new_texts)
    return found


def save_recipes(connection: Connection, keys: Iterable[Key]) -> dict[bytes, int]:
    """{recipe digest: id} of the recipes of these keys, inserted where they are new."""
    wanted = {key.recipe.digest: key.recipe for key in keys}
    now = now_ms()
    return intern(
        connection, recipes, {d: {"name": r.name, "spec": r.spec, "created_at": now} for d, r in wanted.items()}
    )


def save_variants(
    connection: Connection, new: Sequence[NewVariant], replaced: Iterable[int], run_id: int | None
) -> None:
    """Write variants whose objects have rows already.

    Args:
        new: the variants; their keys differ.
        replaced: row ids of variants under the same keys that couldn't be served; they go.
        run_id: of the build that made them.
    """
    delete_variants(connection, replaced)
    if not new:
        return
    content_ids = save_contents(connection, (v.key.primary for v in new))
    recipe_ids = save_recipes(connection, (v.key for v in new))
    stamp_ids = intern(connection, schema_stamps, {plain_digest(v.names): {"names": v.names} for v in new})
    value_ids = intern(
        connection, value_sets, {plain_digest(v.values): {"data": v.values} for v in new if v.values is not None}
    )
    object_ids = ids_of(connection, objects, [v.object_digest for v in new])
    rows, keys = [], []
    for v in new:
        primary = v.key.primary
        values = None if v.values is None else plain_digest(v.values)
        hash_id = content_ids[primary.kind, primary.digest]
        parts = [(v.object_digest, plain_digest(v.names), primary.digest)]
        rows.append(
            {
                "hash_id": hash_id,
                "inputs_id": hash_id,
                "recipe_id": recipe_ids[v.key.recipe.digest],
                "resolution": v.key.resolution,
                "variation": v.key.variation,
                "params": v.key.params,
                "values_id": None if values is None else value_ids[values],
                "run_id": run_id,
                "reason": v.reason,
                "encode_us": v.encode_us,
                "checksum": checksum(identity(v.key), values, parts),
            }
        )
        keys.append((object_ids[v.object_digest], stamp_ids[plain_digest(v.names)], hash_id))
    ids = connection.scalars(insert(variants).returning(variants.c.id, sort_by_parameter_order=True), rows).all()
    connection.execute(
        insert(variant_parts),
        [
            {"variant_id": id_, "ordinal": 0, "object_id": object_id, "stamp_id": stamp_id, "inputs_id": inputs_id}
            for id_, (object_id, stamp_id, inputs_id) in zip(ids, keys, strict=True)
        ],
    )
    for part in chunks([v.key.digest for v in new]):
        connection.execute(delete(failures).where(failures.c.key.in_(part)))


def delete_variants(connection: Connection, ids: Iterable[int]) -> int:
    """Delete variants by row id; their objects stay for gc. Returns how many there were."""
    count = 0
    for part in chunks(list(ids)):
        connection.execute(delete(variant_parts).where(variant_parts.c.variant_id.in_(part)))
        count += connection.execute(delete(variants).where(variants.c.id.in_(part))).rowcount
    return count


def resolutions_of(connection: Connection, content: Content, recipe: bytes) -> list[str]:
    """The resolutions at which a content is stored with the recipe of this digest."""
    query = (
        select(variants.c.resolution, recipes.c.digest)
        .join_from(variants, hashes, hashes.c.id == variants.c.hash_id)
        .join(recipes, recipes.c.id == variants.c.recipe_id)
        .where(hashes.c.digest == content.digest, hashes.c.kind == content.kind)
        .distinct()
        .order_by(variants.c.resolution)
    )
    return [resolution for resolution, digest in connection.execute(query) if digest == recipe]


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
