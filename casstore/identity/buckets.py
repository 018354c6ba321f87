"""Buckets: the sizes that an area offers, and the rules that pick one for a picture. Sizes are (height, width).

The rules of the two trainers are theirs to the last rounding, so that what they would choose is what is chosen here;
they were read in Nerogar/mgds 3a6994a (AspectBucketing) and kohya-ss/sd-scripts 48d368f (BucketManager).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

from casstore.errors import UsageError

QUANTUM = 64  # pixels; divisible by every stride and patch size of the common latent models
LARGEST_TARGET = 16384  # pixels
LONGEST_SIDE = 9_999_999  # pixels: seven digits, the most that "HxW" has
ONETRAINER_ASPECTS = (1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0)  # mgds, all_possible_input_aspects
KOHYA_SIDES = (256, 1024)  # pixels; sd-scripts, the defaults of min_bucket_reso and max_bucket_reso

Method = Literal["casstore", "onetrainer", "kohya"]
Size = tuple[int, int]


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Buckets:
    """Areas, and how one of the sizes that each offers is picked for a picture.

    Equal sizes are equal keys, whichever method and target they came from.

    Args:
        *targets: areas, in pixels of the side of a square: 1024 stands for 1024 * 1024 pixels. Each is asked for.
        method: "casstore": short side quantum, 2 * quantum ... <= target, long side the largest multiple of the quantum
            with short * long <= target^2, both orientations; of these the nearest log(height / width), on a tie the
            larger area, then the taller. "onetrainer": as OneTrainer picks it, from 17 aspects between 1:4 and 4:1.
            "kohya": as sd-scripts does, with bucket_reso_steps = quantum.
        quantum: sides are multiples of it, in pixels.
        upscale: whether pictures are scaled up to reach an area. False: a picture of at most target^2 pixels keeps its
            size, each side rounded down to the quantum, so that all targets above it share one resolution. A larger one
            gets its bucket if that is no longer than the picture in either direction; else it is scaled down to
            target^2 pixels and its sides are rounded down. "kohya" has a rule of its own for larger ones,
            bucket_no_upscale. Only a side shorter than the quantum is scaled up, to one quantum.
        sides: "kohya" with upscale: (shortest, longest) side in pixels, min_bucket_reso and max_bucket_reso of
            sd-scripts; None: its defaults, 256 and 1024.

    Raises:
        UsageError: a target or an option can't be meant.
    """

    targets: tuple[int, ...]
    method: Method
    quantum: int
    upscale: bool
    sides: tuple[int, int] | None

    def __init__(
        self,
        *targets: int,
        method: Method = "casstore",
        quantum: int = QUANTUM,
        upscale: bool = True,
        sides: tuple[int, int] | None = None,
    ) -> None:
        if method not in get_args(Method):
            raise UsageError(f"Buckets: there is no method {method!r}; use one of {', '.join(get_args(Method))}")
        if not isinstance(upscale, bool):
            raise UsageError(f"Buckets: upscale is True or False, not {upscale!r}")
        if not targets:
            raise UsageError("Buckets: no resolution is given; name at least one, for example Buckets(1024)")
        if not _is_count(quantum) or quantum > LARGEST_TARGET:
            raise UsageError(f"Buckets: a quantum of {quantum!r} isn't between 1 and {LARGEST_TARGET} pixels")
        if method == "kohya":
            sides = _stepped(KOHYA_SIDES if sides is None else sides, quantum) if upscale else None
        elif sides is not None:
            raise UsageError(f"Buckets: sides={sides!r} belongs to method='kohya'; leave it out")
        for target in targets:
            _check(target, method, quantum, sides)
        told = {"targets": tuple(dict.fromkeys(targets)), "method": method, "quantum": quantum}
        for name, value in {**told, "upscale": upscale, "sides": sides}.items():
            object.__setattr__(self, name, value)

    def choose(self, height: int, width: int) -> tuple[str, ...]:
        """The resolutions at which a picture is encoded.

        Args:
            height, width: of the upright picture, in pixels.

        Returns:
            "HxW" for each target, in their order, each once.

        Raises:
            UsageError: the picture has no pixels.
        """
        return _choose(self, height, width)

    def __repr__(self) -> str:
        parts = [repr(target) for target in self.targets]
        if self.method != "casstore":
            parts.append(f"method={self.method!r}")
        if self.quantum != QUANTUM:
            parts.append(f"quantum={self.quantum}")
        if not self.upscale:
            parts.append("upscale=False")
        if self.sides is not None and self.sides != KOHYA_SIDES:
            parts.append(f"sides={self.sides}")
        return f"Buckets({', '.join(parts)})"

    def __str__(self) -> str:
        """The method without the targets, as a schema stamp tells it: "kohya 64 256-1024"."""
        sides = "" if self.sides is None else "{}-{}".format(*self.sides)
        return " ".join(filter(None, (self.method, str(self.quantum), sides, "" if self.upscale else "no upscale")))


def casstore_sizes(target: int, quantum: int = QUANTUM) -> tuple[Size, ...]:
    """All sizes that the casstore method offers for an area, sorted."""
    found = set()
    for short in range(quantum, target + 1, quantum):
        long = _floor(target * target // short, quantum)
        found |= {(short, long), (long, short)}
    return tuple(sorted(found))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _floor(pixels: int, quantum: int) -> int:
    return pixels - pixels % quantum


def _stepped(sides: tuple[int, int], quantum: int) -> tuple[int, int]:
    """The shortest and longest side as sd-scripts makes them multiples of the steps: the one down, the other up."""
    if not isinstance(sides, (tuple, list)) or len(sides) != 2 or not all(map(_is_count, sides)):
        raise UsageError(f"Buckets: sides={sides!r} isn't (shortest, longest) in pixels")
    shortest, longest = _floor(sides[0], quantum), sides[1] + -sides[1] % quantum
    if not 0 < shortest <= longest <= LONGEST_SIDE:
        raise UsageError(f"Buckets: no multiple of {quantum} lies between the sides {sides[0]} and {sides[1]} pixels")
    return shortest, longest


def _check(target: int, method: Method, quantum: int, sides: tuple[int, int] | None) -> None:
    largest = min(LARGEST_TARGET, math.isqrt(LONGEST_SIDE * quantum))
    if not _is_count(target) or not quantum <= target <= largest:
        raise UsageError(f"a resolution of {target!r} isn't between {quantum} and {largest} pixels")
    if method == "onetrainer" and any(0 in size for _, size in _onetrainer(target, quantum)):
        raise UsageError(
            f"a resolution of {target} is too small for method='onetrainer', which would round a side to 0; "
            f"use one above the quantum of {quantum}"
        )
    if sides is not None and not sides[0] <= target <= sides[1]:
        raise UsageError(
            f"a resolution of {target} isn't between {sides[0]} and {sides[1]} pixels, which method='kohya' wants; "
            "set sides=(shortest, longest) as in your min_bucket_reso and max_bucket_reso"
        )


@lru_cache(maxsize=16384)
def _choose(buckets: Buckets, height: int, width: int) -> tuple[str, ...]:
    if not _is_count(height) or not _is_count(width):
        raise UsageError(f"a picture of {height!r} x {width!r} pixels has no resolution")
    found = dict.fromkeys(_pick(buckets, target, (height, width)) for target in buckets.targets)
    return tuple(f"{height}x{width}" for height, width in found)


def _pick(buckets: Buckets, target: int, size: Size) -> Size:
    method, quantum = buckets.method, buckets.quantum
    if not buckets.upscale:
        if size[0] * size[1] <= target * target:
            return _within(target, quantum, size)
        if method == "kohya":
            return _kohya_smaller(target, quantum, size) or _within(target, quantum, size)
    if method == "kohya":
        assert buckets.sides is not None
        found = _nearest(_kohya(target, quantum, buckets.sides), size[1] / size[0])
    elif method == "onetrainer":
        found = _nearest(_onetrainer(target, quantum), size[0] / size[1])
    else:
        found = _nearest_log(target, quantum, size)
    fits = found[0] <= size[0] and found[1] <= size[1]
    return found if buckets.upscale or fits else _within(target, quantum, size)


def _within(target: int, quantum: int, size: Size) -> Size:
    """The size of a picture, scaled down to target^2 pixels if it has more, its sides rounded down to the quantum."""
    height, width = size
    if height * width > target * target:  # exactly: floor(height * target / sqrt(height * width))
        height, width = math.isqrt(height * target**2 // width), math.isqrt(width * target**2 // height)
    height, width = _floor(height, quantum), _floor(width, quantum)
    if not height or not width:
        height, width = max(height, quantum), max(width, quantum)
        longest = _floor(target * target // quantum, quantum)
        height, width = min(height, longest), min(width, longest)
    return height, width


# casstore


@lru_cache(maxsize=64)
def _logs(target: int, quantum: int) -> tuple[tuple[float, ...], tuple[Size, ...]]:
    """log(height / width) of all sizes, ascending, and the sizes in that order."""
    pairs = sorted((math.log(height / width), (height, width)) for height, width in casstore_sizes(target, quantum))
    return tuple(log for log, _ in pairs), tuple(size for _, size in pairs)


def _nearest_log(target: int, quantum: int, size: Size) -> Size:
    logs, sizes = _logs(target, quantum)
    wanted = math.log(size[0] / size[1])
    place = bisect_left(logs, wanted)
    # No two sizes have the same aspect, and neighbours differ by far more than 1e-9: the nearest is one of these two.
    if place in (0, len(sizes)):
        return sizes[min(place, len(sizes) - 1)]
    below, above = round(wanted - logs[place - 1], 9), round(logs[place] - wanted, 9)
    if below != above:
        return sizes[place - 1 if below < above else place]
    return max(sizes[place - 1 : place + 1], key=lambda size: (size[0] * size[1], size[0]))


# onetrainer, kohya: the first of the nearest in an order that is part of the rule


def _nearest(offered: Iterable[tuple[float, Size]], aspect: float) -> Size:
    return min(offered, key=lambda pair: abs(pair[0] - aspect))[1]


@lru_cache(maxsize=64)
def _onetrainer(target: int, quantum: int) -> tuple[tuple[float, Size], ...]:
    """(height / width, size) of each bucket, in the order in which mgds has them.

    That is the order of a CPython set of pairs of ints, which doesn't depend on PYTHONHASHSEED and has been the same
    since Python 3.8 (64 bit); ties go by it. tests/identity/golden pins it.
    """
    wide = [
        (1.0 / math.sqrt(1.0 * aspect) * target, aspect / math.sqrt(1.0 * aspect) * target)
        for aspect in ONETRAINER_ASPECTS
    ]
    both = wide + [(width, height) for height, width in wide]
    sizes = [(round(height / quantum) * quantum, round(width / quantum) * quantum) for height, width in both]
    return tuple((height / width if width else 0.0, (height, width)) for height, width in list(set(sizes)))


@lru_cache(maxsize=64)
def _kohya(target: int, quantum: int, sides: tuple[int, int]) -> tuple[tuple[float, Size], ...]:
    """(width / height, size) of each bucket, in the order of their widths, then heights.

    No two have the same aspect, so that a picture which has the size of a bucket gets it, as sd-scripts wants.
    """
    shortest, longest = sides
    square = _floor(target, quantum)
    found = {(square, square)}
    for width in range(shortest, longest + 1, quantum):
        height = min(longest, _floor(target * target // width, quantum))
        if height >= shortest:
            found |= {(width, height), (height, width)}
    return tuple((width / height, (height, width)) for width, height in sorted(found))


def _kohya_smaller(target: int, quantum: int, size: Size) -> Size | None:
    """What sd-scripts does without upscaling to a picture of more than target^2 pixels; None where it fails.

    The picture is scaled down to the area, one of its sides then to a multiple of the steps: the side that changes the
    aspect less, the height on a tie.
    """
    aspect = size[1] / size[0]
    width = math.sqrt(target * target * aspect)
    height = target * target / width
    by_width, by_height = _steps(width, quantum), _steps(height, quantum)
    other_height, other_width = _steps(by_width / aspect, quantum), _steps(by_height * aspect, quantum)
    if not by_height or not other_height:
        return None
    if abs(by_width / other_height - aspect) < abs(other_width / by_height - aspect):
        found = _floor(int(by_width / aspect + 0.5), quantum), by_width
    else:
        found = by_height, _floor(int(by_height * aspect + 0.5), quantum)
    return found if all(found) else None


def _steps(pixels: float, quantum: int) -> int:
    return _floor(int(pixels + 0.5), quantum)
