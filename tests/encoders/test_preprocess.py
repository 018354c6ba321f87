"""FitCrop: scaling to cover, cropping the centre, and what it says about that."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import casstore
from casstore import FitCrop
from casstore.errors import UsageError

SIDES = st.integers(1, 70)


def drawn(height: int, width: int) -> Image.Image:
    """A picture in which every pixel tells its place: red is its row, green its column."""
    rows, columns = np.indices((height, width), dtype=np.uint8)
    return Image.fromarray(np.dstack([rows, columns, np.full_like(rows, 9)]))


@given(SIDES, SIDES, SIDES, SIDES, st.sampled_from(["lanczos", "nearest", "box"]))
def test_the_result_has_the_size_that_was_asked_for(h: int, w: int, height: int, width: int, name: str) -> None:
    """From any size to any size, the result is uint8 [height, width, 3]."""
    found, _ = FitCrop(name)(drawn(h, w), (height, width))
    assert (found.shape, found.dtype) == ((height, width, 3), np.uint8)


@given(SIDES, SIDES, SIDES, SIDES)
def test_the_scaled_picture_covers_and_overlaps_in_one_direction(h: int, w: int, height: int, width: int) -> None:
    """The picture is scaled until it just covers: what is cropped off lies above and below, or left and right."""
    _, values = FitCrop("box")(drawn(h, w), (height, width))
    top, left = values["crop_offset"]
    scale = max(height / h, width / w)
    assert min(top, left) == 0
    assert abs(2 * top + height - h * scale) <= 2 and abs(2 * left + width - w * scale) <= 2


@given(SIDES, SIDES, st.integers(0, 9), st.integers(0, 1))
def test_the_centre_is_cropped_and_the_offset_is_top_left(height: int, width: int, more: int, odd: int) -> None:
    """Where nothing needs scaling, the result is the middle of the picture, and crop_offset says where it was."""
    fit = FitCrop("nearest")
    tall, values = fit(drawn(height + 2 * more + odd, width), (height, width))
    assert (values["crop_offset"], tall[0, 0].tolist()) == ([more, 0], [more, 0, 9])
    wide, values = fit(drawn(height, width + 2 * more + odd), (height, width))
    assert (values["crop_offset"], wide[0, 0].tolist()) == ([0, more], [0, more, 9])


@given(SIDES, SIDES, st.booleans())
def test_a_picture_of_the_right_size_stays_as_it_is(height: int, width: int, full: bool) -> None:
    """At its own size, or at the full size, not one pixel changes and nothing is cropped."""
    image = drawn(height, width)
    found, values = FitCrop("lanczos")(image, None if full else (height, width))
    np.testing.assert_array_equal(found, np.asarray(image))
    assert values["crop_offset"] == [0, 0]


@given(SIDES, SIDES, SIDES, SIDES)
def test_the_original_resolution_is_height_before_width(h: int, w: int, height: int, width: int) -> None:
    """original_resolution is the size before scaling, y before x."""
    _, values = FitCrop("box")(drawn(h, w), (height, width))
    assert values["original_resolution"] == [h, w]


@pytest.mark.parametrize("name", ["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"])
def test_a_filter_is_pillows_filter_of_that_name(name: str) -> None:
    """Scaling by a whole picture gives what Pillow's resize gives with this filter."""
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8))
    found, _ = FitCrop(name)(image, (8, 10))
    scaled = image.resize((12, 8), Image.Resampling[name.upper()])
    np.testing.assert_array_equal(found, np.asarray(scaled)[:, 1:11])


def test_the_filter_is_part_of_the_identity() -> None:
    """The spec names the filter, and recipes with different filters differ."""
    assert FitCrop("box").spec == {"fit_crop": {"filter": "box"}}
    assert casstore.Recipe("r", preprocess=FitCrop("box")) == casstore.Recipe("r", preprocess=FitCrop("box"))
    assert casstore.Recipe("r", preprocess=FitCrop("box")) != casstore.Recipe("r", preprocess=FitCrop("lanczos"))


@pytest.mark.parametrize("name", ["", "LANCZOS", "cubic", 3, None])
def test_a_filter_that_does_not_exist_is_refused(name: Any) -> None:
    """An unknown filter is refused when FitCrop is made, with the list of those there are."""
    with pytest.raises(UsageError, match="bicubic"):
        FitCrop(name)
