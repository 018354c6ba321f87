"""Containers put together or broken by hand: what the format allows is read, anything else is refused."""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest as xxh3

from casstore.errors import CorruptObjectError
from casstore.model import TensorInfo
from casstore.objects import container
from casstore.objects.payload import Layout
from casstore.objects.table import FILL, FRAME_LIMIT, RAW, ZSTD
from casstore.objects.tensors import to_payload

Row = tuple[bytes, int, int, int, int]  # stored bytes, raw length, codec, filter, element size
HUGE = 1 << 60
BOMB = b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", HUGE) + b"\1\0\0"  # an empty zstd frame that states 2^60 bytes


def built(
    rows: list[Row],
    length: int | None = None,
    digest: bytes = b"d" * 32,
    reserved: bytes = bytes(5),
    parameter: int = 0,
) -> bytes:
    """A container of these frames, with right checksums, as the format's description says."""
    table = b"".join(
        struct.pack("<QQBBB5sQQ", len(stored), raw, codec, filter_, element, reserved, parameter, xxh3(stored))
        for stored, raw, codec, filter_, element in rows
    )
    total = sum(row[1] for row in rows) if length is None else length
    checked = struct.pack("<4sHHI32sQ", b"CSO1", 1, 0, len(rows), digest, total % 2**64) + table
    front = struct.pack("<II", 0x184D2A57, len(checked) + 8) + checked + struct.pack("<Q", xxh3(checked))
    return front + b"".join(row[0] for row in rows)


def plain(data: bytes) -> Row:
    """A raw frame without a filter."""
    return data, len(data), RAW, 0, 1


def zstd(data: bytes) -> Row:
    """A zstd frame without a filter."""
    return zstandard.compress(data), len(data), ZSTD, 0, 1


def header(dtype: str, *shape: int) -> Row:
    """The first frame of an object with one tensor named t."""
    return plain(Layout.of([("t", TensorInfo(dtype, shape))]).header)


def tensor_bytes(data: bytes) -> bytes:
    """What a container holds behind its header."""
    layout, payload, _ = container.decode(data)
    return payload[len(layout.header) :].tobytes()


def refused(data: bytes) -> bool:
    """Whether a container is refused with a CorruptObjectError before it made anything allocate 1 MiB."""
    tracemalloc.start()
    try:
        container.decode(data)
    except CorruptObjectError:
        return tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    return False


def test_the_builder_builds_what_casstore_writes() -> None:
    """Put together by hand from the same frames, a container is the very file that `encode` makes."""
    payload = to_payload({"t": np.random.default_rng(0).integers(0, 256, 100, dtype=np.uint8)})
    chunks = container.encode(payload.layout, payload.data, payload.digest)
    head = len(payload.layout.header)
    compressed = zstandard.ZstdCompressor(level=1).compress(payload.data[:head].tobytes())
    first = (compressed, head, ZSTD, 0, 1) if len(compressed) <= 0.9 * head else plain(payload.data[:head].tobytes())
    assert built([first, plain(payload.data[head:].tobytes())], digest=payload.digest) == b"".join(chunks)


def test_a_constant_plane_is_read_from_a_fill_frame() -> None:
    """A plane whose bytes are all the same is one byte on disk."""
    low = bytes(range(100))
    data = built([header("BF16", 100), (low, 100, RAW, 1, 2), (b"\x3f", 100, FILL, 2, 2)])
    assert tensor_bytes(data) == b"".join(bytes([byte, 0x3F]) for byte in low)


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_a_fill_repeats_1_2_4_or_8_bytes(size: int) -> None:
    """A constant tensor is one element on disk, whatever the element's size."""
    element = bytes(range(1, size + 1))
    data = built([header("U8", 3 * size), (element, 3 * size, FILL, 0, 1)])
    assert tensor_bytes(data) == 3 * element


def test_a_fill_may_be_longer_than_a_frame() -> None:
    """The limit of 4 MiB is for frames that are decoded, not for a repeated byte."""
    data = built([header("U8", FRAME_LIMIT + 1), (b"\7", FRAME_LIMIT + 1, FILL, 0, 1)])
    assert tensor_bytes(data) == b"\7" * (FRAME_LIMIT + 1)


def test_a_constant_tail_follows_the_planes_of_the_rest() -> None:
    """A tensor may be planes first and then a fill, which is not split into planes."""
    front, tail = np.arange(4, dtype="<f4").tobytes(), struct.pack("<f", -0.0)
    planes: list[Row] = [(front[p::4], 4, RAW, p + 1, 4) for p in range(4)]
    data = built([header("F32", 10), *planes, (tail, 24, FILL, 0, 1)])
    assert tensor_bytes(data) == front + 6 * tail


# A small container with every codec and both filters, and what it holds.
PIECES: list[Row] = [
    zstd(header("F16", 40)[0]),
    (zstandard.compress(b"\1" * 32), 32, ZSTD, 1, 2),
    (bytes(range(32)), 32, RAW, 2, 2),
    (b"\0\x80", 16, FILL, 0, 1),
]
SMALL = built(PIECES)


def payload_or_none(data: bytes) -> bytes | None:
    """The payload of a container, or None if it is refused with a CorruptObjectError."""
    try:
        return container.decode(data)[1].tobytes()
    except CorruptObjectError:
        return None


INTACT = payload_or_none(SMALL)


def test_no_flipped_bit_gives_another_payload() -> None:
    """With any single bit of a container flipped, the very same payload is read, or none."""
    assert INTACT is not None
    for i in range(8 * len(SMALL)):
        broken = bytearray(SMALL)
        broken[i // 8] ^= 1 << i % 8
        assert payload_or_none(bytes(broken)) in (None, INTACT), f"bit {i % 8} of byte {i // 8}"


def test_no_flipped_bit_gives_another_digest() -> None:
    """A flip can't rename an object either: the digest in the head is checked like the rest."""
    for i in range(8 * 20, 8 * 52):
        broken = bytearray(SMALL)
        broken[i // 8] ^= 1 << i % 8
        assert payload_or_none(bytes(broken)) is None, f"bit {i % 8} of byte {i // 8}"


def test_no_truncation_is_read() -> None:
    """A container that ends early, wherever, is refused."""
    assert [cut for cut in range(len(SMALL)) if payload_or_none(SMALL[:cut]) is not None] == []


@given(st.binary(min_size=1))
@example(b"\0")
@example(SMALL)
def test_nothing_may_follow_a_container(more: bytes) -> None:
    """Appended bytes, be it a second container, are refused."""
    assert payload_or_none(SMALL + more) is None


@given(st.binary(max_size=300))
def test_random_bytes_are_no_container(data: bytes) -> None:
    """Whatever a file holds, the error is a CorruptObjectError."""
    assert payload_or_none(data) is None and payload_or_none(SMALL[:8] + data) is None


LENGTHS = st.sampled_from([0, 1, 2, 8, 16, 32, 64, 80, 128, FRAME_LIMIT, FRAME_LIMIT + 1, HUGE, 2**64 - 1])
STORED = st.sampled_from([row[0] for row in PIECES] + [b"", BOMB, bytes(16), b"\x28\xb5\x2f\xfd"]) | st.binary(
    max_size=40
)
ROWS = st.sampled_from(PIECES) | st.tuples(STORED, LENGTHS, st.integers(0, 4), st.integers(0, 9), st.integers(0, 9))


@given(st.lists(ROWS, max_size=5), st.none() | LENGTHS, st.booleans())
def test_forged_tables_are_read_as_they_say_or_refused(rows: list[Row], length: int | None, headed: bool) -> None:
    """Frames with right checksums but any other content are a CorruptObjectError or a payload of the length stated."""
    rows = [PIECES[0], *rows] if headed else rows
    found = payload_or_none(built(rows, length))
    assert found is None or len(found) == (sum(row[1] for row in rows) if length is None else length)


@pytest.mark.parametrize(
    ("rows", "length"),
    [
        ([header("U8", 16), (b"\0", HUGE, FILL, 0, 1)], None),
        ([header("U8", 16), (b"\0", 1 << 35, FILL, 0, 1)], None),
        ([header("U8", 1 << 35), (b"\0", 16, FILL, 0, 1)], None),
        ([header("U8", 16), (BOMB, HUGE, ZSTD, 0, 1)], None),
        ([header("U8", 16), (BOMB, 16, ZSTD, 0, 1)], None),
        ([header("U8", 16), (bytes(16), HUGE, RAW, 0, 1)], None),
        ([header("U8", 16), plain(bytes(16))], HUGE),
        ([header("U8", 16), plain(bytes(16))], 1 << 35),
        ([(b" ", HUGE, FILL, 0, 1)], None),
        ([(b" ", 1 << 35, FILL, 0, 1)], None),
        ([(BOMB, 64, ZSTD, 0, 1)], None),
        ([header("F32", 4), *((b"\0", HUGE, FILL, p, 4) for p in range(1, 5))], None),
        ([header("F32", 4), *((b"\0", 1 << 33, FILL, p, 4) for p in range(1, 5))], None),
    ],
)
def test_a_length_that_lies_is_refused_before_anything_is_allocated(rows: list[Row], length: int | None) -> None:
    """Wherever a small file claims an enormous length, decoding it takes less than 1 MiB."""
    assert refused(built(rows, length))


def test_a_header_that_claims_2_to_the_60_bytes_is_refused() -> None:
    """The header's own lengths aren't believed either."""
    text = f'{{"t":{{"dtype":"U8","shape":[{HUGE}],"data_offsets":[0,{HUGE}]}}}}'.encode()
    text = text.ljust(-(8 + len(text)) % 64 + len(text))
    claim = plain(len(text).to_bytes(8, "little") + text)
    assert refused(built([claim, (b"\0", HUGE, FILL, 0, 1)])) and refused(built([claim, plain(b"\0")]))


@pytest.mark.parametrize("count", [0, 3, 2**32 - 1])
def test_a_frame_count_that_lies_is_refused(count: int) -> None:
    """A table that the file is too short for isn't looked at, even under a right checksum."""
    data = bytearray(built([header("U8", 1), plain(b"x")]))
    struct.pack_into("<I", data, 16, count)
    struct.pack_into("<I", data, 4, (60 + 40 * count) % 2**32)
    assert refused(bytes(data))


def corrupt_cases() -> dict[str, bytes]:
    """Containers under right checksums that `encode` never writes."""
    head, body = header("U8", 16), bytes(range(16))
    compressed, unsized = zstandard.compress(body), zstandard.ZstdCompressor(write_content_size=False)
    wide = header("F32", 4)
    planes: list[Row] = [(body[p::4], 4, RAW, p + 1, 4) for p in range(4)]
    return {
        "zstd says less than the table": built([header("U8", 17), (compressed, 17, ZSTD, 0, 1)]),
        "zstd says more than the table": built([header("U8", 15), (compressed, 15, ZSTD, 0, 1)]),
        "zstd says nothing": built([head, (unsized.compress(body), 16, ZSTD, 0, 1)]),
        "two zstd frames in one": built([head, (compressed + compressed, 16, ZSTD, 0, 1)]),
        "bytes behind a zstd frame": built([head, (compressed + b"\0", 16, ZSTD, 0, 1)]),
        "half a zstd frame": built([head, (compressed[:-3], 16, ZSTD, 0, 1)]),
        "no zstd frame": built([head, (b"", 16, ZSTD, 0, 1)]),
        "an unknown codec": built([head, (body, 16, 3, 0, 1)]),
        "raw of another length": built([header("U8", 15), (body, 15, RAW, 0, 1)]),
        "a frame of nothing": built([head, (b"", 0, RAW, 0, 1), plain(body)]),
        "a frame beyond the limit": built([header("U8", FRAME_LIMIT + 1), plain(bytes(FRAME_LIMIT + 1))]),
        "a fill of 3 bytes": built([header("U8", 15), (b"abc", 15, FILL, 0, 1)]),
        "a fill of no bytes": built([head, (b"", 16, FILL, 0, 1)]),
        "a fill that doesn't divide": built([header("U8", 15), (b"ab", 15, FILL, 0, 1)]),
        "a parameter": built([head, plain(body)], parameter=1),
        "reserved bytes": built([head, plain(body)], reserved=b"\0\0\1\0\0"),
        "planes missing": built([wide, *planes[:3], plain(b"abcd")]),
        "planes exchanged": built([wide, planes[1], planes[0], *planes[2:]]),
        "planes twice": built([wide, planes[0], planes[0], *planes[2:]]),
        "planes of several lengths": built([wide, (b"abc", 3, RAW, 1, 4), (b"abcde", 5, RAW, 2, 4), *planes[2:]]),
        "planes of several sizes": built([wide, planes[0], (b"abcd", 4, RAW, 2, 8), *planes[2:]]),
        "a plane beyond its element": built([wide, *planes[:3], (b"abcd", 4, RAW, 5, 4)]),
        "planes of 3 bytes": built([header("U8", 12), *((b"abcd", 4, RAW, p, 3) for p in (1, 2, 3))]),
        "an element without a filter": built([wide, (body, 16, RAW, 0, 4)]),
        "a filtered header": built([(head[0], len(head[0]), RAW, 1, 2), plain(body)]),
        "a frame across two tensors": built(
            [plain(Layout.of([("a", TensorInfo("U8", (8,))), ("b", TensorInfo("U8", (8,)))]).header), plain(body)]
        ),
        "a frame too many": built([head, plain(body), plain(b"x")], length=len(head[0]) + 16),
        "a frame more than the tensors": built([head, plain(body), plain(b"x")]),
        "a frame too few": built([head, plain(body[:8])]),
        "no frame": built([]),
        "no header": built([plain(body)]),
        "a header that isn't canonical": built([plain(head[0].replace(b'"t"', b'"t" ')[:-1]), plain(body)]),
        "another payload length": built([head, plain(body)], length=len(head[0]) + 15),
        "another magic": built([head, plain(body)]).replace(b"CSO1", b"CSO2"),
        "another skippable frame": b"\x50" + built([head, plain(body)])[1:],
    }


@pytest.mark.parametrize("case", corrupt_cases())
def test_what_encode_never_writes_is_refused(case: str) -> None:
    """Right checksums don't help a container whose frames aren't those of its tensors."""
    assert payload_or_none(corrupt_cases()[case]) is None


@pytest.mark.parametrize(("offset", "field"), [(12, "version"), (14, "flags")])
def test_a_newer_format_is_refused_as_such(offset: int, field: str) -> None:
    """A version or flag that this casstore doesn't know is refused with a hint at a newer one."""
    data = bytearray(SMALL)
    struct.pack_into("<H", data, offset, 2)
    end = 60 + 40 * len(PIECES)
    struct.pack_into("<Q", data, end, xxh3(bytes(data[8:end])))
    with pytest.raises(CorruptObjectError, match=f"{field} (0x)?2.*newer casstore"):
        container.decode(bytes(data))


def test_another_object_than_asked_for_is_refused() -> None:
    """A file that holds another digest than its name says is an error that names both."""
    assert container.decode(SMALL, b"d" * 32)[2] == b"d" * 32
    with pytest.raises(CorruptObjectError, match=f"{'64' * 32}, not {'65' * 32}"):
        container.decode(SMALL, b"e" * 32)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_payload_owns_its_memory(kind: Any) -> None:
    """From whatever buffer it was read, a payload can be changed and leaves the buffer alone."""
    buffer = kind(SMALL)
    container.decode(buffer)[1][:] = 0
    assert bytes(buffer) == SMALL
