"""Connections to the index, and the two kinds of transactions: reading, and writing under `locks/write`.

Nothing but the one SQLite library ever opens index.sqlite, -wal or -shm: closing any descriptor of these files would
drop the locks of this whole process.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import shutil
import sqlite3
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import QueuePool

from casstore import fsio
from casstore.errors import (
    CasstoreError,
    CorruptStoreError,
    NoSpaceError,
    NotAStoreError,
    StoreBusyError,
    StoreIOError,
    StoreOutdatedError,
    StorePermissionError,
    StoreTooNewError,
    UsageError,
)
from casstore.index.bulk import AnyConnection
from casstore.index.tables import APPLICATION_ID, SCHEMA
from casstore.locks import FileLock

BUSY_SECONDS = 30.0
CLOSE_SECONDS = 1.0  # nobody waits longer than this for the closing checkpoint
WAL_LIMIT = 16 << 20  # bytes of WAL after which a commit is followed by a checkpoint
SHARED_MEMORY = 64 << 10
WAL_WARNING = 256 << 20
POOL_SIZE = 4
_log = logging.getLogger("casstore.index")

# A flipped bit can make a text invalid. That is for the row's checksum to notice, not an error of the whole query; and
# names that aren't UTF-8 become text in the views.
_text = functools.partial(str, encoding="utf-8", errors="surrogateescape")
_SYNCHRONOUS = {"full": 2, "off": 0}
_live: weakref.WeakSet[Index] = weakref.WeakSet()
_poisoned: set[tuple[int, int]] = set()  # indexes that were in a transaction when this process was forked
_inherited: list[Any] = []  # a forked child must neither use nor close these, so they are kept for ever


class Index:
    """The index of one store, as this process sees it.

    Args:
        path: of index.sqlite.
        write_lock: path of `locks/write`.
        durability: "full": a commit survives a power cut; "off": a crash of the process only.
    """

    def __init__(self, path: str, write_lock: str, durability: str) -> None:
        self.path = path
        self._write_lock_path = write_lock
        self._synchronous = _SYNCHRONOUS[durability]
        self._start()
        _live.add(self)

    def _start(self) -> None:
        self._warned = False
        self._poisoned = _inode(self.path) in _poisoned
        self._active: dict[int, int] = {}  # thread -> transactions it is in
        self._gate = threading.Condition(threading.Lock())
        self._idle: deque[sqlite3.Connection] = deque()  # for glances; taken and given back by any thread
        self._queue = threading.Lock()  # threads queue here, processes at the file lock
        self._file_lock = FileLock(self._write_lock_path)
        self._reader = self._engine(query_only=True)
        self._writer = self._engine(query_only=False)

    def _engine(self, *, query_only: bool) -> Engine:
        engine = create_engine(
            "sqlite://",
            creator=self._connect,
            poolclass=QueuePool,
            pool_size=POOL_SIZE if query_only else 1,
            max_overflow=-1 if query_only else 0,
            pool_timeout=BUSY_SECONDS,
            pool_reset_on_return="rollback",
        )
        pragmas = self._pragmas(query_only=query_only)
        event.listen(engine, "connect", lambda raw, _: _set_pragmas(raw, pragmas))
        if not query_only:
            _warn_of_sqlite()
        # The driver begins nothing itself (isolation_level None).
        event.listen(engine, "begin", lambda c: c.exec_driver_sql("BEGIN" if query_only else "BEGIN IMMEDIATE"))
        return engine

    def _pragmas(self, *, query_only: bool) -> dict[str, int]:
        return {
            "busy_timeout": round(BUSY_SECONDS * 1000),
            "foreign_keys": 1,
            "synchronous": self._synchronous,
            "trusted_schema": 0,
            "cell_size_check": 1,
            "mmap_size": 0,
            "journal_size_limit": 64 << 20,
            "wal_autocheckpoint": 0,
            "query_only": int(query_only),
        }

    def _connect(self) -> sqlite3.Connection:
        return self._opened(f"file:{quote(os.fsencode(self.path))}?mode=rw")

    def _opened(self, uri: str) -> sqlite3.Connection:
        connection = sqlite3.connect(
            uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        connection.text_factory = _text
        return connection

    @contextlib.contextmanager
    def read(self) -> Iterator[Connection]:
        """A read transaction: all statements of the block see the same state. Keep it short; take nothing lazy out."""
        with self._in_transaction(), self.errors(), self._reader.connect() as connection:
            with connection.begin() as transaction:
                yield connection
                transaction.rollback()

    @contextlib.contextmanager
    def glance(self) -> Iterator[AnyConnection]:
        """A connection for a single SELECT: without a transaction, which would cost several times the SELECT."""
        with self._in_transaction(), self.errors():
            try:
                raw = self._idle.pop()
            except IndexError:
                raw = self._connect()
                _set_pragmas(raw, self._pragmas(query_only=True))
            try:
                yield raw
            finally:
                self._idle.append(raw)

    @contextlib.contextmanager
    def write(self) -> Iterator[Connection]:
        """A write transaction under `locks/write`; committed at the end of the block, rolled back on any exception.

        Raises:
            StoreBusyError: another process held the lock for 30 s.
            StoreOutdatedError, StoreTooNewError: the store was upgraded meanwhile.
        """
        with self._in_transaction(), self.errors(), self._locked(BUSY_SECONDS):
            with self._writer.connect() as connection:
                with connection.begin():
                    self.check_schema(connection)
                    yield connection
                if (nbytes := self._wal_bytes()) > WAL_LIMIT:
                    self._checkpoint(connection)
                    self._warn_of_reader(nbytes)

    def errors(self) -> contextlib.AbstractContextManager[None]:
        """Turn errors of SQLite and SQLAlchemy in the block into casstore's own."""
        return typed_errors(self.path)

    def vacuum_into(self, path: str) -> None:
        """Write the whole index, as it is now, to a new file without a WAL."""
        with self._in_transaction(), self.errors(), contextlib.closing(self._connect()) as raw:
            raw.execute("VACUUM INTO ?", (path,))

    def check_schema(self, connection: Connection) -> None:
        """Refuse an index that this code doesn't know.

        Raises:
            NotAStoreError, StoreOutdatedError, StoreTooNewError
        """
        application = connection.exec_driver_sql("PRAGMA application_id").scalar_one()
        schema = connection.exec_driver_sql("PRAGMA user_version").scalar_one()
        if application != APPLICATION_ID:
            raise NotAStoreError(
                f"{self.path} is an SQLite file, but not the index of a casstore store; nothing was changed. "
                "If it was emptied, put a copy of it back; the objects are untouched"
            )
        if schema < SCHEMA:
            raise StoreOutdatedError(
                f"{self.path} has schema {schema}, this casstore needs {SCHEMA}; "
                f"upgrade it: casstore db upgrade --store {os.path.dirname(self.path)}"
            )
        if schema > SCHEMA:
            raise StoreTooNewError(f"{self.path} has schema {schema}, this casstore knows {SCHEMA}; update casstore")

    def close(self) -> None:
        """Close all connections of this process; the last one folds the WAL into the index if that is free."""
        try:
            quietly = contextlib.suppress(CasstoreError)
            with quietly, self._in_transaction(), self.errors(), self._locked(CLOSE_SECONDS):
                if self._wal_bytes():
                    with self._writer.connect() as connection:
                        self._checkpoint(connection)
                self._dispose()
        finally:
            self._forget()

    def _forget(self) -> None:
        self._dispose()
        _live.discard(self)

    def _dispose(self) -> None:
        while self._idle:
            with contextlib.suppress(IndexError):
                self._idle.pop().close()
        self._reader.dispose()
        self._writer.dispose()

    @contextlib.contextmanager
    def _locked(self, seconds: float) -> Iterator[None]:
        if not self._queue.acquire(timeout=seconds):
            raise StoreBusyError(
                f"{self.path}: another thread of this process has held the index for {seconds:.0f} s; try again later"
            )
        try:
            self._file_lock.acquire(seconds, on_busy=lambda: self._busy(seconds))
            try:
                self._file_lock.write_note()
                yield
            finally:
                self._file_lock.release()
        finally:
            self._queue.release()

    def _busy(self, seconds: float) -> StoreBusyError:
        who = self._file_lock.holder()
        return StoreBusyError(f"{self.path} is locked by {who}; waited {seconds:.0f} s. Try again when it is done")

    def _warn_of_reader(self, before: int) -> None:
        """Somebody who never ends his transaction keeps the WAL from being folded in: say so, once each time."""
        grown = self._wal_bytes() >= WAL_WARNING
        if grown and not self._warned:
            _log.warning(
                "%s-wal has grown to %d MiB: another program (a database browser?) holds an old state of the index; "
                "close it",
                self.path,
                before >> 20,
            )
        self._warned = grown

    @property
    def wal_bytes(self) -> int:
        """Bytes of the WAL now. Much more than 16 MiB: some program doesn't end its reading."""
        return self._wal_bytes()

    def _wal_bytes(self) -> int:
        return fsio.size_of(self.path + "-wal") or 0

    def _checkpoint(self, connection: Connection) -> None:
        # A foreign reader only makes this do less; it is tried again after a later commit.
        cursor = connection.connection.cursor()
        try:
            cursor.execute("PRAGMA busy_timeout = 0")
            cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except sqlite3.OperationalError:
            pass
        finally:
            cursor.execute(f"PRAGMA busy_timeout = {round(BUSY_SECONDS * 1000)}")
            cursor.close()

    # -- forks -----------------------------------------------------------------------------------------------------
    #
    # SQLite keeps, per process and file, which locks the process holds. A child inherits that memory but not the locks:
    # a connection that it opens then believes itself protected and isn't, and the parent may remove the WAL under it.
    # So a fork waits for the transactions of other threads to end, and closes the connections before it happens.

    @contextlib.contextmanager
    def _in_transaction(self) -> Iterator[None]:
        me = threading.get_ident()
        with self._gate:
            if self._poisoned:
                raise UsageError(
                    f"{self.path}: this process was forked inside a transaction, so SQLite can't be trusted with this "
                    "store here. Fork outside of calls to the store, or start processes with spawn"
                )
            self._active[me] = self._active.get(me, 0) + 1
        try:
            yield
        finally:
            with self._gate:
                self._active[me] -= 1
                if not self._active[me]:
                    del self._active[me]
                    self._gate.notify_all()

    def _before_fork(self) -> None:
        self._gate.acquire()
        me = threading.get_ident()
        self._gate.wait_for(lambda: not self._active.keys() - {me}, BUSY_SECONDS)
        if not self._active:
            self._dispose()

    def _after_fork_in_parent(self) -> None:
        self._gate.release()

    def _after_fork_in_child(self) -> None:
        if self._active:
            _poisoned.add(_inode(self.path))
        _inherited.append((self._idle, self._reader, self._writer, self._file_lock, self._gate))
        self._start()


def has_wal_reset_bug(version: tuple[int, ...]) -> bool:
    """Whether this SQLite can lose pages when one connection resets the WAL while another checkpoints it.

    sqlite.org/wal.html#walresetbug: 3.7.0 to 3.51.2, but for the mended 3.44.6 and 3.50.7 and what follows on their
    branches. casstore's own checkpoints are all made under locks/write, which keeps clear of it; a foreign program's
    aren't.
    """
    mended = (version[:2] == (3, 44) and version >= (3, 44, 6)) or (version[:2] == (3, 50) and version >= (3, 50, 7))
    return (3, 7, 0) <= version <= (3, 51, 2) and not mended


@functools.cache
def _warn_of_sqlite() -> None:
    if has_wal_reset_bug(sqlite3.sqlite_version_info):
        _log.warning(
            "SQLite %s has the WAL-reset bug; casstore keeps clear of it, but let no other program open its index "
            "while it is used (casstore db copy makes a copy for that)",
            sqlite3.sqlite_version,
        )


def _set_pragmas(raw: Any, pragmas: dict[str, int]) -> None:
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


@contextlib.contextmanager
def typed_errors(path: str) -> Iterator[None]:
    """Turn errors of SQLite and SQLAlchemy in the block into casstore's own; `path` is that of the index."""
    try:
        yield
    except DBAPIError as error:
        raise _typed(error.orig, path) from error
    except sqlite3.Error as error:
        raise _typed(error, path) from error


def _typed(error: BaseException | None, path: str) -> CasstoreError:
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


_forking: list[Index] = []  # those that were held when the fork began


def _before_fork() -> None:
    _forking[:] = list(_live)
    for index in _forking:
        index._before_fork()


def _after_fork_in_parent() -> None:
    for index in _forking:
        index._after_fork_in_parent()
    _forking.clear()


def _inode(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0
    return found.st_dev, found.st_ino


def _is_full(path: str) -> bool:
    """Whether the disk has no room for the pages of shared memory that opening an index takes."""
    try:
        return shutil.disk_usage(os.path.dirname(path)).free < SHARED_MEMORY
    except OSError:
        return False


def _after_fork_in_child() -> None:
    for index in _forking:
        index._after_fork_in_child()
    _forking.clear()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
