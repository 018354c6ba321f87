"""What repeats is found, to the byte, and stored as a fill."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from casstore.objects import container
from casstore.objects.fills import _BLOCK, TAIL_MIN, repeated_tail
from casstore.objects.table import FILL, FRAME_LIMIT, ZSTD, Frame, read_table
from casstore.objects.tensors import to_payload, to_torch

BORDERS = [0, TAIL_MIN, 8 * _BLOCK, 8 * _BLOCK + TAIL_MIN, 16 * _BLOCK + TAIL_MIN]
LENGTHS = st.builds(lambda border, more: max(border + more, 0), st.sampled_from(BORDERS), st.integers(-24, 24))
PATTERNS = st.sampled_from([1, 2, 4, 8]).flatmap(lambda size: st.binary(min_size=size, max_size=size))


def frames_of(tensors: dict[str, Any]) -> list[Frame]:
    """The frames of these tensors' container, without that of the header."""
    payload = to_payload(tensors)
    data = b"".join(container.encode(payload.layout, payload.data, payload.digest))
    assert np.array_equal(container.decode(data, payload.digest)[1], payload.data)
    return read_table(memoryview(data), len(data))[0][1:]


@given(st.binary(max_size=40), PATTERNS, LENGTHS)
@example(b"x", b"\0", 16 * _BLOCK)
@example(b"", bytes(8), 8)
@example(b"", b"abcdefgh", 8)
@example(b"gh", b"abcdefgh", 16)
@example(b"fgh", b"\1", 0)
def test_the_tail_that_is_found_is_all_that_repeats(front: bytes, pattern: bytes, length: int) -> None:
    """What is found repeats to the end, nothing longer does in steps of 8 bytes, and a short one is left alone."""
    data = (front + pattern * (length // len(pattern))) or b"x"
    begin, found = repeated_tail(np.frombuffer(data, np.uint8))
    words = [data[i : i + 8] for i in range(len(data) % 8, len(data), 8)]
    same = next((i for i, word in enumerate(reversed(words)) if word != words[-1]), len(words))
    if begin == len(data):
        assert found == b"" and (8 * same < TAIL_MIN)
    else:
        assert data[begin:] == found * ((len(data) - begin) // len(found)) and len(found) < len(data)
        assert begin == 0 or (len(data) - begin == 8 * same >= TAIL_MIN)


@given(PATTERNS.filter(any), st.integers(2, 50))
def test_data_that_is_all_one_pattern_is_found_whatever_its_length(pattern: bytes, count: int) -> None:
    """There is no least length for a repetition that begins at the beginning, and the shortest pattern is stored."""
    begin, found = repeated_tail(np.frombuffer(pattern * count, np.uint8))
    assert begin == 0 and found * (len(pattern) // len(found)) == pattern
    assert all(pattern != pattern[:size] * (len(pattern) // size) for size in (1, 2, 4) if size < len(found))


@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, float("nan"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.complex64])
def test_a_constant_tensor_is_one_fill(dtype: torch.dtype, value: float) -> None:
    """Whatever the number, even rank 0 of complex zeros, and -0.0 stays what it is."""
    tensor = torch.full((1000, 7), value, dtype=dtype)
    (frame,) = frames_of({"t": tensor})
    assert (frame.codec, frame.filter, frame.raw) == (FILL, 0, tensor.nbytes) and frame.stored <= tensor.itemsize


def test_a_fill_stands_for_more_than_a_frame_holds() -> None:
    """Constant data is not cut at 4 MiB."""
    (frame,) = frames_of({"t": torch.zeros(FRAME_LIMIT + 3, dtype=torch.uint8)})
    assert (frame.codec, frame.stored, frame.raw) == (FILL, 1, FRAME_LIMIT + 3)


@pytest.mark.parametrize("dtype", ["u1", "i2", "f2", "f4", "f8", "c8"])
@pytest.mark.parametrize("count", [100, (FRAME_LIMIT + 800) // 8])
def test_padding_is_a_frame_of_its_own_behind_the_rest(dtype: str, count: int) -> None:
    """The frames in front are those of the trimmed tensor, to the byte, and the padding is one fill."""
    size = np.dtype(dtype).itemsize
    rest = np.random.default_rng(0).integers(1, 99, count * 8, dtype=np.uint8).view(dtype)
    padded = np.concatenate([rest, np.zeros(4096 // size, dtype)])
    *front, tail = frames_of({"t": padded})
    assert (tail.codec, tail.filter, tail.stored, tail.raw) == (FILL, 0, 1, 4096)
    assert [f._replace(start=0) for f in front] == [f._replace(start=0) for f in frames_of({"t": rest})]


def test_a_tail_that_begins_inside_a_number_is_cut_at_a_number() -> None:
    """Where the last bytes of a number already belong to the pattern, its number stays with the rest."""
    tensor = np.zeros(1024, "<f8")
    tensor[:100] = np.arange(100) + 0.5
    tensor.view(np.uint8)[803:] = 7  # from byte 3 of number 100 on
    *_, tail = frames_of({"t": tensor})
    assert tail.codec == FILL and tail.raw % 8 == 0 and tail.raw == 8 * 923


def test_short_padding_is_left_to_zstd() -> None:
    """A tail below 1 KiB isn't worth a row in the table."""
    noise = np.random.default_rng(0).integers(0, 256, 4096, dtype=np.uint8)
    assert len(frames_of({"t": np.concatenate([noise, np.zeros(TAIL_MIN - 8, np.uint8)])})) == 1
    assert len(frames_of({"t": np.concatenate([noise, np.zeros(TAIL_MIN, np.uint8)])})) == 2


@pytest.mark.parametrize(("narrow", "fills"), [(torch.bfloat16, [0, 1]), (torch.float16, [0])])
def test_what_was_widened_is_stored_narrow(narrow: torch.dtype, fills: list[int]) -> None:
    """fp32 that holds bf16 or fp16 numbers has planes of zeros, which are fills of one byte."""
    frames = frames_of({"t": torch.randn(8192, generator=torch.Generator().manual_seed(0)).to(narrow).float()})
    assert [p for p, frame in enumerate(frames) if (frame.codec, frame.stored) == (FILL, 1)] == fills
    assert frames[3].codec == ZSTD


# -- sizes that users were promised (cases T53 and T55 of the specification) ----------------------------------------


def stored_nbytes(tensor: torch.Tensor) -> int:
    """The size of a tensor's object file; it reads back bit for bit, in its dtype."""
    payload = to_payload({"latent": tensor})
    data = b"".join(container.encode(payload.layout, payload.data, payload.digest))
    layout, read, _ = container.decode(data, payload.digest)
    found = to_torch(read, layout)["latent"]
    assert found.dtype == tensor.dtype and to_payload({"latent": found}).digest == payload.digest
    return len(data)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("tensor", "ratio"),
    [
        (normal(16, 64, 64).bfloat16().float(), 0.40),
        (normal(16, 64, 64).half().float(), 0.50),
        (torch.ones(256, 256, dtype=torch.bool), 0.01),
        (torch.ones(1, 64, 128, dtype=torch.float32), 0.01),
        (normal(16, 64, 64), 0.86),
    ],
    ids=["bf16 in fp32", "fp16 in fp32", "mask", "fp32 mask", "fp32"],
)
def test_uncompressed_fp32_is_a_thing_of_the_past(tensor: torch.Tensor, ratio: float) -> None:
    """Widened latents, masks and even real fp32 take these shares of their raw size, container included."""
    assert stored_nbytes(tensor) <= ratio * tensor.nbytes


@given(st.integers(0, 400), st.integers(0, 2**32))
def test_a_container_costs_its_table_at_most(count: int, seed: int) -> None:
    """Numbers that don't compress take their raw size, head, two rows and the payload header."""
    tensor = np.random.default_rng(seed).integers(0, 2**32, count, dtype=np.uint32).view(np.float32)
    payload = to_payload({"t": tensor})
    data = container.encode(payload.layout, payload.data, payload.digest)
    assert sum(map(len, data)) <= 60 + 2 * 40 + 8 + len(payload.data)


@pytest.mark.parametrize("value", [0.0, 1.5, -0.0])
@pytest.mark.parametrize("rows", [20, 60, 200, 511])
def test_padding_costs_next_to_nothing(rows: int, value: float) -> None:
    """An embedding padded to 512 rows with any number takes at most 5 % more than its real rows alone."""
    padded = torch.full((512, 1024), value, dtype=torch.bfloat16)
    padded[:rows] = normal(rows, 1024).bfloat16()
    assert stored_nbytes(padded) <= 1.05 * stored_nbytes(padded[:rows])
