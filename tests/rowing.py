"""Rows made by hand, and an encoder for whatever stands in them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from core.helpers import handle_of

import casstore
from casstore.identity.arrays import array_content
from casstore.identity.contents import text_content
from casstore.index.contents import _save_member, save_contents
from casstore.model import Content, Item
from casstore.sources.inputs import Cell, Inputs, Row
from casstore.sources.read import read_source


def cell(value: Any) -> Cell:
    """A content as a row has it: a path, a text, an array, or a cell itself."""
    if isinstance(value, Cell):
        return value
    if isinstance(value, Path):
        try:
            return Cell(read_source(str(value)).content, str(value))
        except casstore.errors.SourceNotFoundError as error:
            return Cell(None, str(value), str(error))
    return Cell(text_content(value) if isinstance(value, str) else array_content(value))


def row(sample: str, /, **roles: Any) -> Row:
    """A row; a list is one content for each variation, None is absent."""
    cells = {
        role: tuple(cell(one) for one in (value if isinstance(value, list) else [value]))
        for role, value in roles.items()
        if value is not None
    }
    return Row(sample, cells)


def rows(*given: Row) -> Inputs:
    return Inputs(given)


def tensor_of(item: Item) -> np.ndarray[Any, Any]:
    """float32 [8] that depends on everything an encoder gets."""
    parts: list[bytes] = [item.key.params.encode(), item.resolution.encode()]
    for role, part in [("", item), *sorted(item.members.items())]:
        parts += [role.encode(), part.data or b"", (part.text or "").encode()]
        parts.append(b"" if part.array is None else np.asarray(part.array).tobytes())
        if part.path is not None and part.data is None and part.text is None:
            parts.append(Path(part.path).read_bytes())
    seed = hashlib.sha256(b"|".join(hashlib.sha256(part).digest() for part in parts)).digest()
    return np.random.default_rng(int.from_bytes(seed[:8], "little")).standard_normal(8, dtype=np.float32)


@dataclass
class Recorder:
    """Encodes anything, keeps the items it got, and misbehaves on demand."""

    recipe: casstore.Recipe = field(default_factory=lambda: casstore.Recipe("recorder", code=1))
    items: list[Item] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    before: Callable[[list[Item]], None] | None = None
    after: Callable[[list[Item]], None] | None = None

    def __call__(self, items: list[Item]) -> list[dict[str, Any]]:
        if self.before is not None:
            self.before(items)
        self.items += items
        self.batches.append(len(items))
        found = [{"t": tensor_of(item)} for item in items]
        if self.after is not None:
            self.after(items)
        return found

    @property
    def seen(self) -> list[str]:
        return [item.sample for item in self.items]


def save_caption(store: casstore.Store, path: Path) -> Content:
    """Do what a scan does with a caption file, once its row is there: note the text that was read from it."""
    file, text = read_source(str(path)).content, text_content(path.read_text())
    with handle_of(store).index.write() as connection:
        ids = save_contents(connection, [file, text])
        _save_member.many(connection, [(ids["file", file.digest], "caption-1", 0, ids["text", text.digest])])
    return text
