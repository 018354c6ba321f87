"""Resolutions: "HxW" in pixels, "" for the full size; what may be asked for, and what that is for a picture."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, overload

from casstore.errors import UsageError
from casstore.identity.buckets import LARGEST_TARGET as LARGEST_TARGET
from casstore.identity.buckets import QUANTUM as QUANTUM
from casstore.identity.buckets import Buckets, casstore_sizes

FULL = ""
BY_FUNCTION = "function"

_FIXED = re.compile(r"([1-9][0-9]{0,6})x([1-9][0-9]{0,6})")


@dataclass(frozen=True, slots=True)
class RowFacts:
    """What a function that says resolutions is told of a row.

    Attributes:
        index: place of the row among the inputs, from 0.
        sample, group: its name.
        width, height: of the upright primary, in pixels; None if they aren't known.
        frames: of the primary, as a probe counted them; None if nobody did.
    """

    index: int
    sample: str
    group: str
    width: int | None
    height: int | None
    frames: int | None


Resolution = int | str | None
"""One thing asked for: an area (an int N stands for Buckets(N)), a fixed "HxW", or None for the full size."""
Resolutions = Resolution | Buckets | Sequence[Resolution | Buckets] | Callable[[RowFacts, int], Any]
"""Whatever may be asked for: one thing, Buckets, a sequence of these (each is asked for), or a function of the row and
the variation that returns any of these."""


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


@overload
def check(wanted: Resolution) -> Resolution:
    """One thing stays one thing."""


@overload
def check(wanted: Resolutions) -> Resolutions:
    """Whatever may be asked for."""


def check(wanted: Resolutions) -> Resolutions:
    """What was asked for, if it can be meant, in the form that the other functions take.

    Args:
        wanted: see `Resolutions`.

    Returns:
        The same; a digit string becomes the int that it spells, a sequence a tuple without doubles.

    Raises:
        UsageError: it can't be meant.
    """
    if callable(wanted):
        return wanted
    if isinstance(wanted, Sequence) and not isinstance(wanted, (str, bytes, bytearray)):
        if not wanted:
            raise UsageError("an empty sequence asks for no resolution; use None for the full size")
        return tuple(dict.fromkeys(map(_check_one, wanted)))
    return _check_one(wanted)


def _check_one(wanted: Any) -> Resolution | Buckets:
    if isinstance(wanted, str) and re.fullmatch("[0-9]{1,7}", wanted):
        wanted = int(wanted)
    if isinstance(wanted, bool) or not isinstance(wanted, (int, str, Buckets, type(None))):
        raise UsageError(f"{wanted!r} isn't a resolution; use an int, 'HxW', Buckets or None")
    if isinstance(wanted, int):
        _of_area(wanted)
    elif isinstance(wanted, str):
        parse(wanted)
    return wanted


@lru_cache(maxsize=64)
def _of_area(target: int) -> Buckets:
    return Buckets(target)


def buckets(target: int) -> tuple[tuple[int, int], ...]:
    """All (height, width) that the area target * target offers, in pixels, both orientations, sorted.

    Raises:
        UsageError: the area is out of range.
    """
    _of_area(target)
    return casstore_sizes(target)


def choose_all(wanted: Resolutions, size: tuple[int, int] | None) -> tuple[str, ...] | None:
    """The resolutions that a picture is encoded at: the one rule for planning, encoding and reading alike.

    Args:
        wanted: what was asked for, as `check` returned it; for a function use `resolve`.
        size: (height, width) of the upright picture in pixels; None if it isn't known.

    Returns:
        "HxW", or "" for the full size: each once, in the order in which they were asked for. None if a size is needed
        and isn't known.

    Raises:
        UsageError: it was asked for by a function.
    """
    if wanted is None:
        return (FULL,)
    if isinstance(wanted, str):
        return (wanted,)
    if isinstance(wanted, (int, Buckets)):
        if size is None:
            return None
        return (_of_area(wanted) if isinstance(wanted, int) else wanted).choose(*size)
    if callable(wanted):
        raise UsageError("the resolution depends on the row and the variation here; say which one you mean")
    return _choose_each(tuple(wanted), size)


@lru_cache(maxsize=16384)
def _choose_each(wanted: tuple[Resolution | Buckets, ...], size: tuple[int, int] | None) -> tuple[str, ...] | None:
    found: dict[str, None] = {}
    for one in wanted:
        resolutions = choose_all(one, size)
        if resolutions is None:
            return None
        found.update(dict.fromkeys(resolutions))
    return tuple(found)


def choose(wanted: Resolutions, size: tuple[int, int]) -> str:
    """The only resolution that a picture is encoded at; see `choose_all`.

    Raises:
        UsageError: there are several.
    """
    found = choose_all(wanted, size)
    if found is None or len(found) != 1:
        raise UsageError(f"{wanted!r} gives the resolutions {', '.join(found or ())} here; ask for one")
    return found[0]


def resolve(wanted: Resolutions, facts: RowFacts, variation: int) -> tuple[str, ...] | None:
    """The resolutions that one variation of a row is encoded at.

    Args:
        wanted: what was asked for, as `check` returned it. If it is a function, its answer is checked in turn; what it
            raises is passed on, with a note of the row.
        facts: of the row.
        variation: counts from 0.

    Returns:
        As `choose_all`.

    Raises:
        UsageError: a function's answer can't be meant; the message names the sample.
    """
    if callable(wanted):
        try:
            answer = wanted(facts, variation)
        except Exception as error:
            error.add_note(f"raised by the function that says resolutions, {_told(facts, variation)}")
            raise
        try:
            wanted = check(answer)
            if callable(wanted):
                raise UsageError("a function's answer must be a resolution, not another function")
        except UsageError as error:
            raise UsageError(f"{error} ({_told(facts, variation)})") from None
    return choose_all(wanted, None if facts.height is None or facts.width is None else (facts.height, facts.width))


def _told(facts: RowFacts, variation: int) -> str:
    where = f" of group {facts.group!r}" if facts.group else ""
    return f"for sample {facts.sample!r}{where}, variation {variation}"


def method_of(wanted: Resolutions) -> str | None:
    """How resolutions are picked, in words for a schema stamp; for information only.

    Returns:
        "casstore 64", "kohya 64 256-1024", "onetrainer 8 no upscale" ..., several joined by ", "; "function"; None
        where nothing is picked.
    """
    if wanted is None or isinstance(wanted, str):
        return None
    if isinstance(wanted, int):
        return str(_of_area(wanted))
    if isinstance(wanted, Buckets):
        return str(wanted)
    if callable(wanted):
        return BY_FUNCTION
    return ", ".join(dict.fromkeys(filter(None, map(method_of, wanted)))) or None
