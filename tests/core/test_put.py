"""The put protocol: what happens in which order, and what a group leaves behind when something is in its way."""

from __future__ import annotations

import itertools
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from core.helpers import (
    Child,
    child,
    expect,
    failing,
    flipped,
    get,
    handle_of,
    in_child,
    key,
    mount_tmpfs,
    object_file,
    outcome,
    overwrite,
    plain,
    put,
    result,
    sql,
    temps,
)
from kit import object_files
from sqlalchemy import event

import casstore
from casstore import fsio
from casstore.core import batch as batches
from casstore.core import put as putting
from casstore.core.batch import Batch
from casstore.errors import EncoderError, NoSpaceError, StoreBusyError, StoreIOError

NAMES = ("a", "b", "c")
Event = tuple[str, Any]


class Spy(list[Event]):
    """(operation, path) of all that fsio does and of the writer's transactions, in order."""

    def __init__(self, patch: pytest.MonkeyPatch, store: casstore.Store) -> None:
        super().__init__()
        for name in ("write_new", "flush_filesystem", "flush_files", "flush_file", "link", "rename", "unlink"):
            patch.setattr(fsio, name, self._watched(name, getattr(fsio, name)))
        event.listen(handle_of(store).index._writer, "checkout", lambda raw, *_: raw.set_trace_callback(self._sql))

    def _watched(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self.append((name, arguments[1] if name in ("link", "rename", "flush_filesystem") else arguments[0]))
            return real(*arguments)

        return call

    def _sql(self, statement: str) -> None:
        if statement.startswith(("BEGIN", "COMMIT", "ROLLBACK")):
            self.append((statement, None))

    @property
    def operations(self) -> list[str]:
        return [operation for operation, _ in self]

    @property
    def steps(self) -> list[str]:
        """The operations, each run of equal ones once."""
        return [operation for operation, _ in itertools.groupby(self.operations)]

    def paths(self, operation: str) -> list[Any]:
        return [path for found, path in self if found == operation]


@pytest.fixture
def full(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A durable store; the parameter says whether syncfs can be relied upon."""
    monkeypatch.setattr(fsio, "has_syncfs", lambda _: getattr(request, "param", True))
    with casstore.open(tmp_path / "full", create=True, durability="full") as store:
        yield store


# -- order -------------------------------------------------------------------------------------------------------------


def test_data_is_flushed_before_links_and_names_before_the_commit(
    full: casstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One syncfs for all data, then every link, one syncfs for all names, then the commit; temps go last."""
    spy = Spy(monkeypatch, full)
    put(full, *NAMES)
    assert spy.operations == [
        *["write_new"] * 3,
        "flush_filesystem",
        *["link"] * 3,
        "flush_filesystem",
        "BEGIN IMMEDIATE",
        "COMMIT",
        *["unlink"] * 3,
    ]
    assert spy.paths("flush_filesystem") == [full.path] * 2
    assert sorted(spy.paths("link")) == [str(path) for path in object_files(full.path)]
    assert spy.paths("unlink") == spy.paths("write_new")


@pytest.mark.parametrize("full", [False], indirect=True)
def test_without_syncfs_each_file_and_each_folder_is_flushed_at_the_same_points(
    full: casstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each temp gets one fsync before the first link, each shard that got a name one before the commit, no syncfs."""
    spy = Spy(monkeypatch, full)
    put(full, *NAMES)
    flush = ["flush_files", "flush_file"]
    assert spy.steps == ["write_new", *flush, "link", *flush, "BEGIN IMMEDIATE", "COMMIT", "unlink"]
    written, shards = spy.paths("write_new"), {os.path.dirname(path) for path in spy.paths("link")}
    flushed = spy.paths("flush_file")
    assert sorted(flushed[:3]) == sorted(written)
    assert sorted(flushed[3:]) == sorted(shards)


def test_at_durability_off_nothing_is_flushed(store: casstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order stays the same, and no flush of any kind is called."""
    spy = Spy(monkeypatch, store)
    put(store, *NAMES)
    assert spy.steps == ["write_new", "link", "BEGIN IMMEDIATE", "COMMIT", "unlink"]


def test_without_hard_links_files_are_renamed_under_the_lock_and_their_folder_is_flushed(
    full: casstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rename is inside the write transaction and followed by a flush of its folder before the commit."""
    monkeypatch.setattr(fsio, "link", lambda *_: False)
    spy = Spy(monkeypatch, full)
    put(full, *NAMES)
    begin, commit = spy.operations.index("BEGIN IMMEDIATE"), spy.operations.index("COMMIT")
    renamed = spy.paths("rename")
    assert spy[begin + 1 : commit] == [
        step for path in renamed for step in (("rename", path), ("flush_file", os.path.dirname(path)))
    ]
    assert sorted(renamed) == [str(path) for path in object_files(full.path)]
    assert {name: get(full, name) for name in NAMES} == {name: expect(name) for name in NAMES}
    assert temps(full) == []


def test_what_is_there_already_is_written_and_flushed_by_nobody(
    full: casstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Putting a group again opens one transaction and touches no file."""
    put(full, *NAMES)
    spy = Spy(monkeypatch, full)
    put(full, *NAMES)
    assert spy.operations == ["BEGIN IMMEDIATE", "COMMIT"]


# -- flushes, space ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("full", "flush"), [(True, "flush_filesystem"), (False, "flush_file")], indirect=["full"])
@pytest.mark.parametrize("failure", [0, 1])
def test_a_failed_flush_is_never_repeated_on_the_same_names(
    full: casstore.Store, flush: str, failure: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failed flush, of data or names, everything is written once more under names that weren't used before."""
    failing(monkeypatch, flush, {failure})
    spy = Spy(monkeypatch, full)
    put(full, "a")
    first, second = spy.paths("write_new")
    assert first != second
    again = spy.index(("write_new", second))
    assert ("unlink", first) in spy[:again]
    assert first not in [path for _, path in spy[again:]]
    assert get(full, "a") == expect("a")
    assert temps(full) == []
    assert full.verify(deep=True).damaged == 0


@pytest.mark.parametrize("failures", [{0, 1}, {1, 2}, {1, 3}])
def test_a_second_failed_flush_is_an_error_and_stores_nothing(
    full: casstore.Store, failures: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the second try fails too, the index is as it was, no temp is left, and the store goes on working."""
    put(full, "before")
    calls = failing(monkeypatch, "flush_filesystem", failures)
    with pytest.raises(StoreIOError, match="disk is bad"):
        put(full, *NAMES)
    assert len(calls) == max(failures) + 1
    assert [get(full, name) for name in NAMES] == ["new"] * 3
    assert (full.status().objects, temps(full)) == (1, [])
    put(full, *NAMES)
    assert get(full, "a") == expect("a")


def too_big(store: casstore.Store) -> list[Any]:
    """Put something that has no room, then something that has."""
    try:
        put(store, "small", big=result("big", 1 << 20))
    except NoSpaceError as error:
        assert "tmp" in str(error)
        assert error.errno is not None
    else:
        return ["it had room"]
    seen = [get(store, "small"), get(store, "big"), len(object_files(store.path)), temps(store)]
    put(store, "small")
    return [*seen, get(store, "small")]


def test_a_write_without_room_is_a_typed_error_that_stores_nothing(store: casstore.Store) -> None:
    """A file that the system cuts off (here: a limit on its size) fails its whole group; the next group is stored."""

    def work() -> list[Any]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        return too_big(store)

    assert in_child(work) == ["new", "new", 0, [], expect("small")]


def test_a_full_disk_is_a_typed_error_that_stores_nothing(tmp_path: Path) -> None:
    """The same on a file system that is really full."""

    def work() -> list[Any] | None:
        if not mount_tmpfs(tmp_path, "4m"):
            return None
        with casstore.open(tmp_path / "s", create=True) as store:
            return too_big(store)

    found = in_child(work)
    if found is None:
        pytest.skip("mounting isn't allowed here")
    assert found == ["new", "new", 0, [], expect("small")]


# -- who wins ----------------------------------------------------------------------------------------------------------


def test_of_one_key_twice_in_a_group_the_first_is_kept(store: casstore.Store) -> None:
    """The second result under a key is reported as existing, and dropped with its tensors."""
    outcomes: list[str] = []
    with Batch(handle_of(store), on_commit=lambda _, told: outcomes.extend(told)) as batch:
        batch.put(key("a"), result("first"))
        batch.put(key("a"), result("second"))
    assert outcomes == ["stored", "existing"]
    assert get(store, "a") == expect("first")
    assert store.status().objects == 1


def test_equal_tensors_under_two_keys_are_one_object(store: casstore.Store) -> None:
    """Tensors are stored once, in a group and across groups, while each key keeps its own values."""
    tensor = {"t": np.arange(9)}
    put(store, a={**tensor, "n": 1}, b={**tensor, "n": 2})
    put(store, c={**tensor, "n": 3})
    assert len(object_files(store.path)) == 1
    assert [get(store, name) for name in NAMES] == [{"t": list(range(9)), "n": n} for n in (1, 2, 3)]


def test_another_writers_different_result_is_dropped(store: casstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another process stored under a key first stays, although this process staged its own beforehand."""

    real = putting.make_durable

    def link(*arguments: Any) -> None:
        real(*arguments)
        monkeypatch.setattr(putting, "make_durable", real)
        in_child(lambda: put(store, a=result("theirs")))

    monkeypatch.setattr(putting, "make_durable", link)
    put(store, a=result("ours"))
    assert get(store, "a") == expect("theirs")
    assert store.status().objects == 1
    assert temps(store) == []


def test_racing_get_or_encode_all_return_what_is_stored(store: casstore.Store) -> None:
    """Two processes that both encode a missing key, with different results, return the same one: the stored one."""

    def work(me: Child) -> Any:
        def encode() -> dict[str, Any]:
            me.say("encoding")
            me.hear()
            return result(str(os.getpid()))

        return plain(store.get_or_encode(key("a"), encode, as_numpy=True))

    with child(work) as one, child(work) as two:
        assert [one.hear(), two.hear()] == ["encoding"] * 2
        one.say()
        two.say()
        found = [one.result(), two.result()]
    assert found == [get(store, "a")] * 2


def test_get_or_encode_calls_the_function_only_on_a_miss(store: casstore.Store) -> None:
    """The function is called once; the first call and all later ones return what `get` returns."""
    calls: list[int] = []

    def encode() -> dict[str, Any]:
        calls.append(1)
        return {"t": np.arange(3), "n": (1, 2)}

    for _ in range(3):
        found = plain(store.get_or_encode(key("a"), encode, as_numpy=True))
        assert found == get(store, "a") == {"t": [0, 1, 2], "n": [1, 2]}
    assert calls == [1]


# -- damage and races --------------------------------------------------------------------------------------------------


@pytest.fixture
def damaged(store: casstore.Store) -> casstore.Store:
    """a and b share an object whose file was overwritten; c has one of its own. verify has seen it."""
    put(store, c=result("c"), **{name: {"t": np.arange(99), "n": name} for name in ("a", "b")})
    path = object_file(store, "a")
    overwrite(path, bytes(path.stat().st_size))
    assert store.verify(deep=True).damaged == 1
    assert [get(store, name) for name in NAMES] == ["damaged", "damaged", expect("c")]
    return store


def test_a_put_over_a_damaged_object_heals_every_key_that_uses_it(damaged: casstore.Store) -> None:
    """One put of the same tensors makes both keys servable again, values included, with their rows untouched."""
    put(damaged, a={"t": np.arange(99), "n": "another"})
    assert [get(damaged, name) for name in ("a", "b")] == [{"t": list(range(99)), "n": name} for name in ("a", "b")]
    assert damaged.verify(deep=True).damaged == 0
    assert damaged.status().variants == 3


@pytest.mark.parametrize("links", [True, False])
def test_a_damaged_file_is_kept_in_quarantine_when_it_is_replaced(
    damaged: casstore.Store, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes that were found are kept under their digest, with and without hard links."""
    path = object_file(damaged, "c").parents[1]
    (found,) = [p for p in path.glob("*/*") if not any(p.read_bytes())]
    old = found.read_bytes()
    if not links:
        monkeypatch.setattr(fsio, "link", lambda *_: False)
    put(damaged, a={"t": np.arange(99), "n": "a"})
    (kept,) = Path(damaged.path, "quarantine").iterdir()
    assert kept.name.startswith(found.stem)
    assert kept.read_bytes() == old != found.read_bytes()


def test_another_result_for_a_damaged_key_takes_its_place(damaged: casstore.Store) -> None:
    """Where the new tensors differ the key gets them, and the other user of the damaged object stays a miss."""
    put(damaged, a=result("new"))
    assert [get(damaged, name) for name in NAMES] == [expect("new"), "damaged", expect("c")]


@pytest.mark.parametrize(
    "change", [lambda p: p.unlink(), lambda p: overwrite(p, b"short"), lambda p: overwrite(p, b"")]
)
def test_an_object_whose_file_is_gone_or_cut_is_put_again(
    store: casstore.Store, change: Callable[[Path], None]
) -> None:
    """A row without a file of its size isn't trusted, marked or not: a put stores the object anew."""
    put(store, "a")
    change(object_file(store, "a"))
    put(store, "a")
    assert get(store, "a") == expect("a")


def test_an_orphan_at_the_final_path_is_never_trusted(store: casstore.Store) -> None:
    """A file that has no row is replaced by what was staged, even if it has the right name and size."""
    put(store, "a")
    path = object_file(store, "a")
    store.forget(key("a")).execute()
    store.gc(yes=True, grace_hours=0)
    assert not path.exists()
    put(store, "b")
    path.write_bytes(bytes(object_file(store, "b").stat().st_size))
    put(store, "a")
    assert get(store, "a") == expect("a")
    assert store.verify(deep=True).damaged == 0


def test_an_object_that_was_swept_meanwhile_is_staged_after_all(
    store: casstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object that is there at the first look and swept before the commit is written and stored all the same."""
    put(store, "a", "b")
    store.forget(key("a")).execute()
    real = putting.make_durable

    def link(*arguments: Any) -> None:
        monkeypatch.setattr(putting, "make_durable", real)
        assert in_child(lambda: casstore.open(store.path).gc(yes=True, grace_hours=0).swept) == 1
        real(*arguments)

    monkeypatch.setattr(putting, "make_durable", link)
    put(store, "a", "c")
    assert [get(store, name) for name in NAMES] == [expect(name) for name in NAMES]
    assert temps(store) == []


def test_a_condemned_object_that_is_put_again_is_alive(store: casstore.Store) -> None:
    """A put of a condemned object takes its mark away, so that no later sweep takes the object."""
    put(store, "a")
    store.forget(key("a")).execute()
    assert store.gc(yes=True, grace_hours=9).condemned == 1
    put(store, "a")
    assert sql(store, "SELECT condemned_at FROM objects") == [(None,)]
    store.gc(yes=True, grace_hours=0)
    assert get(store, "a") == expect("a")


def test_a_condemned_object_of_a_living_key_is_revived_by_a_put(store: casstore.Store) -> None:
    """A mark that shouldn't be there (an old index was put back, say) doesn't make the put look done."""
    put(store, "a")
    sql(store, "UPDATE objects SET condemned_at = 1")
    put(store, "a")
    assert sql(store, "SELECT condemned_at FROM objects") == [(None,)]


def test_a_busy_index_fails_the_put_and_stores_nothing(store: casstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """While another process holds the write lock for too long a put is a typed error that leaves no temp."""
    monkeypatch.setattr("casstore.index.engine.BUSY_SECONDS", 0.05)

    def hold(me: Child) -> None:
        with handle_of(store).index.write():
            me.say("held")
            me.hear()

    with child(hold) as holder:
        assert holder.hear() == "held"
        with pytest.raises(StoreBusyError):
            put(store, "a")
    assert (get(store, "a"), temps(store)) == ("new", [])
    put(store, "a")
    assert get(store, "a") == expect("a")


# -- batches -----------------------------------------------------------------------------------------------------------


def commits(store: casstore.Store, count: int) -> list[int]:
    """Sizes of the groups in which `count` results are committed, the last of them at the end of the batch."""
    groups: list[int] = []
    with Batch(handle_of(store), on_commit=lambda _, outcomes: groups.append(len(outcomes))) as batch:
        for number in range(count):
            batch.put(key(str(number)), {"t": np.array([number])})
    return groups


def test_a_group_is_committed_after_64_results(store: casstore.Store) -> None:
    """130 small results make groups of 64, 64 and 2."""
    assert commits(store, 130) == [64, 64, 2]


def test_a_group_is_committed_when_enough_bytes_have_gathered(
    store: casstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The payload bytes of a group are counted, and begin at nothing after each commit."""
    assert (batches.GROUP_OBJECTS, batches.GROUP_BYTES, batches.GROUP_SECONDS) == (64, 32 << 20, 1.0)
    payload = 72  # an element of 8 bytes behind a header of 64
    monkeypatch.setattr(batches, "GROUP_BYTES", 3 * payload)
    assert commits(store, 7) == [3, 3, 1]


def test_a_group_is_committed_when_enough_time_has_gone_by(
    store: casstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no patience at all each result is a group of its own."""
    monkeypatch.setattr(batches, "GROUP_SECONDS", 0)
    assert commits(store, 3) == [1, 1, 1]


def test_an_exception_inside_the_batch_still_commits(store: casstore.Store) -> None:
    """What was put before the exception is stored, and the exception comes out unchanged."""
    with pytest.raises(ZeroDivisionError), store.batch() as batch:
        batch.put(key("a"), result("a"))
        batch.put(key("b"), {"t": np.ones(1) * (1 // 0)})
    assert [get(store, "a"), get(store, "b")] == [expect("a"), "new"]


def test_a_refused_result_costs_the_others_nothing(store: casstore.Store) -> None:
    """A result that can't be stored raises at its put; the rest of the batch is stored."""
    with store.batch() as batch:
        batch.put(key("a"), result("a"))
        assert outcome(batch.put, key("b"), {"t": np.array([np.nan])}) == "NonFiniteError"
        batch.put(key("c"), result("c"))
    assert [get(store, name) for name in NAMES] == [expect("a"), "new", expect("c")]


def test_the_caller_may_overwrite_its_tensor_right_after_the_put(store: casstore.Store) -> None:
    """A put copies: one buffer that is used again and again gives as many different results."""
    buffer = np.zeros(4)
    with store.batch() as batch:
        for number, name in enumerate(NAMES):
            buffer[:] = number
            batch.put(key(name), {"t": buffer})
    assert [get(store, name) for name in NAMES] == [{"t": [float(n)] * 4} for n in range(3)]


# -- values ------------------------------------------------------------------------------------------------------------


def test_values_come_back_as_the_types_that_json_has(store: casstore.Store) -> None:
    """1.0 stays a float, True a bool, a big integer exact; tuples become lists, NumPy scalars plain numbers."""
    values = {"f": 1.0, "i": 1, "b": True, "n": None, "s": "é\0", "big": 2**63 - 1, "d": {"x": [1.5, {}]}}
    with store.batch() as batch:
        batch.put(key("a"), {"t": np.zeros(1), "tuple": (0, (1,)), "np": np.float32(0.5)}, values)
    found = get(store, "a")
    assert found == {"t": [0.0], "tuple": [0, [1]], "np": 0.5, **values}
    assert isinstance(found, dict)
    assert {name: type(found[name]) for name in values} == {name: type(value) for name, value in values.items()}


def test_a_value_of_the_result_wins_over_one_of_that_name_beside_it(store: casstore.Store) -> None:
    """The names of a result are disjoint: what the encoder returned stands, tensor or not."""
    with store.batch() as batch:
        batch.put(key("a"), {"t": np.zeros(1), "v": 1}, {"t": "no", "v": 2, "w": 3})
    assert get(store, "a") == {"t": [0.0], "v": 1, "w": 3}


def test_names_that_differ_only_in_their_normal_form_cost_no_tensor(store: casstore.Store) -> None:
    """A tensor and a value whose names are one after normalisation are both kept, or the result is refused."""
    composed, decomposed = "\u00e9", "e\u0301"
    try:
        put(store, a={composed: np.arange(2), decomposed: 1})
    except EncoderError:
        return
    assert get(store, "a") == {composed: [0, 1], decomposed: 1}


@pytest.mark.parametrize(
    ("bad", "names"),
    [
        ({"a.b": np.zeros(1)}, "a.b"),
        ({"t": np.zeros(1), "v.w": 1}, "v.w"),
        ({"": np.zeros(1)}, "''"),
        ({1: np.zeros(1)}, "1"),
        ({"t": np.zeros(1), "v": {1, 2}}, "v"),
        ({"t": np.zeros(1), "v": float("nan")}, "v"),
        ({"t": np.array(["x"])}, "t"),
        ({"v": 1}, "v"),
        ({}, "nothing"),
        ([np.zeros(1)], "list"),
    ],
)
def test_a_result_that_cant_be_stored_is_refused_by_name(store: casstore.Store, bad: Any, names: str) -> None:
    """Dots in names, values that JSON can't hold, odd dtypes and results without a tensor are refused by name."""
    with pytest.raises(EncoderError, match=names), store.batch() as batch:
        batch.put(key("a"), bad)
    assert get(store, "a") == "new"


def test_a_name_with_a_dot_among_the_extra_values_is_refused(store: casstore.Store) -> None:
    """The dot is reserved in all names, also in those of the values that are given beside the result."""
    with pytest.raises(EncoderError, match=r"v\.w"), store.batch() as batch:
        batch.put(key("a"), result("a"), {"v.w": 1})


def test_flipping_a_bit_of_a_stored_file_changes_nothing_about_a_later_put_of_others(store: casstore.Store) -> None:
    """Damage that nobody has seen yet stays where it is; other keys are put and got as ever."""
    put(store, "a")
    path = object_file(store, "a")
    overwrite(path, flipped(path.read_bytes(), 200))
    put(store, "b")
    assert [get(store, "b"), get(store, "a")] == [expect("b"), "damaged"]


def test_a_batch_takes_nothing_after_its_block(store: casstore.Store) -> None:
    """A put that nobody would ever commit is refused."""
    with store.batch() as batch:
        pass
    with pytest.raises(casstore.errors.UsageError, match="ended"):
        batch.put(key("a"), result("a"))


def test_a_batch_without_a_block_is_committed_by_close(tmp_path: Path) -> None:
    """What was put is there, also when nobody flushed."""
    with casstore.open(tmp_path / "s", create=True, durability="off") as store:
        store.batch().put(key("a"), result("a"))
    with casstore.open(tmp_path / "s") as store:
        assert get(store, "a") == expect("a")


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_something_else_under_an_objects_name_is_damage_that_heals(store: casstore.Store, kind: str) -> None:
    """A folder or a symbolic link where an object should be makes a miss; a put moves it aside."""
    put(store, "a")
    path = object_file(store, "a")
    path.unlink()
    if kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/etc/hostname")
    assert get(store, "a") == "damaged"
    put(store, "a")
    assert get(store, "a") == expect("a")
    assert len(os.listdir(os.path.join(store.path, "quarantine"))) == 1


def test_a_file_of_another_size_is_kept_when_it_is_replaced(store: casstore.Store) -> None:
    """Also damage that nobody has marked yet goes to quarantine, not to nothing."""
    put(store, "a")
    overwrite(object_file(store, "a"), b"short")
    put(store, "a")
    assert get(store, "a") == expect("a")
    (kept,) = os.listdir(os.path.join(store.path, "quarantine"))
    assert Path(store.path, "quarantine", kept).read_bytes() == b"short"
