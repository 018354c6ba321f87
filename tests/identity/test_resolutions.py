"""Resolutions: the rule that picks one, against the rule said again in exact arithmetic."""

from __future__ import annotations

import io
from fractions import Fraction
from functools import lru_cache
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from casstore.errors import UsageError
from casstore.identity.buckets import Buckets
from casstore.identity.resolutions import (
    RowFacts,
    buckets,
    check,
    choose,
    choose_all,
    method_of,
    parse,
    resolve,
)
from casstore.model import Content

TARGETS = st.integers(64, 2048) | st.sampled_from([256, 512, 768, 1024])
SIDES = st.integers(1, 12_000)


@lru_cache(maxsize=256)
def offered(target: int) -> list[tuple[int, int]]:
    """DESIGN 9: short side 64, 128 ... <= N, long side the largest multiple of 64 with short * long <= N * N."""
    pairs = []
    for short in range(64, target + 1, 64):
        long = 64
        while short * (long + 64) <= target * target:
            long += 64
        pairs += [(short, long), (long, short)]
    return pairs


def ranked(target: int, height: int, width: int) -> list[tuple[Fraction, int, int, int]]:
    """DESIGN 9: nearest log(height / width), then the larger area, then the taller; exact, best first."""

    def rank(bucket: tuple[int, int]) -> tuple[Fraction, int, int, int]:
        ratio = Fraction(bucket[0] * width, bucket[1] * height)
        return max(ratio, 1 / ratio), -bucket[0] * bucket[1], -bucket[0], bucket[1]

    return sorted(map(rank, set(offered(target))))


def separated(ranks: list[tuple[Fraction, int, int, int]]) -> bool:
    """Whether no bucket is nearly, but not quite, as near as the best."""
    return not any(1 < rank[0] / ranks[0][0] < 1 + Fraction(1, 10**8) for rank in ranks)


@given(TARGETS, SIDES, SIDES)
@example(100, 1, 1)  # no square is offered: 128x64 and 64x128 are equally near, the taller wins
@example(1024, 1, 12_000)
def test_the_nearest_bucket_is_chosen(target: int, height: int, width: int) -> None:
    """For any picture and area the result is what the rule says when it is worked out exactly."""
    ranks = ranked(target, height, width)
    assume(separated(ranks))
    assert choose(target, (height, width)) == f"{-ranks[0][2]}x{ranks[0][3]}"


@given(TARGETS, SIDES, SIDES)
def test_turning_the_picture_turns_the_bucket(target: int, height: int, width: int) -> None:
    """Away from ties, exchanging height and width exchanges those of the result."""
    ranks = ranked(target, height, width)
    assume(separated(ranks) and (len(ranks) == 1 or ranks[0][0] != ranks[1][0]))
    turned = "x".join(reversed(choose(target, (height, width)).split("x")))
    assert choose(target, (width, height)) == turned


@given(TARGETS)
def test_buckets_are_those_of_the_rule(target: int) -> None:
    """Each bucket is offered once, in both orientations, sorted, and within the area."""
    assert list(buckets(target)) == sorted(set(offered(target)))
    assert all(height * width <= target * target for height, width in buckets(target))


@pytest.mark.parametrize("target", [64, 1024, 4096, 16384])
def test_every_bucket_that_is_offered_can_be_named(target: int) -> None:
    """Whatever `choose` may return, `parse` takes."""
    assert [parse(f"{height}x{width}") for height, width in buckets(target)] == list(buckets(target))


@pytest.mark.parametrize("target", [64, 512, 768, 1024, 4096])
@pytest.mark.parametrize("side", [1, 63, 1000])
def test_a_square_picture_gets_the_square(target: int, side: int) -> None:
    """1:1 at N gives NxN for every N that is a multiple of 64."""
    assert choose(target, (side, side)) == f"{target}x{target}"


@pytest.mark.parametrize(
    ("target", "size", "expected"),
    [
        (1024, (768, 1024), "896x1152"),
        (1024, (1080, 1920), "768x1344"),
        (1024, (1920, 1080), "1344x768"),
        (512, (1, 1000), "64x4096"),
        (100, (500, 500), "128x64"),
        (None, (30, 20), ""),
        ("640x512", (30, 20), "640x512"),
    ],
)
def test_known_pictures_get_known_resolutions(target: Any, size: tuple[int, int], expected: str) -> None:
    """Common shapes, extreme ones, ties, the full size and fixed sizes, written down once."""
    assert choose(target, size) == expected


@given(st.integers(1, 9_999_999), st.integers(1, 9_999_999))
def test_parse_reads_height_before_width(height: int, width: int) -> None:
    """ "HxW" is (H, W) up to seven digits each."""
    assert parse(f"{height}x{width}") == (height, width)


def test_the_empty_resolution_is_the_full_size() -> None:
    """ "" parses to None."""
    assert parse("") is None


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "64",
        "64x",
        "x64",
        "064x64",
        "0x64",
        "64X64",
        "64x64\n",
        " 64x64",
        "64x-64",
        "6.4x64",
        "٦٤x٦٤",
        "9" * 12 + "x1",
    ],
)
def test_what_is_not_h_x_w_is_refused(text: str) -> None:
    """One spelling only, so that equal sizes are equal strings."""
    with pytest.raises(UsageError, match="isn't a resolution"):
        parse(text)


@pytest.mark.parametrize(
    ("asked", "meant"), [(None, None), ("", ""), (512, 512), ("512", 512), ("64x128", "64x128"), (16384, 16384)]
)
def test_a_resolution_that_can_be_meant_passes(asked: Any, meant: Any) -> None:
    """`check` returns what was asked for, with a string of digits as its int."""
    assert check(asked) == meant and type(check(asked)) is type(meant)


@pytest.mark.parametrize(
    "asked",
    [
        True,
        0,
        -512,
        63,
        16385,
        512.0,
        "63",
        "big",
        "512x",
        b"512",
        (),
        (512, 63),
        [[512]],
        {512},
        pytest.param("9" * 5000, id="9...9"),
    ],
)
def test_a_resolution_that_cannot_be_meant_is_refused(asked: Any) -> None:
    """Bools, floats, sets, nested or empty sequences, areas out of range: UsageErrors that speak of the resolution."""
    with pytest.raises(UsageError, match="resolution"):
        check(asked)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_upright_is_the_size_after_the_orientation(orientation: int) -> None:
    """For each EXIF orientation, `upright` is the size that Pillow gets by turning the picture."""
    exif, stream = Image.Exif(), io.BytesIO()
    exif[0x0112] = orientation
    Image.new("RGB", (3, 2)).save(stream, "JPEG", exif=exif)
    with Image.open(stream) as picture:
        width, height = ImageOps.exif_transpose(picture).size
    content = Content("file", b"\1" * 32, 9, width=3, height=2, orientation=orientation)
    assert content.upright == (height, width)


@pytest.mark.parametrize(("width", "height", "expected"), [(3, 2, (2, 3)), (None, None, None), (3, None, None)])
def test_upright_without_orientation_is_the_stored_size(width: Any, height: Any, expected: Any) -> None:
    """Without an orientation nothing is turned, and an unknown size stays unknown."""
    assert Content("file", b"\1" * 32, 9, width=width, height=height).upright == expected


KOHYA = Buckets(512, method="kohya")
ROW = RowFacts(3, "cats/a.jpg", "cats", width=1920, height=1080, frames=None)


def test_sequences_become_tuples_without_doubles() -> None:
    """`check` normalises each member; order is kept, functions pass as they are."""
    assert check([512, "512", "64x64", None, KOHYA]) == (512, "64x64", None, KOHYA)
    assert check(KOHYA) is KOHYA
    assert check(len) is len  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wanted", "size", "expected"),
    [
        (None, None, ("",)),
        ("64x96", None, ("64x96",)),
        ((None, "64x96"), None, ("", "64x96")),
        (512, None, None),
        (KOHYA, None, None),
        (("64x96", 512), None, None),
        (1024, (1080, 1920), ("768x1344",)),
        (Buckets(1024), (1080, 1920), ("768x1344",)),
        (Buckets(512, 1024), (100, 100), ("512x512", "1024x1024")),
        ((1024, "512x512", Buckets(512, 1024), None), (9, 9), ("1024x1024", "512x512", "")),
        ((768, 1024, Buckets(1280, upscale=False)), (768, 768), ("768x768", "1024x1024")),
    ],
)
def test_all_that_was_asked_for_is_chosen(wanted: Any, size: Any, expected: Any) -> None:
    """Each once, in order; None only if a size is needed and isn't known."""
    assert choose_all(check(wanted), size) == expected
    assert resolve(check(wanted), RowFacts(0, "a", "", *(size or (None, None))[::-1], None), 0) == expected


def test_only_one_resolution_can_be_the_only_one() -> None:
    """`choose` takes whatever gives one, and refuses several and functions."""
    assert choose((512, Buckets(512)), (5, 5)) == "512x512"
    with pytest.raises(UsageError, match=r"512x512, 768x768.* ask for one"):
        choose((512, 768), (5, 5))
    with pytest.raises(UsageError, match="depends on the row"):
        choose(lambda row, variation: 512, (5, 5))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (None, ("",)),
        ("64x96", ("64x96",)),
        ("1024", ("768x1344",)),
        (512, ("384x640",)),
        ([512, Buckets(1024)], ("384x640", "768x1344")),
        (Buckets(2048, 4096, upscale=False), ("1024x1920",)),
    ],
)
def test_a_function_may_answer_whatever_can_be_asked_for(answer: Any, expected: Any) -> None:
    """It is told the row and the variation, and its answer is checked and chosen from."""
    told = []

    def asked(row: RowFacts, variation: int) -> Any:
        told.append((row, variation))
        return answer

    assert resolve(check(asked), ROW, 2) == expected
    assert told == [(ROW, 2)]


@pytest.mark.parametrize("answer", [0, "big", (), 1.5, object(), len])
def test_a_function_whose_answer_cannot_be_meant_is_told_for_which_row(answer: Any) -> None:
    """The error names the sample, its group and the variation."""
    with pytest.raises(UsageError, match=r"resolution.*'cats/a.jpg' of group 'cats', variation 2"):
        resolve(lambda row, variation: answer, ROW, 2)


def test_what_a_function_raises_says_for_which_row() -> None:
    """The exception itself comes through, with a note."""
    with pytest.raises(ZeroDivisionError) as caught:
        resolve(lambda row, variation: row.width // variation, ROW, 0)
    assert "'cats/a.jpg' of group 'cats', variation 0" in caught.value.__notes__[0]


@pytest.mark.parametrize("width, height", [(None, 5), (5, None)])
def test_of_a_row_without_a_size_only_what_needs_none_is_known(width: Any, height: Any) -> None:
    """A function is asked all the same."""
    row = RowFacts(0, "a", "", width, height, None)
    assert resolve(lambda row, variation: "64x64", row, 0) == ("64x64",)
    assert resolve(lambda row, variation: 64, row, 0) is None


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (None, None),
        ("64x64", None),
        (("64x64", None), None),
        (512, "casstore 64"),
        (Buckets(512, 768), "casstore 64"),
        ((512, "64x64", Buckets(64, quantum=8), 768), "casstore 64, casstore 8"),
        (KOHYA, "kohya 64 256-1024"),
        (Buckets(512, method="kohya", upscale=False), "kohya 64 no upscale"),
        (Buckets(512, method="onetrainer", quantum=8, upscale=False), "onetrainer 8 no upscale"),
        (len, "function"),
    ],
)
def test_the_method_is_told_for_the_stamp(wanted: Any, expected: Any) -> None:
    """In words, without targets; nothing where nothing is picked."""
    assert method_of(wanted) == expected
