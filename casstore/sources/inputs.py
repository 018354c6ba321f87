"""Inputs: the ordered rows that a plan is made from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from casstore.errors import UsageError
from casstore.model import Content


@dataclass(frozen=True, slots=True)
class Cell:
    """One content of a row.

    Attributes:
        content: what it is; None if it can't be read.
        path: absolute, of the file that it comes from; None if it comes from none.
        error: why it can't be read.
    """

    content: Content | None
    path: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One row.

    Attributes:
        sample: its name: the path relative to the scanned folder, with the folder's name in front when there are
            several.
        roles: {role: its contents, one for each variation}; a role without a content is left out.
        group: rows of different groups may have the same name.
        weight: how often it counts, for whoever reads the rows.
        values: facts of the row, such as its concept; they are no part of what is stored.
    """

    sample: str
    roles: Mapping[str, tuple[Cell, ...]]
    group: str = ""
    weight: float = 1.0
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def first(self) -> Cell:
        """The first content of its first role."""
        for cells in self.roles.values():
            return cells[0]
        return Cell(None, error="the row has no contents")

    @property
    def path(self) -> str | None:
        """The file of its first content."""
        return self.first.path

    @property
    def content(self) -> Content | None:
        """Its first content."""
        return self.first.content

    @property
    def error(self) -> str | None:
        """Why its first content can't be read."""
        return self.first.error


class Inputs(Sequence[Row]):
    """Ordered rows, each with its own (group, sample).

    Raises:
        UsageError: two rows have the same group and name; both are named.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        seen: dict[tuple[str, str], Row] = {}
        for row in rows:
            other = seen.setdefault((row.group, row.sample), row)
            if other is not row:
                where = f" of group {row.group!r}" if row.group else ""
                raise UsageError(
                    f"two rows{where} are called {row.sample!r}: {other.path} and {row.path}; "
                    "give one another name or group, or scan them apart"
                )
        self._rows: Sequence[Row] = tuple(rows)

    @property
    def rows(self) -> Sequence[Row]:
        """All of them; rows that are made when they are asked for where that is possible."""
        return self._rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        return self._rows[index]

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    def __repr__(self) -> str:
        return f"<Inputs: {len(self)} rows>"
