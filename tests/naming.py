"""An encoder of several names, each made from some of the roles; rows of real files that it is asked about."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from kit import check_counts, fake_tensor, picture

import casstore
from casstore.model import Item

Tensor = np.ndarray[Any, Any]
BOTH = ("image", "mask")
LINKS = {"mask": "-mask.png?", "caption": ".txt?"}


def made(name: str, contents: Mapping[str, bytes], recipe: casstore.Recipe, resolution: str, salt: str = "") -> Tensor:
    """The tensor of a name: float32 [4, height / 8, width / 8]."""
    height, width = (int(side) for side in (resolution or "64x64").split("x"))
    data = b"|".join(role.encode() + b"=" + contents[role] for role in sorted(contents))
    return fake_tensor(data, (height, width), f"{name}|{recipe.spec}|{salt}")


@dataclass
class Named:
    """Makes what it is asked for, keeps the items it got, and misbehaves on demand.

    Attributes:
        makes: {name: the roles that it is made from}; a name is made if its primary is there.
        values: of an item, returned beside the tensors, asked for or not.
        usual: the names that it makes if it isn't told which; None: all.
        obeys: whether it makes only what it is asked for.
        salt: is part of the tensors, so that what was encoded again can be told from what was kept.
        items: that it got.
    """

    recipe: casstore.Recipe = field(default_factory=lambda: casstore.Recipe("named", code=1, stride=8))
    makes: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {"latent": ("image",), "mask": ("image",)})
    values: Callable[[Item], Mapping[str, Any]] = lambda item: {"crop_offset": [0, 0]}
    usual: tuple[str, ...] | None = None
    obeys: bool = True
    salt: str = ""
    items: list[Item] = field(default_factory=list)
    before: Callable[[list[Item]], None] | None = None

    def __call__(self, items: list[Item]) -> list[dict[str, Any]]:
        self.items += items
        if self.before is not None:
            self.before(items)
        return [self.result(item) for item in items]

    def result(self, item: Item) -> dict[str, Any]:
        """What it makes of an item."""
        wanted = item.names if item.names is not None else self.usual
        names = [name for name in self.makes if not self.obeys or wanted is None or name in wanted]
        return {
            name: made(name, self.contents(item, name), self.recipe, item.resolution, self.salt) for name in names
        } | {**self.values(item)}

    def contents(self, item: Item, name: str) -> dict[str, bytes]:
        """What a name is made from."""
        parts: dict[str, Any] = {"image": item, **item.members}
        return {
            role: parts[role].data if parts[role].text is None else parts[role].text.encode()
            for role in self.makes[name]
            if role in parts
        }

    @property
    def asked(self) -> list[set[str] | None]:
        """The names that were wanted of each item."""
        return [None if item.names is None else set(item.names) for item in self.items]


@dataclass
class Folder:
    """A store and a folder of pictures with masks and captions, planned and built with one encoder.

    Attributes:
        options: of every plan.
    """

    store: casstore.Store
    path: Path
    encoder: Named
    options: dict[str, Any] = field(default_factory=lambda: {"resolution": "64x64"})

    def picture(self, name: str = "a", seed: int = 0) -> Path:
        return picture(self.path / f"{name}.png", seed=seed)

    def mask(self, name: str = "a", seed: int = 100) -> Path:
        return picture(self.path / f"{name}-mask.png", seed=seed)

    def plan(self, **options: Any) -> Any:
        inputs = self.store.scan(self.path, links=LINKS)
        return self.store.plan(inputs, self.encoder.recipe, **{**self.options, **options})

    def build(self, *, batch_size: int = 8, workers: int | None = None, **options: Any) -> Any:
        return check_counts(
            self.store.build(self.plan(**options), self.encoder, batch_size=batch_size, workers=workers)
        )

    def key(self, name: str = "a", **options: Any) -> casstore.Key:
        """The key of the triple of a row."""
        (found,) = [row.key for row in self.plan(**options).rows if row.row.sample == f"{name}.png"]
        return found

    def get(self, name: str = "a", **options: Any) -> dict[str, Any]:
        return self.store.get(self.key(name, **options), as_numpy=True)

    def digests(self, name: str = "a", **options: Any) -> tuple[str, ...]:
        """The objects of a row, one for each part."""
        hit = self.store.lookup(self.key(name, **options))
        assert isinstance(hit, casstore.Hit), hit
        return hit.digests

    def file(self, name: str, role: str) -> bytes:
        """The bytes of a role of a row."""
        return (self.path / f"{name}{'' if role == 'image' else '-mask'}.png").read_bytes()

    def tensor(self, tensor: str, name: str = "a", salt: str = "", resolution: str = "64x64") -> Tensor:
        """What the encoder makes of a row, with the files as they are now."""
        roles = [r for r in self.encoder.makes[tensor] if r == "image" or (self.path / f"{name}-mask.png").exists()]
        return made(tensor, {role: self.file(name, role) for role in roles}, self.encoder.recipe, resolution, salt)


def same(found: Mapping[str, Any], **expected: Any) -> None:
    """Compare a result with what it has to be: names, tensors and values."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value) if isinstance(value, np.ndarray) else None
        assert isinstance(value, np.ndarray) or found[name] == value, name
