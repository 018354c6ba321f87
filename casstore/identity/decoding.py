"""How pictures become pixels: the rules that are part of a recipe."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, get_args

from casstore.errors import UsageError
from casstore.model import Content

Colour = tuple[int, int, int]
Orientation = Literal["apply", "ignore"]
Icc = Literal["ignore", "srgb"]
Frames = Literal["first", "refuse"]
Truncated = Literal["refuse", "allow"]

WHITE: Colour = (255, 255, 255)


@dataclass(frozen=True, slots=True)
class Decode:
    """Rules for decoding pictures, as `Recipe(decode=...)` takes them. Those at their default aren't in the identity.

    What no rule changes: 16-bit grey is divided by 257, other modes are converted to RGB by Pillow.

    Attributes:
        orientation: "apply": the EXIF orientation turns the picture upright; "ignore": pixels stay as they are stored,
            and sizes are those of the file.
        background: (red, green, blue), 0 to 255, that alpha is composited on; or "mask": alpha only marks pixels, so it
            is dropped and every pixel keeps the colour that is stored under it, whatever that is. (An encoder that
            wants the alpha itself finds it in `item.data`.)
        icc: "ignore": numbers stay as they are; "srgb": an embedded profile is converted to sRGB (perceptual intent).
            A picture without one is taken for sRGB, one whose profile can't be used is refused.
        frames: "first": of an animation its first frame; "refuse": an animation is a failure.
        truncated: "refuse": a file that ends too soon is a failure; "allow": what is missing stays as Pillow leaves it,
            grey or black, and damaged parts of a PNG pass too.

    Raises:
        UsageError: a rule that can't be meant.
    """

    orientation: Orientation = "apply"
    background: Colour | Literal["mask"] = WHITE
    icc: Icc = "ignore"
    frames: Frames = "first"
    truncated: Truncated = "refuse"

    def __post_init__(self) -> None:
        for name, words in _WORDS.items():
            if getattr(self, name) not in words:
                choice = " or ".join(map(repr, words))
                raise UsageError(f"Decode: {name} is {choice}, not {getattr(self, name)!r}")
        if self.background != "mask":
            object.__setattr__(self, "background", _colour(self.background))

    @property
    def spec(self) -> dict[str, Any]:
        """The rules that aren't at their default: a binding field of the recipe, left out if there are none."""
        found = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        changed = {name: value for name, value in found.items() if value != getattr(DEFAULT, name)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in changed.items()}


_WORDS: dict[str, tuple[str, ...]] = {
    "orientation": get_args(Orientation),
    "icc": get_args(Icc),
    "frames": get_args(Frames),
    "truncated": get_args(Truncated),
}


def _colour(value: Any) -> Colour:
    parts = tuple(value) if isinstance(value, (tuple, list)) else ()
    if len(parts) != 3 or not all(type(part) is int and 0 <= part <= 255 for part in parts):
        raise UsageError(f"Decode: background is (red, green, blue), each 0 to 255, or 'mask', not {value!r}")
    return parts[0], parts[1], parts[2]


DEFAULT = Decode()


def upright_under(content: Content, rules: Decode) -> tuple[int, int] | None:
    """(height, width) in pixels of a picture as these rules decode it; None if nothing is known of its size."""
    if rules.orientation == "apply" or content.width is None or content.height is None:
        return content.upright
    return content.height, content.width
