"""Batches that threads of this process read ahead, in the order of the sampler."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any

from casstore.data.picks import Pick
from casstore.data.rows import Row, collate
from casstore.errors import UsageError


def batches(
    read: Callable[..., list[Row]], sampler: Iterable[Any], batch_size: int | None, *, threads: int, prefetch: int
) -> Iterator[dict[str, Any]]:
    """See `Dataset.batches`; `read`: what reads the items."""
    for value, least, what in ((batch_size, 1, "batch_size"), (threads, 1, "threads"), (prefetch, 0, "prefetch")):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise UsageError(f"{what} is a number from {least} on, not {value!r}")
    return _read_ahead(read, _picked(sampler, batch_size), threads, prefetch)


def _read_ahead(
    read: Callable[..., list[Row]], picked: Iterator[list[Any]], threads: int, prefetch: int
) -> Iterator[dict[str, Any]]:
    def work(picks: list[Any]) -> dict[str, Any]:
        return collate(read(picks, shared=False))

    waiting: deque[Future[dict[str, Any]]] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="casstore-batches")
    try:
        for picks in islice(picked, 1 + prefetch):
            waiting.append(pool.submit(work, picks))
        while waiting:
            batch = waiting.popleft().result()
            for picks in islice(picked, 1):
                waiting.append(pool.submit(work, picks))
            yield batch
    finally:
        pool.shutdown(cancel_futures=True)


def _picked(sampler: Iterable[Any], batch_size: int | None) -> Iterator[list[Any]]:
    if batch_size is None:
        for picks in sampler:
            if isinstance(picks, (int, Pick)) or not isinstance(picks, Sequence):
                raise UsageError(f"the sampler gave {picks!r}, not a batch; give batch_size=, or a BatchSampler")
            if picks:
                yield list(picks)
        return
    each = iter(sampler)
    while picks := list(islice(each, batch_size)):
        yield picks
