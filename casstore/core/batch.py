"""Gathering results into groups, so that many share the cost of one commit."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, get_args

from casstore.core.handle import Handle
from casstore.core.put import (
    GROUP_BYTES,
    GROUP_OBJECTS,
    GROUP_SECONDS,
    Group,
    OnConflict,
    Outcome,
    PutItem,
    PutReport,
)
from casstore.core.results import check_result
from casstore.errors import ConflictError, UsageError
from casstore.identity.keys import Key

_log = logging.getLogger(__name__)


class Batch:
    """Puts in groups: committed when 64 results, 32 MiB or one second have gathered, and at the end.

    A group is committed in the background while the next one gathers, so a put is neither durable nor seen by `get`
    before that has ended; `flush` waits for it. A kill costs two groups at most. Leaving the `with` block commits,
    also when an exception ends it: what was computed isn't thrown away.

    Args:
        handle: the open store.
        run_id: the run that the results belong to.
        on_commit: called after each commit with its results and their outcomes.
        on_conflict: what becomes of another result under a key that is served; see `Store.batch`.
    """

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
        self._items: list[PutItem] = []
        self._pending: _Commit | None = None
        self._bytes = 0
        self._since = 0.0
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
        """Add a checked result."""
        if self._ended:
            raise UsageError("this batch has ended with its `with` block; begin another one for further puts")
        self._leave_parent()
        if not self._items:
            self._handle.check_writable()  # now, not when much has been computed
            self._since = time.monotonic()
        self._items.append(item)
        self._bytes += item.result.nbytes
        late = time.monotonic() - self._since >= GROUP_SECONDS
        if len(self._items) >= GROUP_OBJECTS or self._bytes >= GROUP_BYTES or late:
            self._begin_commit()

    def flush(self) -> None:
        """Commit what has gathered; when it returns everything that was put is stored.

        Raises:
            NoSpaceError, StorePermissionError, StoreIOError, StoreBusyError: what isn't stored is kept, and another
                flush tries again.
        """
        self._leave_parent()
        if self._items:
            self._begin_commit()
        self._await_commit()

    def _begin_commit(self) -> None:
        """Write what has gathered into tmp/ while the group before is being committed, then have it committed too."""
        items = tuple(self._items)
        try:
            group = Group(self._handle, items, self._run_id, self._on_conflict)
            group.stage()
        except BaseException:
            self._await_commit()  # nothing goes on behind the back of whoever hears of the error
            raise
        try:
            self._await_commit()
        except BaseException:
            group.abandon()
            raise
        self._pending = _Commit(group, items)
        self._items, self._bytes = [], 0

    def _await_commit(self) -> None:
        pending = self._pending
        if pending is None:
            return
        pending.join()
        self._pending = None
        if pending.error is not None:
            self._items[:0] = pending.items  # a later flush tries again
            self._bytes += sum(item.result.nbytes for item in pending.items)
            raise pending.error
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

    def _leave_parent(self) -> None:
        """In a forked child, what was put before the fork is the parent's to commit."""
        if self._pid != os.getpid():
            self._pid, self._items, self._bytes, self._pending = os.getpid(), [], 0, None

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


class _Commit(threading.Thread):
    """The commit of a staged group, on its way. The disk is waited for here, so that the encoder needn't."""

    def __init__(self, group: Group, items: Sequence[PutItem]) -> None:
        super().__init__(name="casstore-commit")
        self._group = group
        self.items = items
        self.report: PutReport | None = None
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.report = self._group.commit()
        except BaseException as error:
            self.error = error
