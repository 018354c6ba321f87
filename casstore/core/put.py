"""Putting: a group of results becomes durable objects, then rows, in one commit.

Invariants (docs/design.md), which hold after each line:
- A final path appears only by a link of a complete, flushed file, or by a rename under the write lock.
- A row is committed only when the object's data and name are durable.
- A live row wins over whatever we staged; a file without a row is trusted by nobody.

The steps, numbered as in docs/design.md:
1 encode, digest, ask which objects are there    2 write temps    3 flush data    4 link    5 flush names
6 under the write lock, look at everything again    7 rows, COMMIT    8 unlink temps
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from casstore import fsio
from casstore.core.handle import Flusher, Handle
from casstore.core.publish import Temp, is_there, make_durable, place, remove, stage
from casstore.core.results import Result
from casstore.errors import StoreIOError
from casstore.identity.keys import Key
from casstore.index.objects import NewObject, ObjectRow, object_rows, save_objects
from casstore.index.variants import NewVariant, VariantRow, find_variants, save_variants
from casstore.model import Codec
from casstore.objects.tensors import Payload

GROUP_OBJECTS = 64
GROUP_BYTES = 32 << 20
GROUP_SECONDS = 1.0

Outcome = Literal["stored", "existing"]
"""stored: this put made it servable; existing: another writer had, and that is kept."""


@dataclass(frozen=True, slots=True)
class PutItem:
    """One result on its way into the store."""

    key: Key
    result: Result
    reason: str = "new"
    encode_us: int | None = None


@dataclass(frozen=True, slots=True)
class PutReport:
    """What became of a group: one outcome per item in order, and the bytes of objects new on disk."""

    outcomes: tuple[Outcome, ...]
    stored_bytes: int


class _StageMore(Exception):
    """An object that seemed to be there is gone by now: the group goes back to step 2 with it staged."""

    def __init__(self, digest: bytes) -> None:
        super().__init__(digest)
        self.digest = digest


def put_group(handle: Handle, items: Sequence[PutItem], run_id: int | None = None) -> PutReport:
    """Store results in one commit; when it returns they are as durable as the store promises.

    Args:
        handle: the open store.
        items: results; where two have the same key the first is kept.
        run_id: the run they belong to.

    Raises:
        NoSpaceError, StorePermissionError, StoreIOError, StoreBusyError: nothing of the group is stored.
    """
    if not items:
        return PutReport((), 0)
    group = Group(handle, items, run_id)
    group.stage()
    return group.commit()


class Group:
    """A group of results on its way: `stage` and then `commit`, which may run in another thread.

    Args: see `put_group`.
    """

    def __init__(self, handle: Handle, items: Sequence[PutItem], run_id: int | None = None) -> None:
        handle.check_writable()
        self._handle = handle
        self._items = items
        self._run_id = run_id
        default = handle.default_codec()
        self._payloads: dict[bytes, tuple[Payload, Codec]] = {}
        for item in items:
            payload = item.result.payload
            self._payloads.setdefault(payload.digest, (payload, item.key.recipe.codec or default))
        present = _present(handle, [payload for payload, _ in self._payloads.values()])
        self._missing = [digest for digest in self._payloads if digest not in present]
        self._temps: dict[bytes, Temp] = {}
        self._flusher: Flusher | None = None

    def stage(self) -> None:
        """Step 2: write what is missing into tmp/."""
        self._flusher = self._handle.open_for_flush()
        try:
            for digest in self._missing:
                self._temps[digest] = stage(self._handle, *self._payloads[digest])
        except BaseException:
            self.abandon()
            raise

    def commit(self) -> PutReport:
        """Steps 3 to 8; back to step 2 where what was staged isn't enough."""
        flush_failures = 0
        while True:
            try:
                if self._flusher is None:
                    self.stage()
                return self._commit()
            except _StageMore as more:
                self._missing.append(more.digest)
            except StoreIOError:
                # A failed flush is never retried: the kernel may have dropped the data. Written again under new names
                # it has a second chance; then it is the disk.
                flush_failures += 1
                if flush_failures > 1:
                    raise
            finally:
                self.abandon()

    def abandon(self) -> None:
        """Step 8: remove the temps."""
        remove(self._temps.values())
        self._temps = {}
        flusher, self._flusher = self._flusher, None
        if flusher is not None:
            flusher.close()

    def _commit(self) -> PutReport:
        """Steps 3 to 5; then 6 and 7: decide everything anew under the write lock, and write the rows."""
        handle, flusher, items = self._handle, self._flusher, self._items
        assert flusher is not None
        make_durable(handle, flusher, self._temps.values())
        outcomes: list[Outcome] = []
        new: list[NewVariant] = []
        replaced: list[int] = []
        needed: set[bytes] = set()
        with handle.index.write() as connection:
            stored = find_variants(connection, [item.key for item in items])
            rows = object_rows(connection, list(self._payloads))
            taken: set[bytes] = set()
            for item in items:
                row = stored.get(item.key.digest)
                digest = item.result.payload.digest
                if item.key.digest in taken or (row is not None and _can_be_served(handle, row)):
                    outcomes.append("existing")
                    continue
                taken.add(item.key.digest)
                outcomes.append("stored")
                needed.add(digest)
                if row is not None and row.sound and [part.object_digest for part in row.parts] == [digest]:
                    continue  # the same object heals, and with it everybody who refers to it
                if row is not None:
                    replaced.append(row.id)
                result = item.result
                new.append(NewVariant(item.key, digest, result.names, result.values, item.reason, item.encode_us))
            made = [self._publish(digest, rows.get(digest)) for digest in sorted(needed)]
            fresh = [row for row in made if row is not None]
            save_objects(connection, fresh)
            save_variants(connection, new, replaced, self._run_id)
        return PutReport(tuple(outcomes), sum(row.stored.nbytes for row in fresh))

    def _publish(self, digest: bytes, row: ObjectRow | None) -> NewObject | None:
        """Make sure, under the write lock, that an object's final path holds what its row will say; None: it does."""
        if row is not None and is_there(self._handle, row, self._payloads[digest][0]):
            return None
        temp = self._temps.get(digest)
        if temp is None:
            raise _StageMore(digest)
        assert self._flusher is not None
        place(self._handle, self._flusher, temp, row)
        return temp.row


def _present(handle: Handle, payloads: Sequence[Payload]) -> set[bytes]:
    """Step 1: which objects need no staging."""
    with handle.index.glance() as connection:
        rows = object_rows(connection, [payload.digest for payload in payloads])
    return {p.digest for p in payloads if p.digest in rows and is_there(handle, rows[p.digest], p)}


def _can_be_served(handle: Handle, row: VariantRow) -> bool:
    return (
        not row.damaged
        and bool(row.parts)
        and all(
            not part.condemned
            and fsio.size_of(handle.directory.object(part.object_digest, part.codec)) == part.stored_bytes
            for part in row.parts
        )
    )
