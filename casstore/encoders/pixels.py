"""The encoder `pixels`: a cache of decoded, fitted pictures."""

from __future__ import annotations

from typing import Any

import numpy as np

from casstore.encoders.preprocess import FitCrop
from casstore.identity.recipes import Recipe
from casstore.model import Item


class Pixels:
    """Upright RGB, fitted to the resolution and cropped: {"pixels": uint8 [3, height, width]}. Needs no torch."""

    def __init__(self) -> None:
        self.recipe = Recipe("pixels", weights=False, code=1, preprocess=FitCrop("lanczos"))

    def __call__(self, items: list[Item]) -> list[dict[str, Any]]:
        return [{"pixels": np.ascontiguousarray(np.moveaxis(item.image, 2, 0))} for item in items]
