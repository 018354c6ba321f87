"""The tensor bridge: what goes in comes out bit for bit, and equal tensors are equal bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from casstore.errors import CorruptObjectError, NonFiniteError, UsageError
from casstore.identity.dtypes import ELEMENT_SIZE, NOT_IN_NUMPY, TORCH_NAME
from casstore.objects import container
from casstore.objects.tensors import Payload, check_finite, to_numpy, to_payload, to_torch

DTYPES = sorted(ELEMENT_SIZE)
NUMPY_DTYPES = [TORCH_NAME[short] for short in DTYPES if short not in NOT_IN_NUMPY]

View = Callable[[torch.Tensor], torch.Tensor]
VIEWS: dict[str, View] = {
    "plain": lambda t: t,
    "transposed": lambda t: t.permute([*range(t.ndim)][::-1]),
    "strided": lambda t: t[..., ::2] if t.ndim else t,
    "offset": lambda t: t[1:] if t.ndim else t,
    "column": lambda t: t[..., -1:] if t.ndim else t,
    "selected": lambda t: t[..., 0] if t.ndim and t.shape[-1] else t,
    "expanded": lambda t: t.unsqueeze(0).expand(3, *t.shape),
    "conjugated": lambda t: t.conj() if t.is_complex() else t,
    "negated": lambda t: torch._neg_view(t) if t.dtype in (torch.float32, torch.float64, torch.float16) else t,
    "imaginary": lambda t: t.conj().imag if t.is_complex() else t,
    "with grad": lambda t: t.requires_grad_() if t.is_floating_point() or t.is_complex() else t,
}


def torch_dtype(short: str) -> torch.dtype:
    found: torch.dtype = getattr(torch, TORCH_NAME[short])
    return found


def of_bits(data: bytes | np.ndarray[Any, Any], short: str, shape: tuple[int, ...] = (-1,)) -> torch.Tensor:
    """The tensor with these bytes (of a bool the lowest bit of each)."""
    raw = np.frombuffer(bytes(data), np.uint8) & (1 if short == "BOOL" else 255)
    tensor = torch.empty(len(raw) // ELEMENT_SIZE[short], dtype=torch_dtype(short))
    if len(raw):
        tensor.view(torch.uint8).copy_(torch.from_numpy(raw))
    return tensor.reshape(shape)


def bits(tensor: torch.Tensor) -> tuple[torch.dtype, torch.Size, bytes]:
    """Dtype, shape and bytes of a tensor, by way of a fresh copy."""
    fresh = torch.empty(tensor.shape, dtype=tensor.dtype)
    fresh.copy_(tensor.detach())
    return fresh.dtype, fresh.shape, fresh.reshape(-1).view(torch.uint8).numpy().tobytes() if fresh.numel() else b""


def stored(payload: Payload) -> tuple[Any, Any]:
    """(payload, layout) after a way through the container."""
    chunks = container.encode(payload.layout, payload.data, payload.digest)
    layout, data, digest = container.decode(b"".join(chunks), payload.digest)
    assert digest == payload.digest
    return data, layout


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """A view, of any kind, of a tensor of any dtype and shape that holds random bits."""
    short = draw(st.sampled_from(DTYPES))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    base = of_bits(generator.bytes(int(np.prod(shape)) * ELEMENT_SIZE[short]), short, shape)
    for view in draw(st.lists(st.sampled_from([*VIEWS]), max_size=2, unique=True)):
        if not base.requires_grad:
            base = VIEWS[view](base)
    return base


@given(
    st.dictionaries(st.text(min_size=1).filter(lambda name: name != "__metadata__"), tensors(), min_size=1, max_size=4)
)
def test_tensors_come_back_bit_for_bit(given_tensors: dict[str, torch.Tensor]) -> None:
    """Any named tensors survive payload and container with dtype, shape and every bit."""
    found = to_torch(*stored(to_payload(given_tensors)))
    assert {name: bits(tensor) for name, tensor in found.items()} == {
        name: bits(tensor) for name, tensor in given_tensors.items()
    }


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("short", ["F32", "BF16", "C64", "I64", "BOOL", "F8_E5M2"])
def test_a_view_is_stored_like_a_fresh_copy_of_its_values(view: str, short: str) -> None:
    """Strides, offsets, expansion, lazy conjugation and gradients leave no trace in the digest."""
    tensor = VIEWS[view](of_bits(np.random.default_rng(0).bytes(24 * ELEMENT_SIZE[short]), short, (2, 3, 4)))
    fresh = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())
    assert to_payload({"t": tensor}).digest == to_payload({"t": fresh}).digest


@pytest.mark.parametrize("kind", [torch.from_numpy, np.asarray], ids=["torch", "numpy"])
def test_a_column_of_a_single_row_is_stored_like_any_tensor(kind: Any) -> None:
    """A tensor of one element may have any stride; it equals a fresh one."""
    column = kind(np.arange(5.0).reshape(1, 5))[:, 2]
    assert to_payload({"t": column}).digest == to_payload({"t": kind(np.array([2.0]))}).digest


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (2, 0, 4)], ids=str)
@pytest.mark.parametrize("short", DTYPES)
def test_rank_0_and_empty_tensors_keep_their_shape(short: str, shape: tuple[int, ...]) -> None:
    """A scalar of each dtype stays rank 0, and each way of holding nothing stays itself."""
    tensor = of_bits(bytes(int(np.prod(shape)) * ELEMENT_SIZE[short]), short, shape)
    assert bits(to_torch(*stored(to_payload({"t": tensor})))["t"]) == bits(tensor)


@pytest.mark.parametrize("short", [short for short in DTYPES if ELEMENT_SIZE[short] <= 2])
def test_every_bit_pattern_of_a_small_dtype_survives(short: str) -> None:
    """All values of 1 and 2 bytes, so every NaN and -0.0, come back as the same bits."""
    tensor = of_bits(np.arange(256 ** ELEMENT_SIZE[short], dtype=f"<u{ELEMENT_SIZE[short]}").tobytes(), short)
    assert bits(to_torch(*stored(to_payload({"t": tensor})))["t"]) == bits(tensor)


@pytest.mark.parametrize("short", ["F32", "F64", "C64"])
def test_nan_payloads_and_the_sign_of_zero_survive(short: str) -> None:
    """Quiet and signalling NaNs with payloads, infinities and -0.0 come back as the same bits."""
    patterns = [0xFFC00001, 0x7F800001, 0x7FC12345, 0x80000000, 0xFF800000, 0x7FF00000, 0xFFF80000, 1]
    tensor = of_bits(np.array(patterns, "<u4").repeat(2).tobytes() + np.array(patterns, "<u4").tobytes(), short)
    assert bits(to_torch(*stored(to_payload({"t": tensor})))["t"]) == bits(tensor)


@given(st.data())
def test_arrays_come_back_bit_for_bit(data: st.DataObject) -> None:
    """NumPy arrays of any shape, strides and byte order come back native, with the same values to the bit."""
    dtype = np.dtype(data.draw(st.sampled_from(NUMPY_DTYPES))).newbyteorder(data.draw(st.sampled_from("<>")))
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
    generator = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    raw = np.frombuffer(generator.bytes(int(np.prod(shape)) * dtype.itemsize), np.uint8)
    array = (raw & 1 if dtype.kind == "b" else raw).view(dtype).reshape(shape)
    view = data.draw(st.sampled_from([lambda a: a, np.transpose, lambda a: a[..., ::-2] if a.ndim else a]))(array)
    found = to_numpy(*stored(to_payload({"a": view})))["a"]
    little = view if dtype.str[0] != ">" else view.byteswap()
    assert (found.dtype, found.shape) == (dtype.newbyteorder("="), view.shape)
    assert found.tobytes() == little.tobytes()


@pytest.mark.parametrize("name", NUMPY_DTYPES)
def test_torch_and_numpy_are_one_object(name: str) -> None:
    """Equal values have one digest, from torch or NumPy, in either byte order, and read as either."""
    array = np.arange(12).reshape(3, 4).astype(name)
    tensor = torch.from_numpy(array.copy())
    payload = to_payload({"t": tensor})
    swapped = array.astype(array.dtype.newbyteorder(">"))
    assert {to_payload({"t": same}).digest for same in (array, swapped, np.asfortranarray(array))} == {payload.digest}
    assert np.array_equal(to_numpy(payload.data, payload.layout)["t"], array)
    assert torch.equal(to_torch(payload.data, payload.layout)["t"], tensor)


@pytest.mark.parametrize("short", sorted(NOT_IN_NUMPY))
def test_what_numpy_does_not_have_is_refused_by_name(short: str) -> None:
    """bfloat16 and float8 read as an array are a UsageError that names the tensor, never other numbers."""
    payload = to_payload({"latent": of_bits(b"\0" * 4, short)})
    with pytest.raises(UsageError, match=f"'latent' is {short}"):
        to_numpy(payload.data, payload.layout)


def test_a_payload_digest_is_plain_blake3() -> None:
    """An object is named by the BLAKE3 of its payload."""
    payload = to_payload({"t": torch.ones(3)})
    assert payload.digest == blake3(payload.data.tobytes()).digest()


def test_a_payload_is_written_as_the_format_says() -> None:
    """Length, JSON, blanks up to a multiple of 64, then tensors by element size and name: byte for byte."""
    payload = to_payload({"b": np.array([1, 2], "i1"), "c": np.array(3, "<f4"), "a": np.array([True])})
    text = (
        b'{"c":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"a":{"dtype":"BOOL","shape":[1],"data_offsets":[4,5]},'
        b'"b":{"dtype":"I8","shape":[2],"data_offsets":[5,7]}}'
    )
    padded = text.ljust(-(-(8 + len(text)) // 64) * 64 - 8)
    assert payload.data.tobytes() == len(padded).to_bytes(8, "little") + padded + b"\0\0\x40\x40\1\1\2"


@given(st.permutations(["a", "b", "B", "ä", "😀", "\uff21"]))
def test_the_order_of_names_does_not_matter(names: list[str]) -> None:
    """A dict that was filled in another order is the same object."""
    values = {name: np.full(2, i, "i2" if i % 2 else "f8") for i, name in enumerate(sorted(names))}
    assert to_payload({name: values[name] for name in names}).digest == to_payload(values).digest


@pytest.mark.parametrize(
    "other",
    [
        {"u": torch.zeros(2, 3)},
        {"t": torch.zeros(3, 2)},
        {"t": torch.zeros(6)},
        {"t": torch.zeros(2, 3, dtype=torch.int32)},
        {"t": -torch.zeros(2, 3)},
        {"t": torch.zeros(2, 3), "u": torch.zeros(0)},
    ],
    ids=["name", "shape", "rank", "dtype", "sign of zero", "one more"],
)
def test_different_tensors_are_different_objects(other: dict[str, torch.Tensor]) -> None:
    """A name, a shape, a dtype, a sign or an empty tensor makes another digest."""
    assert to_payload(other).digest != to_payload({"t": torch.zeros(2, 3)}).digest


@pytest.mark.parametrize(
    "short", [short for short in DTYPES if short != "F8_E8M0"]
)  # safetensors' reader lacks that one
def test_a_payload_is_a_safetensors_file(short: str) -> None:
    """safetensors itself reads a payload, with tensors of other sizes, rank 0 and none beside."""
    given_tensors = {
        "t": of_bits(np.random.default_rng(0).bytes(6 * ELEMENT_SIZE[short]), short, (2, 3)),
        'odd "näme"\n😀': torch.arange(3, dtype=torch.float64),
        "scalar": torch.tensor(2.5, dtype=torch.float16),
        "empty": torch.empty(0, 2, dtype=torch.int8),
    }
    found = safetensors.torch.load(to_payload(given_tensors).data.tobytes())
    assert {n: bits(t) for n, t in found.items()} == {n: bits(t) for n, t in given_tensors.items()}


@pytest.mark.parametrize("kind", [torch.from_numpy, np.asarray], ids=["torch", "numpy"])
def test_a_payload_keeps_nothing_of_the_callers_tensors(kind: Any) -> None:
    """Changing a tensor after it was taken changes no byte of the payload."""
    tensor = kind(np.arange(6.0))
    payload = to_payload({"t": tensor})
    before = payload.data.tobytes()
    tensor[:] = 7
    assert payload.data.tobytes() == before


def test_the_callers_tensors_are_not_changed() -> None:
    """Values, version counter, gradient flag and strides are as before."""
    base = torch.arange(6.0).reshape(2, 3)
    tensor = base.clone().requires_grad_().mT
    array = np.arange(6, dtype=">f4")
    version = tensor._version
    to_payload({"tensor": tensor, "array": array})
    assert (tensor._version, tensor.requires_grad, tensor.stride()) == (version, True, (1, 3))
    assert torch.equal(tensor, base.mT) and array.dtype.str == ">f4" and array.tolist() == [*range(6)]


def test_a_read_only_array_can_be_stored() -> None:
    """Storing needs no right to write."""
    array = np.arange(4.0)
    array.flags.writeable = False
    assert np.array_equal(to_numpy(*stored(to_payload({"a": array})))["a"], array)


def test_a_slice_of_a_batch_stores_only_its_own_elements() -> None:
    """One row of a batch takes the bytes of one row, and is the object of its clone."""
    batch = torch.randn(16, 4, 8, 8)
    payload = to_payload({"latent": batch[3]})
    assert payload.layout.data_nbytes == 4 * 8 * 8 * 4 == len(payload.data) - len(payload.layout.header)
    assert payload.digest == to_payload({"latent": batch[3].clone()}).digest


@pytest.mark.parametrize("read", [to_torch, to_numpy])
def test_results_own_their_memory(read: Any) -> None:
    """Changing one result changes neither another one nor what the payload gives next."""
    payload = to_payload({"a": torch.zeros(4), "b": torch.zeros(4)})
    first, second = read(payload.data, payload.layout), read(payload.data, payload.layout)
    first["a"][:] = 1
    assert [t.tolist() for t in (first["b"], second["a"], read(payload.data, payload.layout)["a"])] == [[0.0] * 4] * 3


def test_a_result_holds_no_more_memory_than_its_own() -> None:
    """Keeping one small tensor of an object doesn't keep the whole object."""
    payload = to_payload({"small": torch.zeros(4), "large": torch.zeros(4096)})
    assert to_torch(payload.data, payload.layout)["small"].untyped_storage().nbytes() == 16


@pytest.mark.parametrize("read", [to_torch, to_numpy])
@pytest.mark.parametrize("cut", [slice(0, -1), slice(1, None)], ids=["end", "beginning"])
def test_a_payload_of_another_length_than_its_layout_is_refused(read: Any, cut: slice) -> None:
    """A payload that lost a byte is an error, never a shorter or shifted tensor."""
    payload = to_payload({"t": torch.zeros(4)})
    with pytest.raises(CorruptObjectError, match="length"):
        read(payload.data[cut], payload.layout)


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.array([object()]),
        lambda: np.array(["text"]),
        lambda: np.array(["text"], np.dtypes.StringDType()),
        lambda: np.array([b"bytes"]),
        lambda: np.zeros(2, "i4,f4"),
        lambda: np.zeros(2, "M8[s]"),
        lambda: np.zeros(2, np.complex128),
        lambda: np.zeros(2, np.longdouble),
        lambda: np.ma.masked_array([1.0, 2.0], [False, True]),
        lambda: torch.zeros(2, dtype=torch.complex128),
        lambda: torch.ones(2, 2).to_sparse(),
        lambda: torch.zeros(2, device="meta"),
        lambda: [1.0, 2.0],
        lambda: 1.0,
        lambda: None,
    ],
    ids=[
        *("objects", "strings", "variable strings", "bytes", "records", "dates", "numpy complex128", "long double"),
        *("masked", "complex128", "sparse", "meta", "list", "float", "None"),
    ],
)
def test_what_cannot_be_stored_is_refused_by_name(make: Callable[[], Any]) -> None:
    """Every other kind of value is a UsageError that names the tensor, not an approximation."""
    with pytest.raises(UsageError, match="'latent'"):
        to_payload({"fine": torch.ones(1), "latent": make()})


@pytest.mark.parametrize("name", ["", "\ud800", 1, None, "__metadata__"], ids=repr)
def test_a_name_that_cannot_be_stored_is_refused(name: Any) -> None:
    """Names are filled strings of valid Unicode, and not the one word that safetensors keeps for itself."""
    with pytest.raises(UsageError, match="name"):
        to_payload({name: torch.ones(1)})


BAD = [float("nan"), float("inf"), float("-inf"), 1.0]


@pytest.mark.parametrize(
    ("value", "count"),
    [
        (np.array(BAD, "f4"), 3),
        (np.array(BAD, ">f8"), 3),
        (np.array([complex(0, float("nan")), complex(float("inf"), 0), 1], "c8"), 2),
        (torch.tensor(BAD), 3),
        (torch.tensor(BAD, dtype=torch.bfloat16), 3),
        (torch.tensor(BAD, dtype=torch.float16).requires_grad_(), 3),
        (torch.tensor(BAD, dtype=torch.float8_e5m2), 3),
        (of_bits(b"\x7f\xff\x00\x7e", "F8_E4M3"), 2),
        (of_bits(b"\x80\x7f\x00", "F8_E4M3FNUZ"), 1),
        (of_bits(b"\x80\x7f\x00", "F8_E5M2FNUZ"), 1),
        (of_bits(b"\xff\xfe\x00", "F8_E8M0"), 1),
        (torch.tensor([complex(0, float("nan")), complex(float("inf"), 0), 1], dtype=torch.complex64), 2),
        (torch.tensor(float("nan")), 1),
    ],
    ids=lambda value: str(value.dtype) if hasattr(value, "dtype") else "",
)
def test_numbers_that_are_not_finite_are_counted(value: Any, count: int) -> None:
    """The error says how many of how many numbers are NaN or infinite, and of which tensor."""
    total = int(np.prod(value.shape))
    with pytest.raises(NonFiniteError, match=f"'latent' holds {count} of {total} numbers"):
        check_finite(to_payload({"latent": value}))


@pytest.mark.parametrize("short", DTYPES)
def test_finite_numbers_pass(short: str) -> None:
    """Ones of every dtype, and no number at all, are finite."""
    for value in (torch.ones(3).to(torch_dtype(short)), torch.empty(0, dtype=torch_dtype(short))):
        check_finite(to_payload({"latent": value}))
        if short not in NOT_IN_NUMPY:
            check_finite(to_payload({"latent": value.numpy()}))


@pytest.mark.parametrize("value", [np.array([2**63 - 1]), torch.tensor([2**63 - 1]), np.array([True])], ids=repr)
def test_integers_are_always_finite(value: Any) -> None:
    """What can't hold a NaN isn't searched for one."""
    check_finite(to_payload({"latent": value}))


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c8"])
@pytest.mark.parametrize("places", [(0,), (99_999,), (0, 50_000, 99_999)])
def test_what_is_not_finite_is_counted_anywhere_in_a_large_tensor(dtype: str, places: tuple[int, ...]) -> None:
    """Large tensors are looked at in pieces; a complex number whose parts are both NaN counts once."""
    array = np.full(100_000, -np.finfo(dtype).max, dtype)
    check_finite(to_payload({"t": array}))
    array[list(places)] = complex("nan+infj") if dtype == "c8" else -np.inf
    with pytest.raises(NonFiniteError, match=f"{len(places)} of 100,000"):
        check_finite(to_payload({"t": array}))
