"""get_many: what get gives for each key, in the order that was asked for, and all misses at once."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import hypothesis.strategies as some
import numpy as np
import pytest
import torch
from core.helpers import (
    RAW,
    RECIPE,
    child,
    examples,
    expect,
    fast_folder,
    flipped,
    handle_of,
    in_child,
    key,
    object_file,
    overwrite,
    plain,
    put,
    result,
)
from hypothesis import given, settings

import casstore
from casstore.core import many
from casstore.errors import EncoderError, MissError, StoreIOError, UsageError
from casstore.objects.table import FRAME_LIMIT

COUNT = 12
NAMES = [f"item {number}" for number in range(COUNT)]
KEYS = [key(name) for name in NAMES]


def made(number: int) -> dict[str, Any]:
    """A result of the same layout for every number: a tensor, one without axes, an empty one, one that NumPy lacks."""
    return {
        "t": np.full((2, 3), number, np.float32),
        "s": np.array(number, np.int64),
        "e": np.zeros((0, 2), np.uint8),
        "b": torch.full((5,), number, dtype=torch.bfloat16),
        "n": number,
    }


IN_NUMPY = ["t", "s", "e", "n"]


def fill(store: casstore.Store, count: int = COUNT) -> None:
    """Store results, every second one raw."""
    with store.batch() as batch:
        for number in range(count):
            batch.put(key(f"item {number}", RAW if number % 2 else RECIPE), made(number))


@pytest.fixture(scope="module")
def mixed() -> Iterator[casstore.Store]:
    """One store for the tests that damage nothing."""
    with fast_folder() as folder, casstore.open(folder / "s", create=True, durability="off") as store:
        fill(store)
        yield store


def values(found: Any) -> Any:
    """A result as plain values of known dtype and shape."""
    return {
        name: (str(value.dtype), tuple(value.shape), value.tolist()) if hasattr(value, "dtype") else value
        for name, value in found.items()
    }


def slots(of_torch: bool, count: int = COUNT) -> dict[str, Any]:
    """Memory for `count` results, filled with something that isn't stored."""
    found: dict[str, Any] = {
        "t": np.full((count, 2, 3), -1, np.float32),
        "s": np.full(count, -1, np.int64),
        "e": np.zeros((count, 0, 2), np.uint8),
    }
    return {name: torch.from_numpy(array) for name, array in found.items()} if of_torch else found


def misses_of(store: casstore.Store, keys: list[casstore.Key]) -> dict[int, casstore.Miss]:
    with pytest.raises(MissError) as caught:
        store.get_many(keys)
    return dict(caught.value.misses)


# -- results -----------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(60))
@given(some.lists(some.integers(0, COUNT - 1), max_size=30), some.none() | some.lists(some.sampled_from(IN_NUMPY)))
def test_results_are_those_of_get_in_the_order_asked_for(
    mixed: casstore.Store, numbers: list[int], names: list[str] | None
) -> None:
    """Any list of keys, repeats included, gives the results of single gets at the same positions, of both forms."""
    found = mixed.get_many([KEYS[number] for number in numbers], names=names)
    assert [values(each) for each in found] == [values(mixed.get(KEYS[number], names=names)) for number in numbers]
    if names is not None:
        arrays = mixed.get_many([KEYS[number] for number in numbers], names=names, as_numpy=True)
        assert [values(each) for each in arrays] == [
            values(mixed.get(KEYS[number], names=names, as_numpy=True)) for number in numbers
        ]


@settings(max_examples=examples(40))
@given(some.lists(some.integers(0, COUNT - 1), max_size=15), some.sets(some.sampled_from(["t", "s", "e"])),
       some.none() | some.lists(some.sampled_from(IN_NUMPY)), some.booleans())  # fmt: skip
def test_each_result_is_a_view_of_its_slot(
    mixed: casstore.Store, numbers: list[int], own: set[str], names: list[str] | None, of_torch: bool
) -> None:
    """With `out` each slot holds its key's tensor, rank 0 and repeats included, and the result is that memory; names
    adds other tensors and chooses values."""
    out = {name: memory for name, memory in slots(of_torch, len(numbers)).items() if name in own}
    found = mixed.get_many([KEYS[number] for number in numbers], names=names, out=out, as_numpy=True)
    for position, (number, each) in enumerate(zip(numbers, found, strict=True)):
        right = made(number)
        assert isinstance(each, dict)
        assert each.keys() == own | ({"n"} if names is None else set(names))
        for name, value in each.items():
            assert np.array_equal(value, right[name])
            if name in own and np.asarray(value).size:
                assert np.array_equal(out[name][position], right[name])
                value[...] = 77
                assert (np.asarray(out[name][position]) == 77).all()


def test_without_keys_there_are_no_results(mixed: casstore.Store) -> None:
    """An empty list is served, with memory for nothing as well."""
    assert mixed.get_many([]) == []
    assert mixed.get_many([], out={"t": np.zeros((0, 2, 3), np.float32)}) == []


@pytest.mark.parametrize("of_torch", [False, True])
def test_two_hundred_keys_are_read_into_one_batch(store: casstore.Store, of_torch: bool) -> None:
    """Many keys, in both forms, fill a batch completely and in order."""
    fill(store, 200)
    out = slots(of_torch, 200)
    found = store.get_many([key(f"item {number}") for number in range(200)], out=out)
    assert [each["n"] for each in found if isinstance(each, dict)] == list(range(200))
    assert np.array_equal(np.asarray(out["s"]), np.arange(200))
    assert np.array_equal(np.asarray(out["t"])[:, 1, 2], np.arange(200))


@pytest.mark.parametrize("recipe", [RECIPE, RAW], ids=["zstd", "raw"])
def test_tensors_of_many_frames_are_right(store: casstore.Store, recipe: casstore.Recipe) -> None:
    """Tensors beyond 4 MiB come back bit by bit, one by one and several at once, new and into given memory."""
    rng = np.random.default_rng(3)
    side = FRAME_LIMIT // 4 + 1234
    tensors = [rng.standard_normal(side, np.float32) for _ in range(3)] + [np.zeros(side, np.float32)] * 3
    with store.batch() as batch:
        for number, tensor in enumerate(tensors):
            batch.put(key(str(number), recipe), {"t": tensor, "n": np.array([number])})
    asked = [key(str(number)) for number in range(6)]
    out = np.ones((6, side), np.float32)
    store.get_many(asked, out={"t": out})
    assert all(np.array_equal(found, tensor) for found, tensor in zip(out, tensors, strict=True))
    assert np.array_equal(store.get(asked[2], as_numpy=True)["t"], tensors[2])
    few = store.get_many(asked[:2], as_numpy=True)
    assert all(np.array_equal(each["t"], tensor) for each, tensor in zip(few, tensors, strict=False))  # type: ignore[index]


# -- misses ------------------------------------------------------------------------------------------------------------


def damage(store: casstore.Store, name: str, how: str) -> None:
    path = object_file(store, name)
    data = path.read_bytes()
    if how == "gone":
        path.unlink()
    elif how == "cut":
        overwrite(path, data[: len(data) // 2])
    elif how == "edited":
        overwrite(path, flipped(data, len(data) - 1))
    else:  # a sound object of another shape
        put(store, other={"t": np.zeros((7, 7))})
        overwrite(path, object_file(store, "other").read_bytes())


@pytest.mark.parametrize("bad", [2, 3], ids=["zstd", "raw"])
@pytest.mark.parametrize("how", ["gone", "cut", "edited", "of another shape"])
def test_of_eight_entries_the_bad_one_is_named_and_the_others_are_given(
    store: casstore.Store, how: str, bad: int
) -> None:
    """T13: one of 8 files is changed behind the store: "raise" names that key, "return" gives the other seven."""
    fill(store, 8)
    damage(store, NAMES[bad], how)
    asked = KEYS[:8]
    found = store.get_many(asked, on_miss="return")
    assert [number for number, each in enumerate(found) if isinstance(each, casstore.Miss)] == [bad]
    assert found[bad].reason == "damaged"  # type: ignore[union-attr]
    for number, each in enumerate(found):
        if isinstance(each, dict):
            assert values(each) == values(store.get(KEYS[number]))
    with pytest.raises(MissError) as caught:
        store.get_many(asked)
    assert str(asked[bad]) in str(caught.value) and not any(
        str(k) in str(caught.value) for k in asked if k != asked[bad]
    )
    assert store.status().damaged == 1


def test_a_tensor_of_the_wrong_size_for_its_resolution_is_refused(store: casstore.Store) -> None:
    """T13: at 512x768 and stride 8 a latent is 64x96; of 8 puts the one with another size is refused by name."""
    recipe = casstore.Recipe("vae", stride=8)
    keys = [
        casstore.Key.content(casstore.model.Content("file", bytes([number]) * 32, 1), recipe, resolution="512x768")
        for number in range(8)
    ]
    with store.batch() as batch:
        for number, asked in enumerate(keys):
            if number == 5:
                with pytest.raises(EncoderError, match=r"'latent' has shape.*must be 64x96"):
                    batch.put(asked, {"latent": np.zeros((4, 96, 64), np.float32)})
            else:
                batch.put(asked, {"latent": np.full((4, 64, 96), number, np.float32)})
    assert misses_of(store, keys) == {5: casstore.Miss("new")}


def test_all_bad_keys_are_named_at_once_by_their_positions(store: casstore.Store) -> None:
    """Absent and damaged keys, also one that was asked for twice, are all in one MissError and its `misses`."""
    fill(store, 6)
    damage(store, NAMES[4], "gone")
    asked = [KEYS[0], key("never"), KEYS[4], KEYS[1], KEYS[4], key("nor this")]
    with pytest.raises(MissError, match=r"5 of 6|4 of 6") as caught:
        store.get_many(asked)
    assert {position: miss.reason for position, miss in caught.value.misses.items()} == {
        1: "new", 2: "damaged", 4: "damaged", 5: "new",
    }  # fmt: skip
    assert all(str(asked[position]) in str(caught.value) for position in caught.value.misses)
    assert caught.value.miss == caught.value.misses[1]


def test_a_message_about_very_many_misses_stays_short(store: casstore.Store) -> None:
    """It names ten and counts the others; `misses` has all."""
    asked = [key(f"no {number}") for number in range(500)]
    with pytest.raises(MissError, match=r"500 of 500 keys.* and 490 more") as caught:
        store.get_many(asked)
    assert set(caught.value.misses) == set(range(500))


@pytest.mark.parametrize("of_torch", [False, True])
def test_slots_of_keys_that_arent_stored_stay_as_they_were(store: casstore.Store, of_torch: bool) -> None:
    """What the caller had in the slot of a miss is still there; the other slots are filled."""
    fill(store, 6)
    asked = [KEYS[0], key("never"), KEYS[1], key("nor this"), KEYS[2], KEYS[3], KEYS[4]]
    out = slots(of_torch, 7)
    found = store.get_many(asked, out=out, on_miss="return")
    assert [isinstance(each, casstore.Miss) for each in found] == [False, True, False, True, False, False, False]
    assert np.asarray(out["s"]).tolist() == [0, -1, 1, -1, 2, 3, 4]
    assert np.asarray(out["t"])[:, 0, 0].tolist() == [0, -1, 1, -1, 2, 3, 4]


@pytest.mark.parametrize("with_out", [False, True])
def test_an_object_that_is_healed_before_its_damage_is_noted_is_served(
    store: casstore.Store, with_out: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a put of another process heals what a reader found damaged, the batch has no miss and fills every slot."""
    fill(store, 6)
    damage(store, NAMES[3], "gone")
    real = many.damaged

    def note(*arguments: Any) -> Any:
        in_child(lambda: fill(store, 6))
        return real(*arguments)

    monkeypatch.setattr(many, "damaged", note)
    out = slots(False, 6) if with_out else None
    found = store.get_many(KEYS[:6], out=out, names=None if with_out else IN_NUMPY, as_numpy=True)
    assert [each["s"].tolist() for each in found] == list(range(6))  # type: ignore[index]
    if out is not None:
        assert out["s"].tolist() == list(range(6)) and out["t"][:, 0, 0].tolist() == list(range(6))
        found[3]["s"][...] = 9  # type: ignore[index]
        assert out["s"][3] == 9


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The object files that are opened from now on."""
    found, real = [], os.open

    def watched(path: Any, *arguments: Any, **options: Any) -> int:
        if f"{os.sep}objects{os.sep}" in os.fspath(path):
            found.append(path)
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "open", watched)
    return found


def test_memory_with_no_room_for_one_of_the_keys_is_refused_before_anything_is_read(
    store: casstore.Store, opened: list[str]
) -> None:
    """The one key of another shape or dtype is named, no file was opened, and no slot was touched."""
    fill(store, 6)
    put(store, shape={"t": np.ones((3, 2), np.float32)}, dtype={"t": np.ones((2, 3), np.int32)})
    for odd in (key("shape"), key("dtype")):
        out = np.full((7, 2, 3), -1, np.float32)
        with pytest.raises(UsageError, match="is stored for") as caught:
            store.get_many([*KEYS[:6], odd], out={"t": out})
        assert str(odd) in str(caught.value)
        assert opened == [] and (out == -1).all()
    store.get_many(KEYS[:6])
    assert len(opened) == 6, "the watch works"


@pytest.mark.parametrize(
    "memory",
    [
        np.zeros((5, 2, 3), np.float32),
        np.zeros((7, 2, 3), np.float32),
        np.zeros((2, 3), np.float32),
        np.zeros((), np.float32),
        np.zeros((6, 3, 2), np.float32),
        np.zeros((6, 6), np.float32),
        np.zeros((6, 2, 3), np.float64),
        np.zeros((6, 2, 6), np.float32)[:, :, ::2],
        torch.zeros(6, 2, 3, device="meta"),
        torch.zeros(6, 3, 2).transpose(1, 2),
        [np.zeros((2, 3), np.float32)] * 6,
    ],
    ids=repr,
)
def test_memory_that_isnt_a_batch_of_what_is_stored_is_refused(mixed: casstore.Store, memory: Any) -> None:
    """Another number of slots, shape, dtype, stride or kind of memory is a usage error that names the tensor."""
    with pytest.raises(UsageError, match=r"out\['t'\]"):
        mixed.get_many(KEYS[:6], out={"t": memory})


def test_what_cant_be_meant_is_refused(mixed: casstore.Store) -> None:
    """Paths instead of keys, an unknown option and an unknown name are usage errors."""
    with pytest.raises(UsageError, match="not str"):
        mixed.get_many(["a.png"])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="'ignore'"):
        mixed.get_many(KEYS, on_miss="ignore")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="has no 'z'"):
        mixed.get_many(KEYS, names=["z"])


def test_what_numpy_doesnt_have_is_refused_as_an_array(mixed: casstore.Store) -> None:
    """bfloat16 asked for as arrays is a usage error that names the tensor, by few keys and by many."""
    for count in (1, COUNT):
        with pytest.raises(UsageError, match="'b' is BF16, which NumPy doesn't have"):
            mixed.get_many(KEYS[:count], as_numpy=True)


# -- how ---------------------------------------------------------------------------------------------------------------


def test_one_select_finds_all_keys(mixed: casstore.Store) -> None:
    """A batch without misses costs a single SELECT, however many keys it has."""
    mixed.get(KEYS[0])
    statements: list[str] = []
    idle = list(handle_of(mixed).index._idle)
    for raw in idle:
        raw.set_trace_callback(statements.append)
    try:
        mixed.get_many(KEYS + KEYS)
    finally:
        for raw in idle:
            raw.set_trace_callback(None)
    assert len(statements) == 1 and statements[0].startswith("SELECT")


@pytest.fixture
def helpers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every disk counts as slow, so that other threads help to read even the smallest objects."""
    monkeypatch.setattr(many, "PATIENCE", 0.0)
    monkeypatch.setattr(many, "MEMORY_SPEED", float("inf"))


@pytest.mark.usefixtures("helpers")
def test_threads_wait_for_a_slow_disk_side_by_side(mixed: casstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the first few files came slowly, two files are being read at the same time."""
    both, real, count = threading.Barrier(2), many.read_part, itertools.count()

    def slowly(*args: Any) -> None:
        if next(count) in (many.FEW, many.FEW + 1):
            both.wait(60)
        real(*args)

    monkeypatch.setattr(many, "read_part", slowly)
    assert [each["n"] for each in mixed.get_many(KEYS) if isinstance(each, dict)] == list(range(COUNT))


def test_small_objects_from_memory_are_read_by_one_thread(
    mixed: casstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads that would only wait for each other stay away."""
    threads, real = set(), many.read_part

    def noted(*args: Any) -> None:
        threads.add(threading.get_ident())
        real(*args)

    monkeypatch.setattr(many, "read_part", noted)
    monkeypatch.setattr(many, "PATIENCE", 60.0)
    mixed.get_many(KEYS)
    assert threads == {threading.get_ident()}


@pytest.mark.usefixtures("helpers")
@pytest.mark.parametrize("first", [0, many.FEW + 1])
def test_an_error_in_one_thread_ends_the_others_and_is_raised(
    mixed: casstore.Store, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    """A disk error at one file is raised, whoever met it, and no file is begun after it once all have heard of it."""
    count = itertools.count()

    def failing(*args: Any) -> None:
        if next(count) >= first:
            raise StoreIOError("the disk is gone")

    monkeypatch.setattr(many, "read_part", failing)
    with pytest.raises(StoreIOError, match="gone"):
        mixed.get_many(KEYS)
    begun = next(count)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(next, count).result() == begun + 1, "somebody still reads"


@pytest.mark.usefixtures("helpers")
def test_forked_children_read_with_threads_of_their_own(mixed: casstore.Store) -> None:
    """Children forked after their parent's threads have read, and of which one forks again, read everything."""

    def read() -> list[int]:
        return [each["n"] for each in mixed.get_many(KEYS) if isinstance(each, dict)]

    assert read() == list(range(COUNT))
    with child(lambda _: read()) as one, child(lambda _: in_child(read)) as two:
        assert [one.result(), two.result(), read()] == [list(range(COUNT))] * 3


@pytest.mark.usefixtures("helpers")
def test_threads_may_read_batches_at_the_same_time(mixed: casstore.Store) -> None:
    """Many batches from several threads at once, small and large, into memory and without, are all right."""

    def read(seed: int) -> bool:
        numbers = np.random.default_rng(seed).integers(0, COUNT, 3 + seed % 20).tolist()
        out = slots(bool(seed % 2), len(numbers)) if seed % 3 else None
        found = mixed.get_many([KEYS[number] for number in numbers], out=out)
        assert [each["n"] for each in found if isinstance(each, dict)] == numbers
        assert [each["s"].tolist() for each in found if isinstance(each, dict)] == numbers
        return True

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(read, range(120)))


def test_no_descriptor_stays_open(store: casstore.Store) -> None:
    """After many batches, with misses and refusals among them, as many descriptors are open as after the first."""
    fill(store)
    damage(store, NAMES[5], "cut")
    damage(store, NAMES[6], "gone")
    counts = set()
    for _ in range(10):
        store.get_many(KEYS, on_miss="return")
        for options in ({}, {"names": ["z"]}, {"out": {"t": np.zeros((1, 2, 3), np.float32)}}, {"as_numpy": True}):
            with contextlib.suppress(MissError, UsageError):
                store.get_many(KEYS, **options)  # type: ignore[arg-type]
        counts.add(len(os.listdir("/proc/self/fd")))
    assert len(counts) == 1


def test_reading_changes_no_file(tmp_path: Path) -> None:
    """Objects of both forms are byte for byte what they were after they were read in every way."""
    with casstore.open(tmp_path / "s", create=True, durability="off") as store:
        fill(store)
        files = sorted(Path(store.path, "objects").glob("*/*"))
        before = [path.read_bytes() for path in files]
        for out, mmap in itertools.product([None, slots(True)], [False, True]):
            for each in store.get_many(KEYS, out=out):
                assert isinstance(each, dict)
                each["t"].fill_(5)
            if mmap:
                store.get(KEYS[1], mmap=True)["t"].fill_(5)
        assert [path.read_bytes() for path in files] == before
        put(store, "x")
        assert plain(store.get_many([key("x")], as_numpy=True)[0]) == expect("x") == plain(result("x"))  # type: ignore[arg-type]
