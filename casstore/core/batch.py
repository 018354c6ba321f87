"""Gathering results into groups, so that many share the cost of one commit."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, get_args

from casstore.core.gathering import Commit, Gathering, Stager
from casstore.core.handle import Handle
from casstore.core.put import GROUP_BYTES, GROUP_OBJECTS, GROUP_SECONDS, OnConflict, Outcome, PutItem
from casstore.core.results import check_result
from casstore.errors import ConflictError, UsageError
from casstore.identity.keys import Key

_log = logging.getLogger(__name__)


class Batch:
    """Puts in groups: committed when 64 results, 32 MiB or one second have gathered, and at the end.

    A put only checks and copies. What has gathered is encoded and written in the background, and the group before is
    committed meanwhile, so a put is neither durable nor seen by `get` before that has ended; `flush` waits for it. A
    kill costs two groups at most. Leaving the `with` block commits, also when an exception ends it: what was computed
    isn't thrown away.

    Args:
        handle: the open store.
        run_id: the run that the results belong to.
        on_commit: called after each commit with its results and their outcomes.
        on_conflict: what becomes of another result under a key that is served; see `Store.batch`.
    """

    _stager: Stager | None = None

    def __init__(
        self,
        handle: Handle,
        *,
        run_id: int | None = None,
        on_commit: Callable[[Sequence[PutItem], Sequence[Outcome]], None] | None = None,
        on_conflict: OnConflict = "keep",
    ) -> None:
        if on_conflict not in get_args(OnConflict):
            raise UsageError(f"on_conflict is one of {', '.join(map(repr, get_args(OnConflict)))}, not {on_conflict!r}")
        self._handle = handle
        self._run_id = run_id
        self._on_commit = on_commit
        self._on_conflict = on_conflict
        self._pid = os.getpid()
        self._gathering = self._new_gathering()
        self._pending: Commit | None = None
        self._ended = False
        self.stored_bytes = 0
        """Bytes of objects that this batch added on disk."""

    def put(
        self,
        key: Key,
        tensors: Mapping[str, Any],
        values: Mapping[str, Any] | None = None,
        *,
        allow_nonfinite: bool = False,
    ) -> None:
        """Add a result; where another writer has stored one under the key, that is kept.

        Args:
            key: what to store it under.
            tensors: {name: tensor or array, or JSON value}; copied.
            values: further JSON values.
            allow_nonfinite: NaN and infinity are meant.

        Raises:
            EncoderError: it can't be stored. Nothing else is affected.
            StoreReadOnlyError, UnsafePlaceError, StoreTooNewError
        """
        self.add(PutItem(key, check_result(key, tensors, values, allow_nonfinite=allow_nonfinite)))

    def add(self, item: PutItem) -> None:
        """Add a checked result. Where an error is raised it is kept all the same, with the others; see `flush`."""
        if self._ended:
            raise UsageError("this batch has ended with its `with` block; begin another one for further puts")
        self._leave_parent()
        gathering = self._gathering
        if not gathering.items:
            self._handle.check_writable()  # now, not when much has been computed
        gathering.add([item])
        late = time.monotonic() - gathering.since >= GROUP_SECONDS
        if len(gathering.items) >= GROUP_OBJECTS or gathering.nbytes >= GROUP_BYTES or late or gathering.error:
            self._begin_commit()
        elif gathering.due:
            gathering.call(self._ready_stager())

    def flush(self) -> None:
        """Commit what has gathered; when it returns everything that was put is stored.

        Raises:
            NoSpaceError, StorePermissionError, StoreIOError, StoreBusyError: what isn't stored is kept, and another
                flush tries again.
        """
        self._leave_parent()
        try:
            if self._gathering.items:
                self._begin_commit()
            self._await_commit()
        except ConflictError:
            self.flush()  # it tells of a group that is stored; the one behind it hasn't been yet
            raise
        self._end_stager()

    # What follows changes the batch only when it has waited, so that an interrupt of the waiting leaves it as it was.

    def _begin_commit(self) -> None:
        """Have what has gathered committed, once the group before is; it is staged meanwhile."""
        gathering, stager = self._gathering, self._ready_stager()
        gathering.call(stager)
        self._await_commit()
        if gathering.error is not None:
            self._take_back()
            raise gathering.error
        commit = Commit(gathering)
        self._pending, self._gathering = commit, self._new_gathering()
        commit.begin(stager)

    def _await_commit(self) -> None:
        pending = self._pending
        if pending is None:
            return
        pending.begin(self._ready_stager())  # an interrupt may have come between
        pending.join()
        if pending.error is not None:
            self._take_back(pending.items)
            raise pending.error
        self._pending = None
        assert pending.report is not None
        self.stored_bytes += pending.report.stored_bytes
        if self._on_commit is not None:
            self._on_commit(pending.items, pending.report.outcomes)
        conflicts = [
            item.key
            for item, outcome in zip(pending.items, pending.report.outcomes, strict=True)
            if outcome == "conflict"
        ]
        if conflicts:
            self._tell(conflicts)

    def _tell(self, conflicts: Sequence[Key]) -> None:
        """Say that other results are stored: an error if that was asked for, else a warning for each recipe."""
        if self._on_conflict == "raise":
            more = f" and {len(conflicts) - 1} more" if len(conflicts) > 1 else ""
            raise ConflictError(
                f"another result is stored for {conflicts[0]}{more}; it was kept. Does the recipe say everything that "
                "the result depends on? Store the new one with on_conflict='replace', or under another recipe"
            )
        for recipe in {key.recipe for key in conflicts} - self._handle.told_conflicts:
            self._handle.told_conflicts.add(recipe)
            _log.warning(
                "%s: other tensors are stored under the same key than were made now; the first ones are kept. "
                "Is the encoder deterministic, and does the recipe say everything that it depends on?",
                recipe.name,
            )

    def _take_back(self, items: Sequence[PutItem] = ()) -> None:
        """After an error: `items`, and what has gathered, are as if they had just been put; a later flush tries again.
        Nothing goes on behind the back of whoever hears of the error, and nothing is left in tmp/."""
        self._end_stager()
        gathering = self._new_gathering()
        gathering.add([*items, *self._gathering.items])
        self._pending, self._gathering = None, gathering

    def _new_gathering(self) -> Gathering:
        return Gathering(self._handle, self._run_id, self._on_conflict)

    def _ready_stager(self) -> Stager:
        if self._stager is not None and self._stager.ended:
            self._end_stager()  # the waiting for its end was interrupted
        if self._stager is None:
            self._stager = Stager()
        return self._stager

    def _end_stager(self) -> None:
        if self._stager is not None:
            if not self._stager.ended:
                self._stager.end(self._gathering.give_up)
            self._stager.join()
            self._stager = None

    def _leave_parent(self) -> None:
        """In a forked child, what was put before the fork is the parent's to commit."""
        if self._pid != os.getpid():
            self._pid, self._gathering, self._pending, self._stager = os.getpid(), self._new_gathering(), None, None

    @property
    def ended(self) -> bool:
        """Whether its `with` block is over."""
        return self._ended

    def __enter__(self) -> Batch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = True
        self.flush()

    def __del__(self) -> None:
        if self._stager is not None and self._pid == os.getpid():
            self._stager.end(self._gathering.give_up)  # nobody will ever commit it
