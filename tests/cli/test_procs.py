"""casstore build --procs: several processes that share the work."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kit import ROOT, picture, pictures, python

import casstore
from casstore.cli import run

MODULE = """
import os
import numpy as np
import casstore


class Encoder:
    recipe = casstore.Recipe("shared", code=1, weights=False)

    def __call__(self, items):
        with open("calls", "a") as stream:
            for item in items:
                stream.write(f"{item.sample} {os.getpid()} {os.environ.get('CASSTORE_DEVICE')}\\n")
        return [{"t": np.frombuffer(item.key.digest, np.uint8)} for item in items]


def encoder():
    return Encoder()


class Waiting(Encoder):
    def __call__(self, items):
        print("at work", file=__import__("sys").stderr, flush=True)
        with open("gate", "rb", 0) as gate:  # until the test writes to it
            gate.read(1)
        return super().__call__(items)


def waiting():
    return Waiting()
"""

FAILING = """

class Failing(Encoder):
    def __call__(self, items):
        if any(item.sample in ("p009.png", "p019.png") for item in items):
            raise ValueError("no")
        return super().__call__(items)


def failing():
    return Failing()
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a new store, twenty pictures and the encoders."""
    casstore.open(tmp_path / "store", create=True, durability="off").close()
    pictures(tmp_path / "data", 20)
    (tmp_path / "shared.py").write_text(MODULE)
    return tmp_path


def build(place: Path, *options: str) -> Any:
    arguments = ["build", "data", "--store", "store", "--encoder", "shared:encoder", "--batch-size", "2", *options]
    return python("-m", "casstore", *arguments, cwd=place)


def calls(place: Path) -> list[list[str]]:
    return [line.split() for line in (place / "calls").read_text().splitlines()]


def test_each_item_is_encoded_once_whatever_the_number_of_processes(place: Path) -> None:
    """Three processes: the whole is encoded, nothing twice, and the summary is of them all."""
    done = build(place, "--procs", "3", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert {name: summary[name] for name in ("planned", "hits", "encoded", "by_others", "failed", "left")} == {
        "planned": 20,
        "hits": 0,
        "encoded": 20,
        "by_others": 0,
        "failed": 0,
        "left": 0,
    }
    assert sorted(sample for sample, _, _ in calls(place)) == sorted(p.name for p in (place / "data").iterdir())


def test_each_process_knows_its_device(place: Path) -> None:
    """--devices a,b: two processes, with CASSTORE_DEVICE a in one and b in the other."""
    assert build(place, "--devices", "a,b").returncode == 0
    devices = {pid: device for _, pid, device in calls(place)}
    assert set(devices.values()) <= {"a", "b"} and len(devices) == len(set(devices.values()))


def test_a_failure_is_told_once(place: Path) -> None:
    """A broken picture is one failure of the whole, exit code 1, and everything else is stored."""
    (place / "data" / "bad.png").write_bytes(b"no picture")
    done = build(place, "--procs", "2", "--json")
    *failures, summary = map(json.loads, done.stdout.splitlines())
    assert (done.returncode, summary["encoded"], summary["failed"]) == (1, 20, 1)
    assert [failure["sample"] for failure in failures] == ["bad.png"]


def test_a_picture_that_fails_at_two_resolutions_counts_twice(place: Path) -> None:
    """The numbers are those of one process: each triple that failed counts, and nothing is taken for others' work."""
    picture(place / "data" / "cut.jpg")
    (place / "data" / "cut.jpg").write_bytes((place / "data" / "cut.jpg").read_bytes()[:-40])
    done = build(place, "--procs", "2", "--resolution", "64x64,32x32", "--json")
    *failures, summary = map(json.loads, done.stdout.splitlines())
    assert (summary["planned"], summary["encoded"], summary["by_others"], summary["failed"]) == (42, 40, 0, 2)
    assert [failure["sample"] for failure in failures] == ["cut.jpg", "cut.jpg"]


def test_what_processes_stored_that_ended_by_an_error_counts(place: Path) -> None:
    """With --on-error raise every process ends without a summary; what they had stored isn't said to be left."""
    (place / "shared.py").write_text(MODULE + FAILING)
    done = build(place, "--procs", "2", "--on-error", "raise", "--encoder", "shared:failing")
    with casstore.open(place / "store") as store:
        left = 20 - store.status().variants
    assert done.returncode == 1 and 0 < left < 20
    assert f"2 of 2 processes failed; {left} left".encode() in done.stderr


def test_an_error_of_the_first_process_stops_the_others(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes wrong where the whole is watched: the processes are told to end, too."""
    stopped: list[str] = []

    class Idle:
        running, done = True, 0

        def __init__(self, arguments: Any, environment: dict[str, str]) -> None:
            self.rank = environment["RANK"]
            if self.rank == "2":
                raise OSError("no more processes")

        def stop(self) -> None:
            stopped.append(self.rank)

    monkeypatch.setattr("casstore.cli.build_procs._Child", Idle)
    monkeypatch.chdir(place)
    with pytest.raises(OSError, match="no more processes"):
        run(["build", "data", "--store", "store", "--encoder", "pixels", "--procs", "3"])
    assert sorted(stopped) == ["0", "1"]


def test_nothing_to_encode_starts_no_process(place: Path) -> None:
    """A second run reuses everything and calls no encoder."""
    build(place)
    (place / "calls").unlink()
    done = build(place, "--procs", "4", "--json")
    assert json.loads(done.stdout.splitlines()[-1])["hits"] == 20 and not (place / "calls").exists()
    with casstore.open(place / "store") as store:
        assert len(store.status().runs) == 1


def test_sigint_to_the_first_process_stops_them_all(place: Path) -> None:
    """Ctrl-C: all of them end after their present batch, the exit code is 130, and a rerun does the rest only."""
    os.mkfifo(place / "gate")
    gate = os.open(place / "gate", os.O_RDWR)
    command = [sys.executable, "-m", "casstore", "build", "data", "--store", "store", "--encoder", "shared:waiting"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    process = subprocess.Popen(
        [*command, "--procs", "2", "--batch-size", "2"], cwd=place, env=environment, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    told = 0
    while told < 2:
        told += "at work" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    for line in process.stderr:
        if "stopping" in line:
            break
    os.write(gate, b"x" * 100)
    with process.stderr:
        rest = process.stderr.read()
    os.close(gate)
    assert process.wait(60) == 130, rest
    done = calls(place)
    assert 1 <= len(done) <= 4
    assert build(place).returncode == 0
    assert sorted(sample for sample, _, _ in calls(place)) == sorted(p.name for p in (place / "data").iterdir())


def test_devices_and_processes_have_to_agree(place: Path) -> None:
    """Three devices for two processes is a usage error."""
    done = build(place, "--devices", "a,b,c", "--procs", "2")
    assert (done.returncode, b"--devices" in done.stderr) == (2, True)
