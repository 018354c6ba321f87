"""The empty text, planned along with captions: one triple more, which is no row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import FakeEncoder, pictures

import casstore
from casstore.errors import UsageError
from casstore.model import Item

CLIP = casstore.Recipe("clip", code=1)


class Words:
    """An encoder of texts that notes what it was given."""

    recipe = CLIP

    def __init__(self) -> None:
        self.seen: list[tuple[str, str | None]] = []

    def __call__(self, items: list[Item]) -> list[dict[str, Any]]:
        self.seen += [(item.sample, item.text) for item in items]
        return [{"hidden": np.full(3, len(item.text or ""), np.float32)} for item in items]


def planned(store: casstore.Store, captions: list[Any], **options: Any) -> Any:
    rows = [{"sample": str(n), "caption": caption} for n, caption in enumerate(captions)]
    return store.plan(store.inputs(rows), CLIP, role="caption", empty_text=True, **options)


def test_the_empty_text_is_one_more_that_is_built_like_any_other(store: casstore.Store) -> None:
    """Counted as planned, missed and hit; the encoder gets an empty text under a name that tells what it is."""
    words = Words()
    plan = planned(store, ["a", "bb"])
    assert (plan.planned, plan.hits, dict(plan.reasons)) == (3, 0, {"new": 3})
    report = store.build(plan, words)
    assert (report.planned, report.encoded, report.failed) == (3, 3, 0)
    assert words.seen == [("0", "a"), ("1", "bb"), ("(the empty text)", "")]
    assert store.get(casstore.Key.text("", CLIP))["hidden"].tolist() == [0, 0, 0]
    assert planned(store, ["a", "bb"]).hits == 3


def test_a_row_without_a_text_of_its_own_is_planned_once(store: casstore.Store) -> None:
    """Where a row is the empty text already, whether it was given or stands in, nothing is added."""
    assert planned(store, ["a", "", ""]).planned == 3
    assert planned(store, ["a", None], absent="empty").planned == 2
    assert planned(store, ["a", None]).planned == 2
    assert planned(store, ["a", ["b", ""]]).planned == 3


def test_it_has_one_variation(store: casstore.Store) -> None:
    """Of several that are asked for of each row, it has the first; lines of a caption don't make it more either."""
    plan = planned(store, ["a"], variations=3)
    assert [(row.row.sample, row.key.variation) for row in plan.rows][2:] == [("0", 2), ("(the empty text)", 0)]
    assert planned(store, [["a", "b"]]).planned == 3
    assert planned(store, []).planned == 1


def test_it_has_the_params_of_the_rows(store: casstore.Store) -> None:
    """A function of the row can't tell them."""
    plan = planned(store, ["a"], params={"layer": 2})
    assert plan.rows[1].key.params == '{"layer":2}'
    with pytest.raises(UsageError, match="empty_text=True needs params"):
        planned(store, ["a"], params=lambda row: {"sample": row.sample})


def test_shards_share_it_out_like_any_other(store: casstore.Store) -> None:
    """It is in one of them, whoever plans."""
    whole = planned(store, ["a", "bb", "ccc"])
    shards = [row.key.digest for part in whole.shards(3) for row in part.rows]
    assert sorted(shards) == sorted(row.key.digest for row in whole.rows)
    for part in whole.shards(3):
        store.build(part, Words())
    assert planned(store, ["a", "bb", "ccc"]).hits == 4


def test_it_is_for_one_role_of_texts(store: casstore.Store, tmp_path: Path) -> None:
    """Pictures, several roles, and rows without any are refused."""
    pictures(tmp_path / "p", 1)
    scanned = store.scan(tmp_path / "p")
    recipe = FakeEncoder().recipe
    with pytest.raises(UsageError, match=r"p000\.png has a image that is no text"):
        store.plan(scanned, recipe, empty_text=True)
    with pytest.raises(UsageError, match="of one role, not one of caption, image"):
        store.plan(scanned, recipe, role=("caption", "image"), empty_text=True)
    with pytest.raises(UsageError, match="that names none"):
        store.plan(store.inputs([]), recipe, empty_text=True)
