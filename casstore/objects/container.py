"""The container (`<digest>.cso`): a payload cut into frames, each checked and compressed by itself.

    0   u32  0x184D2A57   a zstd skippable frame, so that any zstd tool steps over the table
    4   u32  length of what follows up to and including the checksum
    8   "CSO1"
    12  u16  format version, 1
    14  u16  flags, 0
    16  u32  number of frames n
    20  32 bytes  digest: BLAKE3-256 of the payload
    52  u64  payload length
    60  n * 40 bytes  frame table
    ..  u64  XXH3-64 of everything from "CSO1" to here
    then the frames: the payload header, then each tensor in frames of at most 4 MiB, in payload order

A frame entry: stored length u64, raw length u64, codec u8 (0 raw, 1 zstd, 2 fill), filter u8 (0 none, 1 + p: byte plane
p), element size u8, 5 zero bytes, parameter u64 (0, reserved), XXH3-64 of the stored bytes u64. Little endian.

Nothing in a file is believed: every length is checked against the file, the payload and zstd's own frame header before
anything is allocated.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import xxhash
import zstandard

from casstore.errors import CorruptObjectError
from casstore.objects.payload import HEADER_LIMIT, PAYLOAD_LIMIT, Layout, parse_header
from casstore.objects.planes import PLANE_SIZE, Bytes, merge, split

SUFFIX = ".cso"
SKIPPABLE = 0x184D2A57
MAGIC = b"CSO1"
VERSION = 1
FRAME_LIMIT = 4 << 20  # raw bytes of a frame, except of a fill
RAW, ZSTD, FILL = 0, 1, 2
WORTH_IT = 0.9  # a frame that saves less than a tenth is stored raw: reading it is then a copy

_HEAD = struct.Struct("<II4sHHI32sQ")
_ENTRY = struct.Struct("<QQBBB5sQQ")
_TAIL = struct.Struct("<Q")
_ZEROS = bytes(5)

# Nearly pure Huffman: matches in an exponent plane cost ratio and time.
_HUFFMAN = zstandard.ZstdCompressionParameters(
    strategy=zstandard.STRATEGY_FAST,
    min_match=7,
    hash_log=7,
    chain_log=6,
    search_log=1,
    window_log=18,
    target_length=0,
    write_content_size=True,
)
_local = threading.local()  # (de)compressors aren't safe to share between threads


@dataclass(frozen=True, slots=True)
class Frame:
    """One row of the frame table; `start` is where its bytes are in the file."""

    stored: int
    raw: int
    codec: int
    filter: int
    element: int
    checksum: int
    start: int


def encode(layout: Layout, payload: Bytes, digest: bytes) -> list[bytes | memoryview]:
    """The container of a payload, as chunks to be written one after the other.

    Args:
        layout: of the payload.
        payload: uint8 [layout.payload_nbytes].
        digest: of the payload, 32 bytes.
    """
    table = bytearray()
    stored: list[bytes | memoryview] = []

    def add(raw: Bytes, filter_: int, element: int, *, huffman: bool) -> None:
        compressed = _compressor(huffman).compress(raw.data)
        codec, chunk = (ZSTD, compressed) if len(compressed) <= WORTH_IT * len(raw) else (RAW, raw.data)
        table.extend(
            _ENTRY.pack(len(chunk), len(raw), codec, filter_, element, _ZEROS, 0, xxhash.xxh3_64_intdigest(chunk))
        )
        stored.append(chunk)

    head = len(layout.header)
    add(payload[:head], 0, 1, huffman=False)
    for name, (begin, end) in layout.spans.items():
        size = PLANE_SIZE.get(layout.tensors[name].dtype)
        for start in range(head + begin, head + end, FRAME_LIMIT):
            chunk = payload[start : min(start + FRAME_LIMIT, head + end)]
            if size is None:
                add(chunk, 0, 1, huffman=False)
            else:
                for p, plane in enumerate(split(chunk, size)):
                    add(plane, 1 + p, size, huffman=True)
    front = _HEAD.pack(
        SKIPPABLE, _HEAD.size - 8 + len(table) + _TAIL.size, MAGIC, VERSION, 0, len(stored), digest, len(payload)
    )
    checked = front[8:] + bytes(table)
    return [front[:8], checked, _TAIL.pack(xxhash.xxh3_64_intdigest(checked)), *stored]


def decode(
    data: bytes | memoryview, digest: bytes | None = None, payload_nbytes: int | None = None
) -> tuple[Layout, Bytes, bytes]:
    """The payload of a container; every checksum is compared, BLAKE3 is not (see `verify`).

    Args:
        data: the whole file.
        digest: what the object is called; None: whatever the container says.
        payload_nbytes: how long its payload is, where that is known: a fill can stand for much more than it takes.

    Returns:
        Layout, payload (uint8, owning its memory), digest.

    Raises:
        CorruptObjectError: anything about it isn't as `encode` writes it.
    """
    view = memoryview(data)
    frames, named, length = read_table(view)
    if digest is not None and named != digest:
        raise CorruptObjectError(f"the file holds object {named.hex()}, not {digest.hex()}")
    if payload_nbytes is not None and length != payload_nbytes:
        raise CorruptObjectError(f"the payload has {length} bytes, not {payload_nbytes}")
    first = frames[0]
    if first.filter or first.raw > HEADER_LIMIT:
        raise CorruptObjectError("the first frame isn't a payload header")
    header = np.empty(first.raw, np.uint8)
    _decode_frame(view, first, header)
    layout = parse_header(header.tobytes())
    if layout.payload_nbytes != length:
        raise CorruptObjectError("the payload length doesn't fit its header")
    steps = list(_steps(layout, frames))  # all lengths are checked before the payload is allocated
    payload = np.empty(length, np.uint8)
    payload[: first.raw] = header
    for chunk, begin, end in steps:
        out = payload[begin:end]
        if chunk[0].filter == 0:
            _decode_frame(view, chunk[0], out)
        else:
            planes = []
            for frame in chunk:
                plane = np.empty(frame.raw, np.uint8)
                _decode_frame(view, frame, plane)
                planes.append(plane)
            merge(planes, out)
    return layout, payload, named


def read_table(view: memoryview) -> tuple[list[Frame], bytes, int]:
    """The frame table, digest and payload length of a container; the frames tile both file and payload."""
    if len(view) < _HEAD.size + _TAIL.size:
        raise CorruptObjectError(f"the file is too short ({len(view)} bytes)")
    skippable, skip, magic, version, flags, count, digest, length = _HEAD.unpack_from(view)
    if skippable != SKIPPABLE or magic != MAGIC:
        raise CorruptObjectError("the file isn't a casstore container")
    if version != VERSION or flags:
        raise CorruptObjectError(f"the container has version {version}, flags {flags:#x}; a newer casstore may read it")
    end = _HEAD.size + count * _ENTRY.size
    if count == 0 or end + _TAIL.size > len(view) or skip != end + _TAIL.size - 8:
        raise CorruptObjectError("the frame table doesn't fit the file")
    if _TAIL.unpack_from(view, end)[0] != xxhash.xxh3_64_intdigest(view[8:end]):
        raise CorruptObjectError("the checksum of the frame table differs")
    if length > PAYLOAD_LIMIT + HEADER_LIMIT:
        raise CorruptObjectError(f"the container claims {length:,} bytes")
    frames: list[Frame] = []
    start = end + _TAIL.size
    for stored, raw, codec, filter_, element, zeros, parameter, checksum in _ENTRY.iter_unpack(view[_HEAD.size : end]):
        fill = codec == FILL
        if (
            codec > FILL
            or zeros != _ZEROS
            or parameter
            or raw == 0
            or (raw > FRAME_LIMIT and not fill)
            or (codec == RAW and stored != raw)
            or (fill and (stored not in (1, 2, 4, 8) or raw % stored))
            or (filter_ == 0) != (element == 1)
            or (filter_ and (element not in (2, 4, 8) or filter_ > element))
            or start + stored > len(view)
        ):
            raise CorruptObjectError(f"frame {len(frames)} isn't one that casstore writes")
        frames.append(Frame(stored, raw, codec, filter_, element, checksum, start))
        start += stored
    if start != len(view):
        raise CorruptObjectError(f"{len(view) - start} bytes follow the last frame")
    if sum(frame.raw for frame in frames) != length:
        raise CorruptObjectError("the frames don't add up to the payload")
    return frames, digest, length


def _steps(layout: Layout, frames: list[Frame]) -> Iterator[tuple[list[Frame], int, int]]:
    """(frames that make one span, begin, end) for every tensor's spans in turn; no span crosses a tensor's end."""
    head, position, i = len(layout.header), len(layout.header), 1
    for begin, end in layout.spans.values():
        while position < head + end:
            chunk = frames[i : i + frames[i].element] if i < len(frames) and frames[i].filter else frames[i : i + 1]
            whole = bool(chunk) and all(
                f.filter == (p + 1 if f.element > 1 else 0) and f.raw == chunk[0].raw and f.element == chunk[0].element
                for p, f in enumerate(chunk)
            )
            span = sum(f.raw for f in chunk)
            if not whole or len(chunk) != chunk[0].element or position + span > head + end or position < head + begin:
                raise CorruptObjectError(f"the frames from {i} on don't fit the tensors")
            yield chunk, position, position + span
            position += span
            i += len(chunk)
    if i != len(frames):
        raise CorruptObjectError("there are more frames than tensors")


def _decode_frame(view: memoryview, frame: Frame, out: Bytes) -> None:
    stored = view[frame.start : frame.start + frame.stored]
    if xxhash.xxh3_64_intdigest(stored) != frame.checksum:
        raise CorruptObjectError("the checksum of a frame differs")
    if frame.codec == RAW:
        out[:] = np.frombuffer(stored, np.uint8)
    elif frame.codec == FILL:
        out.reshape(-1, frame.stored)[:] = np.frombuffer(stored, np.uint8)
    else:
        try:
            # The binding ignores its own limit when a frame states its size, so the size is checked first.
            if zstandard.get_frame_parameters(stored).content_size != frame.raw:
                raise CorruptObjectError("a zstd frame states another length than the table")
            out[:] = np.frombuffer(_decompressor().decompress(stored, allow_extra_data=False), np.uint8)
        except (zstandard.ZstdError, ValueError) as error:
            raise CorruptObjectError(f"a zstd frame can't be decoded: {error}") from None


def _compressor(huffman: bool) -> zstandard.ZstdCompressor:
    name = "huffman" if huffman else "plain"
    if not hasattr(_local, name):
        made = (
            zstandard.ZstdCompressor(compression_params=_HUFFMAN)
            if huffman
            else zstandard.ZstdCompressor(level=1, write_content_size=True)
        )
        setattr(_local, name, made)
    found: zstandard.ZstdCompressor = getattr(_local, name)
    return found


def _decompressor() -> zstandard.ZstdDecompressor:
    if not hasattr(_local, "decompressor"):
        _local.decompressor = zstandard.ZstdDecompressor(max_window_size=128 << 20)
    found: zstandard.ZstdDecompressor = _local.decompressor
    return found
