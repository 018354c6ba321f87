"""Stops: Ctrl-C, SIGTERM and the caller end a build in any phase; everything encoded before is stored."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from kit import ROOT, FakeEncoder, build, check_counts, picture, pictures
from many import LONG, Held, run, traces, waiting

import casstore
from casstore.build.claims import Owner
from casstore.errors import BuildInterrupted, BuildStopped, UsageError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pictures(tmp_path / "data", 10)
    return tmp_path / "data"


class StopsAt(FakeEncoder):
    """Stops at its n-th batch, counted from 0."""

    def __init__(self, number: int, how: str, signal_number: int = signal.SIGINT) -> None:
        super().__init__(before=self.stop)
        self.number, self.how, self.signal_number = number, how, signal_number

    def stop(self, items: list[casstore.Item]) -> None:
        if len(self.batches) == self.number:
            if self.how == "raise":
                raise KeyboardInterrupt
            for _ in range(2 if self.how == "twice" else 1):
                os.kill(os.getpid(), self.signal_number)


@pytest.mark.parametrize("number", [0, 1, 4])
@pytest.mark.parametrize(("how", "more"), [("raise", 0), ("signal", 1), ("twice", 0)])
def test_what_was_encoded_before_a_stop_is_stored(
    store: casstore.Store, folder: Path, number: int, how: str, more: int
) -> None:
    """KeyboardInterrupt and SIGINT raise BuildInterrupted with the report; one signal lets the present batch finish, a
    second doesn't; the next build encodes exactly what was left."""
    with pytest.raises(BuildInterrupted) as error:
        build(store, folder, StopsAt(number, how), batch_size=2)
    assert error.value.report is not None
    report = check_counts(error.value.report, stopped=True)
    done = 2 * (number + more)
    assert (report.encoded, report.left, store.status().variants) == (done, 10 - done, done)
    encoder = FakeEncoder()
    again = check_counts(build(store, folder, encoder, batch_size=2))
    assert (again.hits, again.encoded, len(encoder.seen)) == (done, 10 - done, 10 - done)


def test_no_batch_begins_after_a_stop(store: casstore.Store, tmp_path: Path) -> None:
    """A batch that was being gathered when the signal came, here one of another shape, isn't encoded any more."""
    for number in range(4):
        picture(tmp_path / "data" / f"{number}.png", seed=number, size=(64, 64 + 8 * number))
    with pytest.raises(BuildInterrupted) as error:
        build(store, tmp_path / "data", StopsAt(0, "signal"), resolution=None)
    assert check_counts(error.value.report, stopped=True).encoded == 1


def test_a_stop_is_a_keyboard_interrupt(store: casstore.Store, folder: Path) -> None:
    """Code that knows nothing of casstore sees an ordinary Ctrl-C."""
    with pytest.raises(KeyboardInterrupt):
        build(store, folder, StopsAt(1, "signal"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_signal_handlers_are_put_back(store: casstore.Store, folder: Path, number: int) -> None:
    """After a build, stopped or not, a signal does again what it did before."""
    before = signal.getsignal(number)
    with pytest.raises(BuildStopped):
        build(store, folder, StopsAt(0, "signal", number))
    assert signal.getsignal(number) is before
    build(store, folder, FakeEncoder())
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_is_ignored_stays_so(
    store: casstore.Store, folder: Path, number: int, request: pytest.FixtureRequest
) -> None:
    """Where the program ignores a signal, as under nohup, it doesn't stop a build."""
    before = signal.getsignal(number)
    request.addfinalizer(lambda: signal.signal(number, before))
    signal.signal(number, signal.SIG_IGN)
    assert check_counts(build(store, folder, StopsAt(1, "signal", number), batch_size=2)).encoded == 10


def test_sigterm_stops_after_the_present_batch(store: casstore.Store, folder: Path) -> None:
    """SIGTERM is a stop, and no Ctrl-C: BuildStopped with the report, which no `except KeyboardInterrupt` takes."""
    with pytest.raises(BuildStopped) as error:
        build(store, folder, StopsAt(1, "signal", signal.SIGTERM), batch_size=2)
    assert not isinstance(error.value, KeyboardInterrupt)
    assert check_counts(error.value.report, stopped=True).encoded == 4
    assert check_counts(build(store, folder, FakeEncoder())).encoded == 6


# -- stop= -----------------------------------------------------------------------------------------------------------


STOPS = pytest.mark.parametrize("given", [lambda event: event, lambda event: event.is_set], ids=["event", "function"])


@STOPS
def test_a_stop_of_the_callers_ends_the_build_after_the_present_batch(
    store: casstore.Store, folder: Path, given: Any
) -> None:
    """An Event that is set, or a function that says so: BuildStopped with a report that adds up and a message that says
    what is left; the same process builds the rest."""
    stop = threading.Event()
    encoder = FakeEncoder(before=lambda items: stop.set() if len(encoder.batches) == 2 else None)
    with pytest.raises(BuildStopped, match="6 encoded and stored, 4 left") as error:
        build(store, folder, encoder, batch_size=2, stop=given(stop))
    assert not isinstance(error.value, KeyboardInterrupt)
    report = check_counts(error.value.report, stopped=True)
    assert (report.encoded, report.left, store.status().variants, traces(store)) == (6, 4, 6, [])
    assert check_counts(build(store, folder, FakeEncoder(), stop=threading.Event())).encoded == 4


def test_a_stop_that_came_before_encodes_nothing(store: casstore.Store, folder: Path) -> None:
    """Nothing is decoded, encoded or prepared where the stop is there already."""
    stop, encoder, hooks = threading.Event(), FakeEncoder(), []
    stop.set()
    with pytest.raises(BuildStopped) as error:
        build(store, folder, encoder, stop=stop, before_encode=lambda: hooks.append(1))
    assert check_counts(error.value.report, stopped=True).left == 10
    assert (encoder.seen, hooks) == ([], [])


def test_a_stop_between_the_items_of_a_batch_that_is_tried_again(store: casstore.Store, folder: Path) -> None:
    """A stop while a failed batch is tried item by item begins no further item."""
    stop = threading.Event()

    def fail(items: list[casstore.Item]) -> None:
        if len(items) > 1:
            raise ValueError("no")
        stop.set()

    with pytest.raises(BuildStopped) as error:
        build(store, folder, FakeEncoder(before=fail), batch_size=5, stop=stop)
    report = check_counts(error.value.report, stopped=True)
    assert (report.encoded, report.failed, report.left) == (1, 0, 9)


def test_a_stop_while_decoding(store: casstore.Store, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build that waits for files that can't be read stops all the same."""
    stop, released = threading.Event(), threading.Event()

    def hang(planned: Any, source: Any) -> Any:
        stop.set()
        released.wait(LONG)
        raise OSError("never read")

    monkeypatch.setattr("casstore.build.builder.decode_row", hang)
    with pytest.raises(BuildStopped) as error:
        build(store, folder, FakeEncoder(), stop=stop)
    assert not released.is_set() and check_counts(error.value.report, stopped=True).left == 10
    released.set()


def test_a_stop_while_waiting_for_another_builder(
    store: casstore.Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A builder that only waits for another one stops, and the other one goes on."""
    seen, busy, stop = waiting(monkeypatch), Held(), threading.Event()
    job = run(build, store, folder, busy, batch_size=10)
    assert busy.there.wait(LONG)
    idle = run(build, store, folder, FakeEncoder(), stop=stop)
    assert seen.wait(LONG)
    stop.set()
    with pytest.raises(BuildStopped) as error:
        idle.result(LONG)
    assert check_counts(error.value.report, stopped=True).left == 10
    busy.go.set()
    assert check_counts(job.result(LONG)).encoded == 10


def test_ctrl_c_while_waiting_for_another_builder(
    store: casstore.Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C ends the waiting, too."""
    busy, real = Held(), Owner.waits_for
    job = run(build, store, folder, busy, batch_size=10)
    assert busy.there.wait(LONG)

    def interrupted(self: Owner, keys: Any) -> bool:
        os.kill(os.getpid(), signal.SIGINT)
        return real(self, keys)

    monkeypatch.setattr(Owner, "waits_for", interrupted)
    with pytest.raises(BuildInterrupted) as error:
        build(store, folder, FakeEncoder())
    assert check_counts(error.value.report, stopped=True).left == 10
    busy.go.set()
    assert check_counts(job.result(LONG)).encoded == 10


def test_a_stop_that_cannot_be_meant_is_refused(store: casstore.Store, folder: Path) -> None:
    """stop=True isn't a way to stop."""
    with pytest.raises(UsageError, match="stop is a function"):
        build(store, folder, FakeEncoder(), stop=True)


# -- other threads, copies, failures ---------------------------------------------------------------------------------


def test_a_build_runs_on_any_thread(store: casstore.Store, folder: Path) -> None:
    """Off the main thread, where signals can't be handled, a build works as well."""
    reports = []
    thread = threading.Thread(target=lambda: reports.append(build(store, folder, FakeEncoder())))
    thread.start()
    thread.join()
    assert reports[0].encoded == 10


def test_counts_add_up_after_a_stop_with_copies(store: casstore.Store, folder: Path) -> None:
    """Counts add up after a stop where files have copies, and the next build encodes no copy of what is stored."""
    for number in (0, 9):
        (folder / f"q{number}.png").write_bytes((folder / f"p00{number}.png").read_bytes())
    with pytest.raises(BuildInterrupted) as error:
        build(store, folder, StopsAt(2, "raise"), batch_size=2)
    report = check_counts(error.value.report, stopped=True)
    assert (report.planned, report.encoded) == (12, 4)
    again = check_counts(build(store, folder, FakeEncoder()))
    assert (again.hits, again.encoded) == (6, 6)


def test_failures_before_a_stop_are_remembered(store: casstore.Store, folder: Path) -> None:
    """A failure that came before the stop is in the report and in the index."""
    encoder = StopsAt(3, "raise")
    encoder.change = {"p001.png": lambda result: None}
    with pytest.raises(BuildInterrupted) as error:
        build(store, folder, encoder, batch_size=1)
    report = check_counts(error.value.report, stopped=True)
    assert (report.encoded, report.failed, store.status().failures) == (2, 1, 1)


ENCODER = """
import os
from kit import FakeEncoder
def make():
    def wait(items):
        with open("log", "a") as log:
            log.writelines(item.sample + "\\n" for item in items)
        if len(encoder.batches) == 2 and os.path.exists("ready"):
            open("ready", "w").close()   # we are in the third batch
            open("go").close()           # until the signal was sent
    encoder = FakeEncoder(before=wait)
    return encoder
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_command_with_130_and_the_rest_is_done_by_the_next(
    tmp_path: Path, folder: Path, number: int
) -> None:
    """A real SIGINT or SIGTERM to `casstore build`: exit 130, a summary that says what is left; a second run does
    exactly that."""
    (tmp_path / "waits.py").write_text(ENCODER)
    for name in ("ready", "go"):
        os.mkfifo(tmp_path / name)
    casstore.open(tmp_path / "store", create=True, durability="off").close()
    path = os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    command = [sys.executable, "-m", "casstore", "build", "data", "--encoder", "waits:make", "--resolution", "64x64"]
    command += ["--batch-size", "2", "--json", "--store", "store"]

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )

    child = start()
    open(tmp_path / "ready").close()
    child.send_signal(number)
    open(tmp_path / "go", "w").close()
    out, err = child.communicate(timeout=60)
    summary = json.loads(out.splitlines()[-1])
    assert (child.returncode, summary["encoded"], summary["left"]) == (130, 6, 4), err
    assert b"Traceback" not in err
    (tmp_path / "ready").unlink()
    child = start()
    out, err = child.communicate(timeout=60)
    summary = json.loads(out.splitlines()[-1])
    assert (child.returncode, summary["hits"], summary["encoded"]) == (0, 6, 4), err
    assert sorted((tmp_path / "log").read_text().split()) == [f"p{number:03}.png" for number in range(10)]
