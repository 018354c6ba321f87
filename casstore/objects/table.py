"""The frame table of a container: written, and read with nothing in it believed.

Every length is checked against the file, the payload and the layout before anybody allocates anything.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

import xxhash

from casstore.errors import CorruptObjectError
from casstore.objects.payload import HEADER_LIMIT, PAYLOAD_LIMIT, TENSOR_LIMIT, Layout

SKIPPABLE = 0x184D2A57
MAGIC = b"CSO1"
VERSION = 1
FRAME_LIMIT = 4 << 20  # raw bytes of a frame, except of a fill without a filter
FRAMES_LIMIT = 1 + 8 * (2 * TENSOR_LIMIT + PAYLOAD_LIMIT // FRAME_LIMIT)  # far above any that is written
RAW, ZSTD, FILL = 0, 1, 2

_HEAD = struct.Struct("<II4sHHI32sQ")
_ROW = struct.Struct("<QQBBB5sQQ")
_END = struct.Struct("<Q")
_ZEROS = bytes(5)

# (codec, filter, element size, zeros, parameter) of every row that is written.
_KINDS = frozenset(
    (codec, filter_, element, _ZEROS, 0)
    for codec in (RAW, ZSTD, FILL)
    for element in (1, 2, 4, 8)
    for filter_ in ((0,) if element == 1 else range(1, element + 1))
)

HEAD_NBYTES = _HEAD.size
ROW_NBYTES = _ROW.size


class Frame(NamedTuple):
    """One row of the frame table; `start` is where its bytes are in the file."""

    stored: int
    raw: int
    codec: int
    filter: int
    element: int
    checksum: int
    start: int


def row(codec: int, chunk: bytes | memoryview, raw: int, filter_: int, element: int) -> bytes:
    """The table's row for a frame stored as `chunk`."""
    return _ROW.pack(len(chunk), raw, codec, filter_, element, _ZEROS, 0, xxhash.xxh3_64_intdigest(chunk))


def head(rows: Iterable[bytes], digest: bytes, payload_nbytes: int) -> bytes:
    """Everything in front of the first frame."""
    table = b"".join(rows)
    front = _HEAD.pack(
        *(SKIPPABLE, _HEAD.size - 8 + len(table) + _END.size, MAGIC, VERSION, 0),
        *(len(table) // _ROW.size, digest, payload_nbytes),
    )
    return front + table + _END.pack(xxhash.xxh3_64_intdigest(front[8:] + table))


def table_span(head: memoryview) -> int:
    """How many bytes of a file its head and frame table take.

    Args:
        head: the beginning of the file, HEAD_NBYTES (60) at least.

    Raises:
        CorruptObjectError: it isn't the beginning of a container, or of none with so many frames.
    """
    if len(head) < _HEAD.size:
        raise CorruptObjectError(f"the file is too short ({len(head)} bytes)")
    skippable, skip, magic, version, flags, count, _, _ = _HEAD.unpack_from(head)
    if skippable != SKIPPABLE or magic != MAGIC:
        raise CorruptObjectError("the file isn't a casstore container")
    if version != VERSION or flags:
        raise CorruptObjectError(f"the container has version {version}, flags {flags:#x}; a newer casstore may read it")
    span: int = _HEAD.size + count * _ROW.size + _END.size
    if not 0 < count <= FRAMES_LIMIT or skip != span - 8:
        raise CorruptObjectError("the frame table doesn't fit the file")
    return span


def read_table(head: memoryview, file_nbytes: int) -> tuple[list[Frame], bytes, int]:
    """(frames, digest, payload length) of a container; the frames tile both file and payload, in complete planes.

    Args:
        head: the beginning of the file; `table_span` says how much of it is needed.
        file_nbytes: the size of the whole file.

    Raises:
        CorruptObjectError: anything about it isn't as it is written.
    """
    begin = table_span(head)
    if begin > min(len(head), file_nbytes):
        raise CorruptObjectError("the frame table doesn't fit the file")
    end = begin - _END.size
    if _END.unpack_from(head, end)[0] != xxhash.xxh3_64_intdigest(head[8:end]):
        raise CorruptObjectError("the checksum of the frame table differs")
    *_, digest, length = _HEAD.unpack_from(head)
    if length > PAYLOAD_LIMIT + HEADER_LIMIT:
        raise CorruptObjectError(f"the container claims {length:,} bytes")
    frames: list[Frame] = []
    start, total, plane = begin, 0, None  # plane: what the next frame has to be, within a chunk
    for stored, raw, codec, filter_, element, zeros, parameter, checksum in _ROW.iter_unpack(head[_HEAD.size : end]):
        if (
            (codec, filter_, element, zeros, parameter) not in _KINDS
            or not (0 < raw <= FRAME_LIMIT or (raw and codec == FILL and not filter_))
            or (codec == RAW and stored != raw)
            or (codec == FILL and (stored not in (1, 2, 4, 8) or raw % stored))
            or ((plane or filter_ > 1) and plane != (filter_, element, raw))
        ):
            raise CorruptObjectError(f"frame {len(frames)} isn't one that casstore writes")
        # Not Frame(...), which is a function in Python: this loop is a good part of reading a small object.
        frames.append(tuple.__new__(Frame, (stored, raw, codec, filter_, element, checksum, start)))
        plane = (filter_ + 1, element, raw) if filter_ and filter_ < element else None
        start += stored
        total += raw
    if start != file_nbytes:
        raise CorruptObjectError(f"the frames take {start} bytes of a file of {file_nbytes}")
    if plane or total != length:
        raise CorruptObjectError("the frames don't add up to the payload")
    return frames, digest, length


def frames_of(
    head: memoryview, file_nbytes: int, digest: bytes, layout: Layout
) -> tuple[Frame, dict[str, tuple[Frame, ...]]]:
    """The frame of the payload header, and those of each tensor, of an object whose layout is known.

    Args:
        head: the beginning of the file; `table_span` says how much of it is needed.
        file_nbytes: the size of the whole file.
        digest: what the object is called.
        layout: its layout, by the index.

    Raises:
        CorruptObjectError: the file is another object, or its table isn't one that is written for this layout.
    """
    frames, named, length = read_table(head, file_nbytes)
    check_identity(named, length, digest, layout.payload_nbytes)
    return frames[0], tensor_frames(frames, layout)


def check_identity(named: bytes, length: int, digest: bytes | None, payload_nbytes: int | None) -> None:
    """Refuse a container whose digest and payload length aren't those asked for; None: whatever it says.

    Raises:
        CorruptObjectError: says what is there and what was asked for.
    """
    if digest is not None and named != digest:
        raise CorruptObjectError(f"the file holds object {named.hex()}, not {digest.hex()}")
    if payload_nbytes is not None and length != payload_nbytes:
        raise CorruptObjectError(f"the payload has {length} bytes, not {payload_nbytes}")


def tensor_frames(frames: list[Frame], layout: Layout) -> dict[str, tuple[Frame, ...]]:
    """{name: frames}, with the first frame as the header; no planes and no frame go across a tensor's end.

    Raises:
        CorruptObjectError: the frames aren't those of this layout.
    """
    if frames[0].filter or frames[0].raw != len(layout.header):
        raise CorruptObjectError("the first frame isn't the payload header")
    found: dict[str, tuple[Frame, ...]] = {}
    i = 1
    for name, (begin, end) in layout.spans.items():
        first, left = i, end - begin
        while left > 0 and i < len(frames):
            left -= frames[i].raw
            i += 1
        if left or (i < len(frames) and frames[i].filter > 1):
            raise CorruptObjectError(f"the frames from {first} on don't fit tensor {name!r}")
        found[name] = tuple(frames[first:i])
    if i != len(frames):
        raise CorruptObjectError("there are more frames than tensors")
    return found
