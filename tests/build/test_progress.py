"""Progress: one protocol, in which numbers only grow and end at the total; JSON lines; silence."""

from __future__ import annotations

import io
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from kit import FakeEncoder, build, check_counts, picture, pictures
from many import LONG, Held, run, waiting

import casstore
from casstore.build.progress import Bar, Calls, JsonLines, Progress, progress_of
from casstore.errors import BuildStopped, EncoderError


class Told(Progress):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []

    def started(self, phase: str, total: int) -> None:
        self.events.append(("started", phase, total))

    def advanced(self, done: int, total: int) -> None:
        self.events.append(("advanced", done, total))

    def finished(self) -> None:
        self.events.append(("finished",))

    @property
    def done(self) -> list[int]:
        return [event[1] for event in self.events if event[0] == "advanced"]


def check(told: Told, total: int, *, last: int) -> None:
    """Whether that was a phase: started, numbers that grow up to `last`, of always the same total, finished."""
    assert told.events[0] == ("started", "encode", total) and told.events[-1] == ("finished",)
    assert all(event[0] == "advanced" and event[2] == total for event in told.events[1:-1])
    assert told.done == sorted(told.done) and told.done[-1:] == ([last] if last else [])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pictures(tmp_path / "data", 20)
    return tmp_path / "data"


@pytest.mark.parametrize("batch_size", [1, 8])
def test_t68_the_numbers_of_a_build_grow_and_end_at_its_total(
    store: casstore.Store, folder: Path, batch_size: int
) -> None:
    """T68: with some stored, copies, bad pictures and failures of the encoder: done never decreases and ends at the
    number of misses, which the report's own numbers add up to."""
    build(store, folder, FakeEncoder())
    pictures(folder / "new", 30, size=(72, 64))
    (folder / "new" / "copy.png").write_bytes((folder / "new" / "p003.png").read_bytes())
    (folder / "new" / "bad.jpg").write_bytes(b"a red cat")
    (folder / "new" / "cut.jpg").write_bytes(picture(folder.parent / "whole.jpg").read_bytes()[:-40])
    told, encoder = Told(), FakeEncoder(change={"new/p007.png": lambda result: None})
    report = check_counts(build(store, folder, encoder, batch_size=batch_size, workers=4, progress=told))
    check(told, 33, last=33)
    assert (report.planned, report.hits, report.encoded, report.failed) == (53, 21, 29, 3)


def test_a_stop_leaves_the_numbers_below_the_total(store: casstore.Store, folder: Path) -> None:
    """A build that was stopped finishes its phase with what is stored."""
    told, stop = Told(), threading.Event()
    encoder = FakeEncoder(before=lambda items: stop.set() if len(encoder.batches) == 2 else None)
    with pytest.raises(BuildStopped):
        build(store, folder, encoder, batch_size=2, stop=stop, progress=told)
    check(told, 20, last=6)


def test_an_error_finishes_the_phase(store: casstore.Store, folder: Path) -> None:
    """Also a build that ends by an error has told what is stored."""
    told, encoder = Told(), FakeEncoder(change={"p007.png": lambda result: None})
    with pytest.raises(EncoderError):
        build(store, folder, encoder, batch_size=1, on_error="raise", progress=told)
    check(told, 20, last=8)  # with the one that failed


def test_a_progress_that_raises_ends_the_build_and_loses_nothing(store: casstore.Store, folder: Path) -> None:
    """Its error comes once what was encoded is stored and counted; it isn't told anything more."""
    calls: list[int] = []

    def broken(done: int, total: int) -> None:
        calls.append(done)
        raise ValueError("no bar")

    encoder = FakeEncoder()
    with pytest.raises(ValueError, match="no bar"):
        build(store, folder, encoder, progress=broken)
    (told,) = store.status().runs
    assert (told.counts["encoded"], told.counts["left"], len(encoder.seen)) == (20, 0, 20)
    assert (store.status().variants, calls) == (20, [1])


def test_what_others_do_counts(store: casstore.Store, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A builder whose items another one encodes advances to the total as well."""
    seen, busy, told = waiting(monkeypatch), Held(), Told()
    job = run(build, store, folder, busy, batch_size=20)
    assert busy.there.wait(LONG)
    idle = run(build, store, folder, FakeEncoder(), progress=told)
    assert seen.wait(LONG)
    busy.go.set()
    assert check_counts(idle.result(LONG)).by_others == 20
    check(told, 20, last=20)
    job.result(LONG)


def test_nothing_is_told_where_nothing_is_to_be_done(store: casstore.Store, folder: Path) -> None:
    """All hits: no phase."""
    build(store, folder, FakeEncoder())
    told = Told()
    build(store, folder, FakeEncoder(), progress=told)
    assert told.events == []


def test_a_function_gets_the_numbers_alone(store: casstore.Store, folder: Path) -> None:
    """progress=function is called with (done, to do)."""
    calls: list[tuple[int, int]] = []
    build(store, folder, FakeEncoder(), progress=lambda done, total: calls.append((done, total)))
    assert calls == [(number, 20) for number in range(1, 21)]


# -- JSON lines ------------------------------------------------------------------------------------------------------


def test_json_lines_parse_and_tell_the_same(store: casstore.Store, folder: Path) -> None:
    """Each line is an object with its event and phase; the first and last are the phase's ends, the last number is the
    total."""
    stream = io.StringIO()
    build(store, folder, FakeEncoder(), batch_size=2, progress=JsonLines(stream))
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert all(line["phase"] == "encode" for line in lines)
    assert lines[0] == {"event": "started", "phase": "encode", "total": 20}
    assert lines[-1] == {"event": "finished", "phase": "encode", "done": 20, "total": 20}
    done = [line["done"] for line in lines[1:-1]]
    assert {line["event"] for line in lines[1:-1]} == {"advanced"} and done == sorted(set(done)) and done[-1] == 20


def test_json_lines_are_not_one_per_item(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a tenth of a second only the last number is told; none is told twice."""
    monkeypatch.setattr("casstore.build.progress.time.monotonic", lambda: 100.0)
    stream = io.StringIO()
    lines = JsonLines(stream)
    lines.started("encode", 1000)
    for done in range(1, 900):
        lines.advanced(done, 1000)
    lines.finished()
    told = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line.get("done") for line in told] == [None, 1, 899, 899]


class Gone(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_reader_that_is_gone_costs_nothing(store: casstore.Store, folder: Path) -> None:
    """A closed pipe behind the JSON lines doesn't end a build."""
    assert check_counts(build(store, folder, FakeEncoder(), progress=JsonLines(Gone()))).encoded == 20


# -- what is chosen --------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("given", "terminal", "kind"),
    [
        (None, False, Progress),
        (None, True, Bar),
        (False, True, Progress),
        (True, False, Bar),
        (lambda done, total: None, True, Calls),
    ],
)
def test_who_is_told(monkeypatch: pytest.MonkeyPatch, given: Any, terminal: bool, kind: type[Progress]) -> None:
    """A bar on a terminal or where it is asked for, else silence; a function is called."""
    monkeypatch.setattr("sys.stderr", Terminal() if terminal else io.StringIO())
    assert type(progress_of(given)) is kind


def test_a_build_is_silent_where_stderr_is_no_terminal(
    store: casstore.Store, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Without a terminal nothing is printed."""
    build(store, folder, FakeEncoder())
    assert capfd.readouterr() == ("", "")


def test_a_bar_counts_to_the_total(store: casstore.Store, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal a bar named after the phase is drawn, to the last item, and taken away."""
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    build(store, folder, FakeEncoder(), batch_size=1)
    assert "encode" in screen.getvalue() and "0/20" in screen.getvalue()
    assert screen.getvalue().endswith("\r")
