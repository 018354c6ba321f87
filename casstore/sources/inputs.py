"""Inputs: the ordered rows that a plan is made from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from casstore.errors import UsageError
from casstore.model import Content


@dataclass(frozen=True, slots=True)
class Row:
    """One row.

    Attributes:
        sample: its name: the path relative to the scanned folder, with the folder's name in front when there are
            several.
        path: absolute.
        content: what the file holds; None if it can't be read.
        error: why it can't be read.
    """

    sample: str
    path: str
    content: Content | None
    error: str | None = None


class Inputs(Sequence[Row]):
    """Ordered rows with distinct sample names.

    Raises:
        UsageError: two rows have the same name; both are named.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        seen: dict[str, Row] = {}
        for row in rows:
            other = seen.setdefault(row.sample, row)
            if other is not row:
                raise UsageError(f"two rows are called {row.sample!r}: {other.path} and {row.path}; scan them apart")
        self._rows = tuple(rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        return self._rows[index]

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    def __repr__(self) -> str:
        return f"<Inputs: {len(self._rows)} rows>"
