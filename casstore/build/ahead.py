"""Decoding ahead: while the encoder works, threads have the next items ready, in order and bounded in bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future

from casstore.build.decode import Decoded
from casstore.build.plan import PlanRow
from casstore.build.pool import Pool, wait
from casstore.errors import CasstoreError

DECODED_BYTES = 256 << 20  # bound of what the decode threads may have ready


class StalledError(CasstoreError):
    """A file took too long to read and decode."""


def decode_ahead(
    rows: Iterator[PlanRow],
    decode: Callable[[PlanRow], Decoded],
    *,
    threads: int,
    depth: int,
    timeout: float,
    stopped: Callable[[], bool],
    failed: Callable[[PlanRow, Exception], None],
) -> Iterator[Decoded]:
    """Items in the order of the rows; what can't be decoded is left out.

    Args:
        rows: asked for one by one, on this thread.
        decode: run in the threads.
        threads: how many.
        depth: the most items ahead.
        timeout: seconds that one may take.
        stopped: whether the build is to end.
        failed: called, on this thread, with each row that can't be decoded, and why.
    """
    ahead: deque[tuple[PlanRow, Future[Decoded]]] = deque()
    pool: Pool[PlanRow, Decoded] = Pool(decode, threads, "casstore-decode")
    try:
        while not stopped():
            held = sum(job.result().nbytes for _, job in ahead if job.done() and job.exception() is None)
            while len(ahead) < depth and (not ahead or held < DECODED_BYTES):
                planned = next(rows, None)
                if planned is None:
                    break
                ahead.append((planned, pool.submit(planned)))
            if not ahead:
                return
            planned, job = ahead.popleft()
            try:
                if not wait(job, timeout, stopped):
                    return
            except TimeoutError:
                pool.add_thread()  # one is stuck
                failed(planned, StalledError(f"it took longer than {timeout:g} s to read and decode; left out"))
                continue
            try:
                decoded = job.result()
            except Exception as error:
                failed(planned, error)
            else:
                yield decoded
    finally:
        pool.close()
