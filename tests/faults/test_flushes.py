"""A failed flush is never retried: what it covered is written anew, or given up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from core.helpers import fast_folder
from faults.flushing import unsafe
from faults.injection import Fault, Faults
from faults.running import Bench
from faults.workloads import WORKLOADS

from casstore import fsio
from casstore.errors import CasstoreError

STORING = ["put_one", "put_by_fsync", "batch", "heal"]


@pytest.fixture
def folder() -> Iterator[Path]:
    with fast_folder() as place:
        yield place


def flushes(bench: Bench) -> list[int]:
    """The numbers of the calls that flush."""
    return [number for number, call in enumerate(bench.calls) if call.name == "flush"]


def trace(bench: Bench, fault: Fault | None) -> list[str]:
    """Run the work; what is wrong with its flushes, if it claims to have succeeded."""
    bench.image.write(bench.place)
    with bench.workload.circumstances(), Faults(bench.place, fault) as faults:
        try:
            bench.workload.work(bench.place, lambda _: None)
        except CasstoreError:
            return []
    return list(unsafe(faults.calls, str(bench.place / "s" / "objects")))


@pytest.mark.parametrize("name", STORING)
def test_after_a_failed_flush_the_group_is_written_again(name: str, folder: Path) -> None:
    """One failed flush costs nothing: the same data goes under new names through other descriptors, and is durable."""
    bench = Bench(WORKLOADS[name], folder)
    assert flushes(bench)
    for number in flushes(bench):
        faults, wrong = bench.run(Fault(number, "EIO"))
        temps = [call.path for call in faults.calls if call.name == "create" and "/tmp/" in call.path]
        assert (wrong, bench.last) == ([], "success")
        assert len(temps) == len(set(temps)) > sum("/tmp/" in c.path for c in bench.calls if c.name == "create")


@pytest.mark.parametrize("name", STORING)
def test_a_disk_that_never_flushes_stores_nothing(name: str, folder: Path) -> None:
    """When every flush fails it is an error after the second try; each try has names of its own."""
    bench = Bench(WORKLOADS[name], folder)
    faults, wrong = bench.run(Fault(flushes(bench)[0], "EIO", for_ever=True, only="flush"))
    assert (wrong, bench.last) == ([], "StoreIOError")
    tries = {call.path for call in faults.calls if call.name == "create" and "/tmp/" in call.path}
    assert len(tries) % 2 == 0 and tries


def stubborn(real: Callable[..., None]) -> Callable[..., None]:
    """The classic mistake: a flush that is tried again when it fails, and believed when it then succeeds."""

    def flush(*arguments: int | str) -> None:
        try:
            real(*arguments)
        except CasstoreError:
            real(*arguments)

    return flush


@pytest.mark.parametrize("name", STORING)
def test_a_flush_that_is_retried_is_caught(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a flush that tries again, each single failing flush shows in the trace."""
    monkeypatch.setattr(fsio, "flush_filesystem", stubborn(fsio.flush_filesystem))
    monkeypatch.setattr(fsio, "flush_file", stubborn(fsio.flush_file))
    bench = Bench(WORKLOADS[name], folder)
    for number in flushes(bench):
        assert trace(bench, Fault(number, "EIO"))


def test_an_object_that_is_not_flushed_is_caught(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trace also shows a put that forgets to flush the names."""
    real, calls = fsio.flush_filesystem, list[int]()

    def every_other(descriptor: int, path: str) -> None:
        calls.append(descriptor)
        if len(calls) % 2:
            real(descriptor, path)

    bench = Bench(WORKLOADS["put_one"], folder)
    assert trace(bench, None) == []
    monkeypatch.setattr(fsio, "flush_filesystem", every_other)
    (line,) = trace(bench, None)
    assert "not durable" in line
