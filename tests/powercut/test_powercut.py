"""What was acknowledged survives a power cut at any moment, and what is left is sound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from powercut.recording import why_not
from powercut.replaying import REOPENED, replay
from powercut.workloads import WORKLOADS

pytestmark = [
    pytest.mark.skipif(why_not() is not None, reason=why_not() or ""),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]


def entries() -> list[Any]:
    """The names of all workloads; what is known to go wrong has to go wrong."""
    return [
        pytest.param(name, marks=[pytest.mark.xfail(reason=entry.fault)] if entry.fault else [])
        for name, entry in WORKLOADS.items()
    ]


def test_there_are_states_enough() -> None:
    """All workloads together have to leave 5,000 distinct states, and each 300."""
    fewest = [entry.states for entry in WORKLOADS.values() if not entry.fault]
    assert min(fewest) >= 300 and sum(fewest) >= 5000


@pytest.mark.parametrize("name", entries())
def test_whatever_a_crash_leaves_is_sound_and_has_what_was_acknowledged(
    name: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Every state holds invariants 1, 2 and 7 and the promises; casstore opens and verifies some, and does it again."""
    found = replay(tmp_path, WORKLOADS[name])
    record_property("figure", f"powercut: {name}: {found.states} distinct crash states, {found.reopened} reopened")
    assert found.violations == []
    assert found.states >= WORKLOADS[name].states
    assert found.reopened >= REOPENED


@pytest.mark.nightly
@pytest.mark.parametrize("name", [name for name, entry in WORKLOADS.items() if not entry.fault])
def test_the_same_holds_with_the_other_way_of_flushing(
    name: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Each workload once more: file by file where it took the path with syncfs, and the reverse."""
    entry = replace(WORKLOADS[name], syncfs=not WORKLOADS[name].syncfs)
    found = replay(tmp_path, entry)
    record_property("figure", f"powercut: {name}, flushed the other way: {found.states} distinct crash states")
    assert found.violations == []
