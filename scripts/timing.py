"""Timing two things against each other, pair by pair: only ratios of one run mean anything on a shared machine."""

from __future__ import annotations

import statistics
from collections.abc import Callable

RUNS = 15


def spread(values: list[float]) -> str:
    """Median, and lowest to highest."""
    return f"{statistics.median(values):6.2f}  ({min(values):.2f} to {max(values):.2f})"


def ratios(ours: Callable[[int], float], reference: Callable[[int], float], runs: int = RUNS) -> list[float]:
    """ours / reference, pair by pair, after one warm-up of both."""
    ours(0), reference(0)
    return [ours(run) / reference(run) for run in range(1, runs + 1)]
