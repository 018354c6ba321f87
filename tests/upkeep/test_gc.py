"""gc and forget: nothing that is needed ever goes, and what isn't goes when its time has come."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import hypothesis.strategies as some
import numpy as np
import pytest
from core.helpers import (
    Child,
    child,
    examples,
    expect,
    fast_folder,
    get,
    handle_of,
    key,
    object_file,
    put,
    result,
    sql,
    temps,
    tree,
)
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from kit import object_files

import casstore
from casstore import fsio
from casstore.core import put as putting
from casstore.errors import StoreBusyError, UsageError
from casstore.locks import FileLock
from casstore.upkeep import gc as collecting

HOUR = 3_600_000


def forget(store: casstore.Store, *names: str) -> None:
    for name in names:
        store.forget(key(name)).execute()


def sweep(store: casstore.Store) -> casstore.model.GcReport:
    return store.gc(yes=True, grace_hours=0)


def later(patch: pytest.MonkeyPatch, hours: float) -> None:
    """Let gc believe that it is later (ctimes can't be set back)."""
    real = collecting.now_ms
    patch.setattr(collecting, "now_ms", lambda: real() + round(hours * HOUR))


# -- against a model ---------------------------------------------------------------------------------------------------


class Upkeep(RuleBasedStateMachine):
    """Puts, forgets, damage and gc in any order, against a dict; the results are few, so that keys share objects."""

    names, numbers = some.sampled_from("abcd"), some.sampled_from("xyz")

    def __init__(self) -> None:
        super().__init__()
        self.folder = contextlib.ExitStack()
        place = self.folder.enter_context(fast_folder())
        self.store = casstore.open(place / "s", create=True, durability="off")
        self.model: dict[str, str] = {}
        self.damaged: set[str] = set()

    @rule(name=names, number=numbers)
    def put(self, name: str, number: str) -> None:
        put(self.store, **{name: result(number)})
        if self.model.get(name) in {None, *self.damaged}:
            self.model[name] = number
            self.damaged.discard(number)

    @rule(name=names)
    def forget(self, name: str) -> None:
        plan = self.store.forget(key(name))
        assert plan.execute() == plan.variants == (self.model.pop(name, None) is not None)

    @rule(name=names)
    def lose(self, name: str) -> None:
        if name in self.model and self.model[name] not in self.damaged:
            object_file(self.store, name).unlink()
            self.store.verify()
            self.damaged.add(self.model[name])

    @rule(grace=some.sampled_from([0, 24]))
    def gc(self, grace: float) -> None:
        dry, done = self.store.gc(grace_hours=grace), self.store.gc(yes=True, grace_hours=grace)
        assert (dry.condemned, dry.would_free_bytes) == (done.condemned, done.freed_bytes)
        if not grace:
            assert self.store.status().objects == len(set(self.model.values()))
            known = {row[0] for row in self.store.sql("SELECT digest FROM v_objects").rows}
            assert {path.stem for path in object_files(self.store.path)} <= known

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = casstore.open(self.store.path)

    @invariant()
    def everything_is_served(self) -> None:
        for name in "abcd":
            number = self.model.get(name)
            right = "new" if number is None else "damaged" if number in self.damaged else expect(number)
            assert get(self.store, name) == right

    def teardown(self) -> None:
        with self.folder, self.store:
            marked = self.store.sql(
                "SELECT digest FROM v_objects WHERE damaged_at IS NOT NULL AND condemned_at IS NULL"
            )
            assert {finding.name for finding in self.store.verify(deep=True).findings} == {
                row[0] for row in marked.rows
            }
            assert temps(self.store) == []


Upkeep.TestCase.settings = settings(max_examples=examples(15), stateful_step_count=20)
TestUpkeep = Upkeep.TestCase


# -- condemn, sweep ----------------------------------------------------------------------------------------------------


def test_a_dry_run_says_what_would_go_and_changes_nothing(tmp_path: Path) -> None:
    """Without yes the whole directory stays as it is, byte by byte; with it, what was told is freed."""
    with casstore.open(tmp_path / "s", create=True, durability="off") as store:
        put(store, "a", "b")
        forget(store, "a")
        size = sum(path.stat().st_size for path in object_files(store.path)) - object_file(store, "b").stat().st_size
    before = tree(tmp_path)
    with casstore.open(tmp_path / "s") as store:
        dry = store.gc(grace_hours=0)
    assert (dry.condemned, dry.swept, dry.freed_bytes, dry.would_free_bytes) == (1, 0, 0, size)
    assert tree(tmp_path) == before
    with casstore.open(tmp_path / "s") as store:
        done = sweep(store)
        assert (done.condemned, done.swept, done.freed_bytes, done.would_free_bytes) == (1, 1, size, 0)
        assert object_files(store.path) == [object_file(store, "b")]


def test_condemned_objects_wait_for_the_grace_to_end(store: casstore.Store) -> None:
    """The first gc condemns, later ones sweep only what was condemned longer ago than the grace."""
    put(store, "a", "b")
    forget(store, "a", "b")
    first = store.gc(yes=True, grace_hours=24)
    assert (first.condemned, first.swept, first.waiting) == (2, 0, 2)
    sql(store, "UPDATE objects SET condemned_at = condemned_at - ? WHERE id = 1", 24 * HOUR)
    sql(store, "UPDATE objects SET condemned_at = condemned_at - ? WHERE id = 2", 23 * HOUR)
    assert store.gc(grace_hours=24).would_free_bytes > 0
    second = store.gc(yes=True, grace_hours=24)
    assert (second.condemned, second.swept, second.waiting) == (0, 1, 1)
    assert len(object_files(store.path)) == 1


def test_the_grace_of_casstore_toml_is_used_and_checked(store: casstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """gc() without a grace reads the file each time: hours as a number, 24 if nothing stands there."""
    toml = Path(store.path, "casstore.toml")
    put(store, "a")
    forget(store, "a")
    assert store.gc(yes=True).condemned == 1
    toml.write_text("[gc]\ngrace_hours = 2.5\n")
    later(monkeypatch, 2.4)
    assert store.gc(yes=True).swept == 0
    toml.write_text("")
    later(monkeypatch, 0.2)
    assert store.gc(yes=True).swept == 0
    toml.write_text("[gc]\ngrace_hours = 2.5\n")
    assert store.gc(yes=True).swept == 1


@pytest.mark.parametrize(
    "text",
    [
        "[gc]\ngrace_hours = 'long'",
        "[gc]\ngrace_hours = true",
        "[gc]\ngrace_hours = -1",
        "[gc]\ngrace_hours = nan",
        "[gc]\ngrace_hours = inf",
        "[gc]\ngrace_hours = 1e300",
        "gc = 3",
        "[gc",
    ],
)
def test_a_grace_that_cant_be_meant_is_a_usage_error(store: casstore.Store, text: str) -> None:
    """Anything but a number of hours that a clock can count is refused, before anything is removed."""
    Path(store.path, "casstore.toml").write_text(text)
    put(store, "a")
    forget(store, "a")
    for yes in (False, True):
        with pytest.raises(UsageError):
            store.gc(yes=yes)
    assert sql(store, "SELECT condemned_at FROM objects") == [(None,)]


def test_an_object_that_is_referred_to_again_is_spared(store: casstore.Store) -> None:
    """A condemned object that got a reference without losing its mark isn't swept, and loses the mark."""
    put(store, "a")
    sql(store, "UPDATE objects SET condemned_at = 1")
    assert sweep(store).swept == 0
    assert sql(store, "SELECT condemned_at FROM objects") == [(None,)]
    assert get(store, "a") == expect("a")


def test_many_objects_go_in_many_short_transactions(store: casstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sizes of the chunks don't matter to what is condemned and swept."""
    monkeypatch.setattr(collecting, "CONDEMN_CHUNK", 2)
    monkeypatch.setattr(collecting, "SWEEP_CHUNK", 2)
    put(store, *"abcde")
    forget(store, *"bcde")
    done = sweep(store)
    assert (done.condemned, done.swept, store.status().objects) == (4, 4, 1)
    assert get(store, "a") == expect("a")


def test_a_gc_that_is_killed_while_it_sweeps_is_finished_by_the_next(store: casstore.Store) -> None:
    """A kill after the first removed file leaves condemned rows, no lost reference, and no stuck lock."""
    put(store, *"abc")
    forget(store, "a", "b")

    def work() -> None:
        real = fsio.unlink

        def unlink(path: str) -> bool:
            real(path)
            if path.endswith(".cso"):
                os.kill(os.getpid(), signal.SIGKILL)
            return True

        fsio.unlink = unlink
        sweep(store)

    with child(lambda _: work()) as other:
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
    assert sorted(sql(store, "SELECT condemned_at IS NOT NULL FROM objects")) == [(0,), (1,), (1,)]
    assert len(object_files(store.path)) == 2
    put(store, "b")
    assert sweep(store).swept == 1
    assert [get(store, name) for name in "abc"] == ["new", expect("b"), expect("c")]
    assert store.verify(deep=True).damaged == 0


def test_one_gc_runs_at_a_time(store: casstore.Store) -> None:
    """While one runs a second is a typed error at once, dry or not; after it the way is free, also after a kill."""

    def hold(me: Child) -> None:
        FileLock(handle_of(store).directory.lock("gc")).acquire(0)
        me.say()
        me.hear()

    with child(hold) as other:
        other.hear()
        for yes in (False, True):
            with pytest.raises(StoreBusyError, match="another gc"):
                store.gc(yes=yes)
    assert sweep(store).swept == 0


def test_a_gc_is_a_run_that_the_index_remembers(store: casstore.Store) -> None:
    """v_runs tells kind, counts and freed bytes of a gc; a dry run leaves no trace."""
    put(store, "a")
    forget(store, "a")
    store.gc(grace_hours=0)
    done = sweep(store)
    rows = store.sql("SELECT kind, bytes, json_extract(counts, '$.swept') FROM v_runs").rows
    assert rows == [("gc", done.freed_bytes, 1)]


def test_on_a_full_disk_the_ballast_goes_before_the_index_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With less free than the ballast holds it is given up first, and made again when there is room."""
    usage = shutil.disk_usage(tmp_path)
    roomy, full = usage._replace(free=1 << 30), usage._replace(free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: roomy)
    with casstore.open(tmp_path / "s", create=True) as store:
        ballast = tmp_path / "s" / "ballast"
        assert ballast.exists()
        monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
        real, there = collecting.start_run, []
        monkeypatch.setattr(collecting, "start_run", lambda *a: (there.append(ballast.exists()), real(*a))[1])
        sweep(store)
        assert there == [False]
        assert not ballast.exists()
        monkeypatch.setattr(shutil, "disk_usage", lambda _: roomy)
        sweep(store)
        assert ballast.exists()


# -- leftovers ---------------------------------------------------------------------------------------------------------


def until_linked(store: casstore.Store, name: str, *, no_links: bool = False) -> Any:
    """A child that puts a result and stops before it takes the write lock."""

    def work(me: Child) -> Any:
        real = putting.make_durable

        def durable(*arguments: Any) -> None:
            real(*arguments)
            me.say()
            me.hear()

        putting.make_durable = durable
        if no_links:
            fsio.link = lambda *_: False
        with casstore.open(store.path) as mine:
            put(mine, name)
            return get(mine, name)

    return child(work)


def test_files_of_a_living_put_stay(store: casstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another process has written and linked but not committed outlasts any gc, and its put succeeds."""
    later(monkeypatch, 48)
    with until_linked(store, "a") as other:
        other.hear()
        assert (len(temps(store)), len(object_files(store.path))) == (1, 1)
        assert (store.gc(grace_hours=0).leftovers, sweep(store).leftovers) == (0, 0)
        assert (len(temps(store)), len(object_files(store.path))) == (1, 1)
        other.say()
        assert other.result() == expect("a")
    assert sweep(store).leftovers == 0
    assert get(store, "a") == expect("a")


@pytest.mark.parametrize("no_links", [False, True])
def test_files_of_a_dead_put_go(store: casstore.Store, no_links: bool) -> None:
    """After a kill before the commit, gc removes temp, final name and owner lock, and frees what its dry run told."""
    with until_linked(store, "a", no_links=no_links) as other:
        other.hear()
        size = sum(path.stat().st_size for path in Path(store.path, "tmp").iterdir())
        assert size > 0
    assert len(os.listdir(handle_of(store).directory.owners)) == 2
    dry, done = store.gc(grace_hours=0), sweep(store)
    assert (dry.would_free_bytes, done.freed_bytes) == (size, size)
    assert (temps(store), object_files(store.path)) == ([], [])
    assert os.listdir(handle_of(store).directory.owners) == [handle_of(store).owner]
    put(store, "a")
    assert get(store, "a") == expect("a")


def stray(store: casstore.Store, name: str = "ab" * 32 + ".cso") -> Path:
    path = Path(store.path, "objects", "ab", name)
    path.write_bytes(b"x" * 10)
    return path


def test_a_file_without_a_row_goes_when_it_is_older_than_the_grace(
    store: casstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A young stray stays, an old one goes, and both times the dry run says so."""
    path = stray(store)
    later(monkeypatch, 23.9)
    assert (store.gc(grace_hours=24).leftovers, store.gc(yes=True, grace_hours=24).leftovers) == (0, 0)
    assert path.exists()
    later(monkeypatch, 0.2)
    dry, done = store.gc(grace_hours=24), store.gc(yes=True, grace_hours=24)
    assert (dry.leftovers, dry.would_free_bytes, done.leftovers, done.freed_bytes) == (1, 10, 1, 10)
    assert not path.exists()


@pytest.mark.parametrize(
    "name",
    [
        "README",
        "ab" * 32,
        "ab" * 32 + ".st2",
        "ab" * 31 + ".cso",
        "AB" * 32 + ".cso",
        "ab " * 20 + "abcd.cso",
        ".x.cso",
    ],
)
def test_files_that_arent_ours_stay(store: casstore.Store, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever isn't named like an object, temp or owner is left alone, in every folder of the store."""
    later(monkeypatch, 48)
    paths = [stray(store, name), *(Path(store.path, folder, name) for folder in ("tmp", "locks/owners", "quarantine"))]
    for path in paths[1:]:
        path.write_text("theirs")
    assert (store.gc(grace_hours=0).leftovers, sweep(store).leftovers) == (0, 0)
    assert [path.exists() for path in paths] == [True] * 4


def test_a_folder_among_the_temps_stops_no_gc(store: casstore.Store) -> None:
    """A folder in tmp/ or among the owner locks is nothing that gc touches or stumbles over."""
    for place in ("tmp/x", "locks/owners/x"):
        Path(store.path, place).mkdir()
    put(store, "a")
    forget(store, "a")
    assert sweep(store).swept == 1


def test_a_damaged_object_that_is_needed_stays(store: casstore.Store) -> None:
    """Damage is a state: gc takes neither row nor quarantined file, and the next put heals."""
    put(store, "a")
    object_file(store, "a").write_bytes(b"")
    kept = Path(store.path, "quarantine", "x.cso")
    kept.write_bytes(b"x")
    assert get(store, "a") == "damaged"
    assert sweep(store).swept == 0
    assert get(store, "a") == "damaged"
    assert kept.exists()
    put(store, "a")
    assert get(store, "a") == expect("a")


# -- forget ------------------------------------------------------------------------------------------------------------


def test_a_forget_plan_changes_nothing_before_it_is_executed(store: casstore.Store) -> None:
    """Planning counts; executing deletes just those variants, and says how many; again it is none."""
    put(store, "a", "b")
    plan = store.forget(key("a"))
    assert plan.variants == 1
    assert [get(store, name) for name in "ab"] == [expect("a"), expect("b")]
    assert plan.execute() == 1
    assert [get(store, name) for name in "ab"] == ["new", expect("b")]
    assert (plan.execute(), store.forget(key("a")).variants) == (0, 0)
    assert len(object_files(store.path)) == 2, "the objects are gc's"


def test_all_of_a_recipe_is_forgotten_and_nothing_of_another(store: casstore.Store) -> None:
    """A recipe as argument takes its variants of every content."""
    other = casstore.Recipe("other")
    put(store, "a", "b")
    with store.batch() as batch:
        batch.put(key("a", other), {"t": np.zeros(1)})
    assert store.forget(casstore.Recipe("r")).execute() == 2
    assert [get(store, name) for name in "ab"] == ["new", "new"]
    assert store.get(key("a", other), as_numpy=True)["t"].tolist() == [0]


def test_all_of_a_file_is_forgotten_even_when_the_file_has_gone(store: casstore.Store, tmp_path: Path) -> None:
    """A path as argument takes every resolution and recipe of what the index says it holds."""
    from kit import FakeEncoder, build, picture

    path, other = picture(tmp_path / "p" / "a.png", seed=1), picture(tmp_path / "p" / "b.png", seed=2)
    encoder = FakeEncoder()
    for size in ("64x64", "64x128"):
        build(store, tmp_path / "p", encoder, resolution=size)
    path.unlink()
    assert store.forget(path).execute() == 2
    assert store.status().variants == 2
    assert store.get(other, encoder.recipe, resolution="64x64")
