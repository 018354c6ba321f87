"""Pictures: what the header says, and decoding whole or not at all."""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import python
from PIL import Image, ImageCms, ImageFile

import casstore
from casstore.errors import PictureError
from casstore.identity.decoding import Decode, upright_under
from casstore.sources import images
from casstore.sources.images import decode, note_under, read_header
from casstore.sources.read import picture_content

SIZE = (48, 32)  # width, height


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    """A picture as the bytes of a file."""
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def motif(mode: str = "RGB") -> Image.Image:
    """A smooth picture without symmetry."""
    coarse = np.random.default_rng(7).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize(SIZE, Image.Resampling.BICUBIC).convert(mode)


def png(header: bytes, rows: bytes) -> bytes:
    """A PNG file made by hand."""
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    parts = (struct.pack(">I", len(v)) + k + v + struct.pack(">I", zlib.crc32(k + v)) for k, v in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def frames() -> list[Image.Image]:
    return [Image.new("RGB", SIZE, colour) for colour in ("red", "lime", "blue")]


def pixels(data: bytes) -> np.ndarray[Any, Any]:
    """What is decoded, after a look that it is RGB."""
    image = decode(data)
    assert image.mode == "RGB"
    return np.asarray(image)


@cache
def examples() -> dict[str, bytes]:
    """{kind: bytes} of one small file of each kind that is read."""
    first, *others = frames()
    exif = Image.Exif()
    exif[0x0112], exif[0x010F] = 6, "a camera"
    return {
        "jpeg": saved(motif(), "JPEG"),
        "progressive": saved(motif(), "JPEG", progressive=True),
        "exif": saved(motif(), "JPEG", exif=exif),
        "cmyk": saved(motif("CMYK"), "JPEG"),
        "png": saved(motif(), "PNG"),
        "png-exif": saved(motif(), "PNG", exif=exif),
        "palette": saved(motif("P"), "PNG", transparency=3),
        "webp": saved(motif(), "WEBP"),
        "gif": saved(motif(), "GIF"),
        "bmp": saved(motif(), "BMP"),
        "tiff": saved(motif(), "TIFF"),
        "avif": saved(motif(), "AVIF"),
        "animated-gif": saved(first, "GIF", save_all=True, append_images=others),
        "animated-webp": saved(first, "WEBP", save_all=True, append_images=others, lossless=True),
        "animated-png": saved(first, "PNG", save_all=True, append_images=others),
    }


KINDS = ["jpeg", "progressive", "exif", "cmyk", "png", "png-exif", "palette", "webp", "gif", "bmp", "tiff", "avif"]
ANIMATED = ["animated-gif", "animated-webp", "animated-png"]


def read_all(data: bytes) -> np.ndarray[Any, Any] | None:
    """The pixels, or None where a PictureError says that there are none; any other error comes through."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's own, about what it skipped
        try:
            read_header(data)
            return np.asarray(decode(data))
        except PictureError:
            return None


# -- every kind ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["jpeg", "png", "webp"])
def test_any_kind_can_be_the_first_picture_of_a_process(tmp_path: Path, kind: str) -> None:
    """Each format is read by a process that has read no other picture before, and so loaded no other decoder."""
    (tmp_path / "file").write_bytes(examples()[kind])
    code = "import sys; from casstore.sources.images import decode; print(decode(open(sys.argv[1], 'rb').read()).mode)"
    done = python("-c", code, tmp_path / "file")
    assert (done.stdout, done.stderr) == (b"RGB\n", b"")


@pytest.mark.parametrize("kind", KINDS + ANIMATED)
def test_the_header_tells_the_decoded_size(kind: str) -> None:
    """The size that planning goes by is the size that decoding gives."""
    data = examples()[kind]
    assert picture_content(data).upright == pixels(data).shape[:2]


@pytest.mark.parametrize("kind", KINDS)
def test_looking_at_the_header_decodes_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """read_header loads no pixels, so that a scan costs the reading and not the decoding."""
    data = examples()[kind]
    decode(data)  # decoders are loaded now

    def load(*_: object) -> None:
        raise AssertionError("the pixels were decoded")

    for kind_of_file in [ImageFile.ImageFile, *ImageFile.ImageFile.__subclasses__()]:
        monkeypatch.setattr(kind_of_file, "load", load)
    assert read_header(data).width in SIZE


# -- broken files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.9, -1, -2])
def test_a_truncated_jpeg_is_refused(kept: float) -> None:
    """A JPEG cut at 10, 50 or 90 %, or by its last bytes, isn't decoded."""
    data = saved(motif().resize((400, 300)), "JPEG")
    with pytest.raises(PictureError, match="truncated"):
        decode(data[: int(kept) if kept < 0 else int(len(data) * kept)])


@pytest.mark.parametrize("kind", KINDS + ANIMATED)
def test_a_file_cut_anywhere_is_refused_or_whole(kind: str) -> None:
    """No prefix of a file gives a partial picture: it is refused, or all pixels are those of the whole file."""
    data = examples()[kind]
    whole = pixels(data)

    @settings(max_examples=60)
    @given(st.integers(0, len(data) - 1))
    def check(cut: int) -> None:
        found = read_all(data[:cut])
        assert found is None or np.array_equal(found, whole)

    check()


@pytest.mark.parametrize("kind", KINDS + ANIMATED)
def test_a_damaged_file_is_refused_or_decoded(kind: str) -> None:
    """Whatever bytes are overwritten, the only error is PictureError, so that one bad file can't end a scan."""
    data = examples()[kind]

    @settings(max_examples=60)
    @given(st.lists(st.tuples(st.integers(0, len(data) - 1), st.integers(0, 255)), min_size=1, max_size=5))
    def check(changes: list[tuple[int, int]]) -> None:
        damaged = bytearray(data)
        for place, value in changes:
            damaged[place] = value
        read_all(bytes(damaged))

    check()


def test_a_damaged_avif_header_is_refused() -> None:
    """An AVIF whose item table is broken is a PictureError like any other."""
    data = examples()["avif"].replace(b"iloc", b"xloc")
    with pytest.raises(PictureError):
        read_header(data)


@pytest.mark.parametrize(
    ("data", "words"),
    [(b"", "empty"), (b"a red cat\n", "not a picture"), (b"%PDF-1.7", "not a picture"), (b"\xff\xd8\xff", " ")],
    ids=["empty", "text", "pdf", "three-bytes"],
)
def test_a_file_that_is_no_picture_has_a_hash_and_a_note(data: bytes, words: str) -> None:
    """A refused header is a note of the content, not an error; decoding raises PictureError."""
    content = picture_content(data)
    assert (content.refused, content.nbytes) == (True, len(data))
    with pytest.raises(PictureError, match=words):
        decode(data)
    assert content.note is not None and words in content.note


def _huge(kind: str) -> bytes:
    """A small file whose header claims 60000 x 60000 pixels."""
    if kind == "png":
        return png(struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0), bytes(1000))
    data, at, layout = {"gif": ("gif", 6, "<HH"), "bmp": ("bmp", 18, "<ii")}[kind]
    found = bytearray(examples()[data])
    struct.pack_into(layout, found, at, 60000, 60000)
    return bytes(found)


@pytest.mark.parametrize("kind", ["png", "gif", "bmp"])
@pytest.mark.parametrize("function", [read_header, decode])
def test_a_header_that_claims_too_much_is_refused_before_any_allocation(
    kind: str, function: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """60000 x 60000 pixels are refused by the header alone; nothing is decoded or allocated."""

    def load(*_: object) -> None:
        raise AssertionError("decoding began")

    monkeypatch.setattr(ImageFile.ImageFile, "load", load)
    monkeypatch.setattr(ImageFile.ImageFile, "load_prepare", load)
    with pytest.raises(PictureError, match="decompression bomb"):
        function(_huge(kind))


def test_a_process_that_lets_truncated_pictures_pass_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With Pillow's LOAD_TRUNCATED_IMAGES set nothing is decoded, since it would make pixels up."""
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    with pytest.raises(PictureError, match="LOAD_TRUNCATED_IMAGES"):
        decode(examples()["png"])


def test_the_content_decides_what_a_file_is(store: casstore.Store, tmp_path: Path) -> None:
    """A GIF named .png is read as the GIF that it is (case T32)."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.png").write_bytes(examples()["animated-gif"])
    (row,) = store.scan(tmp_path / "data")
    assert row.content is not None and (row.content.width, row.content.height) == SIZE
    assert "first of 3 frames" in (row.content.note or "")


# -- conversions -----------------------------------------------------------------------------------------------------


def test_16_bit_grey_is_divided_by_257() -> None:
    """Every one of the 65,536 grey values becomes the nearest of the 256, and the note says so."""
    values = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    data = saved(Image.fromarray(values), "PNG")
    wanted = np.rint(values / 257).astype(np.uint8)
    np.testing.assert_array_equal(pixels(data), np.dstack([wanted] * 3))
    assert "16 bit" in read_header(data).note


@pytest.mark.parametrize(("colour_type", "channels"), [(0, 1), (2, 3), (4, 2), (6, 4)])
def test_16_bits_are_noted_in_every_colour_type(colour_type: int, channels: int) -> None:
    """A 16-bit PNG loses bits whether it is grey, RGB or has alpha: the note says so."""
    row = b"\0" + b"\xff\xff" * 2 * channels
    data = png(struct.pack(">IIBBBBB", 2, 2, 16, colour_type, 0, 0, 0), row * 2)  # Pillow can't write them
    assert "16 bit" in read_header(data).note


def test_cmyk_is_converted_with_a_note() -> None:
    """A CMYK JPEG is decoded as Pillow converts it, ICC profiles ignored, and the note names CMYK."""
    data = examples()["cmyk"]
    np.testing.assert_array_equal(pixels(data), np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))
    assert "CMYK" in read_header(data).note


@pytest.mark.parametrize("kind", ANIMATED)
def test_the_first_frame_of_an_animation_is_taken_with_a_note(kind: str) -> None:
    """Of three frames, red, green and blue, the red one is decoded, and the note says that there are three."""
    assert {tuple(p) for p in pixels(examples()[kind]).reshape(-1, 3)} == {(255, 0, 0)}
    assert "first of 3 frames" in read_header(examples()[kind]).note


def _transparent(mode: str, hidden: int) -> Image.Image:
    """One row: a transparent pixel over which `hidden` is written, an opaque one of value 40."""
    if mode == "P":
        image = Image.new("P", (2, 1))
        image.putpalette([hidden] * 3 + [40] * 3)
        image.putdata([0, 1])
        image.info["transparency"] = 0
        return image
    if mode in ("RGB", "L"):
        image = Image.new(mode, (2, 1), (40, 40, 40) if mode == "RGB" else 40)
        image.putpixel((0, 0), (hidden,) * 3 if mode == "RGB" else hidden)
        image.info["transparency"] = (hidden,) * 3 if mode == "RGB" else hidden
        return image
    grey = np.array([[hidden, 40]], np.uint8)
    alpha = np.array([[0, 255]], np.uint8)
    return Image.fromarray(np.dstack([grey] * (len(mode) - 1) + [alpha]), mode)


@pytest.mark.filterwarnings("ignore:'mode' parameter:DeprecationWarning")
@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "RGB", "L"])
@pytest.mark.parametrize("hidden", [0, 7, 255])
def test_transparent_pixels_are_white_whatever_is_under_them(mode: str, hidden: int) -> None:
    """Alpha is composited on white: garbage under alpha 0 is never seen, opaque pixels stay; the note says so."""
    data = saved(_transparent(mode, hidden), "PNG")
    assert pixels(data)[0].tolist() == [[255] * 3, [40] * 3]
    assert "alpha" in read_header(data).note


def test_half_transparent_pixels_are_mixed_with_white() -> None:
    """A pixel of value v and alpha a becomes v a + 255 (1 - a), within one step of rounding."""
    values, alphas = (grid.astype(np.uint8) for grid in np.meshgrid(np.arange(256), np.arange(256)))
    data = saved(Image.fromarray(np.dstack([values] * 3 + [alphas])), "PNG")
    share = alphas / 255
    assert np.abs(pixels(data)[..., 0] - (values * share + 255 * (1 - share))).max() <= 1


@pytest.mark.parametrize("mode", ["1", "L", "P"])
def test_a_single_channel_picture_equals_its_rgb_copy(mode: str) -> None:
    """Black and white, grey and palette pictures decode to the same RGB pixels as their RGB copies (case T31)."""
    image = motif(mode)
    data, copy = saved(image, "PNG"), saved(image.convert("RGB"), "PNG")
    np.testing.assert_array_equal(pixels(data), pixels(copy))
    assert picture_content(data).digest != picture_content(copy).digest


def test_a_plain_picture_has_no_note() -> None:
    """What is decoded as it is needs no note."""
    assert read_header(examples()["png"]).note == read_header(examples()["jpeg"]).note == ""


# -- orientation -----------------------------------------------------------------------------------------------------

# EXIF 2.3, tag 0x0112: how the pixels of an upright picture are stored under each orientation.
STORED = {
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}
LOSSLESS = {"PNG": {}, "TIFF": {}, "WEBP": {"lossless": True}}


def turned(orientation: int, kind: str, **options: Any) -> bytes:
    """A file of the motif with this orientation, so that it looks upright when that is applied."""
    turn = STORED[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    return saved(motif() if turn is None else motif().transpose(turn), kind, exif=exif, **options)


@pytest.mark.parametrize("orientation", STORED)
@pytest.mark.parametrize("kind", LOSSLESS)
def test_all_orientations_decode_to_the_same_upright_picture(kind: str, orientation: int) -> None:
    """The eight orientations of one picture give the same pixels (case T28)."""
    np.testing.assert_array_equal(pixels(turned(orientation, kind, **LOSSLESS[kind])), np.asarray(motif()))


@pytest.mark.parametrize("orientation", STORED)
def test_all_orientations_of_a_jpeg_decode_to_nearly_the_same_picture(orientation: int) -> None:
    """The same for JPEG, within what its compression costs."""
    found = pixels(turned(orientation, "JPEG", quality=95, subsampling=0)).astype(int)
    assert np.abs(found - np.asarray(motif())).mean() < 3


@pytest.mark.parametrize("orientation", STORED)
@pytest.mark.parametrize("kind", ["JPEG", *LOSSLESS])
def test_a_content_knows_its_upright_size(kind: str, orientation: int) -> None:
    """Planning sees the size after the orientation, in every format."""
    assert picture_content(turned(orientation, kind)).upright == (SIZE[1], SIZE[0])


def test_a_stripped_tag_is_other_content() -> None:
    """Taking the orientation tag away without touching pixels changes the digest (case T28)."""
    data = turned(6, "JPEG")
    plain = saved(motif().transpose(Image.Transpose.ROTATE_90), "JPEG")
    assert picture_content(data).digest != picture_content(plain).digest


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_an_orientation_that_does_not_exist_is_ignored(orientation: int) -> None:
    """Values outside 1 to 8 turn nothing."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = saved(motif(), "PNG", exif=exif)
    np.testing.assert_array_equal(pixels(data), np.asarray(motif()))
    assert read_header(data).orientation == 1


# -- other rules -----------------------------------------------------------------------------------------------------

GREEN = (0, 255, 0)


def under(data: bytes, **rules: Any) -> np.ndarray[Any, Any]:
    """What is decoded by other rules than the default."""
    image = decode(data, Decode(**rules))
    assert image.mode == "RGB"
    return np.asarray(image)


@pytest.mark.parametrize("orientation", STORED)
@pytest.mark.parametrize("kind", LOSSLESS)
def test_an_orientation_can_be_ignored(kind: str, orientation: int) -> None:
    """With orientation="ignore" the pixels are those in the file, in every format, and so is the size."""
    data, turn = turned(orientation, kind, **LOSSLESS[kind]), STORED[orientation]
    wanted = motif() if turn is None else motif().transpose(turn)
    np.testing.assert_array_equal(under(data, orientation="ignore"), np.asarray(wanted))
    assert upright_under(picture_content(data), Decode(orientation="ignore")) == (wanted.height, wanted.width)


@pytest.mark.filterwarnings("ignore:'mode' parameter:DeprecationWarning")
@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "RGB", "L"])
def test_alpha_is_composited_on_the_background(mode: str) -> None:
    """A transparent pixel has the background's colour, an opaque one its own."""
    data = saved(_transparent(mode, 7), "PNG")
    assert under(data, background=GREEN)[0].tolist() == [list(GREEN), [40] * 3]


@pytest.mark.filterwarnings("ignore:'mode' parameter:DeprecationWarning")
@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "RGB", "L"])
def test_as_a_mask_alpha_changes_no_pixel(mode: str) -> None:
    """With background="mask" a pixel is what is stored, under alpha too."""
    data = saved(_transparent(mode, 7), "PNG")
    assert under(data, background="mask")[0].tolist() == [[7] * 3, [40] * 3]


def test_a_half_transparent_pixel_keeps_its_colour_as_a_mask() -> None:
    """No share of any alpha is mixed in."""
    values, alphas = (grid.astype(np.uint8) for grid in np.meshgrid(np.arange(256), np.arange(256)))
    data = saved(Image.fromarray(np.dstack([values] * 3 + [alphas])), "PNG")
    np.testing.assert_array_equal(under(data, background="mask")[..., 0], values)


@pytest.mark.parametrize(
    ("background", "told"), [((255, 255, 255), "composited on white"), (GREEN, "on (0, 255, 0)"), ("mask", "left out")]
)
def test_a_note_says_what_becomes_of_alpha(background: Any, told: str) -> None:
    """The note of a header is that of the default rules; under others it says what they do."""
    note = read_header(saved(motif("RGBA"), "PNG")).note
    assert told in (note_under(note, Decode(background=background)) or "")


@pytest.mark.parametrize("kind", ANIMATED)
def test_an_animation_can_be_refused(kind: str) -> None:
    """With frames="refuse" several frames are an error that counts them, and one frame isn't."""
    with pytest.raises(PictureError, match="animation of 3 frames"):
        under(examples()[kind], frames="refuse")
    np.testing.assert_array_equal(under(examples()["gif"], frames="refuse"), pixels(examples()["gif"]))


def profile(space: str) -> bytes:
    """An ICC profile as bytes: that of sRGB, of an sRGB with red and blue exchanged, or of a linear grey."""
    found = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    if space == "swapped":
        red, blue = found.index(b"rXYZ"), found.index(b"bXYZ")
        found[red : red + 4], found[blue : blue + 4] = b"bXYZ", b"rXYZ"
    elif space == "GRAY":
        found[16:20] = b"GRAY"
        tag = found.index(b"rTRC")
        found[tag : tag + 4] = b"kTRC"
    return bytes(found)


@pytest.mark.parametrize("mode", ["RGB", "P", "RGBA"])
def test_an_embedded_profile_is_converted_to_srgb(mode: str) -> None:
    """What a profile calls blue becomes the blue of sRGB: here one whose red and blue are exchanged."""
    image = Image.new("RGBA", (4, 4), (255, 0, 0, 255)).convert(mode)
    found = under(saved(image, "PNG", icc_profile=profile("swapped")), icc="srgb")
    assert np.abs(found.astype(int) - [0, 0, 255]).max() <= 3


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP", "AVIF"])
def test_a_profile_is_found_in_every_format(kind: str) -> None:
    """Red becomes blue under the exchanged profile, wherever the format keeps it, and stays red without the rule."""
    data = saved(Image.new("RGB", (8, 8), (250, 10, 10)), kind, icc_profile=profile("swapped"))
    assert under(data, icc="srgb")[4, 4].argmax() == 2 and pixels(data)[4, 4].argmax() == 0


def test_a_profile_of_srgb_changes_next_to_nothing() -> None:
    """Converting sRGB to sRGB costs a step of rounding at most."""
    found = under(saved(motif(), "PNG", icc_profile=profile("sRGB")), icc="srgb")
    assert np.abs(found.astype(int) - np.asarray(motif())).max() <= 1


def test_alpha_is_composited_after_the_colours_are_converted() -> None:
    """The background is in sRGB: the profile of the picture doesn't reach it."""
    clear = saved(Image.new("RGBA", (2, 2), (255, 0, 0, 0)), "PNG", icc_profile=profile("swapped"))
    assert under(clear, icc="srgb", background=(250, 0, 0))[0, 0].tolist() == [250, 0, 0]


@pytest.mark.parametrize("mode", ["L", "LA", "1", "I;16"])
def test_a_grey_picture_with_a_profile_stays_grey(mode: str) -> None:
    """A profile for colours says what the greys mean too, and so does one for grey, at 16 bit as well."""
    image = Image.new(mode, (2, 2), {"LA": (128, 255), "1": 1, "I;16": 32768}.get(mode, 128))
    for space in ("sRGB", "GRAY"):
        (pixel,) = {tuple(p) for p in under(saved(image, "PNG", icc_profile=profile(space)), icc="srgb").reshape(-1, 3)}
        assert max(pixel) - min(pixel) <= 1 and pixel[0] > 100


@pytest.mark.parametrize(
    ("mode", "icc"), [("RGB", b"no profile"), ("RGB", "GRAY"), ("CMYK", "sRGB")], ids=["garbage", "grey", "no CMYK"]
)
def test_a_profile_that_cannot_be_used_is_refused(mode: str, icc: Any) -> None:
    """Garbage, and a profile of other colours than the picture's, are an error; without the rule they are ignored."""
    data = saved(motif(mode), "JPEG", icc_profile=icc if isinstance(icc, bytes) else profile(icc))
    with pytest.raises(PictureError, match="ICC profile"):
        under(data, icc="srgb")
    assert pixels(data).shape == (32, 48, 3)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_a_truncated_file_can_be_allowed(kind: str) -> None:
    """With truncated="allow" the part that is there is as in the whole file, and the size is that of the header."""
    image = motif().resize((400, 300))
    data = saved(image, kind)
    found = under(data[: len(data) // 2], truncated="allow")
    assert found.shape == (300, 400, 3)
    np.testing.assert_array_equal(found[:64], pixels(data)[:64])


def test_allowing_truncated_files_is_for_those_who_asked() -> None:
    """While one thread decodes a truncated file, another refuses it, and so does this one afterwards."""
    data = saved(motif().resize((400, 300)), "JPEG")[:2000]
    with images._truncation_allowed(), ThreadPoolExecutor(1) as pool:
        assert isinstance(pool.submit(decode, data).exception(), PictureError)
        assert Image.open(io.BytesIO(data)).convert("RGB").size == (400, 300)
    with pytest.raises(PictureError, match="truncated"):
        decode(data)


def test_what_is_no_picture_is_refused_though_truncation_is_allowed() -> None:
    """Nothing is made up of nothing."""
    for data in (b"", b"text", examples()["png"][:20]):
        with pytest.raises(PictureError):
            under(data, truncated="allow")


def test_the_rules_of_a_recipe_reach_the_encoder(store: casstore.Store, tmp_path: Path) -> None:
    """A build decodes as the recipe says: the encoder sees the background, and two backgrounds are two results."""
    (tmp_path / "data").mkdir()
    Image.new("RGBA", (4, 4), (9, 9, 9, 0)).save(tmp_path / "data" / "a.png")
    inputs = store.scan(tmp_path / "data")
    for background in ((255, 255, 255), GREEN):
        recipe = casstore.Recipe("r", code=1, decode=Decode(background=background))
        plan = store.plan(inputs, recipe)
        store.build(plan, lambda items: [{"pixel": np.asarray(item.image)[0, 0]} for item in items])
        found = store.get(tmp_path / "data" / "a.png", recipe, as_numpy=True)
        assert found["pixel"].tolist() == list(background)
