"""Calls of the encoder: in batches on the caller's thread, or one by one in a pool of the caller's.

A batch that fails is tried again item by item, so that only the bad one fails; one that is too large for the memory is
halved, and so are those that follow.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Executor, Future
from concurrent.futures import wait as wait_for_all
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from casstore.build.decode import Decoded
from casstore.build.pool import wait
from casstore.errors import EncoderError
from casstore.identity.recipes import Encode, Recipe
from casstore.model import Item

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Encoded:
    """What became of an item.

    Attributes:
        decoded: the item.
        result: what the encoder returned for it.
        error: why it has failed; None: it hasn't.
        microseconds: that the encoder took, per item of its batch.
    """

    decoded: Decoded
    result: Any
    error: BaseException | None
    microseconds: int


class Encoding:
    """The encoder at work.

    Args:
        encode: the caller's function.
        recipe: says of how many items a call has to be, if that matters.
        batch_size: the most items per call.
        batch_pixels: the most pixels per call, of all its pictures; None: any.
        timeout: seconds after which a call is reported as stalled.
        stopped: whether the build is to end.
        before: called once, on this thread, before the first call.
    """

    def __init__(
        self,
        encode: Encode,
        recipe: Recipe,
        *,
        batch_size: int,
        batch_pixels: int | None,
        timeout: float,
        stopped: Callable[[], bool],
        before: Callable[[], object] | None,
    ) -> None:
        self._encode, self._number = encode, recipe.batch
        self._size = self._number or batch_size
        self._pixels = batch_pixels
        self._timeout, self._stopped, self._before = timeout, stopped, before

    def run(self, items: Iterable[Decoded]) -> Generator[Encoded, None, None]:
        """Encode items on this thread; those that are alike and come one after the other share a call."""
        batch: list[Decoded] = []
        pixels = 0
        with _Watch(self._timeout) as watch:
            for decoded in items:
                more = decoded.pixels
                full = len(batch) >= self._size or (self._pixels is not None and pixels + more > self._pixels)
                if batch and (full or batch[0].alike != decoded.alike):
                    yield from self._batch(batch, watch)
                    batch, pixels = [], 0
                batch.append(decoded)
                pixels += more
                if len(batch) >= self._size:
                    yield from self._batch(batch, watch)
                    batch, pixels = [], 0
            if batch:
                yield from self._batch(batch, watch)

    def run_in(
        self,
        executor: Executor,
        threads: int,
        items: Iterable[Decoded],
        within: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> Generator[Encoded, None, None]:
        """Encode items one by one in a pool, `threads` at a time; the pool is the caller's and stays open.

        Args:
            executor: the pool.
            threads: items that it has at a time.
            items: to encode.
            within: around each call, in its thread.
        """
        ahead: deque[tuple[Decoded, Future[tuple[Mapping[str, Any], int]]]] = deque()

        def single(decoded: Decoded) -> tuple[Mapping[str, Any], int]:
            with within():
                return self._single(decoded)

        def first() -> Encoded | None:
            decoded, job = ahead[0]
            try:
                # After a stop, what has begun is waited for, like a call on this thread.
                wait(job, self._timeout, lambda: self._stopped() and job.cancel())
            except TimeoutError:
                ahead.popleft()
                return Encoded(decoded, None, EncoderError(f"the encoder has been at it for {self._timeout:g} s"), 0)
            ahead.popleft()
            if job.cancelled() and self._stopped():
                return None
            try:
                result, took = job.result()
            except CancelledError:
                return Encoded(decoded, None, EncoderError("the executor was shut down"), 0)
            except Exception as error:
                return Encoded(decoded, None, error, 0)
            return Encoded(decoded, result, None, took)

        try:
            for decoded in items:
                self._prepare()
                ahead.append((decoded, executor.submit(single, decoded)))
                if len(ahead) >= threads and (done := first()) is not None:
                    yield done
            while ahead:
                if (done := first()) is not None:
                    yield done
        except Exception:  # such as that the pool was shut down: what it made until then isn't lost
            while ahead:
                if (done := first()) is not None:
                    yield done
            raise
        finally:
            # Nothing is at work in the caller's pool when the build has ended.
            wait_for_all([job for _, job in ahead if not job.cancel()], self._timeout)

    def again(self, decoded: Decoded) -> Encoded:
        """Encode one item now, on this thread."""
        return next(self._each([decoded]))

    def _single(self, decoded: Decoded) -> tuple[Mapping[str, Any], int]:
        began = time.perf_counter()
        results = self._call([decoded])
        return results[0], round((time.perf_counter() - began) * 1e6)

    def _batch(self, batch: list[Decoded], watch: _Watch) -> Iterator[Encoded]:
        if self._stopped():
            return
        self._prepare()
        began = time.perf_counter()
        try:
            with watch.over(batch):
                results = self._call(batch)
        except Exception as error:
            if len(batch) == 1 or (self._number is not None and _is_out_of_memory(error)):
                for decoded in batch:
                    yield Encoded(decoded, None, error, 0)
                return
            half = (len(batch) + 1) // 2
            too_large = _is_out_of_memory(error)
            if too_large:
                self._size = half
                _log.warning("the memory doesn't hold a batch of %d; going on with %d", len(batch), half)
            error.__traceback__ = None  # it holds the tensors of the failed call
            del error
            start = 0
            while start < len(batch):
                size = self._size if too_large else 1  # halved again where half was too large as well
                yield from self._batch(batch[start : start + size], watch)
                start += size
            return
        took = round((time.perf_counter() - began) * 1e6 / len(batch))
        for decoded, result in zip(batch, results, strict=True):
            yield Encoded(decoded, result, None, took)

    def _each(self, batch: list[Decoded]) -> Iterator[Encoded]:
        for decoded in batch:
            try:
                result, took = self._single(decoded)
            except Exception as error:
                yield Encoded(decoded, None, error, 0)
            else:
                yield Encoded(decoded, result, None, took)

    def _prepare(self) -> None:
        """What comes before the first call; its errors are nobody's but the build's."""
        before, self._before = self._before, None
        if before is not None:
            before()

    def _call(self, batch: Sequence[Decoded]) -> Sequence[Mapping[str, Any]]:
        """What the encoder makes of a batch; where the recipe says so, of exactly as many items as it says."""
        items: list[Item] = [decoded.item for decoded in batch]
        padded = items if self._number is None else [items[i % len(items)] for i in range(self._number)]
        results = self._encode(padded)
        if not isinstance(results, Sequence) or len(results) != len(padded):
            count = f"{len(results)} results" if isinstance(results, Sequence) else f"a {type(results).__name__}"
            raise EncoderError(f"the encoder returned {count} for {len(padded)} items; it returns one dict per item")
        return results[: len(items)]


def _is_out_of_memory(error: BaseException) -> bool:
    """Whether it is the memory, of the machine or of a GPU; torch isn't imported to ask."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


class _Watch:
    """Tells when a call on the caller's thread takes very long; it can't be ended from outside."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._at: Sequence[Decoded] | None = None
        self._calls = 0
        self._changed = threading.Condition()
        self._ended = False

    def over(self, batch: Sequence[Decoded]) -> _Watch:
        """The same, watching over a batch until the end of the `with` block."""
        self._at = batch
        self._calls += 1
        return self

    def __enter__(self) -> _Watch:
        if self._at is None and not self._calls:
            threading.Thread(target=self._run, name="casstore-watch", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._at is not None:
            self._at = None
            return
        with self._changed:
            self._ended = True
            self._changed.notify()

    def _run(self) -> None:
        with self._changed:
            while not self._ended:
                at, calls = self._at, self._calls
                self._changed.wait(self._seconds)
                if not self._ended and at is not None and self._at is at and self._calls == calls:
                    names = ", ".join(decoded.item.sample for decoded in at)
                    _log.warning("the encoder has been at %s for %.0f s", names, self._seconds)
