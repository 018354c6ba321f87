"""What tests of datasets begin with: pictures and captions that are built."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from kit import FakeEncoder, picture

import casstore
from casstore.build.plan import Plan
from casstore.model import Item

CLIP = casstore.Recipe("clip", code=1)
SIZES = ((64, 64), (64, 64), (128, 32))  # (width, height), in turn
COUNT = 12


def encode_text(items: list[Item]) -> list[dict[str, Any]]:
    """A float16 tensor [5, 3] that depends on the text, and its length as a value."""
    return [
        {
            "hidden": np.full((5, 3), sum(map(ord, item.text or "")), np.float16),
            "length": len(item.text or ""),
        }
        for item in items
    ]


@dataclass
class Training:
    """What tests of datasets begin with: plans of pictures and of their captions, all built."""

    store: casstore.Store
    folder: Path
    inputs: Any
    encoder: FakeEncoder
    image: Plan
    text: Plan

    def dataset(self, **options: Any) -> Any:
        return self.store.dataset(image=self.image, text=self.text, **options)

    def latent(self, number: int) -> Any:
        """What is stored of a picture."""
        key = self.image.row(number).key
        assert key is not None
        return self.store.get(key)["latent"]

    def again(self) -> tuple[Plan, Plan]:
        """The same plans, of the same inputs."""
        store, recipe = self.store, self.encoder.recipe
        image = store.plan(self.inputs, recipe, role="image", resolution=casstore.Buckets(64, quantum=32))
        return image, store.plan(self.inputs, CLIP, role="caption")


def rows(folder: Path, count: int = COUNT) -> list[dict[str, Any]]:
    return [
        {
            "sample": f"s{n:02}",
            "image": folder / f"p{n:03}.png",
            "caption": f"picture {n}",
            "weight": n + 1,
            "values": {"concept": f"c{n % 2}"},
        }
        for n in range(count)
    ]


def made(store: casstore.Store, folder: Path) -> Training:
    for n in range(COUNT):
        picture(folder / f"p{n:03}.png", seed=n, size=SIZES[n % len(SIZES)])
    inputs, encoder = store.inputs(rows(folder)), FakeEncoder()
    found = Training(store, folder, inputs, encoder, None, None)  # type: ignore[arg-type]
    found.image, found.text = found.again()
    store.build(found.image, encoder)
    store.build(found.text, encode_text)
    return found
