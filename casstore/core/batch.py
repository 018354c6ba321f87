"""Gathering results into groups, so that many share the cost of one commit."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from casstore.core.handle import Handle
from casstore.core.put import GROUP_BYTES, GROUP_OBJECTS, GROUP_SECONDS, Outcome, PutItem, put_group
from casstore.core.results import Result, check_result
from casstore.errors import UsageError
from casstore.identity.keys import Key


class Batch:
    """Puts in groups: committed when 64 results, 32 MiB or one second have gathered, and at the end.

    A put isn't durable before its group is committed, which `flush` does at once. Leaving the `with` block commits,
    also when an exception ends it: what was computed isn't thrown away.

    Args:
        handle: the open store.
        run_id: the run that the results belong to.
        on_commit: called after each commit with the outcomes of its results.
    """

    def __init__(
        self,
        handle: Handle,
        *,
        run_id: int | None = None,
        on_commit: Callable[[Sequence[Outcome]], None] | None = None,
    ) -> None:
        self._handle = handle
        self._run_id = run_id
        self._on_commit = on_commit
        self._items: list[PutItem] = []
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
        self.add(key, check_result(key, tensors, values, allow_nonfinite=allow_nonfinite))

    def add(self, key: Key, result: Result, *, reason: str = "new", encode_us: int | None = None) -> None:
        """Add a checked result."""
        if self._ended:
            raise UsageError("this batch has ended with its `with` block; begin another one for further puts")
        if not self._items:
            self._handle.check_writable()  # now, not when much has been computed
            self._since = time.monotonic()
        self._items.append(PutItem(key, result, reason, encode_us))
        self._bytes += len(result.payload.data)
        late = time.monotonic() - self._since >= GROUP_SECONDS
        if len(self._items) >= GROUP_OBJECTS or self._bytes >= GROUP_BYTES or late:
            self.flush()

    def flush(self) -> None:
        """Commit what has gathered."""
        if not self._items:
            return
        report = put_group(self._handle, self._items, self._run_id)
        self._items, self._bytes = [], 0
        self.stored_bytes += report.stored_bytes
        if self._on_commit is not None:
            self._on_commit(report.outcomes)

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
