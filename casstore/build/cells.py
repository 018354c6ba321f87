"""The contents of one planned row: which of a row's roles it takes, what kind of thing each is, and its key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from casstore.errors import UsageError
from casstore.identity import resolutions
from casstore.identity.decoding import upright_under
from casstore.identity.keys import NO_PARAMS, Key
from casstore.identity.recipes import Recipe
from casstore.model import Content, Member
from casstore.sources.images import EXTENSIONS
from casstore.sources.inputs import Cell, Row

Kind = Literal["picture", "file", "text", "array"]
"""How a content reaches the encoder: decoded, as the path of a file that nobody opened, as it is, as it is."""
Cells = Mapping[str, Cell]
"""{role: content}, the primary first."""


def kind_of(content: Content | None, path: str | None) -> Kind:
    """How a content is given to an encoder; of a file that can't be read, its name tells.

    A file is a picture if it is called like one, or if casstore has read its header (which is where an orientation
    comes from: a probe tells none).
    """
    if content is not None and content.kind in ("text", "array"):
        return "text" if content.kind == "text" else "array"
    named = path is not None and path.lower().endswith(EXTENSIONS)
    return "picture" if named or path is None or (content is not None and content.orientation is not None) else "file"


def resolutions_of(
    content: Content,
    path: str | None,
    wanted: resolutions.Resolutions,
    recipe: Recipe,
    facts: tuple[int, str, str] = (0, "", ""),
    variation: int = 0,
) -> tuple[str, ...] | None:
    """The resolutions at which a content is encoded: the one decision for planning, encoding and reading alike.

    Args:
        content: the primary.
        path: of its file.
        wanted: what was asked for.
        recipe: says whether the orientation counts.
        facts: number, sample and group of the row, for a function that chooses.
        variation: that is asked for.

    Returns:
        "HxW", or "" for the full size; None if nothing is known of its size, so that none can be chosen.

    Raises:
        UsageError: a resolution was asked for of a text or an array, or what a function said can't be meant.
    """
    kind = kind_of(content, path)
    if kind in ("text", "array"):
        if wanted is not None and not callable(wanted):
            raise UsageError(f"{'a text' if kind == 'text' else 'an array'} has no resolution; leave {wanted!r} out")
        return (resolutions.FULL,)
    size = upright_under(content, recipe.decode)
    if size is None and kind == "picture":
        return None
    if not callable(wanted):
        return resolutions.choose_all(wanted, size)
    height, width = size or (None, None)
    return resolutions.resolve(wanted, resolutions.RowFacts(*facts, width, height, content.frames), variation)


def key_of(
    cells: Cells,
    recipe: Recipe,
    wanted: resolutions.Resolutions,
    params: str = NO_PARAMS,
    variation: int = 0,
) -> Key | None:
    """The key of the contents of a planned row.

    Args:
        cells: all of them are known.
        recipe: what their tensors are made with.
        wanted: the resolution that was asked for.
        params: canonical JSON.
        variation: of the key.

    Returns:
        None if not just one resolution can be chosen.
    """
    primary = next(iter(cells.values()))
    assert primary.content is not None
    found = resolutions_of(primary.content, primary.path, wanted, recipe, variation=variation)
    if found is None or len(found) != 1:
        return None
    return Key(primary.content, recipe, found[0], variation, params, members=members_of(cells))


def members_of(cells: Cells) -> tuple[Member, ...]:
    """What these contents are in a key: nothing besides the primary if it is alone."""
    if len(cells) < 2:
        return ()
    return tuple(Member(role, 0, cell.content) for role, cell in cells.items() if cell.content is not None)


def side_by_side(row: Row, roles: Sequence[str]) -> list[dict[str, Cell]]:
    """The contents of a row under some roles, once for each of its variations.

    A role with several contents has one for each variation; those of several roles go side by side, and a single
    content goes with all. Roles that the row doesn't have are left out.

    Raises:
        UsageError: two roles have different numbers of contents, and neither has one.
    """
    present = {role: row.roles[role] for role in roles if row.roles.get(role)}
    counts = {role: len(cells) for role, cells in present.items() if len(cells) > 1}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{count} under {role!r}" for role, count in counts.items())
        raise UsageError(f"it has {told}; give as many, or one for all")
    number = max(counts.values(), default=1)
    return [{role: cells[place if len(cells) > 1 else 0] for role, cells in present.items()} for place in range(number)]
