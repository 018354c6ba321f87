"""Digests: their values are fixed for ever, and those of one kind never stand for another."""

from __future__ import annotations

from typing import Any

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from casstore.errors import UsageError
from casstore.identity.digests import file_digest, json_digest, plain_digest, text_digest


def test_the_digest_of_an_empty_file_is_the_published_one() -> None:
    """A file's digest is plain BLAKE3: for no bytes the value of the official test vectors."""
    assert file_digest(b"").hex() == "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"


@given(st.binary())
def test_a_file_digest_is_plain_blake3(data: bytes) -> None:
    """Bytes and a view of them have the digest that b3sum prints."""
    assert file_digest(data) == file_digest(memoryview(data)) == blake3(data).digest()


@given(st.text())
def test_a_text_digest_is_blake3_in_its_own_context(text: str) -> None:
    """A text's digest is the derive-key BLAKE3 of exactly its UTF-8 bytes."""
    assert text_digest(text) == blake3(text.encode(), derive_key_context="casstore text 1").digest()


@given(st.text())
def test_a_plain_digest_is_blake3_of_the_utf_8(text: str) -> None:
    """The name of an interned row is plain BLAKE3 of its text."""
    assert plain_digest(text) == blake3(text.encode()).digest()


@pytest.mark.parametrize(("value", "text"), [({"b": 1.0, "a": [True]}, '{"a":[true],"b":1}'), ("ü", '"ü"')])
def test_a_json_digest_is_blake3_of_canonical_text(value: Any, text: str) -> None:
    """A value's digest is the derive-key BLAKE3 of its canonical JSON in UTF-8."""
    assert json_digest("a context", value) == blake3(text.encode(), derive_key_context="a context").digest()


@given(st.text())
def test_a_text_is_not_a_file_of_the_same_bytes(text: str) -> None:
    """The digest of a text never stands for a file with these bytes."""
    assert text_digest(text) != file_digest(text.encode())


def test_json_digests_of_different_contexts_differ() -> None:
    """One value hashed as two kinds of thing gives two digests."""
    assert json_digest("a", 1) != json_digest("b", 1)


def test_a_text_that_is_not_unicode_has_no_digest() -> None:
    """A lone surrogate has no UTF-8 form and is refused."""
    with pytest.raises(UsageError, match="Unicode"):
        text_digest("a \ud800")
