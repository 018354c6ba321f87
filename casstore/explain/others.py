"""How many other contents share the fate of one: those that files hold now, each once."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from casstore.core.handle import Handle
from casstore.explain.family import Family, Stored
from casstore.identity import resolutions
from casstore.identity.decoding import upright_under
from casstore.identity.recipes import Recipe
from casstore.index.bulk import chunks
from casstore.index.fates import (
    Contents,
    Fates,
    companions,
    digests_by_id,
    ids_of,
    present_contents,
    present_files,
    stored_sizes,
    stored_with,
)
from casstore.index.roots import known_roots, root_above
from casstore.index.states import States
from casstore.model import Content, Reason

LOOKED_UP = 2000  # contents at a time


class Others(NamedTuple):
    """How many others there are, and how many, with this one, would hit with the relative's recipe; None: not known."""

    number: int | None
    undone: int | None = None


def count_others(
    handle: Handle,
    family: Family,
    recipe: Recipe,
    reason: Reason,
    resolution: resolutions.Resolutions,
    *,
    given: bool,
    names: frozenset[str] = frozenset(),
    relative: Stored | None = None,
) -> Others:
    """Count them; see `Explanation.others`.

    Args:
        handle: the open store.
        family: the one whose fate it is.
        recipe: that is wanted.
        reason: the fate.
        resolution, given: that was asked for, and whether one was.
        names: that were asked for.
        relative: the nearest that is stored.
    """
    row = next((row for row in family.recipes if row.digest == recipe.digest.hex()), None)
    namesakes = family.namesakes(recipe)
    with handle.index.read() as connection:
        contents = Contents(connection)
        here = present_contents(connection, contents)
        here -= ids_of(connection, ((each.kind, each.digest) for each in family.now))
        if reason == "output missing":
            if row is None:
                return Others(None)
            digests = {id_: digest for id_, digest in digests_by_id(connection, row.id).items() if id_ in here}
        elif reason == "resolution":
            if row is None or not given:
                return Others(None)
            return Others(_at_others(here, stored_sizes(connection, row.id), recipe, resolution))
        else:
            fates = Fates(connection, None if row is None else row.id, [each.id for each in namesakes], contents)
            if reason == "new":
                above = root_above(known_roots(connection), os.path.dirname(family.path))
                if above is None:
                    return Others(None)
                ending = os.path.splitext(family.path)[1].lower()
                files = present_files(connection, above[0].id, "")
                alike = {file.content for file in files if file.name.lower().endswith(ending) and not file.error}
                here &= {id_ for id_ in alike if id_ is not None} - companions(connection)
            elif reason not in ("edited", "recipe", "failed", "retry", "damaged"):
                return Others(None)
            same = {id_ for id_ in here if (miss := fates.miss(id_)) is not None and miss.reason == reason}
            if reason != "recipe" or relative is None:
                return Others(len(same))
            its = next((each.id for each in namesakes if bytes.fromhex(each.digest) == relative.key[3]), None)
            back = same & stored_with(connection, its)
            return Others(len(same), len(back) + (relative.key[1] in {each.digest for each in family.now}))
    return Others(_lacking(handle, recipe, list(digests.values()), names))


def _at_others(
    here: set[int],
    stored: Sequence[tuple[int, str, int | None, int | None, int | None]],
    recipe: Recipe,
    wanted: object,
) -> int | None:
    if callable(wanted):
        return None
    sizes: dict[int, tuple[int | None, int | None, int | None]] = {}
    at: dict[int, set[str]] = defaultdict(set)
    for id_, resolution, *size in stored:
        sizes[id_] = (size[0], size[1], size[2])
        at[id_].add(resolution)
    count = 0
    for id_ in at.keys() & here:
        width, height, orientation = sizes[id_]
        upright = upright_under(Content("file", b"", 0, width, height, orientation), recipe.decode)
        chosen = resolutions.choose_all(wanted, upright)  # type: ignore[arg-type]
        count += chosen is not None and not at[id_].issuperset(chosen)
    return count


def _lacking(handle: Handle, recipe: Recipe, contents: Sequence[bytes], names: frozenset[str]) -> int:
    """How many of these contents are stored with the recipe without one of these names."""
    states = States(recipe.digest)
    found: set[bytes] = set()
    for part in chunks(contents, LOOKED_UP):
        with handle.index.glance() as connection:
            known = states.find(connection, part)
        found |= {key[1] for key, state in known.items() if state.whole and not names <= state.names}
    return len(found)
