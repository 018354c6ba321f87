"""Buckets: the trainers' own choices line by line, and properties of every method."""

from __future__ import annotations

import lzma
from math import isqrt, log, sqrt
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

import casstore
from casstore import Buckets
from casstore.errors import UsageError
from casstore.identity.buckets import KOHYA_SIDES, ONETRAINER_ASPECTS, Method, casstore_sizes
from casstore.identity.resolutions import parse

GOLDEN = Path(__file__).with_name("golden")
SIDES = st.integers(1, 12_000)
QUANTA = st.sampled_from([8, 16, 32, 64, 128])
METHODS: list[Method] = ["casstore", "onetrainer", "kohya"]


def meant(method: Method, column: str) -> Buckets:
    """The Buckets of a golden column, see scripts/make_buckets."""
    column, _, sides = column.partition("|")
    upscale, column = not column.endswith("down"), column.removesuffix("down")
    target, _, quantum = column.partition("q")
    shortest, _, longest = sides.partition("-")
    pair = (int(shortest), int(longest)) if sides else None
    return Buckets(int(target), method=method, quantum=int(quantum or 64), upscale=upscale, sides=pair)


def table(name: str) -> tuple[list[str], list[list[str]]]:
    """The names of a golden table's columns, and its lines."""
    first, head, *lines = lzma.decompress((GOLDEN / f"{name}.tsv.xz").read_bytes()).decode().splitlines()
    assert first.startswith(f"# {name} ")
    return head.split("\t"), [line.split("\t") for line in lines]


def sized(resolution: str) -> tuple[int, int]:
    height, width = map(int, resolution.split("x"))
    return height, width


@st.composite
def any_buckets(draw: st.DrawFn, upscale: bool | None = None) -> Buckets:
    """Any method with one target that it takes."""
    method = draw(st.sampled_from(METHODS))
    quantum = draw(QUANTA)
    up = draw(st.booleans()) if upscale is None else upscale
    least, most = (256, 1024) if method == "kohya" and up else (quantum + 1, 2048)
    return Buckets(draw(st.integers(least, most)), method=method, quantum=quantum, upscale=up)


@pytest.mark.parametrize("method", ["onetrainer", "kohya"])
def test_what_the_trainers_choose_is_chosen_in_every_line(method: Method) -> None:
    """2,000 pictures x every column, as the public mgds and sd-scripts chose them themselves."""
    (_, *columns), lines = table(method)
    assert len(lines) == 2000 and len(columns) >= 6
    for place, column in enumerate(columns, 1):
        buckets = meant(method, column)
        wrong = [
            (line[0], line[place], found)
            for line in lines
            for found in buckets.choose(*sized(line[0]))
            if line[place] not in (found, "-")
        ]
        assert wrong == [], column


def test_where_sd_scripts_fails_there_is_a_resolution() -> None:
    """Without upscaling its steps can round a side to 0; here that side is one quantum, and the area still bounds."""
    (_, *columns), lines = table("kohya")
    failed = [
        (column, line[0]) for line in lines for column, told in zip(columns, line[1:], strict=True) if told == "-"
    ]
    assert len(failed) > 100
    for column, picture in failed:
        buckets = meant("kohya", column)
        assert not buckets.upscale
        height, width = sized(buckets.choose(*sized(picture))[0])
        assert min(height, width) == buckets.quantum and height * width <= buckets.targets[0] ** 2


def test_the_golden_tables_are_small() -> None:
    """Less than 100 KB in all."""
    assert sum(path.stat().st_size for path in GOLDEN.iterdir()) < 100_000


@given(any_buckets(), SIDES, SIDES)
def test_sides_are_multiples_of_the_quantum(buckets: Buckets, height: int, width: int) -> None:
    """Whatever is asked of whatever picture, sides are positive multiples of the quantum."""
    (found,) = buckets.choose(height, width)
    assert all(side > 0 and side % buckets.quantum == 0 for side in sized(found))


@given(any_buckets(), SIDES, SIDES)
def test_the_area_is_bounded(buckets: Buckets, height: int, width: int) -> None:
    """target^2 pixels are never exceeded, but for OneTrainer's own buckets: their sides are rounded to the nearest."""
    (target,) = buckets.targets
    (found,) = buckets.choose(height, width)
    tall, wide = sized(found)
    if buckets.method != "onetrainer":
        assert tall * wide <= target * target
    elif tall * wide > target * target:
        roots = [root for aspect in ONETRAINER_ASPECTS for root in (sqrt(aspect), 1 / sqrt(aspect))]
        assert any(abs(tall - target * r) <= buckets.quantum / 2 >= abs(wide - target / r) for r in roots)


@given(any_buckets(upscale=False), SIDES, SIDES)
@example(Buckets(1024, upscale=False), 1343, 839)  # taking the sides alone would give 1280x832, more than 1024 * 1024
@example(Buckets(128, upscale=False), 128, 128)
def test_without_upscaling_no_picture_is_scaled_up(buckets: Buckets, height: int, width: int) -> None:
    """Both sides fit in the picture, as long as it is a quantum wide and high."""
    assume(min(height, width) >= buckets.quantum)
    (found,) = buckets.choose(height, width)
    assert sized(found)[0] <= height and sized(found)[1] <= width


@given(st.sampled_from(METHODS), QUANTA, st.integers(40, 1000), st.integers(40, 1000))
def test_targets_above_a_small_picture_share_one_resolution(
    method: Method, quantum: int, height: int, width: int
) -> None:
    """Without upscaling, all targets of at least its area give the picture's own size, rounded down to the quantum."""
    assume(min(height, width) >= quantum)
    targets = (1000, 1024, 1280, 4096)
    found = Buckets(*targets, method=method, quantum=quantum, upscale=False).choose(height, width)
    assert found == (f"{height - height % quantum}x{width - width % quantum}",)


def test_a_small_picture_that_fits_no_target_is_one_variant() -> None:
    """A 600 px picture and three areas above it."""
    assert Buckets(768, 1024, 1280, upscale=False).choose(600, 600) == ("576x576",)
    assert Buckets(512, 768, 1024, upscale=False).choose(600, 600) == ("512x512", "576x576")
    assert Buckets(512, 768, 1024).choose(600, 600) == ("512x512", "768x768", "1024x1024")


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((50, 400), "64x384"),
        ((1, 1), "64x64"),
        ((30, 100_000), "64x16384"),
        ((9_999, 3), "9984x64"),
        ((64, 64), "64x64"),
    ],
)
def test_a_side_below_the_quantum_becomes_one_quantum(size: tuple[int, int], expected: str) -> None:
    """The smallest resolution that there is; the other side is cut to the area."""
    assert Buckets(1024, upscale=False).choose(*size) == (expected,)


@given(st.integers(64, 1024), QUANTA, SIDES, SIDES)
def test_without_upscaling_a_large_picture_gets_its_bucket(target: int, quantum: int, height: int, width: int) -> None:
    """Where the bucket fits in the picture, upscale makes no difference."""
    assume(target >= quantum)
    (bucket,) = Buckets(target, quantum=quantum).choose(height, width)
    assume(sized(bucket)[0] <= height and sized(bucket)[1] <= width)
    assert Buckets(target, quantum=quantum, upscale=False).choose(height, width) == (bucket,)


@given(st.integers(128, 1500), QUANTA, SIDES, SIDES)
def test_the_nearest_aspect_is_chosen(target: int, quantum: int, height: int, width: int) -> None:
    """Among all sizes of the casstore method, for any quantum."""
    (found,) = Buckets(target, quantum=quantum).choose(height, width)

    def distance(size: tuple[int, int]) -> float:
        return abs(log(size[0] / size[1]) - log(height / width))

    assert distance(sized(found)) <= min(map(distance, casstore_sizes(target, quantum))) + 1e-8


@given(st.integers(64, 1024), QUANTA, st.booleans(), SIDES, SIDES)
def test_turning_the_picture_turns_the_bucket(target: int, quantum: int, up: bool, height: int, width: int) -> None:
    """The casstore method treats both orientations alike, up to ties."""
    assume(target >= quantum)
    buckets = Buckets(target, quantum=quantum, upscale=up)
    found, turned = sized(buckets.choose(height, width)[0]), sized(buckets.choose(width, height)[0])[::-1]
    if found != turned:
        near, nearer = (abs(log(h / w) - log(height / width)) for h, w in (found, turned))
        assert near == pytest.approx(nearer, abs=1e-8)


@given(st.lists(st.sampled_from([256, 512, 768, 1024]), min_size=1), SIDES, SIDES)
def test_each_target_gives_one_resolution_in_order(targets: list[int], height: int, width: int) -> None:
    """Several targets are those of each alone, doubles removed."""
    alone = [Buckets(target).choose(height, width)[0] for target in targets]
    assert Buckets(*targets).choose(height, width) == tuple(dict.fromkeys(alone))


@pytest.mark.parametrize(
    ("buckets", "told"),
    [
        (Buckets(1024), "Buckets(1024)"),
        (
            Buckets(512, 768, method="kohya", quantum=32, sides=(128, 2048)),
            "Buckets(512, 768, method='kohya', quantum=32, sides=(128, 2048))",
        ),
        (
            Buckets(512, method="onetrainer", quantum=8, upscale=False),
            "Buckets(512, method='onetrainer', quantum=8, upscale=False)",
        ),
        (Buckets(512, method="kohya", upscale=False), "Buckets(512, method='kohya', upscale=False)"),
    ],
)
def test_buckets_are_values(buckets: Buckets, told: str) -> None:
    """The repr says how to make them again; they are equal, hashable, frozen, and survive a change of process."""
    again = ForkingPickler.loads(ForkingPickler.dumps(buckets))  # type: ignore[attr-defined]
    assert (repr(buckets), again, hash(again)) == (told, buckets, hash(buckets))
    assert again != Buckets(640) and casstore.Buckets is Buckets
    with pytest.raises(AttributeError):
        buckets.quantum = 1


def test_what_does_not_matter_does_not_tell_buckets_apart() -> None:
    """Doubles, the default sides said, sides that have no effect."""
    assert Buckets(512, 512, 768) == Buckets(512, 768)
    assert Buckets(512, method="kohya") == Buckets(512, method="kohya", sides=KOHYA_SIDES)
    assert Buckets(512, method="kohya", upscale=False) == Buckets(512, method="kohya", upscale=False, sides=(64, 2048))


@pytest.mark.parametrize(
    ("targets", "options", "why"),
    [
        ((), {}, "no resolution"),
        ((True,), {}, "True"),
        ((512.0,), {}, r"512\.0"),
        (("512",), {}, "'512'"),
        ((63,), {}, "between 64 and"),
        ((16385,), {}, "between 64 and"),
        ((16384,), {"quantum": 8}, "between 8 and 8944"),
        ((512, 4), {"quantum": 8}, "of 4"),
        ((512,), {"quantum": 0}, "quantum"),
        ((512,), {"quantum": True}, "quantum"),
        ((512,), {"method": "sdxl"}, "casstore, onetrainer, kohya"),
        ((512,), {"upscale": 1}, "upscale"),
        ((512,), {"sides": (256, 1024)}, "kohya"),
        ((64,), {"method": "onetrainer"}, "too small"),
        ((1280,), {"method": "kohya"}, "max_bucket_reso"),
        ((200,), {"method": "kohya"}, "min_bucket_reso"),
        ((512,), {"method": "kohya", "sides": (1024, 256)}, "multiple"),
        ((512,), {"method": "kohya", "sides": (32, 1024)}, "multiple"),
        ((512,), {"method": "kohya", "sides": 256}, "shortest"),
    ],
)
def test_what_cannot_be_meant_is_refused(targets: Any, options: Any, why: str) -> None:
    """Each mistake is a UsageError that names it."""
    with pytest.raises(UsageError, match=why):
        Buckets(*targets, **options)


@pytest.mark.parametrize("size", [(0, 5), (5, 0), (-3, 4), (2.5, 4), (None, 4)])
def test_a_picture_without_pixels_is_refused(size: Any) -> None:
    """There is no resolution for it."""
    with pytest.raises(UsageError, match="no resolution"):
        Buckets(512).choose(*size)


@pytest.mark.parametrize("quantum", [1, 8, 64, 16384])
def test_the_longest_bucket_can_be_named(quantum: int) -> None:
    """At the largest target no side has more digits than "HxW" can have."""
    largest = min(16384, isqrt(9_999_999 * quantum))
    for upscale in (True, False):
        (found,) = Buckets(largest, quantum=quantum, upscale=upscale).choose(1, 10**9)
        assert parse(found) == sized(found)
    with pytest.raises(UsageError, match=f"between {quantum} and {largest} pixels"):
        Buckets(largest + 1, quantum=quantum)
