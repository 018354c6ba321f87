"""What keeps gc away from all that an open dataset may read: an owner with a locked file and the epoch it began in."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import threading
from collections.abc import Sequence
from typing import Any

from casstore import fsio
from casstore.core.handle import Handle
from casstore.errors import CasstoreError, NoSpaceError
from casstore.index.owners import remove_dead, save_reader
from casstore.locks import FileLock

KIND = "dataset"
_log = logging.getLogger("casstore.data")
_told: set[str] = set()  # stores of which it was said that gc isn't held off


_joining = threading.Lock()


class Lease:
    """The owner of a dataset. Its lock is shared by all processes that the dataset travels to: it lives while one does.

    Args:
        handle: the open store. One that can only be read gets no owner, which is said once.
        recipes: digests of those that are read.
    """

    def __init__(self, handle: Handle, recipes: Sequence[bytes]) -> None:
        self._path, self._owners = handle.directory.path, handle.directory.owners
        self._recipes = tuple(recipes)
        self._start(handle)
        self._pid = os.getpid()

    def _start(self, handle: Handle) -> None:
        self._handle: Handle | None = handle
        self._name = secrets.token_hex(8)
        self._lock = FileLock(os.path.join(self._owners, self._name))
        try:
            if not handle.read_only:
                self._lock.acquire(0, shared=True)  # before the row, so that nobody takes us for dead
                self._lock.write_note()  # for whoever may not begin while we live
                with handle.index.write(durable=False) as connection:
                    save_reader(connection, self._name, KIND, self._recipes)
                return
            why = "it can only be read here"
        except NoSpaceError as error:
            self._drop()
            why = str(error)
        except BaseException:
            self._drop()
            raise
        self._name = ""
        if self._path not in _told:
            _told.add(self._path)
            _log.warning("%s: gc isn't held off while this dataset is open: %s", self._path, why)

    def ensure(self) -> None:
        """Hold the lock in this process as well; called before anything is read."""
        if self._pid == os.getpid():
            return
        with _joining:
            if self._pid == os.getpid() or not self._name:
                self._pid = os.getpid()
                return
            lock = FileLock(os.path.join(self._owners, self._name))
            with contextlib.suppress(FileNotFoundError):
                if lock.try_acquire(shared=True, create=False):
                    self._lock, self._pid, self._handle = lock, os.getpid(), None
                    return
            handle = Handle(self._path)  # the process that it came from is gone, or has closed it
            try:
                self._start(handle)
                self._pid = os.getpid()
            finally:
                self._handle = None
                handle.close()

    def close(self) -> None:
        """Let gc have its way, unless other processes have the dataset open still."""
        if self._pid != os.getpid() or not self._lock.held:
            return
        self._lock.release()
        try:
            last = self._lock.try_acquire(create=False)
        except FileNotFoundError:
            return
        if last:
            handle, self._handle = self._handle, None
            with contextlib.suppress(CasstoreError):  # what stays is gc's
                if handle is not None:
                    handle.check_open()
                    with handle.index.write(durable=False) as connection:
                        remove_dead(connection, {self._name})
            self._drop()

    def _drop(self) -> None:
        if self._lock.held:
            with contextlib.suppress(CasstoreError):
                fsio.unlink(self._lock.path)
        self._lock.release()

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self._path, "owners": self._owners, "name": self._name, "recipes": self._recipes}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._path, self._owners = state["path"], state["owners"]
        self._name, self._recipes = state["name"], state["recipes"]
        self._handle, self._pid = None, 0
        self._lock = FileLock(os.path.join(self._owners, self._name))


def _forget_parent() -> None:
    global _joining
    _joining = threading.Lock()  # a thread of the parent may have held it


os.register_at_fork(after_in_child=_forget_parent)
