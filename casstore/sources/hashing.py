"""Hashing files in threads, beside whoever finds them."""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType

from casstore.errors import SourceNotFoundError
from casstore.index.sources import SeenSource, Stat
from casstore.sources.clock import is_settled
from casstore.sources.images import EXTENSIONS
from casstore.sources.read import Probe, hash_source, read_source

THREADS = max(4, os.cpu_count() or 1)  # some more than cores, for slow disks
SMALL = 64 << 10  # bytes; a file of less is read sooner than another thread has begun with it, unless the disk is slow
PATIENCE = 0.3e-3  # seconds for a small file; where they take longer, threads wait for the disk side by side
CHUNK_FILES = 16  # per job: a job costs as much as hashing 50 KB
CHUNK_BYTES = 8 << 20
IN_FLIGHT = 64  # jobs; bounds what waits in memory


@dataclass(frozen=True, slots=True)
class Found:
    """A file to hash: where it is below the root, its size in bytes, or why it can't be looked at."""

    relpath: str
    name: str
    nbytes: int
    error: str | None = None


class Hasher:
    """Threads that hash; leave the `with` block, and what wasn't begun isn't done.

    Args:
        root: absolute path.
        now: the time of the file system, taken before any of the files was looked at.
        ctime: whether the file system keeps that time.
        probe: for files that aren't pictures, if they have one of the endings `probed`.
    """

    def __init__(
        self, root: str, now: int, *, ctime: bool, probe: Probe | None = None, probed: Sequence[str] = ()
    ) -> None:
        self._above = os.path.join(root, "")
        self._now, self._ctime, self._probe, self._probed = now, ctime, probe, tuple(probed)
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="casstore-hash")
        # Instead of futures: waiting for the first of 64 of them takes as long as hashing half a megabyte.
        self._results: queue.SimpleQueue[list[SeenSource] | BaseException] = queue.SimpleQueue()
        self._jobs = 0
        self._waiting: list[Found] = []
        self._nbytes = 0
        self._done: list[SeenSource] = []
        self._small = 0
        self._seconds = 0.0
        self.submitted = 0

    def submit(self, files: Iterable[Found]) -> None:
        """Have files hashed."""
        for file in files:
            if file.nbytes <= SMALL and self._seconds <= PATIENCE * (self._small + 8):
                began = time.perf_counter()
                self._done.append(self._hash(file))
                self._seconds += time.perf_counter() - began
                self._small += 1
                self.submitted += 1
                continue
            self._waiting.append(file)
            self._nbytes += file.nbytes
            if len(self._waiting) >= CHUNK_FILES or self._nbytes >= CHUNK_BYTES:
                self.flush()

    def flush(self) -> None:
        """Begin with what was submitted last."""
        if self._waiting:
            self._pool.submit(self._work, self._waiting)
            self._jobs += 1
            self.submitted += len(self._waiting)
            self._waiting, self._nbytes = [], 0

    @property
    def busy(self) -> bool:
        """Whether threads have more to hash than they will have done in a moment."""
        return self._jobs > THREADS

    def collect(self) -> list[SeenSource]:
        """What is done by now; waits while very much is in flight."""
        while self._jobs > IN_FLIGHT:
            self._take(self._results.get())
        return self._all()

    def wait(self) -> list[SeenSource]:
        """Wait until something is done; nothing is left if nothing comes."""
        self.flush()
        if self._jobs and not self._done:
            self._take(self._results.get())
        return self._all()

    def stop(self) -> list[SeenSource]:
        """Begin nothing more; what is done, when the last one is."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        while not self._results.empty():
            result = self._results.get()
            if not isinstance(result, BaseException):  # or it would hide why this ends
                self._done += result
        return self._all()

    def _all(self) -> list[SeenSource]:
        while not self._results.empty():
            self._take(self._results.get())
        done, self._done = self._done, []
        return done

    def _take(self, result: list[SeenSource] | BaseException) -> None:
        self._jobs -= 1
        if isinstance(result, BaseException):
            raise result
        self._done += result

    def __enter__(self) -> Hasher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _work(self, files: list[Found]) -> None:
        try:
            self._results.put([self._hash(file) for file in files])
        except BaseException as error:  # for whoever waits for the result
            self._results.put(error)

    def _hash(self, file: Found) -> SeenSource:
        path = f"{self._above}{file.relpath}/{file.name}" if file.relpath else self._above + file.name
        try:
            if file.error is not None:
                raise SourceNotFoundError(f"can't read {path}: {file.error}")
            name = file.name.lower()
            probe = self._probe if name.endswith(self._probed) else None
            source = read_source(path) if name.endswith(EXTENSIONS) else hash_source(path, probe)
        except SourceNotFoundError as error:
            return SeenSource(file.relpath, file.name, Stat(0, 0, 0, 0), False, None, str(error))
        settled = is_settled(source.stat, self._now, ctime=self._ctime)
        return SeenSource(file.relpath, file.name, source.stat, settled, source.content)
