"""The rules for decoding: what is in the identity, and what can't be meant."""

from __future__ import annotations

from typing import Any

import pytest

import casstore
from casstore.errors import UsageError
from casstore.identity.decoding import upright_under
from casstore.model import Content


@pytest.mark.parametrize(
    ("rules", "spec"),
    [
        ({}, {}),
        ({"orientation": "apply", "icc": "ignore", "frames": "first", "truncated": "refuse"}, {}),
        ({"background": (255, 255, 255)}, {}),
        ({"background": [0, 1, 2]}, {"background": [0, 1, 2]}),
        ({"background": "mask"}, {"background": "mask"}),
        ({"orientation": "ignore", "icc": "srgb"}, {"orientation": "ignore", "icc": "srgb"}),
        ({"frames": "refuse", "truncated": "allow"}, {"frames": "refuse", "truncated": "allow"}),
    ],
    ids=str,
)
def test_the_spec_has_the_rules_that_are_not_the_default(rules: dict[str, Any], spec: dict[str, Any]) -> None:
    """A rule at its default isn't in the identity."""
    assert casstore.Decode(**rules).spec == spec


@pytest.mark.parametrize(
    "rule",
    [
        {"orientation": "upright"},
        {"icc": None},
        {"frames": "all"},
        {"truncated": True},
        *(
            {"background": value}
            for value in (None, "white", (1, 2), (0, 0, 256), (0, 0, -1), (0, 0, 1.0), (True, 0, 0))
        ),
    ],
    ids=str,
)
def test_a_rule_that_cannot_be_meant_is_refused_by_name(rule: dict[str, Any]) -> None:
    """The message names the rule and what it can be."""
    with pytest.raises(UsageError, match=f"Decode: {next(iter(rule))} is "):
        casstore.Decode(**rule)


@pytest.mark.parametrize(("orientation", "size"), [("apply", (30, 20)), ("ignore", (20, 30))])
def test_the_size_of_a_turned_picture_depends_on_the_rule(orientation: Any, size: tuple[int, int]) -> None:
    """Height and width are exchanged only where the orientation is applied."""
    content = Content("file", bytes(32), 1, width=30, height=20, orientation=6)
    assert upright_under(content, casstore.Decode(orientation=orientation)) == size


@pytest.mark.parametrize("orientation", ["apply", "ignore"])
def test_a_picture_nobody_looked_at_has_no_size(orientation: Any) -> None:
    """Unknown stays unknown under any rule."""
    assert upright_under(Content("file", bytes(32), 1), casstore.Decode(orientation=orientation)) is None
