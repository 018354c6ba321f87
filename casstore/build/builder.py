"""The build: decode in threads, encode on the caller's thread, commit in groups.

What is committed stays: a stop, a crash or an error costs at most the group that wasn't committed yet and the batches
that were on their way.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Literal

from casstore.build.beside import Beside, find_beside, placed_alike
from casstore.build.cells import kind_of
from casstore.build.decode import Decoded, Source, SourceChanged, decode_row
from casstore.build.plan import Plan, PlanRow
from casstore.core.batch import Batch
from casstore.core.handle import Handle
from casstore.core.put import Outcome, PutItem
from casstore.core.results import NOTHING, Result, check_result
from casstore.errors import BuildInterrupted, CasstoreError, EncoderError, PictureError, SourceNotFoundError, UsageError
from casstore.identity import resolutions
from casstore.identity.arrays import shape_of
from casstore.identity.keys import Key
from casstore.identity.recipes import Encode
from casstore.index.failures import save_failures
from casstore.index.members import find_texts
from casstore.index.reasons import PICTURE_FAILURE
from casstore.index.runs import finish_run, start_run
from casstore.model import BuildReport, Failure, Item
from casstore.sources.inputs import Cell

DECODED_BYTES = 256 << 20  # bound of what the decode threads may have ready
OnError = Literal["skip", "raise"]
Progress = Callable[[int, int], None]
"""progress(rows done, rows to do)"""


@dataclass(frozen=True, slots=True)
class Options:
    """How to build; see `Store.build`."""

    batch_size: int = 8
    workers: int | None = None
    on_error: OnError = "skip"
    retry_failed: bool = False
    allow_nonfinite: bool = False
    progress: Progress | None = None

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise UsageError(f"batch_size counts items; {self.batch_size} is too few")
        if self.workers is not None and self.workers < 1:
            raise UsageError(f"workers counts decode threads; {self.workers} is too few")
        if self.on_error not in ("skip", "raise"):
            raise UsageError(f"on_error is 'skip' or 'raise', not {self.on_error!r}")

    @property
    def threads(self) -> int:
        """Number of decode threads."""
        return self.workers or min(8, os.cpu_count() or 1)


class LostError(Exception):
    """What a result was to be stored beside has gone or changed meanwhile."""


def build(handle: Handle, plan: Plan, encode: Encode, options: Options) -> BuildReport:
    """Encode the plan's misses and store them; see `Store.build`."""
    handle.check_writable()
    return _Build(handle, plan, encode, options).run()


@dataclass
class _Build:
    handle: Handle
    plan: Plan
    encode: Encode
    options: Options
    encoded: int = 0
    by_others: int = 0
    repeated: int = 0  # rows whose key was made earlier in this build, or needed no encode
    conflicts: int = 0
    waiting: dict[bytes, PlanRow] = field(default_factory=dict)  # for their commit, by key
    beside: dict[bytes, Beside] = field(default_factory=dict)
    done: int = 0
    failures: list[Failure] = field(default_factory=list)
    failed_keys: dict[bytes, Failure] = field(default_factory=dict)
    remembered: list[tuple[Key, str, str]] = field(default_factory=list)  # not committed yet
    notes: list[tuple[str, str]] = field(default_factory=list)
    stopped: bool = False

    def run(self) -> BuildReport:
        started = time.monotonic()
        misses = self.plan.misses
        self.total = len(misses)
        run_id = None
        if misses:
            with self.handle.index.write() as connection:
                run_id = start_run(connection, "build")
        self.bucket_method = resolutions.method_of(self.plan.resolution)
        self.batch = Batch(self.handle, run_id=run_id, on_commit=self._committed)
        same_key: list[PlanRow] = []
        error: BaseException | None = None
        with self._stoppable():
            try:
                todo, same_key = self._split(misses)
                self._encode_all(todo, same_key)
            except BaseException as raised:
                error = raised
                self.stopped = True
            # Whatever ended it: what was encoded is committed before anybody hears of the end.
            self._commit()
        self._settle(same_key)
        report = self._report(time.monotonic() - started)
        if run_id is not None:
            note = "interrupted" if self.stopped and error is None else None if error is None else repr(error)
            with self.handle.index.write() as connection:
                finish_run(connection, run_id, _counts(report), report.stored_bytes, note)
            self.handle.backup_if_due()
        if isinstance(error, KeyboardInterrupt) or (self.stopped and error is None):
            message = f"interrupted: {report.encoded} encoded and stored, {report.left} left; run it again to go on"
            raise BuildInterrupted(message, report) from error
        if error is not None:
            raise error
        return report

    # -- what is to be done --------------------------------------------------------------------------------------

    def _split(self, misses: Sequence[PlanRow]) -> tuple[list[PlanRow], list[PlanRow]]:
        """(rows to encode, rows whose key one of those has); rows that aren't to be tried are failed here."""
        todo: list[PlanRow] = []
        same_key: list[PlanRow] = []
        keys: set[bytes] = set()
        for planned in misses:
            assert planned.miss is not None
            self._note(planned)
            if planned.miss.reason == "source unavailable":
                self._fail(planned, SourceNotFoundError(planned.miss.detail))
            elif planned.miss.reason == "failed" and not self.options.retry_failed:
                refused = PictureError if planned.cells else UsageError
                self._fail(planned, refused(planned.miss.detail))
            elif planned.key is not None and planned.key.digest in keys:
                same_key.append(planned)
            else:
                if planned.key is not None:
                    keys.add(planned.key.digest)
                todo.append(planned)
        if self.failures and self.options.on_error == "raise":
            first = self.failures[0]
            raise PictureError(f"{first.path or first.sample}: {first.message}")
        # Equal sizes side by side, so that batches fill up; otherwise in the order of the rows.
        todo.sort(key=_size)
        return todo, same_key

    def _note(self, planned: PlanRow) -> None:
        """What is done to its pictures on the way in."""
        for cell in planned.cells.values() if planned.key is not None else ():
            if cell.content is not None and cell.content.note and kind_of(cell.content, cell.path) == "picture":
                self.notes.append((planned.row.sample, cell.content.note))

    def _texts(self, todo: Sequence[PlanRow]) -> dict[bytes, str]:
        """The texts that the rows don't carry, all at once."""
        contents = [cell.content for planned in todo for cell in planned.cells.values()]
        wanted = {c.digest for c in contents if c is not None and c.kind == "text" and c.text is None}
        if not wanted:
            return {}
        with self.handle.index.read() as connection:
            return find_texts(connection, list(wanted))

    def _encode_all(self, todo: list[PlanRow], same_key: list[PlanRow]) -> None:
        self.beside = find_beside(self.handle, self.plan, todo)
        todo = self._put_together(todo)
        self.source = Source(self.handle, self.plan.recipe, self.plan.resolution, self._texts(todo))
        batch: list[Decoded] = []
        late: set[bytes] = set()  # keys that the plan couldn't tell
        for each in self._decoded(todo):
            key = each.item.key
            if each.planned.key is None and key.digest in late:
                same_key.append(dataclasses.replace(each.planned, key=key))
                continue
            late.add(key.digest)
            decoded = self._asked(each)
            if batch and batch[0].alike != decoded.alike:
                self._encode(batch)
                batch = []
            batch.append(decoded)
            if len(batch) == (self.plan.recipe.batch or self.options.batch_size):
                self._encode(batch)
                batch = []
        if batch:
            self._encode(batch)

    def _put_together(self, todo: list[PlanRow]) -> list[PlanRow]:
        """Store what consists of nothing but stored parts; the rows that are left to encode."""
        left = []
        for planned in todo:
            beside = None if planned.key is None else self.beside.get(planned.key.digest)
            if beside is None or beside.asked:
                left.append(planned)
            else:
                assert planned.key is not None and planned.miss is not None
                self._add(planned, PutItem(planned.key, NOTHING, planned.miss.reason, None, beside.kept))
        return left

    def _decoded(self, todo: list[PlanRow]) -> Iterator[Decoded]:
        """Items in the order of `todo`, decoded ahead in threads; what can't be decoded is failed on the way."""
        ahead: deque[tuple[PlanRow, Future[Decoded]]] = deque()
        threads = self.options.threads
        depth = threads + 2 * self.options.batch_size
        rows = iter(todo)
        with ThreadPoolExecutor(threads, thread_name_prefix="casstore-decode") as pool:
            try:
                while not self.stopped:
                    held = sum(job.result().nbytes for _, job in ahead if job.done() and job.exception() is None)
                    while len(ahead) < depth and (not ahead or held < DECODED_BYTES):
                        planned = next(rows, None)
                        if planned is None:
                            break
                        job = pool.submit(decode_row, planned, self.source)
                        ahead.append((planned, job))
                    if not ahead:
                        return
                    planned, job = ahead.popleft()
                    try:
                        decoded = job.result()
                    except Exception as error:
                        self._fail(planned, error, raising=True)
                        continue
                    yield decoded
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    # -- one batch -----------------------------------------------------------------------------------------------

    def _required(self, beside: Beside | None, *, whole: bool) -> Collection[str]:
        if beside is None or whole:
            return (beside.whole if beside is not None else ()) or self.plan.names or ()
        return beside.required

    def _all_names(self, beside: Beside) -> frozenset[str] | None:
        """What an encoder is asked for that is to make all of a variant again."""
        return beside.whole or (None if self.plan.names is None else frozenset(self.plan.names))

    def _asked(self, decoded: Decoded) -> Decoded:
        """The item with the names that are wanted of it."""
        beside = self.beside.get(decoded.item.key.digest)
        if beside is not None:
            return decoded.asking(beside.asked)
        return decoded if self.plan.names is None else decoded.asking(frozenset(self.plan.names))

    def _encode(self, batch: list[Decoded], *, whole: bool = False) -> None:
        if self.stopped:
            return
        started = time.perf_counter()
        try:
            results = self._results([decoded.item for decoded in batch])
        except Exception as error:
            for decoded in batch:
                self._fail(decoded.planned, error, key=decoded.item.key)
            if self.options.on_error == "raise":
                names = ", ".join(decoded.item.sample for decoded in batch)
                if isinstance(error, CasstoreError):
                    raise type(error)(f"{names}: {error}") from error
                raise EncoderError(f"the encoder failed on {names}: {type(error).__name__}: {error}") from error
            return
        encode_us = round((time.perf_counter() - started) * 1e6 / len(batch))
        for decoded, result in zip(batch, results, strict=True):
            self._store(decoded, result, encode_us, whole=whole)

    def _results(self, items: list[Item]) -> Sequence[Mapping[str, Any]]:
        """What the encoder makes of a batch; where the recipe says so, of exactly as many items as it says."""
        number = self.plan.recipe.batch
        padded = items if number is None else [items[i % len(items)] for i in range(number)]
        results = self.encode(padded)
        if not isinstance(results, Sequence) or len(results) != len(padded):
            count = f"{len(results)} results" if isinstance(results, Sequence) else f"a {type(results).__name__}"
            raise EncoderError(f"the encoder returned {count} for {len(padded)} items; it returns one dict per item")
        return results[: len(items)]

    def _store(self, decoded: Decoded, result: Mapping[str, Any], encode_us: int, *, whole: bool = False) -> None:
        """Store what an encoder has made; `whole`: all of it, in place of what is stored."""
        key, miss = decoded.item.key, decoded.planned.miss
        assert miss is not None
        beside = self.beside.get(key.digest)
        whole = whole or (beside is not None and beside.stored <= beside.asked)
        if not all(file.unchanged() for file in decoded.unread):
            self._fail(decoded.planned, SourceChanged(), raising=True, key=key)
            return
        checked = None
        try:
            partly = beside is not None and not whole and isinstance(result, Mapping)
            if beside is None or not partly or placed_alike(self.plan.recipe, beside, result, decoded.values):
                checked = self._checked(decoded, result, beside, whole=whole)
        except Exception as error:  # whatever a strange tensor does costs its own item only
            self._fail(decoded.planned, error, raising=True, key=key)
            return
        if checked is None:
            assert beside is not None
            self._encode([decoded.asking(self._all_names(beside))], whole=True)
            return
        kept = None if beside is None else beside.replacing if whole else beside.kept
        self._add(decoded.planned, PutItem(key, checked, miss.reason, encode_us, kept, self.bucket_method))

    def _checked(self, decoded: Decoded, result: Mapping[str, Any], beside: Beside | None, *, whole: bool) -> Result:
        return check_result(
            decoded.item.key,
            result,
            decoded.values,
            allow_nonfinite=self.options.allow_nonfinite,
            required=self._required(beside, whole=whole),
            stored=beside.stored if beside is not None and not whole else (),
        )

    def _add(self, planned: PlanRow, item: PutItem) -> None:
        self.waiting[item.key.digest] = planned
        self.batch.add(item)

    def _committed(self, items: Sequence[PutItem], outcomes: Sequence[Outcome]) -> None:
        for item, outcome in zip(items, outcomes, strict=True):
            planned = self.waiting.pop(item.key.digest)
            if outcome == "lost":
                self._fail(planned, LostError(), key=item.key)
                continue
            if outcome != "stored":
                self.by_others += 1
                self.conflicts += outcome == "conflict"
            elif item.encode_us is None:
                self.repeated += 1  # put together from what was stored
            else:
                self.encoded += 1
            self._advance(1)

    def _commit(self) -> None:
        self.batch.flush()
        if self.remembered:
            with self.handle.index.write() as connection:
                save_failures(connection, self.remembered)
            self.remembered = []

    # -- counting ------------------------------------------------------------------------------------------------

    def _fail(self, planned: PlanRow, error: BaseException, *, raising: bool = False, key: Key | None = None) -> None:
        name, message = type(error).__name__, str(error) or type(error).__name__
        if isinstance(error, SourceChanged):
            name, message = "SourceChangedError", "it changed while building; nothing was stored. Build again"
        if isinstance(error, LostError):
            name, message = "LostError", "what it was to be stored beside has gone meanwhile. Build again"
        if key is not None and name == PICTURE_FAILURE:
            name = "EncoderError"  # whatever an encoder calls its errors, they are tried again
        failure = Failure(planned.row.sample, planned.path, name, message)
        self.failures.append(failure)
        self._advance(1)
        key = key or planned.key
        if key is not None:
            self.failed_keys[key.digest] = failure
        remember = (planned.miss is not None and planned.miss.reason != "failed") or self.options.retry_failed
        if key is not None and remember and not isinstance(error, (LostError, SourceChanged, SourceNotFoundError)):
            self.remembered.append((key, name, message))
        if raising and self.options.on_error == "raise":
            if isinstance(error, CasstoreError):
                raise type(error)(f"{planned.path or planned.row.sample}: {message}") from error
            if isinstance(error, SourceChanged):
                raise SourceNotFoundError(f"{planned.path or planned.row.sample}: {message}") from error
            raise EncoderError(f"{planned.path or planned.row.sample}: {name}: {message}") from error

    def _settle(self, same_key: list[PlanRow]) -> None:
        """A second row with the same key is a hit, or failed with the first."""
        if self.stopped:
            return
        for planned in same_key:
            assert planned.key is not None
            first = self.failed_keys.get(planned.key.digest)
            if first is not None:
                self.failures.append(Failure(planned.row.sample, planned.path, first.error, first.message))
            else:
                self.repeated += 1
            self._advance(1)

    def _advance(self, rows: int) -> None:
        self.done += rows
        if self.options.progress is not None:
            self.options.progress(self.done, self.total)

    def _report(self, seconds: float) -> BuildReport:
        hits = self.plan.hits + self.repeated
        failed = len(self.failures)
        refused = {failure.sample for failure in self.failures}
        return BuildReport(
            planned=self.plan.planned,
            hits=hits,
            encoded=self.encoded,
            by_others=self.by_others,
            failed=failed,
            left=self.plan.planned - hits - self.encoded - self.by_others - failed,
            reasons=self.plan.reasons,
            seconds=seconds,
            stored_bytes=self.batch.stored_bytes,
            failures=tuple(self.failures),
            notes=tuple(note for note in self.notes if note[0] not in refused),
            conflicts=self.conflicts,
        )

    @contextlib.contextmanager
    def _stoppable(self) -> Iterator[None]:
        """Let the first Ctrl-C end the build after the present batch, so that it never falls into a commit; a second
        one interrupts at once. Only on the main thread, where Python delivers it."""
        previous = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is not threading.main_thread() or previous is signal.SIG_IGN:
            yield
            return

        def stop(number: int, frame: FrameType | None) -> None:
            if self.stopped and callable(previous):
                previous(number, frame)
            self.stopped = True

        signal.signal(signal.SIGINT, stop)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, previous if previous is not None else signal.SIG_DFL)


def _size(planned: PlanRow) -> tuple[Any, ...]:
    """What has to be equal for items to go into one call, as far as a plan knows it."""
    resolution = planned.key.resolution if planned.key is not None else ""
    return resolution, *((role, _shape(cell)) for role, cell in planned.cells.items())


def _shape(cell: Cell) -> tuple[int, ...]:
    if cell.content is None:
        return ()
    return cell.content.upright or () if cell.content.array is None else shape_of(cell.content.array)


def _counts(report: BuildReport) -> dict[str, Any]:
    names = ("planned", "hits", "encoded", "by_others", "failed", "left")
    counts = {name: getattr(report, name) for name in names} | {"reasons": dict(report.reasons)}
    return counts | ({"conflicts": report.conflicts} if report.conflicts else {})
