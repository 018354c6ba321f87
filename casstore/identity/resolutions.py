"""Resolutions: "HxW" in pixels, "" for the full size, and the rule that picks one for a picture."""

from __future__ import annotations

import math
import re
from functools import lru_cache

from casstore.errors import UsageError

QUANTUM = 64  # pixels; divisible by every stride and patch size of the common latent models
LARGEST_TARGET = 16384  # pixels; its longest bucket has seven digits
FULL = ""

Resolution = int | str | None
"""What is asked for: an area (an int N stands for N * N pixels), one fixed "HxW", or None for the full size."""

_FIXED = re.compile(r"([1-9][0-9]{0,6})x([1-9][0-9]{0,6})")


def parse(resolution: str) -> tuple[int, int] | None:
    """(height, width) in pixels of "HxW"; None for "" (full size).

    Raises:
        UsageError: it is neither.
    """
    if resolution == FULL:
        return None
    found = _FIXED.fullmatch(resolution)
    if found is None:
        raise UsageError(f"{resolution!r} isn't a resolution; write height x width in pixels, for example 1024x768")
    return int(found[1]), int(found[2])


def check(resolution: Resolution) -> Resolution:
    """The resolution itself if it can be meant; a digit string becomes the int that it spells.

    Raises:
        UsageError: it can't.
    """
    if isinstance(resolution, str) and re.fullmatch("[0-9]{1,7}", resolution):
        resolution = int(resolution)
    if resolution is None:
        return None
    if isinstance(resolution, bool) or not isinstance(resolution, (int, str)):
        raise UsageError(f"{resolution!r} isn't a resolution; use an int, 'HxW' or None")
    if isinstance(resolution, int):
        buckets(resolution)
    else:
        parse(resolution)
    return resolution


@lru_cache(maxsize=64)
def buckets(target: int) -> tuple[tuple[int, int], ...]:
    """All (height, width) that the area target * target offers, in pixels, both orientations.

    The short side s is 64, 128 ... <= target, the long side the largest multiple of 64 with s * long <= target^2.
    """
    if not QUANTUM <= target <= LARGEST_TARGET:
        raise UsageError(f"a resolution of {target} isn't between {QUANTUM} and {LARGEST_TARGET} pixels")
    found = set()
    for short in range(QUANTUM, target + 1, QUANTUM):
        long = target * target // short // QUANTUM * QUANTUM
        found |= {(short, long), (long, short)}
    return tuple(sorted(found))


def choose(resolution: Resolution, size: tuple[int, int]) -> str:
    """The resolution that a picture is encoded at: the one rule for planning and encoding alike.

    Args:
        resolution: what was asked for.
        size: (height, width) of the upright picture in pixels.

    Returns:
        "HxW", or "" for the full size. For an area: the bucket whose log(height / width) is nearest to the picture's,
        on a tie the larger area, then the taller.
    """
    if resolution is None:
        return FULL
    if isinstance(resolution, str):
        return resolution
    wanted = math.log(size[0] / size[1])

    def distance(bucket: tuple[int, int]) -> tuple[float, int, int]:
        height, width = bucket
        return round(abs(math.log(height / width) - wanted), 9), -height * width, -height

    height, width = min(buckets(resolution), key=distance)
    return f"{height}x{width}"
