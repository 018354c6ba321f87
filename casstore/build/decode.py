"""The decode threads: a source is read once; it is hashed and decoded from those same bytes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from casstore.build.cells import key_of, kind_of, side_by_side
from casstore.build.plan import PlanRow
from casstore.core.handle import Handle
from casstore.errors import CorruptObjectError, PictureError, SourceNotFoundError, UsageError
from casstore.identity import resolutions
from casstore.identity.arrays import array_content, shape_of
from casstore.identity.digests import text_digest
from casstore.identity.keys import Key
from casstore.identity.recipes import Recipe
from casstore.model import Content, Item
from casstore.sources.images import decode
from casstore.sources.inputs import Cell
from casstore.sources.opaque import Opaque, look
from casstore.sources.read import read_source

SOURCE_CHANGED = "SourceChangedError"
"""What the failure of a file is called that doesn't hold any more what was planned."""
LARGE = 256 << 20  # bytes; a file of more isn't held in memory: the encoder opens it itself


class SourceChanged(Exception):
    """The file doesn't hold any more what was planned."""


@dataclass(frozen=True, slots=True)
class Source:
    """What the decode threads need besides a row.

    Attributes:
        handle: the open store.
        recipe: of the plan.
        resolution: that the plan asked for.
        texts: {digest: text} of those whose rows don't carry them.
        reads_path: the encoder opens pictures itself.
    """

    handle: Handle
    recipe: Recipe
    resolution: resolutions.Resolutions
    texts: Mapping[bytes, str] = field(default_factory=dict)
    reads_path: bool = False


@dataclass(frozen=True, slots=True)
class Decoded:
    """An item ready for the encoder, and the values that preprocessing brought.

    Attributes:
        planned: the row.
        item: what the encoder gets.
        values: to store beside what it returns.
        alike: items that are equal in this go into one call.
        unread: files that the encoder opens itself.
        nbytes: roughly, the memory that it holds.
    """

    planned: PlanRow
    item: Item
    values: Mapping[str, Any]
    alike: tuple[Any, ...]
    unread: tuple[Opaque, ...]
    nbytes: int

    @property
    def pixels(self) -> int:
        """Of its picture, as the encoder gets it; 0 for anything else."""
        size = resolutions.parse(self.item.resolution) or (self.item.height or 0, self.item.width or 0)
        return size[0] * size[1]

    def asking(self, names: frozenset[str] | None) -> Decoded:
        """The same, with these names wanted of it."""
        return dataclasses.replace(self, item=dataclasses.replace(self.item, names=names), alike=(*self.alike, names))


@dataclass(frozen=True, slots=True)
class _Part:
    """One content, as an encoder gets it: fields of an Item."""

    fields: Mapping[str, Any]
    content: Content
    shape: tuple[Any, ...] = ()
    nbytes: int = 0
    unread: Opaque | None = None


def decode_row(planned: PlanRow, source: Source) -> Decoded:
    """Read, hash, compare, decode and preprocess the contents of one row.

    Raises:
        SourceNotFoundError: a file can't be read.
        SourceChanged: what it holds isn't what was planned.
        PictureError: it can't be decoded whole.
    """
    if not planned.cells:
        raise UsageError(planned.miss.detail if planned.miss is not None else "it has no contents")
    parts = {role: _part(cell, source) for role, cell in planned.cells.items()}
    key = planned.key
    if key is None:
        # The plan knew no size; perhaps this version's decoder does.
        cells = {role: dataclasses.replace(planned.cells[role], content=part.content) for role, part in parts.items()}
        alone = len(side_by_side(planned.row, list(cells))) == 1  # else each variation is a content of its own
        variation = planned.variation if alone else 0
        key = key_of(cells, source.recipe, source.resolution, planned.params, variation)
        if key is None:
            raise PictureError(next(iter(parts.values())).content.note or "its header can't be read")
    primary, *others = parts
    decoded: dict[str, _Part] = {}
    decoded[primary], values = _preprocessed(parts[primary], key, source.recipe)
    for role in others:
        decoded[role], _ = _preprocessed(parts[role], key, source.recipe, primary=values or None)
    items = {role: _item(planned, key, part) for role, part in decoded.items()}
    item = dataclasses.replace(items[primary], members={role: items[role] for role in others})
    shapes = tuple((role, part.shape) for role, part in decoded.items())
    return Decoded(
        planned,
        item,
        values,
        (key.resolution, shapes),
        tuple(part.unread for part in parts.values() if part.unread is not None),
        sum(part.nbytes for part in decoded.values()),
    )


def _item(planned: PlanRow, key: Key, part: _Part) -> Item:
    sample = planned.row.sample
    return Item(sample=sample, key=key, resolution=key.resolution, variation=key.variation, **part.fields)


def _part(cell: Cell, source: Source) -> _Part:
    content = cell.content
    assert content is not None
    kind = kind_of(content, cell.path)
    if kind == "text":
        return _text(cell, content, source.texts)
    if kind == "array":
        return _array(cell, content)
    if cell.path is None:
        raise SourceNotFoundError("its file isn't named in the row, so it can't be read")
    if kind == "file" or source.reads_path or content.nbytes > LARGE:
        unread = look(source.handle, cell.path)
        if unread.digest != content.digest:
            raise SourceChanged
        fields = {"path": cell.path, "width": content.width, "height": content.height}
        return _Part(fields, content, unread=unread)
    read = read_source(cell.path)
    if read.content.digest != content.digest:
        raise SourceChanged
    return _Part({"path": cell.path, "data": read.data}, read.content, nbytes=len(read.data))


def _text(cell: Cell, content: Content, texts: Mapping[bytes, str]) -> _Part:
    text = content.text if content.text is not None else texts.get(content.digest)
    if text is None:
        raise SourceNotFoundError("its text isn't in the index any more; scan again")
    if text_digest(text) != content.digest:
        raise CorruptObjectError("its text in the index isn't the one that was read; scan again")
    return _Part({"path": cell.path, "text": text}, content, nbytes=len(text))


def _array(cell: Cell, content: Content) -> _Part:
    if content.array is None:
        raise SourceNotFoundError("its array isn't at hand; make the rows again from the arrays")
    if array_content(content.array).digest != content.digest:
        raise SourceChanged  # somebody has written to it since
    shape = (str(content.array.dtype), *shape_of(content.array))
    return _Part({"path": cell.path, "array": content.array}, content, shape)


def _preprocessed(
    part: _Part, key: Key, recipe: Recipe, primary: Mapping[str, Any] | None = None
) -> tuple[_Part, Mapping[str, Any]]:
    """The part with its picture decoded, and what preprocessing says of it; any other part is as it was.

    Args:
        part: read.
        key: of the row.
        recipe: its preprocessing.
        primary: of a member: what preprocessing has said of the primary, whose geometry it gets.
    """
    data = part.fields.get("data")
    if data is None:
        return part, {}
    image: Any = decode(data, recipe.decode)
    width, height = image.size
    values: Mapping[str, Any] = {}
    shape: tuple[Any, ...] = (height, width)
    if recipe.preprocess is not None:
        preprocess: Any = recipe.preprocess
        size = resolutions.parse(key.resolution)
        follow = getattr(preprocess, "follow", None)
        if primary is not None and follow is not None:
            image = follow(image, primary, size)
        elif getattr(preprocess, "draws", False):
            image, values = preprocess(image, size, key.rng)
        else:
            image, values = preprocess(image, size)
        shape = tuple(getattr(image, "shape", getattr(image, "size", shape)))
    pixels = 3 * shape[0] * shape[1] if len(shape) >= 2 else 0
    fields = {**part.fields, "image": image, "width": width, "height": height}
    return _Part(fields, part.content, shape, part.nbytes + pixels), values
