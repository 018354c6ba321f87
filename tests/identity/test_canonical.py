"""Canonical JSON: one spelling per value, and a refusal that names the place for what has none."""

from __future__ import annotations

import json
import struct
import unicodedata
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from casstore.errors import UsageError
from casstore.identity.canonical import LARGEST_INTEGER, canonical, exact

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-LARGEST_INTEGER, LARGEST_INTEGER)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
KEYS = st.text().map(lambda key: unicodedata.normalize("NFC", key))
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner), max_leaves=20)


def typed(value: Any) -> Any:
    """A form of a JSON value in which True, 1 and 1.0 differ, as do 0.0 and -0.0."""
    if isinstance(value, dict):
        return {key: typed(member) for key, member in value.items()}
    return [typed(member) for member in value] if isinstance(value, list) else repr(value)


@given(VALUES)
def test_reading_canonical_text_gives_the_value_back(value: Any) -> None:
    """Read as JSON with doubles for numbers, the text is the value, so different values have different texts."""
    assert json.loads(canonical(value), parse_int=float) == value


@given(VALUES)
def test_reading_exact_text_gives_the_types_back_too(value: Any) -> None:
    """`json.loads` undoes `exact` with ints, floats, bools and the sign of zero kept apart."""
    assert typed(json.loads(exact(value))) == typed(value)


@given(st.dictionaries(KEYS, SCALARS))
def test_the_order_of_insertion_does_not_matter(value: dict[str, Any]) -> None:
    """Equal dicts have equal texts, whatever order they were filled in."""
    assert canonical(dict(reversed(value.items()))) == canonical(value)


@pytest.mark.parametrize(
    ("bits", "text"),
    [  # RFC 8785, appendix B
        ("0000000000000000", "0"),
        ("8000000000000000", "0"),
        ("0000000000000001", "5e-324"),
        ("8000000000000001", "-5e-324"),
        ("7fefffffffffffff", "1.7976931348623157e+308"),
        ("ffefffffffffffff", "-1.7976931348623157e+308"),
        ("4340000000000000", "9007199254740992"),
        ("c340000000000000", "-9007199254740992"),
        ("4430000000000000", "295147905179352830000"),
        ("44b52d02c7e14af5", "9.999999999999997e+22"),
        ("44b52d02c7e14af6", "1e+23"),
        ("44b52d02c7e14af7", "1.0000000000000001e+23"),
        ("444b1ae4d6e2ef4e", "999999999999999700000"),
        ("444b1ae4d6e2ef4f", "999999999999999900000"),
        ("444b1ae4d6e2ef50", "1e+21"),
        ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
        ("3eb0c6f7a0b5ed8d", "0.000001"),
        ("41b3de4355555553", "333333333.3333332"),
        ("41b3de4355555554", "333333333.33333325"),
        ("41b3de4355555555", "333333333.3333333"),
        ("41b3de4355555556", "333333333.3333334"),
        ("41b3de4355555557", "333333333.33333343"),
        ("becbf647612f3696", "-0.0000033333333333333333"),
        ("43143ff3c1cb0959", "1424953923781206.2"),
    ],
)
def test_numbers_are_written_as_rfc_8785_lists_them(bits: str, text: str) -> None:
    """Every finite double of the RFC's table is spelled as the table spells it."""
    assert canonical(struct.unpack(">d", bytes.fromhex(bits))[0]) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1.0, "1"),
        (-0.0, "0"),
        (0.1, "0.1"),
        (100.5, "100.5"),
        (1e20, "100000000000000000000"),
        (1e21, "1e+21"),
        (1e-6, "0.000001"),
        (1e-7, "1e-7"),
        (1.5e-7, "1.5e-7"),
        (333333333.33333329, "333333333.3333333"),
        (2**53, "9007199254740992"),
    ],
)
def test_numbers_change_notation_where_ecmascript_does(number: float, text: str) -> None:
    """Plain notation from 1e-6 up to below 1e21, exponents outside, and no trailing zeros."""
    assert canonical(number) == text


def test_true_is_not_one() -> None:
    """Booleans and the numbers they equal in Python have different texts."""
    assert [canonical(value) for value in (True, 1, False, 0)] == ["true", "1", "false", "0"]


def test_exact_keeps_a_float_a_float() -> None:
    """`exact` writes 1.0 as 1.0 where `canonical` writes 1."""
    assert (exact([1.0, 1]), canonical([1.0, 1])) == ("[1.0,1]", "[1,1]")


def test_strings_are_escaped_as_in_rfc_8785() -> None:
    """Only quotes, backslashes and control characters are escaped, in the shortest form, hex in lower case."""
    assert canonical("€$\x0f\nA'B\"\\/\x7fö") == '"€$\\u000f\\nA\'B\\"\\\\/\x7fö"'


def test_keys_are_ordered_by_utf_16() -> None:
    """A character beyond the BMP sorts by its surrogates, so before U+FF21, which Python's own order puts first."""
    ordered = ["\r", "1", "\x80", "ö", "€", "😀", "\uff21"]
    assert list(json.loads(canonical(dict.fromkeys(sorted(ordered), 0)))) == ordered


def test_keys_are_written_in_nfc() -> None:
    """A decomposed key and its composed form are the same key."""
    assert canonical({"u\u0308": 1}) == canonical({"ü": 1}) == '{"ü":1}'


def test_string_values_keep_their_normal_form() -> None:
    """Normal forms are only unified in keys: a value is data."""
    assert canonical("u\u0308") != canonical("ü")


def test_two_spellings_of_one_key_are_refused() -> None:
    """A dict that holds a key in two normal forms has no canonical text, and the message names the place."""
    with pytest.raises(UsageError, match="preprocess: the key 'ü'"):
        canonical({"u\u0308": 1, "ü": 2}, "preprocess")


def test_tuples_are_lists() -> None:
    """JSON has one kind of sequence."""
    assert canonical({"size": (1, (2,))}) == canonical({"size": [1, [2]]})


@pytest.mark.parametrize(
    ("scalar", "plain"),
    [(np.float32(0.5), 0.5), (np.float64(1e21), 1e21), (np.int64(3), 3), (np.bool_(True), True), (np.array(2), 2)],
    ids=repr,
)
def test_numpy_scalars_are_the_numbers_they_hold(scalar: Any, plain: Any) -> None:
    """A NumPy scalar is written as the Python number that it equals."""
    assert canonical(scalar) == canonical(plain)


@pytest.mark.parametrize("write", [canonical, exact])
@pytest.mark.parametrize(
    "bad",
    [
        float("nan"),
        float("inf"),
        float("-inf"),
        np.float32("nan"),
        "\ud800",
        {"\udfff": 1},
        {1: 2},
        {None: 2},
        b"bytes",
        {1, 2},
        pytest.param(object(), id="object"),
        1j,
        np.zeros(2),
        np.array("2026-01-01", "M8[D]"),
        pytest.param(np.longdouble(1), id="longdouble"),
        pytest.param(10**5000, id="10**5000"),
    ],
    ids=repr,
)
def test_what_json_cannot_hold_is_refused_by_place(write: Any, bad: Any) -> None:
    """Whatever has no JSON form is a UsageError whose message names where it stands."""
    with pytest.raises(UsageError, match=r"preprocess\.filter\[1\]"):
        write({"filter": ["lanczos", bad]}, "preprocess")


@pytest.mark.parametrize("sign", [1, -1])
def test_integers_beyond_2_to_the_53_are_refused_by_place(sign: int) -> None:
    """The first integer that a double can't hold is refused where it stands."""
    with pytest.raises(UsageError, match=r"recipe\.seed"):
        canonical({"seed": sign * (2**53 + 1)}, "recipe")


@pytest.mark.parametrize("write", [canonical, exact])
def test_a_value_that_contains_itself_is_refused(write: Any) -> None:
    """An endless value is a UsageError, not a RecursionError."""
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(UsageError, match="preprocess"):
        write(endless, "preprocess")
