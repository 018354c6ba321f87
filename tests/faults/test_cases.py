"""Reports from the field, replayed while the disk fails: T17, T19, T20 and T22."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from core.helpers import child, expect, fast_folder, get, key, object_file, overwrite, put
from faults.injection import FITTING, Fault, Faults
from kit import FakeEncoder, build, check_counts, expected_of, picture, pictures

import casstore
from casstore.errors import CasstoreError

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")

SIZES = ("16x16", "32x32")
ERRORS = ("EIO", "ENOSPC", "EINTR", "EDQUOT", "EROFS")


@pytest.fixture
def folder() -> Iterator[Path]:
    with fast_folder() as place:
        yield place


@pytest.fixture
def store(folder: Path) -> Iterator[casstore.Store]:
    with casstore.open(folder / "s", create=True) as opened:
        yield opened


def numbers(faults: Faults, name: str, part: str = "") -> list[int]:
    """The numbers of the calls with this name, on paths with this part."""
    return [number for number, call in enumerate(faults.calls) if call.name == name and part in call.path]


# -- T17 ---------------------------------------------------------------------------------------------------------------


def add_size(folder: Path, resolution: str, seed: int, rounds: int, partner: Any) -> int:
    """Build one picture a round at one size, in step with a partner, with a fault in each; how many faults hit."""
    rng, hits = random.Random(seed), 0
    with casstore.open(folder / "s") as store:
        for number in range(rounds):
            partner.say(number)
            partner.hear()  # both begin at once
            encoder = FakeEncoder()
            fault = Fault(rng.randrange(90), rng.choice(ERRORS), rng.random() < 0.5)
            with Faults(folder, fault) as faults:
                with contextlib.suppress(CasstoreError):
                    build(store, folder / f"{number}", encoder, resolution)
            hits += bool(faults.hit)
            report = build(store, folder / f"{number}", encoder, resolution, retry_failed=True)
            assert report.hits + report.encoded + report.by_others == 1, report
    return hits


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("rounds", [40, pytest.param(200, marks=pytest.mark.nightly)])
def test_t17_two_processes_add_two_sizes_of_one_source_on_a_failing_disk(folder: Path, rounds: int) -> None:
    """T17: whatever fails in either, when both have said that they are done both sizes are there, each with its own
    bytes."""
    casstore.open(folder / "s", create=True).close()
    for number in range(rounds):
        picture(folder / f"{number}" / "p.png", seed=number, size=(64, 64))
    works = [lambda it, s=size, n=n: add_size(folder, s, n, rounds, it) for n, size in enumerate(SIZES)]  # type: ignore[misc]
    with child(works[0]) as one, child(works[1]) as other:
        for _ in range(rounds):
            one.hear(), other.hear()
            one.say(), other.say()
        hits = one.result() + other.result()
    assert hits >= rounds // 2
    with casstore.open(folder / "s") as store:
        assert store.verify(deep=True).findings == ()
        for number in range(rounds):
            path = folder / f"{number}" / "p.png"
            for size in SIZES:
                found = store.get(path, FakeEncoder().recipe, resolution=size, as_numpy=True)["latent"]
                assert np.array_equal(found, expected_of(path, size, FakeEncoder().recipe))


# -- T19 ---------------------------------------------------------------------------------------------------------------


def test_t19_a_crash_between_create_and_write_leaves_nothing_that_is_read(store: casstore.Store, folder: Path) -> None:
    """T19: the write fails, and so does the removal of the empty file: it stays in tmp/, nothing is served of it, the
    next put works, and gc of a later process takes it."""
    with Faults(folder) as faults:
        put(store, "a")
    number = numbers(faults, "write", "/tmp/")[0]
    with Faults(folder, Fault(number, "EIO", for_ever=True)), pytest.raises(casstore.errors.StoreIOError, match="EIO"):
        put(store, "b")
    (empty,) = os.listdir(folder / "s" / "tmp")
    assert (folder / "s" / "tmp" / empty).stat().st_size == 0
    assert (get(store, "b"), store.verify(deep=True).findings) == ("new", ())
    put(store, "b")
    store.close()
    with casstore.open(folder / "s") as later:
        later.gc(yes=True)
        assert os.listdir(folder / "s" / "tmp") == []
        assert [get(later, name) for name in "ab"] == [expect(name) for name in "ab"]


@pytest.mark.parametrize("error", ["EIO", "ENOSPC", "EROFS"])
def test_t19_an_empty_object_that_cannot_be_replaced_is_never_served(
    store: casstore.Store, folder: Path, error: str
) -> None:
    """T19: a zero-byte object is damaged; while each rename fails a put of it is an error, and then it heals."""
    put(store, "a", "b")
    overwrite(object_file(store, "a"), b"")
    assert get(store, "a") == "damaged"
    with Faults(folder, rule=lambda name, _: error if name == "rename" else ""), \
            pytest.raises(CasstoreError, match=error):  # fmt: skip
        put(store, "a")
    assert (get(store, "a"), get(store, "b")) == ("damaged", expect("b"))
    put(store, "a")
    assert (get(store, "a"), store.verify(deep=True).findings) == (expect("a"), ())


def test_t19_a_store_never_has_an_empty_index_whatever_call_of_init_fails(folder: Path) -> None:
    """T19: the database is made in a sibling folder: the store appears whole or not at all."""
    with Faults(folder) as faults:
        casstore.open(folder / "s0", create=True).close()
    renamed = numbers(faults, "rename")[0]
    for number in range(numbers(faults, "create", "index.sqlite")[0], renamed + 1):
        with Faults(folder, Fault(number, "EIO", for_ever=True)), pytest.raises(CasstoreError, match="EIO"):
            casstore.open(folder / "s", create=True)
        assert not (folder / "s").exists()
    casstore.open(folder / "s", create=True).close()


def test_t19_a_picture_that_cannot_be_read_fails_alone_and_is_tried_again(store: casstore.Store, folder: Path) -> None:
    """T19: an empty picture fails for good; one on a bad sector fails with the errno and is built when it is back."""
    pictures(folder / "p", 4)
    (folder / "p" / "empty.png").write_bytes(b"")
    encoder = FakeEncoder()
    with Faults(folder, rule=lambda name, path: "EIO" if name == "read" and "p002" in path else ""):
        report = check_counts(build(store, folder / "p", encoder))
    messages = {failure.sample: failure.message for failure in report.failures}
    assert (report.encoded, messages.keys()) == (3, {"empty.png", "p002.png"})
    assert "empty" in messages["empty.png"] and "EIO" in messages["p002.png"]
    again = check_counts(build(store, folder / "p", encoder))
    assert (again.hits, again.encoded, [f.sample for f in again.failures]) == (3, 1, ["empty.png"])


# -- T20 ---------------------------------------------------------------------------------------------------------------


def failing_encoder() -> FakeEncoder:
    """Fails on numbers 4 and 8 of ten."""

    def refuse(_: dict[str, Any]) -> Any:
        raise RuntimeError("out of GPU memory")

    def before(items: list[Any]) -> None:
        if {item.sample for item in items} & {"p004.png", "p008.png"}:
            refuse({})

    return FakeEncoder(before=before)


@pytest.mark.parametrize("error", ERRORS)
def test_t20_a_full_disk_does_not_hide_what_failed(store: casstore.Store, folder: Path, error: str) -> None:
    """T20: of 10 pictures the encoder fails on two, and one flush fails: 8 stored, 2 reported; or a typed error, and
    then the next build reports the two all the same."""
    pictures(folder / "p", 10)
    failed: list[str] = []

    def first_flush(name: str, path: str) -> str:
        return error if name == "flush" and not failed and not failed.append(path) else ""

    try:
        with Faults(folder, rule=first_flush):
            report = build(store, folder / "p", failing_encoder(), batch_size=1)
    except CasstoreError as raised:
        assert error in str(raised)
        report = build(store, folder / "p", failing_encoder(), batch_size=1)
    assert failed
    report = check_counts(report)
    assert report.encoded + report.hits == 8
    assert {f.sample: "out of GPU memory" in f.message for f in report.failures} == {"p004.png": True, "p008.png": True}
    encoder = FakeEncoder()
    again = check_counts(build(store, folder / "p", encoder))
    assert (sorted(encoder.seen), again.failed, store.verify(deep=True).findings) == (["p004.png", "p008.png"], 0, ())


# -- T22 ---------------------------------------------------------------------------------------------------------------


def test_t22_a_disk_that_dies_late_costs_one_group(store: casstore.Store, folder: Path) -> None:
    """T22: of 100 pictures with number 90 corrupt, the disk is full from the moment that the first group is committed:
    that group is stored, the error is typed, and the next build encodes only what isn't there."""
    paths = pictures(folder / "p", 100, size=(16, 16))
    paths[90].write_bytes(paths[90].read_bytes()[:60])
    encoder, again = FakeEncoder(), FakeEncoder()
    removed: list[str] = []  # temps, which go once their group is committed

    def full(name: str, path: str) -> str:
        removed.extend([path] if name == "unlink" and "/s/tmp/" in path else [])
        return "ENOSPC" if len(removed) >= 64 and name in ("write", "create", "link") else ""

    with Faults(folder, rule=full), pytest.raises(casstore.errors.NoSpaceError, match="ENOSPC"):
        build(store, folder / "p", encoder, "16x16")
    assert store.status().variants == 64
    report = check_counts(build(store, folder / "p", again, "16x16"))
    assert (report.hits, report.encoded, [f.sample for f in report.failures]) == (64, 35, ["p090.png"])
    assert store.verify(deep=True).findings == ()


def test_one_result_of_many_is_served_while_the_disk_fails(store: casstore.Store, folder: Path) -> None:
    """Reading never depends on writing: with every change of the disk failing, what is stored is served."""
    put(store, "a", "b")
    with Faults(folder, rule=lambda name, _: "EROFS" if "EROFS" in FITTING[name] else ""):
        assert [get(store, name) for name in "ab"] == [expect(name) for name in "ab"]
        assert isinstance(store.lookup(key("a")), casstore.Hit)
