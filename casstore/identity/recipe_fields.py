"""The fields of a recipe: each checked by itself, and what it is a risk to leave out."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from casstore.errors import UsageError
from casstore.identity.canonical import canonical
from casstore.identity.decoding import DEFAULT, Decode
from casstore.identity.dtypes import dtype_name
from casstore.model import CODECS, Codec

GEOMETRY = ("crop_offset", "crop_resolution", "original_resolution", "flip", "frames")
"""Names of values that say how a picture was placed, unless a recipe names others."""

_DIGEST = re.compile("[0-9a-f]{64}")


def dtype_of(recipe: str, dtype: Any) -> str | None:
    """A dtype by its safetensors name, or in the words given."""
    try:
        return None if dtype is None else dtype_name(dtype)
    except TypeError as error:
        raise UsageError(f"{_at(recipe, 'dtype')}: {error}; write 'bfloat16' or torch.bfloat16") from None


def batch_of(recipe: str, batch: Any) -> int | None:
    """How many items every call has; None: as many as there are."""
    if batch is None or batch == "invariant":
        return None
    if not _is_count(batch):
        raise UsageError(f"{_at(recipe, 'batch')} is 'invariant' or a number of items, not {batch!r}")
    return int(batch)


def decode_of(recipe: str, decode: Any) -> Decode:
    """The rules for decoding."""
    if decode is None:
        return DEFAULT
    if not isinstance(decode, Decode):
        raise UsageError(
            f"{_at(recipe, 'decode')} is of type {type(decode).__name__}; write casstore.Decode(orientation='ignore')"
        )
    return decode


def known_decode(spec: Any) -> Decode:
    """The rules whose spec is in a recipe; those that this casstore doesn't know stay at their default."""
    found = DEFAULT
    for name, value in spec.items() if isinstance(spec, Mapping) else ():
        try:
            found = dataclasses.replace(found, **{name: value})
        except (TypeError, UsageError):
            continue
    return found


def namespace_of(recipe: str, namespace: Any) -> str | None:
    """Whose recipe it is."""
    if namespace is not None and (not isinstance(namespace, str) or not namespace):
        raise UsageError(f"{_at(recipe, 'namespace')} is a name, not {namespace!r}")
    canonical(namespace, _at(recipe, "namespace"))
    return namespace


def geometry_of(recipe: str, geometry: Any) -> tuple[str, ...]:
    """The names of the values that say how a picture was placed."""
    return GEOMETRY if geometry is None else _names(_at(recipe, "geometry"), geometry)


def depends_of(recipe: str, depends: Any) -> Mapping[str, tuple[str, ...]]:
    """{name of a tensor or value: roles}"""
    if depends is None:
        return {}
    where = _at(recipe, "depends")
    if not isinstance(depends, Mapping):
        raise UsageError(f"{where} is {{name: roles}}, such as {{'latent': ('image',)}}, not {depends!r}")
    _names(where, list(depends))
    return {name: _names(f"{where} for {name!r}", roles) for name, roles in depends.items()}


def stride_of(recipe: str, stride: Any) -> int | Mapping[str, int] | None:
    """Pixels per element, of all tensors or by name."""
    for pixels in stride.values() if isinstance(stride, Mapping) else [stride]:
        if pixels is not None and not _is_count(pixels):
            raise UsageError(f"recipe {recipe!r}: a stride counts pixels per element; {pixels!r} can't be meant")
    return dict(stride) if isinstance(stride, Mapping) else stride


def codec_of(recipe: str, codec: Any) -> Codec | None:
    """How new objects are stored."""
    if codec is not None and codec not in CODECS:
        raise UsageError(f"recipe {recipe!r}: there is no codec {codec!r}; use {' or '.join(map(repr, CODECS))}")
    found: Codec | None = codec
    return found


def risks(fields: Mapping[str, Any], *, model: bool) -> list[str]:
    """What these binding fields leave open, so that one day the wrong tensor may be served: a phrase each.

    Args:
        fields: of the recipe, as far as they are given.
        model: whether the recipe is one of a model, and so needs weights and a dtype.
    """
    found = []
    weights = fields.get("weights")
    if model and weights is None:
        found.append(
            "no weights digest: after a change of the model, tensors of the old one would be served; "
            "write weights=casstore.weights_digest(model), or weights=False if there is no model"
        )
    elif model and not (isinstance(weights, str) and _DIGEST.fullmatch(weights)):
        found.append(
            f"weights {weights!r:.80}, which is no digest: another model under that name would be served the tensors "
            "of this one; write weights=casstore.weights_digest(model)"
        )
    if model and "dtype" not in fields:
        found.append(
            "no dtype: tensors computed in another precision would be taken for these; "
            "write what the computation runs in, such as dtype='bfloat16'"
        )
    if "code" not in fields:
        found.append(
            "no code version: after a change of the encoding code, tensors of the old one would be served; "
            "write code=1, and raise it with every change that makes other tensors"
        )
    return found


def _at(recipe: str, field: str) -> str:
    return f"recipe {recipe!r}: field {field!r}"


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _names(where: str, names: Any) -> tuple[str, ...]:
    """Names in their order.

    Raises:
        UsageError: it is no list of different names; the message begins with `where`.
    """
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise UsageError(f"{where}: give a list of names, such as [{names if isinstance(names, str) else 'flip'!r}]")
    for name in names:
        if not isinstance(name, str) or not name:
            raise UsageError(f"{where}: {name!r} is no name")
    if len(set(names)) < len(names):
        raise UsageError(f"{where}: a name stands twice in {list(names)}")
    return tuple(names)
