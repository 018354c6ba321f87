"""The recipe: everything besides the input that determines the tensors."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

from casstore.errors import IdentityMismatchError, UsageError
from casstore.identity import recipe_fields as checked
from casstore.identity.canonical import canonical
from casstore.identity.decoding import Decode
from casstore.identity.digests import RECIPE_CONTEXT, canonical_digest, json_digest
from casstore.model import Codec

SHOWN = 60  # characters of a field's value that people see


@runtime_checkable
class Preprocess(Protocol):
    """Work on a decoded picture that belongs to the identity and is done in the decode threads.

    Attributes:
        spec: what it does, as a JSON value; a binding field of the recipe.

    It may have two attributes more. `draws`: if true, it is called with a third argument, rng, which gives the
    `random.Random` of a named draw: rng("crop"). `follow(image, values, size)`: gives another picture of the row the
    primary's geometry, from the primary's values, and returns the picture only; without it other pictures are
    preprocessed like the primary, each by itself.
    """

    @property
    def spec(self) -> Any: ...

    def __call__(self, image: Any, size: tuple[int, int] | None) -> tuple[Any, Mapping[str, Any]]:
        """Turn an upright PIL RGB picture into what the encoder gets.

        Args:
            image: the picture.
            size: (height, width) in pixels of the resolution, or None for the full size.

        Returns:
            The picture to encode, and the values to store beside the tensors.
        """
        ...


class Recipe:
    """Everything besides the input that determines the tensors. Two recipes are equal if their binding fields are.

    Args:
        name: the producer, in words you will recognise later ("sdxl-vae").
        weights: digest of the model's weights, see `casstore.weights_digest`. False: there is no model, so that `lint`
            asks for none; the identity is that of a recipe without weights.
        dtype: what the computation runs in ("bfloat16" or torch.bfloat16); nothing is cast or checked against it.
        code: version of the encoding code; raise it when the same input would give other tensors.
        preprocess: an object with `.spec` and `__call__` (see `Preprocess`, `casstore.FitCrop`), or just a JSON value
            that says what the encoder itself does.
        seed: of the encoder's random draws.
        batch: n: the tensors depend on how many are encoded at once, and it is always n; "invariant" (the default):
            they don't, and it isn't part of the identity.
        decode: how pictures become pixels, see `casstore.Decode`; rules at their default aren't part of the identity.
        namespace: whose recipe it is, for people. Informative: not part of the identity.
        geometry: names of the values that say how a picture was placed; None: crop_offset,
            crop_resolution, original_resolution, flip, frames. Informative.
        depends: {name of a tensor or value: the roles that it depends on, besides the primary}; a name that isn't there
            depends on all roles of the plan. Informative.
        stride: pixels per element: every tensor of rank >= 3 must be resolution / stride in its last two sizes. An int,
            {tensor name: int}, or None: not checked. Informative.
        codec: how new objects are stored: "zstd", "raw" (can be mapped), or None: as casstore.toml says. Informative.
        **fields: any further binding field. A field that is None isn't part of the identity.

    Raises:
        UsageError: a field isn't JSON, or can't be meant; the message names it.
    """

    __slots__ = (
        "_model",
        "batch",
        "codec",
        "decode",
        "depends",
        "digest",
        "geometry",
        "name",
        "namespace",
        "preprocess",
        "seed",
        "spec",
        "stride",
    )

    name: str
    digest: bytes
    """32 bytes; the identity."""
    spec: str
    """The binding fields as canonical JSON."""
    preprocess: Preprocess | None
    seed: int | None
    batch: int | None
    """How many items every call has; None: as many as there are."""
    decode: Decode
    namespace: str | None
    geometry: tuple[str, ...]
    depends: Mapping[str, tuple[str, ...]]
    stride: int | Mapping[str, int] | None
    codec: Codec | None

    def __init__(
        self,
        name: str,
        *,
        weights: str | Literal[False] | None = None,
        dtype: Any = None,
        code: Any = None,
        preprocess: Preprocess | Any = None,
        seed: int | None = None,
        batch: int | Literal["invariant"] | None = None,
        decode: Decode | None = None,
        namespace: str | None = None,
        geometry: Sequence[str] | None = None,
        depends: Mapping[str, Sequence[str]] | None = None,
        stride: int | Mapping[str, int] | None = None,
        codec: Codec | None = None,
        **fields: Any,
    ) -> None:
        if not name or not isinstance(name, str):
            raise UsageError(f"a recipe needs a name, not {name!r}")
        callable_preprocess = preprocess if callable(preprocess) else None
        if callable_preprocess is not None and getattr(callable_preprocess, "spec", None) is None:
            raise UsageError(f"recipe {name!r}: preprocess needs an attribute `spec` that says in JSON what it does")
        self.name = name
        self.preprocess = callable_preprocess
        self.batch = checked.batch_of(name, batch)
        self.decode = checked.decode_of(name, decode)
        self.namespace = checked.namespace_of(name, namespace)
        self.geometry = checked.geometry_of(name, geometry)
        self.depends = checked.depends_of(name, depends)
        self.stride = checked.stride_of(name, stride)
        self.codec = checked.codec_of(name, codec)
        self.seed = seed
        self._model = weights is not False
        spec = {
            "name": name,
            "weights": weights if self._model else None,
            "dtype": checked.dtype_of(name, dtype),
            "code": code,
            "preprocess": preprocess.spec if callable_preprocess is not None else preprocess,
            "seed": seed,
            "batch": self.batch,
            "decode": self.decode.spec or None,
            **fields,
        }
        binding = {key: value for key, value in spec.items() if value is not None}
        for key, value in binding.items():
            canonical(value, f"recipe {name!r}: field {key!r}")
        self.spec = canonical(binding, f"recipe {name!r}")
        self.digest = json_digest(RECIPE_CONTEXT, binding)

    @classmethod
    def known(cls, spec: str) -> Recipe:
        """A recipe of which only the binding fields are known, as a store keeps it: for keys, not for encoding.

        Args:
            spec: `Recipe.spec`.

        Raises:
            UsageError: it isn't the spec of a recipe.
        """
        fields = spec_fields(spec)
        recipe = cls(str(fields.get("name") or "?"), batch=fields.get("batch"), weights=fields.get("weights"))
        recipe.seed, recipe.decode = fields.get("seed"), checked.known_decode(fields.get("decode"))
        recipe.spec, recipe.digest = spec, canonical_digest(RECIPE_CONTEXT, spec)
        return recipe

    def stride_of(self, tensor: str) -> int | None:
        """The stride declared for a tensor name, or None if it isn't to be checked."""
        return self.stride.get(tensor) if isinstance(self.stride, Mapping) else self.stride

    def roles_of(self, name: str, roles: Sequence[str]) -> tuple[str, ...]:
        """The roles that a tensor or value depends on.

        Args:
            name: of the tensor or value.
            roles: of the plan, the primary first.

        Returns:
            Those of `roles` that count for it, in their order: the primary always does.
        """
        wanted = self.depends.get(name)
        return tuple(role for i, role in enumerate(roles) if wanted is None or i == 0 or role in wanted)

    def lint(self) -> tuple[str, ...]:
        """What this recipe leaves open, so that one day the wrong tensor may be served: a sentence each.

        Every recipe should have a code version, and one of a model a digest of its weights and a dtype. It is taken for
        one of a model unless it says weights=False, since a forgotten digest looks just like a model that isn't there.
        """
        return tuple(
            f"recipe {self.name!r} has {risk}" for risk in checked.risks(spec_fields(self.spec), model=self._model)
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Recipe) and other.digest == self.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Recipe({self.name!r}, {self.digest.hex()[:8]})"


Encode = Callable[[list[Any]], Sequence[Mapping[str, Any]]]
"""encode(items) -> one dict of tensors and values per item, in order."""


def spec_fields(spec: str) -> dict[str, Any]:
    """The binding fields of a recipe from its spec.

    Raises:
        UsageError: it isn't one.
    """
    try:
        found = json.loads(spec)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise UsageError(f"{spec!r:.80} isn't the spec of a recipe")
    return found


def difference(old_spec: str, new_spec: str) -> tuple[tuple[str, Any, Any], ...]:
    """The binding fields in which two recipes differ, in order of their names.

    Args:
        old_spec, new_spec: `Recipe.spec`.

    Returns:
        (field, old, new) each; None: the recipe doesn't have it.

    Raises:
        UsageError: one isn't the spec of a recipe.
    """
    old, new = spec_fields(old_spec), spec_fields(new_spec)
    # As texts: to Python 1 and True are equal.
    return tuple(
        (field, old.get(field), new.get(field))
        for field in sorted(old.keys() | new.keys())
        if canonical(old.get(field)) != canonical(new.get(field))
    )


def check_same(expected_spec: str, got_spec: str, what: str) -> None:
    """Refuse what was made with another recipe than the one that is expected.

    Args:
        expected_spec: `Recipe.spec` of the one that is expected.
        got_spec: of the one that it was made with.
        what: it, in words that can begin a sentence: "snapshot paper-v1".

    Raises:
        IdentityMismatchError: they differ; the message and `.fields` name only the fields that do.
    """
    found = difference(expected_spec, got_spec)
    if not found:
        return
    told = ", ".join(f"{field} {shown(got)} (expected {shown(expected)})" for field, expected, got in found)
    raise IdentityMismatchError(
        f"{what} was made with another recipe: {told}. Give the recipe that it was made with, or make it anew with "
        "this one",
        {field: (expected, got) for field, expected, got in found},
    )


def shown(value: Any) -> str:
    """A field's value for people: a digest by its first four and last two digits, and nothing is longer than a line."""
    if value is None:
        return "none"
    if isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value):
        return f"{value[:4]}..{value[-2:]}"
    text = value if isinstance(value, str) else canonical(value)
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."
