"""JSON with exactly one spelling per value, so that it can be hashed (RFC 8785, JSON Canonicalization Scheme)."""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from casstore.errors import UsageError

LARGEST_INTEGER = 2**53  # beyond it a double, and so most JSON readers, can't tell neighbours apart


@dataclass(frozen=True, slots=True)
class _Style:
    """How numbers and keys are spelled."""

    number: Callable[[int | float, str], str]
    key: Callable[[str], str]


def canonical(value: Any, what: str = "value") -> str:
    """The canonical JSON text of a value: RFC 8785, with keys in NFC.

    1.0 is written as 1 (but True as true). Tuples are written as lists.

    Args:
        value: None, bool, int, float, str, list, tuple or mapping with string keys, nested as you like.
        what: how error messages name the value.

    Raises:
        UsageError: something in it has no canonical JSON form; the message names where it is.
    """
    return _whole(value, what, _Style(_number, lambda key: unicodedata.normalize("NFC", key)))


def exact(value: Any, what: str = "value") -> str:
    """Like `canonical`, but 1.0 stays 1.0 and keys stay as they are, so that reading gives back what was written."""
    return _whole(value, what, _Style(_python_number, str))


def _whole(value: Any, what: str, style: _Style) -> str:
    try:
        return _write(value, what, style)
    except RecursionError:
        raise UsageError(f"{what} contains itself, or is nested more deeply than anything meant") from None


def _write(value: Any, where: str, style: _Style) -> str:
    if value is None or value is True or value is False:
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return _string(value, where)
    if isinstance(value, (int, float)):
        return style.number(value, where)
    if isinstance(value, Mapping):
        members: dict[str, Any] = {}
        for key, member in value.items():
            if not isinstance(key, str):
                raise UsageError(f"{where}: a key is {key!r}, of type {type(key).__name__}; JSON keys are strings")
            name = style.key(key)
            if name in members:
                raise UsageError(f"{where}: the key {name!r} stands there twice (once in another normal form)")
            members[name] = member
        parts = (
            f"{_string(name, where)}:{_write(members[name], f'{where}.{name}', style)}"
            for name in sorted(members, key=_utf16)
        )
        return "{" + ",".join(parts) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(_write(member, f"{where}[{i}]", style) for i, member in enumerate(value)) + "]"
    item = getattr(value, "item", None)
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == () and callable(item):
        plain = item()
        if type(plain).__module__ != "numpy":
            return _write(plain, where, style)
    raise UsageError(
        f"{where} is {value!r:.80}, of type {type(value).__name__}, which JSON can't hold; "
        "use numbers, strings, lists or dicts"
    )


def _utf16(name: str) -> bytes:
    return name.encode("utf-16-be", "surrogatepass")


def _string(value: str, where: str) -> str:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise UsageError(f"{where} is {value!r:.80}, which isn't valid Unicode") from None
    return json.dumps(value, ensure_ascii=False)


def _python_number(value: int | float, where: str) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"{where} is {value}, which JSON can't hold")
    if isinstance(value, int):
        if abs(value) >= 1 << 63:
            raise UsageError(f"{where} is an integer beyond 64 bits; use a string")
        return repr(int(value))
    return repr(float(value))


def _number(value: int | float, where: str) -> str:
    if isinstance(value, int):
        if abs(value) > LARGEST_INTEGER:
            raise UsageError(f"{where} is an integer beyond 2^53, where JSON numbers stop being exact; use a string")
        return repr(int(value))
    if not math.isfinite(value):
        raise UsageError(f"{where} is {value}, which JSON can't hold")
    if value == 0:
        return "0"
    # ECMAScript's Number::toString, from the digits and the exponent of Python's shortest repr (the same digits).
    mantissa, _, power = f"{float(value)!r}".lower().partition("e")
    sign = "-" if mantissa.startswith("-") else ""
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(power or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    count = len(digits)
    if count <= point <= 21:
        return sign + digits + "0" * (point - count)
    if 0 < point <= 21:
        return sign + digits[:point] + "." + digits[point:]
    if -6 < point <= 0:
        return sign + "0." + "0" * -point + digits
    exponent = f"{point - 1:+d}"
    return sign + digits[0] + ("." + digits[1:] if count > 1 else "") + "e" + exponent
