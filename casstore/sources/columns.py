"""What is known of many files, in columns: a list of objects takes ten times the memory and the time."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

from casstore.index.sources import BelowRow
from casstore.model import Content
from casstore.sources.inputs import Cell, Row

DIGEST = 32  # bytes of one
_UNKNOWN = -1  # of a size or an orientation


class Files:
    """Files below a root, one after the other.

    Attributes:
        places: their paths below the root.
        digests: 32 bytes each; zeros where the content isn't known.
        odd: {number: what has no column}: error, note, frames and rate of the few that have any.
        ids: row ids of what they hold; -1 where that isn't known.
        shapes: which of the `sizes` each has: (width, height, orientation), -1: unknown.
    """

    def __init__(self) -> None:
        self.places: list[str] = []
        self.digests = bytearray()
        self.odd: dict[int, tuple[str | None, str | None, int | None, float | None]] = {}
        self.ids = array("q")
        self.shapes = array("i")
        self.sizes: list[tuple[int, int, int]] = []
        self._nbytes = array("q")
        self._upright: dict[int, tuple[int, int] | None] = {}
        self._shapes: dict[tuple[int | None, int | None, int | None], int] = {}

    def __len__(self) -> int:
        return len(self.places)

    def add(self, place: str, row: BelowRow) -> None:
        """A file, as the index has it."""
        _, _, error, kind, digest, nbytes, width, height, orientation, note, _, frames, rate, id_ = row
        if error is not None or note is not None or frames is not None or rate is not None:
            self.odd[len(self.places)] = error, note, frames, rate
        self.places.append(place)
        if kind is None:
            digest, nbytes, id_ = bytes(DIGEST), _UNKNOWN, _UNKNOWN
        self.digests += digest
        self._nbytes.append(nbytes)
        self.ids.append(id_)
        size = width, height, orientation
        shape = self._shapes.get(size)
        self.shapes.append(self._shape(size) if shape is None else shape)

    def add_error(self, place: str, error: str) -> None:
        """A folder that can't be listed."""
        self.add(place, (None, None, error, *(None,) * 11))

    def _shape(self, size: tuple[int | None, int | None, int | None]) -> int:
        width, height, orientation = (_UNKNOWN if each is None else each for each in size)
        self._shapes[size] = len(self.sizes)
        self.sizes.append((width, height, orientation))
        return len(self.sizes) - 1

    def digest(self, number: int) -> bytes | None:
        """What a file holds; None if it can't be read."""
        if self._nbytes[number] < 0:
            return None
        return bytes(self.digests[DIGEST * number : DIGEST * number + DIGEST])

    def upright(self, number: int) -> tuple[int, int] | None:
        """Its height and width as it is to be seen; None: they aren't known."""
        shape = self.shapes[number]
        if shape not in self._upright:
            content = self.content(number)
            self._upright[shape] = None if content is None else content.upright
        return self._upright[shape]

    def error(self, number: int) -> str | None:
        """Why it can't be read."""
        return self.odd[number][0] if number in self.odd else None

    def content(self, number: int) -> Content | None:
        """What it holds; None if it can't be read."""
        digest = self.digest(number)
        if digest is None:
            return None
        width, height, orientation = (None if size == _UNKNOWN else size for size in self.sizes[self.shapes[number]])
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
