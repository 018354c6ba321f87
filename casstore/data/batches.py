"""Batches that threads of this process read ahead, in the order of the sampler."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any

from casstore.data.loading import Prepared
from casstore.data.picks import Pick
from casstore.data.rows import Row, collate
from casstore.errors import CasstoreError, UsageError


def batches(
    prepare: Callable[..., Prepared],
    read: Callable[[Prepared], list[Row]],
    sampler: Iterable[Any],
    batch_size: int | None,
    *,
    threads: int,
    prefetch: int,
) -> Iterator[dict[str, Any]]:
    """See `Dataset.batches`; `prepare` and `read`: see `Reader`."""
    for value, least, what in ((batch_size, 1, "batch_size"), (threads, 1, "threads"), (prefetch, 0, "prefetch")):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise UsageError(f"{what} is a number from {least} on, not {value!r}")
    return _read_ahead(prepare, read, _picked(sampler, batch_size), threads, prefetch)


def _read_ahead(
    prepare: Callable[..., Prepared],
    read: Callable[[Prepared], list[Row]],
    picked: Iterator[list[Any]],
    threads: int,
    prefetch: int,
) -> Iterator[dict[str, Any]]:
    def work(prepared: Prepared) -> dict[str, Any]:
        return collate(read(prepared))

    def submit(picks: list[Any]) -> None:
        # Memory is taken by this thread, which also gives it back: malloc then hands out the same pages again.
        try:
            waiting.append(pool.submit(work, prepare(picks, shared=False)))
        except CasstoreError as error:  # raised when its turn comes
            waiting.append(Future())
            waiting[-1].set_exception(error)

    waiting: deque[Future[dict[str, Any]]] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="casstore-batches")
    try:
        for picks in islice(picked, 1 + prefetch):
            submit(picks)
        while waiting:
            batch = waiting.popleft().result()
            for picks in islice(picked, 1):
                submit(picks)
            yield batch
            del batch
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
