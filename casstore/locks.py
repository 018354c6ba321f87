"""File locks (flock): no clocks, no stale files; a lock dies with the process that holds it.

A lock belongs to an open file description, which a forked child shares. So the child closes what it inherited, at once,
and never unlocks it; only the process that took a lock unlocks it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import sys
import time
import weakref
from collections.abc import Callable
from functools import cache

from casstore import fsio
from casstore.errors import StoreBusyError

FIRST_WAIT = 0.0005  # seconds; waits grow to LONGEST_WAIT, so that a queue of writers stays fair and cheap
LONGEST_WAIT = 0.010


NOTE_LIMIT = 4096  # bytes
_held: weakref.WeakSet[FileLock] = weakref.WeakSet()


class FileLock:
    """One lock file, held shared or exclusive by this object until `release`."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._descriptor: int | None = None
        self._pid = 0
        self._noted = False

    @property
    def held(self) -> bool:
        """Whether this object holds the lock."""
        return self._descriptor is not None

    def try_acquire(self, *, shared: bool = False, create: bool = True) -> bool:
        """Take the lock if that is possible at once.

        Args:
            shared: many may hold it shared at a time.
            create: make the file if there is none; otherwise a missing file raises FileNotFoundError.
        """
        if self._descriptor is not None:
            raise RuntimeError(f"{self.path} is already held")
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        while True:
            try:
                descriptor = os.open(self.path, flags, fsio.FILE_MODE)
            except FileNotFoundError:
                if not create:
                    raise
                raise fsio.typed(FileNotFoundError(errno.ENOENT, "no such folder"), "lock", self.path) from None
            except OSError as error:
                raise fsio.typed(error, "lock", self.path) from error
            try:
                fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
                ours = self._still_named(descriptor)
            except BlockingIOError:
                _close(descriptor)
                return False
            except OSError as error:
                _close(descriptor)
                raise fsio.typed(error, "lock", self.path) from error
            except BaseException:
                _close(descriptor)
                raise
            if ours:
                self._descriptor, self._pid = descriptor, os.getpid()
                _held.add(self)
                return True
            _close(descriptor)  # somebody removed the file between our open and our lock

    def acquire(
        self, seconds: float, *, shared: bool = False, on_busy: Callable[[], StoreBusyError] | None = None
    ) -> None:
        """Take the lock, waiting up to `seconds`.

        Raises:
            StoreBusyError: it wasn't free in time.
        """
        end, wait = time.monotonic() + seconds, FIRST_WAIT
        while not self.try_acquire(shared=shared):
            if time.monotonic() >= end:
                raise (
                    on_busy() if on_busy else StoreBusyError(f"{self.path} is held by another process; try again later")
                )
            time.sleep(wait)
            wait = min(wait * 2, LONGEST_WAIT)

    def write_note(self) -> None:
        """Leave a note of who holds the lock, for whoever has to wait for it; `release` takes it away."""
        if self._descriptor is not None:
            now = time.time_ns() // 1_000_000
            text = json.dumps({"pid": os.getpid(), "host": _host(), "command": _command(), "since": now})
            self._noted = True
            with contextlib.suppress(OSError):  # a full disk keeps nobody from locking
                os.pwrite(self._descriptor, text.encode("ascii") + b"\n", 0)

    def holder(self) -> str:
        """Who holds the lock, in words: from the note, as far as there is one."""
        try:
            with open(self.path, "rb") as stream:
                note = json.loads(stream.readline(NOTE_LIMIT))
            since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(note["since"] / 1000))
            return f"process {note['pid']:d} on {note['host']} ({note['command']}), since {since}"
        except (OSError, ValueError, KeyError, TypeError):
            return "another process"

    def release(self) -> None:
        """Give the lock back; nothing happens if it isn't held."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            if os.getpid() == self._pid:
                if self._noted:
                    self._noted = False
                    with contextlib.suppress(OSError):  # a note that stays says too much, but holds nobody up
                        os.ftruncate(descriptor, 0)
                # Closing alone isn't enough: a child that was forked at an unlucky moment may hold a copy.
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            _close(descriptor)

    def _still_named(self, descriptor: int) -> bool:
        with contextlib.suppress(FileNotFoundError):
            named, ours = os.stat(self.path), os.fstat(descriptor)
            return (named.st_dev, named.st_ino) == (ours.st_dev, ours.st_ino)
        return False


def _close(descriptor: int) -> None:
    """Close a lock file; the descriptor, and with it the lock, is gone even if the system reports an error."""
    with contextlib.suppress(OSError):
        os.close(descriptor)


@cache
def _host() -> str:
    return socket.gethostname()


@cache
def _command() -> str:
    return " ".join(sys.argv)[:200] or sys.executable


def _close_inherited() -> None:
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_close_inherited)
