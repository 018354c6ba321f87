"""Container to payload or tensors. Every checksum is compared on the way; BLAKE3 is not (`casstore verify --deep`)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import xxhash
import zstandard

from casstore.errors import CorruptObjectError
from casstore.objects.payload import HEADER_LIMIT, Layout, parse_header
from casstore.objects.planes import Bytes, merge
from casstore.objects.scratch import Scratch, aligned
from casstore.objects.table import FILL, RAW, Frame, check_identity, frames_of, read_table, tensor_frames

_NOTHING = np.uint8(0)
_WINDOW_LIMIT = 128 << 20  # bytes; that of zstd's own command line

Span = tuple[Sequence[Frame], Sequence[memoryview], Bytes]
"""Frames that belong together (one, or the planes of a chunk), their stored bytes, and where the result goes."""

Mapper = Callable[[Callable[[Span], None], list[Span]], Iterable[Any]]
"""`map`, or that of a pool."""


class _Decompressor(threading.local):  # not safe to share between threads
    def __init__(self) -> None:
        self.zstd = zstandard.ZstdDecompressor(max_window_size=_WINDOW_LIMIT)


_decompressor = _Decompressor()
_HEADERS = 1024
_headers: dict[tuple[int, int, int, int], str] = {}  # header frames that were decoded, and their layouts
_scratch = Scratch()


def decode(
    data: bytes | memoryview, digest: bytes | None = None, payload_nbytes: int | None = None
) -> tuple[Layout, Bytes, bytes]:
    """The payload of a container; every checksum is compared, BLAKE3 is not.

    Args:
        data: the whole file.
        digest: what the object is called; None: whatever the container says.
        payload_nbytes: how long its payload is, where that is known: a fill can stand for much more than it takes.

    Returns:
        Layout, payload (uint8, sharing memory with nothing else), digest.

    Raises:
        CorruptObjectError: anything about it isn't as `encode` writes it.
    """
    view = memoryview(data)
    frames, named, length = read_table(view, len(view))
    check_identity(named, length, digest, payload_nbytes)
    first = frames[0]
    if first.filter or first.raw > HEADER_LIMIT:
        raise CorruptObjectError("the first frame isn't a payload header")
    header = np.empty(first.raw, np.uint8)
    decode_frames([first], [_stored(view, first)], header)
    layout = parse_header(header.tobytes())
    if layout.payload_nbytes != length:
        raise CorruptObjectError("the payload length doesn't fit its header")
    found = tensor_frames(frames, layout)  # all lengths are checked before the payload is allocated
    payload = aligned(length)
    payload[: first.raw] = header
    for name, (begin, end) in layout.spans.items():
        out = payload[first.raw + begin : first.raw + end]
        decode_frames(found[name], [_stored(view, frame) for frame in found[name]], out)
    return layout, payload, named


def decode_into(
    data: bytes | memoryview | Bytes, digest: bytes, layout: Layout, out: Mapping[str, Bytes], map_: Mapper = map
) -> None:
    """Decode some tensors of a container straight into given memory.

    Frames of other tensors aren't looked at. On an error `out` holds anything.

    Args:
        data: the whole file.
        digest: what the object is called.
        layout: its layout, by the index.
        out: {name: uint8 [bytes of that tensor], contiguous}.
        map_: as for `decode_frames`.

    Raises:
        CorruptObjectError: the file is another object, its table doesn't fit the layout, or a frame that is needed
            isn't as `encode` writes it.
    """
    view = data.data if isinstance(data, np.ndarray) else memoryview(data)
    first, frames = frames_of(view, len(view), digest, layout)
    check_header(first, _stored(view, first), layout)
    for name, memory in out.items():
        decode_frames(frames[name], [_stored(view, frame) for frame in frames[name]], memory, map_)


def decode_frames(frames: Sequence[Frame], stored: Sequence[memoryview], out: Bytes, map_: Mapper = map) -> None:
    """Decode one tensor from its frames.

    Args:
        frames: all frames of the tensor, from `frames_of`.
        stored: the bytes of each; the range [frame.start, frame.start + frame.stored) of the file.
        out: uint8 [bytes of the tensor], contiguous.
        map_: `map`, or that of a pool: the parts of a tensor beyond 4 MiB don't depend on each other.

    Raises:
        CorruptObjectError: a checksum differs, or a frame isn't as `encode` writes it.
    """
    spans: list[Span] = []
    i = position = 0
    while i < len(frames):
        count = frames[i].element
        end = position + frames[i].raw * count
        spans.append((frames[i : i + count], stored[i : i + count], out[position:end]))
        i, position = i + count, end
    if position != len(out):
        raise ValueError(f"the tensor has {position} bytes, the memory for it {len(out)}")
    for _ in map_(_decode_span, spans):
        pass


def check_header(frame: Frame, stored: memoryview, layout: Layout) -> None:
    """Refuse a container whose payload header isn't that of the layout: other dtypes may have the same sizes.

    Args:
        frame: the first of the file.
        stored: its bytes.
        layout: by the index.

    Raises:
        CorruptObjectError: another layout, or a broken frame.
    """
    # Stores have few layouts, so their headers are stored as the same few frames, which needn't be decoded again.
    if xxhash.xxh3_64_intdigest(stored) != frame.checksum:
        raise CorruptObjectError("the checksum of a frame differs")
    name = (frame.checksum, frame.stored, frame.raw, frame.codec)
    if _headers.get(name) == layout.text:
        return
    header = np.empty(frame.raw, np.uint8)
    decode_frames([frame], [stored], header)
    if header.tobytes() != layout.header:
        raise CorruptObjectError("its layout isn't the one in the index")
    if len(_headers) >= _HEADERS:
        _headers.clear()
    _headers[name] = layout.text


def _stored(view: memoryview, frame: Frame) -> memoryview:
    return view[frame.start : frame.start + frame.stored]


def _decode_span(span: Span) -> None:
    frames, stored, out = span
    constant, ranks = 0, []
    for p, (frame, data) in enumerate(zip(frames, stored, strict=True)):
        if xxhash.xxh3_64_intdigest(data) != frame.checksum:
            raise CorruptObjectError("the checksum of a frame differs")
        if frame.codec == FILL and frame.stored == 1:
            constant |= data[0] << 8 * p
        else:
            ranks.append(p)
    if frames[0].filter == 0:
        _decode_frame(frames[0], stored[0], out)
    else:
        merge(len(frames), constant, ranks[::-1], lambda p: _plane(frames[p], stored[p]), out)


def _plane(frame: Frame, stored: memoryview) -> Bytes:
    """The raw bytes of a frame, where they are or in this thread's scratch memory."""
    if frame.codec == RAW:
        return np.frombuffer(stored, np.uint8)
    out = _scratch.take(frame.raw)
    _decode_frame(frame, stored, out)
    return out


def _decode_frame(frame: Frame, stored: memoryview, out: Bytes) -> None:
    if frame.codec == RAW:
        # Not a plain copy: see scratch.ALIGNMENT, and where a frame begins in a file is anywhere.
        np.bitwise_or(np.frombuffer(stored, np.uint8), _NOTHING, out=out)
    elif frame.codec == FILL:
        # As wide as possible: NumPy fills one word after the other.
        pattern = np.frombuffer(stored, f"<u{frame.stored}")
        out.view(pattern.dtype).fill(pattern[0])
    else:
        try:
            _check_zstd(stored, frame.raw)
            done = _decompressor.zstd.stream_reader(stored).readinto(out)
        except zstandard.ZstdError as error:
            if "Allocation error" in str(error):
                raise MemoryError(f"zstd: {error}") from error  # that says nothing about the frame
            raise CorruptObjectError(f"a zstd frame can't be decoded: {error}") from None
        if done != frame.raw:
            raise CorruptObjectError(f"a zstd frame has {done} bytes, not {frame.raw}")


def _check_zstd(stored: memoryview, raw: int) -> None:
    """Refuse anything but one whole zstd frame that states this length; the stream reader would take what it needs.

    RFC 8878, 3.1.1: header, blocks of 3 + n bytes (1 byte instead of n in a run-length block), perhaps a checksum of
    4 bytes, which bit 2 of the header's first byte after the magic number says.
    """
    if zstandard.frame_content_size(stored) != raw:
        raise CorruptObjectError("a zstd frame states another length than the table")
    position, last = zstandard.frame_header_size(stored), 0
    while not last:
        block = int.from_bytes(stored[position : position + 3], "little")
        last, kind, size = block & 1, block >> 1 & 3, block >> 3
        position += 3 + (1 if kind == 1 else size)
        if position > len(stored):
            raise CorruptObjectError("a zstd frame ends early")
    if position + (stored[4] & 4) != len(stored):
        raise CorruptObjectError("a zstd frame has another length than the table says")
