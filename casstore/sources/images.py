"""Pictures: what their header says, and decoding them by the rules of a recipe.

By default the EXIF orientation is applied; alpha is composited on white; of an animation the first frame is taken; ICC
profiles are ignored; a truncated file is refused. Always 16-bit grey is divided by 257, and CMYK and other modes are
converted.
"""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageFile, UnidentifiedImageError

from casstore.errors import PictureError
from casstore.identity.decoding import DEFAULT, WHITE, Decode

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif")
"""Endings, in lower case, of files that a scan takes for pictures; what they are is decided by their content."""

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")
"""What Pillow may decode for us: the common formats only, since each decoder is a place for faults."""

ORIENTATION = 0x0112  # EXIF 2.3

_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What makes a picture of each EXIF orientation upright."""
_STORED = {
    **_UPRIGHT,
    6: Image.Transpose.ROTATE_90,
    8: Image.Transpose.ROTATE_270,
}
"""What makes an upright picture what is stored under each EXIF orientation."""

_ON_WHITE = "alpha, composited on white"
_WITHOUT_ICC = "save it without one, or use Decode(icc='ignore')"
_PROFILES = {"RGB ": "RGB", "GRAY": "L", "CMYK": "CMYK"}
"""{colour space of a profile: mode of the pictures that it can be of}"""


@dataclass(frozen=True, slots=True)
class Header:
    """What a picture's header says: raw size in pixels, EXIF orientation, and what decoding will convert (or "")."""

    width: int
    height: int
    orientation: int
    note: str


def read_header(data: bytes) -> Header:
    """Look at the header; the pixels aren't decoded.

    Raises:
        PictureError: it isn't a picture that we read; the message says why.
    """
    try:
        with _open(data) as image:
            width, height = image.size
            if width < 1 or height < 1:
                raise PictureError(f"the picture has no pixels ({width} x {height})")
            orientation = _orientation(image)
            if image.format == "TIFF" and orientation >= 5:
                width, height = height, width  # Pillow tells the size of a TIFF as it will be after its own turning
            return Header(width, height, orientation, _note(image))
    except PictureError:
        raise
    except Exception as error:  # decoders raise almost anything on broken files
        raise PictureError(_reason(data, error)) from error


def decode(data: bytes, rules: Decode = DEFAULT) -> Image.Image:
    """The picture in RGB.

    Raises:
        PictureError: it can't be decoded, or not by these rules; the message says why.
    """
    lenient = rules.truncated == "allow"
    if ImageFile.LOAD_TRUNCATED_IMAGES and not lenient:
        raise PictureError("PIL.ImageFile.LOAD_TRUNCATED_IMAGES is set, which would make pictures up; unset it")
    try:
        with _truncation_allowed() if lenient else contextlib.nullcontext(), _open(data) as image:
            if rules.frames == "refuse" and _is_animated(image):
                frames = getattr(image, "n_frames", 2)
                raise PictureError(f"it is an animation of {frames} frames, and the recipe's decode refuses these")
            orientation = _orientation(image)  # before loading, as read_header does
            profile = image.info.get("icc_profile") if rules.icc == "srgb" else None
            image.load()
            found = _to_rgb(image, rules, profile)
            # Pillow turns a TIFF when it loads it, and no other picture.
            if rules.orientation == "apply":
                turns = {} if image.format == "TIFF" else _UPRIGHT
            else:
                turns = _STORED if image.format == "TIFF" else {}
            if orientation in turns:
                return found.transpose(turns[orientation])
            return found.copy() if found is image else found
    except (PictureError, MemoryError):  # no memory is no fault of the picture
        raise
    except Exception as error:
        raise PictureError(_reason(data, error)) from error


def note_under(note: str | None, rules: Decode) -> str | None:
    """What a header's note says where these rules decode the picture."""
    if note is None or rules.background == WHITE:
        return note
    on = "left out" if rules.background == "mask" else f"composited on {rules.background}"
    return note.replace(_ON_WHITE, f"alpha, {on}")


class _ByThread(threading.local):
    """In the place of Pillow's switch, which is one for the whole process: true in the threads that want it."""

    allowed = False

    def __bool__(self) -> bool:
        return self.allowed


_truncated = _ByThread()


@contextlib.contextmanager
def _truncation_allowed() -> Iterator[None]:
    """Let Pillow decode truncated files, in this thread and for this block; elsewhere they stay refused."""
    if not ImageFile.LOAD_TRUNCATED_IMAGES:
        ImageFile.LOAD_TRUNCATED_IMAGES = _truncated  # type: ignore[assignment]
    _truncated.allowed = True
    try:
        yield
    finally:
        _truncated.allowed = False


def _open(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data), formats=FORMATS)


def _orientation(image: Image.Image) -> int:
    if image.format == "PNG" and "exif" not in image.info:
        return 1  # getexif would decode the whole picture to look behind its pixels
    found = image.getexif().get(ORIENTATION, 1)
    return found if isinstance(found, int) and 1 <= found <= 8 else 1


def _has_alpha(image: Image.Image) -> bool:
    return image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info


def _is_16_bit(image: Image.Image) -> bool:
    return image.mode.startswith("I")


def _is_16_bit_colour(image: Image.Image) -> bool:
    tiles = getattr(image, "tile", [])
    return image.format == "PNG" and any(";16" in str(tile[3]) for tile in tiles) and not _is_16_bit(image)


def _is_animated(image: Image.Image) -> bool:
    return bool(getattr(image, "is_animated", False)) and image.format != "MPO"


def _note(image: Image.Image) -> str:
    notes = []
    if _is_animated(image):
        notes.append(f"animation, the first of {getattr(image, 'n_frames', 2)} frames is taken")
    if _is_16_bit(image):
        notes.append("16 bits per pixel, divided by 257")
    if _is_16_bit_colour(image):
        notes.append("16 bits per channel, of which the higher 8 are taken")
    if _has_alpha(image):
        notes.append(_ON_WHITE)
    if image.mode in ("CMYK", "YCbCr", "LAB", "HSV", "F"):
        notes.append(f"{image.mode}, converted to RGB")
    return "; ".join(notes)


def _to_rgb(image: Image.Image, rules: Decode, profile: bytes | None) -> Image.Image:
    if _is_16_bit(image):
        values: Any = np.asarray(image).astype(np.int64)
        if values.size and (values.min() < 0 or values.max() > 65535):
            raise PictureError(f"its pixels go from {values.min()} to {values.max()}, which isn't 16 bit")
        eight = Image.fromarray(((values + 128) // 257).astype(np.uint8))
        return _to_srgb(eight, profile) if profile else eight.convert("RGB")
    if image.mode == "F":
        raise PictureError("its pixels are floating point numbers, whose range isn't known; convert it first")
    if _has_alpha(image):
        rgba = image.convert("RGBA")
        if profile:
            alpha = rgba.getchannel("A")
            grey = image.mode in ("1", "L", "LA", "La")
            rgba = _to_srgb(rgba.getchannel("R") if grey else rgba.convert("RGB"), profile)
            rgba.putalpha(alpha)
        if rules.background == "mask":
            return rgba.convert("RGB")
        ground = Image.new("RGBA", rgba.size, (*rules.background, 255))
        return Image.alpha_composite(ground, rgba).convert("RGB")
    if profile:
        return _to_srgb(image, profile)
    return image if image.mode == "RGB" else image.convert("RGB")


def _to_srgb(image: Image.Image, profile: bytes) -> Image.Image:
    """The picture in sRGB, in which its numbers mean what the profile says of them.

    Raises:
        PictureError: the profile can't be used.
    """
    from PIL import ImageCms

    try:
        found = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        space = found.profile.xcolor_space
        wanted = _PROFILES.get(space)
        # A profile for colours also says what greys and palettes mean; one for grey says nothing of colours.
        if wanted == "RGB" and image.mode != "CMYK":
            image = image.convert("RGB")
        elif wanted == "L" and image.mode == "1":
            image = image.convert("L")
        if wanted is None or image.mode != wanted:
            raise PictureError(
                f"its ICC profile is for {space.strip()}, but its pixels are {image.mode}; {_WITHOUT_ICC}"
            )
        intent = ImageCms.Intent.PERCEPTUAL
        target = ImageCms.createProfile("sRGB")
        converted = ImageCms.profileToProfile(image, found, target, renderingIntent=intent, outputMode="RGB")
    except (ImageCms.PyCMSError, OSError) as error:
        raise PictureError(f"its ICC profile can't be used ({error}); {_WITHOUT_ICC}") from error
    assert converted is not None
    return converted


def _reason(data: bytes, error: BaseException) -> str:
    if not data:
        return "the file is empty"
    if isinstance(error, UnidentifiedImageError):
        return f"not a picture in a format that is read ({', '.join(FORMATS)})"
    return f"can't be decoded: {error or type(error).__name__}"
