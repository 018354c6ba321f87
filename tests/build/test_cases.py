"""Cases of other programs' users that are about pictures of unusual kinds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from kit import build, check_counts
from PIL import Image

import casstore
from casstore.encoders.pixels import Pixels

MODES = ("1", "L", "LA", "P", "RGB", "RGBA")
FORMATS = {"a.gif": "GIF", "b.png": "PNG", "c.webp": "WEBP", "wrong.png": "GIF"}


def test_t31_pictures_of_every_mode_give_the_same_shape(store: casstore.Store, tmp_path: Path) -> None:
    """T31: modes 1, L, LA, P, RGB and RGBA of one motif are stored alike; L and its RGB copy are two sources with equal
    tensors, which are one object."""
    grey = Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8) * 4).resize((64, 64))
    (tmp_path / "set").mkdir()
    for mode in MODES:
        grey.convert(mode).save(tmp_path / "set" / f"{mode}.png")
    assert check_counts(build(store, tmp_path / "set", Pixels())).encoded == 6
    found = {
        mode: store.get(tmp_path / "set" / f"{mode}.png", Pixels().recipe, as_numpy=True)["pixels"] for mode in MODES
    }
    assert {tensor.shape for tensor in found.values()} == {(3, 64, 64)}
    np.testing.assert_array_equal(found["L"], found["RGB"])
    keys = {store.key(tmp_path / "set" / f"{mode}.png", Pixels().recipe) for mode in ("L", "RGB")}
    digests = {hit.digests for hit in map(store.lookup, keys) if isinstance(hit, casstore.Hit)}
    assert (len(keys), len(digests)) == (2, 1)


@pytest.mark.parametrize("name", FORMATS)
def test_t32_of_an_animation_the_first_frame_is_taken_and_told(
    store: casstore.Store, tmp_path: Path, name: str
) -> None:
    """T32: GIF, APNG, WebP and a GIF that is called .png: two with the same first frame are two sources with equal
    tensors, and a note says what was taken."""
    for number in (1, 2):
        frames = [Image.new("RGB", (64, 64), (200, 40, 40)), Image.new("RGB", (64, 64), (0, 0, number * 100))]
        path = tmp_path / "set" / f"{number}-{name}"
        path.parent.mkdir(exist_ok=True)
        frames[0].save(path, FORMATS[name], save_all=True, append_images=frames[1:])
    report = check_counts(build(store, tmp_path / "set", Pixels()))
    assert report.encoded == 2 and all("animation, the first of 2 frames" in note for _, note in report.notes)
    one, other = (store.get(tmp_path / "set" / f"{n}-{name}", Pixels().recipe, as_numpy=True) for n in (1, 2))
    np.testing.assert_array_equal(one["pixels"], other["pixels"])
    assert len(report.notes) == 2 == store.status().variants
