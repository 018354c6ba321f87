"""What an encoder returned for one item, checked and made ready to be stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from casstore.errors import EncoderError, UsageError
from casstore.identity import resolutions
from casstore.identity.arrays import is_tensor, shape_of
from casstore.identity.canonical import exact
from casstore.identity.keys import Key
from casstore.objects.tensors import Payload, check_finite, to_payload


@dataclass(frozen=True, slots=True)
class Result:
    """A checked result; nothing of it refers to the caller's memory.

    Attributes:
        payload: the tensors.
        values: JSON text, or None if there are none.
        names: JSON text of the schema stamp: tensors with dtype and rank, and the names of the values.
    """

    payload: Payload
    values: str | None
    names: str


def check_result(
    key: Key,
    result: Mapping[str, Any],
    values: Mapping[str, Any] | None = None,
    *,
    allow_nonfinite: bool = False,
) -> Result:
    """Check what is to be stored under a key, and copy it.

    Args:
        key: what it is to be stored under.
        result: {name: tensor, array, or JSON value}.
        values: further values, for names that `result` doesn't have.
        allow_nonfinite: NaN and infinity are meant.

    Raises:
        EncoderError: it can't be stored; the message names the tensor or value.
        NonFiniteError: NaN or infinity.
    """
    if not isinstance(result, Mapping):
        raise EncoderError(f"a result is a dict of tensors and values, not {type(result).__name__}")
    for name in (*result, *(values or {})):
        if not isinstance(name, str) or not name or "." in name:
            raise EncoderError(f"{name!r} can't be the name of a tensor or value: names are strings without '.'")
    tensors = {name: value for name, value in result.items() if is_tensor(value)}
    plain = {**(values or {}), **{name: value for name, value in result.items() if name not in tensors}}
    for name in sorted(tensors.keys() & plain.keys()):
        plain.pop(name)  # what the encoder returns wins over the preprocess's value of that name
    if not tensors:
        raise EncoderError(f"a result holds at least one tensor; this one has {sorted(map(str, result)) or 'nothing'}")
    for name, tensor in tensors.items():
        _check_shape(key, name, shape_of(tensor))
    try:
        payload = to_payload(tensors)
        text = exact(plain, "value") if plain else None
    except UsageError as error:
        raise EncoderError(str(error)) from error
    if not allow_nonfinite:
        for name, tensor in tensors.items():
            check_finite(name, tensor)
    stamp = {
        "tensors": {name: [info.dtype, len(info.shape)] for name, info in payload.layout.tensors.items()},
        "values": sorted(plain),
    }
    return Result(payload, text, exact(stamp))


def _check_shape(key: Key, name: str, shape: tuple[int, ...]) -> None:
    stride, size = key.recipe.stride_of(name), resolutions.parse(key.resolution)
    if stride is None or size is None or len(shape) < 3:
        return
    expected = (size[0] / stride, size[1] / stride)
    if shape[-2:] != expected:
        wanted = "x".join(f"{side:g}" for side in expected)
        raise EncoderError(
            f"tensor {name!r} has shape {list(shape)}, so {shape[-2]}x{shape[-1]}; "
            f"at resolution {key.resolution} and stride {stride} it must be {wanted}"
        )
