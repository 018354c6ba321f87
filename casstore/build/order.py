"""The order of a build: equal sizes side by side, and each rank of a distributed run from its own place on."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

from casstore.build.plan import PlanRow
from casstore.identity.arrays import shape_of
from casstore.sources.inputs import Cell


def from_my_place(numbers: list[int], environment: Mapping[str, str] = os.environ) -> list[int]:
    """The same, from another place on for each rank of a distributed run (RANK, WORLD_SIZE): claims decide who encodes
    what, but those who begin apart are less in each other's way."""
    with contextlib.suppress(KeyError, ValueError, ZeroDivisionError):
        start = len(numbers) * int(environment["RANK"]) // int(environment["WORLD_SIZE"])
        if 0 <= start < len(numbers):
            return numbers[start:] + numbers[:start]
    return numbers


def size_of(planned: PlanRow) -> tuple[Any, ...]:
    """What has to be equal for items to go into one call, as far as a plan knows it."""
    resolution = planned.key.resolution if planned.key is not None else ""
    return resolution, *((role, _shape(cell)) for role, cell in planned.cells.items())


def _shape(cell: Cell) -> tuple[int, ...]:
    if cell.content is None:
        return ()
    return cell.content.upright or () if cell.content.array is None else shape_of(cell.content.array)
