"""What tests share: a fake encoder that counts, pictures that are drawn, and the real photos where they are."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import casstore
from casstore.identity.recipes import Recipe
from casstore.model import Item

DATA = Path(os.environ.get("CASSTORE_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))
PHOTOS = DATA / "photos"
ROOT = Path(__file__).parents[1]


def fake_tensor(data: bytes, size: tuple[int, int], stamp: str) -> np.ndarray[Any, Any]:
    """A float32 tensor [4, height / 8, width / 8] that depends on every byte of all three arguments."""
    seed = hashlib.sha256(data + repr(size).encode() + stamp.encode()).digest()
    generator = np.random.default_rng(int.from_bytes(seed[:8], "little"))
    return generator.standard_normal((4, size[0] // 8, size[1] // 8), dtype=np.float32)


@dataclass
class FakeEncoder:
    """Makes fake tensors, counts its calls, and misbehaves on demand.

    Attributes:
        recipe: with a stride of 8, so that wrong shapes are noticed.
        seen: samples in the order they were encoded.
        before: called with each batch before it is encoded; may raise.
        change: {sample: function of the result dict}, for wrong results.
    """

    recipe: Recipe = field(default_factory=lambda: Recipe("fake", code=1, stride=8))
    seen: list[str] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    before: Callable[[list[Item]], None] | None = None
    change: Mapping[str, Callable[[dict[str, Any]], Any]] = field(default_factory=dict)

    def __call__(self, items: list[Item]) -> list[dict[str, Any]]:
        if self.before is not None:
            self.before(items)
        self.batches.append(len(items))
        results = []
        for item in items:
            self.seen.append(item.sample)
            result: Any = {"latent": expected(item, self.recipe)}
            if item.sample in self.change:
                result = self.change[item.sample](result)
            results.append(result)
        return results


def expected(item: Item, recipe: Recipe) -> np.ndarray[Any, Any]:
    """What FakeEncoder returns for an item."""
    assert item.data is not None and item.width is not None and item.height is not None
    height, width = (int(side) for side in item.resolution.split("x")) if item.resolution else (item.height, item.width)
    return fake_tensor(item.data, (height, width), recipe.spec)


def expected_of(path: Path, resolution: str, recipe: Recipe) -> np.ndarray[Any, Any]:
    """What is stored, after a build with FakeEncoder, for a file as it is now."""
    height, width = (int(side) for side in resolution.split("x"))
    return fake_tensor(path.read_bytes(), (height, width), recipe.spec)


def picture(path: Path, seed: int = 0, size: tuple[int, int] = (64, 64), mode: str = "RGB", **save: Any) -> Path:
    """Draw a picture of (width, height) pixels, different for each seed, and save it in the format of its ending."""
    generator = np.random.default_rng(seed)
    coarse = generator.integers(0, 256, (4, 4, 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).convert(mode).save(path, **save)
    return path


def pictures(folder: Path, count: int, size: tuple[int, int] = (64, 64)) -> list[Path]:
    """Draw `count` different PNG files in a folder."""
    return [picture(folder / f"p{i:03}.png", seed=i, size=size) for i in range(count)]


def png_bytes(image: Image.Image) -> bytes:
    """A picture as the bytes of a PNG file."""
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def age(*paths: Path, seconds: float = 10) -> None:
    """Set mtimes back, so that a scan may trust them (ctime can't be set back; tests inject the clock for that)."""
    for path in paths:
        found = path.stat()
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns - int(seconds * 1e9)))


def build(store: casstore.Store, folder: Path, encoder: Any, resolution: Any = "64x64", **options: Any) -> Any:
    """Scan, plan and build; the report."""
    plan = store.plan(store.scan(folder), encoder.recipe, resolution=resolution)
    return store.build(plan, encoder, **options)


def object_files(store_path: str | os.PathLike[str]) -> list[Path]:
    """All object files of a store, sorted."""
    return sorted(Path(store_path, "objects").glob("*/*"))
