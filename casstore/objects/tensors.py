"""The bridge between torch tensors or NumPy arrays and payloads. torch is imported only when a torch tensor comes or
is asked for."""

from __future__ import annotations

import ctypes
import functools
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from blake3 import blake3

from casstore.errors import CorruptObjectError, NonFiniteError, UsageError
from casstore.identity.arrays import info_and_bytes, is_tensor, shape_of
from casstore.identity.dtypes import ELEMENT_SIZE, FLOATS, NOT_IN_NUMPY, TORCH_NAME, dtype_name
from casstore.model import TensorInfo
from casstore.objects.payload import Layout, nbytes
from casstore.objects.planes import Bytes
from casstore.objects.scratch import Scratch, aligned


@dataclass(frozen=True)
class Payload:
    """A canonical payload that owns its memory.

    Attributes:
        layout: names, dtypes, shapes.
        data: uint8 [layout.payload_nbytes].
        known: its digest, where that is known already.
    """

    layout: Layout
    data: Bytes
    known: bytes | None = None

    @cached_property
    def digest(self) -> bytes:
        """Its identity: BLAKE3-256 of data, made by whoever asks first, so that an encoder needn't wait for it."""
        return payload_digest(self.data) if self.known is None else self.known


def to_payload(tensors: Mapping[str, Any]) -> Payload:
    """The canonical payload of tensors; they are copied, never changed or kept.

    Args:
        tensors: {name: torch tensor or NumPy array, of any shape, strides and device}.

    Raises:
        UsageError: a dtype or layout that can't be stored; the message names the tensor.
    """
    found = {name: _at_hand(tensor) or info_and_bytes(name, tensor) for name, tensor in tensors.items()}
    layout = Layout.of((name, info) for name, (info, _) in found.items())
    data = np.empty(layout.payload_nbytes, np.uint8)
    head = len(layout.header)
    data[:head] = np.frombuffer(layout.header, np.uint8)
    for name, (begin, end) in layout.spans.items():
        data[head + begin : head + end] = found[name][1]
    return Payload(layout, data)


def _at_hand(tensor: Any) -> tuple[TensorInfo, Bytes] | None:
    """What a plain contiguous torch tensor on the CPU is, and its memory; None: it is something else.

    Each call of torch's that gives the GIL away has to wait for it where other threads work, up to 5 ms: longer than
    everything else that is done here. These calls keep it.
    """
    torch = sys.modules.get("torch")
    if torch is None or type(tensor) is not torch.Tensor or not _is_plain(tensor):  # subclasses may have no memory
        return None
    short = _short(tensor.dtype)
    if short not in ELEMENT_SIZE:
        return None
    info = TensorInfo(short, shape_of(tensor))
    return info, _bytes_at(tensor.data_ptr(), nbytes(info))


def payload_digest(data: Bytes) -> bytes:
    """The identity of an object: BLAKE3-256 of its payload (32 bytes)."""
    return blake3(data.data).digest()


# Of floats: all bits but the sign, and what these are at least in infinity and NaN. (FNUZ: NaN is minus zero.)
_FIRST_NOT_FINITE = {
    "F16": ("u2", 0x7FFF, 0x7C00),
    "BF16": ("u2", 0x7FFF, 0x7F80),
    "F32": ("u4", 0x7FFF_FFFF, 0x7F80_0000),
    "C64": ("u4", 0x7FFF_FFFF, 0x7F80_0000),
    "F64": ("u8", 0x7FFF_FFFF_FFFF_FFFF, 0x7FF0_0000_0000_0000),
    "F8_E4M3": ("u1", 0x7F, 0x7F),
    "F8_E5M2": ("u1", 0x7F, 0x7C),
    "F8_E8M0": ("u1", 0xFF, 0xFF),
}
_FNUZ = ("F8_E4M3FNUZ", "F8_E5M2FNUZ")
_FINITE_BYTES = 1 << 17  # looked at together: with the intermediate result they stay in the cache
_scratch = Scratch()


def check_finite(payload: Payload) -> None:
    """Refuse NaN and infinity.

    NumPy looks at the bits: at the largest ones first, which takes a tenth of the time of `isfinite`. torch's threads
    wait for each other, so where other threads have work to do it takes up to a hundred times as long.

    Raises:
        NonFiniteError: says how many of how many numbers aren't finite.
    """
    for name, info, data in _slices(payload.data, payload.layout):
        if info.dtype not in FLOATS:
            continue
        parts = [data[start : start + _FINITE_BYTES] for start in range(0, len(data), _FINITE_BYTES)]
        if any(_not_finite(info.dtype, part, counted=False) for part in parts):
            # A complex number with two parts that aren't finite is one number.
            bad, total = sum(_not_finite(info.dtype, part, counted=True) for part in parts), math.prod(info.shape)
            raise NonFiniteError(f"tensor {name!r} holds {bad:,} of {total:,} numbers that are NaN or infinite")


def _not_finite(dtype: str, data: Bytes, *, counted: bool) -> int:
    """How many numbers are NaN or infinite; unless that is to be counted, whether there is one."""
    if dtype in _FNUZ:
        return int(np.count_nonzero(data == 0x80))
    kind, mask, first = _FIRST_NOT_FINITE[dtype]
    bits = data.view(kind)
    rest = _scratch.take(len(data)).view(kind)
    np.bitwise_and(bits, bits.dtype.type(mask), out=rest)
    if not counted:
        return int(rest.max() >= first)
    found = rest >= first
    return int(np.count_nonzero(found.reshape(-1, 2).any(1) if dtype == "C64" else found))


def new_tensor(name: str, info: TensorInfo, *, as_numpy: bool) -> tuple[Any, Bytes]:
    """A new tensor or array, uninitialised, that owns its memory; and that memory.

    Args:
        name: for the error.
        info: dtype and shape.
        as_numpy: an array instead of a CPU torch tensor; torch isn't imported then.

    Returns:
        The tensor, and uint8 [its bytes] that begins at a multiple of 64.

    Raises:
        UsageError: a dtype that this torch, or NumPy, doesn't have (bfloat16, float8).
    """
    if as_numpy:
        memory = aligned(nbytes(info))
        return memory.view(_numpy_dtype(name, info)).reshape(info.shape), memory
    import torch

    tensor = torch.empty(info.shape, dtype=_torch_dtype(name, info), device="cpu")  # whatever the default device is
    return tensor, _bytes_at(tensor.data_ptr(), nbytes(info))


def batch_tensor(name: str, info: TensorInfo, count: int, *, shared: bool) -> tuple[Any, Bytes]:
    """A new torch tensor for `count` tensors of the same dtype and shape; and its memory.

    Args:
        name: for the error.
        info: dtype and shape of each.
        count: how many.
        shared: in memory that travels to another process of this machine without a copy.

    Returns:
        The tensor [count, ...], and uint8 [count, bytes of each].

    Raises:
        UsageError: a dtype that this torch doesn't have.
    """
    size = nbytes(info)
    whole = TensorInfo(info.dtype, (count, *info.shape))
    import torch

    new_shared = getattr(torch.UntypedStorage, "_new_shared", None)
    if not shared or new_shared is None or not size * count:
        tensor, memory = new_tensor(name, whole, as_numpy=False)
        return tensor, memory.reshape(count, size)
    tensor = torch.empty(0, dtype=_torch_dtype(name, info), device="cpu").set_(new_shared(size * count))
    return tensor.view(whole.shape), _bytes_at(tensor.data_ptr(), size * count).reshape(count, size)


def tensor_over(name: str, info: TensorInfo, memory: Bytes, *, as_numpy: bool) -> Any:
    """A tensor or array whose elements are in this memory (uint8 [its bytes], aligned to its elements).

    Raises:
        UsageError: as for `new_tensor`.
    """
    if as_numpy:
        return memory.view(_numpy_dtype(name, info)).reshape(info.shape)
    import torch

    dtype = _torch_dtype(name, info)
    if not len(memory):
        return torch.empty(info.shape, dtype=dtype, device="cpu")
    return torch.from_numpy(memory).view(dtype).view(info.shape)


def memory_of(name: str, value: Any) -> tuple[TensorInfo, Bytes]:
    """Dtype, shape and memory of a tensor or array that is to be read into.

    Returns:
        Its dtype and shape, and uint8 [its bytes].

    Raises:
        UsageError: it isn't contiguous, isn't in the memory of the CPU, or can't be written.
    """
    if not is_tensor(value):
        raise UsageError(f"out[{name!r}] is of type {type(value).__name__}, not a tensor or an array")
    if isinstance(value, np.ndarray):
        if not value.flags.c_contiguous or not value.flags.writeable or value.dtype.byteorder == ">":
            raise UsageError(f"out[{name!r}] can't be read into: it must be contiguous, writable and little endian")
        short = dtype_name(value.dtype.name)
        if short not in ELEMENT_SIZE or isinstance(value, np.ma.MaskedArray):
            raise UsageError(f"out[{name!r}] can't be read into: it is a {type(value).__name__} of {value.dtype}")
        return TensorInfo(short, value.shape), value.reshape(-1).view(np.uint8)
    if not _is_plain(value):
        raise UsageError(f"out[{name!r}] can't be read into: it must be a contiguous plain tensor on the CPU")
    info = TensorInfo(_short(value.dtype), tuple(value.shape))
    return info, _bytes_at(value.data_ptr(), nbytes(info))


def _is_plain(tensor: Any) -> bool:
    """Whether a torch tensor's memory holds its elements, row-major, on the CPU."""
    import torch

    strided = tensor.device.type == "cpu" and tensor.layout == torch.strided and tensor.is_contiguous()
    return strided and not (tensor.is_neg() or tensor.is_conj() or tensor.is_quantized)


def slots_of(value: Any) -> Sequence[Any]:
    """Views of a tensor or array at each place of its first dimension."""
    if isinstance(value, np.ndarray):
        return [value[number, ...] for number in range(len(value))]  # without the dots a single number is copied
    found: Sequence[Any] = value.detach().unbind(0)  # at once: one by one they cost a tenth of reading a latent
    return found


def _bytes_at(address: int, count: int) -> Bytes:
    """The memory of a tensor, which has to outlive it: at a third of the price of torch's own views of it."""
    if not count:
        return np.empty(0, np.uint8)
    return np.frombuffer(_array(count).from_address(address), np.uint8)


@functools.lru_cache(maxsize=256)
def _array(count: int) -> Any:
    return ctypes.c_ubyte * count


@functools.lru_cache
def _short(dtype: Any) -> str:
    return dtype_name(dtype)


def to_torch(payload: Bytes, layout: Layout) -> dict[str, Any]:
    """{name: CPU torch tensor}; each owns its memory, so that changing one changes no other."""
    return _copied(payload, layout, as_numpy=False)


def to_numpy(payload: Bytes, layout: Layout) -> dict[str, Any]:
    """{name: NumPy array}, each owning its memory; without torch.

    Raises:
        UsageError: a dtype that NumPy doesn't have (bfloat16, float8).
    """
    return _copied(payload, layout, as_numpy=True)


def _copied(payload: Bytes, layout: Layout, *, as_numpy: bool) -> dict[str, Any]:
    found = {}
    for name, info, data in _slices(payload, layout):
        found[name], memory = new_tensor(name, info, as_numpy=as_numpy)
        memory[:] = data
    return found


def _torch_dtype(name: str, info: TensorInfo) -> Any:
    import torch

    dtype = getattr(torch, TORCH_NAME[info.dtype], None)
    if dtype is None:
        raise UsageError(f"tensor {name!r} has dtype {info.dtype}, which this torch ({torch.__version__}) doesn't know")
    return dtype


def _numpy_dtype(name: str, info: TensorInfo) -> np.dtype[Any]:
    if info.dtype in NOT_IN_NUMPY:
        raise UsageError(f"tensor {name!r} is {info.dtype}, which NumPy doesn't have; read it as a torch tensor")
    return np.dtype(TORCH_NAME[info.dtype]).newbyteorder("<")


def _slices(payload: Bytes, layout: Layout) -> list[tuple[str, TensorInfo, Bytes]]:
    head = len(layout.header)
    if len(payload) != layout.payload_nbytes:
        raise CorruptObjectError("the payload's length doesn't fit its layout")
    return [(name, layout.tensors[name], payload[head + b : head + e]) for name, (b, e) in layout.spans.items()]
