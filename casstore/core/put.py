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

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from casstore import fsio
from casstore.core.handle import Flusher, Handle
from casstore.core.publish import Temp, is_there, make_durable, place, remove, stage
from casstore.core.results import Result, ResultPart
from casstore.errors import StoreIOError
from casstore.identity.canonical import exact
from casstore.identity.keys import Key
from casstore.index.objects import NewObject, ObjectRow, object_rows, save_objects
from casstore.index.variants import (
    NewPart,
    NewVariant,
    PartRow,
    Stamp,
    VariantRow,
    find_variants,
    save_variants,
    stamp_names,
)
from casstore.model import Codec
from casstore.objects.payload import Layout
from casstore.objects.tensors import Payload

GROUP_OBJECTS = 64
GROUP_BYTES = 32 << 20
GROUP_SECONDS = 1.0

Outcome = Literal["stored", "existing", "conflict", "lost"]
"""stored: this put made it servable; existing: another writer had, and that is kept; conflict: likewise, but it is
something else; lost: what it was to go beside has gone or changed meanwhile, so nothing was stored."""
OnConflict = Literal["keep", "replace", "raise"]
"""What becomes of another result under a key that is served: the first is kept; it is replaced; it is kept, and the
commit raises when the rest is stored."""


Seen = tuple[tuple[bytes, ...], str | None]


def seen_of(row: VariantRow) -> Seen:
    """What tells whether a row is still what it was: its objects and values."""
    return _objects_of(row), row.values


@dataclass(frozen=True, slots=True)
class Kept:
    """What is stored already and stays, beside a new result.

    Attributes:
        parts: of the key's own row, or of a variant of the same primary; none: the result replaces the key's own row.
        values: that come with them.
        seen: what the key's own row said when this was decided, see `seen_of`; None: it had none.
    """

    parts: tuple[PartRow, ...]
    values: Mapping[str, Any]
    seen: Seen | None


@dataclass(frozen=True, slots=True)
class PutItem:
    """One result on its way into the store."""

    key: Key
    result: Result
    reason: str = "new"
    encode_us: int | None = None
    kept: Kept | None = None
    bucket_method: str | None = None


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


def put_group(
    handle: Handle, items: Sequence[PutItem], run_id: int | None = None, on_conflict: OnConflict = "keep"
) -> PutReport:
    """Store results in one commit; when it returns they are as durable as the store promises.

    Args:
        handle: the open store.
        items: results; where two have the same key the first is kept.
        run_id: the run they belong to.
        on_conflict: see `OnConflict`; to raise is the caller's.

    Raises:
        NoSpaceError, StorePermissionError, StoreIOError, StoreBusyError: nothing of the group is stored.
    """
    if not items:
        return PutReport((), 0)
    group = Group(handle, run_id, on_conflict)
    group.stage(items)
    return group.commit()


class Group:
    """A group of results on its way: `stage` once or more often, then `commit`, each by whatever thread.

    Args: see `put_group`.
    """

    def __init__(self, handle: Handle, run_id: int | None = None, on_conflict: OnConflict = "keep") -> None:
        handle.check_writable()
        self._handle = handle
        self._items: list[PutItem] = []
        self._run_id = run_id
        self._on_conflict = on_conflict
        self._default = handle.default_codec()
        self._payloads: dict[bytes, tuple[Payload, Codec]] = {}
        self._missing: list[bytes] = []
        self._temps: dict[bytes, Temp] = {}
        self._flusher: Flusher | None = None

    def stage(self, items: Sequence[PutItem]) -> None:
        """Steps 1 and 2 for more results; after an error nothing of the group is in tmp/."""
        new: dict[bytes, tuple[Payload, Codec]] = {}
        for item in items:
            for part in item.result.parts:
                digest = part.payload.digest
                if digest not in self._payloads:
                    new.setdefault(digest, (part.payload, item.key.recipe.codec or self._default))
        try:
            present = _present(self._handle, [payload for payload, _ in new.values()])
            self._items += items
            self._payloads |= new
            self._missing += [digest for digest in new if digest not in present]
            self._write()
        except BaseException:
            self.abandon()
            raise

    def _write(self) -> None:
        """Step 2: write what is missing into tmp/, unless it is there."""
        if self._flusher is None:
            self._flusher = self._handle.open_for_flush()
        for digest in self._missing:
            if digest not in self._temps:
                self._temps[digest] = stage(self._handle, *self._payloads[digest])

    def commit(self) -> PutReport:
        """Steps 3 to 8; back to step 2 where what was staged isn't enough."""
        flush_failures = 0
        while True:
            try:
                if self._flusher is None:
                    self._write()
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
            kept = {part.object_digest for item in items if item.kept for part in item.kept.parts}
            rows = object_rows(connection, [*self._payloads, *kept])
            there = {digest for digest in kept if _is_whole(handle, rows.get(digest))}
            names = stamp_names(connection, [p.stamp_digest for item in items for p in _taken_over(item)])
            taken: set[bytes] = set()
            for item in items:
                row = stored.get(item.key.digest)
                outcome = "existing" if item.key.digest in taken else self._decide(item, row, there)
                outcomes.append(outcome)
                if outcome != "stored":
                    continue
                taken.add(item.key.digest)
                needed.update(digests := [part.payload.digest for part in item.result.parts])
                heals = item.kept is None and self._on_conflict != "replace"
                same = row is not None and row.sound and (heals or row.values == item.result.values)
                if same and row is not None and [part.object_digest for part in row.parts] == digests:
                    continue  # the same objects heal, and with them everybody who refers to them
                extends = row is not None and item.kept is not None and bool(item.kept.parts)
                if row is not None and not extends:
                    replaced.append(row.id)
                new.append(_new_variant(item, row.id if row is not None and extends else None, names))
            made = [self._publish(digest, rows.get(digest)) for digest in sorted(needed)]
            fresh = [row for row in made if row is not None]
            save_objects(connection, fresh)
            save_variants(connection, new, replaced, self._run_id)
        return PutReport(tuple(outcomes), sum(row.stored.nbytes for row in fresh))

    def _decide(self, item: PutItem, row: VariantRow | None, there: set[bytes]) -> Outcome:
        """What becomes of an item, under the write lock, given the row that its key has by now."""
        kept, served = item.kept, row is not None and can_be_served(self._handle, row)
        as_seen = kept is not None and row is not None and kept.seen == seen_of(row)
        if served and not as_seen:
            assert row is not None
            if kept is not None:  # another writer was first; but perhaps with other names
                return "existing" if names_of(item.result) <= names_of(row) else "lost"
            if not _differs(item.result, row):
                return "existing"
            return "stored" if self._on_conflict == "replace" else "conflict"
        if kept is None or (as_seen and not kept.parts):
            return "stored"
        whole = all(part.object_digest in there for part in kept.parts)
        return "stored" if whole and (as_seen or kept.seen is None or not kept.parts) else "lost"

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


def _is_whole(handle: Handle, row: ObjectRow | None) -> bool:
    if row is None or not row.live:
        return False
    return fsio.size_of(handle.directory.object(row.digest, row.codec)) == row.stored_bytes


def _objects_of(row: VariantRow) -> tuple[bytes, ...]:
    return tuple(part.object_digest for part in row.parts)


def _taken_over(item: PutItem) -> tuple[PartRow, ...]:
    """The parts that come from another variant."""
    return item.kept.parts if item.kept is not None and item.kept.seen is None else ()


def _differs(result: Result, row: VariantRow) -> bool:
    """Whether a result is something else than what is stored: other tensors, or another value of a name."""
    told = json.loads(row.values or "{}")
    values = json.loads(result.values or "{}")
    objects = {part.payload.digest for part in result.parts}
    return not objects <= set(_objects_of(row)) or any(told[name] != values[name] for name in told.keys() & values)


def names_of(what: Result | VariantRow) -> set[str]:
    """Of tensors and values."""
    layouts = [p.payload.layout if isinstance(p, ResultPart) else Layout.parse(p.layout) for p in what.parts]
    return {name for layout in layouts for name in layout.tensors} | set(json.loads(what.values or "{}"))


def _new_variant(item: PutItem, id_: int | None, names: Mapping[bytes, str]) -> NewVariant:
    """The variant of an item; with `id_`: what the row with this id becomes."""
    kept, result = item.kept, item.result
    parts: list[NewPart] = []
    if kept is not None and kept.seen is None:
        taken = [(part, Stamp(names[part.stamp_digest], "taken over", item.bucket_method)) for part in kept.parts]
        parts += [NewPart(part.object_digest, stamp, part.inputs_digest) for part, stamp in taken]
    elif kept is not None:
        parts += [NewPart(part.object_digest, part.stamp_digest, part.inputs_digest) for part in kept.parts]
    method = "added" if parts else None
    for part in result.parts:
        parts.append(NewPart(part.payload.digest, Stamp(part.names, method, item.bucket_method), part.inputs))
    values = result.values
    if kept is not None and kept.values:
        values = exact({**kept.values, **json.loads(result.values or "{}")}, "value")
    return NewVariant(item.key, tuple(parts), values, item.reason, item.encode_us, id_)


def can_be_served(handle: Handle, row: VariantRow) -> bool:
    """Whether all that a row refers to is there, as far as the index and the sizes of files tell."""
    return (
        not row.damaged
        and bool(row.parts)
        and all(
            not part.condemned
            and fsio.size_of(handle.directory.object(part.object_digest, part.codec)) == part.stored_bytes
            for part in row.parts
        )
    )
