"""What an encoder returned for one item, checked and made ready to be stored."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from casstore.errors import EncoderError, UsageError
from casstore.identity import resolutions
from casstore.identity.arrays import is_tensor, shape_of
from casstore.identity.canonical import exact
from casstore.identity.keys import Key, Together
from casstore.objects.payload import Layout
from casstore.objects.tensors import Payload, check_finite, to_payload


@dataclass(frozen=True, slots=True)
class ResultPart:
    """Tensors that depend on the same inputs.

    Attributes:
        payload: the tensors.
        names: JSON text of the schema stamp: tensors with dtype and rank, and (of the first part) names of the values.
        inputs: what they depend on; None: on all that the key is made from.
    """

    payload: Payload
    names: str
    inputs: Together | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """A checked result; nothing of it refers to the caller's memory.

    Attributes:
        parts: the tensors; one part unless the recipe says that they depend on different inputs.
        values: JSON text, or None if there are none.
    """

    parts: tuple[ResultPart, ...]
    values: str | None

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return sum(len(part.payload.data) for part in self.parts)


NOTHING = Result((), None)


def check_result(
    key: Key,
    result: Mapping[str, Any],
    values: Mapping[str, Any] | None = None,
    *,
    allow_nonfinite: bool = False,
    required: Collection[str] = (),
    stored: Collection[str] = (),
) -> Result:
    """Check what is to be stored under a key, and copy it.

    Args:
        key: what it is to be stored under.
        result: {name: tensor, array, or JSON value}.
        values: further values, for names that `result` doesn't have.
        allow_nonfinite: NaN and infinity are meant.
        required: names that must be there.
        stored: names that are stored already beside it: they are dropped; then there needn't be a tensor.

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
    lacking = sorted(set(required) - tensors.keys() - plain.keys())
    if lacking:
        told = ", ".join(sorted([*tensors, *plain])) or "nothing"
        raise EncoderError(f"{', '.join(map(repr, lacking))} was asked for, but the encoder returned {told}")
    if stored:
        tensors = {name: tensor for name, tensor in tensors.items() if name not in stored}
        plain = {name: value for name, value in plain.items() if name not in stored}
    elif not tensors:
        raise EncoderError(f"a result holds at least one tensor; this one has {sorted(map(str, result)) or 'nothing'}")
    for name, tensor in tensors.items():
        _check_shape(key, name, shape_of(tensor))
    together: dict[Together | None, dict[str, Any]] = {}
    for name, tensor in tensors.items():
        together.setdefault(key.inputs_of(name), {})[name] = tensor
    try:
        payloads = {inputs: to_payload(part) for inputs, part in together.items()}
        text = exact(plain, "value") if plain else None
    except UsageError as error:
        raise EncoderError(str(error)) from error
    if not allow_nonfinite:
        for payload in payloads.values():
            check_finite(payload)
    parts: list[ResultPart] = []
    for inputs, payload in payloads.items():
        names = _stamp(payload.layout.text, () if parts else tuple(sorted(plain)))
        parts.append(ResultPart(payload, names, inputs))
    return Result(tuple(parts), text)


@functools.lru_cache(maxsize=1024)  # most results of a recipe have the same
def _stamp(layout: str, values: tuple[str, ...]) -> str:
    tensors = Layout.parse(layout).tensors
    return exact(
        {"tensors": {name: [info.dtype, len(info.shape)] for name, info in tensors.items()}, "values": list(values)}
    )


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
