"""A dataset of real files, encoders whose results show every setting, and what a store serves of it all."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from core.helpers import sql
from kit import check_counts, picture

import casstore
from casstore.encoders.preprocess import FitCrop
from casstore.model import Item

LINKS = {"caption": ".txt", "mask": "-masklabel.png?"}
VOLATILE = {"roots", "directories", "directory_prints", "sources", "source_contents", "runs", "sqlite_sequence"}
CAPTIONS = {"a": "a red cat", "b": "two\nlines", "ä": "größer"}
"""By the names of the pictures; one of each isn't ASCII."""


@dataclass(frozen=True)
class Settings:
    """Whatever a person may set. What the encoders do follows from this, not from their recipes."""

    vae: Mapping[str, Any] = field(
        default_factory=lambda: {"weights": "a" * 64, "code": 1, "posterior": "sample", "scale": 0.13025, "model": "xl"}
    )
    clip: Mapping[str, Any] = field(
        default_factory=lambda: {"code": 1, "clip_skip": 1, "max_length": 77, "tokenizer": "t" * 64, "model": "xl"}
    )
    dtype: str = "float32"
    seed: int = 1
    fit: Mapping[str, Any] = field(default_factory=lambda: {"filter": "lanczos"})
    resolution: Any = "64x64"
    variations: int | None = None
    names: tuple[str, ...] | None = None
    reader: str = "caption-1"


def _noise(seed: bytes, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.random.default_rng(int.from_bytes(hashlib.sha256(seed).digest()[:8])).standard_normal(shape)


class Vae:
    """Pixels, mask and every setting -> latents; the posterior is a named draw."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.seen: list[str] = []
        self.recipe = casstore.Recipe(
            "vae",
            dtype=settings.dtype,
            seed=settings.seed,
            preprocess=FitCrop(**settings.fit),
            stride=8,
            **settings.vae,
        )

    def __call__(self, items: list[Item]) -> list[dict[str, Any]]:
        return [self.one(item) for item in items]

    def one(self, item: Item) -> dict[str, Any]:
        self.seen.append(item.sample)
        made = {"latent": self.latent(item, item.image)}
        if item.names is not None and "latent_flipped" in item.names:
            made["latent_flipped"] = self.latent(item, item.image[:, ::-1])
        return made

    def latent(self, item: Item, pixels: Any) -> np.ndarray[Any, Any]:
        mask = item.members["mask"].image.tobytes() if "mask" in item.members else b""
        told = json.dumps(dict(self.settings.vae), sort_keys=True).encode()
        shape = (4, pixels.shape[0] // 8, pixels.shape[1] // 8)
        mean = _noise(b"|".join([told, pixels.tobytes(), mask]), shape)
        if self.settings.vae["posterior"] == "sample":
            mean = mean + _noise(str(item.rng("posterior").random()).encode(), shape)
        return (mean * self.settings.vae["scale"]).astype(self.settings.dtype)


class Clip:
    """A text and every setting -> an embedding."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.seen: list[str] = []
        self.recipe = casstore.Recipe("clip", **settings.clip)

    def __call__(self, items: list[Item]) -> list[dict[str, Any]]:
        told = json.dumps(dict(self.settings.clip), sort_keys=True)
        self.seen += [item.sample for item in items]
        return [{"embedding": _noise(f"{told}|{item.text}".encode(), (4,))} for item in items]


@dataclass
class Dataset:
    """Three pictures with captions, and masks of two of them; what a store serves of them."""

    path: Path
    settings: Settings = field(default_factory=Settings)

    def draw(self) -> None:
        for number, (name, caption) in enumerate(CAPTIONS.items()):
            picture(self.path / f"{name}.png", seed=number, size=(144, 96))
            (self.path / f"{name}.txt").write_text(caption, encoding="utf-8")
            if number < 2:
                picture(self.path / f"{name}-masklabel.png", seed=50 + number, size=(144, 96), mode="L")

    @property
    def encoders(self) -> dict[str, Any]:
        return {"image": Vae(self.settings), "text": Clip(self.settings)}

    def plans(self, store: casstore.Store, inputs: Any = None) -> dict[str, Any]:
        """Of the pictures with their masks, and of the captions."""
        s = self.settings
        if inputs is None:
            inputs = store.scan(self.path, links=LINKS, reader=s.reader)
        options = {"resolution": s.resolution, "variations": s.variations, "names": s.names}
        encoders = self.encoders
        return {
            "image": store.plan(inputs, encoders["image"].recipe, role=("image", "mask"), **options),
            "text": store.plan(inputs, encoders["text"].recipe, role="caption"),
        }

    def misses(self, store: casstore.Store) -> dict[str, dict[str, list[str]]]:
        """{plan: {reason: samples}}"""
        found: dict[str, dict[str, list[str]]] = {}
        for name, plan in self.plans(store).items():
            for row in plan.misses:
                found.setdefault(name, {}).setdefault(row.miss.reason, []).append(row.row.sample)
        return found

    def build(self, store: casstore.Store, inputs: Any = None, **options: Any) -> int:
        """Build both; the number of encodes."""
        seen = 0
        for name, plan in self.plans(store, inputs).items():
            encoder = self.encoders[name]
            report = check_counts(store.build(plan, encoder, **options))
            assert (report.failed, report.encoded) == (0, len(encoder.seen))
            seen += report.encoded
        return seen

    def served(self, store: casstore.Store) -> dict[Any, dict[str, Any]]:
        """{(plan, sample, variation): what the store serves}, comparable with ==."""
        found = {}
        for name, plan in self.plans(store).items():
            for row in plan.rows:
                got = store.get(row.key, as_numpy=True)
                found[name, row.row.sample, row.variation] = {
                    what: (str(value.dtype), value.shape, value.tobytes()) if isinstance(value, np.ndarray) else value
                    for what, value in got.items()
                }
        return found

    def fresh(self, place: Path, **options: Any) -> dict[Any, dict[str, Any]]:
        """What a new store serves, in which nothing was before."""
        with casstore.open(place, create=True, durability="off") as store:
            assert self.build(store, **options) == sum(plan.planned for plan in self.plans(store).values())
            return self.served(store)


def dump(store: casstore.Store) -> dict[str, list[Any]]:
    """{table: its rows}, of all tables but those that tell where files are and who ran what."""
    tables = {name for (name,) in sql(store, "SELECT name FROM sqlite_master WHERE type = 'table'")}
    return {name: sorted(sql(store, f"SELECT * FROM {name}"), key=repr) for name in sorted(tables - VOLATILE)}


def main() -> None:
    """In a child process: build, and print the number of encodes."""
    store, folder = sys.argv[1:]
    with casstore.open(store) as opened:
        print(Dataset(Path(folder)).build(opened))


if __name__ == "__main__":
    main()
