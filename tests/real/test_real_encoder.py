"""The whole path with a real encoder on real photos."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from kit import build
from PIL import Image

import casstore

taef2 = pytest.importorskip("taef2")
if not taef2.WEIGHTS.is_file():
    pytest.skip(f"the real weights aren't at {taef2.WEIGHTS}", allow_module_level=True)


def test_real_latents_come_back_bit_for_bit_and_are_never_made_twice(
    store: casstore.Store, photos: list[Path], tmp_path: Path
) -> None:
    """What get returns is what the network gives for the picture as it is now; a second build, in another process's
    place, encodes nothing, and after an edit exactly one."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for photo in photos[:6]:
        shutil.copyfile(photo, folder / photo.name)
    encoder = taef2.Taef2()
    report = build(store, folder, encoder, 256, batch_size=2)
    assert (report.planned, report.encoded, report.failed) == (6, 6, 0)
    assert build(store, folder, taef2.Taef2(), 256).encoded == 0

    first = folder / photos[0].name
    with Image.open(first) as image:
        pixels, values = casstore.FitCrop("lanczos")(image.convert("RGB"), (256, 256))
    found = store.get(first, encoder.recipe, resolution="256x256")
    with torch.inference_mode():
        alone = encoder.net(torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None].float() / 255)[0]
    assert found["latent"].dtype == torch.bfloat16 and found["latent"].shape == (32, 32, 32)
    torch.testing.assert_close(found["latent"].float(), alone, rtol=0.02, atol=0.02)  # bfloat16, and batches of two
    assert (found["crop_offset"], found["original_resolution"]) == (
        values["crop_offset"],
        values["original_resolution"],
    )

    with Image.open(first) as image:
        image.transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(first)
    again = build(store, folder, encoder, 256)
    assert (again.encoded, again.reasons) == (1, {"edited": 1})
    assert store.verify(deep=True).damaged == 0


def test_real_latents_take_two_thirds(store: casstore.Store, photos: list[Path], tmp_path: Path) -> None:
    """bfloat16 latents of real photos are stored in at most 0.68 of their bytes, object overhead included."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for photo in photos[:2]:
        shutil.copyfile(photo, folder / photo.name)
    build(store, folder, taef2.Taef2(), 256)
    status = store.status()
    assert status.stored_bytes <= 0.68 * status.payload_bytes
