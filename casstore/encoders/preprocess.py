"""Preprocessing that is part of the identity and runs in the decode threads."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

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


Crop = Literal["center", "random"]
Flip = Literal["never", "random"]
Rng = Callable[[str], random.Random]
"""rng(name): the draw of that name for the key at hand; see `casstore.identity.draws`."""
Size = tuple[int, int]


class FitCrop:
    """Scale a picture so that it covers the resolution, then crop it, and mirror it if so drawn.

    The result is a uint8 array [height, width, 3]; beside the tensors values are stored, y before x: `crop_offset`,
    [top, left] in pixels of the scaled picture before mirroring, `original_resolution`, [height, width] of the upright
    picture before scaling, and with flip="random" `flip`, whether the crop was mirrored.

    Args:
        filter: how pixels are resampled, as Pillow names it: "lanczos", "bicubic", "bilinear", "hamming", "box",
            "nearest".
        crop: "center", or "random": each place is as likely; drawn from rng("crop").
        flip: "never", or "random": mirrored left to right or not, both as likely; drawn from rng("flip").
        members: the filter for other pictures of the row (a mask) that get the geometry of the primary; None: `filter`.

    Raises:
        UsageError: an argument can't be meant.
    """

    def __init__(
        self, filter: str = "lanczos", crop: Crop = "center", flip: Flip = "never", members: str | None = None
    ) -> None:
        for name in (filter, filter if members is None else members):
            if name not in _FILTERS:
                raise UsageError(f"FitCrop: {name!r} isn't a filter; use one of {', '.join(_FILTERS)}")
        for what, value, known in (("crop", crop, get_args(Crop)), ("flip", flip, get_args(Flip))):
            if value not in known:
                raise UsageError(f"FitCrop: {what} is {' or '.join(map(repr, known))}, not {value!r}")
        self.filter = filter
        self.crop = crop
        self.flip = flip
        self.members = None if members == filter else members

    @property
    def _options(self) -> dict[str, str]:
        """What differs from the defaults, besides the filter: only that is part of the identity."""
        told = {"crop": (self.crop, "center"), "flip": (self.flip, "never"), "members": (self.members, None)}
        return {name: value for name, (value, default) in told.items() if value is not None and value != default}

    @property
    def spec(self) -> dict[str, Any]:
        """The binding field of the recipe."""
        return {"fit_crop": {"filter": self.filter, **self._options}}

    @property
    def draws(self) -> bool:
        """Whether it has to be given random draws."""
        return self.crop == "random" or self.flip == "random"

    def __call__(self, image: Image.Image, size: Size | None, rng: Rng | None = None) -> tuple[Any, Mapping[str, Any]]:
        """Fit, crop and mirror.

        Args:
            image: upright, RGB.
            size: (height, width) in pixels, or None: the picture is neither scaled nor cropped.
            rng: the draws of this key; needed if `draws`. Only their `random()` is used.

        Returns:
            uint8 [height, width, 3], and the values.

        Raises:
            UsageError: draws are needed and weren't given.
        """
        if self.draws and rng is None:
            raise UsageError(f"{self!r} draws at random, so it has to be called with rng")
        original = image.size[1], image.size[0]
        scaled = _covering(original, size)
        slack = _slack(scaled, size)
        offset = slack[0] // 2, slack[1] // 2
        if self.crop == "random" and rng is not None:
            drawn = rng("crop")  # both are always drawn, so that the place is alike at every resolution
            offset = int(drawn.random() * (slack[0] + 1)), int(drawn.random() * (slack[1] + 1))
        values: dict[str, Any] = {"crop_offset": list(offset), "original_resolution": list(original)}
        if self.flip == "random" and rng is not None:
            values["flip"] = rng("flip").random() < 0.5
        return _placed(image, scaled, offset, size, values.get("flip", False), self.filter), values

    def follow(self, image: Image.Image, values: Mapping[str, Any], size: Size | None) -> Any:
        """Give another picture of the row, such as a mask, the geometry of the primary.

        Args:
            image: upright. One that isn't as large as the primary is scaled to the same size, without regard to its
                aspect; each pixel is resampled once.
            values: of the primary, as they were returned or stored: original_resolution, crop_offset, flip.
            size: (height, width) in pixels, as for the primary.

        Returns:
            uint8 [height, width, 3] for RGB, [height, width] for a picture of one channel.

        Raises:
            UsageError: the values aren't those of a primary at this size.
        """
        original, offset = (_pair(values, name) for name in ("original_resolution", "crop_offset"))
        scaled = _covering(original, size) if min(original) > 0 else (0, 0)
        slack = _slack(scaled, size)
        if min(scaled) < 1 or not (0 <= offset[0] <= slack[0] and 0 <= offset[1] <= slack[1]):
            raise UsageError(
                f"FitCrop: a picture of {original[0]}x{original[1]} pixels, scaled to {scaled[0]}x{scaled[1]}, can't "
                f"be cropped at {list(offset)}; give the values of the primary at the same resolution"
            )
        return _placed(image, scaled, offset, size, bool(values.get("flip", False)), self.members or self.filter)

    def __repr__(self) -> str:
        return f"FitCrop({', '.join([repr(self.filter), *(f'{k}={v!r}' for k, v in self._options.items())])})"


def _covering(original: Size, size: Size | None) -> Size:
    """(height, width) to which a picture is scaled so that it just covers a size."""
    if size is None:
        return original
    scale = max(size[0] / original[0], size[1] / original[1])
    return max(size[0], round(original[0] * scale)), max(size[1], round(original[1] * scale))


def _slack(scaled: Size, size: Size | None) -> Size:
    """How many pixels are cropped off: (in height, in width)."""
    return (0, 0) if size is None else (scaled[0] - size[0], scaled[1] - size[1])


def _placed(image: Image.Image, scaled: Size, offset: Size, size: Size | None, flip: bool, filter: str) -> Any:
    """The pixels of a picture that is scaled, cropped and mirrored."""
    if image.size != (scaled[1], scaled[0]):
        image = image.resize((scaled[1], scaled[0]), _FILTERS[filter])
    if size is not None and size != scaled:
        image = image.crop((offset[1], offset[0], offset[1] + size[1], offset[0] + size[0]))
    return np.asarray(image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else image)


def _pair(values: Mapping[str, Any], name: str) -> Size:
    found = values.get(name)
    try:
        first, second = found  # type: ignore[misc]
        return int(first), int(second)
    except (TypeError, ValueError):
        raise UsageError(f"FitCrop: the primary has {name}={found!r}, where [y, x] in pixels was expected") from None
