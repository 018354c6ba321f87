"""The plan: rows x recipe -> hits, and misses with their reasons. Opens no picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from casstore.core.handle import Handle
from casstore.core.read import lookup
from casstore.errors import UsageError
from casstore.identity import resolutions
from casstore.identity.keys import Key
from casstore.identity.recipes import Recipe
from casstore.model import Content, Hit, Miss
from casstore.sources.inputs import Inputs, Row

LOOKUP_CHUNK = 2000


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One row of a plan.

    Attributes:
        row: the input.
        key: what it is or will be stored under; None if that can't be told yet (the file or its header can't be read).
        miss: why it isn't served; None if it is.
    """

    row: Row
    key: Key | None
    miss: Miss | None


@dataclass(frozen=True)
class Plan:
    """What is there and what is to be encoded; a value that can be printed, counted and built."""

    recipe: Recipe
    resolution: resolutions.Resolution
    rows: tuple[PlanRow, ...]

    @property
    def planned(self) -> int:
        """Number of rows."""
        return len(self.rows)

    @property
    def hits(self) -> int:
        """Number of rows that are served already."""
        return sum(row.miss is None for row in self.rows)

    @property
    def misses(self) -> tuple[PlanRow, ...]:
        """The rows that aren't."""
        return tuple(row for row in self.rows if row.miss is not None)

    @property
    def reasons(self) -> Mapping[str, int]:
        """{why: number of misses}."""
        return dict(sorted(Counter(row.miss.reason for row in self.rows if row.miss is not None).items()))

    def __str__(self) -> str:
        why = ", ".join(f"{count} {reason}" for reason, count in self.reasons.items())
        return f"{self.planned} planned with {self.recipe.name}: {self.hits} stored" + (f", {why}" if why else "")


def key_of(content: Content, recipe: Recipe, resolution: resolutions.Resolution) -> Key | None:
    """The key of a picture at a resolution: the one decision for planning and encoding alike.

    Returns:
        None if nothing is known of the picture's size, so that no bucket can be chosen.
    """
    size = content.upright
    if size is None:
        return None
    return Key.content(content, recipe, resolution=resolutions.choose(resolution, size))


def _check_strides(recipe: Recipe, resolution: resolutions.Resolution) -> None:
    """Refuse a fixed resolution at which no tensor could have the shape that the recipe declares."""
    size = resolutions.parse(resolution) if isinstance(resolution, str) else None
    strides = recipe.stride.values() if isinstance(recipe.stride, Mapping) else [recipe.stride]
    for stride in strides:
        if size is not None and stride is not None and (size[0] % stride or size[1] % stride):
            raise UsageError(f"resolution {resolution} isn't divisible by the stride {stride} of {recipe.name}")


def make_plan(handle: Handle, rows: Sequence[Row], recipe: Recipe, resolution: resolutions.Resolution) -> Plan:
    """Look every row up.

    Args:
        handle: the open store.
        rows: inputs.
        recipe: what is wanted of them.
        resolution: N (an area of N * N pixels), "HxW", or None for the full size.

    Raises:
        UsageError: the resolution can't be meant.
    """
    if not isinstance(rows, Inputs):
        raise UsageError(f"a plan needs what store.scan returns, not {type(rows).__name__}")
    wanted = resolutions.check(resolution)
    if not isinstance(recipe, Recipe):
        raise UsageError(f"a plan needs a casstore.Recipe, not {type(recipe).__name__}")
    _check_strides(recipe, wanted)
    keys = [None if row.content is None else key_of(row.content, recipe, wanted) for row in rows]
    known = list({key.digest: key for key in keys if key is not None}.values())
    states: dict[bytes, Hit | Miss] = {}
    for start in range(0, len(known), LOOKUP_CHUNK):
        part = known[start : start + LOOKUP_CHUNK]
        states.update(zip((key.digest for key in part), lookup(handle, part), strict=True))
    planned = []
    for row, key in zip(rows, keys, strict=True):
        if row.content is None:
            miss: Miss | None = Miss("source unavailable", row.error or "")
        elif key is None:
            miss = Miss("failed", row.content.note or "its header wasn't looked at")
        else:
            state = states[key.digest]
            miss = state if isinstance(state, Miss) else None
        planned.append(PlanRow(row, key, miss))
    return Plan(recipe, wanted, tuple(planned))
