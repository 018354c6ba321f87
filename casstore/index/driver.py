"""The one SQLite library that this process uses: which it is, how it opens a file, and what its errors mean.

Two copies of SQLite in one process drop each other's locks, so all of casstore goes through the one chosen here:
pysqlite3 (`pip install "casstore[sqlite]"`) if it is installed and newer, else Python's own.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import os
import shutil
import sqlite3 as _standard
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from sqlalchemy.exc import DBAPIError

from casstore.errors import (
    CasstoreError,
    CorruptStoreError,
    NoSpaceError,
    NotAStoreError,
    StoreBusyError,
    StoreIOError,
    StorePermissionError,
)

if TYPE_CHECKING:
    import sqlite3
else:

    def _newest() -> Any:
        try:
            other = importlib.import_module("pysqlite3.dbapi2")
        except ImportError:
            return _standard
        return other if other.sqlite_version_info > _standard.sqlite_version_info else _standard

    sqlite3 = _newest()

__all__ = [
    "BUSY_SECONDS",
    "connect",
    "fetch",
    "has_wal_reset_bug",
    "set_pragmas",
    "sqlite3",
    "typed_error",
    "typed_errors",
    "warn_of_sqlite",
]

BUSY_SECONDS = 30.0
SHARED_MEMORY = 64 << 10
_log = logging.getLogger("casstore.index")

# A flipped bit can make a text invalid. That is for the row's checksum to notice, not an error of the whole query; and
# names that aren't UTF-8 become text in the views.
_text = functools.partial(str, encoding="utf-8", errors="surrogateescape")


def connect(path: str, mode: str) -> sqlite3.Connection:
    """A connection on which the driver begins nothing itself.

    Args:
        path: of a database file.
        mode: "ro", "rw" or "rwc" (make it); "ro&immutable=1" for a file that nobody writes.
    """
    connection = sqlite3.connect(
        f"file:{quote(os.fsencode(path))}?mode={mode}",
        uri=True,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
    )
    connection.text_factory = _text
    return connection


def fetch(connection: sqlite3.Connection, sql: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
    """All rows of a query on a connection made by `connect`, which it reads faster than plain `execute` would."""
    connection.text_factory = str  # decodes in C; a call of Python's for each text takes as long as the query
    try:
        return connection.execute(sql, parameters).fetchall()
    except sqlite3.OperationalError as error:
        if "decode" not in str(error):
            raise
    finally:
        connection.text_factory = _text
    return connection.execute(sql, parameters).fetchall()


def fetch_in_parts(
    connection: sqlite3.Connection,
    sql: str,
    parameters: Sequence[Any],
    take: Callable[[list[tuple[Any, ...]]], None],
    size: int = 4096,
) -> None:
    """Hand the rows of a query to `take`, part by part, so that they are never all in memory."""
    done = 0
    connection.text_factory = str
    try:
        cursor = connection.execute(sql, parameters)
        while part := cursor.fetchmany(size):
            take(part)
            done += len(part)
        return
    except sqlite3.OperationalError as error:
        if "decode" not in str(error):
            raise
    finally:
        connection.text_factory = _text
    cursor = connection.execute(sql, parameters)
    while part := cursor.fetchmany(size):
        take(part[done:])
        done = max(0, done - len(part))


def set_pragmas(raw: Any, pragmas: Mapping[str, int]) -> None:
    """Set pragmas, and read each back.

    Raises:
        StoreIOError: this SQLite doesn't keep one of them.
    """
    cursor = raw.cursor()
    try:
        for name, value in pragmas.items():
            cursor.execute(f"PRAGMA {name} = {value}").fetchall()
        for name, value in pragmas.items():
            found = cursor.execute(f"PRAGMA {name}").fetchone()[0]
            if found != value:
                raise StoreIOError(f"SQLite keeps {name} at {found} instead of {value}; use another build of SQLite")
    finally:
        cursor.close()


def has_wal_reset_bug(version: tuple[int, ...]) -> bool:
    """Whether this SQLite can lose pages when one connection resets the WAL while another checkpoints it.

    sqlite.org/wal.html#walresetbug: 3.7.0 to 3.51.2, but for the mended 3.44.6 and 3.50.7 and what follows on their
    branches. casstore's own checkpoints are all made under locks/write, which keeps clear of it; a foreign program's
    aren't.
    """
    mended = (version[:2] == (3, 44) and version >= (3, 44, 6)) or (version[:2] == (3, 50) and version >= (3, 50, 7))
    return (3, 7, 0) <= version <= (3, 51, 2) and not mended


@functools.cache
def warn_of_sqlite() -> None:
    """Tell, once per process, of a SQLite whose fault other programs could trigger."""
    if has_wal_reset_bug(sqlite3.sqlite_version_info):
        _log.warning(
            "SQLite %s has the WAL-reset bug; casstore keeps clear of it, but let no other program open its index "
            "while it is used (casstore db copy makes a copy for that), "
            'or install a mended SQLite: pip install "casstore[sqlite]"',
            sqlite3.sqlite_version,
        )


@contextlib.contextmanager
def typed_errors(path: str) -> Iterator[None]:
    """Turn errors of SQLite and SQLAlchemy in the block into casstore's own; `path` is that of the index."""
    try:
        yield
    except DBAPIError as error:
        raise typed_error(error.orig, path) from error
    except sqlite3.Error as error:
        raise typed_error(error, path) from error


def typed_error(error: BaseException | None, path: str) -> CasstoreError:
    """casstore's error for one of SQLite's."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    text = f"{path}: {error}"
    full = code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN) and _is_full(path)
    if code == sqlite3.SQLITE_FULL or full:
        return NoSpaceError(f"{text}. Free some space, or run: casstore gc")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL):
        return StoreBusyError(f"{text}. A program that isn't casstore holds the index; close it and try again")
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        return StorePermissionError(f"{text}. Check its owner and mode")
    if code == sqlite3.SQLITE_CANTOPEN:
        if os.path.exists(path) and not os.access(path, os.R_OK | os.W_OK):
            return StorePermissionError(f"{text}. Check its owner and mode")
        return NotAStoreError(f"{text}. There is no index here that can be opened")
    if code == sqlite3.SQLITE_NOTADB:
        return CorruptStoreError(f"{text}. Nothing was changed; write a backup back: casstore db restore BACKUP")
    if code == sqlite3.SQLITE_CORRUPT:
        return CorruptStoreError(f"{text}. Nothing was changed; write a backup back: casstore db restore BACKUP")
    return StoreIOError(f"{text}. Check the disk, then try again")


def _is_full(path: str) -> bool:
    """Whether the disk has no room for the pages of shared memory that opening an index takes."""
    try:
        return shutil.disk_usage(os.path.dirname(path)).free < SHARED_MEMORY
    except OSError:
        return False
