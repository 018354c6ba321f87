"""Threads that nobody has to wait for: a file on a dead disk may hold one up for ever, and must not hold up the end."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any, Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Pool(Generic[T, R]):
    """Daemon threads that do one kind of work.

    Args:
        work: work(item) -> result.
        threads: how many.
        name: of the threads.
    """

    def __init__(self, work: Callable[[T], R], threads: int, name: str) -> None:
        self._work, self._name = work, name
        self._jobs: queue.SimpleQueue[tuple[T, Future[R]] | None] = queue.SimpleQueue()
        self._threads = 0
        self._closed = False
        for _ in range(threads):
            self.add_thread()

    def add_thread(self) -> None:
        """One thread more, in place of one that is stuck."""
        self._threads += 1
        threading.Thread(target=self._run, name=f"{self._name}-{self._threads}", daemon=True).start()

    def submit(self, item: T) -> Future[R]:
        """Have an item worked on."""
        job: Future[R] = Future()
        self._jobs.put((item, job))
        return job

    def close(self) -> None:
        """Let the threads end when they have done what they are at; what waits is dropped."""
        self._closed = True
        for _ in range(self._threads):
            self._jobs.put(None)

    def _run(self) -> None:
        while (taken := self._jobs.get()) is not None and not self._closed:
            item, job = taken
            if not job.set_running_or_notify_cancel():
                continue
            try:
                job.set_result(self._work(item))
            except BaseException as error:
                job.set_exception(error)
            taken = item = job = None  # type: ignore[assignment]  # or the last item lives until the next comes


def wait(job: Future[Any], seconds: float, stopped: Callable[[], bool], tick: float = 0.2) -> bool:
    """Wait for a job, and look up now and then.

    Args:
        job: what is waited for.
        seconds: the longest that it may take.
        stopped: whether nobody wants the result any more.
        tick: seconds between two looks.

    Returns:
        Whether the job has ended.

    Raises:
        TimeoutError: it took longer.
    """
    left = seconds
    while not job.done() and not stopped():
        try:
            job.exception(min(tick, left))
        except CancelledError:
            break
        except TimeoutError:
            left -= tick
            if left <= 0 and not job.done():
                raise
    return job.done()
