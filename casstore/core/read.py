"""Reading by key: one SELECT, then files whose checksums are compared. Never other bytes, never part of a tensor."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Sequence
from typing import Any

from casstore import fsio
from casstore.core.handle import Handle
from casstore.errors import (
    CorruptObjectError,
    MissError,
    NoSpaceError,
    StorePermissionError,
    StoreTooNewError,
    UnsafePlaceError,
)
from casstore.identity.keys import Key
from casstore.index.objects import mark_damaged, object_rows
from casstore.index.reasons import explain_misses
from casstore.index.variants import VariantRow, find_variants
from casstore.model import Hit, Miss
from casstore.objects import container
from casstore.objects.payload import Layout
from casstore.objects.planes import Bytes
from casstore.objects.tensors import to_numpy, to_torch


def lookup(handle: Handle, keys: Sequence[Key]) -> list[Hit | Miss]:
    """What the index says of these keys, in order; opens no object."""
    return [
        _hit(key, row) if isinstance(row, VariantRow) else row
        for key, row in zip(keys, _rows(handle, keys), strict=True)
    ]


def load(handle: Handle, key: Key, *, as_numpy: bool = False, again: bool = True) -> dict[str, Any]:
    """The tensors and values under a key, as the encoder returned them.

    Args:
        handle: the open store.
        key: what they are stored under.
        as_numpy: arrays instead of CPU torch tensors; torch isn't imported then.
        again: look once more if what was read was damaged, but has been healed by the time that is to be noted.

    Raises:
        MissError: nothing is stored, or what is stored is damaged (which is noted, so that the next build heals it).
    """
    row = _rows(handle, [key])[0]
    if isinstance(row, Miss):
        raise _miss_error(key, row)
    found: dict[str, Any] = {}
    for part in row.parts:
        try:
            layout, payload = read_object(handle, part.object_digest, part.stored_bytes, part.layout)
        except CorruptObjectError as error:
            if _note_damage(handle, part.object_digest) is False and again:
                return load(handle, key, as_numpy=as_numpy, again=False)
            miss = Miss("damaged", str(error))
            raise _miss_error(key, miss) from error
        found |= to_numpy(payload, layout) if as_numpy else to_torch(payload, layout)
    return found | _values(row)


def read_object(handle: Handle, digest: bytes, stored_bytes: int, expected: str) -> tuple[Layout, Bytes]:
    """The layout and payload of an object, checked against its checksums (not against BLAKE3).

    A mismatch is read twice before it is believed; a file that has gone is looked up once more, since gc or a heal may
    have moved it.

    Args:
        handle: the open store.
        digest: which object.
        stored_bytes: the size of its file, by the index.
        expected: its layout, by the index, as JSON.

    Raises:
        CorruptObjectError: the file is missing, has another size, or its bytes are wrong.
    """
    path = handle.directory.object(digest, container.SUFFIX)
    for attempt in (1, 2):
        try:
            data = _read_file(path)
            if len(data) != stored_bytes:
                raise CorruptObjectError(f"it has {len(data)} bytes, not {stored_bytes}")
            layout, payload, _ = container.decode(data, digest, Layout.parse(expected).payload_nbytes)
            if layout.text != expected:
                raise CorruptObjectError("its layout isn't the one in the index")
            return layout, payload
        except CorruptObjectError as error:
            if attempt == 2:
                raise CorruptObjectError(f"{path}: {error}") from error
            with handle.index.read() as connection:
                row = object_rows(connection, [digest]).get(digest)
            stored_bytes = row.stored_bytes if row is not None else stored_bytes
    raise AssertionError("unreachable")


def _read_file(path: str) -> bytes:
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW), "rb", buffering=0) as stream:
            return stream.readall()
    except FileNotFoundError:
        raise CorruptObjectError("the file is gone") from None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENOTDIR):
            raise CorruptObjectError("there is no file under its name, but something else") from None
        raise fsio.typed(error, "read", path) from error


def _rows(handle: Handle, keys: Sequence[Key]) -> list[VariantRow | Miss]:
    handle.check_open()
    with handle.index.glance() as connection:
        stored = find_variants(connection, keys)
    missing = [key for key in keys if key.digest not in stored]
    misses: dict[bytes, Miss] = {}
    if missing:
        # The reasons are read from the same state as the absence: a key that was stored in between is no miss.
        with handle.index.read() as transaction:
            stored |= find_variants(transaction, missing)
            misses = explain_misses(transaction, [key for key in missing if key.digest not in stored])
    found: list[VariantRow | Miss] = []
    for key in keys:
        row = stored.get(key.digest)
        if row is None:
            found.append(misses[key.digest])
        elif not row.sound:
            found.append(Miss("damaged", "the index row doesn't match its checksum"))
        elif row.damaged or not row.parts:
            names = ", ".join(part.object_digest.hex() for part in row.parts if part.damaged)
            found.append(Miss("damaged", f"object {names} is marked as damaged"))
        else:
            found.append(row)
    return found


def _hit(key: Key, row: VariantRow) -> Hit:
    layout = {name: info for part in row.parts for name, info in Layout.parse(part.layout).tensors.items()}
    return Hit(key, layout, _values(row), tuple(part.object_digest.hex() for part in row.parts))


def _values(row: VariantRow) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(row.values) if row.values is not None else {}
    return values


def _miss_error(key: Key, miss: Miss) -> MissError:
    return MissError(f"nothing to serve for {key}: {miss}", miss)


def _note_damage(handle: Handle, digest: bytes) -> bool | None:
    """Mark an object as damaged, unless it was healed or swept meanwhile.

    Returns:
        True if it is marked now, False if it is sound now, None if we may not write.
    """
    try:
        with handle.index.write() as connection:
            row = object_rows(connection, [digest]).get(digest)
            if row is None:
                return False
            try:
                read_object(handle, digest, row.stored_bytes, row.layout)
            except CorruptObjectError:
                mark_damaged(connection, [digest])
                return True
            return False
    except (NoSpaceError, StorePermissionError, StoreTooNewError, UnsafePlaceError):
        return None  # a reader that can't write still reports the miss
