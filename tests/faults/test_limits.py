"""Disks of many sizes, files that may not grow, little memory: real limits of the system, and no injected errors."""

from __future__ import annotations

import os
import re
import resource
import signal
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from core.helpers import child, expect, fast_folder, fill, get, on_a_small_disk, put, sql
from faults.running import leftovers
from faults.workloads import backed_up, small
from kit import pictures, python

import casstore
from casstore.cli import run
from casstore.errors import CasstoreError

ERRORS = {"NoSpaceError", "StoreIOError"}
DISKS = [64, 128, 200, 260, 320, 400, 480, 560, 700, 1000, 1500, 2500]  # KiB
MORE_DISKS = [size for size in range(40, 1640, 8) if size not in DISKS]
LIMITS = [0, 1, 100, 400, 1000, 4096, 30_000, 40_000, 66_000, 100_000, 150_000]  # bytes
MEMORY = [0, 1, 8, 16, 20, 24, 28, 64]  # MiB beyond what the imports take
SPEECHLESS = 4  # MiB; with less Python may get no further than its own hooks, or (once in hundreds of runs) crash


def sizes(few: list[int], more: list[int]) -> Any:
    """Run a test with these sizes, and in the nightly run with more."""
    return [*few, *(pytest.param(size, marks=pytest.mark.nightly) for size in more)]


@pytest.fixture
def folder() -> Iterator[Path]:
    with fast_folder() as place:
        yield place


def many(store: casstore.Store, done: list[str]) -> None:
    """Store 40 results of 8 KB, one after the other, noting what was stored."""
    for number in range(40):
        name = f"n{number}"
        put(store, **{name: large(name)})
        done.append(name)


def large(name: str) -> dict[str, Any]:
    return {"t": np.random.default_rng(int(name[1:])).standard_normal(1000)}


def served(store: casstore.Store, names: list[str]) -> list[str]:
    """Those of the names that aren't served as they were stored."""
    return [name for name in names if get(store, name) != {"t": large(name)["t"].tolist()}]


@pytest.mark.parametrize("kib", sizes(DISKS, MORE_DISKS))
def test_a_disk_of_any_size_fills_up_without_a_loss(tmp_path: Path, kib: int) -> None:
    """From too small for an empty store to room for all: the end is NoSpaceError, what was stored is served and sound,
    also to who opens the full disk anew, and with more room the same work succeeds."""

    def work(place: Path) -> Any:
        done: list[str] = []
        problems: list[str] = []
        try:
            with casstore.open(place / "s", create=True) as store:
                many(store, done)
        except BaseException as error:
            if type(error).__name__ not in ERRORS or not re.search(r"ENOSPC|full|bytes are (needed|free)", str(error)):
                problems.append(traceback.format_exc())
        if not (place / "s").exists():
            return [*problems, *(f"left: {name}" for name in os.listdir(place))]
        with casstore.open(place / "s") as store:
            problems += served(store, done)
            problems += [str(finding) for finding in store.verify(deep=True).findings]
        os.system(f"mount -o remount,size=16m {place}")
        with casstore.open(place / "s") as store:
            many(store, [])
            problems += served(store, [f"n{number}" for number in range(40)])
            store.gc(yes=True, grace_hours=0)
            problems += leftovers(store)
            problems += [str(finding) for finding in store.verify(deep=True).findings]
        return problems

    assert on_a_small_disk(tmp_path, work, size=f"{kib}k") == []


def test_a_restore_on_a_full_disk_changes_nothing(tmp_path: Path) -> None:
    """The index that can't be copied to backups/ for lack of space isn't overwritten."""

    def work(place: Path) -> Any:
        from casstore.upkeep.restore import restore

        backed_up(place)
        backup = place / "s" / "backups" / "index-kept.sqlite"
        before = sql(place / "s", "SELECT count(*) FROM variants")
        fill(place)
        found = ""
        try:
            restore(str(place / "s"), str(backup), yes=True)
        except CasstoreError as error:
            found = type(error).__name__
        os.unlink(place / "filler")
        return [found, before == sql(place / "s", "SELECT count(*) FROM variants") != [(1,)]]

    assert on_a_small_disk(tmp_path, work, size="4m") == ["NoSpaceError", True]


def test_the_commands_that_help_work_with_zero_bytes_free(tmp_path: Path) -> None:
    """status, sql, verify and both gcs exit with 0; init and build say "no space" (6); then gc has made room."""

    def work(place: Path) -> Any:
        with casstore.open(place / "s", create=True) as store:
            put(store, "a")
        pictures(place / "p", 1)
        (place / "s" / "tmp" / ("0" * 16 + "-0")).write_bytes(bytes(256 << 10))  # what a killed process left
        fill(place)
        build = ["build", str(place / "p"), "--encoder", "pixels"]
        codes = [
            run([*arguments, "-s", str(place / "s")])
            for arguments in (["status"], ["sql", "SELECT * FROM v_variants"], ["verify", "--deep"], ["gc"], build)
        ]
        codes.append(run(["init", "-s", str(place / "t")]))
        return [*codes, *(run([*arguments, "-s", str(place / "s")]) for arguments in (["gc", "--yes"], build))]

    assert on_a_small_disk(tmp_path, work, size="2m") == [0, 0, 0, 0, 6, 6, 0, 0]


def limited(kind: int, limit: int, work: Callable[[], Any]) -> str:
    """In a child: the name of the class of what work() raises under a limit of the system, or "fine"."""

    def limit_and_work(_: Any) -> str:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(kind, (limit, resource.RLIM_INFINITY))
        try:
            work()
            return "fine"
        except CasstoreError as error:
            return type(error).__name__
        finally:
            resource.setrlimit(kind, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    with child(limit_and_work) as found:
        return str(found.result())


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize("nbytes", sizes(LIMITS, list(range(500, 100_000, 500))))
def test_a_file_that_may_not_grow_is_no_loss(folder: Path, nbytes: int) -> None:
    """With RLIMIT_FSIZE a write is truly short and then fails: a typed error or success, no torn object, and what was
    stored before is served."""
    place = folder / "w"
    place.mkdir()
    small(place)

    def work() -> None:
        with casstore.open(place / "s") as store:
            put(store, "c", n1={"t": np.random.default_rng(1).standard_normal(5000)})

    outcome = limited(resource.RLIMIT_FSIZE, nbytes, work)
    assert outcome in {"fine", "NoSpaceError", "StoreIOError"}
    with casstore.open(place / "s") as store:
        assert [get(store, name) == expect(name) for name in ("a", "b")] == [True, True]
        assert store.verify(deep=True).findings == ()
        assert (get(store, "c") == expect("c")) or outcome != "fine"
        put(store, "c")
        assert get(store, "c") == expect("c")


UNDER_MEMORY = """
import gc, resource, sys
import numpy, PIL.Image, zstandard, sqlalchemy
import casstore.build.builder, casstore.cli.build, casstore.cli.upkeep, casstore.core.put, casstore.upkeep.verify
from casstore.cli import run
PIL.Image.init()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[1]), resource.RLIM_INFINITY))
sys.exit(run(sys.argv[2:]))
"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mib", sizes(MEMORY, list(range(3, 90, 2))))
def test_little_memory_is_an_error_and_no_damage(folder: Path, mib: int) -> None:
    """With RLIMIT_AS from nothing to enough, a build ends with a documented code and a message, never with a traceback
    or a damaged store; without the limit it then succeeds. With next to nothing Python may crash, or its hooks may tell
    of the lack of memory themselves."""
    place = folder / "w"
    place.mkdir()
    small(place)
    pictures(place / "p", 3, size=(256, 256))
    command = ["build", str(place / "p"), "--encoder", "pixels", "--resolution", "256", "-s", str(place / "s")]
    done = python("-c", UNDER_MEMORY, str(mib << 20), *command)
    crashed = mib < SPEECHLESS and done.returncode in {-signal.SIGSEGV, -signal.SIGABRT}
    assert crashed or done.returncode in {0, 1, 6, 8, 9}, done
    hooks = mib < SPEECHLESS and b"MemoryError" in done.stderr
    assert hooks or b"Traceback" not in done.stderr, done.stderr.decode()
    assert crashed or done.returncode == 0 or done.stderr
    with casstore.open(place / "s") as store:
        assert store.verify(deep=True).findings == ()
        assert [get(store, name) == expect(name) for name in ("a", "b")] == [True, True]
    done = python("-m", "casstore", *command)
    assert done.returncode == 0, done
