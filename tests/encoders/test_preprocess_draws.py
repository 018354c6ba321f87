"""FitCrop with random crops and flips, and members that follow the primary."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import casstore
from casstore import FitCrop
from casstore.errors import UsageError
from casstore.identity.draws import draw

SIDES = st.integers(1, 60)
FILTERS = st.sampled_from(["lanczos", "nearest", "box"])
CROPS: Any = st.sampled_from(["center", "random"])
FLIPS: Any = st.sampled_from(["never", "random"])


def noise(height: int, width: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def rng_of(content: int, variation: int = 0, seed: int | None = None) -> Callable[[str], random.Random]:
    """The draws of a key, as a build gives them."""
    return partial(_draw, seed, content.to_bytes(32, "big"), variation)


def _draw(seed: int | None, primary: bytes, variation: int, name: str) -> random.Random:
    return draw(name, seed, primary, variation)


def by_hand(image: Image.Image, values: Any, size: tuple[int, int] | None, name: str) -> Any:
    """The geometry that values speak of, applied with NumPy and Pillow: scale, crop, mirror."""
    height, width = values["original_resolution"]
    if size is not None:
        scale = max(size[0] / height, size[1] / width)
        height, width = max(size[0], round(height * scale)), max(size[1], round(width * scale))
    pixels = np.asarray(image.resize((width, height), Image.Resampling[name.upper()]))
    top, left = values["crop_offset"]
    pixels = pixels if size is None else pixels[top : top + size[0], left : left + size[1]]
    return pixels[:, ::-1] if values.get("flip") else pixels


@given(SIDES, SIDES, st.none() | st.tuples(SIDES, SIDES), FILTERS, CROPS, FLIPS, st.integers(0, 99))
def test_the_values_say_how_the_result_came_about(
    h: int, w: int, size: tuple[int, int] | None, name: str, crop: Any, flip: Any, content: int
) -> None:
    """Scaling, cropping at crop_offset (before mirroring) and mirroring by the values gives the result."""
    fit, image = FitCrop(name, crop, flip), noise(h, w)
    found, values = fit(image, size, rng_of(content))
    assert (found.dtype, found.shape) == (np.uint8, (*(size or (h, w)), 3))
    np.testing.assert_array_equal(found, by_hand(image, values, size, name))
    assert values.keys() == {"crop_offset", "original_resolution", *(["flip"] if flip == "random" else [])}


@given(SIDES, SIDES, st.none() | st.tuples(SIDES, SIDES), FILTERS, CROPS, FLIPS, st.integers(0, 99))
def test_a_member_of_the_same_size_is_where_the_primary_is(
    h: int, w: int, size: tuple[int, int] | None, name: str, crop: Any, flip: Any, content: int
) -> None:
    """The primary that follows itself is the result once more."""
    fit, image = FitCrop(name, crop, flip), noise(h, w)
    found, values = fit(image, size, rng_of(content))
    np.testing.assert_array_equal(fit.follow(image, values, size), found)


@given(SIDES, SIDES, SIDES, SIDES, st.none() | st.tuples(SIDES, SIDES), FILTERS, st.integers(0, 99))
def test_a_member_gets_the_geometry_of_the_primary(
    h: int, w: int, mask_h: int, mask_w: int, size: tuple[int, int] | None, name: str, content: int
) -> None:
    """Whatever its own size: scaled as large as the primary, cropped and mirrored alike, with the members' filter."""
    fit = FitCrop("lanczos", "random", "random", members=name)
    _, values = fit(noise(h, w), size, rng_of(content))
    mask = noise(mask_h, mask_w, seed=1)
    found = fit.follow(mask, values, size)
    np.testing.assert_array_equal(found, by_hand(mask, values, size, name))
    np.testing.assert_array_equal(
        fit.follow(mask.convert("L"), values, size), by_hand(mask.convert("L"), values, size, name)
    )


def test_a_mask_stays_on_what_it_masks() -> None:
    """A bright square in the picture and in its mask, at half the size, end up in the same place."""
    pixels = np.zeros((120, 200, 3), np.uint8)
    pixels[40:80, 120:160] = 255
    image, mask = Image.fromarray(pixels), Image.fromarray(pixels[::2, ::2])
    fit = FitCrop("box", crop="random", flip="random", members="nearest")
    for content in range(20):
        found, values = fit(image, (60, 60), rng_of(content))
        follows = fit.follow(mask, values, (60, 60))
        assert np.abs((found > 127).astype(int) - (follows > 127)).sum() <= 3 * 4 * 20  # at most the rim differs


@given(SIDES, SIDES, SIDES, SIDES, FILTERS)
def test_options_at_their_defaults_change_nothing(h: int, w: int, height: int, width: int, name: str) -> None:
    """Same results and the same spec as a FitCrop that knows only filters, with or without draws at hand."""
    said = FitCrop(name, crop="center", flip="never", members=None)
    for size in ((height, width), None):
        plain, values = FitCrop(name)(noise(h, w), size)
        found, same = said(noise(h, w), size, rng_of(0))
        np.testing.assert_array_equal(plain, found)
        assert values == same and values.keys() == {"crop_offset", "original_resolution"}
    assert said.spec == {"fit_crop": {"filter": name}} and not said.draws


@pytest.mark.parametrize(
    ("fit", "options", "told"),
    [
        (FitCrop(), {}, "FitCrop('lanczos')"),
        (FitCrop(members="lanczos"), {}, "FitCrop('lanczos')"),
        (FitCrop(crop="random"), {"crop": "random"}, "FitCrop('lanczos', crop='random')"),
        (FitCrop(flip="random"), {"flip": "random"}, "FitCrop('lanczos', flip='random')"),
        (FitCrop(members="box"), {"members": "box"}, "FitCrop('lanczos', members='box')"),
    ],
)
def test_only_what_differs_is_part_of_the_identity(fit: FitCrop, options: Any, told: str) -> None:
    """Each option that changes results is in the spec, and nothing else is."""
    assert fit.spec == {"fit_crop": {"filter": "lanczos", **options}}
    assert repr(fit) == told
    assert fit.draws == ("random" in options.values())
    assert (casstore.Recipe("r", preprocess=fit) == casstore.Recipe("r", preprocess=FitCrop())) == (not options)


def test_random_crops_are_uniform() -> None:
    """Over 3,000 contents each of 6 x 1 places comes up about as often (within 5 standard deviations)."""
    fit, image = FitCrop("nearest", crop="random"), noise(15, 10)
    places = Counter(tuple(fit(image, (10, 10), rng_of(content))[1]["crop_offset"]) for content in range(3000))
    assert places.keys() == {(top, 0) for top in range(6)}
    assert all(abs(count - 500) < 5 * (3000 * 5 / 36) ** 0.5 for count in places.values())


def test_random_flips_mirror_half() -> None:
    """Over 2,000 contents and over 2,000 variations of one, about half are mirrored."""
    fit, image = FitCrop(flip="random"), noise(2, 2)
    for rngs in ([rng_of(n) for n in range(2000)], [rng_of(1, n) for n in range(2000)]):
        mirrored = sum(fit(image, None, rng)[1]["flip"] for rng in rngs)
        assert abs(mirrored - 1000) < 5 * 500**0.5


def test_recipes_that_share_the_seed_crop_alike() -> None:
    """The place depends on content, seed and variation alone: not on filter, flip, or what was drawn before."""
    first, second = FitCrop("box", crop="random"), FitCrop("lanczos", crop="random", flip="random")
    for content in range(30):
        offsets = [fit(noise(90, 40), (40, 40), rng_of(content, 1, 5))[1]["crop_offset"] for fit in (first, second)]
        assert offsets[0] == offsets[1]
    other = [first(noise(90, 40), (40, 40), rng_of(content, 1, 6))[1]["crop_offset"] for content in range(30)]
    assert other != [first(noise(90, 40), (40, 40), rng_of(content, 1, 5))[1]["crop_offset"] for content in range(30)]


def test_a_crop_is_at_the_same_place_at_every_resolution() -> None:
    """The share of the slack is drawn, so that 512 and 1024 show the same part of the picture."""
    fit = FitCrop("box", crop="random")
    for content in range(30):
        small, large = (fit(noise(200, 100), (n, n), rng_of(content))[1]["crop_offset"][0] for n in (50, 100))
        assert abs(2 * small - large) <= 2


@pytest.mark.parametrize("fit", [FitCrop(crop="random"), FitCrop(flip="random")])
def test_draws_have_to_be_given(fit: FitCrop) -> None:
    """Without them it is a UsageError, never a silent centre."""
    with pytest.raises(UsageError, match="rng"):
        fit(noise(5, 5), (4, 4))


@pytest.mark.parametrize(
    "options", [{"crop": "centre"}, {"crop": None}, {"flip": "always"}, {"flip": True}, {"members": "LANCZOS"}]
)
def test_an_option_that_does_not_exist_is_refused(options: Any) -> None:
    """With what there is."""
    with pytest.raises(UsageError, match=r"random|lanczos"):
        FitCrop(**options)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"original_resolution": [20, 10]},
        {"original_resolution": [20, 10], "crop_offset": None},
        {"original_resolution": [20, 10], "crop_offset": [11, 0]},
        {"original_resolution": [20, 10], "crop_offset": [0, 1]},
        {"original_resolution": [20, 10], "crop_offset": [-1, 0]},
        {"original_resolution": [0, 10], "crop_offset": [0, 0]},
        {"original_resolution": [20], "crop_offset": [0, 0]},
    ],
)
def test_values_of_something_else_are_refused(values: Any) -> None:
    """A member is never cropped beyond the picture, which would make black pixels up."""
    with pytest.raises(UsageError, match=r"FitCrop: (a picture|the primary)"):
        FitCrop().follow(noise(20, 10), values, (10, 10))


def test_a_primary_without_pixels_is_refused_at_the_full_size_too() -> None:
    """There is nothing that a member could be scaled to."""
    with pytest.raises(UsageError, match="0x10"):
        FitCrop().follow(noise(2, 2), {"original_resolution": [0, 10], "crop_offset": [0, 0]}, None)
