"""Statements of the garbage collection: condemn what nobody refers to, sweep what was condemned long enough ago.

Each condemning has an epoch of its own, and whoever reads without references (an open dataset) that of its beginning:
what was condemned in a later epoch may be in its hands.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, Connection, and_, delete, exists, func, or_, select, update

from casstore.index.bulk import chunks, now_ms
from casstore.index.owners import next_gc_epoch
from casstore.index.tables import objects, variant_parts

_epoch = func.coalesce(objects.c.condemned_epoch, 0)
_unreferenced: ColumnElement[bool] = ~exists().where(variant_parts.c.object_id == objects.c.id)


def condemnable(connection: Connection) -> tuple[int, int]:
    """(number, bytes on disk) of objects that nobody refers to and that aren't condemned yet."""
    query = select(func.count(), func.coalesce(func.sum(objects.c.stored_bytes), 0))
    count, stored = connection.execute(query.where(_unreferenced, objects.c.condemned_at.is_(None))).one()
    return count, stored


def condemn(connection: Connection, limit: int) -> int:
    """Condemn up to `limit` objects that nobody refers to; spare condemned ones that somebody refers to again."""
    spared = update(objects).where(objects.c.condemned_at.is_not(None), ~_unreferenced)
    connection.execute(spared.values(condemned_at=None, condemned_epoch=None))
    epoch = next_gc_epoch(connection)
    ids = select(objects.c.id).where(_unreferenced, objects.c.condemned_at.is_(None)).limit(limit)
    query = update(objects).where(objects.c.id.in_(ids.scalar_subquery()))
    return connection.execute(query.values(condemned_at=now_ms(), condemned_epoch=epoch)).rowcount


def sweepable(
    connection: Connection, before_ms: int, limit: int, *, epoch: int, also_fresh: bool = False
) -> list[tuple[bytes, int]]:
    """(digest, bytes on disk) of unreferenced objects condemned at or before a time, at most `limit`.

    Args:
        epoch: and at or before this one.
        also_fresh: count those that aren't condemned yet as well, as a dry run without grace must.
    """
    old: ColumnElement[bool] = and_(objects.c.condemned_at <= before_ms, _epoch <= epoch)
    if also_fresh:
        old = or_(old, objects.c.condemned_at.is_(None))
    query = select(objects.c.digest, objects.c.stored_bytes).where(_unreferenced, old).order_by(objects.c.digest)
    return [(digest, stored) for digest, stored in connection.execute(query.limit(limit))]


def waiting(connection: Connection, before_ms: int, epoch: int) -> int:
    """How many condemned objects are still within the grace period, or of a later epoch."""
    later = and_(objects.c.condemned_at.is_not(None), or_(objects.c.condemned_at > before_ms, _epoch > epoch))
    query = select(func.count()).select_from(objects).where(later)
    return int(connection.execute(query).scalar_one())


def delete_objects(connection: Connection, digests: Sequence[bytes]) -> None:
    """Delete rows of objects; the foreign keys refuse those that somebody refers to."""
    for part in chunks(digests):
        connection.execute(delete(objects).where(objects.c.digest.in_(part)))
