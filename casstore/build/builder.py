"""The build: claim, decode in threads, encode, commit in groups.

What is committed stays: a stop, a crash or an error costs at most the groups that weren't committed yet and the batches
that were on their way. Any number of builders may have the same plan; claims keep them off each other's items.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections import deque
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from typing import Any

from casstore.build.ahead import decode_ahead
from casstore.build.beside import Beside, find_beside, placed_alike
from casstore.build.claims import Claimed, Owner
from casstore.build.decode import SOURCE_CHANGED, Decoded, Source, SourceChanged, decode_row
from casstore.build.encoding import Encoded, Encoding
from casstore.build.options import Options
from casstore.build.order import from_my_place, size_of
from casstore.build.plan import Plan, PlanRow
from casstore.build.progress import phase
from casstore.build.signals import Signals
from casstore.build.space import check_space
from casstore.build.tally import Tally, counts_of
from casstore.core.batch import Batch
from casstore.core.handle import Handle
from casstore.core.put import Outcome, PutItem
from casstore.core.results import NOTHING, Result, check_result
from casstore.errors import (
    BuildInterrupted,
    BuildStopped,
    CasstoreError,
    EncoderError,
    PictureError,
    SourceNotFoundError,
    UsageError,
)
from casstore.identity import resolutions
from casstore.identity.keys import Key
from casstore.identity.recipes import Encode
from casstore.index.bulk import now_ms
from casstore.index.members import find_texts
from casstore.index.reasons import PICTURE_FAILURE
from casstore.index.runs import finish_run, start_run
from casstore.index.variants import Identity
from casstore.index.variants import identity as identity_of
from casstore.model import BuildReport

CLAIM_SECONDS = 1.0  # of encoding, that a builder claims at once
CLAIM_MOST = 256
PEEK = 500  # keys that are looked at while others are at them
PAUSE = 0.05  # seconds between two such looks


class LostError(Exception):
    """What a result was to be stored beside has gone or changed meanwhile."""


def build(handle: Handle, plan: Plan, encode: Encode, options: Options) -> BuildReport:
    """Encode the plan's misses and store them; see `Store.build`."""
    handle.check_writable()
    with phase(options.progress, "encode", len(plan.missing)):
        return _Build(handle, plan, encode, options).run()


class _Build:
    def __init__(self, handle: Handle, plan: Plan, encode: Encode, options: Options) -> None:
        self.handle, self.plan, self.options = handle, plan, options
        self.tally = Tally(plan, options.progress)
        self.signals = Signals(catching=options.catch_signals)
        self.ended = False  # by an error
        self.error: BaseException | None = None  # that is raised once what is encoded by now is stored
        self.waiting: dict[bytes, PlanRow] = {}  # for their commit, by key
        self.beside: dict[bytes, Beside] = {}
        self.same_key: list[tuple[PlanRow, bytes]] = []  # rows whose key another row has
        self.decoded_keys: set[bytes] = set()
        self.theirs: list[int] = []  # triples that other builders are at
        self.encode_us = 0.0  # per item, lately
        self.checked_space = False
        self.bucket_method = resolutions.method_of(plan.resolution)
        self.reads_path = getattr(encode, "reads", None) == "path"
        self.encoding = Encoding(
            encode,
            plan.recipe,
            batch_size=options.batch_size,
            batch_pixels=options.batch_pixels,
            timeout=options.item_timeout,
            stopped=self.stopped,
            before=options.before_encode,
        )

    def stopped(self) -> bool:
        """Whether the build is to end."""
        try:
            return self._told_to_end() or self.options.stop()
        except Exception as error:  # what is at work in a pool is stored all the same
            self._end_by(error)
            return True

    def _told_to_end(self) -> bool:
        return self.signals.came is not None or self.ended or self.tally.error is not None

    def _end_by(self, error: BaseException, cause: BaseException | None = None) -> None:
        """Have the build end as after a stop, and then raise this."""
        self.ended = True
        if self.error is None:
            error.__cause__ = cause
            self.error = error

    def run(self) -> BuildReport:
        started, began = time.monotonic(), now_ms()
        run_id = None
        if self.plan.missing:
            with self.handle.index.write() as connection:
                run_id = start_run(connection, "build")
        self.batch = Batch(self.handle, run_id=run_id, on_commit=self._committed)
        self.owner = Owner(self.handle, "build", began) if self.plan.missing else None
        error: BaseException | None = None
        stopped = False
        with self.signals:
            try:
                self._run(self._split())
                stopped = self.stopped()
            except BaseException as raised:
                error, stopped, self.ended = raised, True, True
            try:
                # Whatever ended it: what was encoded is committed before anybody hears of the end.
                self.batch.flush()
            except BaseException as raised:
                error, stopped, self.ended = raised, True, True
            finally:
                if self.owner is not None:
                    self.owner.close()
        if not stopped:
            for planned, key in self.same_key:
                self.tally.repeat(planned, key)
        error = error or self.error or self.tally.error
        report = self.tally.report(time.monotonic() - started, self.batch.stored_bytes)
        if run_id is not None:
            self._finish(run_id, report, error, stopped=stopped)
        if error is not None and not isinstance(error, KeyboardInterrupt):
            raise error
        if stopped:
            told = f"{report.encoded} encoded and stored, {report.left} left; run it again to go on"
            if error is not None or self.signals.came == signal.SIGINT:
                raise BuildInterrupted(f"interrupted: {told}", report) from error
            raise BuildStopped(f"stopped: {told}", report)
        return report

    def _finish(self, run_id: int, report: BuildReport, error: BaseException | None, *, stopped: bool) -> None:
        """Note how it ended; where that can't be noted, an error that came before is the one to hear of."""
        note = "interrupted" if stopped and error is None else None if error is None else repr(error)
        try:
            with self.handle.index.write() as connection:
                finish_run(connection, run_id, counts_of(report), report.stored_bytes, note)
            self.handle.backup_if_due()
        except CasstoreError:
            if error is None:
                raise

    # -- what is to be done --------------------------------------------------------------------------------------

    def _split(self) -> list[int]:
        """Numbers of the triples to encode; what isn't to be tried is failed."""
        todo: list[tuple[tuple[Any, ...], int]] = []
        asked, keys = self.plan.asked, set[Identity]()
        for number, miss in sorted(self.plan.missing.items()):
            brief = asked.brief(number)
            if brief is not None and brief[0] not in keys and miss.reason not in ("failed", "source unavailable"):
                keys.add(brief[0])  # as below, without an object for the row, since this is done for all at once
                todo.append(((asked.resolution(number), (asked.roles[0], brief[1] or ())), number))
                continue
            planned = self.plan.row(number)
            identity = None if planned.key is None else identity_of(planned.key)
            self.tally.note(planned)
            if miss.reason == "source unavailable":
                self._fail(planned, SourceNotFoundError(miss.detail))
            elif miss.reason == "failed" and not self.options.retry_failed:
                refused = PictureError if planned.cells else UsageError
                self._fail(planned, refused(miss.detail))
            elif planned.key is not None and identity in keys:
                self.same_key.append((planned, planned.key.digest))
            else:
                if identity is not None:
                    keys.add(identity)
                todo.append((size_of(planned), number))
        if self.tally.failures and self.options.on_error == "raise":
            first = self.tally.failures[0]
            raise PictureError(f"{first.path or first.sample}: {first.message}")
        # Equal sizes side by side, so that batches fill up; otherwise in the order of the rows.
        todo.sort()
        return from_my_place([number for _, number in todo])

    def _run(self, todo: list[int]) -> None:
        if not todo:
            return
        check_space(self.handle, self.plan.recipe, len(todo))
        while todo and not self.stopped():
            self._encode_all(todo)
            self.batch.flush()
            todo, self.theirs = self.theirs, []
            self._await_others(todo)

    def _is_related(self, planned: PlanRow) -> bool:
        """Whether something may be stored beside it."""
        assert planned.miss is not None
        damaged = planned.miss.reason == "damaged" and self.plan.names is not None
        return bool(planned.lacking) or damaged or bool(self.plan.recipe.depends)

    def _encode_all(self, todo: list[int]) -> None:
        executor = self.options.executor
        assert self.owner is not None
        # Closed at once: whoever keeps the error keeps the frames that it went through, and their threads.
        with contextlib.closing(self._decoded(self._claimed(deque(todo)))) as items:
            with contextlib.closing(
                self.encoding.run(items)
                if executor is None
                else self.encoding.run_in(executor, self.options.encode_threads, items, self.owner.within)
            ) as encoded:
                for each in encoded:
                    self._take(each)

    # -- claims --------------------------------------------------------------------------------------------------

    def _claimed(self, todo: deque[int]) -> Iterator[PlanRow]:
        """The rows that are ours to encode, claimed as they are asked for; what others did is counted on the way."""
        assert self.owner is not None
        while todo and not self.stopped():
            rows = [self.plan.row(todo.popleft()) for _ in range(min(len(todo), self._claim_size(len(todo))))]
            keyed = {row.key.digest: row for row in rows if row.key is not None}
            claimed = self.owner.claim(
                [row.key for row in keyed.values() if row.key is not None],
                frozenset(self.plan.names or ()),
            )
            mine = [row for row in rows if row.key is None or row.key.digest in claimed.mine]
            self._settle(keyed, claimed)
            # Now that nobody else is at them; what was stored since the plan is there too.
            self.beside |= find_beside(self.handle, self.plan, [row for row in mine if self._is_related(row)])
            self.texts.update(self._texts(mine))
            for row in mine:
                if not self._put_together(row):
                    yield row

    def _claim_size(self, left: int) -> int:
        """What is encoded in a second, in whole batches; less towards the end, so that all builders end together."""
        batch = self.plan.recipe.batch or self.options.batch_size
        most = int(CLAIM_SECONDS * 1e6 / self.encode_us) if self.encode_us else 2 * batch
        return max(batch, min(CLAIM_MOST, most, left // 4) // batch * batch)

    def _settle(self, keyed: Mapping[bytes, PlanRow], claimed: Claimed) -> None:
        if claimed.stored:
            self.tally.by_others += len(claimed.stored)
            self.tally.advance(len(claimed.stored))
        for digest, (name, message) in claimed.failed.items():
            self.tally.fail(keyed[digest], name, message, digest)
        self.theirs += sorted(keyed[digest].number for digest in claimed.theirs)

    def _await_others(self, todo: Sequence[int]) -> None:
        """Wait while living builders are at what is left; then it is stored, or free again."""
        keys = [key.digest for number in todo[:PEEK] if (key := self.plan.asked.key(number)) is not None]
        assert self.owner is not None
        while keys and not self.stopped() and self.owner.waits_for(keys):
            time.sleep(PAUSE)

    def _put_together(self, planned: PlanRow) -> bool:
        """Store what consists of nothing but stored parts; whether it was that."""
        beside = None if planned.key is None else self.beside.get(planned.key.digest)
        if beside is None or beside.asked:
            return False
        assert planned.key is not None and planned.miss is not None
        self._add(planned, PutItem(planned.key, NOTHING, planned.miss.reason, None, beside.kept, self.bucket_method))
        return True

    def _texts(self, rows: Sequence[PlanRow]) -> dict[bytes, str]:
        """The texts that the rows don't carry, all at once."""
        contents = [cell.content for planned in rows for cell in planned.cells.values()]
        wanted = {c.digest for c in contents if c is not None and c.kind == "text" and c.text is None}
        if not wanted:
            return {}
        with self.handle.index.read() as connection:
            return find_texts(connection, list(wanted))

    # -- decoding ------------------------------------------------------------------------------------------------

    def _decoded(self, rows: Iterator[PlanRow]) -> Generator[Decoded, None, None]:
        """Items in the order of the rows, decoded ahead in threads; what can't be decoded is failed on the way."""
        self.texts: dict[bytes, str] = {}
        source = Source(self.handle, self.plan.recipe, self.plan.resolution, self.texts, self.reads_path)
        decoded = decode_ahead(
            rows,
            lambda planned: decode_row(planned, source),
            threads=self.options.threads,
            depth=self.options.threads + 2 * (self.plan.recipe.batch or self.options.batch_size),
            timeout=self.options.item_timeout,
            stopped=self.stopped,
            failed=lambda planned, error: self._fail(planned, error, raising=True),
        )
        return self._once(decoded)

    def _once(self, items: Iterator[Decoded]) -> Generator[Decoded, None, None]:
        """Each key once: of some files only the decoder tells the size, and with it the key."""
        for decoded in items:
            key = decoded.item.key.digest
            if decoded.planned.key is None and key in self.decoded_keys:
                self.same_key.append((decoded.planned, key))
            else:
                self.decoded_keys.add(key)
                yield self._asked(decoded)

    def _asked(self, decoded: Decoded) -> Decoded:
        """The item with the names that are wanted of it."""
        beside = self.beside.get(decoded.item.key.digest)
        if beside is not None:
            return decoded.asking(beside.asked)
        return decoded if self.plan.names is None else decoded.asking(frozenset(self.plan.names))

    # -- results -------------------------------------------------------------------------------------------------

    def _take(self, encoded: Encoded, *, whole: bool = False) -> None:
        """Store what the encoder has made of an item; `whole`: all of it, in place of what is stored."""
        decoded, result = encoded.decoded, encoded.result
        key, miss = decoded.item.key, decoded.planned.miss
        assert miss is not None
        if encoded.error is not None:
            self._fail(decoded.planned, encoded.error, key=key)
            if self.options.on_error == "raise":
                self._end_by(_encoder_error(decoded.item.sample, encoded.error), encoded.error)
            return
        self.encode_us = encoded.microseconds if not self.encode_us else (self.encode_us + encoded.microseconds) / 2
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
            self._take(self.encoding.again(decoded.asking(self._all_names(beside))), whole=True)
            return
        kept = None if beside is None else beside.replacing if whole else beside.kept
        item = PutItem(key, checked, miss.reason, encoded.microseconds, kept, self.bucket_method)
        self._add(decoded.planned, item)

    def _checked(self, decoded: Decoded, result: Mapping[str, Any], beside: Beside | None, *, whole: bool) -> Result:
        return check_result(
            decoded.item.key,
            result,
            decoded.values,
            allow_nonfinite=self.options.allow_nonfinite,
            required=self._required(beside, whole=whole),
            stored=beside.stored if beside is not None and not whole else (),
        )

    def _required(self, beside: Beside | None, *, whole: bool) -> Collection[str]:
        if beside is None or whole:
            return (beside.whole if beside is not None else ()) or self.plan.names or ()
        return beside.required

    def _all_names(self, beside: Beside) -> frozenset[str] | None:
        """What an encoder is asked for that is to make all of a variant again."""
        return beside.whole or (None if self.plan.names is None else frozenset(self.plan.names))

    def _add(self, planned: PlanRow, item: PutItem) -> None:
        self.waiting[item.key.digest] = planned
        self.batch.add(item)

    def _committed(self, items: Sequence[PutItem], outcomes: Sequence[Outcome]) -> None:
        tally = self.tally
        for item, outcome in zip(items, outcomes, strict=True):
            planned = self.waiting.pop(item.key.digest)
            if self.owner is not None:
                self.owner.release(item.key.digest)  # the commit has done so only where it wrote a row
            if outcome == "lost":
                self._fail(planned, LostError(), key=item.key)
                continue
            if outcome != "stored":
                tally.by_others += 1
                tally.conflicts += outcome == "conflict"
            elif item.encode_us is None:
                tally.repeated += 1  # put together from what was stored
            else:
                tally.encoded += 1
            tally.advance()
        if not self.checked_space and tally.encoded and not self._told_to_end():
            self.checked_space = True
            left = len(self.plan.missing) - tally.encoded - tally.by_others - len(tally.failures)
            try:
                check_space(self.handle, self.plan.recipe, left)
            except CasstoreError as error:
                self._end_by(error)

    def _fail(self, planned: PlanRow, error: BaseException, *, raising: bool = False, key: Key | None = None) -> None:
        name, message = type(error).__name__, str(error) or type(error).__name__
        if isinstance(error, SourceChanged):
            name, message = SOURCE_CHANGED, "it changed while building; nothing was stored. Build again"
        if isinstance(error, LostError):
            name, message = "LostError", "what it was to be stored beside has gone meanwhile. Build again"
        if key is not None and name == PICTURE_FAILURE:
            name = "EncoderError"  # whatever an encoder calls its errors, they are tried again
        key = key or planned.key
        self.tally.fail(planned, name, message, None if key is None else key.digest)
        if key is not None and self.owner is not None:
            known = planned.miss is not None and planned.miss.reason == "failed" and not self.options.retry_failed
            if known or isinstance(error, (LostError, SourceChanged, SourceNotFoundError)):
                self.owner.release(key.digest)
            else:
                self.owner.remember(key, name, message)
        if raising and self.options.on_error == "raise":
            place = planned.path or planned.row.sample
            if isinstance(error, CasstoreError):
                raised: CasstoreError = type(error)(f"{place}: {message}")
            elif isinstance(error, SourceChanged):
                raised = SourceNotFoundError(f"{place}: {message}")
            else:
                raised = EncoderError(f"{place}: {name}: {message}")
            # What the same call of the encoder made of others is stored all the same, and what is at work in a pool.
            self._end_by(raised, error)


def _encoder_error(sample: str, error: BaseException) -> CasstoreError:
    if isinstance(error, CasstoreError):
        return type(error)(f"{sample}: {error}")
    return EncoderError(f"the encoder failed on {sample}: {type(error).__name__}: {error}")
