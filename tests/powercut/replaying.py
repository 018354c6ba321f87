"""A workload, from its recording to the verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from core.helpers import expect, fast_folder, get
from powercut.checks import STORE, Checker, write_tree
from powercut.crashes import Crash, Disk, Operation, crashes
from powercut.recording import Told, record
from powercut.workloads import Entry

import casstore
from casstore.index import migrate

REOPENED = 8  # so many states of the fewest that a workload leaves are opened by casstore itself
ENOUGH = 3  # violations, after which no others are looked for


@dataclass(slots=True)
class Found:
    """What became of a workload.

    Attributes:
        states: distinct trees.
        reopened: how many of them casstore itself has opened.
        violations: what is wrong, and where.
    """

    states: int = 0
    reopened: int = 0
    violations: list[str] = field(default_factory=list)


def replay(folder: Path, entry: Entry, *, patch: Callable[[], None] | None = None) -> Found:
    """Prepare a store, record a workload on it, and check what a crash at any moment may leave.

    Args:
        folder: empty.
        entry: the workload.
        patch: sabotages casstore in the workload's process; then no state is reopened.
    """
    (folder / "disk").mkdir()
    entry.prepare(folder / "disk")
    disk = Disk(folder / "disk")
    log = record(folder, entry.run, syncfs=entry.syncfs, patch=patch)
    found = Found()
    with fast_folder() as scratch:
        checker = Checker(scratch, disk.tree())
        disk.promises = checker.promised
        for crash in crashes(disk, log):
            found.states += crash.is_new
            problems = checker.problems(crash.tree, crash.promises)
            if not problems and patch is None and crash.is_new and found.states % (entry.states // REOPENED) == 0:
                found.reopened += 1
                problems = reopen(crash, entry, checker)
            if problems:
                found.violations.append(_words(crash, problems, log))
                if len(found.violations) >= ENOUGH:
                    break
    return found


def reopen(crash: Crash, entry: Entry, checker: Checker) -> list[str]:
    """What is wrong with a state in casstore's own eyes: it is opened, verified, read, and the work done again."""
    with fast_folder() as place:
        write_tree(crash.tree, place)
        path = place / STORE
        if path.exists() and checker.is_readable(crash.tree):
            migrate.upgrade(str(path))
            excused = checker.excused(crash.tree, crash.promises)
            with casstore.open(path) as store:
                problems = [f"verify: {f}" for f in store.verify(deep=True).findings if f.name not in excused]
                problems += [f"{name} is {got}" for name in "abc" if not isinstance(got := get(store, name), str)
                             and got != expect(name)]  # fmt: skip
            if problems:
                return problems
        entry.run(str(path), Told(str(place)))
        marked = checker.marked(Disk(place).tree())
        with casstore.open(path) as store:
            return [f"after doing it again: {f}" for f in store.verify(deep=True).findings if f.name not in marked]


def _words(crash: Crash, problems: list[str], log: list[Operation]) -> str:
    def short(operation: Operation) -> Operation:
        return [len(part) if isinstance(part, bytes) else part for part in operation]

    last = [short(operation) for operation in log[max(0, crash.after - 4) : crash.after]]
    return f"after {crash.after} of {len(log)} operations, {crash.how}: {problems[:3]}; the last operations: {last}"
