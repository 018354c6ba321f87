"""The recipe: everything besides the input that determines the tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from casstore.errors import UsageError
from casstore.identity.canonical import canonical
from casstore.identity.digests import RECIPE_CONTEXT, json_digest
from casstore.identity.dtypes import dtype_name
from casstore.model import CODECS, Codec

# Keywords that later versions give a meaning of their own. As free fields they would change digests then.
RESERVED = frozenset({"decode", "namespace"})


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
        weights: digest of the model's weights, see `casstore.weights_digest`.
        dtype: what the computation runs in ("bfloat16" or torch.bfloat16); nothing is cast or checked against it.
        code: version of the encoding code; raise it when the same input would give other tensors.
        preprocess: an object with `.spec` and `__call__` (see `Preprocess`, `casstore.FitCrop`), or just a JSON value
            that says what the encoder itself does.
        seed: of the encoder's random draws.
        stride: pixels per element: every tensor of rank >= 3 must be resolution / stride in its last two sizes. An int,
            {tensor name: int}, or None: not checked. Informative: not part of the identity.
        codec: how new objects are stored: "zstd", "raw" (can be mapped), or None: as casstore.toml says. Informative.
        **fields: any further binding field. A field that is None isn't part of the identity.

    Raises:
        UsageError: a field isn't JSON; the message names it.
    """

    __slots__ = ("batch", "codec", "depends", "digest", "geometry", "name", "preprocess", "seed", "spec", "stride")

    name: str
    digest: bytes
    """32 bytes; the identity."""
    spec: str
    """The binding fields as canonical JSON."""
    preprocess: Preprocess | None
    stride: int | Mapping[str, int] | None
    codec: Codec | None

    def __init__(
        self,
        name: str,
        *,
        weights: str | None = None,
        dtype: Any = None,
        code: Any = None,
        preprocess: Preprocess | Any = None,
        seed: int | None = None,
        stride: int | Mapping[str, int] | None = None,
        codec: Codec | None = None,
        batch: Any = None,
        geometry: Any = None,
        depends: Any = None,
        **fields: Any,
    ) -> None:
        if not name or not isinstance(name, str):
            raise UsageError(f"a recipe needs a name, not {name!r}")
        for field in sorted(RESERVED & fields.keys()):
            raise UsageError(
                f"recipe {name!r}: the field {field!r} is reserved for a later version; choose another name"
            )
        callable_preprocess = preprocess if callable(preprocess) else None
        if callable_preprocess is not None and getattr(callable_preprocess, "spec", None) is None:
            raise UsageError(f"recipe {name!r}: preprocess needs an attribute `spec` that says in JSON what it does")
        spec = {
            "name": name,
            "weights": weights,
            "dtype": None if dtype is None else _dtype(name, dtype),
            "code": code,
            "preprocess": preprocess.spec if callable_preprocess is not None else preprocess,
            "seed": seed,
            "batch": batch,
            **fields,
        }
        binding = {key: value for key, value in spec.items() if value is not None}
        for key, value in binding.items():
            canonical(value, f"recipe {name!r}: field {key!r}")
        for pixels in stride.values() if isinstance(stride, Mapping) else [stride]:
            if pixels is not None and (isinstance(pixels, bool) or not isinstance(pixels, int) or pixels < 1):
                raise UsageError(f"recipe {name!r}: a stride counts pixels per element; {pixels!r} can't be meant")
        if codec is not None and codec not in CODECS:
            raise UsageError(f"recipe {name!r}: there is no codec {codec!r}; use {' or '.join(map(repr, CODECS))}")
        self.name = name
        self.spec = canonical(binding, f"recipe {name!r}")
        self.digest = json_digest(RECIPE_CONTEXT, binding)
        self.preprocess = callable_preprocess
        self.codec = codec
        self.batch = batch
        self.seed = seed
        self.geometry = geometry or ("crop_offset", "crop_resolution", "original_resolution", "flip", "frames")
        self.depends = {k: tuple(v) for k, v in (depends or {}).items()}
        self.stride = stride if not isinstance(stride, Mapping) else dict(stride)

    def stride_of(self, tensor: str) -> int | None:
        """The stride declared for a tensor name, or None if it isn't to be checked."""
        return self.stride.get(tensor) if isinstance(self.stride, Mapping) else self.stride

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Recipe) and other.digest == self.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Recipe({self.name!r}, {self.digest.hex()[:8]})"


def _dtype(recipe: str, dtype: Any) -> str:
    try:
        return dtype_name(dtype)
    except TypeError as error:
        raise UsageError(f"recipe {recipe!r}: field 'dtype': {error}; write 'bfloat16' or torch.bfloat16") from None


Encode = Callable[[list[Any]], Sequence[Mapping[str, Any]]]
"""encode(items) -> one dict of tensors and values per item, in order."""
