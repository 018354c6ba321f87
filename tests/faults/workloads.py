"""What is done while faults happen: a folder is prepared, then the work runs in a copy of it.

A workload in ten lines: a function `work(place, done)` that opens the store `place/"s"`, does something, and tells
`done(name)` what it was promised to have stored, registered with `@workload(prepare)`. `names` are what the prepared
store holds: they have to be served whatever happens.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from core.helpers import RECIPE, expect, flipped, key, object_file, overwrite, put, result
from core.helpers import get as get_one
from kit import FakeEncoder, build, old_store, pictures

import casstore
from casstore import fsio
from casstore.core import handle, initialize
from casstore.index import backup, engine
from casstore.index.migrate import upgrade as upgrade_store
from casstore.upkeep.restore import restore as restore_store

Done = Callable[[str], None]
OLD = casstore.Recipe("old")


@dataclass(frozen=True, slots=True)
class Workload:
    """`prepare(place)` makes the files; `work(place, done)` is what faults happen to; `names` are stored before it, and
    `results` are what it stores when nothing fails. `syncfs`: whether the store relies on it; `damaged`: the name whose
    object is damaged to begin with; `brief`: it is made of pieces that other workloads try at length."""

    name: str
    prepare: Callable[[Path], Any]
    work: Callable[[Path, Done], Any]
    names: tuple[str, ...]
    results: tuple[str, ...]
    syncfs: bool = True
    damaged: str | None = None
    brief: bool = False

    @contextmanager
    def circumstances(self) -> Iterator[None]:
        """A small ballast, no waiting for locks that nobody gives back, and syncfs or not, whatever the disk is."""
        with ExitStack() as patches:
            for place, name, value in (
                (initialize, "BALLAST_BYTES", 4096),
                (handle, "BUSY_SECONDS", 0.0),
                (engine, "BUSY_SECONDS", 0.0),
                (engine, "CLOSE_SECONDS", 0.0),
                (backup, "EXCLUSIVE_SECONDS", 0.0),
                (fsio, "has_syncfs", lambda _: self.syncfs),
            ):
                patches.enter_context(patch.object(place, name, value))
            yield


WORKLOADS: dict[str, Workload] = {}


def workload(
    prepare: Callable[[Path], Any], *, names: str = "a b", results: str = "", **more: Any
) -> Callable[[Callable[[Path, Done], Any]], Callable[[Path, Done], Any]]:
    """Register a workload under the name of its function."""

    def register(work: Callable[[Path, Done], Any]) -> Callable[[Path, Done], Any]:
        name = work.__name__
        WORKLOADS[name] = Workload(name, prepare, work, tuple(names.split()), tuple(results.split()), **more)
        return work

    return register


def nothing(place: Path) -> None:
    """Prepare nothing."""


def small(place: Path) -> None:
    """A store with two results."""
    with casstore.open(place / "s", create=True) as store:
        put(store, "a", "b")


def damaged(place: Path) -> None:
    """One of the two is damaged."""
    small(place)
    with casstore.open(place / "s") as store:
        path = object_file(store, "a")
        overwrite(path, flipped(path.read_bytes(), 100))
        assert get_one(store, "a") == "damaged"


def littered(place: Path) -> None:
    """Something for gc of every kind: forgotten results, a dead process's temp and lock, a file without a row."""
    small(place)
    with casstore.open(place / "s") as store:
        with store.batch() as batch:
            for name in ("x", "y"):
                batch.put(casstore.Key.text(name, OLD), result(name))
        store.forget(OLD).execute()
    owner = "0" * 16
    (place / "s" / "locks" / "owners" / owner).touch()
    (place / "s" / "tmp" / f"{owner}-0").write_bytes(b"torn")
    (place / "s" / "objects" / "ff" / f"{'f' * 64}.cso").write_bytes(b"stray")


def backed_up(place: Path) -> None:
    """A store with a backup that lacks the result "b"."""
    with casstore.open(place / "s", create=True) as store:
        put(store, "a")
        store.gc(yes=True)
        (backup,) = os.listdir(place / "s" / "backups")
        os.rename(place / "s" / "backups" / backup, place / "s" / "backups" / "index-kept.sqlite")
        put(store, "b")


def outdated(place: Path) -> None:
    """A store of the oldest schema, with six objects."""
    old_store(place).rename(place / "s")


def with_pictures(place: Path) -> None:
    """A store without a backup yet, and three pictures."""
    small(place)
    pictures(place / "p", 3, size=(16, 16))


@workload(nothing, names="")
def init(place: Path, done: Done) -> None:
    casstore.open(place / "deep" / "s", create=True).close()


@workload(small, results="c")
def put_one(place: Path, done: Done) -> None:
    with casstore.open(place / "s") as store:
        made = store.get_or_encode(key("c"), lambda: result("c"), as_numpy=True)
        assert made["t"].tolist() == expect("c")["t"]
        done("c")


@workload(small, results="c", syncfs=False)
def put_by_fsync(place: Path, done: Done) -> None:
    with casstore.open(place / "s") as store:
        put(store, "c")
        done("c")


@workload(small, results="c d e a")
def batch(place: Path, done: Done) -> None:
    with casstore.open(place / "s") as store, store.batch() as group:
        for names in ("cd", "ea"):
            for name in names:
                group.put(key(name), result(name))
            group.flush()
            for name in names:
                done(name)


@workload(damaged, names="b", results="a", damaged="a")
def heal(place: Path, done: Done) -> None:
    with casstore.open(place / "s") as store:
        put(store, "a")
        done("a")


@workload(littered)
def gc(place: Path, done: Done) -> None:
    with casstore.open(place / "s") as store:
        store.gc(yes=True, grace_hours=0)


@workload(outdated, names="")
def upgrade(place: Path, done: Done) -> None:
    upgrade_store(str(place / "s"))


@workload(backed_up, names="a")
def restore(place: Path, done: Done) -> None:
    restore_store(str(place / "s"), str(place / "s" / "backups" / "index-kept.sqlite"), yes=True)


@workload(with_pictures, brief=True)
def build_and_back_up(place: Path, done: Done) -> None:
    with casstore.open(place / "s") as store:
        report = build(store, place / "p", FakeEncoder(), resolution="16x16")
        assert report.encoded + report.hits + report.failed == 3 or report.planned < 3, report


@workload(small)
def verify(place: Path, done: Done) -> None:
    with casstore.open(place / "s") as store:
        store.verify(deep=True)


@workload(small)
def copy(place: Path, done: Done) -> None:
    with casstore.open(place / "s") as store:
        store.copy_index(place / f"copy-{secrets.token_hex(4)}.sqlite")


@workload(with_pictures)
def read(place: Path, done: Done) -> None:
    with casstore.open(place / "s") as store:
        for name in ("a", "b"):
            assert get_one(store, name) == expect(name)
        assert store.status().variants == 2
        try:
            store.get(place / "p" / "p000.png", RECIPE)
        except casstore.errors.MissError as error:
            assert error.miss is not None and error.miss.reason == "new"


@workload(small)
def repack(place: Path, done: Done) -> None:
    with casstore.open(place / "s") as store:
        store.repack("raw", yes=True)
