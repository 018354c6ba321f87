"""Statements for many rows: written in Core, compiled once, run with tuples on the driver's own connection.

Core turns every row into a dictionary and back and looks the statement up at each call, which costs 4 to 16 times the
work itself; on the paths that run per result or per lookup that is most of the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from sqlalchemy import ClauseElement, Connection, LargeBinary, Table, bindparam, or_, select
from sqlalchemy.dialects import sqlite
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.types import TypeEngine

from casstore.index.driver import fetch, fetch_in_parts, sqlite3

T = TypeVar("T")
Row = tuple[Any, ...]
AnyConnection = Connection | sqlite3.Connection

CHUNK = 500  # bound variables per IN list; far below SQLite's limit on any build
_SIZES = (1, 8, 64, CHUNK)
_DIALECT = sqlite.dialect(paramstyle="qmark")


class Statement:
    """A Core statement compiled once.

    Attributes:
        sql: its text.
        names: of its parameters, in the order in which a row has them.
    """

    def __init__(self, statement: ClauseElement, columns: Sequence[str] | None = None) -> None:
        compiled: Any = statement.compile(dialect=_DIALECT, column_keys=None if columns is None else list(columns))
        self.sql = str(compiled)
        self.names: tuple[str, ...] = tuple(compiled.positiontup or ())
        assert columns is None or self.names == tuple(columns), "a row's values must come in the statement's order"

    def rows(self, connection: AnyConnection, parameters: Sequence[Any] = ()) -> list[Row]:
        """Run it and fetch everything, so that no cursor stays open."""
        return fetch(driver(connection), self.sql, parameters)

    def in_parts(self, connection: AnyConnection, parameters: Sequence[Any], take: Callable[[list[Row]], None]) -> None:
        """Run it and hand the rows to `take`, part by part; `take` runs no other query."""
        fetch_in_parts(driver(connection), self.sql, parameters, take)

    def many(self, connection: AnyConnection, rows: Sequence[Row]) -> None:
        """Run it for each row."""
        if rows:
            driver(connection).executemany(self.sql, rows)


class ByDigest:
    """A query for rows whose digest, id or name is in a list, for lists of any length.

    Args:
        build: build(parameters) -> the query with these in its list; parameters of its own come in front of it.
        type_: of the list's members.
    """

    def __init__(self, build: Callable[[list[Any]], ClauseElement], type_: type[TypeEngine[Any]] = LargeBinary) -> None:
        self._build, self._type = build, type_
        self._statements: dict[int, Statement] = {}

    def rows(self, connection: AnyConnection, digests: Sequence[Any], before: Row = ()) -> list[Row]:
        """The rows for these digests, ids or names, in no order; `before`: the parameters in front of the list."""
        if len(digests) == 1:
            return self.of(1).rows(connection, (*before, *digests))
        found: list[Row] = []
        for part in chunks(digests):
            # The list is padded with its last value, so that four statements serve for all lengths.
            size = next(size for size in _SIZES if size >= len(part))
            found += self.of(size).rows(connection, [*before, *part, *([part[-1]] * (size - len(part)))])
        return found

    def of(self, size: int) -> Statement:
        """The statement for lists of this many."""
        statement = self._statements.get(size)
        if statement is None:
            parameters = [bindparam(f"d{i}", type_=self._type) for i in range(size)]
            statement = self._statements[size] = Statement(self._build(parameters))
        return statement


class Interned:
    """A table whose rows are named by their digest.

    Args:
        table: has a unique column `digest`.
        columns: the others, which the digest stands for; an existing row that says something else (a flipped bit) is
            mended.
        first: further columns, which keep what they were first given.
    """

    def __init__(self, table: Table, columns: Sequence[str], first: Sequence[str] = ()) -> None:
        statement = insert(table)
        upsert = statement.on_conflict_do_update(
            index_elements=["digest"],
            set_={name: statement.excluded[name] for name in columns},
            where=or_(*(table.c[name] != statement.excluded[name] for name in columns)),
        )
        order = [column.name for column in table.columns if column.name in ("digest", *columns, *first)]
        self._order = [("digest", *columns, *first).index(name) for name in order]
        self._insert = Statement(upsert, order)
        self._ids = ByDigest(lambda digests: select(table.c.digest, table.c.id).where(table.c.digest.in_(digests)))

    def save(self, connection: AnyConnection, rows: Mapping[bytes, Row]) -> dict[bytes, int]:
        """Insert what is new.

        Args:
            connection: in a write transaction.
            rows: {digest: the other columns, in the order given above}.

        Returns:
            {digest: id}
        """
        if not rows:
            return {}
        whole = [(digest, *row) for digest, row in rows.items()]
        self._insert.many(connection, [tuple(row[i] for i in self._order) for row in whole])
        return dict(self._ids.rows(connection, list(rows)))


def driver(connection: AnyConnection) -> sqlite3.Connection:
    """The driver's own connection under one of SQLAlchemy's; it is in the same transaction."""
    if isinstance(connection, sqlite3.Connection):
        return connection
    raw: Any = connection.connection.driver_connection
    found: sqlite3.Connection = raw
    return found


def last_id(connection: AnyConnection, table: Table) -> int:
    """The highest id that this table has ever given.

    Nobody else can take an id inside a write transaction, so new rows may be written with ids that are known before.
    """
    rows = driver(connection).execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (table.name,)).fetchall()
    return int(rows[0][0]) if rows else 0


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
