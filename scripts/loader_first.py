"""How long the first batch of a dataset takes in a large index."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import synthetic
from loader_data import BATCH, Ready, Sample, planned, stored
from timing import spread
from torch.utils.data import DataLoader

import casstore

COUNT = 20_000
RUNS = 7


def first_batch(folder: Path, tensors: Sequence[Sample], entries: int) -> None:
    """Print the seconds until the first batch of COUNT samples out of so many entries, beyond those of ready tensors.

    The samples share the objects of `tensors`: how many files there are doesn't matter here.
    """
    began = time.perf_counter()
    with casstore.open(folder, create=True, durability="off") as store:
        synthetic.fill(store, entries - 2 * COUNT)
    dataset = stored(folder, "raw", tensors, COUNT, alike=True)
    print(f"  {COUNT:,} samples in an index of {entries:,} (made in {time.perf_counter() - began:.0f} s), 2 workers")
    ready = Ready(tensors, COUNT)
    pairs = [(_first(dataset), _first(ready)) for _ in range(RUNS + 1)][1:]
    print(f"    s until the first batch, beyond ready tensors {spread([a - b for a, b in pairs])}   goal <= 0.3")
    print(f"    s until the first batch of ready tensors     {spread([b for _, b in pairs])}")
    whole = []
    for _ in range(RUNS):
        began = time.perf_counter()
        with casstore.open(folder) as store:
            _first(store.dataset(**planned(store, "raw", COUNT)))
        whole.append(time.perf_counter() - began)
    print(f"    s with opening, planning and the dataset     {spread(whole)}")


def _first(dataset: Any) -> float:
    began = time.perf_counter()
    each = iter(DataLoader(dataset, batch_size=BATCH, shuffle=True, num_workers=2))
    next(each)
    took = time.perf_counter() - began
    del each
    return took
