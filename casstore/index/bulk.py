"""Small helpers for statements over many rows."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from sqlalchemy import Connection, Table, or_, select
from sqlalchemy.dialects.sqlite import insert

T = TypeVar("T")

CHUNK = 500  # bound variables per IN list; far below SQLite's limit on any build


def chunks(values: Sequence[T], size: int = CHUNK) -> Iterator[Sequence[T]]:
    """The values in runs of at most `size`."""
    for start in range(0, len(values), size):
        yield values[start : start + size]


def storable(text: str | None) -> str | None:
    """A message as SQLite can hold it: what isn't valid Unicode (a file name in it) becomes an escape."""
    return None if text is None else text.encode("utf-8", "backslashreplace").decode()


def now_ms() -> int:
    """The time, in milliseconds UTC."""
    return time.time_ns() // 1_000_000


def intern(connection: Connection, table: Table, rows: Mapping[bytes, Mapping[str, Any]]) -> dict[bytes, int]:
    """The ids of rows that are named by their digest; rows that aren't there yet are inserted, and rows that don't say
    what their digest stands for (a flipped bit) are mended.

    Args:
        table: has a unique column `digest`.
        rows: {digest: the other columns}.

    Returns:
        {digest: id}
    """
    if not rows:
        return {}
    statement = insert(table)
    names = [name for name in next(iter(rows.values())) if name != "created_at"]
    differs = or_(*(table.c[name] != statement.excluded[name] for name in names))
    statement = statement.on_conflict_do_update(
        index_elements=["digest"], set_={name: statement.excluded[name] for name in names}, where=differs
    )
    connection.execute(statement, [{"digest": digest, **row} for digest, row in rows.items()])
    return ids_of(connection, table, list(rows))


def ids_of(connection: Connection, table: Table, digests: Sequence[bytes]) -> dict[bytes, int]:
    """{digest: id} of the digests that the table has."""
    found: dict[bytes, int] = {}
    for part in chunks(digests):
        query = select(table.c.digest, table.c.id).where(table.c.digest.in_(part))
        found.update((digest, id_) for digest, id_ in connection.execute(query))
    return found
