"""Room on the disk: a build that can't end well is told so early, with numbers."""

from __future__ import annotations

import re

from casstore.core.handle import Handle
from casstore.errors import NoSpaceError, UsageError
from casstore.identity.recipes import Recipe
from casstore.index.objects import all_stored_bytes
from casstore.index.states import usual_stored_bytes

RESERVE = 64 << 20  # bytes that are left free, for the index and its log
_UNITS = {"": 0, "B": 0, "KIB": 10, "MIB": 20, "GIB": 30, "TIB": 40}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) *([A-Za-z]*)")


def check_space(handle: Handle, recipe: Recipe, items: int) -> None:
    """Refuse to encode what the disk, or the budget in casstore.toml, has no room for.

    Args:
        handle: the open store.
        recipe: what is encoded; the mean size of its newest variants counts. Where there are none, nothing is refused.
        items: how many are to come.

    Raises:
        NoSpaceError: says how much is needed and how much there is.
        UsageError: the budget can't be meant.
    """
    with handle.index.read() as connection:
        mean = usual_stored_bytes(connection, recipe.digest)
        budget = _budget(handle)
        used = all_stored_bytes(connection) if budget is not None else 0
    if mean is None or items <= 0:
        return
    needed = round(mean * items)
    free = max(0, handle.free_bytes() - RESERVE)
    told = f"{items} items of {recipe.name} take about {_spoken(needed)}"
    if needed > free:
        raise NoSpaceError(f"{told}, but {_spoken(free)} are free on the disk of {handle.directory.path}; make room")
    if budget is not None and used + needed > budget:
        raise NoSpaceError(
            f"{told}, but {_spoken(max(0, budget - used))} are left of the budget of {_spoken(budget)}; "
            f"raise it in {handle.directory.marker}, or let gc make room"
        )


def _budget(handle: Handle) -> int | None:
    """Bytes that all objects may take together, by casstore.toml: disk.budget, such as "120 GiB"."""
    section = handle.toml().get("disk", {})
    given = section.get("budget") if isinstance(section, dict) else None
    if given is None:
        return None
    found = _SIZE.fullmatch(str(given).strip())
    if found is None or found[2].upper() not in _UNITS:
        raise UsageError(f'{handle.directory.marker}: disk.budget is {given!r}; write it as "120 GiB"')
    return int(float(found[1]) * (1 << _UNITS[found[2].upper()]))


def _spoken(nbytes: int) -> str:
    for shift, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if nbytes >= 1 << shift:
            return f"{nbytes / (1 << shift):.1f} {unit}"
    return f"{nbytes} B"
