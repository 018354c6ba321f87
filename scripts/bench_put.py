"""Putting, durability full, against the same bytes written one after the other into one file and one syncfs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from bench_read import latents
from timing import RUNS, ratios, spread

import casstore
from casstore import fsio
from casstore.core.put import GROUP_OBJECTS, PutItem, put_group
from casstore.core.results import check_result
from casstore.objects.stored import encode

RECIPE = casstore.Recipe("bench", code=1)
SUSTAINED = 8  # groups in a row
_COUNTED = """
import sys, numpy, casstore
with casstore.open(sys.argv[1], create=True, durability="full") as store, store.batch() as batch:
    for n in range(64 * int(sys.argv[2])):
        batch.put(casstore.Key.text(str(n), casstore.Recipe("bench")), {"t": numpy.full(9, n)})
"""

Make = Callable[[int], dict[str, object]]


def bench_put(folder: Path) -> None:
    """Groups of 64, sustained and alone, against the disk; groups of one through the same code; flushes per group."""
    print(f"put: durability full, groups of {GROUP_OBJECTS}, {RUNS} pairs")
    rng = np.random.default_rng(0)
    real = latents()
    kinds: list[tuple[str, Make]] = [
        ("170 KB that don't compress", lambda _: {"t": rng.integers(0, 256, 170_000, dtype=np.uint8)}),
        ("4 KB that don't compress", lambda _: {"t": rng.integers(0, 256, 4_000, dtype=np.uint8)}),
        ("real bf16 latents", lambda n: {"t": torch.roll(real[n % len(real)].flatten(), n)}),
    ]
    for name, make in kinds:
        with casstore.open(folder / "store", create=True, durability="full") as store:
            _bench(store, folder, name, make)
        shutil.rmtree(folder / "store")
    _flushes(folder)


def _bench(store: casstore.Store, folder: Path, name: str, make: Make) -> None:
    handle = store._handle
    counter = iter(range(1 << 60))

    def items(count: int) -> list[PutItem]:
        numbers = [next(counter) for _ in range(count)]
        keys = [casstore.Key.text(f"{name} {number}", RECIPE) for number in numbers]
        return [PutItem(key, check_result(key, make(n))) for key, n in zip(keys, numbers, strict=True)]

    stored: list[bytes] = []

    def group(_: int) -> float:
        ready = items(GROUP_OBJECTS)
        payloads = [part.payload for item in ready for part in item.result.parts]
        stored[:] = [b"".join(encode("zstd", p.layout, p.data, p.digest)) for p in payloads]
        began = time.perf_counter()
        put_group(handle, ready)
        return time.perf_counter() - began

    def disk(run: int, count: int = 1) -> float:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            began = time.perf_counter()
            for number in range(count):
                fsio.write_new(str(folder / f"reference-{time.time_ns()}-{number}"), stored)
                fsio.flush_filesystem(descriptor, str(folder))
            return time.perf_counter() - began
        finally:
            os.close(descriptor)

    def sustained(_: int) -> float:
        ready = items(GROUP_OBJECTS * SUSTAINED)
        began = time.perf_counter()
        with store.batch() as batch:
            for item in ready:
                batch.add(item)
        return time.perf_counter() - began

    def alone(_: int) -> float:
        ready = items(GROUP_OBJECTS // 4)
        began = time.perf_counter()
        for item in ready:
            put_group(handle, [item])
        return 4 * (time.perf_counter() - began)

    print(f"  {name}")
    print(f"    one group, x of the disk                     {spread(ratios(group, disk))}")
    in_a_row = ratios(sustained, lambda run: disk(run, SUSTAINED), 7)
    print(f"    {SUSTAINED} groups in a row, x of the disk             {spread(in_a_row)}")
    print(f"    groups of one, x of a group                  {spread(ratios(alone, group, 7))}")
    for file in folder.glob("reference-*"):
        file.unlink()


def _flushes(folder: Path, groups: int = 100) -> None:
    if shutil.which("strace") is None:
        print("  flushes per group: strace isn't installed")
        return
    traced = ["strace", "-f", "-c", "-e", "trace=fsync,fdatasync,syncfs", "-o", str(folder / "trace")]
    counts = []
    for count in (0, groups):
        command = [*traced, sys.executable, "-c", _COUNTED, str(folder / f"counted-{count}"), str(count)]
        subprocess.run(command, check=True)
        lines = [line.split() for line in (folder / "trace").read_text().splitlines()]
        counts.append(sum(int(line[3]) for line in lines if line and line[-1] in ("fsync", "fdatasync", "syncfs")))
    print(f"  flushes per group, over {groups} groups             {(counts[1] - counts[0]) / groups:6.2f}")
