"""Reading by key: one SELECT, then files whose checksums are compared. Never other bytes, never part of a tensor."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from casstore.core.forms import other_form
from casstore.core.handle import Handle
from casstore.core.pool import pool_map
from casstore.errors import (
    CorruptObjectError,
    MissError,
    NoSpaceError,
    StorePermissionError,
    StoreTooNewError,
    UnsafePlaceError,
    UsageError,
)
from casstore.identity.keys import Key
from casstore.index.objects import mark_damaged, object_rows, save_form
from casstore.index.reasons import explain_misses
from casstore.index.variants import PartRow, VariantRow, find_variants
from casstore.model import CODECS, Hit, Miss, Stored, TensorInfo
from casstore.objects.container import Mapper
from casstore.objects.files import map_file, read_into, read_unlisted
from casstore.objects.payload import Layout, nbytes
from casstore.objects.planes import Bytes
from casstore.objects.table import FRAME_LIMIT
from casstore.objects.tensors import memory_of, new_tensor, tensor_over


def lookup(handle: Handle, keys: Sequence[Key]) -> list[Hit | Miss]:
    """What the index says of these keys, in order; opens no object."""
    return [
        _hit(key, row) if isinstance(row, VariantRow) else row
        for key, row in zip(keys, find_rows(handle, keys), strict=True)
    ]


def layout_of(handle: Handle, digest: bytes) -> Mapping[str, TensorInfo] | None:
    """{tensor name: dtype and shape} of an object, from the index; None: it has no such object."""
    handle.check_open()
    with handle.index.glance() as connection:
        row = object_rows(connection, [digest]).get(digest)
    if row is None:
        return None
    if not row.sound:
        raise CorruptObjectError(f"object {digest.hex()}: its layout in the index doesn't match its checksum")
    return dict(Layout.parse(row.layout).tensors)


def load(
    handle: Handle,
    key: Key,
    *,
    names: Sequence[str] | None = None,
    out: Mapping[str, Any] | None = None,
    as_numpy: bool = False,
    mmap: bool = False,
    again: bool = True,
) -> dict[str, Any]:
    """The tensors and values under a key, as the encoder returned them.

    Args:
        handle: the open store.
        key: what they are stored under.
        names: of the tensors and values that are wanted, besides those in `out`; None: all. Other tensors aren't read.
        out: {name: tensor or array} to read into, instead of a new one.
        as_numpy: arrays instead of CPU torch tensors; torch isn't imported then.
        mmap: map the file instead of reading it; the object has to be stored raw.
        again: look once more if what was read was damaged, but has been healed by the time that is to be noted.

    Raises:
        MissError: nothing is stored, or what is stored is damaged (which is noted, so that the next build heals it).
        UsageError: no such name, an `out` that doesn't fit, or an object that can't be mapped.
    """
    if mmap and out:
        raise UsageError("a mapping is memory of its own, so it can't be read into `out`; leave one of them out")
    row = find_rows(handle, [key])[0]
    if isinstance(row, Miss):
        raise miss_error(key, row)
    values = values_of(row)
    check_names(key, row, values, names or (), out or ())
    found: dict[str, Any] = {}
    for part in row.parts:
        try:
            found |= _load_part(handle, part, names, out or {}, as_numpy=as_numpy, mmap=mmap)
        except CorruptObjectError as error:
            miss = damaged(handle, part.object_digest, error)
            if miss is None and again:
                return load(handle, key, names=names, out=out, as_numpy=as_numpy, mmap=mmap, again=False)
            raise miss_error(key, miss or Miss("damaged", str(error))) from error
    return found | {name: value for name, value in values.items() if names is None or name in names}


def _load_part(
    handle: Handle, part: PartRow, names: Sequence[str] | None, out: Mapping[str, Any], *, as_numpy: bool, mmap: bool
) -> dict[str, Any]:
    layout = Layout.parse(part.layout)
    wanted = [name for name in layout.tensors if names is None or name in names or name in out]
    if mmap and wanted:
        payload = _mapped(handle, part.stored)
        head = len(layout.header)
        spans = {name: layout.spans[name] for name in wanted}
        return {
            name: tensor_over(name, layout.tensors[name], payload[head + begin : head + end], as_numpy=as_numpy)
            for name, (begin, end) in spans.items()
        }
    found: dict[str, Any] = {}
    memory: dict[str, Bytes] = {}
    for name in wanted:
        info = layout.tensors[name]
        if name in out:
            found[name] = out[name]
            memory[name] = fitting_memory(name, out[name], info)
        else:
            found[name], memory[name] = new_tensor(name, info, as_numpy=as_numpy)
    if wanted:
        large = any(len(data) > FRAME_LIMIT for data in memory.values())
        read_part(handle, part, layout, memory, pool_map if large else map)
    return found


def read_part(handle: Handle, part: PartRow, layout: Layout, out: Mapping[str, Bytes], map_: Mapper = map) -> None:
    """Read some tensors of an object into given memory, checked against its checksums (not against BLAKE3).

    A mismatch is read twice before it is believed; before that the object is looked up once more, since gc, a heal or a
    repack may have moved it.

    Args:
        handle: the open store.
        part: what the index says of it.
        layout: its layout, parsed.
        out: {name: uint8 [bytes of that tensor]}.
        map_: for large tensors, see `read_into`.

    Raises:
        CorruptObjectError: the file is missing, has another size, or its bytes are wrong.
    """
    stored = part.stored
    path = handle.directory.object(stored.digest, stored.codec)
    try:
        return read_into(path, stored, layout, out, map_)
    except CorruptObjectError:
        pass
    with handle.index.read() as connection:
        row = object_rows(connection, [stored.digest]).get(stored.digest)
    if row is not None:
        stored = row.stored
        path = handle.directory.object(stored.digest, stored.codec)
    try:
        return read_into(path, stored, layout, out, map_)
    except CorruptObjectError as error:
        for codec in CODECS:
            other = handle.directory.object(stored.digest, codec)
            if other != path:
                try:
                    return read_unlisted(other, codec, stored.digest, layout, out)
                except CorruptObjectError:
                    continue
        raise CorruptObjectError(f"{path}: {error}") from error


def _mapped(handle: Handle, stored: Stored) -> Bytes:
    if stored.codec != "raw":
        raise UsageError(
            f"object {stored.digest.hex()} is compressed, so it can't be mapped; read it without mmap, "
            "or change how it is stored: casstore repack --codec raw"
        )
    path = handle.directory.object(stored.digest, stored.codec)
    try:
        payload = map_file(path, stored, check=stored.digest not in handle.mapped)
    except CorruptObjectError as error:
        raise CorruptObjectError(f"{path}: {error}") from error
    handle.mapped.add(stored.digest)
    return payload


def check_names(
    key: Key, row: VariantRow, values: Mapping[str, Any], names: Collection[str], out: Collection[str]
) -> None:
    """Refuse names that a variant doesn't have, and values in `out`.

    Raises:
        UsageError: says which there are.
    """
    for name in (*names, *out):
        if not any(name in Layout.parse(part.layout).tensors for part in row.parts):
            if name not in values:
                known = {name for part in row.parts for name in Layout.parse(part.layout).tensors} | values.keys()
                raise UsageError(f"{key} has no {name!r}; it has {', '.join(sorted(known))}")
            if name in out:
                raise UsageError(f"{name!r} of {key} is a value, not a tensor, so it can't be read into memory")


def fitting_memory(name: str, value: Any, info: TensorInfo) -> Bytes:
    """The memory of a tensor that is to be read into, uint8 [its bytes].

    Raises:
        UsageError: another dtype or shape than what is stored, or not plain memory.
    """
    given, memory = memory_of(name, value)
    if given != info or len(memory) != nbytes(info):
        raise UsageError(
            f"out[{name!r}] is {given.dtype} {list(given.shape)}, but {info.dtype} {list(info.shape)} is stored"
        )
    return memory


def find_rows(handle: Handle, keys: Sequence[Key]) -> list[VariantRow | Miss]:
    """The row of each key that can be served, or why it can't."""
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
    return Hit(key, layout, values_of(row), tuple(part.object_digest.hex() for part in row.parts))


def values_of(row: VariantRow) -> dict[str, Any]:
    """The values of a variant."""
    values: dict[str, Any] = json.loads(row.values) if row.values is not None else {}
    return values


def miss_error(key: Key, miss: Miss) -> MissError:
    """The error for a key that can't be served."""
    return MissError(f"nothing to serve for {key}: {miss}", miss)


def damaged(handle: Handle, digest: bytes, error: CorruptObjectError) -> Miss | None:
    """Mark an object as damaged, unless it was healed or swept meanwhile, or is there in another form.

    Args:
        handle: the open store.
        digest: of the object.
        error: what reading it gave.

    Returns:
        The miss; None if the object is sound or gone now. Where nothing can be written, the miss is only told.
    """
    miss = Miss("damaged", str(error))
    try:
        with handle.index.write() as connection:
            row = object_rows(connection, [digest]).get(digest)
            if row is None:
                return None
            layout = Layout.parse(row.layout)
            memory = {name: np.empty(nbytes(info), np.uint8) for name, info in layout.tensors.items()}
            try:
                read_into(handle.directory.object(digest, row.codec), row.stored, layout, memory)
            except CorruptObjectError:
                other = other_form(handle.directory, row)
                if other is None:
                    mark_damaged(connection, [digest])
                    return miss
                save_form(connection, [other])
            return None
    except (NoSpaceError, StorePermissionError, StoreTooNewError, UnsafePlaceError):
        return miss
