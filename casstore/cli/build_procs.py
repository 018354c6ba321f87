"""casstore build --procs: the same command in several processes; claims keep them off each other's items."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from typing import IO, TYPE_CHECKING, Any

import click

from casstore.build.progress import Progress, phase
from casstore.build.signals import Signals
from casstore.cli.common import unsafe_filesystem
from casstore.cli.output import note
from casstore.errors import BuildInterrupted, BuildStopped, CasstoreError
from casstore.model import BuildReport, Failure

if TYPE_CHECKING:
    from casstore.build.plan import Plan
    from casstore.store import Store

TICK = 0.2  # seconds between two looks at how far they are
STOPPED = BuildInterrupted.exit_code
REPEATED = ("note ", "warning ")  # lines that this process has said already
DEVICE = "CASSTORE_DEVICE"
"""The environment variable that tells an encoder's process which device is its own."""


def build_in_processes(store: Store, plan: Plan, count: int, devices: Sequence[str], progress: Progress) -> BuildReport:
    """Run this very command `count` times side by side, on the same store, and add up what they report.

    Args:
        store: open in this process, which only looks on.
        plan: of this process; what is stored already isn't anybody's work.
        count: of processes.
        devices: one for each process, or none.
        progress: shows the whole.

    Raises:
        BuildInterrupted, BuildStopped: a signal came; all of them have stopped, what was encoded is stored.
        CasstoreError: none of them ended well.
    """
    started = time.monotonic()
    arguments = [sys.executable, "-m", "casstore", *arguments_of(click.get_current_context(), store.path)]
    run = _last_run(store)
    with Signals() as signals, contextlib.ExitStack() as unless_all_have_ended:
        children: list[_Child] = []
        for rank in range(count):
            device = {DEVICE: devices[rank]} if devices else {}
            children.append(_Child(arguments, {"RANK": str(rank), "WORLD_SIZE": str(count)} | device))
            unless_all_have_ended.callback(children[-1].stop)
        told = False
        with phase(progress, "encode", len(plan.missing)):
            while any(child.running for child in children):
                if signals.came is not None and not told:
                    told = True
                    note("stopping  after the present batches")
                    for child in children:
                        child.stop()
                time.sleep(TICK)
                done = max(_encoded_since(store, run), *(child.done for child in children))
                progress.advanced(min(done, len(plan.missing)), len(plan.missing))
    for child in children:
        child.join()
    report = _added_up(plan, children, _encoded_since(store, run), started)
    if signals.came is not None or any(child.code == STOPPED for child in children):
        message = f"interrupted: {report.encoded} encoded and stored, {report.left} left; run it again to go on"
        raise (BuildStopped if signals.came is None else BuildInterrupted)(message, report)
    bad = [child for child in children if child.code not in (0, 1) or not child.summary]
    for child in bad:
        note(f"warning  process {child.rank} ended with exit code {child.code}")
    if bad and report.left:
        raise CasstoreError(f"{len(bad)} of {count} processes failed; {report.left} left. Run it again to go on")
    return report


class _Child:
    """One process, and what it tells."""

    def __init__(self, arguments: Sequence[str], environment: dict[str, str]) -> None:
        self.rank = environment["RANK"]
        self.done = 0
        self.summary: dict[str, Any] = {}
        self.failures: list[dict[str, Any]] = []
        self.notes: list[tuple[str, str]] = []
        self._process = subprocess.Popen(
            arguments, env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None and self._process.stderr is not None
        self._threads = [
            threading.Thread(target=self._results, args=(self._process.stdout,), daemon=True),
            threading.Thread(target=self._events, args=(self._process.stderr,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def code(self) -> int | None:
        return self._process.returncode

    def stop(self) -> None:
        """Have it end after its present batch."""
        with contextlib.suppress(OSError):
            self._process.terminate()

    def join(self) -> None:
        """Wait until all that it told is read."""
        self._process.wait()
        for thread in self._threads:
            thread.join()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def _results(self, stream: IO[str]) -> None:
        for line in stream:
            record = _parsed(line)
            if record is None:
                note(line.rstrip("\n"))
            elif "planned" in record:
                self.summary = record
            elif "error" in record:
                self.failures.append(record)
            elif "note" in record:
                self.notes.append((record["sample"], record["note"]))

    def _events(self, stream: IO[str]) -> None:
        for line in stream:
            record = _parsed(line)
            if record is None:
                if not line.startswith(REPEATED):
                    note(line.rstrip("\n"))
            elif record.get("phase") == "encode" and "done" in record:
                self.done = record["done"]


def arguments_of(context: click.Context, store: str) -> list[str]:
    """The command line of a child: what this one was given, as JSON, without what is the parent's."""
    found = ["build", "--store", store, "--json", "--progress", "json"]
    without = {"place", "as_json", "progress", "procs", "devices"}
    last: list[str] = []
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        if parameter.name in without or value is None or value is False or value == ():
            continue
        values: Iterable[Any] = value if isinstance(value, tuple) else (value,)
        if isinstance(parameter, click.Argument):
            last += [str(one) for one in values]
        elif value is True:
            found.append(parameter.opts[0])
        else:
            for one in values:
                found += [parameter.opts[0], str(one)]
    if unsafe_filesystem():
        found.append("--unsafe-filesystem")
    return [*found, "--", *last]


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _last_run(store: Store) -> int:
    return int(store.sql("SELECT coalesce(max(id), 0) FROM runs").rows[0][0])


def _encoded_since(store: Store, run: int) -> int:
    return int(store.sql("SELECT count(*) FROM variants WHERE run_id > ?", [run]).rows[0][0])


def _added_up(plan: Plan, children: Sequence[_Child], stored: int, started: float) -> BuildReport:
    """What they did together; `stored`: variants since they began, for those that ended without a summary."""
    summaries = [child.summary for child in children if child.summary]
    failures = _failures_of(children)
    notes = dict.fromkeys(pair for child in children for pair in child.notes)
    encoded, failed = sum(summary["encoded"] for summary in summaries), len(failures)
    left = min((summary["left"] for summary in summaries), default=max(0, len(plan.missing) - stored - failed))
    if len(summaries) < len(children):
        encoded = max(encoded, min(stored, len(plan.missing) - failed - left))
    hits = min((summary["hits"] for summary in summaries), default=plan.hits)
    hits = min(hits, plan.planned - encoded - failed - left)
    return BuildReport(
        planned=plan.planned,
        hits=hits,
        encoded=encoded,
        by_others=plan.planned - hits - encoded - failed - left,
        failed=failed,
        left=left,
        reasons=plan.reasons,
        seconds=time.monotonic() - started,
        stored_bytes=sum(summary["stored_bytes"] for summary in summaries),
        failures=tuple(Failure(**record) for record in failures),
        notes=tuple(notes),
    )


def _failures_of(children: Sequence[_Child]) -> list[dict[str, Any]]:
    """Each failure once: all processes tell of it. One file may have failed several times, at different resolutions."""
    found: dict[tuple[str, str | None], list[dict[str, Any]]] = {}
    for child in children:
        told: dict[tuple[str, str | None], list[dict[str, Any]]] = {}
        for record in child.failures:
            told.setdefault((record["sample"], record["path"]), []).append(record)
        for row, records in told.items():
            if len(records) > len(found.get(row, ())):
                found[row] = records
    return [record for records in found.values() for record in records]
