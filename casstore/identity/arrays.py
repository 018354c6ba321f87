"""Arrays as plain values: torch tensors and NumPy arrays of equal dtype, shape and bytes are the same."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import xxhash

from casstore.errors import UsageError
from casstore.identity.digests import ARRAY_CONTEXT, json_digest
from casstore.identity.dtypes import ELEMENT_SIZE, dtype_name
from casstore.identity.weights import tensor_bytes
from casstore.model import Content, TensorInfo


def is_tensor(value: Any) -> bool:
    """Whether a value is a torch tensor or a NumPy array."""
    torch = sys.modules.get("torch")
    return isinstance(value, np.ndarray) or (torch is not None and isinstance(value, torch.Tensor))


def shape_of(value: Any) -> tuple[int, ...]:
    """The shape of a torch tensor or a NumPy array."""
    return tuple(int(size) for size in value.shape)


def info_and_bytes(name: str, value: Any) -> tuple[TensorInfo, np.ndarray[Any, np.dtype[np.uint8]]]:
    """What a tensor or array is, and its elements, row-major and little endian, as uint8 [its bytes].

    Raises:
        UsageError: it is neither, or of a dtype or layout that has no plain bytes; the message names it.
    """
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


def array_content(array: Any, name: str = "array") -> Content:
    """The content that an array is: its dtype, shape and bytes decide, not strides, device or library.

    Args:
        array: torch tensor or NumPy array, of any shape.
        name: for errors.

    Raises:
        UsageError: it is neither, or has no plain bytes.
    """
    info, data = info_and_bytes(name, array)
    # XXH3 of the bytes, since arrays are large; BLAKE3 of what is left keeps them apart from all other kinds.
    parts = [info.dtype, list(info.shape), xxhash.xxh3_128_hexdigest(data.data)]
    return Content("array", json_digest(ARRAY_CONTEXT, parts), len(data), array=array)
