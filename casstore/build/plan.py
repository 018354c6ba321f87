"""The plan: rows x recipe -> hits, and misses with their reasons. Opens no file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from casstore.build.cells import Cells, key_of, kind_of, side_by_side
from casstore.core.handle import Handle
from casstore.core.read import lookup
from casstore.errors import UsageError
from casstore.identity import resolutions
from casstore.identity.canonical import canonical
from casstore.identity.contents import text_content
from casstore.identity.keys import NO_PARAMS, Key
from casstore.identity.recipes import Recipe
from casstore.model import Hit, Miss
from casstore.sources.inputs import Cell, Inputs, Row

LOOKUP_CHUNK = 2000
NAMED = 5  # rows that an error names

Absent = Literal["skip", "error", "empty"]
"""What becomes of a row without the primary role: left out, an error, or the empty text in its place."""
Params = Mapping[str, Any] | Callable[[Row], Mapping[str, Any]] | None
"""Further JSON that tells variants apart: the same for all rows, or what a function says of each."""


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One row of a plan.

    Attributes:
        row: the input.
        key: what it is or will be stored under; None if that can't be told yet (a file or its header can't be read).
        miss: why it isn't served; None if it is.
        cells: {role: content} of the plan's roles, the primary first; those of one variation.
        params: canonical JSON.
    """

    row: Row
    key: Key | None
    miss: Miss | None
    cells: Cells = field(default_factory=dict)
    params: str = NO_PARAMS

    @property
    def primary(self) -> Cell:
        """The content of the plan's first role."""
        return next(iter(self.cells.values()), self.row.first)

    @property
    def path(self) -> str | None:
        """The file that its primary comes from."""
        return self.primary.path


@dataclass(frozen=True)
class Plan:
    """What is there and what is to be encoded; a value that can be printed, counted and built.

    Attributes:
        recipe: what is wanted.
        resolution: what was asked for.
        rows: one for each variation of each input.
        roles: the primary and its members.
        absent: how many inputs have nothing under the primary's role, and were left out.
    """

    recipe: Recipe
    resolution: resolutions.Resolution
    rows: tuple[PlanRow, ...]
    roles: tuple[str, ...] = ()
    absent: int = 0

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
        parts = [f"{self.hits} stored", *(f"{count} {reason}" for reason, count in self.reasons.items())]
        if self.absent:
            parts.append(f"{self.absent} without {self.roles[0]}")
        return f"{self.planned} planned with {self.recipe.name}: {', '.join(parts)}"


def make_plan(
    handle: Handle,
    rows: Sequence[Row],
    recipe: Recipe,
    resolution: resolutions.Resolution,
    *,
    role: str | Sequence[str] | None = None,
    params: Params = None,
    absent: Absent = "skip",
) -> Plan:
    """Look every row up.

    Args:
        handle: the open store.
        rows: inputs.
        recipe: what is wanted of them.
        resolution: N (an area of N * N pixels), "HxW", or None for the full size.
        role: the primary, or the primary and its members; None: the first role of the rows.
        params: see `Params`; a function isn't asked about rows that can't be read.
        absent: see `Absent`.

    Raises:
        UsageError: an argument can't be meant, or a row without the primary role (with "error").
    """
    if not isinstance(rows, Inputs):
        raise UsageError(f"a plan needs what store.scan returns, not {type(rows).__name__}")
    wanted = resolutions.check(resolution)
    if not isinstance(recipe, Recipe):
        raise UsageError(f"a plan needs a casstore.Recipe, not {type(recipe).__name__}")
    if absent not in get_args(Absent):
        raise UsageError(f"absent is one of {', '.join(map(repr, get_args(Absent)))}, not {absent!r}")
    _check_strides(recipe, wanted)
    roles = _roles(role, rows)
    present, left_out = _present(rows, roles, absent)
    planned = list(_keyed(present, roles, recipe, wanted, params))
    known = list({row.key.digest: row.key for row in planned if row.key is not None}.values())
    states: dict[bytes, Hit | Miss] = {}
    for start in range(0, len(known), LOOKUP_CHUNK):
        part = known[start : start + LOOKUP_CHUNK]
        states.update(zip((key.digest for key in part), lookup(handle, part), strict=True))
    found = []
    for row in planned:
        state = row.miss if row.key is None else states[row.key.digest]
        miss = state if isinstance(state, Miss) else None
        found.append(PlanRow(row.row, row.key, miss, row.cells, row.params))
    return Plan(recipe, wanted, tuple(found), roles, left_out)


def _roles(role: str | Sequence[str] | None, rows: Sequence[Row]) -> tuple[str, ...]:
    if role is None:
        return next(((name,) for row in rows for name in row.roles), ())
    roles: tuple[Any, ...] = (role,) if isinstance(role, str) else tuple(role)
    if not roles or len(set(roles)) < len(roles) or not all(isinstance(name, str) and name for name in roles):
        raise UsageError(f"{role!r} can't be the role of a plan: give a name, or several different ones, primary first")
    return roles


def _present(rows: Sequence[Row], roles: tuple[str, ...], absent: Absent) -> tuple[list[Row], int]:
    """(rows that have the primary role, number of those that were left out)"""
    have = [row for row in rows if roles and row.roles.get(roles[0])]
    lacking = len(rows) - len(have)
    if not lacking or absent == "skip":
        return have, lacking
    if absent == "error":
        names = [row.sample for row in rows if not roles or not row.roles.get(roles[0])]
        more = f" and {lacking - NAMED} more" if lacking > NAMED else ""
        raise UsageError(
            f"{lacking} rows have no {roles[0] if roles else 'content'}: {', '.join(names[:NAMED])}{more}; "
            "add it, or leave them out with absent='skip'"
        )
    other = next(
        (row for row in have if any(c.content and c.content.kind != "text" for c in row.roles[roles[0]])), None
    )
    if other is not None or not roles:
        where = f"{other.sample} has a {roles[0]} that is none" if other is not None else "the rows have no roles"
        raise UsageError(f"absent='empty' stands for the empty text, but {where}; use absent='skip'")
    empty = (Cell(text_content("")),)
    return [
        row
        if row.roles.get(roles[0])
        else Row(row.sample, {roles[0]: empty, **row.roles, roles[0]: empty}, row.group, row.weight, row.values)
        for row in rows
    ], 0


def _is_no_text(cell: Cell) -> bool:
    return cell.content is not None and cell.content.kind != "text"


def _keyed(
    rows: Sequence[Row],
    roles: tuple[str, ...],
    recipe: Recipe,
    wanted: resolutions.Resolution,
    params: Params,
) -> Iterator[PlanRow]:
    """Rows with their keys, or with the reason why they have none; nothing is looked up."""
    same = None if callable(params) else canonical(dict(params or {}), "params")
    keys: dict[Any, Key] = {}  # equal contents share a key: it takes its time to make, and room
    for row in rows:
        try:
            variations = side_by_side(row, roles)
        except UsageError as error:
            yield PlanRow(row, None, Miss("failed", str(error)))
            continue
        for cells in variations:
            broken = next((cell for cell in cells.values() if cell.content is None), None)
            if broken is not None:
                yield PlanRow(row, None, Miss("source unavailable", broken.error or ""), cells)
                continue
            told = same if same is not None else _params_of(row, params)
            named = (told, *((role, kind_of(c.content, c.path), _digest(c)) for role, c in cells.items()))
            key = keys.get(named) or key_of(cells, recipe, wanted, told)
            if key is not None:
                keys[named] = key
            yield PlanRow(row, key, None if key is not None else _sizeless(cells), cells, told)


def _digest(cell: Cell) -> bytes | None:
    return None if cell.content is None else cell.content.digest


def _params_of(row: Row, params: Any) -> str:
    found = params(row)
    if found is not None and not isinstance(found, Mapping):
        raise UsageError(f"params of {row.sample!r}: a dict was expected, not {type(found).__name__}")
    return canonical(dict(found or {}), f"params of {row.sample!r}")


def _sizeless(cells: Cells) -> Miss:
    primary = next(iter(cells.values()))
    if kind_of(primary.content, primary.path) == "file":
        advice = "give HEIGHTxWIDTH, or none, or scan with a probe (and rehash=True, if they were scanned before)"
        return Miss("failed", f"its size isn't known, so no resolution can be chosen; {advice}")
    note = primary.content.note if primary.content is not None else None
    return Miss("failed", note or "its header wasn't looked at")


def _check_strides(recipe: Recipe, resolution: resolutions.Resolution) -> None:
    """Refuse a fixed resolution at which no tensor could have the shape that the recipe declares."""
    size = resolutions.parse(resolution) if isinstance(resolution, str) else None
    strides = recipe.stride.values() if isinstance(recipe.stride, Mapping) else [recipe.stride]
    for stride in strides:
        if size is not None and stride is not None and (size[0] % stride or size[1] % stride):
            raise UsageError(f"resolution {resolution} isn't divisible by the stride {stride} of {recipe.name}")
