"""Many builders: each item is encoded once, whoever runs, dies, fails, stops or waits."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from core.helpers import Child, child
from kit import ROOT, FakeEncoder, build, check_counts, object_files, picture, pictures
from many import LONG, Held, run, traces, waiting

import casstore
from casstore.build.claims import Owner
from casstore.errors import BuildStopped

RECIPE = casstore.Recipe("many", code=1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pictures(tmp_path / "data", 12)
    return tmp_path / "data"


def plan_of(store: casstore.Store, folder: Path, order: int = 0) -> Any:
    """A plan of a folder's pictures in any order."""
    paths = sorted(folder.iterdir())
    random.Random(order).shuffle(paths)
    rows = [{"sample": path.name, "image": path} for path in paths]
    return store.plan(store.inputs(rows), FakeEncoder().recipe, resolution="64x64")


def at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let two builders have claimed something before either of them claims more."""
    real, both = Owner.claim, threading.Barrier(2)

    def claim(self: Owner, *arguments: Any) -> Any:
        claimed = real(self, *arguments)
        if not hasattr(self, "met"):
            self.met = True  # type: ignore[attr-defined]
            both.wait(LONG)
        return claimed

    monkeypatch.setattr(Owner, "claim", claim)


# -- together --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("orders", [(0, 0), (1, 2)], ids=["same order", "other orders"])
def test_two_builders_encode_each_item_once(store: casstore.Store, folder: Path, orders: Any) -> None:
    """Two builders with the whole list, planned before: both encode, each item is encoded once, all is stored, and what
    one hasn't encoded is reported as done by others."""
    both = threading.Barrier(2)

    def meet(encoder: FakeEncoder) -> Callable[[Any], None]:
        return lambda _: None if encoder.batches else (both.wait(LONG), None)[1]

    plans = [plan_of(store, folder, order) for order in orders]
    encoders = [FakeEncoder(), FakeEncoder()]
    for encoder in encoders:
        encoder.before = meet(encoder)
    jobs = [run(store.build, plan, encoder, batch_size=2) for plan, encoder in zip(plans, encoders, strict=True)]
    reports = [check_counts(job.result(LONG)) for job in jobs]
    assert sorted(encoders[0].seen + encoders[1].seen) == sorted(path.name for path in folder.iterdir())
    assert [report.encoded for report in reports] == [len(encoder.seen) for encoder in encoders]
    assert [report.by_others for report in reports] == [12 - report.encoded for report in reports]
    assert (plan_of(store, folder).hits, traces(store)) == (12, [])


class TextEncoder:
    """Makes a tensor of each text, and appends the text to a file."""

    recipe = RECIPE

    def __init__(self, log: Path) -> None:
        self.log = log

    def __call__(self, items: list[casstore.Item]) -> list[dict[str, Any]]:
        import numpy as np

        assert all(item.text is not None for item in items)
        with open(self.log, "a") as log:  # each line by one call of the system
            log.write("".join(f"{item.text}\n" for item in items))
        return [{"hidden": np.full((4, 4), float(len(str(item.text))), dtype=np.float32)} for item in items]


TEXTS = [f"a red cat, number {number}" for number in range(25)]


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize("rounds", [20, pytest.param(200, marks=pytest.mark.nightly)])
@pytest.mark.timeout(1800)
def test_eight_processes_encode_each_item_once(tmp_path: Path, rounds: int) -> None:
    """8 processes with the same 25 items in other orders, each round with a new store: every item is encoded once by
    one of them, all of them report all items, and no trace of them stays."""

    def work(me: Child) -> Any:
        while (path := me.hear()) is not None:
            rng = random.Random(os.getpid())
            with casstore.open(path) as store:
                rows = [{"caption": text} for text in rng.sample(TEXTS, len(TEXTS))]
                plan = store.plan(store.inputs(rows), RECIPE, role="caption")
                me.say()
                me.hear()
                report = check_counts(store.build(plan, TextEncoder(Path(path, "log")), batch_size=rng.randrange(1, 4)))
            me.say([report.encoded, report.by_others])

    with ExitStack() as living:
        builders = [living.enter_context(child(work)) for _ in range(8)]
        for number in range(rounds):
            path = tmp_path / str(number)
            with casstore.open(path, create=True, durability="off") as store:
                for builder in builders:
                    builder.say(str(path))
                for builder in builders:
                    builder.hear()
                for builder in builders:
                    builder.say()
                counts = [builder.hear() for builder in builders]
                assert sorted((path / "log").read_text().splitlines()) == sorted(TEXTS)
                assert sum(encoded for encoded, _ in counts) == 25
                assert all(encoded + others == 25 for encoded, others in counts)
                plan = store.plan(store.inputs([{"caption": text} for text in TEXTS]), RECIPE, role="caption")
                assert (plan.hits, len(os.listdir(path / "locks" / "owners"))) == (25, 1)
                assert store.sql("SELECT * FROM owners").rows == []
            shutil.rmtree(path)
        for builder in builders:
            builder.say(None)
            builder.result()


def test_one_that_has_nothing_left_waits_for_the_other(
    store: casstore.Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A builder whose every item another one has claimed encodes nothing, waits, and reports all as done by others."""
    seen, first, second = waiting(monkeypatch), Held(), FakeEncoder()
    plans = [plan_of(store, folder), plan_of(store, folder)]
    busy = run(store.build, plans[0], first, batch_size=12)
    assert first.there.wait(LONG)
    idle = run(store.build, plans[1], second, batch_size=12)
    assert seen.wait(LONG)
    first.go.set()
    assert check_counts(busy.result(LONG)).encoded == 12
    report = check_counts(idle.result(LONG))
    assert (report.by_others, second.seen, traces(store)) == (12, [], [])


def test_a_rank_begins_at_its_own_place(store: casstore.Store, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RANK and WORLD_SIZE choose where in the list a builder starts; alone it builds everything all the same."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    encoder = FakeEncoder()
    assert check_counts(build(store, folder, encoder)).encoded == 12
    assert encoder.seen == [f"p{number % 12:03}.png" for number in range(6, 18)]


# -- failures --------------------------------------------------------------------------------------------------------


def test_a_failure_of_one_is_reported_by_the_other_and_not_tried(
    store: casstore.Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one builder fails on while the other is at work, the other reports with the same message and doesn't try;
    the next build tries it."""
    seen, first, second = waiting(monkeypatch), Held(), FakeEncoder()
    first.change = {"p003.png": lambda result: None}
    plans = [plan_of(store, folder), plan_of(store, folder)]
    busy = run(store.build, plans[0], first, batch_size=12)
    assert first.there.wait(LONG)
    idle = run(store.build, plans[1], second, batch_size=12)
    assert seen.wait(LONG)
    first.go.set()
    reports = [check_counts(busy.result(LONG)), check_counts(idle.result(LONG))]
    assert reports[0].failures == reports[1].failures and reports[0].failures[0].sample == "p003.png"
    assert (reports[1].by_others, second.seen, traces(store)) == (11, [], [])
    again = FakeEncoder()
    assert check_counts(build(store, folder, again)).encoded == 1
    assert again.seen == ["p003.png"]


def spoil_change(store: casstore.Store, paths: list[Path]) -> None:
    for path in paths:
        picture(path, seed=99)


def spoil_vanish(store: casstore.Store, paths: list[Path]) -> None:
    for path in paths:
        path.unlink()


def spoil_truncate(store: casstore.Store, paths: list[Path]) -> None:
    """Let the files be what they were, but their encodes fail."""


@pytest.mark.parametrize("spoil", [spoil_change, spoil_vanish, spoil_truncate], ids=["changed", "vanished", "failing"])
def test_builders_that_fail_do_not_wait_for_each_other(
    store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Any
) -> None:
    """Two builders that have claimed half of the items each, which all fail, and are left with those of the other: both
    end, and both report all."""
    folder = tmp_path / "data"
    pictures(folder, 4)
    at_the_same_time(monkeypatch)
    rows = [{"sample": path.name, "image": path} for path in sorted(folder.iterdir())]
    recipe = FakeEncoder().recipe
    plans = [store.plan(store.inputs(given), recipe, resolution="64x64") for given in (rows, [*rows[2:], *rows[:2]])]
    spoil(store, sorted(folder.iterdir()))
    change = dict.fromkeys([row["sample"] for row in rows], lambda result: None)
    jobs = [run(store.build, plan, FakeEncoder(change=change), batch_size=1) for plan in plans]
    for job in jobs:
        report = check_counts(job.result(LONG))
        assert report.failed == 4
    assert traces(store) == []


def test_builders_that_heal_do_not_wait_for_each_other(
    store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects that are lost and encoded again, to the same bytes, are free again when they are stored: two builders
    that heal some of them each both end."""
    folder = tmp_path / "data"
    pictures(folder, 4)
    build(store, folder, FakeEncoder())
    for path in object_files(store.path):
        path.unlink()
    store.verify()
    at_the_same_time(monkeypatch)
    rows = [{"sample": path.name, "image": path} for path in sorted(folder.iterdir())]
    recipe = FakeEncoder().recipe
    plans = [store.plan(store.inputs(given), recipe, resolution="64x64") for given in (rows, [*rows[2:], *rows[:2]])]
    assert dict(plans[0].reasons) == {"damaged": 4}
    encoders = [FakeEncoder(), FakeEncoder()]
    jobs = [run(store.build, plan, encoder, batch_size=1) for plan, encoder in zip(plans, encoders, strict=True)]
    reports = [check_counts(job.result(LONG)) for job in jobs]
    assert [report.encoded + report.by_others for report in reports] == [4, 4]
    assert sum(report.encoded for report in reports) == len(encoders[0].seen + encoders[1].seen) == 4
    assert (store.verify(deep=True).findings, traces(store)) == ((), [])


def test_an_old_failure_from_a_wrong_clock_is_tried_again(store: casstore.Store, folder: Path) -> None:
    """A failure that was stored while the clock was years ahead doesn't count as one of this build."""
    build(store, folder, FakeEncoder(change={"p003.png": lambda result: None}))
    with store._handle.index.write() as connection:
        connection.exec_driver_sql("UPDATE failures SET last_at = last_at + 100000000000")
    assert check_counts(build(store, folder, FakeEncoder())).encoded == 1


# -- deaths and stops ------------------------------------------------------------------------------------------------


def exit_at_once() -> None:
    os._exit(1)


def kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize("die", [exit_at_once, kill_itself])
def test_the_claims_of_the_dead_are_taken_over(store: casstore.Store, folder: Path, die: Any) -> None:
    """After an encoder has ended its process the next builder encodes what that one had claimed, at once, and removes
    its traces."""

    def work(me: Child) -> None:
        def before(items: list[casstore.Item]) -> None:
            if len(encoder.batches) == 1:
                me.say("dying")
                die()

        encoder = FakeEncoder(before=before)
        with casstore.open(store.path) as mine:
            mine.build(plan_of(mine, folder), encoder, batch_size=2)

    with child(work) as builder:
        assert builder.hear() == "dying"
        os.waitid(os.P_PID, builder.pid, os.WEXITED | os.WNOWAIT)
        assert store.sql("SELECT count(*) FROM claims").rows != [(0,)]
        assert check_counts(build(store, folder, FakeEncoder())).encoded == 12
    # What the dead one's handle has left is gc's.
    store.gc(yes=True, grace_hours=0)
    assert traces(store) == []


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_one_that_waits_takes_over_from_the_other_when_that_dies(
    store: casstore.Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A builder that waits for another's items encodes them itself once the other has been killed."""

    def work(me: Child) -> None:
        def hold(items: list[casstore.Item]) -> None:
            me.say("busy")
            me.hear()

        with casstore.open(store.path) as mine:
            mine.build(plan_of(mine, folder), FakeEncoder(before=hold), batch_size=12)

    seen, plan = waiting(monkeypatch), plan_of(store, folder)
    with child(work) as builder:
        assert builder.hear() == "busy"
        job = run(store.build, plan, FakeEncoder())
        assert seen.wait(LONG)
        builder.end()
        assert check_counts(job.result(LONG)).encoded == 12
    store.gc(yes=True, grace_hours=0)
    assert traces(store) == []


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_builder_removes_the_rows_of_all_dead_owners(store: casstore.Store, folder: Path, tmp_path: Path) -> None:
    """Rows of a dead builder go with the next build, also if that is about other items."""

    def work(me: Child) -> None:
        with casstore.open(store.path) as mine:
            mine.build(plan_of(mine, folder), FakeEncoder(before=lambda items: kill_itself()))

    with child(work) as builder:
        os.waitid(os.P_PID, builder.pid, os.WEXITED | os.WNOWAIT)
    assert len(store.sql("SELECT * FROM owners").rows) == 1
    pictures(tmp_path / "other", 1, size=(32, 32))
    build(store, tmp_path / "other", FakeEncoder())
    assert store.sql("SELECT name FROM owners UNION ALL SELECT hex(key) FROM claims").rows == []


def test_a_stop_gives_the_claims_to_the_other_at_once(
    store: casstore.Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When one builder is stopped, another that waits for it encodes what is left, while the first one's process goes
    on living."""
    seen, first, second, stop = waiting(monkeypatch), Held(1), FakeEncoder(), threading.Event()
    plans = [plan_of(store, folder), plan_of(store, folder)]
    # As it claims two batches at a time, it has claimed all.
    busy = run(store.build, plans[0], first, batch_size=6, stop=stop)
    assert first.there.wait(LONG)
    idle = run(store.build, plans[1], second, batch_size=6)
    assert seen.wait(LONG)
    first.change = {"p000.png": lambda result: None}
    stop.set()
    first.go.set()
    with pytest.raises(BuildStopped) as stopped:
        busy.result(LONG)
    assert stopped.value.report is not None
    report = check_counts(idle.result(LONG))
    assert report.encoded + report.by_others + report.failed == 12
    assert len(first.seen) + len(second.seen) == 12 and traces(store) == []


# -- builds in builds ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pooled", [False, True])
def test_a_build_in_an_encoder_of_the_same_items_is_an_error(store: casstore.Store, folder: Path, pooled: bool) -> None:
    """A build that would wait for the one whose encoder it runs in raises a UsageError, which fails the items of that
    call; also in an executor."""
    plan = plan_of(store, folder)

    def nested(items: list[casstore.Item]) -> None:
        store.build(plan, FakeEncoder())

    with ThreadPoolExecutor(1) as pool:
        report = store.build(plan, FakeEncoder(before=nested), batch_size=12, executor=pool if pooled else None)
    assert {failure.error for failure in check_counts(report).failures} == {"UsageError"}
    assert "inside an encoder" in report.failures[0].message
    assert traces(store) == []


def test_a_build_in_an_encoder_of_other_items_works(store: casstore.Store, folder: Path, tmp_path: Path) -> None:
    """An encoder may build something else that it needs."""
    pictures(tmp_path / "other", 3, size=(32, 32))

    def nested(items: list[casstore.Item]) -> None:
        if not encoder.batches:
            assert check_counts(build(store, tmp_path / "other", FakeEncoder())).encoded == 3

    encoder = FakeEncoder(before=nested)
    assert check_counts(build(store, folder, encoder)).encoded == 12


# -- containers ------------------------------------------------------------------------------------------------------

UNSHARE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
IN_A_NAMESPACE = """
import os, sys
from pathlib import Path
import casstore
from kit import FakeEncoder, build
def hold(items):
    os.write(1, b"%d\\n" % os.getpid())
    sys.stdin.read()
with casstore.open(sys.argv[1]) as store:
    build(store, Path(sys.argv[2]), FakeEncoder(before=hold), batch_size=12)
"""


def test_owners_in_another_pid_namespace_are_seen_to_live_and_to_die(
    store: casstore.Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A builder in another pid namespace, as in a container, is waited for while it lives, whatever its number means
    here, and taken over from when it is dead."""
    if not shutil.which("unshare") or subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode:
        pytest.skip("making a pid namespace isn't allowed here")
    path = os.pathsep.join([str(ROOT / "tests"), str(ROOT)])
    command = [*UNSHARE, sys.executable, "-c", IN_A_NAMESPACE, store.path, str(folder)]
    seen, plan = waiting(monkeypatch), plan_of(store, folder)
    environment = {**os.environ, "PYTHONPATH": path}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as other:
        assert other.stdout is not None
        assert int(other.stdout.readline()) < 100, "its number is one of its own namespace"
        job = run(store.build, plan, FakeEncoder())
        assert seen.wait(LONG)
        other.kill()
        assert check_counts(job.result(LONG)).encoded == 12
