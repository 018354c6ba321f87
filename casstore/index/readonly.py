"""The index of a store that can only be read: a read-only mount, or a folder that this user can't write.

SQLite can't share such a file in the usual way, since readers of a WAL write to its shared memory. Without a WAL that
holds anything, the file itself is the whole state and is opened as immutable: without locks, so whoever reads has to
see for himself that nobody wrote meanwhile. With one, its owner is at work, and SQLite reads it if it can reach the
owner's shared memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import NoReturn, TypeVar

from sqlalchemy import Connection

from casstore import fsio
from casstore.errors import CasstoreError, CorruptStoreError, NotAStoreError, StoreChangedError
from casstore.index.bulk import AnyConnection
from casstore.index.driver import connect, sqlite3
from casstore.index.engine import Index

T = TypeVar("T")

ATTEMPTS = 5

_State = tuple[tuple[int, int, int] | None, tuple[int, int, int] | None]


class ReadOnlyIndex(Index):
    """An index that is never written; every write raises `obstacle`.

    Args:
        path: of index.sqlite.
        obstacle: why it can't be written.
    """

    def __init__(self, path: str, obstacle: CasstoreError) -> None:
        self._obstacle = obstacle
        self._seen: _State | None = None
        super().__init__(path, "")

    @contextlib.contextmanager
    def read(self) -> Iterator[Connection]:
        """A read transaction.

        Raises:
            StoreChangedError: its owner wrote during it; what was read must be thrown away (see `retried`).
        """
        before = self._state()
        if before != self._seen:
            self._dispose()  # an immutable connection keeps what it has read of an older state
            self._seen = before
        try:
            with super().read() as connection:
                yield connection
        except (CorruptStoreError, NotAStoreError) as error:
            if self._state() != before:
                self._changed(error)
            raise
        if self._state() != before:
            self._changed(None)

    @contextlib.contextmanager
    def glance(self) -> Iterator[AnyConnection]:
        """A connection for a single SELECT, which has to be watched like any other."""
        with self.read() as connection:
            yield connection

    def write(self, *, durable: bool = True) -> contextlib._GeneratorContextManager[Connection]:
        """Raises the reason why it can't."""
        raise type(self._obstacle)(*self._obstacle.args)

    def close(self) -> None:
        """Close all connections of this process."""
        self._forget()

    def _connect(self) -> sqlite3.Connection:
        return connect(self.path, "ro" if self._wal_bytes() else "ro&immutable=1")

    def _changed(self, cause: BaseException | None) -> NoReturn:
        raise StoreChangedError(
            f"{self.path} is being written by its owner, and can only be read here when it is at rest; "
            "try again later, or read a copy made with: casstore db copy"
        ) from cause

    def _state(self) -> _State:
        return _stat(self.path), _stat(self.path + "-wal")


def retried(read: Callable[[], T]) -> T:
    """Do a piece of reading again if the owner of a store that can only be read here wrote meanwhile.

    Raises:
        StoreChangedError: it did so each time.
    """
    for _ in range(ATTEMPTS - 1):
        try:
            return read()
        except StoreChangedError:
            continue
    return read()


def _stat(path: str) -> tuple[int, int, int] | None:
    found = fsio.look(path)
    return found and (found.st_size, found.st_mtime_ns, found.st_ino)
