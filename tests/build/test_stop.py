"""Stops: Ctrl-C ends a build between batches; everything encoded before is stored."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from kit import ROOT, FakeEncoder, build, check_counts, picture, pictures

import casstore
from casstore.errors import BuildInterrupted


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pictures(tmp_path / "data", 10)
    return tmp_path / "data"


class StopsAt(FakeEncoder):
    """Stops at its n-th batch, counted from 0."""

    def __init__(self, number: int, how: str) -> None:
        super().__init__(before=self.stop)
        self.number, self.how = number, how

    def stop(self, items: list[casstore.Item]) -> None:
        if len(self.batches) == self.number:
            if self.how == "raise":
                raise KeyboardInterrupt
            for _ in range(2 if self.how == "twice" else 1):
                os.kill(os.getpid(), signal.SIGINT)


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


def test_the_signal_handler_is_put_back(store: casstore.Store, folder: Path) -> None:
    """After a build, stopped or not, SIGINT does again what it did before."""
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(BuildInterrupted):
        build(store, folder, StopsAt(0, "signal"))
    build(store, folder, FakeEncoder())
    assert signal.getsignal(signal.SIGINT) is before


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


def test_sigint_ends_the_command_with_130_and_the_rest_is_done_by_the_next(tmp_path: Path, folder: Path) -> None:
    """A real SIGINT to `casstore build`: exit 130, a summary that says what is left; a second run does exactly that."""
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
    child.send_signal(signal.SIGINT)
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
