"""Another result under a key that is served: the first is kept, replaced, or its new rival raised."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from core.helpers import expect, get, key, object_file, put, result
from kit import FakeEncoder, build, check_counts, expected, object_files, pictures

import casstore
from casstore.errors import ConflictError, UsageError

OTHER = casstore.Recipe("another", code=2)


@pytest.fixture
def stored(store: casstore.Store) -> casstore.Store:
    """a is stored."""
    put(store, "a")
    return store


def again(store: casstore.Store, on_conflict: Any = None, **results: dict[str, Any]) -> None:
    """Put under the keys of these names, in one group."""
    with store.batch(**({} if on_conflict is None else {"on_conflict": on_conflict})) as batch:
        for name, made in results.items():
            batch.put(key(name), made)


def warnings_of(log: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in log.records if record.levelno == logging.WARNING]


OTHERS = {
    "other tensors": result("b"),
    "another value": {**result("a"), "from": "b"},
    "another dtype": {**result("a"), "t": result("a")["t"].astype(np.float32)},
    "another name": {"u": result("a")["t"], "from": "a"},
    "more names": {**result("a"), "u": np.arange(3)},
}
EQUAL = {
    "the same": result("a"),
    "in another memory order": {"from": "a", "t": np.asfortranarray(result("a")["t"])},
    "without the value": {"t": result("a")["t"]},
    "with another value more": {**result("a"), "more": 1},
}


@pytest.mark.parametrize("name", OTHERS)
def test_the_first_result_is_kept_with_one_warning(
    stored: casstore.Store, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """By default what is stored stays as it is, and a warning says so, naming the recipe."""
    again(stored, a=OTHERS[name])
    assert get(stored, "a") == expect("a")
    assert [message.split(":")[0] for message in warnings_of(caplog)] == ["r"]


@pytest.mark.parametrize("name", EQUAL)
@pytest.mark.parametrize("on_conflict", ["keep", "replace", "raise"])
def test_an_equal_result_is_no_conflict(
    stored: casstore.Store, caplog: pytest.LogCaptureFixture, name: str, on_conflict: Any
) -> None:
    """Equal tensors and values of equal names: nothing changes, nobody is told."""
    again(stored, on_conflict, a=EQUAL[name])
    assert (get(stored, "a"), warnings_of(caplog)) == (expect("a"), [])


def test_a_warning_comes_once_for_each_recipe(stored: casstore.Store, caplog: pytest.LogCaptureFixture) -> None:
    """However many conflicts there are, in however many batches, one warning for each recipe and open store."""
    put(stored, "b", "c")
    other = casstore.Key.text("a", OTHER)
    with stored.batch() as batch:
        batch.put(other, result("a"))
    for number in range(3):
        again(stored, **{name: result(f"{name}{number}") for name in "abc"})
    assert len(warnings_of(caplog)) == 1
    with stored.batch() as batch:
        batch.put(other, result("b"))
    assert [message.split(":")[0] for message in warnings_of(caplog)] == ["r", "another"]


@pytest.mark.parametrize("name", OTHERS)
def test_replace_stores_the_new_result(stored: casstore.Store, caplog: pytest.LogCaptureFixture, name: str) -> None:
    """With "replace" the key has exactly the new result, values included; nobody is warned."""
    again(stored, "replace", a=OTHERS[name])
    found = stored.get(key("a"), as_numpy=True)
    assert found.keys() == OTHERS[name].keys() and warnings_of(caplog) == []
    for what, value in OTHERS[name].items():
        np.testing.assert_array_equal(found[what], value)
    assert stored.verify(deep=True).findings == ()


def test_what_was_replaced_goes_with_gc(stored: casstore.Store) -> None:
    """The old object is garbage then, and the new one isn't."""
    old = object_file(stored, "a")
    again(stored, "replace", a=result("b"))
    assert stored.gc(yes=True, grace_hours=0).swept == 1
    assert not old.exists() and object_files(stored.path) == [object_file(stored, "a")]


def test_replace_leaves_other_users_of_the_object(stored: casstore.Store) -> None:
    """b shares the object of a; replacing a doesn't change b."""
    put(stored, b=result("a"))
    again(stored, "replace", a=result("new"))
    stored.gc(yes=True, grace_hours=0)
    assert (get(stored, "a"), get(stored, "b")) == (expect("new"), expect("a"))


def test_raise_stores_the_rest_of_the_group(stored: casstore.Store) -> None:
    """With "raise" the error names the key, what was stored stays, and the others of the group are stored."""
    with pytest.raises(ConflictError, match=r"another result is stored for text .*; it was kept"):
        again(stored, "raise", b=result("b"), a=result("x"), c=result("c"))
    assert [get(stored, name) for name in "abc"] == [expect(name) for name in "abc"]


def test_raise_counts_the_conflicts(stored: casstore.Store) -> None:
    """Several conflicts of a group are one error with their number."""
    put(stored, "b", "c")
    with pytest.raises(ConflictError, match="and 2 more"):
        again(stored, "raise", **{name: result("x") for name in "abc"})


def test_two_results_in_one_group_are_the_first(store: casstore.Store) -> None:
    """Of two under one key in one group the first is stored, as if they had come one after the other."""
    with store.batch() as batch:
        batch.put(key("a"), result("a"))
        batch.put(key("a"), result("a"))
    assert get(store, "a") == expect("a")


@pytest.mark.parametrize("on_conflict", ["keep", "replace", "raise"])
def test_what_cannot_be_served_is_no_rival(stored: casstore.Store, on_conflict: Any) -> None:
    """A lost object is replaced by whatever comes, in any mode."""
    object_file(stored, "a").unlink()
    again(stored, on_conflict, a=result("b"))
    assert get(stored, "a") == expect("b")


@pytest.mark.parametrize("on_conflict", ["", "overwrite", None, 1])
def test_anything_else_is_refused(store: casstore.Store, on_conflict: Any) -> None:
    """on_conflict is one of three."""
    with pytest.raises(UsageError, match="on_conflict is one of 'keep', 'replace', 'raise'"):
        store.batch(on_conflict=on_conflict)


def test_get_or_encode_returns_what_was_first(stored: casstore.Store) -> None:
    """Another writer stores a result while the function runs: that one is returned, and kept."""

    def slow() -> dict[str, Any]:
        put(stored, "n")
        return result("mine")

    found = stored.get_or_encode(key("n"), slow, as_numpy=True)
    np.testing.assert_array_equal(found["t"], result("n")["t"])
    assert get(stored, "n") == expect("n")


def test_a_build_counts_conflicts(store: casstore.Store, tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    """What others have put meanwhile is by_others; where this build made something else, it is a conflict too."""
    pictures(tmp_path / "data", 3)

    def put(items: list[casstore.Item]) -> None:
        with store.batch() as batch:
            for item in items:
                batch.put(item.key, {"latent": expected(item, encoder.recipe) + (item.sample == "p001.png")})

    encoder = FakeEncoder(before=put)
    report = check_counts(build(store, tmp_path / "data", encoder))
    assert (report.by_others, report.encoded, report.conflicts) == (3, 0, 1)
    assert len(warnings_of(caplog)) == 1
    assert [run.counts.get("conflicts") for run in store.status().runs] == [1]
