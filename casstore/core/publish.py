"""Objects on their way to their final paths: staged in tmp/, made durable, linked, and looked at again under the lock.

The steps are numbered as in docs/design.md; `put` and `repack` go through them, each with its own rows in between.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import xxhash

from casstore import fsio
from casstore.core.handle import Flusher, Handle
from casstore.errors import CasstoreError
from casstore.identity.digests import signed
from casstore.index.objects import NewObject, ObjectRow
from casstore.model import Codec, Stored, suffix
from casstore.objects.stored import encode
from casstore.objects.tensors import Payload


@dataclass(frozen=True, slots=True)
class Temp:
    """A staged object: its file in tmp/ and what its row is to say."""

    path: str
    row: NewObject


def stage(handle: Handle, payload: Payload, codec: Codec) -> Temp:
    """Step 2: write an object completely, under a name in tmp/ that is ours."""
    chunks = encode(codec, payload.layout, payload.data, payload.digest)
    hasher = xxhash.xxh3_64()
    for chunk in chunks:
        hasher.update(chunk)
    path = handle.new_temp()
    nbytes = fsio.write_new(path, chunks, fsio.OBJECT_MODE)
    stored = Stored(payload.digest, codec, payload.layout.text, nbytes, signed(hasher.intdigest()))
    return Temp(path, NewObject(stored, len(payload.data)))


def make_durable(handle: Handle, flusher: Flusher, temps: Collection[Temp]) -> None:
    """Steps 3 to 5: the data, then the final names; a name that is taken, or hard links that aren't there, are for
    step 6."""
    flusher.flush([temp.path for temp in temps])
    for temp in temps:
        if not fsio.link(temp.path, handle.directory.object(temp.row.stored.digest, temp.row.stored.codec)):
            break
    flusher.flush(sorted({handle.directory.shard(temp.row.stored.digest) for temp in temps}))


def is_there(handle: Handle, row: ObjectRow, payload: Payload) -> bool:
    """Whether a payload needs no file: a live row for its layout, and a file of the row's size."""
    path = handle.directory.object(row.digest, row.codec)
    return row.live and row.layout == payload.layout.text and fsio.size_of(path) == row.stored_bytes


def place(handle: Handle, flusher: Flusher, temp: Temp, row: ObjectRow | None) -> None:
    """Step 6, under the write lock: see to it that the final path is our file.

    Args:
        handle: the open store.
        flusher: of the group.
        temp: our file.
        row: what the index says of the object now. Unless it was condemned, its file is kept in quarantine: it is
            damaged, whether somebody has noticed or not.
    """
    digest, codec = temp.row.stored.digest, temp.row.stored.codec
    final = handle.directory.object(digest, codec)
    damaged = row is not None and not row.condemned
    if row is not None and damaged and row.codec != codec:
        quarantine(handle, digest, row.codec, stays=False)  # nothing takes its place
    if not fsio.same_file(final, temp.path):
        if damaged:
            quarantine(handle, digest, codec)
        fsio.rename(temp.path, final)
        flusher.flush_now(handle.directory.shard(digest))


def quarantine(handle: Handle, digest: bytes, codec: str, *, stays: bool = True) -> None:
    """Keep a damaged file under another name; its final path may then be replaced, or (not `stays`) is free."""
    final = handle.directory.object(digest, codec)
    if fsio.look(final) is not None:
        kept = os.path.join(handle.directory.quarantine, f"{digest.hex()}-{time.time_ns()}{suffix(codec)}")
        if not stays or fsio.size_of(final) is None or not fsio.link(final, kept):  # or no file, or no hard links
            fsio.rename(final, kept)


def remove(temps: Iterable[Temp]) -> None:
    """Step 8. What can't be removed now is gc's."""
    for temp in temps:
        with contextlib.suppress(CasstoreError):
            fsio.unlink(temp.path)
