"""Plans are joined by group and sample; what doesn't fit is told when the dataset is made."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from data.helpers import CLIP, COUNT, encode_text
from kit import FakeEncoder, picture

import casstore
from casstore.errors import MissError, UsageError


def fewer(training: Any, *, without: str) -> Any:
    """A plan of all captions but one, which is stored."""
    store = training.store
    kept = [{"sample": row.sample, "caption": f"picture {n}"} for n, row in enumerate(training.inputs)]
    return store.plan(store.inputs([row for row in kept if row["sample"] != without]), CLIP, role="caption")


def test_different_rows_are_named_with_both_counts(training: Any) -> None:
    """The message has the numbers of rows, and the first that one plan lacks, whichever plan it is."""
    text = fewer(training, without="s04")
    with pytest.raises(UsageError, match=r"image has 12 rows and text has 11: 's04' has no text"):
        training.store.dataset(image=training.image, text=text)
    with pytest.raises(UsageError, match=r"image has 12 rows and text has 11: 's04' has no text"):
        training.store.dataset(text=text, image=training.image)


def test_the_join_is_by_name_not_by_place(training: Any) -> None:
    """Plans in another order give the same items; the first plan's order is the dataset's."""
    store = training.store
    given = [{"sample": f"s{n:02}", "caption": f"picture {n}"} for n in reversed(range(COUNT))]
    text = store.plan(store.inputs(given), CLIP, role="caption")
    with store.dataset(image=training.image, text=text) as one, training.dataset() as other:
        for n in range(COUNT):
            assert one[n]["sample"] == other[n]["sample"]
            assert torch.equal(one[n]["hidden"], other[n]["hidden"])
    with store.dataset(text=text, image=training.image) as reversed_one:
        assert [reversed_one.sample(n) for n in (0, -1)] == ["s11", "s00"]


def test_what_isnt_stored_is_named_with_its_reason(training: Any) -> None:
    """With "error", unbuilt rows are counted and named."""
    store = training.store
    row = training.image.row(4)
    store.forget(row.key).execute()
    with pytest.raises(MissError, match=r"1 of 12 variants of image aren't stored: 's04' \(new.*Build") as told:
        training.dataset()
    assert told.value.miss is not None and told.value.miss.reason == "new"
    store.build(training.image, training.encoder)
    with training.dataset() as dataset:
        assert len(dataset) == COUNT


def test_a_plan_that_was_built_since_serves(training: Any) -> None:
    """The plan's own misses are those of its time; the dataset looks again."""
    store, recipe = training.store, casstore.Recipe("other", code=1)
    text = store.plan(training.inputs, recipe, role="caption")
    assert len(text.missing) == COUNT
    store.build(text, encode_text)
    with store.dataset(text=text) as dataset:
        assert len(dataset) == COUNT


@pytest.mark.parametrize("lack", ["another plan", "a variant"])
def test_rows_may_be_left_out(training: Any, lack: str, caplog: pytest.LogCaptureFixture) -> None:
    """With "skip", rows that lack anything are left out, counted and told."""
    store, text = training.store, training.text
    if lack == "another plan":
        text = fewer(training, without="s04")
    else:
        store.forget(text.row(4).key).execute()
    with caplog.at_level(logging.WARNING, "casstore"):
        dataset = store.dataset(image=training.image, text=text, missing="skip")
    with dataset:
        assert (len(dataset), dataset.skipped, dataset.zeros) == (COUNT - 1, 1, 0)
        assert "s04" not in [dataset.sample(n) for n in range(len(dataset))]
        assert torch.equal(dataset[4]["latent"], training.latent(5))
        assert "1 of 12 rows are left out" in caplog.text


@pytest.mark.parametrize("lack", ["another plan", "a variant"])
def test_zeros_may_take_their_place(training: Any, lack: str, caplog: pytest.LogCaptureFixture) -> None:
    """With "zeros", what lacks is zeros of the shape and dtype that the others have; counted and told."""
    store, text = training.store, training.text
    if lack == "another plan":
        text = fewer(training, without="s04")
    else:
        store.forget(text.row(4).key).execute()
    with caplog.at_level(logging.WARNING, "casstore"):
        dataset = store.dataset(image=training.image, text=text, missing="zeros")
    with dataset:
        assert (len(dataset), dataset.skipped, dataset.zeros) == (COUNT, 0, 1)
        item = dataset[4]
        assert torch.equal(item["hidden"], torch.zeros(5, 3, dtype=torch.float16)) and "length" not in item
        assert torch.equal(item["latent"], training.latent(4))
        batch = torch.utils.data.default_collate(dataset.__getitems__([3, 4]))
        assert batch["hidden"][1].abs().sum() == 0 and batch["length"] == [9, None]
        assert "1 variants of 12 rows" in caplog.text


def test_zeros_have_the_shape_of_their_resolution(training: Any) -> None:
    """A picture's zeros are as large as other pictures of its resolution, not as the first ones."""
    store = training.store
    store.forget(training.image.row(2).key).execute()  # a wide one; so are 5, 8 and 11
    with training.dataset(missing="zeros") as dataset:
        assert dataset[2]["latent"].shape == dataset[5]["latent"].shape != dataset[0]["latent"].shape
        assert dataset[2]["latent"].abs().sum() == 0
    for n in (5, 8, 11):
        store.forget(training.image.row(n).key).execute()
    with pytest.raises(UsageError, match="'s02' has no image, and no other item tells what shape"):
        training.dataset(missing="zeros")


def test_a_name_of_two_plans_is_refused_and_can_be_changed(training: Any, tmp_path: Any) -> None:
    """The error has the rename to write; names= selects and renames tensors and values."""
    store, recipe = training.store, casstore.Recipe("t5", code=1)
    other = store.plan(training.inputs, recipe, role="caption")
    store.build(other, encode_text)
    with pytest.raises(UsageError, match=r"'hidden' is in t5 and in text; rename one: names={'t5': {'hidden': 't5_hid"):
        store.dataset(text=training.text, t5=other)
    renamed = {"t5": {"hidden": "t5_hidden", "length": "tokens"}}
    with store.dataset(text=training.text, t5=other, names=renamed) as dataset:
        assert dataset[0].keys() == {"hidden", "length", "t5_hidden", "tokens", "concept", "sample"}
        assert dataset[0]["tokens"] == dataset[0]["length"] == 9
    with store.dataset(text=training.text, names={"text": ["hidden"]}) as dataset:
        assert dataset[0].keys() == {"hidden", "concept", "sample"}
        assert list(dataset.shape(0)) == ["hidden"]


def test_names_that_clash_with_facts_of_the_rows_are_refused(training: Any) -> None:
    """A value of the rows that is called like a tensor, or like what every item has."""
    store = training.store
    for name in ("hidden", "sample", "group"):
        given = [{"sample": "a", "caption": "picture 0", "values": {name: 1}}]
        plan = store.plan(store.inputs(given), CLIP, role="caption")
        with pytest.raises(UsageError, match=name):
            store.dataset(text=plan)
    with pytest.raises(UsageError, match="'sample' is in text and in every item"):
        store.dataset(text=training.text, names={"text": {"hidden": "sample"}})


def test_a_name_that_isnt_stored_is_a_miss(training: Any) -> None:
    """Names that a plan or names= asks for have to be stored of every row."""
    with pytest.raises(MissError, match=r"12 of 12 variants of text aren't stored: .*output missing: pooled"):
        training.dataset(names={"text": ["hidden", "pooled"]})


@pytest.mark.parametrize(
    "given, message",
    [
        ({}, "needs plans"),
        ({"image": 3}, "image=int"),
        ({"missing": "never"}, "missing is one of"),
        ({"names": {"video": ["x"]}}, "no video here"),
        ({"names": {"text": []}}, "names"),
        ({"names": {"text": {"hidden": ""}}}, "names"),
    ],
)
def test_what_cant_be_meant_is_refused(training: Any, given: dict[str, Any], message: str) -> None:
    """Arguments are checked before anything is read."""
    plans = {} if not given or "image" in given else {"text": training.text}
    with pytest.raises(UsageError, match=message):
        training.store.dataset(**plans, **given)


def test_damaged_and_failed_rows_are_misses(store: casstore.Store, tmp_path: Any) -> None:
    """A picture that couldn't be decoded, and an object that is known to be damaged, aren't stored."""
    for n in range(3):
        picture(tmp_path / "p" / f"{n}.png", seed=n)
    (tmp_path / "p" / "broken.jpg").write_bytes(b"no picture")
    encoder = FakeEncoder()
    plan = store.plan(store.scan(tmp_path / "p"), encoder.recipe, resolution=casstore.Buckets(64))
    store.build(plan, encoder)
    with pytest.raises(MissError, match=r"1 of 4 .*'broken.jpg'"):
        store.dataset(image=plan)
    next((tmp_path / "store" / "objects").glob("*/*")).unlink()
    store.verify()
    with store.dataset(image=plan, missing="skip") as dataset:
        assert (len(dataset), dataset.skipped) == (2, 2)
