"""What is stored in an object: the variants that it is a part of."""

from __future__ import annotations

from sqlalchemy import select

from casstore.index.bulk import AnyConnection, ByDigest
from casstore.index.tables import objects, variant_parts
from casstore.index.variants import Identity, variants_by_id

_ids = ByDigest(
    lambda digests: (
        select(variant_parts.c.variant_id)
        .join_from(objects, variant_parts, variant_parts.c.object_id == objects.c.id)
        .where(objects.c.digest.in_(digests))
    )
)


def holders_of(connection: AnyConnection, digest: bytes) -> list[Identity]:
    """The keys, as plain values, under which an object is stored; several, where equal tensors were put under each."""
    ids = {id_ for (id_,) in _ids.rows(connection, [digest])}
    return sorted((key for key, _ in variants_by_id(connection, sorted(ids)) if None not in key), key=repr)
