"""Batches: a group is committed in the background while the next one gathers, and nothing is lost on the way."""

from __future__ import annotations

import gc
import os
import signal
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from core.helpers import RAW, child, expect, failing, get, handle_of, in_child, key, object_file, put, result, temps
from kit import object_files

import casstore
from casstore import fsio
from casstore.core import batch as batches
from casstore.core import gathering, publish
from casstore.core import put as putting
from casstore.core.batch import Batch
from casstore.core.handle import Handle
from casstore.core.put import Group
from casstore.errors import ConflictError, NoSpaceError, StoreIOError

PATIENCE = 60.0  # seconds; what takes longer has failed
NAMES = "abcdef"


@pytest.fixture
def full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A store that flushes."""
    monkeypatch.setattr("casstore.fsio.has_syncfs", lambda _: True)
    with casstore.open(tmp_path / "full", create=True, durability="full") as store:
        yield store


@pytest.fixture
def groups_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets the size of groups."""
    return lambda size: monkeypatch.setattr(batches, "GROUP_OBJECTS", size)


class Held:
    """Lets the commits of one process wait until they are let go; `begun` says that the first has come so far."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.begun, self.go, self._pid = threading.Event(), threading.Event(), os.getpid()
        self._real = putting.make_durable
        patch.setattr(putting, "make_durable", self._wait)

    def _wait(self, *arguments: Any) -> None:
        if os.getpid() == self._pid:
            self.begun.set()
            assert self.go.wait(PATIENCE)
        self._real(*arguments)


def stagers() -> list[gathering.Stager]:
    """The staging threads that live."""
    return [thread for thread in threading.enumerate() if isinstance(thread, gathering.Stager)]


def await_stager() -> gathering.Stager:
    """The only staging thread, when it has done all that it was called for."""
    (stager,) = stagers()
    done = threading.Event()
    stager.do(done.set)
    assert done.wait(PATIENCE)
    return stager


def missing(store: casstore.Store, names: str) -> str:
    """Those of the names that aren't served with their own result."""
    return "".join(name for name in names if get(store, name) != expect(name))


# -- in the background -------------------------------------------------------------------------------------------------


def test_the_next_group_is_written_while_one_is_being_committed(
    store: casstore.Store, groups_of: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that ends only when the next group has been written does end, and the commits come one after another."""
    groups_of(2)
    steps: list[str] = []
    written, numbers = threading.Event(), iter(range(len(NAMES)))
    real_write, real_commit = fsio.write_new, Group.commit

    def write(*arguments: Any) -> int:
        nbytes = real_write(*arguments)
        steps.append("written")
        if steps.count("written") == 4:
            written.set()
        return nbytes

    def commit(group: Group) -> Any:
        assert threading.current_thread() is not threading.main_thread()
        number = next(numbers)
        steps.append(f"commit {number}")
        if number == 0:
            assert written.wait(PATIENCE), "the second group was never written"
        found = real_commit(group)
        steps.append(f"committed {number}")
        return found

    monkeypatch.setattr(fsio, "write_new", write)
    monkeypatch.setattr(Group, "commit", commit)
    with store.batch() as batch:
        for name in NAMES:
            batch.put(key(name), result(name))
    assert [step for step in steps if step != "written"] == [
        f"{what} {n}" for n in range(3) for what in ("commit", "committed")
    ]
    assert steps[: steps.index("committed 0")].count("written") >= 4
    assert missing(store, NAMES) == ""


def test_at_most_two_groups_are_on_their_way(
    store: casstore.Store, groups_of: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a commit lasts another group gathers, and no more: the put that fills it waits for the commit."""
    groups_of(2)
    held = Held(monkeypatch)
    waited: list[str] = []
    batch = store.batch()
    real_join = gathering.Commit.join

    def join(commit: gathering.Commit) -> None:
        waited.append(name)
        held.go.set()
        real_join(commit)

    monkeypatch.setattr(gathering.Commit, "join", join)
    for name in NAMES[:4]:
        batch.put(key(name), result(name))
    assert waited == ["d"]
    assert missing(store, "ab") == ""
    batch.flush()
    assert missing(store, NAMES[:4]) == ""


def test_results_are_written_as_they_come_by_one_other_thread(
    full: casstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight results are written before anybody asks for a commit; the one who puts opens, reads and writes nothing,
    and each group has its flusher before its first temp, and asks which objects are there a few times only."""
    steps: list[str] = []
    threads: set[threading.Thread] = set()
    eight = threading.Event()

    def watch(place: Any, name: str) -> None:
        real = getattr(place, name)

        def call(*arguments: Any, **options: Any) -> Any:
            if threading.current_thread().name != "casstore-commit":
                threads.add(threading.current_thread())
            found = real(*arguments, **options)
            steps.append(name)
            if steps.count("write_new") == 8:
                eight.set()
            return found

        monkeypatch.setattr(place, name, call)

    for place, name in ((Handle, "open_for_flush"), (fsio, "write_new"), (publish, "encode"), (putting, "_present")):
        watch(place, name)
    with full.batch() as batch:
        for number in range(8):
            batch.put(key(str(number)), result(str(number)))
        assert eight.wait(PATIENCE), "they were never written"
        assert full.status().objects == 0
        batch.put(key("last of the group"), result("last of the group"))
        batch.flush()
        for number in range(8, 80):
            batch.put(key(str(number)), result(str(number)))
    assert [step for step in steps if step in ("_present", "open_for_flush", "write_new")][:3] == [
        "_present",
        "open_for_flush",
        "write_new",
    ]
    groups = "".join({"open_for_flush": "|", "write_new": "w"}.get(step, "") for step in steps).split("|")
    assert [len(group) for group in groups] == [0, 9, 64, 8]
    assert steps.count("_present") <= 2 + 8 + 1
    assert {thread.name for thread in threads} == {"casstore-stage"}
    assert len(threads) == 2, "one until the flush, one after it"


def test_a_batch_leaves_no_thread(store: casstore.Store) -> None:
    """A flush ends the threads; one batch that is thrown away with results in it ends its thread, and its temps go."""
    batch = Batch(handle_of(store))
    for number in range(gathering.RUN_OBJECTS):
        batch.put(key(str(number)), result(str(number)))
    (stager,) = stagers()
    batch.flush()
    assert not stager.is_alive()
    for number in range(gathering.RUN_OBJECTS):
        batch.put(key(f"lost {number}"), result(f"lost {number}"))
    stager = await_stager()
    assert len(temps(store)) == gathering.RUN_OBJECTS
    del batch
    stager.join(PATIENCE)
    assert (stager.is_alive(), temps(store)) == (False, [])
    assert store.status().variants == gathering.RUN_OBJECTS


def test_what_is_in_a_batch_is_served_after_a_flush(store: casstore.Store, groups_of: Callable[[int], None]) -> None:
    """flush waits for the group in the background and commits what has gathered; a second one has nothing to do."""
    groups_of(2)
    batch = store.batch()
    for name in NAMES[:5]:
        batch.put(key(name), result(name))
    batch.flush()
    assert missing(store, NAMES[:5]) == ""
    batch.flush()
    batch.put(key("f"), result("f"))
    assert get(store, "f") == "new"
    batch.flush()
    assert missing(store, NAMES) == ""
    assert batch.stored_bytes == sum(path.stat().st_size for path in object_files(store.path))
    assert temps(store) == []


def test_an_exception_in_the_block_commits_the_group_in_the_background_too(
    store: casstore.Store, groups_of: Callable[[int], None]
) -> None:
    """With one group on its way and one gathering, an exception of the caller costs neither."""
    groups_of(2)
    with pytest.raises(ZeroDivisionError), store.batch() as batch:
        for name in "abc":
            batch.put(key(name), result(name))
        1 // 0  # noqa: B018
    assert missing(store, "abc") == ""


def test_outcomes_are_told_in_the_order_of_the_puts(store: casstore.Store, groups_of: Callable[[int], None]) -> None:
    """on_commit gets one outcome for each put, group after group, in the thread that puts."""
    groups_of(2)
    put(store, "b", "e")
    told: list[Any] = []

    def committed(_: Any, outcomes: Any) -> None:
        assert threading.current_thread() is threading.main_thread()
        told.extend(outcomes)

    with Batch(handle_of(store), on_commit=committed) as batch:
        for name in NAMES:
            batch.put(key(name), result(name))
    assert told == ["existing" if name in "be" else "stored" for name in NAMES]


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "failures", "error"),
    [("flush_filesystem", {0, 1}, StoreIOError), ("link", {0}, NoSpaceError), ("flush_filesystem", {0}, NoSpaceError)],
)
@pytest.mark.parametrize("how", ["put", "flush"])
def test_an_error_in_the_background_is_raised_by_the_next_call_and_loses_nothing(
    full: casstore.Store,
    groups_of: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    how: str,
    name: str,
    failures: set[int],
    error: type[Exception],
) -> None:
    """The error of a commit comes out of the next put or flush, no temp is left, and a later flush stores all."""
    groups_of(1)
    failing(monkeypatch, name, failures, error)
    batch = full.batch()
    batch.put(key("a"), result("a"))
    with pytest.raises(error, match="disk is bad"):
        if how == "put":
            batch.put(key("b"), result("b"))
        else:
            batch.flush()
    assert (missing(full, "a"), temps(full), full.status().objects) == ("a", [], 0)
    if how == "flush":
        batch.put(key("b"), result("b"))
    batch.flush()
    assert missing(full, "ab") == ""
    assert temps(full) == []
    assert full.verify(deep=True).findings == ()


def test_an_error_of_the_next_groups_own_staging_loses_neither_group(
    store: casstore.Store, groups_of: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is full when the second group is written is told of by the next call; the first is stored then, and
    so is the second once there is room."""
    groups_of(2)
    failing(monkeypatch, "write_new", {3}, NoSpaceError)
    batch = store.batch()
    with pytest.raises(NoSpaceError):
        for name in "abcd":
            batch.put(key(name), result(name))
        batch.flush()
    assert (missing(store, "abcd"), temps(store)) == ("cd", [])
    batch.flush()
    assert missing(store, "abcd") == ""
    assert temps(store) == []


def test_an_error_of_staging_is_raised_by_the_next_put_and_loses_nothing(
    store: casstore.Store, groups_of: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long before the group is full the put after it raises, when the group before it is stored; that put is kept too,
    no temp is left, and the next flush stores everything."""
    groups_of(20)
    monkeypatch.setattr(gathering, "RUN_OBJECTS", 2)
    held = Held(monkeypatch)
    names = [str(number) for number in range(25)]
    batch = store.batch()
    for name in names[:20]:
        batch.put(key(name), result(name))
    assert held.begun.wait(PATIENCE)
    failing(monkeypatch, "write_new", {1}, NoSpaceError)
    for name in names[20:22]:
        batch.put(key(name), result(name))
    await_stager()
    held.go.set()
    with pytest.raises(NoSpaceError):
        batch.put(key(names[22]), result(names[22]))
    assert ([name for name in names if get(store, name) != expect(name)], temps(store)) == (names[20:], [])
    for name in names[23:]:
        batch.put(key(name), result(name))
    batch.flush()
    assert [name for name in names if get(store, name) != expect(name)] == []
    assert temps(store) == []


def test_a_conflict_costs_the_group_behind_it_nothing(store: casstore.Store, groups_of: Callable[[int], None]) -> None:
    """A conflict that only the end of the block hears of is raised when what gathered after it is stored too."""
    groups_of(2)
    put(store, a=result("first"))
    with pytest.raises(ConflictError), store.batch(on_conflict="raise") as batch:
        for name in "abc":
            batch.put(key(name), result(name))
    assert missing(store, "bc") == ""
    assert get(store, "a") == expect("first")


@pytest.mark.parametrize("how", ["put", "flush", "end"])
def test_a_ctrl_c_while_waiting_for_a_commit_loses_nothing(
    store: casstore.Store, groups_of: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A put, a flush or the end of the block that is interrupted as it waits raises KeyboardInterrupt; whatever comes
    after it stores each result, and tells of it, once."""
    groups_of(2)
    held = Held(monkeypatch)
    told: list[str] = []
    names = NAMES[: {"put": 4, "flush": 3, "end": 3}[how]]
    real_join = gathering.Commit.join

    def join(commit: gathering.Commit) -> None:
        monkeypatch.setattr(gathering.Commit, "join", real_join)
        os.kill(os.getpid(), signal.SIGINT)
        real_join(commit)

    batch = Batch(handle_of(store), on_commit=lambda _, outcomes: told.extend(outcomes))
    monkeypatch.setattr(gathering.Commit, "join", join)
    with pytest.raises(KeyboardInterrupt):
        if how == "end":
            with batch:
                for name in names:
                    batch.put(key(name), result(name))
        for name in names:
            batch.put(key(name), result(name))
        batch.flush()
    assert (told, missing(store, names)) == ([], names)
    held.go.set()
    if how != "end":
        batch.put(key("f"), result("f"))
        names += "f"
    batch.flush()
    assert missing(store, names) == ""
    assert told == ["stored"] * len(names)
    assert (temps(store), stagers()) == ([], [])


def test_close_raises_the_error_of_a_group_that_nobody_flushed(
    tmp_path: Path, groups_of: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing a store tells that a batch couldn't be committed, gives everything back, and leaves no temp."""
    groups_of(1)
    store = casstore.open(tmp_path / "s", create=True, durability="off")
    failing(monkeypatch, "link", range(99), NoSpaceError)
    store.batch().put(key("a"), result("a"))
    with pytest.raises(NoSpaceError):
        store.close()
    monkeypatch.undo()
    assert os.listdir(tmp_path / "s" / "tmp") == os.listdir(tmp_path / "s" / "locks" / "owners") == []
    with casstore.open(tmp_path / "s") as again:
        assert get(again, "a") == "new"


# -- forks, threads ----------------------------------------------------------------------------------------------------


def test_a_forked_child_commits_nothing_of_its_parents_batch(
    store: casstore.Store, groups_of: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child forked with one group on its way and one gathering stores its own puts only, by the same batch, by
    another, and by closing the store; the parent stores all of its own."""
    groups_of(2)
    monkeypatch.setattr(gathering, "RUN_OBJECTS", 1)
    held = Held(monkeypatch)
    batch = store.batch()
    for name in "abc":
        batch.put(key(name), result(name))
    assert held.begun.wait(PATIENCE)
    await_stager()
    before = temps(store)
    assert len(before) == 3

    def work() -> list[Any]:
        batch.put(key("d"), result("d"))
        batch.flush()
        put(store, "e")
        seen = [missing(store, NAMES), batch.stored_bytes > 0]
        batch.put(key("f"), result("f"))
        store.close()
        return seen

    assert in_child(work) == ["abcf", True]
    assert missing(store, NAMES) == "abc"
    assert sorted(temps(store)) == sorted(before)
    held.go.set()
    batch.flush()
    assert missing(store, NAMES) == ""
    assert store.status().variants == 6
    assert temps(store) == []


def test_two_batches_at_once_store_everything(store: casstore.Store, groups_of: Callable[[int], None]) -> None:
    """Batches of one store whose puts and commits are interleaved in one thread don't disturb each other."""
    groups_of(3)
    with store.batch() as one, store.batch() as other:
        for number in range(20):
            for name, batch in (("one", one), ("other", other)):
                batch.put(key(f"{name} {number}"), result(f"{name} {number}"))
                batch.put(key(f"both {number}"), result(f"both {number}"))
    for number in range(20):
        for name in ("one", "other", "both"):
            assert get(store, f"{name} {number}") == expect(f"{name} {number}")
    assert store.status().objects == len(object_files(store.path)) == 60
    assert temps(store) == []


def test_threads_and_processes_with_a_batch_each_store_everything(
    store: casstore.Store, groups_of: Callable[[int], None]
) -> None:
    """Three threads here and two other processes, some of whose results are the same, lose nothing."""
    groups_of(4)
    errors: list[BaseException] = []

    def work(name: str) -> None:
        try:
            with store.batch() as batch:
                for number in range(25):
                    each = f"{name} {number}" if number % 2 else f"shared {number}"
                    batch.put(key(each), result(each))
        except BaseException as error:
            errors.append(error)

    with child(lambda _: work("four")) as one, child(lambda _: work("five")) as other:
        threads = [threading.Thread(target=work, args=(name,)) for name in ("one", "two", "three")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [one.result(), other.result()] == [None, None]
    assert errors == []
    for number in range(25):
        for name in ("one", "two", "three", "four", "five") if number % 2 else ("shared",):
            assert get(store, f"{name} {number}") == expect(f"{name} {number}")
    assert store.verify(deep=True).findings == ()
    assert temps(store) == []


# -- the caller's tensors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("of_torch", [False, True])
def test_the_callers_tensors_are_neither_changed_nor_kept(
    store: casstore.Store, groups_of: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, of_torch: bool
) -> None:
    """Also while its group is on its way a tensor is the caller's: it may be changed, and it goes when he lets go."""
    groups_of(1)
    held = Held(monkeypatch)
    memory: Any = np.arange(64.0)
    tensor = torch.from_numpy(memory) if of_torch else memory
    with store.batch() as batch:
        batch.put(key("a"), {"t": tensor, "row": tensor[3:4]})
        assert held.begun.wait(PATIENCE)
        assert np.array_equal(memory, np.arange(64.0))
        memory[:] = -1
        gone = weakref.ref(tensor)
        del tensor, memory
        gc.collect()
        assert gone() is None
        held.go.set()
    assert get(store, "a") == {"t": list(range(64)), "row": [3.0]}


def test_a_slice_of_a_batch_costs_only_its_own_elements(store: casstore.Store) -> None:
    """A row of a large tensor is stored as its own elements behind a header, not as the memory it is a view of."""
    large = torch.arange(64 * 1000, dtype=torch.int32).reshape(64, 1000)
    with store.batch() as batch:
        batch.put(key("raw", RAW), {"t": large[3]})
        batch.put(key("columns", RAW), {"t": large[:, 5:7]})
        batch.put(key("zstd"), {"t": large[4]})
    assert object_file(store, "raw").stat().st_size <= 4000 + 256
    assert object_file(store, "columns").stat().st_size <= 64 * 2 * 4 + 256
    assert object_file(store, "zstd").stat().st_size <= 4000 + 512
    hit = store.lookup(key("columns"))
    assert isinstance(hit, casstore.Hit) and hit.layout["t"].shape == (64, 2)
    assert torch.equal(store.get(key("columns"))["t"], large[:, 5:7])
    assert torch.equal(store.get(key("raw"))["t"], large[3])
