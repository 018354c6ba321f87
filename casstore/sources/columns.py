"""What is known of many files, in columns: a list of objects takes ten times the memory and the time."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

from casstore.index.sources import BelowRow
from casstore.model import Content
from casstore.sources.inputs import Cell, Row

_DIGEST = 32
_UNKNOWN = -1  # of a size or an orientation


class Files:
    """Files below a root, one after the other.

    Attributes:
        places: their paths below the root.
        digests: 32 bytes each; zeros where the content isn't known.
        odd: {number: what has no column}: error, note, frames and rate of the few that have any.
    """

    def __init__(self) -> None:
        self.places: list[str] = []
        self.digests = bytearray()
        self.odd: dict[int, tuple[str | None, str | None, int | None, float | None]] = {}
        self._nbytes = array("q")
        self._sizes = array("i")  # width, height, orientation

    def __len__(self) -> int:
        return len(self.places)

    def add(self, place: str, row: BelowRow) -> None:
        """A file, as the index has it."""
        _, _, error, kind, digest, nbytes, width, height, orientation, note, _, frames, rate = row
        if error is not None or note is not None or frames is not None or rate is not None:
            self.odd[len(self.places)] = error, note, frames, rate
        self.places.append(place)
        if kind is None:
            self.digests += bytes(_DIGEST)
            self._nbytes.append(_UNKNOWN)
        else:
            self.digests += digest
            self._nbytes.append(nbytes)
        self._sizes.extend(
            (
                _UNKNOWN if width is None else width,
                _UNKNOWN if height is None else height,
                _UNKNOWN if orientation is None else orientation,
            )
        )

    def add_error(self, place: str, error: str) -> None:
        """A folder that can't be listed."""
        self.odd[len(self.places)] = error, None, None, None
        self.places.append(place)
        self.digests += bytes(_DIGEST)
        self._nbytes.append(_UNKNOWN)
        self._sizes.extend((_UNKNOWN,) * 3)

    def digest(self, number: int) -> bytes | None:
        """What a file holds; None if it can't be read."""
        if self._nbytes[number] < 0:
            return None
        return bytes(self.digests[_DIGEST * number : _DIGEST * number + _DIGEST])

    def size(self, number: int) -> tuple[int, int, int]:
        """Its width, height and orientation; -1: unknown."""
        start = 3 * number
        return self._sizes[start], self._sizes[start + 1], self._sizes[start + 2]

    def error(self, number: int) -> str | None:
        """Why it can't be read."""
        return self.odd[number][0] if number in self.odd else None

    def content(self, number: int) -> Content | None:
        """What it holds; None if it can't be read."""
        digest = self.digest(number)
        if digest is None:
            return None
        width, height, orientation = (None if size == _UNKNOWN else size for size in self.size(number))
        _, note, frames, rate = self.odd.get(number, (None,) * 4)
        return Content("file", digest, self._nbytes[number], width, height, orientation, note, frames=frames, rate=rate)


class FileRows(Sequence[Row]):
    """The rows of a folder that have one content, each made when it is asked for.

    Args:
        files: what is known of them.
        order: their numbers, in the order of the rows.
        above: in front of their places: the root's path, with its slash.
        inside: where the folder is below the root; "": it is the root.
        prefix: in front of the names of the rows.
        role: that the files have.
    """

    def __init__(self, files: Files, order: array[int], above: str, inside: str, prefix: str, role: str) -> None:
        self.files, self.order, self.role = files, order, role
        self._above, self._prefix = above, prefix
        self._inside = inside

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(map(self._row, self.order[index]))
        return self._row(self.order[index])

    def __iter__(self) -> Iterator[Row]:
        return map(self._row, self.order)

    def path(self, number: int) -> str:
        """Of a file; absolute."""
        return os.path.join(self._above, self.files.places[number])

    def _row(self, number: int) -> Row:
        place = self.files.places[number]
        inside = self._inside
        sample = place if not inside else place[len(inside) + 1 :] if place != inside else "."
        cell = Cell(self.files.content(number), self.path(number), self.files.error(number))
        return Row(self._prefix + sample, {self.role: (cell,)})
