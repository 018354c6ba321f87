"""Keys: equal if and only if everything that decides about the tensors is."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xxhash
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

import casstore
from casstore.errors import SourceNotFoundError, UsageError
from casstore.identity.keys import Key
from casstore.identity.recipes import Recipe
from casstore.model import Content

VAE = Recipe("vae", code=1)
PARTS = st.tuples(
    st.sampled_from([("file", b"\1" * 32), ("file", b"\2" * 32), ("text", b"\1" * 32)]),
    st.sampled_from([VAE, Recipe("vae", code=2)]),
    st.sampled_from(["", "64x128", "128x64"]),
    st.integers(0, 2),
    st.sampled_from(["{}", '{"a":1}', '{"a":true}']),
)


def key_of(parts: Any, nbytes: int = 0) -> Key:
    (kind, digest), recipe, resolution, variation, params = parts
    return Key(Content(kind, digest, nbytes), recipe, resolution, variation, params)


@given(PARTS, PARTS)
def test_keys_are_equal_if_and_only_if_their_parts_are(one: Any, other: Any) -> None:
    """Content, recipe, resolution, variation and params decide, and equality, hash and digest agree on it."""
    first, second = key_of(one, nbytes=1), key_of(other, nbytes=2)
    assert (first == second) == (first.digest == second.digest) == (one == other)
    assert first != second or hash(first) == hash(second)


def test_a_key_digest_is_blake3_of_its_canonical_parts() -> None:
    """The digest is the derive-key BLAKE3 of (kind, content, inputs, recipe, resolution, variation, params)."""
    content = blake3(b"pixels").hexdigest()
    key = Key.content(
        Content("file", bytes.fromhex(content), 6), VAE, resolution="64x128", variation=3, params={"a": 1}
    )
    text = f'["file","{content}","{content}","{VAE.digest.hex()}","64x128",3,"{{\\"a\\":1}}"]'
    assert key.digest == blake3(text.encode(), derive_key_context="casstore key 1").digest()


def test_what_is_known_about_a_content_is_not_part_of_its_key() -> None:
    """Sizes and notes are facts about the bytes: a key is the same before and after somebody looked."""
    known = Content("file", b"\1" * 32, 9, width=3, height=2, orientation=6, note="CMYK")
    assert Key.content(known, VAE) == Key.content(Content("file", b"\1" * 32, 9), VAE)


def test_params_are_compared_as_values() -> None:
    """Params that are equal as JSON make the same key, whatever their order and number types."""
    one, other = ({"a": 1.0, "b": 2}, {"b": 2, "a": 1})
    assert Key.text("x", VAE, params=one) == Key.text("x", VAE, params=other)


def test_params_that_are_not_json_are_refused_by_place() -> None:
    """A param without a JSON form is a UsageError that names it."""
    with pytest.raises(UsageError, match=r"params\.crop"):
        Key.text("x", VAE, params={"crop": object()})


def test_copies_of_a_file_have_one_key(tmp_path: Path) -> None:
    """The key of a file is that of its bytes: path and times don't matter, and str or Path neither."""
    file = tmp_path / "a.png"
    file.write_bytes(b"pixels")
    copy = shutil.copy(file, tmp_path / "b.jpg")
    assert Key.file(file, VAE) == Key.file(str(copy), VAE)
    assert Key.file(file, VAE).primary == Content("file", blake3(b"pixels").digest(), 6)


def test_an_edited_file_has_another_key(tmp_path: Path) -> None:
    """A file is read anew for every key, so that an edit can't be missed."""
    file = tmp_path / "a.png"
    file.write_bytes(b"pixels")
    before = Key.file(file, VAE)
    file.write_bytes(b"pixelS")
    assert Key.file(file, VAE) != before


@pytest.mark.parametrize("other", ["a red cat ", "a red  cat", "a red cat\n", "\ufeffa red cat", "A red cat", ""])
def test_a_text_key_is_that_of_the_exact_string(other: str) -> None:
    """Blanks, line ends, marks and case all make another text."""
    assert Key.text("a red cat", VAE) != Key.text(other, VAE)


@pytest.mark.parametrize(("one", "other"), [("a\nb", "a\r\nb"), ("ü", "u\u0308")], ids=["line ends", "normal forms"])
def test_texts_that_look_alike_have_different_keys(one: str, other: str) -> None:
    """An encoder could tell them apart, so the key does."""
    assert Key.text(one, VAE) != Key.text(other, VAE)


def test_a_text_is_not_a_file_of_the_same_bytes(tmp_path: Path) -> None:
    """A caption and a file that holds it are different inputs."""
    file = tmp_path / "caption.txt"
    file.write_bytes(b"a red cat")
    assert Key.file(file, VAE) != Key.text("a red cat", VAE)


@pytest.mark.parametrize("text", [b"a red cat", None, Path("a")], ids=repr)
def test_a_text_key_needs_a_string(text: Any) -> None:
    """Bytes aren't decoded on a guess."""
    with pytest.raises(UsageError, match="needs a str"):
        Key.text(text, VAE)


@pytest.mark.parametrize("resolution", ["1024", "64X64", "64x", "0x64", "64x64 ", "-1x64", "64x64x3", 1024, 0, False])
def test_a_resolution_that_is_not_h_x_w_is_refused(resolution: Any) -> None:
    """A key has one fixed resolution or none; nothing else is guessed at or taken for the full size."""
    with pytest.raises(UsageError, match="resolution"):
        Key.content(Content("file", b"\1" * 32, 6), VAE, resolution=resolution)


@pytest.mark.parametrize("variation", [-1, True, False, 1.0, "1", None], ids=repr)
def test_a_variation_that_does_not_count_from_0_is_refused(variation: Any) -> None:
    """Negative numbers, bools and everything that isn't an int are refused."""
    with pytest.raises(UsageError, match="variation"):
        Key.text("x", VAE, variation=variation)


@pytest.mark.parametrize("name", ["missing.png", "", "nul\0.png"], ids=["missing", "a folder", "a name with NUL"])
def test_a_file_that_cannot_be_read_is_source_not_found(tmp_path: Path, name: str) -> None:
    """Whatever keeps a file from being read, the error is a SourceNotFoundError that names the path."""
    with pytest.raises(SourceNotFoundError, match=str(tmp_path)):
        Key.file(tmp_path / name, VAE)


# -- arrays and several contents -------------------------------------------------------------------------------------


def test_an_array_key_is_that_of_its_dtype_shape_and_bytes() -> None:
    """The digest is the derive-key BLAKE3 of canonical (dtype, shape, XXH3-128 of the little-endian bytes)."""
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    text = f'["F32",[2,3],"{xxhash.xxh3_128_hexdigest(array.tobytes())}"]'
    assert Key.array(array, VAE).primary.digest == blake3(text.encode(), derive_key_context="casstore array 1").digest()


@given(st.sampled_from(["float32", "float16", "int64", "uint8", "bool"]), st.lists(st.integers(0, 5), max_size=3))
def test_equal_arrays_have_one_key_whatever_holds_them(dtype: str, shape: list[int]) -> None:
    """Strides, byte order and library don't matter; a tensor of torch and an array of NumPy are the same."""
    array = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    key = Key.array(array, VAE)
    big_endian = array.astype(array.dtype.newbyteorder(">"))
    assert key == Key.array(np.array(array, order="F"), VAE) == Key.array(big_endian, VAE)
    assert key == Key.array(torch.from_numpy(array), VAE)


@pytest.mark.parametrize(
    "other",
    [
        np.zeros((3, 2), np.float32),
        np.zeros((2, 3), np.int32),
        np.full((2, 3), -0.0, np.float32),
        torch.zeros(2, 3, dtype=torch.bfloat16),
    ],
    ids=["shape", "dtype", "bits", "bfloat16"],
)
def test_another_shape_dtype_or_bit_is_another_array(other: Any) -> None:
    """What an encoder could tell apart has another key; bfloat16 is a dtype like any."""
    assert Key.array(other, VAE) != Key.array(np.zeros((2, 3), np.float32), VAE)


@pytest.mark.parametrize(
    "value",
    [[1, 2], "text", np.array(["a"]), np.array([None]), np.ma.array([1])],
    ids=["list", "text", "texts", "objects", "masked"],
)
def test_what_is_no_array_of_numbers_has_no_array_key(value: Any) -> None:
    """It is a UsageError, not a digest of something else."""
    with pytest.raises(UsageError):
        Key.array(value, VAE)


def test_t66_str_and_utf8_bytes_are_one_text() -> None:
    """T66: a caption as str, as UTF-8 bytes and as casstore.Text has one key, that of `Key.text`."""
    key = Key.text("ein rötliches Tier", VAE)
    for value in ("ein rötliches Tier", "ein rötliches Tier".encode(), casstore.Text("ein rötliches Tier")):
        assert Key.of({"caption": value}, VAE) == key


@pytest.mark.parametrize("other", [b"\xef\xbb\xbfa\n", b"a\r\n", b"a\n ", b"a"])
def test_t66_marks_line_ends_and_blanks_are_kept(other: bytes) -> None:
    """T66: the text is exactly what was given; only a caption reader takes BOMs or line ends away, before the key."""
    assert Key.of({"caption": other}, VAE) != Key.text("a\n", VAE)


def test_a_string_is_a_text_or_a_path_by_its_role(tmp_path: Path) -> None:
    """Under text, caption and prompt it is a text; elsewhere a path, unless it is a casstore.Text."""
    path = tmp_path / "a.png"
    path.write_bytes(b"pixels")
    for role in ("text", "caption", "prompt"):
        assert Key.of({role: str(path)}, VAE) == Key.text(str(path), VAE)
    assert Key.of({"image": str(path)}, VAE) == Key.of({"caption": path}, VAE) == Key.file(path, VAE)
    assert Key.of({"image": casstore.Text("x")}, VAE) == Key.text("x", VAE)


@pytest.mark.parametrize("value", [b"\xff", 7, ["a", "b"]], ids=repr)
def test_a_value_that_stands_for_nothing_is_refused_by_role(value: Any) -> None:
    """Bytes that aren't UTF-8, numbers and lists are a UsageError that names the role."""
    with pytest.raises(UsageError, match="'mask'"):
        Key.of({"image": casstore.Text("x"), "mask": value}, VAE)


def test_the_first_content_is_the_primary_and_an_absent_member_is_left_out() -> None:
    """With no member present the key is that of the primary alone; an absent primary is refused."""
    assert Key.of({"caption": "a", "mask": None}, VAE) == Key.text("a", VAE)
    assert Key.of({"caption": "a", "text": "b"}, VAE).primary == Key.text("a", VAE).primary
    for contents in ({"caption": None, "text": "b"}, {}):
        with pytest.raises(UsageError, match="primary"):
            Key.of(contents, VAE)


@given(st.permutations(["a", "b", "c"]), st.integers(0, 2))
def test_the_order_of_members_does_not_matter_but_their_roles_do(order: list[str], changed: int) -> None:
    """Members are a set under roles; another content under any of them makes another key."""
    members = {role: casstore.Text(role.upper()) for role in order}
    primary = {"text": "p"}
    key = Key.of(primary | dict(sorted(members.items())), VAE)
    assert Key.of(primary | members, VAE) == key
    assert Key.of(primary | members | {order[changed]: casstore.Text("other")}, VAE) != key
    swapped = members | {order[0]: members[order[1]], order[1]: members[order[0]]}
    assert Key.of(primary | swapped, VAE) != key


def test_a_key_shows_its_members() -> None:
    """What people read in messages names what the primary was encoded with."""
    key, mask = Key.of({"text": "p", "mask": casstore.Text("m")}, VAE), Key.text("m", VAE).primary.digest.hex()
    assert f" with mask {mask[:4]}..{mask[-2:]}, vae" in str(key)
    assert " with " not in str(Key.text("p", VAE))
