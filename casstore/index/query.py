"""SQL of the user's, on a connection that can only read."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from casstore.errors import UsageError
from casstore.index.driver import sqlite3
from casstore.index.engine import Index

ROW_LIMIT = 1_000_000
SECONDS = 60.0
PROGRESS_STEPS = 10_000  # of SQLite's virtual machine, between two looks at the clock
_ALLOWED = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}


@dataclass(frozen=True, slots=True)
class Table:
    """The result of a query: names of the columns, and the rows. Blobs come as lower-case hex.

    `more`: the limit cut off further rows.
    """

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    more: bool = False


def run_query(
    index: Index, sql: str, parameters: Sequence[Any] = (), *, limit: int = ROW_LIMIT, seconds: float = SECONDS
) -> Table:
    """Run one SELECT.

    Args:
        index: of the open store.
        sql: the statement.
        parameters: for its question marks.
        limit: the most rows to return.
        seconds: how long it may take; it holds the WAL up as long.

    Raises:
        UsageError: it isn't a SELECT, SQLite can't make sense of it, or it took too long.
    """
    end = time.monotonic() + seconds
    with index.read() as connection:
        raw = connection.connection.driver_connection
        assert isinstance(raw, sqlite3.Connection)
        # The first use of a table-valued function declares its table, which the authorizer would refuse.
        raw.execute("SELECT count(*) FROM json_each('[]'), json_tree('[]')").fetchall()
        raw.set_authorizer(_authorize)
        raw.set_progress_handler(lambda: time.monotonic() > end, PROGRESS_STEPS)
        try:
            sql.encode()
            cursor = raw.execute(sql, tuple(parameters))
            columns = tuple(part[0] for part in cursor.description or ())
            rows = [tuple(v.hex() if isinstance(v, bytes) else v for v in row) for row in cursor.fetchmany(limit + 1)]
            cursor.close()
        except (sqlite3.DatabaseError, sqlite3.Warning) as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code == sqlite3.SQLITE_INTERRUPT:
                raise UsageError(
                    f"the query took longer than {seconds:g} s; make a copy and ask that: db copy"
                ) from error
            if code == sqlite3.SQLITE_AUTH:
                raise UsageError(f"only SELECT is allowed here, and that isn't one: {sql!r:.200}") from error
            if code in (sqlite3.SQLITE_ERROR, 0):
                raise UsageError(
                    f'SQLite: {error}, in {sql!r:.200}. casstore sql "SELECT name FROM sqlite_master" lists '
                    "tables and views"
                ) from error
            raise
        except UnicodeEncodeError as error:
            raise UsageError(f"that isn't valid Unicode: {sql!r:.200}") from error
        finally:
            raw.set_progress_handler(None, 0)
            raw.set_authorizer(None)
    if not columns:
        raise UsageError(f"only SELECT is allowed here, and that isn't one: {sql!r:.200}")
    return Table(columns, rows[:limit], len(rows) > limit)


def _authorize(action: int, *_: object) -> int:
    return sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY
