"""Rows of owners and of their claims: who is building which keys, and who may read what since when.

Nothing of it needs to survive a power cut: a claim counts while its owner's lock file is locked, and no longer.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Collection, Iterable, Sequence

from sqlalchemy import Integer, Text, bindparam, delete, select
from sqlalchemy.dialects.sqlite import insert

from casstore.index.bulk import AnyConnection, ByDigest, Statement, last_id, now_ms, storable
from casstore.index.tables import claims, failures, owners, settings

COMMAND_LIMIT = 200  # characters

_save_owner = Statement(insert(owners), tuple(column.name for column in owners.columns))
_drop_owner = Statement(delete(owners).where(owners.c.id == bindparam("known", type_=Integer)))
_drop_claims_of = Statement(delete(claims).where(claims.c.owner_id == bindparam("known", type_=Integer)))
_claims = ByDigest(
    lambda keys: (
        select(claims.c.key, owners.c.name)
        .join_from(claims, owners, owners.c.id == claims.c.owner_id)
        .where(claims.c.key.in_(keys))
    )
)
_failed_since = ByDigest(
    lambda keys: select(failures.c.key, failures.c.error_type, failures.c.message).where(
        failures.c.last_at.between(bindparam("since", type_=Integer), bindparam("now", type_=Integer)),
        failures.c.key.in_(keys),
    )
)
_drop_claim = Statement(
    delete(claims).where(claims.c.key == bindparam("wanted"), claims.c.owner_id == bindparam("known", type_=Integer))
)


def _take_claim() -> Statement:
    statement = insert(claims)
    taken = statement.on_conflict_do_update(index_elements=["key"], set_={"owner_id": statement.excluded.owner_id})
    return Statement(taken, ("key", "owner_id"))


_claim = _take_claim()

EPOCH = "gc_epoch"  # a row of the settings
_epoch = Statement(select(settings.c.value).where(settings.c.key == bindparam("wanted", type_=Text)))
_readers = Statement(select(owners.c.name, owners.c.epoch).where(owners.c.epoch.is_not(None)))


def _upsert_setting() -> Statement:
    statement = insert(settings)
    upsert = statement.on_conflict_do_update(index_elements=["key"], set_={"value": statement.excluded.value})
    return Statement(upsert, ("key", "value"))


_save_epoch = _upsert_setting()


def save_owner(
    connection: AnyConnection, name: str, kind: str, epoch: int | None = None, recipes: str | None = None
) -> int:
    """The id of a new owner: this process, under a name of 16 hex digits."""
    id_ = last_id(connection, owners) + 1
    command = storable(" ".join(sys.argv)[:COMMAND_LIMIT]) or sys.executable
    host = socket.gethostname()
    _save_owner.many(connection, [(id_, name, kind, host, os.getpid(), command, now_ms(), epoch, recipes)])
    return id_


def save_reader(connection: AnyConnection, name: str, kind: str, recipes: Iterable[bytes]) -> int:
    """The id of a new owner that keeps all that is referred to from now on.

    Args:
        connection: in a write transaction.
        name: 16 hex digits.
        kind: what it is.
        recipes: digests of those that it reads.
    """
    told = json.dumps(sorted(digest.hex() for digest in recipes))
    return save_owner(connection, name, kind, gc_epoch(connection), told)


def gc_epoch(connection: AnyConnection) -> int:
    """The epoch in which gc has condemned last; 0: never."""
    rows = _epoch.rows(connection, (EPOCH,))
    return int(rows[0][0]) if rows else 0


def next_gc_epoch(connection: AnyConnection) -> int:
    """Begin a new epoch; whoever registers from now on has it."""
    epoch = gc_epoch(connection) + 1
    _save_epoch.many(connection, [(EPOCH, str(epoch))])
    return epoch


def reader_epochs(connection: AnyConnection) -> dict[str, int]:
    """{name: epoch} of the owners that keep what is condemned after they began, living or not."""
    return dict(_readers.rows(connection))


def remove_owner(connection: AnyConnection, id_: int) -> None:
    """Take an owner away, and its claims with it."""
    _drop_claims_of.many(connection, [(id_,)])
    _drop_owner.many(connection, [(id_,)])


def owners_of(connection: AnyConnection, keys: Sequence[bytes]) -> dict[bytes, str]:
    """{key digest: name of the owner that claims it} of those of the keys that are claimed."""
    return dict(_claims.rows(connection, keys)) if keys else {}


def save_claims(connection: AnyConnection, owner_id: int, keys: Iterable[bytes]) -> None:
    """Claim keys for an owner, whoever claimed them before."""
    _claim.many(connection, [(key, owner_id) for key in keys])


def drop_claims(connection: AnyConnection, owner_id: int, keys: Iterable[bytes]) -> None:
    """Give those of the keys free that an owner claims."""
    _drop_claim.many(connection, [(key, owner_id) for key in keys])


def failed_since(connection: AnyConnection, keys: Collection[bytes], since: int) -> dict[bytes, tuple[str, str]]:
    """{key digest: (class, message)} of those of the keys that somebody has failed on since then (ms UTC)."""
    # Not on those of the future: they are from a time when the clock was wrong.
    rows = _failed_since.rows(connection, list(keys), (since, now_ms())) if keys else []
    return {key: (kind, message) for key, kind, message in rows}


def remove_dead(connection: AnyConnection, names: Collection[str]) -> int:
    """Take away the owners of these names, with their claims; how many there were."""
    ids = [id_ for id_, name in _all.rows(connection) if name in names]
    for id_ in ids:
        remove_owner(connection, id_)
    return len(ids)


_all = Statement(select(owners.c.id, owners.c.name))


def owner_names(connection: AnyConnection) -> list[str]:
    """The names of all owners, living or not."""
    return [name for _, name in _all.rows(connection)]
