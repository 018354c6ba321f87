"""Payload to container. What becomes of each part is decided from its bytes alone, so equal payloads and equal zstd
versions give equal files."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
import zstandard

from casstore.objects.fills import repeated_tail
from casstore.objects.payload import Layout
from casstore.objects.planes import PLANE_SIZE, Bytes, split
from casstore.objects.table import FILL, FRAME_LIMIT, RAW, ROW_NBYTES, ZSTD, head, row

WORTH_IT = 0.9  # a frame that saves less than a tenth is stored raw: reading it is then a copy

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


class _Compressors(threading.local):  # they aren't safe to share between threads
    def __init__(self) -> None:
        self.planes = zstandard.ZstdCompressor(compression_params=_HUFFMAN)
        self.others = zstandard.ZstdCompressor(level=1, write_content_size=True)


_compressors = _Compressors()


@dataclass(frozen=True, slots=True)
class _Stored:
    """A frame as it is written: codec, bytes, raw length, filter, element size."""

    codec: int
    chunk: bytes | memoryview
    raw: int
    filter: int = 0
    element: int = 1


def encode(layout: Layout, payload: Bytes, digest: bytes) -> list[bytes | memoryview]:
    """The container of a payload, as chunks to be written one after the other; some are views of the payload.

    Args:
        layout: of the payload.
        payload: uint8 [layout.payload_nbytes], contiguous.
        digest: of the payload, 32 bytes.
    """
    start = len(layout.header)
    frames = [_Stored(*_compressed(payload[:start], _compressors.others), start)]
    for name, (begin, end) in layout.spans.items():
        if end > begin:
            frames += _tensor(payload[start + begin : start + end], PLANE_SIZE.get(layout.tensors[name].dtype))
    rows = (row(f.codec, f.chunk, f.raw, f.filter, f.element) for f in frames)
    return [head(rows, digest, len(payload)), *(frame.chunk for frame in frames)]


def _tensor(data: Bytes, size: int | None) -> list[_Stored]:
    """The frames of a tensor whose numbers have `size` bytes; None: it isn't split into planes."""
    tail, pattern = repeated_tail(data)
    frames: list[_Stored] = []
    for start in range(0, tail, FRAME_LIMIT):
        chunk = data[start : min(start + FRAME_LIMIT, tail)]
        frames += [_plain(chunk)] if size is None else _planes(chunk, size)
    if pattern:
        frames.append(_Stored(FILL, pattern, len(data) - tail))
    return frames


def _plain(chunk: Bytes) -> _Stored:
    return _Stored(*_smallest(chunk, _compressors.others), len(chunk))


def _planes(chunk: Bytes, size: int) -> list[_Stored]:
    rows = (size - 1) * ROW_NBYTES  # what splitting costs
    whole = [_Stored(RAW, chunk.data, len(chunk))]
    if len(chunk) <= rows:
        return whole
    frames: list[_Stored] = []
    spare: Bytes | None = None
    for p in range(size):
        plane = np.empty(len(chunk) // size, np.uint8) if spare is None else spare
        split(chunk, size, p, plane)
        codec, stored = _smallest(plane, _compressors.planes)
        # A plane that is stored raw goes to the caller; memory of the others is free for the next one.
        spare = None if codec == RAW else plane
        frames.append(_Stored(codec, stored, len(plane), 1 + p, size))
    return frames if sum(len(frame.chunk) for frame in frames) + rows < len(chunk) else whole


def _smallest(raw: Bytes, compressor: zstandard.ZstdCompressor) -> tuple[int, bytes | memoryview]:
    """(codec, stored bytes) of a frame."""
    begin, pattern = repeated_tail(raw)
    return (FILL, pattern) if begin == 0 else _compressed(raw, compressor)


def _compressed(raw: Bytes, compressor: zstandard.ZstdCompressor) -> tuple[int, bytes | memoryview]:
    try:
        compressed = compressor.compress(raw.data)
    except zstandard.ZstdError as error:
        raise MemoryError(f"zstd: {error}") from error  # the only reason that compressing has to fail
    return (ZSTD, compressed) if len(compressed) <= WORTH_IT * len(raw) else (RAW, raw.data)
