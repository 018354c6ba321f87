"""Reading object files: whole, some tensors of them into given memory, or as a mapping. Everything is checked.

What is at the path of an object is never believed, since a disk, or somebody with the same rights, may have changed it.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Mapping, Sequence

import numpy as np
import xxhash

from casstore import fsio
from casstore.errors import CasstoreError, CorruptObjectError
from casstore.identity.digests import signed
from casstore.model import Stored
from casstore.objects import container
from casstore.objects.payload import Layout
from casstore.objects.planes import Bytes
from casstore.objects.scratch import Scratch
from casstore.objects.tensors import payload_digest

IN_ONE = 1 << 20  # bytes; a container up to this size is read by one call, whatever is wanted of it
HEAD = 4 << 10  # bytes; has the whole table of a container of up to 100 frames
_BUFFERS = 1000  # of one call; IOV_MAX is 1024

_scratch = Scratch()


def read_file(path: str) -> bytes:
    """A whole file.

    Raises:
        CorruptObjectError: there is none, or something else under its name.
        StorePermissionError, StoreIOError
    """
    with _Opened(path) as descriptor, os.fdopen(descriptor, "rb", buffering=0, closefd=False) as stream:
        return stream.readall()


def read_into(
    path: str, stored: Stored, layout: Layout, out: Mapping[str, Bytes], map_: container.Mapper = map
) -> None:
    """Read some tensors of an object straight into given memory. On an error that holds anything.

    Args:
        path: of the file.
        stored: what the index says of it.
        layout: `stored.layout`, parsed.
        out: {name: uint8 [bytes of that tensor], contiguous}. Copies are fastest to addresses at multiples of 64.
        map_: `map`, or that of a pool, for tensors beyond 4 MiB.

    Raises:
        CorruptObjectError: the file is missing, has another size, or its bytes are wrong.
        StorePermissionError, StoreIOError
    """
    with _Opened(path) as descriptor:
        size = os.fstat(descriptor).st_size
        if size != stored.nbytes:  # looked at before any memory is taken for it
            raise CorruptObjectError(f"it has {size} bytes, not {stored.nbytes}")
        if stored.codec == "raw":
            _read_raw(descriptor, stored, layout, out)
        elif stored.nbytes <= IN_ONE or len(out) == len(layout.tensors):
            data = _scratch.take(size)
            _read(descriptor, [data], 0)
            container.decode_into(data, stored.digest, layout, out, map_)
        else:
            _read_some(descriptor, stored, layout, out, map_)


def read_unlisted(path: str, codec: str, digest: bytes, layout: Layout, out: Mapping[str, Bytes]) -> None:
    """Read a file of the form that the index doesn't speak of (an index that was restored may not know of a repack).

    Args: as for `read_into`; a container checks itself, and a raw object is checked against its name.

    Raises:
        CorruptObjectError, StorePermissionError, StoreIOError
    """
    data = read_file(path)
    if codec != "raw":
        container.decode_into(data, digest, layout, out)
        return
    payload = np.frombuffer(data, np.uint8)
    if payload_digest(payload) != digest or not data.startswith(layout.header):
        raise CorruptObjectError("its content isn't what its name says")
    for name, memory in out.items():
        begin, end = layout.spans[name]
        memory[:] = payload[len(layout.header) + begin : len(layout.header) + end]


def map_file(path: str, stored: Stored, *, check: bool) -> Bytes:
    """A private mapping of a raw object: its payload, uint8; what is written to it never reaches the file.

    Args:
        path: of the file.
        stored: what the index says of it; the codec is "raw".
        check: read all of it once, and compare its checksum.

    Raises:
        CorruptObjectError, StorePermissionError, StoreIOError
    """
    with _Opened(path) as descriptor:
        size = os.fstat(descriptor).st_size
        if size != stored.nbytes:
            raise CorruptObjectError(f"it has {size} bytes, not {stored.nbytes}")
        mapped = mmap.mmap(descriptor, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    payload = np.frombuffer(mapped, np.uint8)
    header = Layout.parse(stored.layout).header
    if payload[: len(header)].tobytes() != header:
        raise CorruptObjectError("its layout isn't the one in the index")
    if check and signed(xxhash.xxh3_64_intdigest(payload.data)) != stored.xxh3:
        raise CorruptObjectError("the checksum of the file differs")
    return payload


class _Opened:
    """A descriptor of an object's file, for reading; a class, since a generator costs as much as opening the file.

    Raises:
        CorruptObjectError: there is no file, or something else under its name.
        StorePermissionError, StoreIOError: also for errors of reading in the block.
    """

    __slots__ = ("_descriptor", "_path")

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> int:
        try:
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            raise _typed(error, self._path) from error
        return self._descriptor

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            os.close(self._descriptor)
        except OSError as failed:
            error = error or failed
        if isinstance(error, OSError) and not isinstance(error, CasstoreError):
            raise _typed(error, self._path) from error


def _typed(error: OSError, path: str) -> CasstoreError:
    if error.errno == errno.ENOENT:
        return CorruptObjectError("the file is gone")
    if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENOTDIR, errno.ENXIO):
        return CorruptObjectError("there is no file under its name, but something else")
    return fsio.typed(error, "read", path)


def _read_raw(descriptor: int, stored: Stored, layout: Layout, out: Mapping[str, Bytes]) -> None:
    """Scatter the file into the wanted tensors; the others go into scratch memory, since the checksum is of all."""
    if layout.payload_nbytes != stored.nbytes:
        raise CorruptObjectError("its layout isn't the one in the index")
    header = layout.header
    unwanted = sum(end - begin for name, (begin, end) in layout.spans.items() if name not in out)
    rest = _scratch.take(len(header) + unwanted)
    buffers, used = [rest[: len(header)]], len(header)
    for name, (begin, end) in layout.spans.items():
        if name in out:
            buffers.append(out[name])
        else:
            buffers.append(rest[used : used + end - begin])
            used += end - begin
    buffers = [buffer for buffer in buffers if len(buffer)]
    _read(descriptor, buffers, 0)
    if buffers[0].tobytes() != header:
        raise CorruptObjectError("its layout isn't the one in the index")
    hasher = xxhash.xxh3_64()
    for buffer in buffers:
        hasher.update(buffer.data)
    if signed(hasher.intdigest()) != stored.xxh3:
        raise CorruptObjectError("the checksum of the file differs")


def _read_some(
    descriptor: int, stored: Stored, layout: Layout, out: Mapping[str, Bytes], map_: container.Mapper
) -> None:
    """Read the table and then only the frames of the wanted tensors, which lie side by side for each."""
    size = stored.nbytes
    head = np.empty(min(size, HEAD), np.uint8)
    _read(descriptor, [head], 0)
    span = container.table_span(head.data)
    if len(head) < span <= size:
        head = np.empty(span, np.uint8)
        _read(descriptor, [head], 0)
    first, frames = container.frames_of(head.data, size, stored.digest, layout)
    header = np.empty(first.stored, np.uint8)
    _read(descriptor, [header], first.start)
    container.check_header(first, header.data, layout)
    for name, memory in out.items():
        if not frames[name]:
            continue
        start, end = frames[name][0].start, frames[name][-1].start + frames[name][-1].stored
        data = _scratch.take(end - start)
        _read(descriptor, [data], start)
        pieces = [data.data[frame.start - start : frame.start - start + frame.stored] for frame in frames[name]]
        container.decode_frames(frames[name], pieces, memory, map_)


def _read(descriptor: int, buffers: Sequence[Bytes], offset: int) -> None:
    """Fill the buffers from the file.

    Raises:
        CorruptObjectError: it ends before.
    """
    left = [buffer.data for buffer in buffers]
    if len(left) <= _BUFFERS and os.preadv(descriptor, left, offset) == sum(map(len, left)):
        return
    while left:  # a short read, which is rare: all of it again
        count = os.preadv(descriptor, left[:_BUFFERS], offset)
        if not count:
            raise CorruptObjectError(f"it ends at byte {offset}")
        offset += count
        while left and count >= len(left[0]):
            count -= len(left.pop(0))
        if count:
            left[0] = left[0][count:]
