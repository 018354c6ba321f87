"""Each call that a piece of work makes on the file system fails once, and for ever: always an error, never a loss."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from core.helpers import fast_folder
from faults.running import Bench, faults_of
from faults.workloads import WORKLOADS

SLICES = 3  # tests per workload, so that they spread over processes
LEAST = 2000


@pytest.fixture
def folder() -> Iterator[Path]:
    with fast_folder() as place:
        yield place


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(SLICES))
@pytest.mark.parametrize("name", WORKLOADS)
def test_a_fault_is_an_error_and_never_a_loss(
    folder: Path, name: str, part: int, request: pytest.FixtureRequest
) -> None:
    """Whatever call fails: a typed error with path and errno or success, nothing acknowledged is lost, no damage, no
    descriptor leaks, no flush is repeated, and the same work then succeeds."""
    bench = Bench(WORKLOADS[name], folder)
    nightly = request.config.getoption("--nightly")
    faults = list(faults_of(bench.calls, all_of_them=nightly, brief=WORKLOADS[name].brief))[part::SLICES]
    wrong = []
    for fault in faults:
        call = bench.calls[fault.number]
        wrong += [f"{fault} ({call.name} {call.path}): {problem}" for problem in bench.run(fault)[1]]
    assert wrong == [], "\n".join(wrong)


def test_there_are_enough_faults(folder: Path) -> None:
    """The short run tries at least 2,000 different (call, error, once or for ever)."""
    count = 0
    for name, workload in WORKLOADS.items():
        (folder / name).mkdir()
        count += len(set(faults_of(Bench(workload, folder / name).calls, all_of_them=False, brief=workload.brief)))
    assert count >= LEAST
