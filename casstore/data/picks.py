"""Which of a row's variants is wanted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

EMPTY: Final = -1
"""In the place of a variation: what is stored of the empty text, such as for classifier-free guidance."""


@dataclass(frozen=True, slots=True)
class Pick:
    """An item that isn't the usual one: `dataset[Pick(3, variations={"image": 1, "text": EMPTY})]`.

    Attributes:
        index: of the row; from the end if it is negative.
        variations: {label: which variation}, from 0; labels that aren't named have variation 0.
        resolution: "HxW"; None: the only one that the row was planned at. It doesn't count for texts, nor for a label
            with one resolution, as long as another label has this one.
    """

    index: int
    variations: Mapping[str, int] = field(default_factory=dict)
    resolution: str | None = None
