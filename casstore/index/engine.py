"""Connections to the index, and the two kinds of transactions: reading, and writing under `locks/write`.

Nothing but the one SQLite library ever opens index.sqlite, -wal or -shm: closing any descriptor of these files would
drop the locks of this whole process.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.pool import QueuePool

from casstore import fsio
from casstore.errors import (
    CasstoreError,
    NotAStoreError,
    StoreBusyError,
    StoreOutdatedError,
    StoreTooNewError,
    UsageError,
)
from casstore.index.bulk import AnyConnection, driver
from casstore.index.driver import (
    BUSY_SECONDS,
    connect,
    set_pragmas,
    sqlite3,
    typed_error,
    typed_errors,
    warn_of_sqlite,
)
from casstore.index.settings import read_settings
from casstore.index.tables import APPLICATION_ID, SCHEMA
from casstore.locks import FileLock

CLOSE_SECONDS = 1.0  # nobody waits longer than this for the closing checkpoint
WAL_LIMIT = 16 << 20  # bytes of WAL after which a commit is followed by a checkpoint
CACHE_KIB = (
    16 << 10
)  # of a connection, filled as it is used: random look-ups find the inner pages of a large index there
WAL_WARNING = 256 << 20
POOL_SIZE = 4
_log = logging.getLogger("casstore.index")

_SYNCHRONOUS = {"full": 2, "normal": 1, "off": 0}
_live: weakref.WeakSet[Index] = weakref.WeakSet()
_poisoned: set[tuple[int, int]] = set()  # indexes that were in a transaction when this process was forked
_inherited: list[Any] = []  # a forked child must neither use nor close these, so they are kept for ever


class Index:
    """The index of one store, as this process sees it.

    Args:
        path: of index.sqlite.
        write_lock: path of `locks/write`.
    """

    def __init__(self, path: str, write_lock: str) -> None:
        self.path = path
        self._write_lock_path = write_lock
        self._synchronous = _SYNCHRONOUS["full"]
        self._start()
        _live.add(self)

    def _start(self) -> None:
        self._warned = False
        self._poisoned = _inode(self.path) in _poisoned
        self._active: dict[int, int] = {}  # thread -> transactions it is in
        self._lock = threading.Lock()  # of the two above and below
        self._gate = threading.Condition(self._lock)
        self._forks = False  # whether a fork waits at the gate
        self._idle: deque[sqlite3.Connection] = deque()  # for glances; taken and given back by any thread
        self._queue = threading.Lock()  # threads queue here, processes at the file lock
        self._file_lock = FileLock(self._write_lock_path)
        self._reader = self._engine(query_only=True)
        self._writer = self._engine(query_only=False)

    def _engine(self, *, query_only: bool) -> Engine:
        engine = create_engine(
            "sqlite://",
            module=sqlite3,
            creator=self._connect,
            poolclass=QueuePool,
            pool_size=POOL_SIZE if query_only else 1,
            max_overflow=-1 if query_only else 0,
            pool_timeout=BUSY_SECONDS,
            pool_reset_on_return="rollback",
        )
        event.listen(engine, "connect", lambda raw, _: set_pragmas(raw, self._pragmas(query_only=query_only)))
        if not query_only:
            warn_of_sqlite()
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
            "cache_size": -CACHE_KIB,
            "journal_size_limit": 64 << 20,
            "wal_autocheckpoint": 0,
            "query_only": int(query_only),
        }

    def _connect(self) -> sqlite3.Connection:
        return connect(self.path, "rw")

    def set_durability(self, durability: str) -> None:
        """Say what the settings say, once they have been read: with "off", a commit survives only a crash of the
        process."""
        if self._synchronous != _SYNCHRONOUS[durability]:
            self._synchronous = _SYNCHRONOUS[durability]
            with self._in_transaction(), self._reader.connect() as connection:
                set_pragmas(driver(connection), self._pragmas(query_only=True))

    @contextlib.contextmanager
    def read(self) -> Iterator[Connection]:
        """A read transaction: all statements of the block see the same state. Keep it short; take nothing lazy out."""
        with self._in_transaction(), self.errors(), self._reader.connect() as connection:
            with connection.begin() as transaction:
                yield connection
                transaction.rollback()

    def glance(self) -> contextlib.AbstractContextManager[AnyConnection]:
        """A connection for a single SELECT: without a transaction, which would cost several times the SELECT."""
        return _Glance(self)

    @contextlib.contextmanager
    def write(self, *, durable: bool = True) -> Iterator[Connection]:
        """A write transaction under `locks/write`; committed at the end of the block, rolled back on any exception.

        Args:
            durable: with False a power cut may undo it (not what came before it), and the disk isn't waited for.

        Raises:
            StoreBusyError: another process held the lock for 30 s.
            StoreOutdatedError, StoreTooNewError: the store was upgraded meanwhile.
        """
        with self._in_transaction(), self.errors(), self._locked(BUSY_SECONDS):
            with self._writer.connect() as connection:
                with self._synchronous_as(connection, durable=durable), connection.begin():
                    self.check_schema(connection)
                    yield connection
                # What is committed isn't called a failure any more; the next commit meets the same trouble.
                with contextlib.suppress(CasstoreError):
                    if (nbytes := self._wal_bytes()) > WAL_LIMIT:
                        self._checkpoint(connection)
                        self._warn_of_reader(nbytes)

    @contextlib.contextmanager
    def _synchronous_as(self, connection: Connection, *, durable: bool) -> Iterator[None]:
        """Let the commit of a transaction that needn't be durable not wait for the disk."""
        if durable or self._synchronous == _SYNCHRONOUS["off"]:
            yield
            return
        raw: Any = connection.connection.driver_connection
        raw.execute(f"PRAGMA synchronous = {_SYNCHRONOUS['normal']}")
        try:
            yield
        finally:
            raw.execute(f"PRAGMA synchronous = {self._synchronous}")

    def errors(self) -> contextlib.AbstractContextManager[None]:
        """Turn errors of SQLite and SQLAlchemy in the block into casstore's own."""
        return typed_errors(self.path)

    def vacuum_into(self, path: str) -> None:
        """Write the whole index, as it is now, to a new file without a WAL."""
        with self._in_transaction(), self.errors(), contextlib.closing(self._connect()) as raw:
            raw.execute("VACUUM INTO ?", (path,))

    def check_schema(self, connection: Connection) -> None:
        """Refuse to write an index that this code doesn't know; a newer one may be readable (`min_reader`).

        Raises:
            NotAStoreError, StoreOutdatedError, StoreTooNewError
        """
        newer = self.newer_schema(connection)
        if newer is not None:
            raise newer

    def newer_schema(self, connection: Connection) -> StoreTooNewError | None:
        """The error with which writing is refused if a newer casstore made this index, but left it readable for us.

        Raises:
            NotAStoreError, StoreOutdatedError, StoreTooNewError: it can't even be read.
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
        if schema == SCHEMA:
            return None
        text = f"{self.path} has schema {schema}, this casstore knows {SCHEMA}"
        if read_settings(connection).get("min_reader") in {str(known) for known in range(1, SCHEMA + 1)}:
            return StoreTooNewError(f"{text} and can only read it; update casstore to write")
        raise StoreTooNewError(f"{text}; update casstore")

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
        self._enter()
        try:
            yield
        finally:
            self._leave()

    def _enter(self) -> None:
        me = threading.get_ident()
        with self._lock:
            if self._poisoned:
                raise UsageError(
                    f"{self.path}: this process was forked inside a transaction, so SQLite can't be trusted with this "
                    "store here. Fork outside of calls to the store, or start processes with spawn"
                )
            self._active[me] = self._active.get(me, 0) + 1

    def _leave(self) -> None:
        me = threading.get_ident()
        with self._lock:
            count = self._active[me] - 1
            if count:
                self._active[me] = count
                return
            del self._active[me]
            if self._forks:
                self._gate.notify_all()

    def _take(self) -> sqlite3.Connection:
        """An idle connection for a glance, or a new one."""
        try:
            return self._idle.pop()
        except IndexError:
            raw = self._connect()
            set_pragmas(raw, self._pragmas(query_only=True))
            return raw

    def _before_fork(self) -> None:
        self._gate.acquire()
        me = threading.get_ident()
        self._forks = True
        self._gate.wait_for(lambda: not self._active.keys() - {me}, BUSY_SECONDS)
        self._forks = False
        if not self._active:
            self._dispose()

    def _after_fork_in_parent(self) -> None:
        self._gate.release()

    def _after_fork_in_child(self) -> None:
        if self._active:
            _poisoned.add(_inode(self.path))
        _inherited.append((self._idle, self._reader, self._writer, self._file_lock, self._gate))
        self._start()


class _Glance:
    """What `Index.glance` returns: a class, since a generator takes longer than the SELECT it is for."""

    __slots__ = ("_index", "_raw")

    def __init__(self, index: Index) -> None:
        self._index = index

    def __enter__(self) -> AnyConnection:
        self._index._enter()
        try:
            self._raw = self._index._take()
        except BaseException as error:
            self._index._leave()
            if isinstance(error, sqlite3.Error):
                raise typed_error(error, self._index.path) from error
            raise
        return self._raw

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._index._idle.append(self._raw)
        self._index._leave()
        if isinstance(error, sqlite3.Error):
            raise typed_error(error, self._index.path) from error


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


def _after_fork_in_child() -> None:
    for index in _forking:
        index._after_fork_in_child()
    _forking.clear()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
