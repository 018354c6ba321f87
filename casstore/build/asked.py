"""What a plan asks for: triples of (row, resolution, variation), in arrays.

A list of objects would take ten times the memory; rows, contents and keys are made when somebody asks for one.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from casstore.build.cells import Cells, kind_of, members_of, resolutions_of, side_by_side
from casstore.errors import UsageError
from casstore.identity import resolutions
from casstore.identity.canonical import canonical
from casstore.identity.contents import text_content
from casstore.identity.keys import Key, Together
from casstore.identity.recipes import Recipe
from casstore.index.variants import Identity
from casstore.index.variants import identity as plain
from casstore.model import Miss
from casstore.sources.columns import DIGEST, FileRows
from casstore.sources.inputs import Cell, Row

Params = Mapping[str, Any] | Callable[[Row], Mapping[str, Any]] | None
"""Further JSON that tells variants apart: the same for all rows, or what a function says of each."""
Variations = int | Callable[[Row], int] | None
"""How many variations of each row; None: one, or as many as its role has contents."""

EMPTY_TEXT = Cell(text_content(""))
EMPTY_NAME = "(the empty text)"
"""What the empty text is called where a sample is named: it is planned along with the rows, and is none of them."""
_NONE = -1
_UNKNOWN = (-1, -1, -1)  # a size


class Asked:
    """The triples, in order.

    Args:
        rows: what is planned.
        roles: the primary and its members.
        recipe: what is wanted.

    Attributes:
        empty_row: which of the rows is the empty text, planned along; None: it wasn't asked for, or a row has it.
    """

    def __init__(self, rows: Sequence[Row], roles: tuple[str, ...], recipe: Recipe) -> None:
        self.rows, self.roles, self.recipe = rows, roles, recipe
        self.empty_row: int | None = None
        self._row = array("i")
        self._variation = array("i")
        self._resolution = array("i")
        self._params = array("i")
        self._names: dict[str, int] = {}  # of resolutions and of params, by which the arrays count
        self._texts: list[str] = []

    def __len__(self) -> int:
        return len(self._row)

    def _number(self, text: str) -> int:
        number = self._names.setdefault(text, len(self._texts))
        if number == len(self._texts):
            self._texts.append(text)
        return number

    def _add(self, row: int, variation: int, resolution: int, params: int) -> int:
        self._row.append(row)
        self._variation.append(variation)
        self._resolution.append(resolution)
        self._params.append(params)
        return len(self._row) - 1

    def part(self, numbers: Sequence[int]) -> Asked:
        """The triples of these numbers."""
        found = Asked(self.rows, self.roles, self.recipe)
        found._names, found._texts, found.empty_row = self._names, self._texts, self.empty_row
        for name in ("_row", "_variation", "_resolution", "_params"):
            column = getattr(self, name)
            setattr(found, name, array("i", [column[number] for number in numbers]))
        return found

    def only_empty_text(self) -> Asked:
        """Only the empty text, with the params of the first triple."""
        found = Asked((), self.roles, self.recipe)
        found._add_empty_text(self.params(0))
        return found

    def _add_empty_text(self, params: str) -> int:
        self.empty_row = len(self.rows)
        self.rows = [*self.rows, Row(EMPTY_NAME, {self.roles[0]: (EMPTY_TEXT,)})]
        return self._add(self.empty_row, 0, self._number(resolutions.FULL), self._number(params))

    def row_number(self, number: int) -> int:
        """Which of the rows a triple is about."""
        return self._row[number]

    def variation(self, number: int) -> int:
        """The variation that was asked for, from 0."""
        return self._variation[number]

    def resolution(self, number: int) -> str | None:
        """Its resolution; None if none could be chosen."""
        found = self._resolution[number]
        return None if found == _NONE else self._texts[found]

    def params(self, number: int) -> str:
        """Its params, as canonical JSON."""
        return self._texts[self._params[number]]

    def cells(self, number: int) -> Cells:
        """Its contents, the primary first; nothing if they can't be put together."""
        try:
            contents = side_by_side(self.rows[self._row[number]], self.roles)
        except UsageError:
            return {}
        return contents[self._variation[number] % len(contents)]

    def key(self, number: int) -> Key | None:
        """What it is or will be stored under; None if that can't be told."""
        resolution = self.resolution(number)
        if resolution is None:
            return None
        contents = side_by_side(self.rows[self._row[number]], self.roles)
        variation = self._variation[number]
        cells = contents[variation % len(contents)]
        primary = next(iter(cells.values())).content
        assert primary is not None
        return Key(
            primary,
            self.recipe,
            resolution,
            variation if len(contents) == 1 else 0,
            self.params(number),
            members_of(cells),
        )

    def content_ids(self, triples: Sequence[tuple[int, Identity]]) -> dict[int, bytes] | None:
        """{row id: digest} of the contents of these triples; None: they have members, or their ids aren't known."""
        if not isinstance(self.rows, FileRows):
            return None
        ids, order, rows = self.rows.files.ids, self.rows.order, self._row
        return {ids[order[rows[number]]]: identity[1] for number, identity in triples}

    def brief(self, number: int) -> tuple[Identity, tuple[int, int] | None] | None:
        """The key of a plain file as plain values, and its upright size; None: its row has more to say."""
        if not isinstance(self.rows, FileRows):
            return None
        file = self.rows.order[self._row[number]]
        identity = None if file in self.rows.files.odd else self.identity(number)
        return None if identity is None else (identity, self.rows.files.upright(file))

    def identity(self, number: int) -> Identity | None:
        """The same as plain values, without a key where that is possible."""
        resolution, row = self.resolution(number), self._row[number]
        if resolution is None:
            return None
        if isinstance(self.rows, FileRows):
            digest = self.rows.files.digest(self.rows.order[row])
            if digest is None:
                return None
            params = self._texts[self._params[number]]
            return "file", digest, digest, self.recipe.digest, resolution, self._variation[number], params
        key = self.key(number)
        return None if key is None else plain(key)

    def ask(
        self, wanted: resolutions.Resolutions, params: Params, variations: Variations, *, empty_text: bool = False
    ) -> Iterator[tuple[int, Identity | Miss]]:
        """Add the triples, one after the other.

        Args:
            wanted: the resolution.
            params: see `Params`; a function isn't asked about rows that can't be read.
            variations: see `Variations`.
            empty_text: the empty text as well, once; the rows are texts.

        Yields:
            The number of each triple, and its key as plain values; or why it has none.
        """
        same = None if callable(params) else canonical(dict(params or {}), "params")
        many = variations if isinstance(variations, int) else 1 if variations is None else None
        if isinstance(self.rows, FileRows) and same is not None and many is not None and not callable(wanted):
            return self._ask_files(self.rows, wanted, same, many)
        return self._ask_rows(wanted, params if same is None else None, same, variations, empty_text=empty_text)

    def _ask_files(
        self, rows: FileRows, wanted: resolutions.Resolutions, params: str, variations: int
    ) -> Iterator[tuple[int, Identity | Miss]]:
        """As below, without an object per row."""
        files, recipe = rows.files, self.recipe.digest
        digests, ids, shapes, odd = bytes(files.digests), files.ids, files.shapes, files.odd
        row_numbers, variation_numbers = self._row.append, self._variation.append
        resolution_numbers, params_numbers = self._resolution.append, self._params.append
        told = self._number(params)
        by_shape: dict[int, Any] = {shape: None for shape, size in enumerate(files.sizes) if size == _UNKNOWN}
        for place, number in enumerate(rows.order):
            if ids[number] < 0:
                missing = Miss("source unavailable", files.error(number) or "")
                for variation in range(variations):
                    yield self._add(place, variation, _NONE, told), missing
                continue
            shape = shapes[number]
            chosen = by_shape.get(shape, ())
            if chosen is None or chosen == () or number in odd:
                content = files.content(number)
                assert content is not None
                found = resolutions_of(content, rows.path(number), wanted, self.recipe)
                if found is None:
                    for variation in range(variations):
                        added = self._add(place, variation, _NONE, told)
                        yield added, _sizeless(self.cells(added))
                    continue
                numbered = tuple((each, self._number(each)) for each in found)
                if chosen == () and number not in odd:  # else its name counts, and what a probe has said
                    by_shape[shape] = numbered
                chosen = numbered
            digest = digests[DIGEST * number : DIGEST * number + DIGEST]
            for variation in range(variations):
                for resolution, resolution_number in chosen:
                    row_numbers(place)  # as `_add` does, but this runs a million times
                    variation_numbers(variation)
                    resolution_numbers(resolution_number)
                    params_numbers(told)
                    yield len(self._row) - 1, ("file", digest, digest, recipe, resolution, variation, params)

    def _ask_rows(
        self,
        wanted: resolutions.Resolutions,
        params_of: Any,
        same: str | None,
        variations: Variations,
        *,
        empty_text: bool,
    ) -> Iterator[tuple[int, Identity | Miss]]:
        recipe, none = self.recipe, self._number("{}")
        assert EMPTY_TEXT.content is not None
        empty = EMPTY_TEXT.content.digest if empty_text else None
        for place, row in enumerate(self.rows):
            try:
                contents = side_by_side(row, self.roles)
            except UsageError as error:
                yield self._add(place, 0, _NONE, none), Miss("failed", str(error))
                continue
            for variation in range(_variations_of(row, variations, len(contents))):
                cells = contents[variation % len(contents)]
                broken = next((cell for cell in cells.values() if cell.content is None), None)
                if broken is not None:
                    yield self._add(place, variation, _NONE, none), Miss("source unavailable", broken.error or "")
                    continue
                told = same if same is not None else _params_of(row, params_of)
                params = self._number(told)
                primary = next(iter(cells.values()))
                content = primary.content
                assert content is not None
                facts = (place, row.sample, row.group)
                chosen = resolutions_of(content, primary.path, wanted, recipe, facts, variation)
                if chosen is None:
                    yield self._add(place, variation, _NONE, params), _sizeless(cells)
                    continue
                members = members_of(cells)
                inputs = Together.of(content, members).inputs.digest if members else content.digest
                key_variation = variation if len(contents) == 1 else 0
                if content.digest == empty:
                    empty = None  # a row has it; asked for once more it would only be counted twice
                for resolution in chosen:
                    added = self._add(place, variation, self._number(resolution), params)
                    identity = (content.kind, content.digest, inputs, recipe.digest, resolution, key_variation, told)
                    yield added, identity
        if empty is not None:
            assert same is not None
            added = self._add_empty_text(same)
            yield added, ("text", empty, empty, recipe.digest, resolutions.FULL, 0, same)


def _variations_of(row: Row, variations: Variations, contents: int) -> int:
    if variations is None:
        return contents
    count = variations if isinstance(variations, int) else variations(row)
    return check_variations(count, f"variations of {row.sample!r}")


def check_variations(count: object, what: str = "variations") -> int:
    """The number itself if it can be meant.

    Raises:
        UsageError: it can't; the message begins with `what`.
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise UsageError(f"{what}: a number from 1 was expected, not {count!r}")
    return count


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
