"""The plan: rows x recipe -> hits, and misses with their reasons. Opens no file."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from casstore.build.asked import EMPTY_TEXT, Asked, Params, Variations, check_variations
from casstore.build.cells import Cells
from casstore.core.handle import Handle
from casstore.core.read import lookup
from casstore.errors import UsageError
from casstore.identity import resolutions
from casstore.identity.digests import plain_digest
from casstore.identity.keys import NO_PARAMS, Key
from casstore.identity.recipes import Recipe, difference
from casstore.index.recipes import newest_named
from casstore.index.states import States, usual_encode_us
from casstore.index.variants import Identity
from casstore.model import Miss
from casstore.sources.columns import FileRows
from casstore.sources.inputs import Cell, Inputs, Row

LOOKUP_CHUNK = 2000
NAMED = 5  # rows that an error names

Absent = Literal["skip", "error", "empty"]
"""What becomes of a row without the primary role: left out, an error, or the empty text in its place."""
Augment = Literal["add", "rebuild"]
"""What becomes of a variant that lacks a name: the name is added beside what was there; or all is encoded again."""


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One triple of a plan: what one row is to be at one resolution, in one variation.

    Attributes:
        number: its place in the plan.
        row: the input.
        key: what it is or will be stored under; None if that can't be told yet (a file or its header can't be read).
        miss: why it isn't served; None if it is.
        cells: {role: content} of the plan's roles, the primary first; those of this variation.
        params: canonical JSON.
        variation: that was asked for. Of a text with several lines the key's is 0: each line is a content of its own.
        lacking: the names that are wanted and not stored yet, where others are.
    """

    number: int
    row: Row
    key: Key | None
    miss: Miss | None
    cells: Cells = field(default_factory=dict)
    params: str = NO_PARAMS
    variation: int = 0
    lacking: frozenset[str] = frozenset()

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
        asked: the triples.
        missing: {number of a triple: why it isn't served}.
        lacking: {number of a triple: the wanted names that aren't stored}, of those of which others are.
        roles: the primary and its members.
        absent: how many inputs have nothing under the primary's role, and were left out.
        names: that were asked for; None: whatever is stored.
        augment: what becomes of variants that lack a name; see `Store.plan`.
        encode_us: the usual time of an encode; None: nothing is known.
        notes: what is worth knowing.
    """

    recipe: Recipe
    resolution: resolutions.Resolutions
    asked: Asked = field(repr=False)
    missing: Mapping[int, Miss] = field(repr=False)
    lacking: Mapping[int, frozenset[str]] = field(repr=False)
    roles: tuple[str, ...] = ()
    absent: int = 0
    names: tuple[str, ...] | None = None
    augment: Augment = "add"
    encode_us: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def planned(self) -> int:
        """Number of triples."""
        return len(self.asked)

    @property
    def hits(self) -> int:
        """Number of triples that are served already."""
        return len(self.asked) - len(self.missing)

    @property
    def rows(self) -> Sequence[PlanRow]:
        """The triples, each made when it is asked for."""
        return _PlanRows(self, range(len(self.asked)))

    @property
    def misses(self) -> Sequence[PlanRow]:
        """Those that aren't served."""
        return _PlanRows(self, array("i", sorted(self.missing)))

    @property
    def reasons(self) -> Mapping[str, int]:
        """{why: number of misses}."""
        return dict(sorted(Counter(miss.reason for miss in self.missing.values()).items()))

    @property
    def to_encode(self) -> int:
        """Number of misses that a build tries."""
        return sum(miss.reason not in ("failed", "source unavailable") for miss in self.missing.values())

    @property
    def seconds(self) -> float | None:
        """How long that takes, by the usual time of an encode; None: nothing is known."""
        return None if self.encode_us is None else self.to_encode * self.encode_us / 1e6

    def row(self, number: int) -> PlanRow:
        """One triple."""
        asked = self.asked
        return PlanRow(
            number,
            asked.rows[asked.row_number(number)],
            asked.key(number),
            self.missing.get(number),
            asked.cells(number),
            asked.params(number),
            asked.variation(number),
            self.lacking.get(number, frozenset()),
        )

    def shards(self, count: int) -> tuple[Plan, ...]:
        """This plan in `count` parts of about the same size, each a plan of its own.

        Which part a triple is in depends on its key alone, not on the order of the rows, so that machines that plan for
        themselves agree about it.

        Raises:
            UsageError: that is no number of parts.
        """
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise UsageError(f"shards: a number from 1 was expected, not {count!r}")
        numbers: list[array[int]] = [array("i") for _ in range(count)]
        for number in range(len(self.asked)):
            key = self.asked.key(number)
            row = self.asked.rows[self.asked.row_number(number)]
            digest = plain_digest(f"{row.group}\n{row.sample}") if key is None else key.digest
            numbers[int.from_bytes(digest[:8]) * count >> 64].append(number)
        return tuple(self._part(part, self.absent if i == 0 else 0) for i, part in enumerate(numbers))

    def only(self, number: int, miss: Miss) -> Plan:
        """This plan of one triple, which isn't served for this reason."""
        return replace(self, asked=self.asked.part([number]), missing={0: miss}, lacking={}, absent=0)

    def _part(self, numbers: Sequence[int], absent: int) -> Plan:
        missing = {new: self.missing[old] for new, old in enumerate(numbers) if old in self.missing}
        lacking = {new: self.lacking[old] for new, old in enumerate(numbers) if old in self.lacking}
        return replace(self, asked=self.asked.part(numbers), missing=missing, lacking=lacking, absent=absent)

    def __str__(self) -> str:
        parts = [f"{self.hits} stored", *(f"{count} {reason}" for reason, count in self.reasons.items())]
        if self.absent:
            parts.append(f"{self.absent} without {self.roles[0]}")
        time = "" if not self.to_encode or self.seconds is None else f"; about {spoken(self.seconds)} of encoding"
        return f"{self.planned} planned with {self.recipe.name}: {', '.join(parts)}{time}"


class _PlanRows(Sequence[PlanRow]):
    def __init__(self, plan: Plan, numbers: Sequence[int]) -> None:
        self._plan, self._numbers = plan, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return _PlanRows(self._plan, self._numbers[index])
        return self._plan.row(self._numbers[index])

    def __iter__(self) -> Iterator[PlanRow]:
        return map(self._plan.row, self._numbers)


def spoken(seconds: float) -> str:
    """A time as people say it."""
    for unit, name in ((3600, "h"), (60, "min")):
        if seconds >= 1.5 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


def make_plan(
    handle: Handle,
    rows: Sequence[Row],
    recipe: Recipe,
    resolution: resolutions.Resolutions,
    *,
    role: str | Sequence[str] | None = None,
    params: Params = None,
    absent: Absent = "skip",
    variations: Variations = None,
    names: Sequence[str] | None = None,
    augment: Augment = "add",
    empty_text: bool = False,
) -> Plan:
    """Look every triple up; see `Store.plan`.

    Raises:
        UsageError: an argument can't be meant, or a row without the primary role (with "error").
    """
    if not isinstance(rows, Inputs):
        raise UsageError(f"a plan needs what store.scan returns, not {type(rows).__name__}")
    wanted = resolutions.check(resolution)
    if not isinstance(recipe, Recipe):
        raise UsageError(f"a plan needs a casstore.Recipe, not {type(recipe).__name__}")
    for value, allowed, what in ((absent, Absent, "absent"), (augment, Augment, "augment")):
        if value not in get_args(allowed):
            raise UsageError(f"{what} is one of {', '.join(map(repr, get_args(allowed)))}, not {value!r}")
    if variations is not None and not callable(variations):
        check_variations(variations)
    if isinstance(names, str) or not all(isinstance(name, str) for name in names or ()):
        raise UsageError(f"names={names!r}: give a list of names of tensors and values")
    _check_strides(recipe, wanted)
    roles = _roles(role, rows)
    present, left_out = _present(rows.rows, roles, absent)
    if empty_text:
        _check_empty_text(present, roles, params)
    asked = Asked(present, roles, recipe)
    found = _Lookup(handle, asked, frozenset(names or ()))
    found.take(asked.ask(wanted, params, variations, empty_text=empty_text))
    usual, notes = None, list(recipe.lint())
    if found.missing:
        with handle.index.read() as connection:
            usual = usual_encode_us(connection, recipe.digest, recipe.name)
            newest = newest_named(connection, recipe.name)
        if newest is not None and newest[0] != recipe.digest and found.new_recipe:
            fields = ", ".join(name for name, _, _ in difference(newest[1], recipe.spec))
            notes.append(f"new recipe; differs from the newest {recipe.name!r} in: {fields}")
    return Plan(
        recipe,
        wanted,
        asked,
        found.missing,
        found.lacking,
        roles,
        left_out,
        None if names is None else tuple(names),
        augment,
        usual,
        tuple(notes),
    )


class _Lookup:
    """The state of triples, looked up in chunks as they come."""

    def __init__(self, handle: Handle, asked: Asked, names: frozenset[str]) -> None:
        self._handle, self._asked, self._names = handle, asked, names
        self._states = States(asked.recipe.digest)
        self.missing: dict[int, Miss] = {}
        self.lacking: dict[int, frozenset[str]] = {}

    @property
    def new_recipe(self) -> bool:
        """Whether nothing has ever been stored with the recipe."""
        return not self._states.known

    def take(self, triples: Iterable[tuple[int, Identity | Miss]]) -> None:
        """Look triples up, each by its key's values; or note why it has none."""
        chunk: list[tuple[int, Identity]] = []
        for number, told in triples:
            if isinstance(told, Miss):
                self.missing[number] = told
                continue
            chunk.append((number, told))
            if len(chunk) == LOOKUP_CHUNK:
                self._look(chunk)
                chunk = []
        if chunk:
            self._look(chunk)

    def _look(self, chunk: list[tuple[int, Identity]]) -> None:
        with self._handle.index.glance() as connection:
            ids = self._asked.content_ids(chunk)
            if ids is not None:
                states = self._states.find_files(connection, ids)
            else:
                states = self._states.find(connection, list({identity[1]: None for _, identity in chunk}))
        absent: list[int] = []
        names = self._names
        for number, identity in chunk:
            state = states.get(identity)
            if state is None or not state.whole:
                absent.append(number)
            elif names and not names <= state.names:
                self._lacks(number, names - state.names)
        keys = [(number, key) for number in absent if (key := self._asked.key(number)) is not None]
        known = list({key.digest: key for _, key in keys}.values())
        found = dict(zip((key.digest for key in known), lookup(self._handle, known), strict=True)) if known else {}
        for number, key in keys:
            state_now = found[key.digest]
            if isinstance(state_now, Miss):
                self.missing[number] = state_now
            elif lacks := self._names - state_now.layout.keys() - state_now.values.keys():
                self._lacks(number, lacks)  # stored since it was looked up

    def _lacks(self, number: int, names: frozenset[str]) -> None:
        self.missing[number] = Miss("output missing", ", ".join(sorted(names)))
        self.lacking[number] = names


def _roles(role: str | Sequence[str] | None, rows: Sequence[Row]) -> tuple[str, ...]:
    if role is None:
        return next(((name,) for row in rows for name in row.roles), ())
    roles: tuple[Any, ...] = (role,) if isinstance(role, str) else tuple(role)
    if not roles or len(set(roles)) < len(roles) or not all(isinstance(name, str) and name for name in roles):
        raise UsageError(f"{role!r} can't be the role of a plan: give a name, or several different ones, primary first")
    return roles


def _present(rows: Sequence[Row], roles: tuple[str, ...], absent: Absent) -> tuple[Sequence[Row], int]:
    """(rows that have the primary role, number of those that were left out)"""
    if isinstance(rows, FileRows) and roles[:1] == (rows.role,):
        return rows, 0
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
    other = _first_without_text(have, roles)
    if other is not None or not roles:
        where = f"{other.sample} has a {roles[0]} that is none" if other is not None else "the rows have no roles"
        raise UsageError(f"absent='empty' stands for the empty text, but {where}; use absent='skip'")
    empty = (EMPTY_TEXT,)
    return [
        row
        if row.roles.get(roles[0])
        else Row(row.sample, {roles[0]: empty, **row.roles, roles[0]: empty}, row.group, row.weight, row.values)
        for row in rows
    ], 0


def _first_without_text(rows: Sequence[Row], roles: tuple[str, ...]) -> Row | None:
    """A row with something else than a text under the primary role, which all have."""
    return next((row for row in rows if any(c.content and c.content.kind != "text" for c in row.roles[roles[0]])), None)


def _check_empty_text(rows: Sequence[Row], roles: tuple[str, ...], params: Params) -> None:
    """Refuse to plan the empty text along with what isn't texts, or where nobody says which params it would have."""
    if len(roles) != 1:
        told = f"of {', '.join(roles)}" if roles else "that names none"
        raise UsageError(f"empty_text=True is for a plan of one role, not one {told}; give role='caption'")
    other = _first_without_text(rows, roles)
    if other is not None:
        raise UsageError(
            f"empty_text=True plans the empty text along, but {other.sample} has a {roles[0]} that is no text"
        )
    if callable(params):
        raise UsageError("empty_text=True needs params that are the same for all rows, not a function of the row")


def _check_strides(recipe: Recipe, wanted: resolutions.Resolutions) -> None:
    """Refuse a fixed resolution at which no tensor could have the shape that the recipe declares."""
    strides = recipe.stride.values() if isinstance(recipe.stride, Mapping) else [recipe.stride]
    for resolution in wanted if isinstance(wanted, tuple) else (wanted,):
        size = resolutions.parse(resolution) if isinstance(resolution, str) else None
        for stride in strides:
            if size is not None and stride is not None and (size[0] % stride or size[1] % stride):
                raise UsageError(f"resolution {resolution} isn't divisible by the stride {stride} of {recipe.name}")
