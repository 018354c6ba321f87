"""Running a workload with a fault in it, and everything that has to hold then."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from core.helpers import expect, get
from faults.flushing import Disk, repeated
from faults.injection import FITTING, Call, Fault, Faults
from faults.workloads import Workload

import casstore
from casstore.core.directory import is_store
from casstore.errors import CasstoreError, StoreOutdatedError

PLAIN = {"stat", "close", "access", "space"}  # calls that get one kind of error in the short run


@dataclass(frozen=True, slots=True)
class Image:
    """A folder in memory, quickly written again and again: directories, and files with their modes."""

    folders: tuple[str, ...]
    files: tuple[tuple[str, int, bytes], ...]

    @classmethod
    def of(cls, place: Path) -> Image:
        found = sorted(place.rglob("*"))
        files = [(p, p.lstat()) for p in found if not p.is_dir()]
        return cls(
            tuple(str(p.relative_to(place)) for p in found if p.is_dir()),
            tuple((str(p.relative_to(place)), stat.S_IMODE(state.st_mode), p.read_bytes()) for p, state in files),
        )

    def write(self, place: Path) -> None:
        """Make the folder what this is. What is there of the last run is used again: 256 shards take a while."""
        there = _emptied(str(place)) if place.exists() else set()
        for folder in there - {*self.folders}:
            shutil.rmtree(place / folder, ignore_errors=True)
        place.mkdir(exist_ok=True)
        for folder in self.folders:
            if folder not in there:
                os.mkdir(place / folder)
        for name, mode, data in self.files:
            (place / name).write_bytes(data)
            os.chmod(place / name, mode)


def _emptied(place: str) -> set[str]:
    """Remove all files below a folder; the relative paths of the folders that are left."""
    found, pending = set[str](), [place]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    found.add(entry.path[len(place) + 1 :])
                    pending.append(entry.path)
                else:
                    os.unlink(entry.path)
    return found


class Bench:
    """One workload, prepared once; `place` is where it runs, `last` is how it ended the last time."""

    def __init__(self, workload: Workload, folder: Path) -> None:
        self.workload, self.place, self.last = workload, folder / "w", ""
        with workload.circumstances():
            self.place.mkdir()
            workload.prepare(self.place)
            self.image = Image.of(self.place)
            self.calls = tuple(self.run(None)[0].calls)

    def run(self, fault: Fault | None) -> tuple[Faults, list[str]]:
        """Run it in a fresh copy; what was recorded, and what is wrong afterwards."""
        self.image.write(self.place)
        with self.workload.circumstances():
            return self._run(fault)

    def _run(self, fault: Fault | None) -> tuple[Faults, list[str]]:
        wrong: list[str] = []
        acknowledged: list[str] = []
        before = descriptors()
        faults = Faults(self.place, fault)
        try:
            with faults:
                self.workload.work(self.place, acknowledged.append)
            outcome = "success"
        except CasstoreError as error:
            outcome = type(error).__name__
            wrong += untold(error, self.place, faults)
        except BaseException as error:
            outcome = type(error).__name__
            wrong.append(f"{outcome} escaped: {error}")
        self.last = outcome
        if descriptors() != before:
            wrong.append(f"leaked descriptors: {set(descriptors().items()) ^ set(before.items())}")
        wrong += (f"flushed again after an error: {call.path}" for call in repeated(faults.calls))
        if outcome == "success":
            wrong += (f"not durable: {path}" for path in Disk(faults.calls).missing(str(self.place / "s" / "objects")))
        else:
            wrong += self._check(acknowledged, deep=True)
            try:
                self.workload.work(self.place, lambda _: None)
            except BaseException as error:
                wrong.append(f"a second run fails: {type(error).__name__}: {error}")
        wrong += self._check(list(self.workload.results), deep=outcome == "success", complete=True)
        return faults, wrong

    def _check(self, acknowledged: list[str], *, deep: bool, complete: bool = False) -> Iterator[str]:
        """What is wrong with the store now."""
        path = self.place / ("deep/s" if self.workload.name == "init" else "s")
        if self.workload.name == "init" and not is_store(str(path)):
            if complete or path.exists():
                yield "there is no store"
            return
        try:
            with casstore.open(path) as store:
                if deep:
                    yield from self._verify(store, acknowledged)
                yield from self._served(store, acknowledged)
        except StoreOutdatedError:
            if self.workload.name != "upgrade" or complete:
                yield "the store is outdated"
        except Exception as error:
            yield f"the check fails: {type(error).__name__}: {error}"

    def _verify(self, store: casstore.Store, acknowledged: list[str]) -> Iterator[str]:
        for finding in store.verify(deep=True).findings:
            if self.workload.damaged is None or self.workload.damaged in acknowledged:
                yield f"{finding.what} {finding.name}: {finding.problem}"

    def _served(self, store: casstore.Store, acknowledged: list[str]) -> Iterator[str]:
        for name in {*self.workload.names, *acknowledged}:
            if get(store, name) != expect(name):
                yield f"{name} was acknowledged and isn't served: {str(get(store, name))[:80]}"
        for name in {*self.workload.results} - {*acknowledged}:
            if get(store, name) not in (expect(name), "new", "damaged"):
                yield f"{name} is something else: {str(get(store, name))[:80]}"
        if leftovers(store):
            store.gc(yes=True, grace_hours=0)
            if left := leftovers(store):
                yield f"gc leaves {left}"


def untold(error: CasstoreError, place: Path, faults: Faults) -> Iterator[str]:
    """What the message of an error lacks. `os.access` has no errno: it only says no."""
    text = str(error)
    named = faults.fault is not None and f"[{faults.fault.error}]" in text
    if str(place) not in text or not (named or ("access" in faults.hit and "owner and mode" in text)):
        yield f"{type(error).__name__} lacks path or errno: {text}"


def leftovers(store: casstore.Store) -> list[str]:
    """What an earlier process or handle has left in tmp/ and locks/owners/."""
    names = [name for folder in ("tmp", "locks/owners") for name in os.listdir(Path(store.path, folder))]
    return sorted(name for name in names if name != store._handle.owner)


def descriptors() -> dict[str, str]:
    """{open descriptor: what it is}"""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            found[name] = os.readlink(f"/proc/self/fd/{name}")
    return found


def shape(call: Call) -> tuple[str, str]:
    """What makes two calls alike: the function, and the path without what differs from object to object."""
    path = re.sub(r"/objects/[0-9a-f]{2}\b", "/objects/xx", call.path)
    path = re.sub(r"[0-9a-f]{64}|[0-9a-f]{16}(-\d+)?|\d{8}T\d{6}Z-\d+", "N", path)
    return call.name, path


def faults_of(calls: tuple[Call, ...], *, all_of_them: bool, brief: bool = False) -> Iterator[Fault]:
    """The faults to try, each once and for ever: at every call, all errors that fit it; in the short run, at the first
    and (unless it is brief) the last call of those that are alike (a shard like another), EIO and one more."""
    kinds = [shape(call) for call in calls]
    first = {kind: number for number, kind in reversed(list(enumerate(kinds)))}
    last = first if brief else {kind: number for number, kind in enumerate(kinds)}
    for number, kind in enumerate(kinds):
        if not all_of_them and number not in (first[kind], last[kind]):
            continue
        fitting = FITTING[kind[0]]
        errors = fitting if all_of_them else ["EIO"]
        if not all_of_them and kind[0] not in PLAIN:
            others = [name for name in fitting if name != "EIO"]
            errors = ["EIO", others[number % len(others)]]
        for error in errors:
            yield Fault(number, error)
            yield Fault(number, error, for_ever=True)
