"""Layouts: one spelling for each, and nothing else is taken for one."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from casstore.errors import CorruptObjectError, UsageError
from casstore.identity.dtypes import ELEMENT_SIZE
from casstore.model import TensorInfo
from casstore.objects.payload import HEADER_LIMIT, PAYLOAD_LIMIT, Layout, parse_header
from casstore.objects.tensors import to_numpy, to_torch

NAMES = st.text(min_size=1, max_size=8).filter(lambda name: name != "__metadata__")
INFOS = st.builds(TensorInfo, st.sampled_from(sorted(ELEMENT_SIZE)), st.lists(st.integers(0, 9), max_size=4).map(tuple))
LAYOUTS = st.dictionaries(NAMES, INFOS, min_size=1, max_size=6).map(lambda infos: Layout.of(infos.items()))
MEMBERS = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from([*sorted(ELEMENT_SIZE), "F80", "", "f32"])
        | st.none()
        | st.integers()
        | st.lists(st.none()),
        "shape": st.lists(st.integers(-1, 9) | st.integers(min_value=2**31) | st.booleans() | st.floats()) | st.text(),
    },
    optional={
        "data_offsets": st.lists(st.integers(0, 99) | st.integers(), min_size=2, max_size=2),
        "extra": st.none(),
    },
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def spelled(value: Any) -> str:
    """JSON as the payload header spells it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@given(LAYOUTS)
def test_a_layout_is_read_back_from_its_text_and_header(layout: Layout) -> None:
    """`parse` undoes `text`, `parse_header` undoes `header`, both with the order of the tensors."""
    for found in (Layout.parse(layout.text), parse_header(layout.header)):
        assert [*found.tensors.items()] == [*layout.tensors.items()]


def test_a_layout_cannot_be_changed() -> None:
    """All who parse one text share one layout, so nobody may change it for the others; a deep copy is equal."""
    layout = Layout.parse(GOOD)
    assert Layout.parse(GOOD) is layout and copy.deepcopy(layout) == layout
    for mapping in (layout.tensors, layout.spans):
        with pytest.raises(TypeError):
            mapping["a"] = mapping["b"]  # type: ignore[index]


@given(LAYOUTS)
def test_the_header_ends_on_a_multiple_of_64(layout: Layout) -> None:
    """Length and JSON are padded with fewer than 64 blanks, so that tensors are aligned in a mapped file."""
    assert len(layout.header) % 64 == 0 and len(layout.header) - 8 - len(layout.text.encode()) < 64


@given(LAYOUTS)
def test_tensors_are_ordered_by_element_size_then_name(layout: Layout) -> None:
    """The larger elements come first, then names in code point order, and spans follow each other without holes."""
    order = [(-ELEMENT_SIZE[info.dtype], name) for name, info in layout.tensors.items()]
    edges = [0, *(end for _, end in layout.spans.values())]
    assert order == sorted(order) and [begin for begin, _ in layout.spans.values()] == edges[:-1]
    assert layout.payload_nbytes == len(layout.header) + edges[-1]


@given(st.text() | JSON.map(spelled) | st.dictionaries(NAMES, MEMBERS, max_size=3).map(spelled))
@example("[" * 100_000)
@example('{"a":{"dtype":"U8","shape":[%s,%s],"data_offsets":[0,0]}}' % (("1" + "0" * 4000,) * 2))
@example('{"a":{"dtype":"U8","shape":[%s],"data_offsets":[0,0]}}' % ("1" * 5000))
@example('{"\\ud800":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}')
def test_a_text_is_a_layout_or_corrupt(text: str) -> None:
    """Whatever a header says, it is the text of a layout or a CorruptObjectError, never another error."""
    try:
        layout = Layout.parse(text)
    except CorruptObjectError:
        return
    assert layout.text == text


@given(st.binary() | st.binary().map(lambda body: len(body).to_bytes(8, "little") + body))
def test_bytes_are_a_header_or_corrupt(header: bytes) -> None:
    """Whatever stands in front of the tensors, it is the header of a layout or a CorruptObjectError."""
    try:
        layout = parse_header(header)
    except CorruptObjectError:
        return
    assert layout.header == header


@given(LAYOUTS, st.data())
def test_a_damaged_header_is_another_layout_or_corrupt(layout: Layout, data: st.DataObject) -> None:
    """With any one byte changed, a header is that of a layout that differs, or a CorruptObjectError."""
    header = bytearray(layout.header)
    header[data.draw(st.integers(0, len(header) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        found = parse_header(bytes(header))
    except CorruptObjectError:
        return
    assert found != layout and found.header == bytes(header)


A, B = entry("F32", [2], 0, 8), entry("U8", [3], 8, 11)
GOOD = spelled({"a": A, "b": B})


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(json.dumps({"a": A, "b": B}), id="blanks"),
        pytest.param(GOOD + " ", id="a blank behind"),
        pytest.param("\ufeff" + GOOD, id="byte order mark"),
        pytest.param(spelled({"__metadata__": {"format": "pt"}, "a": A, "b": B}), id="metadata"),
        pytest.param(spelled({"__metadata__": A}), id="a tensor named __metadata__"),
        pytest.param(spelled({"b": entry("U8", [3], 0, 3), "a": entry("F32", [2], 3, 11)}), id="another order"),
        pytest.param(spelled({"b": B, "a": A}), id="names in another order"),
        pytest.param(spelled({"a": dict(reversed(A.items())), "b": B}), id="members in another order"),
        pytest.param(spelled({"a": A, "b": entry("U8", [3], 9, 12)}), id="a hole"),
        pytest.param(spelled({"a": A, "b": entry("U8", [3], 7, 10)}), id="an overlap"),
        pytest.param(spelled({"a": entry("F32", [2], 1, 9)}), id="not from 0"),
        pytest.param(spelled({"a": entry("F32", [2], 0, 7)}), id="a wrong end"),
        pytest.param(spelled({"a": {**A, "extra": None}}), id="one more member"),
        pytest.param(spelled({"a": {"dtype": "F32", "shape": [2]}}), id="no offsets"),
        pytest.param(GOOD[:-1] + "," + GOOD[1:], id="every name twice"),
        pytest.param(GOOD.replace("[2]", "[2.0]"), id="a float in a shape"),
        pytest.param(GOOD.replace("[2]", "[true]").replace("8", "4"), id="a bool in a shape"),
        pytest.param(spelled({"a": entry("F32", [-1, -2], 0, 8)}), id="negative sizes"),
        pytest.param(GOOD.replace('"a"', '"\\u0061"'), id="an escaped letter"),
        pytest.param(spelled({"a": entry("F4", [2], 0, 1)}), id="an unknown dtype"),
        pytest.param(spelled({"": A}), id="an empty name"),
        pytest.param(spelled({}), id="no tensor"),
        pytest.param(spelled([A]), id="a list"),
        pytest.param(spelled({"a": entry("U8", [1] * 17, 0, 1)}), id="too many dimensions"),
        pytest.param(spelled({"a": entry("U8", [1 << 60], 0, 1 << 60)}), id="2^60 bytes"),
    ],
)
def test_only_the_canonical_spelling_is_a_layout(text: str) -> None:
    """Any other way to write a safetensors header is refused, so that equal tensors can't have two digests."""
    assert Layout.parse(GOOD).text == GOOD
    with pytest.raises(CorruptObjectError):
        Layout.parse(text)


def test_a_long_header_in_another_order_is_corrupt() -> None:
    """Also where the canonical order would be too long for a header, the error is a CorruptObjectError."""
    begin, members = 0, {}
    for i in range(1000):
        members[f"{i:04}"] = entry("U8", [1], begin, begin + 1)
        begin += 1
    members["z"] = entry("F64", [10**9], begin, begin + 8 * 10**9)
    room = HEADER_LIMIT - 64 - len(spelled(members))
    members["z" * room] = members.pop("z")
    with pytest.raises(CorruptObjectError):
        Layout.parse(spelled(members))


@pytest.mark.parametrize("read", [to_torch, to_numpy])
@pytest.mark.parametrize("shape", [(0, 10**30), (0, 2**62, 2**62)], ids=["beyond 64 bits", "beyond them together"])
def test_a_shape_that_no_tensor_can_have_is_refused(shape: tuple[int, ...], read: Any) -> None:
    """A forged header with an empty but enormous shape is a CorruptObjectError at the latest when it is read."""
    text = spelled({"a": entry("U8", [*shape], 0, 0)})
    with pytest.raises(CorruptObjectError):
        layout = Layout.parse(text)
        read(np.frombuffer(layout.header, np.uint8).copy(), layout)


@pytest.mark.parametrize(
    "change",
    [
        lambda h: h[:-1],
        lambda h: h + b" " * 64,
        lambda h: (len(h) + 56).to_bytes(8, "little") + h[8:] + b" " * 64,
        lambda h: h[:-1] + b"\0",
        lambda h: h[:-1] + b"\n",
        lambda h: h[:-1] + b"\xff",
        lambda h: b"",
        lambda h: h[:8],
        lambda h: (1 << 60).to_bytes(8, "little") + h[8:],
    ],
    ids=["short", "long", "more padding", "NUL", "newline", "not UTF-8", "nothing", "length only", "2^60"],
)
def test_a_header_with_other_padding_or_length_is_corrupt(change: Any) -> None:
    """Length and padding have one spelling too."""
    header = Layout.parse(GOOD).header
    assert header.endswith(b" ") and parse_header(header).text == GOOD
    with pytest.raises(CorruptObjectError):
        parse_header(change(header))


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({}, "1 to 4096 tensors, not 0"),
        ({str(i): TensorInfo("U8", ()) for i in range(4097)}, "not 4097"),
        ({"": TensorInfo("U8", ())}, "name"),
        ({"\udc80": TensorInfo("U8", ())}, "isn't valid Unicode"),
        ({"latent": TensorInfo("F80", ())}, "'latent' has dtype F80"),
        ({"latent": TensorInfo("U8", (1,) * 17)}, "'latent' has 17 dimensions"),
        ({"a": TensorInfo("U8", (PAYLOAD_LIMIT,)), "b": TensorInfo("U8", (1,))}, "68,719,476,737 bytes together"),
        ({"a" * HEADER_LIMIT: TensorInfo("U8", ())}, "names are too long"),
    ],
    ids=["none", "many", "empty name", "surrogate", "dtype", "rank", "bytes", "header"],
)
def test_a_layout_that_cannot_be_stored_is_refused(tensors: dict[str, TensorInfo], message: str) -> None:
    """Each limit is a UsageError that says which one and what broke it."""
    with pytest.raises(UsageError, match=message):
        Layout.of(tensors.items())
