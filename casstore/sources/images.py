"""Pictures: what their header says, and decoding them whole.

The rules, which are the default `decode` of every recipe: the EXIF orientation is applied; alpha is composited on
white; 16-bit grey is divided by 257; CMYK and other modes are converted; of an animation the first frame is taken; ICC
profiles are ignored; a truncated file is refused.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageFile, UnidentifiedImageError

from casstore.errors import PictureError

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif")
"""Endings, in lower case, of files that a scan takes for pictures; what they are is decided by their content."""

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")
"""What Pillow may decode for us: the common formats only, since each decoder is a place for faults."""

ORIENTATION = 0x0112  # EXIF 2.3
BACKGROUND = (255, 255, 255)

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


def decode(data: bytes) -> Image.Image:
    """The upright picture in RGB.

    Raises:
        PictureError: it can't be decoded whole; the message says why.
    """
    if ImageFile.LOAD_TRUNCATED_IMAGES:
        raise PictureError("PIL.ImageFile.LOAD_TRUNCATED_IMAGES is set, which would make pictures up; unset it")
    try:
        with _open(data) as image:
            orientation = _orientation(image)  # before loading, as read_header does
            image.load()
            found = _to_rgb(image)
            if orientation in _UPRIGHT and image.format != "TIFF":  # Pillow turns a TIFF when it loads it
                return found.transpose(_UPRIGHT[orientation])
            return found.copy() if found is image else found
    except (PictureError, MemoryError):  # no memory is no fault of the picture
        raise
    except Exception as error:
        raise PictureError(_reason(data, error)) from error


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


def _note(image: Image.Image) -> str:
    notes = []
    if getattr(image, "is_animated", False) and image.format != "MPO":
        notes.append(f"animation, the first of {getattr(image, 'n_frames', 2)} frames is taken")
    if _is_16_bit(image):
        notes.append("16 bits per pixel, divided by 257")
    if _is_16_bit_colour(image):
        notes.append("16 bits per channel, of which the higher 8 are taken")
    if _has_alpha(image):
        notes.append("alpha, composited on white")
    if image.mode in ("CMYK", "YCbCr", "LAB", "HSV", "F"):
        notes.append(f"{image.mode}, converted to RGB")
    return "; ".join(notes)


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if _is_16_bit(image):
        values: Any = np.asarray(image).astype(np.int64)
        if values.size and (values.min() < 0 or values.max() > 65535):
            raise PictureError(f"its pixels go from {values.min()} to {values.max()}, which isn't 16 bit")
        return Image.fromarray(((values + 128) // 257).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise PictureError("its pixels are floating point numbers, whose range isn't known; convert it first")
    if _has_alpha(image):
        rgba = image.convert("RGBA")
        ground = Image.new("RGBA", rgba.size, (*BACKGROUND, 255))
        return Image.alpha_composite(ground, rgba).convert("RGB")
    return image.convert("RGB")


def _reason(data: bytes, error: BaseException) -> str:
    if not data:
        return "the file is empty"
    if isinstance(error, UnidentifiedImageError):
        return f"not a picture in a format that is read ({', '.join(FORMATS)})"
    return f"can't be decoded: {error or type(error).__name__}"
