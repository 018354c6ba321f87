"""Digests: BLAKE3-256 decides identity; each kind of thing has its own derive-key context, so that no digest of one
kind can stand for another."""

from __future__ import annotations

import functools
from typing import Any

from blake3 import blake3

from casstore.errors import UsageError
from casstore.identity.canonical import canonical

TEXT_CONTEXT = "casstore text 1"
ARRAY_CONTEXT = "casstore array 1"
COMPOSITE_CONTEXT = "casstore composite 1"
KEY_CONTEXT = "casstore key 1"
RECIPE_CONTEXT = "casstore recipe 1"
WEIGHTS_CONTEXT = "casstore weights 1"
DRAW_CONTEXT = "casstore draw 1"


def file_digest(data: bytes | memoryview) -> bytes:
    """The digest of a file's content: plain BLAKE3 of its bytes (32 bytes), as `b3sum` prints it."""
    return blake3(data).digest()


def new_file_hasher() -> blake3:
    """`file_digest` piece by piece: `.update(bytes)`, `.digest()`."""
    return blake3()


def text_digest(text: str) -> bytes:
    """The digest (32 bytes) of the exact string that an encoder gets, in UTF-8."""
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError:
        raise UsageError(f"the text {text!r:.80} isn't valid Unicode, so it has no UTF-8 form") from None
    return blake3(data, derive_key_context=TEXT_CONTEXT).digest()


def json_digest(context: str, value: Any, what: str = "value") -> bytes:
    """The digest (32 bytes) of a value's canonical JSON in the given derive-key context."""
    return canonical_digest(context, canonical(value, what))


def canonical_digest(context: str, text: str) -> bytes:
    """The digest (32 bytes) of a text that is canonical JSON already, in the given derive-key context."""
    return blake3(text.encode(), derive_key_context=context).digest()


def plain_digest(text: str) -> bytes:
    """BLAKE3 (32 bytes) of a text in UTF-8: the name of interned rows."""
    return blake3(text.encode("utf-8", "surrogateescape")).digest()


repeated_digest = functools.lru_cache(maxsize=4096)(plain_digest)
"""`plain_digest` for texts that come again and again, such as layouts and values."""


def signed(value: int) -> int:
    """An unsigned 64-bit number as the signed integer of the same bits, which is what SQLite can hold."""
    return value - (1 << 64) if value >= 1 << 63 else value
