"""The container as it is written: its frames, and what it saves."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from kit import DATA

from casstore.objects import container
from casstore.objects.container import Frame
from casstore.objects.planes import merge, split
from casstore.objects.table import FILL, FRAME_LIMIT, RAW, ZSTD, read_table
from casstore.objects.tensors import Payload, to_payload


def encoded(payload: Payload) -> bytes:
    """The whole container of a payload."""
    return b"".join(container.encode(payload.layout, payload.data, payload.digest))


def frames_of(data: bytes) -> list[Frame]:
    return read_table(memoryview(data), len(data))[0]


def noise(count: int, symbols: int = 256) -> np.ndarray[Any, Any]:
    """Random bytes of so many different values, so of log2(symbols) bits each."""
    return np.random.default_rng(0).integers(0, symbols, count, dtype=np.uint8)


@given(st.sampled_from([2, 4, 8]), st.binary(max_size=200))
def test_merging_undoes_splitting(size: int, data: bytes) -> None:
    """Plane p holds byte p of each number, and all planes together give the bytes back."""
    raw = np.frombuffer(data, np.uint8)[: len(data) // size * size]
    planes = [np.empty(len(raw) // size, np.uint8) for _ in range(size)]
    for p, plane in enumerate(planes):
        split(raw, size, p, plane)
    assert [plane.tobytes() for plane in planes] == [raw[p::size].tobytes() for p in range(size)]
    out = np.empty(len(raw), np.uint8)
    merge(size, 0, range(size)[::-1], planes.__getitem__, out)
    assert out.tobytes() == raw.tobytes()


@given(st.sampled_from([2, 4, 8]), st.lists(st.none() | st.integers(0, 255), min_size=8, max_size=8))
def test_constant_planes_are_merged_as_one_number(size: int, values: list[int | None]) -> None:
    """Whichever planes are constant (None: this one isn't), merging gives the bytes that all of them hold."""
    planes = [noise(40 + p)[p:] if value is None else np.full(40, value, np.uint8) for p, value in enumerate(values)]
    constant = sum(value << 8 * p for p, value in enumerate(values[:size]) if value is not None)
    ranks = [p for p in reversed(range(size)) if values[p] is None]
    out = np.empty(40 * size, np.uint8)
    merge(size, constant, ranks, planes.__getitem__, out)
    assert out.tobytes() == np.stack(planes[:size], axis=1).tobytes()


def test_the_head_is_written_as_the_format_says() -> None:
    """Skippable frame, magic, version, flags, count, digest and payload length stand where the format puts them."""
    payload = to_payload({"a": noise(10), "b": np.zeros(3, "f4")})
    data = encoded(payload)
    assert struct.unpack_from("<II4sHHI32sQ", data) == (
        *(0x184D2A57, 52 + 3 * 40 + 8, b"CSO1", 1, 0, 3),
        *(payload.digest, len(payload.data)),
    )


def test_any_zstd_tool_steps_over_the_table() -> None:
    """A container of nothing but zstd frames without planes is, to zstd, just the compressed payload."""
    payload = to_payload({"a": noise(50, 2).repeat(99)})
    data = encoded(payload)
    assert {frame.codec for frame in frames_of(data)} == {ZSTD}
    with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as reader:
        assert reader.read() == payload.data.tobytes()


@pytest.mark.parametrize(
    ("dtype", "planes"),
    [("u1", 1), ("i2", 1), ("f2", 2), ("i4", 1), ("f4", 4), ("i8", 1), ("f8", 8), ("c8", 4), ("?", 1)],
)
def test_floats_are_split_into_planes(dtype: str, planes: int) -> None:
    """Each byte of a float is a frame of its own (a complex number is two floats); other dtypes are one frame."""
    values = np.arange(300) % 100 // 50 if dtype == "?" else np.arange(300) + 1
    _, *frames = frames_of(encoded(to_payload({"a": values.astype(dtype)})))
    assert [frame.filter for frame in frames] == ([0] if planes == 1 else [*range(1, planes + 1)])
    assert {frame.element for frame in frames} == {planes}


@pytest.mark.parametrize("dtype", ["u1", "i8", "f2", "f4", "f8", "c8"])
def test_large_tensors_are_cut(dtype: str) -> None:
    """No frame, and no group of planes, holds more than 4 MiB, and the pieces give the tensor back."""
    size = np.dtype(dtype).itemsize
    payload = to_payload({"a": noise((2 * FRAME_LIMIT // size + 5) * size).view(dtype), "b": noise(7)})
    data = encoded(payload)
    _, *frames = frames_of(data)
    spans = [frame.raw * frame.element for frame in frames if frame.filter <= 1]
    assert spans == [FRAME_LIMIT, FRAME_LIMIT, 5 * size, 7]
    assert np.array_equal(container.decode(data)[1], payload.data)


@pytest.mark.parametrize(("symbols", "codec"), [(256, RAW), (200, RAW), (128, ZSTD), (100, ZSTD)])
def test_a_frame_that_saves_less_than_a_tenth_is_stored_raw(symbols: int, codec: int) -> None:
    """7.6 bits per byte aren't worth a decompression, 7 bits are."""
    _, frame = frames_of(encoded(to_payload({"a": noise(100_000, symbols)})))
    assert frame.codec == codec
    assert frame.stored == frame.raw if codec == RAW else frame.stored <= 0.9 * frame.raw


def test_each_plane_is_judged_by_itself() -> None:
    """Of floats in [1, 2) the sign and exponent are a fill, their last bit is compressed, pure mantissa is raw."""
    values = np.random.default_rng(0).uniform(1, 2, 50_000).astype("f4")
    _, *frames = frames_of(encoded(to_payload({"a": values})))
    assert [frame.codec for frame in frames] == [RAW, RAW, ZSTD, FILL]


def test_empty_tensors_have_no_frame() -> None:
    """An object that holds nothing is its header alone."""
    data = encoded(to_payload({"a": np.empty((0, 3), "f4")}))
    assert len(frames_of(data)) == 1


def test_equal_payloads_have_equal_containers() -> None:
    """What was compressed before in this thread leaves no trace."""
    payload = to_payload({"a": noise(1000, 3), "b": np.linspace(0, 1, 1000)})
    first = encoded(payload)
    encoded(to_payload({"other": noise(5000, 7).view("f2")}))
    assert encoded(payload) == first


@pytest.mark.parametrize(("name", "ratio"), [("latents_bf16", 0.67), ("latents_fp16", 0.86)])
def test_real_latents_are_stored_small(name: str, ratio: float) -> None:
    """Latents of real photos, one object each, take no more of their raw size than the design promises."""
    file = DATA / f"{name}.safetensors"
    if not file.is_file():
        pytest.skip(f"the real latents aren't at {file}")
    from safetensors.torch import load_file

    payloads = [to_payload({"latent": tensor}) for tensor in load_file(file).values()]
    assert sum(len(encoded(p)) for p in payloads) <= ratio * sum(p.layout.data_nbytes for p in payloads)
