"""What a value stands for under a role: the one rule for keys, `store.get` and `store.inputs`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from casstore.errors import UsageError
from casstore.identity.digests import text_digest
from casstore.model import Content

TEXT_ROLES = frozenset({"text", "caption", "prompt"})
"""The roles under which a plain string is a text; under any other it is a path."""


class Text(str):
    """A string that is a text, whatever its role: `casstore.Text("a red cat")`."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class FilePath:
    """A value that names a file, which nobody has read yet."""

    path: str


def content_of_value(role: str, value: Any) -> Content | FilePath | None:
    """What a value stands for under a role.

    Args:
        role: decides what a plain string is.
        value: a path object: a file; a string: a text under the roles text, caption and prompt, else a path;
            `casstore.Text`, or bytes in UTF-8: a text; a tensor or an array: itself; None: nothing.

    Raises:
        UsageError: it is nothing of the kind; the message names the role.
    """
    if value is None or isinstance(value, (Content, FilePath)):
        return value
    if isinstance(value, str):
        return text_content(value) if isinstance(value, Text) or role in TEXT_ROLES else FilePath(value)
    if isinstance(value, os.PathLike):
        return FilePath(os.fsdecode(value))
    if isinstance(value, (bytes, bytearray)):
        try:
            return text_content(bytes(value).decode("utf-8"))
        except UnicodeDecodeError as error:
            raise UsageError(
                f"the bytes under {role!r} aren't UTF-8 ({error}); decode them, or give an array for other data"
            ) from None
    from casstore.identity.arrays import array_content, is_tensor  # NumPy: only for those who come with arrays

    if is_tensor(value):
        return array_content(value, role)
    raise UsageError(
        f"{role!r} is of type {type(value).__name__}; give a path, a text (casstore.Text), a tensor or array, or None"
    )


def text_content(text: str) -> Content:
    """The content that a text is: exactly this string, blanks, line ends and all."""
    plain = str(text)
    return Content("text", text_digest(plain), len(plain.encode()), text=plain)
