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

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import xxhash

from casstore import fsio
from casstore.core.handle import Flusher, Handle
from casstore.core.results import Result
from casstore.errors import CasstoreError, StoreIOError
from casstore.identity.keys import Key
from casstore.index.objects import NewObject, ObjectRow, object_rows, save_objects
from casstore.index.variants import NewVariant, VariantRow, find_variants, save_variants
from casstore.objects import container
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


@dataclass(frozen=True, slots=True)
class _Temp:
    """A staged object: its file in tmp/ and what its row is to say."""

    path: str
    row: NewObject


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
    handle.check_writable()
    payloads = {item.result.payload.digest: item.result.payload for item in items}
    present = _present(handle, payloads)
    missing = [digest for digest in payloads if digest not in present]
    flush_failures = 0
    while True:
        temps: dict[bytes, _Temp] = {}
        try:
            with handle.open_for_flush() as flusher:
                _stage(handle, [payloads[digest] for digest in missing], temps)
                flusher.flush([temp.path for temp in temps.values()])
                _link(handle, temps)
                flusher.flush(sorted({handle.directory.shard(digest) for digest in temps}))
                return _commit(handle, flusher, items, temps, run_id)
        except _StageMore as more:
            missing.append(more.digest)
        except StoreIOError:
            # A failed flush is never retried: the kernel may have dropped the data. Written again under new names it
            # has a second chance; then it is the disk.
            flush_failures += 1
            if flush_failures > 1:
                raise
        finally:
            _unlink(temps)


def _present(handle: Handle, payloads: Mapping[bytes, Payload]) -> set[bytes]:
    """Step 1: which objects need no staging, because a live row and a file of its size are there."""
    with handle.index.glance() as connection:
        rows = object_rows(connection, list(payloads))
    return {digest for digest, row in rows.items() if _is_there(handle, row, payloads[digest])}


def _is_there(handle: Handle, row: ObjectRow, payload: Payload) -> bool:
    path = handle.directory.object(row.digest, container.SUFFIX)
    return row.live and row.layout == payload.layout.text and fsio.size_of(path) == row.stored_bytes


def _stage(handle: Handle, payloads: Sequence[Payload], temps: dict[bytes, _Temp]) -> None:
    """Step 2: write each object completely, under a name in tmp/ that is ours."""
    for payload in payloads:
        chunks = container.encode(payload.layout, payload.data, payload.digest)
        hasher = xxhash.xxh3_64()
        for chunk in chunks:
            hasher.update(chunk)
        path = handle.new_temp()
        stored = fsio.write_new(path, chunks, fsio.OBJECT_MODE)
        row = NewObject(payload.digest, payload.layout.text, len(payload.data), stored, hasher.intdigest())
        temps[payload.digest] = _Temp(path, row)


def _link(handle: Handle, temps: dict[bytes, _Temp]) -> None:
    """Step 4: give each its final name, unless that is taken. Without hard links step 6 renames."""
    for digest, temp in temps.items():
        if not fsio.link(temp.path, handle.directory.object(digest, container.SUFFIX)):
            return


def _commit(
    handle: Handle, flusher: Flusher, items: Sequence[PutItem], temps: dict[bytes, _Temp], run_id: int | None
) -> PutReport:
    """Steps 6 and 7: decide everything anew under the write lock, then write the rows."""
    outcomes: list[Outcome] = []
    new: list[NewVariant] = []
    replaced: list[int] = []
    needed: dict[bytes, Payload] = {}
    with handle.index.write() as connection:
        stored = find_variants(connection, [item.key for item in items])
        rows = object_rows(connection, [item.result.payload.digest for item in items])
        taken: set[bytes] = set()
        for item in items:
            row = stored.get(item.key.digest)
            digest = item.result.payload.digest
            if item.key.digest in taken or (row is not None and _can_be_served(handle, row)):
                outcomes.append("existing")
                continue
            taken.add(item.key.digest)
            outcomes.append("stored")
            needed[digest] = item.result.payload
            if row is not None and row.sound and [part.object_digest for part in row.parts] == [digest]:
                continue  # the same object heals, and with it everybody who refers to it
            if row is not None:
                replaced.append(row.id)
            result = item.result
            new.append(NewVariant(item.key, digest, result.names, result.values, item.reason, item.encode_us))
        made = _publish(handle, flusher, needed, rows, temps)
        save_objects(connection, made)
        save_variants(connection, new, replaced, run_id)
    return PutReport(tuple(outcomes), sum(o.stored_bytes for o in made))


def _can_be_served(handle: Handle, row: VariantRow) -> bool:
    return (
        not row.damaged
        and bool(row.parts)
        and all(
            not part.condemned
            and fsio.size_of(handle.directory.object(part.object_digest, container.SUFFIX)) == part.stored_bytes
            for part in row.parts
        )
    )


def _publish(
    handle: Handle,
    flusher: Flusher,
    payloads: Mapping[bytes, Payload],
    rows: dict[bytes, ObjectRow],
    temps: dict[bytes, _Temp],
) -> list[NewObject]:
    """Make sure, under the write lock, that each object's final path holds what its row will say."""
    made = []
    for digest, payload in payloads.items():
        row = rows.get(digest)
        if row is not None and _is_there(handle, row, payload):
            continue
        temp = temps.get(digest)
        if temp is None:
            raise _StageMore(digest)
        final = handle.directory.object(digest, container.SUFFIX)
        if not fsio.same_file(final, temp.path):
            if row is not None and not row.condemned:
                quarantine(handle, digest)  # damaged, whether somebody has noticed or not
            fsio.rename(temp.path, final)
            flusher.flush_now(handle.directory.shard(digest))
        made.append(temp.row)
    return made


def quarantine(handle: Handle, digest: bytes) -> None:
    """Keep a damaged file under another name; its final path may then be replaced."""
    final = handle.directory.object(digest, container.SUFFIX)
    if os.path.lexists(final):
        kept = os.path.join(handle.directory.quarantine, f"{digest.hex()}-{time.time_ns()}{container.SUFFIX}")
        if fsio.size_of(final) is None or not fsio.link(final, kept):  # no file at all, or no hard links
            fsio.rename(final, kept)


def _unlink(temps: dict[bytes, _Temp]) -> None:
    """Step 8. What can't be removed now is gc's."""
    for temp in temps.values():
        with contextlib.suppress(CasstoreError):
            fsio.unlink(temp.path)
