"""The bridge between torch tensors or NumPy arrays and payloads. torch is imported only when a torch tensor comes or
is asked for."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from blake3 import blake3

from casstore.errors import CorruptObjectError, NonFiniteError, UsageError
from casstore.identity.dtypes import ELEMENT_SIZE, FLOATS, NOT_IN_NUMPY, TORCH_NAME, dtype_name
from casstore.identity.weights import tensor_bytes
from casstore.model import TensorInfo
from casstore.objects.payload import Layout
from casstore.objects.planes import Bytes


@dataclass(frozen=True, slots=True)
class Payload:
    """A canonical payload that owns its memory, with its identity.

    Attributes:
        layout: names, dtypes, shapes.
        data: uint8 [layout.payload_nbytes].
        digest: BLAKE3-256 of data.
    """

    layout: Layout
    data: Bytes
    digest: bytes


def is_tensor(value: Any) -> bool:
    """Whether a value is a torch tensor or a NumPy array."""
    torch = sys.modules.get("torch")
    return isinstance(value, np.ndarray) or (torch is not None and isinstance(value, torch.Tensor))


def to_payload(tensors: Mapping[str, Any]) -> Payload:
    """The canonical payload of tensors; they are copied, never changed or kept.

    Args:
        tensors: {name: torch tensor or NumPy array, of any shape, strides and device}.

    Raises:
        UsageError: a dtype or layout that can't be stored; the message names the tensor.
    """
    found = {name: _info_and_bytes(name, tensor) for name, tensor in tensors.items()}
    layout = Layout.of((name, info) for name, (info, _) in found.items())
    data = np.empty(layout.payload_nbytes, np.uint8)
    head = len(layout.header)
    data[:head] = np.frombuffer(layout.header, np.uint8)
    for name, (begin, end) in layout.spans.items():
        data[head + begin : head + end] = found[name][1]
    return Payload(layout, data, payload_digest(data))


def payload_digest(data: Bytes) -> bytes:
    """The identity of an object: BLAKE3-256 of its payload (32 bytes)."""
    return blake3(data.data).digest()


def shape_of(value: Any) -> tuple[int, ...]:
    """The shape of a torch tensor or a NumPy array."""
    return tuple(int(size) for size in value.shape)


def check_finite(name: str, value: Any) -> None:
    """Refuse NaN and infinity.

    Raises:
        NonFiniteError: says how many of how many numbers aren't finite.
    """
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "fc":
            return
        bad = value.size - int(np.isfinite(value).sum())
        total = value.size
    else:
        import torch

        if dtype_name(value.dtype) not in FLOATS:
            return
        plain = value.detach()
        if plain.element_size() == 1:
            plain = plain.to(torch.float32)  # float8 has no isfinite of its own
        bad, total = int((~torch.isfinite(plain)).sum()), plain.numel()
    if bad:
        raise NonFiniteError(f"tensor {name!r} holds {bad:,} of {total:,} numbers that are NaN or infinite")


def to_torch(payload: Bytes, layout: Layout) -> dict[str, Any]:
    """{name: CPU torch tensor}; each owns its memory, so that changing one changes no other."""
    import torch

    found = {}
    for name, info, data in _slices(payload, layout):
        dtype = getattr(torch, TORCH_NAME[info.dtype], None)
        if dtype is None:
            raise UsageError(
                f"tensor {name!r} has dtype {info.dtype}, which this torch ({torch.__version__}) doesn't know"
            )
        tensor = torch.empty(info.shape, dtype=dtype)
        if tensor.numel():
            tensor.reshape(-1).view(torch.uint8).copy_(torch.from_numpy(data))
        found[name] = tensor
    return found


def to_numpy(payload: Bytes, layout: Layout) -> dict[str, Any]:
    """{name: NumPy array}, each owning its memory; without torch.

    Raises:
        UsageError: a dtype that NumPy doesn't have (bfloat16, float8).
    """
    found = {}
    for name, info, data in _slices(payload, layout):
        if info.dtype in NOT_IN_NUMPY:
            raise UsageError(f"tensor {name!r} is {info.dtype}, which NumPy doesn't have; read it as a torch tensor")
        dtype = np.dtype(TORCH_NAME[info.dtype]).newbyteorder("<")
        found[name] = data.copy().view(dtype).reshape(info.shape)
    return found


def _slices(payload: Bytes, layout: Layout) -> list[tuple[str, TensorInfo, Bytes]]:
    head = len(layout.header)
    if len(payload) != layout.payload_nbytes:
        raise CorruptObjectError("the payload's length doesn't fit its layout")
    return [(name, layout.tensors[name], payload[head + b : head + e]) for name, (b, e) in layout.spans.items()]


def _info_and_bytes(name: str, value: Any) -> tuple[TensorInfo, Bytes]:
    if isinstance(value, np.ndarray):
        short = dtype_name(value.dtype.name)
        if short not in ELEMENT_SIZE or isinstance(value, np.ma.MaskedArray):
            kind = type(value).__name__ if short in ELEMENT_SIZE else value.dtype
            raise UsageError(f"tensor {name!r} is a NumPy {kind}, which can't be stored")
        dtype = value.dtype.newbyteorder("<") if value.dtype.byteorder == ">" else value.dtype
        return TensorInfo(short, shape_of(value)), np.ascontiguousarray(value, dtype).reshape(-1).view(np.uint8)
    if not is_tensor(value):
        raise UsageError(f"{name!r} is of type {type(value).__name__}, not a tensor or an array")
    short = dtype_name(value.dtype)
    if short not in ELEMENT_SIZE:
        raise UsageError(f"tensor {name!r} is {value.dtype}, which can't be stored; make it a plain dense tensor")
    return TensorInfo(short, shape_of(value)), tensor_bytes(f"tensor {name!r}", value)
