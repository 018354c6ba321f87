"""Rows of objects: what should be on disk, and in which state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, func, null, select, update
from sqlalchemy.dialects.sqlite import insert

from casstore.identity.digests import repeated_digest
from casstore.index.bulk import AnyConnection, ByDigest, Interned, Statement, chunks, now_ms
from casstore.index.tables import layouts, objects
from casstore.model import Stored


@dataclass(frozen=True, slots=True)
class ObjectRow:
    """An object as the index knows it.

    Attributes:
        sound: its layout is what the layout's digest stands for.
        live: neither condemned nor damaged, and sound.
    """

    id: int
    digest: bytes
    codec: str
    stored_bytes: int
    stored_xxh3: int
    payload_bytes: int
    layout: str
    condemned: bool
    damaged: bool
    sound: bool

    @property
    def live(self) -> bool:
        return self.sound and not (self.condemned or self.damaged)

    @property
    def stored(self) -> Stored:
        """Its file."""
        return Stored(self.digest, self.codec, self.layout, self.stored_bytes, self.stored_xxh3)


@dataclass(frozen=True, slots=True)
class NewObject:
    """An object that has just been made durable: what its row is to say."""

    stored: Stored
    payload_bytes: int


_COLUMNS = (
    objects.c.id,
    objects.c.digest,
    objects.c.codec,
    objects.c.stored_bytes,
    objects.c.stored_xxh3,
    layouts.c.nbytes,
    layouts.c.tensors,
    objects.c.condemned_at.is_not(None),
    objects.c.damaged_at.is_not(None),
    layouts.c.digest,
)


_by_digest = ByDigest(
    lambda digests: select(*_COLUMNS).join_from(objects, layouts).where(objects.c.digest.in_(digests))
)
_layouts = Interned(layouts, ("nbytes", "tensors"))
_NEW = ("digest", "codec", "layout_id", "stored_bytes", "stored_xxh3", "created_at")


def _upsert() -> Statement:
    statement = insert(objects)
    fresh = {name: statement.excluded[name] for name in _NEW if name != "digest"}
    marks = {"condemned_at": null(), "condemned_epoch": null(), "damaged_at": null(), "verified_at": null()}
    return Statement(statement.on_conflict_do_update(index_elements=["digest"], set_={**fresh, **marks}), _NEW)


_save = _upsert()


def object_rows(connection: AnyConnection, digests: Sequence[bytes]) -> dict[bytes, ObjectRow]:
    """{digest: row} of those of the digests that have one."""
    return {row[1]: _row(row) for row in _by_digest.rows(connection, digests)}


def all_stored_bytes(connection: Connection) -> int:
    """Bytes that all objects take on disk."""
    return int(connection.scalar(select(func.coalesce(func.sum(objects.c.stored_bytes), 0))) or 0)


def objects_after(connection: Connection, digest: bytes, limit: int) -> list[ObjectRow]:
    """The next `limit` objects in order of their digests, for walking over all of them in short transactions."""
    query = select(*_COLUMNS).join_from(objects, layouts).where(objects.c.digest > digest)
    return [_row(row) for row in connection.execute(query.order_by(objects.c.digest).limit(limit))]


def save_objects(connection: AnyConnection, new: Sequence[NewObject]) -> None:
    """Insert rows, or bring existing ones back to life with the codec, size and checksum of the new file."""
    names = {o.stored.layout: repeated_digest(o.stored.layout) for o in new}
    layout_ids = _layouts.save(connection, {names[o.stored.layout]: (o.payload_bytes, o.stored.layout) for o in new})
    now = now_ms()
    _save.many(
        connection,
        [
            (digest, codec, layout_ids[names[layout]], nbytes, xxh3, now)
            for digest, codec, layout, nbytes, xxh3 in sorted(o.stored for o in new)
        ],
    )


_change_form = Statement(
    update(objects)
    .where(objects.c.digest == bindparam("name"))
    .values(
        {name: bindparam(name) for name in ("codec", "stored_bytes", "stored_xxh3")}
        | {"verified_at": null(), "damaged_at": null()}
    )
)


def save_form(connection: AnyConnection, new: Sequence[NewObject]) -> None:
    """Write that existing objects are stored, soundly, in another form now."""
    _change_form.many(connection, [(o.stored.codec, o.stored.nbytes, o.stored.xxh3, o.stored.digest) for o in new])


def mark_damaged(connection: Connection, digests: Iterable[bytes]) -> int:
    """Note that these objects' files are missing or wrong; returns how many weren't marked yet."""
    count = 0
    for part in chunks(list(digests)):
        query = update(objects).where(objects.c.digest.in_(part), objects.c.damaged_at.is_(None))
        count += connection.execute(query.values(damaged_at=now_ms())).rowcount
    return count


def mark_verified(connection: Connection, digests: Iterable[bytes]) -> None:
    """Note that these objects' files were read and found right."""
    for part in chunks(list(digests)):
        connection.execute(update(objects).where(objects.c.digest.in_(part)).values(verified_at=now_ms()))


def count_objects(connection: Connection) -> int:
    """The number of object rows."""
    return int(connection.execute(select(func.count()).select_from(objects)).scalar_one())


def _row(row: Sequence[Any]) -> ObjectRow:
    id_, digest, codec, stored, xxh3, nbytes, tensors, condemned, damaged, layout_digest = row
    sound = repeated_digest(tensors) == layout_digest
    return ObjectRow(id_, digest, codec, stored, xxh3, nbytes, tensors, bool(condemned), bool(damaged), sound)
