"""Decoding ahead: while the encoder works, threads have the next items ready, in order and bounded in bytes."""

from __future__ import annotations

import threading
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


class _Held:
    """Bytes that are held at the moment, by all threads together."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._lock = threading.Lock()

    def add(self, nbytes: int) -> None:
        with self._lock:
            self.nbytes += nbytes


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
    held = _Held()

    def work(planned: PlanRow) -> Decoded:
        decoded = decode(planned)
        held.add(decoded.nbytes)
        return decoded

    pool: Pool[PlanRow, Decoded] = Pool(work, threads, "casstore-decode")
    try:
        while not stopped():
            while len(ahead) < depth and (not ahead or held.nbytes < DECODED_BYTES):
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
                held.add(-decoded.nbytes)
                yield decoded
    finally:
        pool.close()
