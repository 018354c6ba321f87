"""Threads that read. Few: two keep two cores busy, and some more hide the latency of a slow disk."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

THREADS = min(4, max(2, os.cpu_count() or 1))

_lock = threading.Lock()
_pools: dict[int, ThreadPoolExecutor] = {}  # by pid: a forked child has none of its parent's threads


def reading_pool() -> ThreadPoolExecutor:
    """The reading threads of this process. What runs in them must not wait for more of them."""
    with _lock:
        pool = _pools.get(os.getpid())
        if pool is None:
            pool = _pools[os.getpid()] = ThreadPoolExecutor(THREADS, thread_name_prefix="casstore-read")
        return pool


def pool_map(work: Callable[[T], R], items: Iterable[T]) -> Iterable[R]:
    """`map` in the reading threads; the first error is raised once all that was begun has ended."""
    futures = [reading_pool().submit(work, item) for item in items]
    try:
        return [future.result() for future in futures]
    finally:
        for future in futures:
            if not future.cancel():
                future.exception()


@contextlib.contextmanager
def helped(work: Callable[[], object]) -> Iterator[None]:
    """Other threads do `work()` as well, for as long as the block does its part; their errors are raised after it."""
    futures = [reading_pool().submit(work) for _ in range(THREADS - 1)]
    try:
        yield
    finally:
        wait([future for future in futures if not future.cancel()])
    for future in futures:
        if not future.cancelled():
            future.result()


def _forget_parent() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_parent)
