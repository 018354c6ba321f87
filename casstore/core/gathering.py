"""The two threads behind a batch: one stages results as they come, one commits the group before.

No locks: the one who puts appends, the stager reads as far as it sees, and calls are handed on through a queue that an
interrupt can't leave half done. So a Ctrl-C anywhere in a put costs nothing that was put before.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue

from casstore.core.handle import Handle
from casstore.core.put import Group, OnConflict, PutItem, PutReport

RUN_OBJECTS = 8  # are staged together: one SELECT says which of their objects are there
RUN_BYTES = 1 << 20


class Gathering:
    """Results that become a group: gathered by the one who puts, and staged meanwhile by the stager.

    Attributes:
        items: what has gathered, in order.
        nbytes: of their tensors.
        since: when the first one came (`time.monotonic`).
        error: of staging; nothing of it is in tmp/ then.
    """

    def __init__(self, handle: Handle, run_id: int | None, on_conflict: OnConflict) -> None:
        self._open = partial(Group, handle, run_id, on_conflict)
        self.items: list[PutItem] = []
        self.nbytes = 0
        self.since = 0.0
        self.error: BaseException | None = None
        self._group: Group | None = None
        self._staged = 0
        self._called = (0, 0)

    def add(self, items: Sequence[PutItem]) -> None:
        """Gather more."""
        if not self.items:
            self.since = time.monotonic()
        self.items += items
        self.nbytes += sum(item.result.nbytes for item in items)

    @property
    def due(self) -> bool:
        """Whether there is a run to stage that the stager wasn't called for yet."""
        objects, nbytes = self._called
        return len(self.items) - objects >= RUN_OBJECTS or self.nbytes - nbytes >= RUN_BYTES

    def call(self, stager: Stager) -> None:
        """Have staged what has gathered by now."""
        self._called = len(self.items), self.nbytes
        stager.do(self._stage)

    def give_up(self) -> None:
        """Remove what is in tmp/; of the stager, like what follows. A commit would write it again."""
        if self._group is not None:
            self._group.abandon()

    def _stage(self) -> None:
        run = self.items[self._staged :]
        if not run or self.error is not None:
            return
        try:
            if self._group is None:
                self._group = self._open()
            self._group.stage(run)
            self._staged += len(run)
        except BaseException as error:
            self.error = error

    def commit(self) -> PutReport:
        """Commit it, once all of it is staged."""
        if self.error is not None:
            raise self.error
        assert self._group is not None and self._staged == len(self.items)
        return self._group.commit()


class Stager(threading.Thread):
    """Does what it is called for, one after the other: encodes and writes results, so that their encoder needn't wait.

    A daemon: a batch that nobody ends doesn't keep its process from ending.
    """

    def __init__(self) -> None:
        super().__init__(name="casstore-stage", daemon=True)
        self._calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self.ended = False
        self.start()

    def do(self, call: Callable[[], object]) -> None:
        """Do this after all that came before; it raises nothing."""
        self._calls.put(call)

    def end(self, call: Callable[[], object]) -> None:
        """Do this as the last."""
        self.ended = True
        self._calls.put(call)
        self._calls.put(None)

    def run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call  # with the group that it holds: it may be the last reference


class Commit(threading.Thread):
    """The commit of a group, on its way. The disk is waited for here, so that the encoder needn't.

    No daemon: what is as far as this is committed before the process ends.
    """

    def __init__(self, gathering: Gathering) -> None:
        super().__init__(name="casstore-commit")
        self._gathering = gathering
        self._staged = threading.Event()
        self.items = tuple(gathering.items)
        self.report: PutReport | None = None
        self.error: BaseException | None = None

    def begin(self, stager: Stager) -> None:
        """Have the rest staged, then commit; nothing happens if it has begun."""
        if self.ident is None:
            self._gathering.call(stager)
            stager.do(self._staged.set)
            self.start()

    def run(self) -> None:
        """Commit when all of it is staged; in the thread."""
        self._staged.wait()
        try:
            self.report = self._gathering.commit()
        except BaseException as error:
            self.error = error
