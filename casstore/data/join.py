"""Plans put together by (group, sample), and what becomes of rows that not all of them have."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from casstore.build.asked import EMPTY_NAME
from casstore.build.plan import NAMED, Plan
from casstore.core.handle import Handle
from casstore.data.gather import Found, Gathered, gather
from casstore.data.manifest import NONE, Array, Form, Label, Manifest, Texts
from casstore.data.sources import Source
from casstore.errors import MissError, UsageError
from casstore.sources.inputs import Cell, Row

_log = logging.getLogger("casstore.data")

Missing = Literal["error", "skip", "zeros"]
"""What becomes of a row that one of the plans doesn't have, or of which not all is stored."""
Names = Mapping[str, Mapping[str, str] | Sequence[str]]
"""{label: names of the tensors and values that are wanted, or {stored name: name in the items}}."""
Name = tuple[str, str]
"""The group and sample of a row."""


@dataclass
class _Joined:
    """One plan: where the triples of each row are, and which may be read."""

    label: str
    plan: Plan
    found: Found
    names: dict[str, str] | None
    rows: dict[Name, tuple[Row, range]] = field(default_factory=dict)

    def is_whole(self, name: Name) -> bool:
        """Whether all of a row is stored."""
        return name in self.rows and all(self.found.entries[number] != NONE for number in self.rows[name][1])


@dataclass(frozen=True)
class Join:
    """The outcome of a join.

    Attributes:
        manifest: the rows.
        skipped: how many were left out.
        zeros: how many variants are zeros.
        numbers: {label: int32 [variants], beside `Label.entries`: the triple of each; -1: none}
    """

    manifest: Manifest
    skipped: int
    zeros: int
    numbers: Mapping[str, Array]


def join(
    handle: Handle,
    plans: Mapping[str, Plan],
    names: Names | None,
    missing: Missing,
    reserved: Sequence[str],
    *,
    source: Source | None,
) -> Join:
    """Join plans.

    Args:
        handle: the open store.
        plans: {label: plan}.
        names: what is wanted of them.
        missing: what becomes of rows that lack something.
        reserved: names that an item has besides.
        source: note the files that the rows come from; with "image" also what they held.

    Raises:
        UsageError: arguments that can't be meant, plans with different rows, or names that two of them share.
        MissError: something isn't stored (with "error").
    """
    _check(plans, names, missing)
    gathered = Gathered()
    joined = []
    for label, plan in plans.items():
        chosen = _chosen(names, label)
        wanted = {*(plan.names or ()), *(chosen or ())}
        one = _Joined(label, plan, gather(handle, plan, sorted(wanted), gathered), chosen)
        _collect_rows(one)
        joined.append(one)
    order = _order(joined, missing)
    if missing == "error":
        _refuse_missing(joined)
    whole = order if missing == "zeros" else [name for name in order if all(one.is_whole(name) for one in joined)]
    skipped, zeros = len(order) - len(whole), 0
    _check_names(joined, whole, reserved)
    labels: list[Label] = []
    numbers: dict[str, Array] = {}
    for one in joined:
        share, numbers[one.label], made = _label(one, whole, joined[0], gathered)
        labels.append(share)
        zeros += made
    if skipped:
        _log.warning("%d of %d rows are left out: not all of them is stored, or in every plan", skipped, len(order))
    if zeros:
        _log.warning("%d variants of %d rows aren't stored and are zeros", zeros, len(whole))
    return Join(_manifest(joined, whole, gathered, labels, source), skipped, zeros, numbers)


def _check(plans: Mapping[str, Plan], names: Names | None, missing: object) -> None:
    if not plans:
        raise UsageError("a dataset needs plans: store.dataset(image=plan, text=other_plan)")
    for label, plan in plans.items():
        if not isinstance(plan, Plan):
            raise UsageError(f"{label}={type(plan).__name__}: a dataset is made of what store.plan returns")
    if missing not in get_args(Missing):
        raise UsageError(f"missing is one of {', '.join(map(repr, get_args(Missing)))}, not {missing!r}")
    unknown = (names or {}).keys() - plans.keys()
    if unknown:
        raise UsageError(f"names: there is no {', '.join(sorted(unknown))} here, only {', '.join(plans)}")


def _chosen(names: Names | None, label: str) -> dict[str, str] | None:
    given: Any = (names or {}).get(label)
    if given is None:
        return None
    if isinstance(given, str):
        given = [given]
    found = dict(given) if isinstance(given, Mapping) else {name: name for name in given}
    if not found or not all(isinstance(each, str) and each for pair in found.items() for each in pair):
        raise UsageError(f"names[{label!r}] = {given!r}: give names, or {{stored name: name in the items}}")
    return found


def _collect_rows(one: _Joined) -> None:
    asked = one.plan.asked
    start = 0
    for number in range(1, len(asked) + 1):
        if number == len(asked) or asked.row_number(number) != asked.row_number(start):
            if asked.row_number(start) != asked.empty_row:
                row = asked.rows[asked.row_number(start)]
                one.rows[row.group, row.sample] = row, range(start, number)
            start = number


def _order(joined: Sequence[_Joined], missing: Missing) -> list[Name]:
    """The rows, in the order of the first plan that has them.

    Raises:
        UsageError: the plans have different rows (with "error").
    """
    order = dict.fromkeys(name for one in joined for name in one.rows)
    if missing != "error":
        return list(order)
    for one in joined:
        lacking = next((name for name in order if name not in one.rows), None)
        if lacking is not None:
            other = next(each for each in joined if lacking in each.rows)
            raise UsageError(
                f"{other.label} has {len(other.rows)} rows and {one.label} has {len(one.rows)}: {_told(lacking)} has "
                f"no {one.label}. Plan the same inputs, or give missing='skip' (or 'zeros')"
            )
    return list(order)


def _refuse_missing(joined: Sequence[_Joined]) -> None:
    for one in joined:
        if not one.found.misses:
            continue
        numbers = {number: name for name, (_, triples) in one.rows.items() for number in triples}
        misses = list(one.found.misses.items())[:NAMED]
        told = [f"{_told(numbers.get(number, ('', EMPTY_NAME)))} ({miss})" for number, miss in misses]
        more = len(one.found.misses) - len(told)
        first = next(iter(one.found.misses.values()))
        raise MissError(
            f"{len(one.found.misses)} of {len(one.found.entries)} variants of {one.label} aren't stored: "
            f"{', '.join(told)}{f' and {more} more' if more else ''}. Build the plan first, or give missing='skip'",
            first,
        )


def _check_names(joined: Sequence[_Joined], rows: Sequence[Name], reserved: Sequence[str]) -> None:
    """Refuse items in which two things would have one name."""
    taken = dict.fromkeys(reserved, "every item")
    facts: dict[str, None] = {}
    for one in joined:
        for row in rows:
            if row in one.rows and one.rows[row][0].values:
                facts.update(dict.fromkeys(one.rows[row][0].values))
    for name in facts:
        if name in taken:
            raise UsageError(
                f"{name!r} is a value of the rows, and a name that {taken[name]} has; call it something else"
            )
    taken |= dict.fromkeys(facts, "the values of the rows")
    for one in joined:
        for stored in one.names or ():
            if stored not in one.found.names and one.found.names:
                known = ", ".join(sorted(one.found.names))
                raise UsageError(f"names: nothing of {one.label} is called {stored!r}; there is {known}")
        called = one.names if one.names is not None else {name: name for name in one.found.names}
        for stored, name in sorted(called.items()):
            if name in taken:
                raise UsageError(
                    f"{name!r} is in {one.label} and in {taken[name]}; rename one: "
                    f"names={{{one.label!r}: {{{stored!r}: {f'{one.label}_{name}'!r}}}}}"
                )
            taken[name] = one.label


def _label(one: _Joined, rows: Sequence[Name], lead: _Joined, gathered: Gathered) -> tuple[Label, Array, int]:
    """A plan's share, the triple of each of its variants (-1: none), and how many of them are zeros."""
    first: list[int] = []
    form: list[int] = []
    entries: list[int] = []
    numbers: list[int] = []
    forms: dict[Form, int] = {}
    zeros = _Zeros(one, gathered)
    for name in rows:
        first.append(len(entries))
        triples = one.rows[name][1] if name in one.rows else range(0)
        told = []
        for number in triples:
            resolution, entry = one.plan.asked.resolution(number), one.found.entries[number]
            if entry == NONE:
                resolution, entry = zeros.take(name, resolution)
            assert resolution is not None
            told.append((one.plan.asked.variation(number), resolution))
            entries.append(entry)
            numbers.append(number)
        if not triples:
            beside = lead.plan.asked.resolution(lead.rows[name][1][0]) if name in lead.rows else None
            resolution, entry = zeros.take(name, beside, only=True)
            told.append((0, resolution))
            entries.append(entry)
            numbers.append(NONE)
        form.append(forms.setdefault(tuple(told), len(forms)))
    label = Label(
        one.label,
        one.plan.recipe.name,
        one.plan.recipe.digest,
        np.array(first, np.int32),
        np.array(form, np.int32),
        np.array(entries, np.int32),
        tuple(forms),
        one.names,
        one.found.empty,
    )
    return label, np.array(numbers, np.int32), zeros.count


class _Zeros:
    """Variants of zeros, each like the most of those that are stored at its resolution."""

    def __init__(self, one: _Joined, gathered: Gathered) -> None:
        self._one, self._gathered = one, gathered
        self._shapes: dict[str, Counter[tuple[int, ...]]] | None = None
        self._like: dict[tuple[int, ...], int] = {}
        self._made: dict[tuple[int, ...], int] = {}
        self.count = 0

    def take(self, name: Name, resolution: str | None, *, only: bool = False) -> tuple[str, int]:
        """(resolution, entry)

        Args:
            name: of the row, for the error.
            resolution: that it is to have; None: the only one.
            only: take the only one as well if nothing is stored at this one.

        Raises:
            UsageError: nothing is stored that it could be like.
        """
        if self._shapes is None:
            self._shapes = {}
            for number, entry in enumerate(self._one.found.entries):
                known = self._one.plan.asked.resolution(number)
                if entry != NONE and known is not None:
                    shapes = self._gathered.shapes(entry)
                    self._shapes.setdefault(known, Counter())[shapes] += 1
                    self._like.setdefault(shapes, entry)
        if (only or resolution is None) and resolution not in self._shapes and len(self._shapes) == 1:
            resolution = next(iter(self._shapes))
        if resolution is None or resolution not in self._shapes:
            raise UsageError(
                f"{_told(name)} has no {self._one.label}, and no other item tells what shape zeros in its place would "
                f"have at {resolution or 'its resolution'}; leave it out with missing='skip'"
            )
        shapes = self._shapes[resolution].most_common(1)[0][0]
        if shapes not in self._made:
            self._made[shapes] = self._gathered.add_zeros(self._like[shapes])
        self.count += 1
        return resolution, self._made[shapes]


def _manifest(
    joined: Sequence[_Joined], rows: Sequence[Name], gathered: Gathered, labels: Sequence[Label], source: Source | None
) -> Manifest:
    found = [[one.rows[name][0] for one in joined if name in one.rows] for name in rows]
    groups = Texts(group for group, _ in rows) if any(group for group, _ in rows) else None
    facts = {
        number: {key: value for row in reversed(same) for key, value in row.values.items()}
        for number, same in enumerate(found)
        if any(row.values for row in same)
    }
    files = [_file(joined, name) for name in rows] if source else []
    digests = b"".join(file.content.digest if file and file.content else bytes(32) for file in files)
    return Manifest(
        gathered.entries(),
        tuple(labels),
        Texts(sample for _, sample in rows),
        groups,
        np.array([same[0].weight for same in found], np.float64),
        facts,
        Texts((file.path or "") if file else "" for file in files) if source else None,
        np.frombuffer(digests, np.uint8).reshape(-1, 32) if source == "image" else None,
    )


def _file(joined: Sequence[_Joined], name: Name) -> Cell | None:
    """The file that a row comes from, by the first plan that tells."""
    for one in joined:
        row, _ = one.rows.get(name, (None, None))
        for cell in (row.roles.get(one.plan.roles[0], ()) if row is not None else ())[:1]:
            if cell.path and not (cell.content and cell.content.kind == "text"):
                return cell
    return None


def _told(name: Name) -> str:
    return repr(name[1]) + (f" of group {name[0]!r}" if name[0] else "")
