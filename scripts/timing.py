"""What the benchmarks share: pairs of runs, and how they are told."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

RUNS = 15


def spread(values: list[float]) -> str:
    """Median, and lowest to highest."""
    return f"{statistics.median(values):6.2f}  ({min(values):.2f} to {max(values):.2f})"


def ratios(ours: Callable[[int], float], reference: Callable[[int], float], runs: int = RUNS) -> list[float]:
    """ours / reference, pair by pair, after one warm-up of both."""
    ours(0), reference(0)
    return [ours(run) / reference(run) for run in range(1, runs + 1)]


def seconds(call: Callable[[], Any], repeat: int) -> float:
    """Seconds per call: the mean of `repeat` calls after one that warms the caches."""
    call()
    began = time.perf_counter()
    for _ in range(repeat):
        call()
    return (time.perf_counter() - began) / repeat


def interleaved(runs: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """What each run says, round by round, all of them in turn; a round before warms up."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds + 1):
        for name, run in runs.items():
            gc.collect()
            found[name].append(run())
    return {name: each[1:] for name, each in found.items()}
