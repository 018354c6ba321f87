"""Preprocessing that is part of the identity and runs in the decode threads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import Image

from casstore.errors import UsageError

_FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "box": Image.Resampling.BOX,
    "bilinear": Image.Resampling.BILINEAR,
    "hamming": Image.Resampling.HAMMING,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


class FitCrop:
    """Scale a picture so that it covers the resolution, then crop its centre.

    The result is a uint8 array [height, width, 3]; beside the tensors two values are stored, y before x:
    `crop_offset`, [top, left] in pixels of the scaled picture, and `original_resolution`, [height, width] of the
    upright picture before scaling.

    Args:
        filter: how pixels are resampled, as Pillow names it: "lanczos", "bicubic", "bilinear", "hamming", "box",
            "nearest".
    """

    def __init__(self, filter: str = "lanczos") -> None:
        if filter not in _FILTERS:
            raise UsageError(f"FitCrop: {filter!r} isn't a filter; use one of {', '.join(_FILTERS)}")
        self.filter = filter

    @property
    def spec(self) -> dict[str, Any]:
        """The binding field of the recipe."""
        return {"fit_crop": {"filter": self.filter}}

    def __call__(self, image: Image.Image, size: tuple[int, int] | None) -> tuple[Any, Mapping[str, Any]]:
        """Fit and crop.

        Args:
            image: upright, RGB.
            size: (height, width) in pixels, or None: the picture stays as it is.

        Returns:
            uint8 [height, width, 3], and the two values.
        """
        width, height = image.size
        top = left = 0
        if size is not None:
            scale = max(size[0] / height, size[1] / width)
            scaled_height, scaled_width = max(size[0], round(height * scale)), max(size[1], round(width * scale))
            if (scaled_width, scaled_height) != image.size:
                image = image.resize((scaled_width, scaled_height), _FILTERS[self.filter])
            top, left = (scaled_height - size[0]) // 2, (scaled_width - size[1]) // 2
            if image.size != (size[1], size[0]):
                image = image.crop((left, top, left + size[1], top + size[0]))
        return np.asarray(image), {"crop_offset": [top, left], "original_resolution": [height, width]}

    def __repr__(self) -> str:
        return f"FitCrop({self.filter!r})"
