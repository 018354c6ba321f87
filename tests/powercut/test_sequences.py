"""Every sequence of up to three calls on a fresh store, and then longer ones by chance.

Nearly all crash faults of file systems show with at most three operations after a fresh start (CrashMonkey, OSDI 2018),
so short sequences are worth more than long runs. Of each only what its last call may leave is looked at.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from core.helpers import key, put, result
from powercut.checks import STORE
from powercut.recording import Told, why_not
from powercut.replaying import REOPENED, replay
from powercut.workloads import Entry, opened

import casstore
from casstore.upkeep.restore import restore

pytestmark = [
    pytest.mark.skipif(why_not() is not None, reason=why_not() or ""),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]

LONGEST = 3
NAMES = ("a", "b", "twin", "m0", "m1", "m2")
SECONDS = 3600.0  # of a nightly run, for all first calls together
STATES = 600_000
REOPEN_EVERY = 100


def made(name: str) -> dict[str, Any]:
    """What is stored under a name; the twin has a's tensors."""
    return result("a" if name == "twin" else name)


class Session:
    """An open store, and what the calls made so far have promised."""

    def __init__(self, path: str, told: Told) -> None:
        self.path, self.told = path, told
        self.store = opened(path)
        self.held: set[str] = set()
        self.saved: set[str] | None = None  # what was held when the oldest backup was made

    def put(self, *names: str) -> None:
        self.told.going(*set(names) - self.held)  # what was forgotten may come back from now on
        put(self.store, **{name: made(name) for name in names})
        self.keep(names)

    def keep(self, names: Any) -> None:
        self.held |= set(names)
        for name in names:
            self.told.stored(name, made=made(name))

    def encode(self) -> None:
        self.told.going(*{"b"} - self.held)
        self.store.get_or_encode(key("b"), lambda: made("b"), as_numpy=True)
        self.keep(["b"])

    def forget(self, *names: str) -> None:
        self.told.going(*names)
        for name in names:
            self.store.forget(key(name)).execute()
        self.held -= set(names)
        self.told.gone(*names)

    def gc(self) -> None:
        self.store.gc(yes=True, grace_hours=0)

    def verify(self) -> None:
        self.store.verify(deep=True)  # notes what it finds

    def reopen(self) -> None:
        self.store.close()
        self.store = opened(self.path)

    def save(self) -> None:
        before = self.backups()
        self.store._handle.backup_if_due()
        if self.saved is None and before != self.backups():
            self.saved = set(self.held)

    def restore(self) -> None:
        if self.saved is None:
            return
        self.store.close()
        self.told.going(*NAMES)
        restore(self.path, os.path.join(self.path, "backups", self.backups()[0]), yes=True, unsafe_filesystem=True)
        self.held = set()
        self.keep(self.saved)
        self.told.gone(*(set(NAMES) - self.saved))
        self.store = opened(self.path)

    def backups(self) -> list[str]:
        # One that was cut off while it was written has another ending, and is nobody's choice.
        return sorted(name for name in os.listdir(Path(self.path, "backups")) if name.endswith(".sqlite"))


CALLS: dict[str, Callable[[Session], None]] = {
    "put a": lambda session: session.put("a"),
    "put b": lambda session: session.put("b"),
    "put a's twin": lambda session: session.put("twin"),
    "put three": lambda session: session.put("m0", "m1", "m2"),
    "encode b": Session.encode,
    "forget a": lambda session: session.forget("a"),
    "forget all": lambda session: session.forget(*NAMES),
    "gc": Session.gc,
    "verify": Session.verify,
    "reopen": Session.reopen,
    "save a backup": Session.save,
    "restore it": Session.restore,
}


def sequence(names: tuple[str, ...]) -> Entry:
    """The calls of these names, as a workload."""

    def run(path: str, told: Told) -> None:
        session = Session(path, told)
        for name in names[:-1]:
            CALLS[name](session)
        told.begins()  # a shorter sequence has shown what is left before
        CALLS[names[-1]](session)
        session.store.close()

    return Entry(run, fresh_store, REOPENED * REOPEN_EVERY)


def fresh_store(folder: Path) -> None:
    casstore.open(folder / STORE, create=True).close()
    (folder / STORE / "ballast").unlink(missing_ok=True)


def all_that_begin_with(first: str) -> Iterator[tuple[str, ...]]:
    """Shorter ones first; when all are done, longer ones by chance, without end."""
    for length in range(LONGEST):
        for rest in itertools.product(CALLS, repeat=length):
            yield (first, *rest)
    rng = random.Random(first)
    while True:
        yield (first, *rng.choices(list(CALLS), k=rng.randint(LONGEST, 2 * LONGEST)))


def check(names: tuple[str, ...], folder: Path) -> int:
    """How many states a sequence leaves; all are sound."""
    place = folder / "sequence"
    place.mkdir()
    found = replay(place, sequence(names))
    assert found.violations == [], names
    shutil.rmtree(place)
    return found.states


@pytest.mark.parametrize("first", CALLS)
def test_a_crash_in_any_single_call_is_harmless(first: str, tmp_path: Path) -> None:
    """Each call on a fresh store, which it does not always change."""
    check((first,), tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("first", CALLS)
def test_a_crash_in_any_sequence_is_harmless(
    first: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """All sequences of up to three calls, then longer ones until the states are enough; or until the time is over."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    end = time.monotonic() + SECONDS * workers / len(CALLS)
    short = sum(len(CALLS) ** length for length in range(LONGEST))
    states = sequences = 0
    for names in all_that_begin_with(first):
        states += check(names, tmp_path)
        sequences += 1
        if time.monotonic() > end or (sequences >= short and states >= STATES // len(CALLS)):
            break
    record_property(
        "figure",
        f"powercut: {first}: {states} crash states of {sequences} sequences ({min(short, sequences)} of {short} short)",
    )
