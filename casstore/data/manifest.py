"""What a dataset may read, in arrays: 58 bytes per object, and 4 per sample, label, resolution and variation.

It holds digests, not row ids, so it means the same in every process, and arrays, which a forked worker shares with its
parent and which travel to any other as they are.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from casstore.data.picks import EMPTY, Pick
from casstore.errors import UsageError
from casstore.identity.resolutions import FULL
from casstore.model import CODECS, Stored, TensorInfo
from casstore.objects.payload import Layout

ZEROS = len(CODECS)
"""In the place of a codec: no object; its tensors are zeros."""
NONE = -1
Array = np.ndarray[Any, Any]
Form = tuple[tuple[int, str], ...]
"""The (variation, resolution) of the variants of a row, in their order."""


class Texts(Sequence[str]):
    """Many texts, packed; each is made when it is asked for."""

    def __init__(self, texts: Iterable[str]) -> None:
        encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
        self._data = b"".join(encoded)
        self._ends = np.cumsum([len(each) for each in encoded], dtype=np.int64)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: Any) -> Any:
        begin = int(self._ends[index - 1]) if index else 0
        return self._data[begin : int(self._ends[index])].decode("utf-8", "surrogatepass")


@dataclass(frozen=True)
class Entries:
    """The parts of variants, those of one variant side by side; an object each.

    Attributes:
        digests: uint8 [n, 32].
        nbytes: int64 [n], of the files.
        checksums: int64 [n], XXH3-64 of the files.
        layouts: int32 [n], which of `layout_texts` each has.
        values: int32 [n], which of `value_texts` its variant has; -1: none.
        codecs: uint8 [n], which of CODECS; ZEROS: there is no object.
        more: bool [n], the next one belongs to the same variant.
        layout_texts, value_texts: what these arrays count.
    """

    digests: Array
    nbytes: Array
    checksums: Array
    layouts: Array
    values: Array
    codecs: Array
    more: Array
    layout_texts: tuple[str, ...]
    value_texts: Texts

    def parts(self, entry: int) -> list[int]:
        """The parts of the variant that begins here."""
        found = [entry]
        while self.more[found[-1]]:
            found.append(found[-1] + 1)
        return found

    def stored(self, entries: Sequence[int]) -> list[Stored | None]:
        """What the index said of objects; None where there is none. NumPy takes as long for one as for a batch."""
        digests = self.digests[entries].tobytes()
        columns = [each[entries].tolist() for each in (self.codecs, self.layouts, self.nbytes, self.checksums)]
        return [
            None
            if codec == ZEROS
            else Stored(digests[32 * n : 32 * n + 32], CODECS[codec], self.layout_texts[layout], nbytes, checksum)
            for n, (codec, layout, nbytes, checksum) in enumerate(zip(*columns, strict=True))
        ]

    def layout(self, entry: int) -> Layout:
        """The tensors of an object."""
        return Layout.parse(self.layout_texts[self.layouts[entry]])


@dataclass(frozen=True)
class Label:
    """One plan's share of a dataset.

    Attributes:
        name: what the plan is called here.
        recipe, recipe_digest: its recipe.
        first: int32 [rows], where each row's variants begin in `entries`.
        form: int32 [rows], which of `forms` each row has.
        entries: int32 [variants]: the first part of each.
        forms: the different ones.
        names: {stored name: name in the items}; None: all, as they are stored.
        empty: the entry of the empty text; -1: none.
    """

    name: str
    recipe: str
    recipe_digest: bytes
    first: Array
    form: Array
    entries: Array
    forms: tuple[Form, ...]
    names: Mapping[str, str] | None = None
    empty: int = NONE

    @cached_property
    def _offsets(self) -> list[dict[tuple[int, str], int]]:
        return [{each: place for place, each in enumerate(form)} for form in self.forms]

    @cached_property
    def _resolutions(self) -> list[tuple[str, ...]]:
        return [tuple(dict.fromkeys(resolution for _, resolution in form)) for form in self.forms]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if not name.startswith("_")}

    def renamed(self, name: str) -> str | None:
        """What a stored tensor or value is called in the items; None: it isn't in them."""
        return name if self.names is None else self.names.get(name)

    def resolutions(self, row: int) -> tuple[str, ...]:
        """Those of a row; ("",): it has none, or is kept at its full size."""
        found: tuple[str, ...] = self._resolutions[self.form[row]]
        return found

    def variations(self, row: int) -> int:
        """How many there are of a row."""
        form: Form = self.forms[self.form[row]]
        return 1 + max(variation for variation, _ in form)

    def entry(self, row: int, variation: int, resolution: str) -> int | None:
        """Where a variant begins; None: there is no such."""
        place = self._offsets[self.form[row]].get((variation, resolution))
        return None if place is None else int(self.entries[self.first[row] + place])


@dataclass(frozen=True)
class Manifest:
    """All that a dataset knows.

    Attributes:
        entries: the objects.
        labels: the plans, in the order of the call.
        samples, groups: names of the rows; no groups: all are "".
        weights: float64 [rows].
        facts: {row: its values}, of those that have any.
        paths: of the sources of the rows ("": none), where they are wanted.
        contents: uint8 [rows, 32], digests of what these files held, where that is wanted.
    """

    entries: Entries
    labels: tuple[Label, ...]
    samples: Texts
    groups: Texts | None
    weights: Array
    facts: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    paths: Texts | None = None
    contents: Array | None = None

    def __len__(self) -> int:
        return len(self.samples)

    def row(self, index: int) -> int:
        """The number of a row, which may be counted from the end.

        Raises:
            IndexError: there is none.
            TypeError: it is no whole number.
        """
        place, count = operator.index(index), len(self.samples)
        if not -count <= place < count:
            raise IndexError(f"row {place} of a dataset of {count}")
        return place % count

    def told(self, row: int) -> str:
        """A row's name, for people."""
        group = self.groups[row] if self.groups is not None else ""
        return f"sample {self.samples[row]!r}" + (f" of group {group!r}" if group else "")

    def find(self, pick: Pick | int) -> tuple[int, list[int]]:
        """(row, where the variant of each label begins)

        Raises:
            IndexError: there is no such row.
            UsageError: there is no such variant, or several resolutions and none was named.
        """
        if not isinstance(pick, Pick):
            row = self.row(pick)
            return row, [self._usual(label, row) for label in self.labels]
        row = self.row(pick.index)
        unknown = pick.variations.keys() - {label.name for label in self.labels}
        if unknown:
            raise UsageError(f"{pick}: this dataset has {', '.join(label.name for label in self.labels)}, no {unknown}")
        if pick.resolution is not None and not any(pick.resolution in label.resolutions(row) for label in self.labels):
            raise UsageError(f"{self.told(row)} isn't at resolution {pick.resolution}; {self._has(row)}")
        return row, [self._picked(label, row, pick) for label in self.labels]

    def _usual(self, label: Label, row: int) -> int:
        resolutions = label.resolutions(row)
        if len(resolutions) > 1:
            raise UsageError(
                f"{self.told(row)} has {label.name} at {len(resolutions)} resolutions; "
                f"say which: dataset[casstore.data.Pick({row}, resolution={resolutions[0]!r})]"
            )
        entry = label.entry(row, 0, resolutions[0])
        assert entry is not None
        return entry

    def _picked(self, label: Label, row: int, pick: Pick) -> int:
        variation = pick.variations.get(label.name, 0)
        if variation == EMPTY:
            if label.empty == NONE:
                raise UsageError(
                    f"nothing is stored of the empty text with {label.recipe!r}, for EMPTY under {label.name!r}; "
                    "plan it along, with store.plan(..., empty_text=True), and build that"
                )
            return label.empty
        resolutions = label.resolutions(row)
        chosen = pick.resolution if pick.resolution in resolutions else resolutions[0]
        if len(resolutions) > 1 and pick.resolution != chosen:
            wanted = f" {pick.resolution}" if pick.resolution else ""
            raise UsageError(f"{self.told(row)}: which resolution{wanted} of {label.name}? {self._has(row)}")
        entry = label.entry(row, variation, chosen)
        if entry is None:
            at = f" at {chosen}" if chosen else ""
            raise UsageError(
                f"{self.told(row)} has {label.variations(row)} variations of {label.name}{at}; there is no {variation}"
            )
        return entry

    def _has(self, row: int) -> str:
        told = (
            f"{label.name} is at {', '.join(each or 'full size' for each in label.resolutions(row))}"
            for label in self.labels
            if label.resolutions(row) != (FULL,)
        )
        return "; ".join(told) or "it has none"

    def tensors(self, label: Label, entry: int) -> Iterable[tuple[int, str, str, TensorInfo]]:
        """(part, stored name, name in the item, dtype and shape) of the tensors of a variant."""
        for part in self.entries.parts(entry):
            for stored, info in self.entries.layout(part).tensors.items():
                name = label.renamed(stored)
                if name is not None:
                    yield part, stored, name, info
