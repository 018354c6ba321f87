"""The decode threads: a source is read once; it is hashed and decoded from those same bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from casstore.build.plan import PlanRow, key_of
from casstore.errors import PictureError
from casstore.identity import resolutions
from casstore.identity.keys import Key
from casstore.identity.recipes import Recipe
from casstore.model import Item
from casstore.sources.images import decode
from casstore.sources.read import read_source


class SourceChanged(Exception):
    """The file doesn't hold any more what was planned."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """An item ready for the encoder, and the values that preprocessing brought."""

    planned: PlanRow
    item: Item
    values: Mapping[str, Any]
    shape: tuple[int, ...] = field(default=())

    @property
    def nbytes(self) -> int:
        """Roughly, the memory that it holds."""
        pixels = 3 * self.shape[0] * self.shape[1] if len(self.shape) >= 2 else 0
        return pixels + len(self.item.data or b"")


def decode_row(planned: PlanRow, recipe: Recipe, resolution: resolutions.Resolution) -> Decoded:
    """Read, hash, compare, decode and preprocess one row.

    Raises:
        SourceNotFoundError: the file can't be read.
        SourceChanged: its bytes aren't those that were planned.
        PictureError: it can't be decoded whole.
    """
    row = planned.row
    assert row.path is not None
    source = read_source(row.path)
    if row.content is None or source.content.digest != row.content.digest:
        raise SourceChanged
    key: Key | None = planned.key or key_of(source.content, recipe, resolution)
    if key is None:
        raise PictureError(source.content.note or "its header can't be read")
    image: Any = decode(source.data)
    width, height = image.size
    values: Mapping[str, Any] = {}
    shape: tuple[int, ...] = (height, width)
    if recipe.preprocess is not None:
        image, values = recipe.preprocess(image, resolutions.parse(key.resolution))
        shape = tuple(getattr(image, "shape", getattr(image, "size", shape)))
    item = Item(
        sample=row.sample,
        key=key,
        path=row.path,
        data=source.data,
        image=image,
        width=width,
        height=height,
        resolution=key.resolution,
        variation=key.variation,
    )
    return Decoded(planned, item, values, shape)
