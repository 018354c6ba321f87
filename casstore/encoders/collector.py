"""Batches of items that many threads encode one by one.

Invariants:
- At most one thread, the leader, is inside `forward`.
- A call stays in `_calls` until it has its outcome, or its thread has left. Whatever becomes of a leader, the calls it
  took are still there for the next one.
- A leader that leaves makes the oldest waiting call the leader. An interrupt may hit even that; so `left`, a plain
  store that nothing can come before, is what counts, and those who wait look at it from time to time.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping, Set
from typing import Any, Generic, TypeVar, cast

from casstore.errors import EncoderError, UsageError

T = TypeVar("T")
R = TypeVar("R")

_POLL = 0.25  # seconds after which a waiting thread looks whether its leader is still there

_log = logging.getLogger("casstore.encoders")


class _Call(Generic[T, R]):
    """One item, the thread that waits for it, and its outcome.

    `wake` is a lock because locks can be interrupted at no bad moment: Event and Condition are written in Python, and
    Ctrl-C inside of them leaves them locked.
    """

    __slots__ = ("done", "error", "item", "key", "left", "result", "thread", "wake")

    def __init__(self, item: T, key: tuple[int, Hashable]) -> None:
        self.item = item
        self.key = key
        self.thread = threading.get_ident()
        self.done = False
        self.left = False
        self.result: R | None = None
        self.error: BaseException | None = None
        self.wake = threading.Lock()
        self.wake.acquire()

    def rouse(self) -> None:
        """Let the thread look again. Called under the lock of the collector."""
        if self.wake.locked():
            self.wake.release()

    def outcome(self) -> R:
        """The result, or the error is raised."""
        error, self.error = self.error, None  # its traceback leads back here: no cycle may keep tensors in memory
        try:
            if error is not None:
                raise error
            return cast(R, self.result)
        finally:
            del error


class BatchCollector(Generic[T, R]):
    """Turns calls with one item each, from many threads, into calls of `forward` with many.

        encode = casstore.BatchCollector(forward, max_batch=8)
        hidden = encode("a red cat")            # in each of many threads; blocks until it is there

    The first thread to call gathers items until there are `max_batch` or the window is over, and runs `forward` in its
    own thread; then the next that waits does. Thread-local modes (torch.no_grad, autocast, the CUDA device) must
    therefore be entered inside of `forward`. It runs in one thread at a time, and never with items of different keys.

    If `forward` raises an Exception for several items, it is called again for each of them alone, so that only the
    callers of bad items see an error. Anything else that it raises (KeyboardInterrupt, SystemExit) is raised in all
    threads whose items were in the batch; the others go on. The collector can be used after any error, and in forked
    children.

    Args:
        forward: gets a list of 1 to `max_batch` items, and returns as many results in the same order: a list, or a
            tensor whose rows are the results. Casstore doesn't look into them. Rows of one tensor share its memory.
        max_batch: how many items a batch has at most.
        window: seconds for which an incomplete batch waits for more; 0: doesn't wait.
        key: only items for which it returns equal values share a batch, as the length of tokens that are stacked.

    Raises:
        UsageError: an argument that can't be meant.
    """

    def __init__(
        self,
        forward: Callable[[list[T]], Iterable[R]],
        max_batch: int = 8,
        window: float = 0.005,
        key: Callable[[T], Hashable] | None = None,
    ) -> None:
        if not callable(forward):
            raise UsageError(f"BatchCollector: forward is of type {type(forward).__name__}, which can't be called")
        if not isinstance(max_batch, int) or max_batch < 1:
            raise UsageError(f"BatchCollector: max_batch is {max_batch!r}; it is a whole number, at least 1")
        if not isinstance(window, int | float) or not 0 <= window <= threading.TIMEOUT_MAX:
            raise UsageError(f"BatchCollector: window is {window!r}; it is a number of seconds, at least 0")
        self.forward = forward
        self.max_batch = max_batch
        self.window = window
        self.key = key
        self._lock = threading.Lock()
        self._calls: list[_Call[T, R]] = []  # oldest first
        self._leader: _Call[T, R] | None = None
        self._warned = False
        _collectors.add(self)

    def __call__(self, item: T) -> R:
        """The result of `forward` for this item. Blocks until it is there.

        Raises:
            UsageError: called by `forward` itself, which would wait for its own end; or the item's key isn't hashable.
            EncoderError: `forward` returned another number of results than it got items.
        """
        leader = self._leader
        if leader is not None and leader.thread == threading.get_ident() and not leader.left:
            raise UsageError(
                f"{self!r} was called by its own forward, which would wait for itself; call the model there, or a "
                "second collector"
            )
        call: _Call[T, R] = _Call(item, self._key(item))
        try:
            self._join(call)
            while not call.done:
                if self._leads(call):
                    self._lead(call)
                else:
                    call.wake.acquire(timeout=_POLL)
        finally:
            call.left = True
            if not call.done or self._leader is call:
                self._leave()
        return call.outcome()

    def __repr__(self) -> str:
        name = getattr(self.forward, "__qualname__", type(self.forward).__name__)
        return f"BatchCollector({name}, max_batch={self.max_batch}, window={self.window})"

    def _key(self, item: T) -> tuple[int, Hashable]:
        """With the hash in front, since keys whose == isn't a truth value (tensors) needn't be compared then."""
        if self.key is None:
            return 0, None
        key = self.key(item)
        try:
            return hash(key), key
        except TypeError as error:
            raise UsageError(f"{self!r}: key returned {error}; return a number, a string or a tuple of them") from error

    # -- who leads -----------------------------------------------------------------------------------------------

    def _join(self, call: _Call[T, R]) -> None:
        with self._lock:
            self._calls.append(call)
            if self._leader is not None and len(self._batch(self._leader)) == self.max_batch:
                self._leader.rouse()

    def _leads(self, call: _Call[T, R]) -> bool:
        with self._lock:
            if not call.done and (self._leader is None or self._leader.left):
                self._leader = call
            return self._leader is call

    def _leave(self) -> None:
        """Forget the calls that are over; if the leader's is, the oldest one leads."""
        with self._lock:
            self._calls = [call for call in self._calls if not (call.left or call.done)]
            if self._leader is None or self._leader.left:
                self._leader = self._calls[0] if self._calls else None
                if self._leader is not None:
                    self._leader.rouse()

    def _forget_parent(self) -> None:
        """After a fork there are no other threads, and one of them may have held the lock."""
        self._lock = threading.Lock()
        self._calls = []
        if self._leader is not None and self._leader.thread != threading.get_ident():
            self._leader = None

    # -- what the leader does ------------------------------------------------------------------------------------

    def _lead(self, call: _Call[T, R]) -> None:
        batch = self._gather(call)
        try:
            self._encode(batch)
        except BaseException as error:
            # The program is being stopped. To try again would be to work against that, and to call it the failure of
            # an item would be wrong, so that all callers get it as it is. This thread does in any case.
            for other in batch:
                if other is not call and not other.done:
                    self._hand_out(other, error=error)
            raise

    def _gather(self, call: _Call[T, R]) -> list[_Call[T, R]]:
        deadline = time.monotonic() + self.window
        while True:
            with self._lock:
                batch = self._batch(call)
            left = deadline - time.monotonic()
            if len(batch) == self.max_batch or left <= 0:
                return batch
            call.wake.acquire(timeout=left)

    def _batch(self, leader: _Call[T, R]) -> list[_Call[T, R]]:
        """The leader's call, and the oldest others that may share its batch."""
        batch = [leader]
        for call in self._calls:
            if len(batch) == self.max_batch:
                break
            if call is not leader and not call.left and not call.done and call.key == leader.key:
                batch.append(call)
        return batch

    def _encode(self, batch: list[_Call[T, R]]) -> None:
        """Hand out an outcome to each call of the batch."""
        results, error = self._attempt(batch)
        if error is None:
            for call, result in zip(batch, results, strict=True):
                self._hand_out(call, result)
            return
        # From here on `error` must not stay in a variable of this frame: its traceback holds the frame, and the tensors
        # of the forward that failed. Their memory may be just what was missing.
        retried = len(batch) > 1 and not isinstance(error, _WrongResults)
        if retried:
            self._log(len(batch), error)
        else:
            for call in batch:
                self._hand_out(call, error=EncoderError(str(error)) if isinstance(error, _WrongResults) else error)
        error = None
        if retried:
            for call in batch:
                self._encode([call])

    def _attempt(self, batch: list[_Call[T, R]]) -> tuple[list[R], Exception | None]:
        try:
            returned: Any = self.forward([call.item for call in batch])
            # Iterating a dict or set would give as many results, but not the right ones.
            if not isinstance(returned, Iterable) or isinstance(returned, Mapping | Set | str | bytes):
                raise _WrongResults(self._wrong(f"a {type(returned).__name__}", len(batch)))
            results = list(returned)
            if len(results) != len(batch):
                raise _WrongResults(self._wrong(f"{len(results)} results", len(batch)))
            return results, None
        except Exception as error:
            return [], error

    def _wrong(self, what: str, wanted: int) -> str:
        return f"{self!r}: forward returned {what} for {wanted} items; it returns one result for each, in order"

    def _log(self, count: int, error: Exception) -> None:
        level, more = logging.WARNING, "; further ones are logged at level DEBUG"
        if self._warned:
            level, more = logging.DEBUG, ""
        self._warned = True
        # Not the error itself: handlers keep records.
        why = f"{type(error).__name__}: {error}"
        _log.log(level, "%r failed on a batch of %d (%s); each item is tried alone%s", self, count, why, more)

    def _hand_out(self, call: _Call[T, R], result: R | None = None, error: BaseException | None = None) -> None:
        with self._lock:
            call.result, call.error = result, error
            call.done = True
            call.rouse()


class _WrongResults(Exception):
    """Not one result for each item: a fault of forward and not of an item, so that trying again is no use."""


_collectors: weakref.WeakSet[BatchCollector[Any, Any]] = weakref.WeakSet()


def _forget_parents() -> None:
    for collector in list(_collectors):
        collector._forget_parent()


os.register_at_fork(after_in_child=_forget_parents)
