"""Reading tensors of an object by themselves: the same bytes as all of it, or a CorruptObjectError."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from casstore.errors import CorruptObjectError
from casstore.identity.dtypes import ELEMENT_SIZE
from casstore.model import TensorInfo
from casstore.objects import container
from casstore.objects.payload import Layout
from casstore.objects.planes import Bytes
from casstore.objects.table import FILL, FRAME_LIMIT, FRAMES_LIMIT, HEAD_NBYTES, RAW, ZSTD, read_table
from casstore.objects.tensors import payload_digest, to_payload

Whole = tuple[Layout, Bytes, bytes]  # layout, payload, digest


def whole(layout: Layout, content: dict[str, bytes]) -> Whole:
    """A payload of these bytes."""
    payload = np.frombuffer(layout.header + b"".join(content[name] for name in layout.spans), np.uint8).copy()
    return layout, payload, payload_digest(payload)


def tensor_of(value: Whole, name: str) -> bytes:
    """The bytes of one tensor."""
    begin, end = (len(value[0].header) + edge for edge in value[0].spans[name])
    return value[1][begin:end].tobytes()


def file_of(value: Whole) -> bytes:
    return b"".join(container.encode(*value))


def room(layout: Layout, names: Any) -> dict[str, Bytes]:
    """Memory for some tensors."""
    sizes = {name: end - begin for name, (begin, end) in layout.spans.items()}
    return {name: np.full(sizes[name], 0xA5, np.uint8) for name in names}


@st.composite
def objects(draw: st.DrawFn) -> Whole:
    """Objects of up to 3 tensors of any dtype, out of noise, few symbols, repetitions and padding of any bits."""
    infos, content = {}, {}
    for name in draw(st.lists(st.sampled_from("abcde"), min_size=1, max_size=3, unique=True)):
        dtype = draw(st.sampled_from(sorted(ELEMENT_SIZE)))
        size = ELEMENT_SIZE[dtype]
        rng = np.random.default_rng(draw(st.integers(0, 2**32)))
        data = b""
        for _ in range(draw(st.integers(0, 3))):
            length = draw(st.sampled_from([0, 1, 8, 200, 1024, 5000])) * size
            symbols = draw(st.sampled_from([1, 2, 100, 256]))
            kind = draw(st.sampled_from(["symbols", "pattern", "planes"]))
            if kind == "pattern":
                pattern = draw(st.binary(min_size=8, max_size=8)) if symbols > 1 else b"\0\0\0\x80\0\0\xc0\x7f"
                data += (pattern * (length // 8 + 1))[:length]
            elif kind == "planes":  # each plane has symbols of its own, perhaps only one
                limits = draw(st.lists(st.sampled_from([1, 3, 256]), min_size=size, max_size=size))
                data += rng.integers(0, limits, (length // size, size), dtype=np.uint8).tobytes()
            else:
                data += rng.integers(0, symbols, length, dtype=np.uint8).tobytes()
        infos[name], content[name] = TensorInfo(dtype, (len(data) // size,)), data
    return whole(Layout.of(infos.items()), content)


@given(objects(), st.data())
def test_any_tensors_of_an_object_are_read_by_themselves(value: Whole, data: st.DataObject) -> None:
    """`decode` gives the payload, `decode_into` any of its tensors, bit for bit; the file is always the same."""
    layout, payload, digest = value
    before = payload.copy()
    file = file_of(value)
    assert np.array_equal(payload, before) and file == file_of(value)
    assert np.array_equal(container.decode(file, digest, len(payload))[1], payload)
    names = data.draw(st.lists(st.sampled_from([*layout.spans]), unique=True))
    out = room(layout, names)
    container.decode_into(file, digest, layout, out)
    assert {name: memory.tobytes() for name, memory in out.items()} == {name: tensor_of(value, name) for name in names}


@given(objects(), st.data())
def test_a_tensor_is_read_from_its_own_part_of_the_file(value: Whole, data: st.DataObject) -> None:
    """The head says how long the table is, the table where a tensor's frames are, and that is all that is needed."""
    layout, _, digest = value
    file = file_of(value)
    head = memoryview(file)[: container.table_span(memoryview(file)[:HEAD_NBYTES])]
    _, frames = container.frames_of(head, len(file), digest, layout)
    name = data.draw(st.sampled_from([*layout.spans]))
    stored = [memoryview(file[frame.start : frame.start + frame.stored]) for frame in frames[name]]
    out = room(layout, [name])
    container.decode_frames(frames[name], stored, out[name])
    assert out[name].tobytes() == tensor_of(value, name)


@pytest.mark.parametrize("dtype", ["BF16", "U8", "F64"])
def test_the_parts_of_a_large_tensor_may_be_decoded_by_a_pool(dtype: str) -> None:
    """With the map of a pool the tensor is the same, and each 4 MiB were a task."""
    size = ELEMENT_SIZE[dtype]
    data = np.random.default_rng(0).integers(0, 50, 2 * FRAME_LIMIT + 8 * size, dtype=np.uint8).tobytes()
    value = whole(Layout.of([("t", TensorInfo(dtype, (len(data) // size,)))]), {"t": data})
    out, counted = room(value[0], ["t"]), []
    with ThreadPoolExecutor(3) as pool:

        def mapped(function: Any, spans: Any) -> Any:
            counted.append(len(spans))
            return pool.map(function, spans)

        container.decode_into(file_of(value), value[2], value[0], out, mapped)
    assert out["t"].tobytes() == data and counted == [3]


# An object with each codec and filter, in tensors that are told apart by their dtypes.
RNG = np.random.default_rng(0)
MIXED = to_payload(
    {
        "raw": RNG.integers(0, 256, 90, dtype=np.uint8),
        "zstd": np.arange(300, dtype=np.int64) // 50,
        "planes": (RNG.integers(-99, 99, 150) / 64).astype(np.float32),
        "padded": np.concatenate([np.arange(60), np.zeros(512)]).astype(np.float16),
        "constant": np.full(3, -0.0, np.float64),
    }
)
NOISE = to_payload({"t": RNG.integers(0, 256, 64, dtype=np.uint8)})
PADDED = to_payload({"t": torch.cat([torch.randn(200, generator=torch.Generator().manual_seed(0)), torch.ones(600)])})
SMALL = {"mixed": MIXED, "noise": NOISE, "padded": PADDED}


def test_the_small_objects_hold_every_kind_of_frame() -> None:
    """The objects of the tests below have raw, zstd and fill frames, with and without planes."""
    files = [file_of_payload(payload) for payload in SMALL.values()]
    frames = [frame for file in files for frame in read_table(memoryview(file), len(file))[0]]
    assert {(f.codec, f.filter > 0) for f in frames} == {(c, planes) for c in (RAW, ZSTD, FILL) for planes in (0, 1)}


def file_of_payload(payload: Any) -> bytes:
    return file_of((payload.layout, payload.data, payload.digest))


def read_both(payload: Any, file: bytes) -> tuple[bytes | None, dict[str, bytes] | None]:
    """What `decode` and `decode_into` make of a file; None where it was refused with a CorruptObjectError."""
    by_name, out = None, room(payload.layout, payload.layout.spans)
    try:
        container.decode_into(file, payload.digest, payload.layout, out)
        by_name = {name: memory.tobytes() for name, memory in out.items()}
    except CorruptObjectError:
        pass
    try:
        return container.decode(file, payload.digest)[1].tobytes(), by_name
    except CorruptObjectError:
        return None, by_name


@pytest.mark.parametrize("name", SMALL)
def test_no_flipped_bit_gives_other_bytes(name: str) -> None:
    """With any single bit flipped an object is refused by either reader."""
    payload = SMALL[name]
    file = bytearray(file_of_payload(payload))
    intact = read_both(payload, bytes(file))
    assert intact[0] == payload.data.tobytes() and intact[1] is not None
    for i in range(8 * len(file)):
        file[i // 8] ^= 1 << i % 8
        assert read_both(payload, bytes(file)) == (None, None), f"bit {i % 8} of byte {i // 8}"
        file[i // 8] ^= 1 << i % 8


@pytest.mark.parametrize("name", SMALL)
def test_no_truncation_and_no_appendix_is_read(name: str) -> None:
    """A file that ends early, wherever, or goes on, is refused by either reader."""
    payload = SMALL[name]
    file = file_of_payload(payload)
    for broken in [*(file[:cut] for cut in range(len(file))), file + b"\0", file + file]:
        assert read_both(payload, broken) == (None, None), f"{len(broken)} of {len(file)} bytes"


def test_only_what_is_asked_for_is_looked_at() -> None:
    """Damage in one tensor is no damage of another, but the table is compared as a whole."""
    file = bytearray(file_of_payload(MIXED))
    frame = container.frames_of(memoryview(file), len(file), MIXED.digest, MIXED.layout)[1]["raw"][0]
    file[frame.start] ^= 1
    others = room(MIXED.layout, set(MIXED.layout.spans) - {"raw"})
    container.decode_into(file, MIXED.digest, MIXED.layout, others)
    value = (MIXED.layout, MIXED.data, MIXED.digest)
    assert all(memory.tobytes() == tensor_of(value, name) for name, memory in others.items())
    with pytest.raises(CorruptObjectError, match="checksum"):
        container.decode_into(file, MIXED.digest, MIXED.layout, room(MIXED.layout, ["raw"]))


@pytest.mark.parametrize(
    ("digest", "infos", "message"),
    [
        (b"x" * 32, None, "not 7878"),
        (None, [("t", TensorInfo("U8", (65,)))], "128 bytes, not 129"),
        (None, [("a" * 20, TensorInfo("U8", (0,)))], "first frame"),
        (None, [("t", TensorInfo("I8", (64,)))], "layout"),
        (None, [("t", TensorInfo("U8", (8, 8)))], "layout"),
    ],
)
def test_another_object_than_the_index_says_is_refused(digest: bytes | None, infos: Any, message: str) -> None:
    """A digest, length or layout that isn't that of the file is an error before anything is decoded."""
    layout = NOISE.layout if infos is None else Layout.of(infos)
    with pytest.raises(CorruptObjectError, match=message):
        container.decode_into(file_of_payload(NOISE), digest or NOISE.digest, layout, {})


def test_memory_of_another_size_is_refused() -> None:
    """A tensor that doesn't fill the given memory is the caller's mistake."""
    with pytest.raises(ValueError, match="64 bytes, the memory for it 65"):
        container.decode_into(file_of_payload(NOISE), NOISE.digest, NOISE.layout, {"t": np.empty(65, np.uint8)})


def test_a_table_longer_than_any_that_is_written_is_refused() -> None:
    """The head can't make a reader fetch more than some megabytes."""
    head = bytearray(file_of_payload(NOISE)[:HEAD_NBYTES])
    for count in (0, FRAMES_LIMIT + 1, 2**32 - 1):
        head[4:8] = ((52 + 40 * count + 8) % 2**32).to_bytes(4, "little")
        head[16:20] = count.to_bytes(4, "little")
        with pytest.raises(CorruptObjectError, match="frame table"):
            container.table_span(memoryview(head))
    with pytest.raises(CorruptObjectError, match="too short"):
        container.table_span(memoryview(head)[:-1])


def test_a_chunk_that_is_written_later_is_still_what_was_encoded() -> None:
    """Nothing that `encode` returned is memory which the next call uses again."""
    first = container.encode(PADDED.layout, PADDED.data, PADDED.digest)
    before = b"".join(first)
    other = to_payload({"t": np.random.default_rng(1).standard_normal(800).astype(np.float32)})
    container.decode(b"".join(container.encode(other.layout, other.data, other.digest)))
    assert b"".join(first) == before
