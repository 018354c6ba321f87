"""Benchmarks. Called by scripts/bench NAME..."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import synthetic

import casstore
from casstore import fsio
from casstore.core.put import GROUP_OBJECTS, PutItem, put_group
from casstore.core.read import lookup
from casstore.core.results import check_result
from casstore.index.variants import _by_content
from casstore.objects import container

RUNS = 15


def spread(values: list[float]) -> str:
    """Median, and lowest to highest."""
    return f"{statistics.median(values):6.2f}  ({min(values):.2f} to {max(values):.2f})"


def ratios(ours: Callable[[int], float], reference: Callable[[int], float], runs: int = RUNS) -> list[float]:
    """ours / reference, pair by pair, after one warm-up of both."""
    ours(0), reference(0)
    return [ours(run) / reference(run) for run in range(1, runs + 1)]


def bench_put(folder: Path) -> None:
    """One group of 64 objects of about 170 KB through the whole put protocol, encoding included, against the same bytes
    written sequentially into one file and one syncfs."""
    store = casstore.open(folder / "store", create=True, durability="full")
    handle = store._handle
    recipe = casstore.Recipe("bench", code=1)
    rng = np.random.default_rng(0)

    def items(run: int) -> list[PutItem]:
        made = []
        for number in range(GROUP_OBJECTS):
            key = casstore.Key.text(f"{run} {number}", recipe)
            latent = rng.standard_normal((24, 64, 64), dtype=np.float32).astype(np.float16)
            made.append(PutItem(key, check_result(key, {"latent": latent})))
        return made

    stored: list[bytes] = []
    encode: list[float] = []
    whole: list[float] = []

    def ours(run: int) -> float:
        group = items(run)
        began = time.perf_counter()
        stored[:] = [b"".join(container.encode(p.layout, p.data, p.digest)) for p in (i.result.payload for i in group)]
        encode.append(time.perf_counter() - began)
        began = time.perf_counter()
        put_group(handle, group)  # encodes once more
        whole.append(time.perf_counter() - began)
        return whole[-1]

    def reference(run: int) -> float:
        directory = os.open(folder, os.O_RDONLY)
        try:
            began = time.perf_counter()
            fsio.write_new(str(folder / f"reference-{run}"), stored)
            fsio.flush_filesystem(directory, str(folder))
            return time.perf_counter() - began
        finally:
            os.close(directory)

    found = ratios(ours, reference)
    without = [ratio * (1 - e / w) for ratio, e, w in zip(found, encode[1:], whole[1:], strict=True)]
    mean = statistics.mean(len(chunk) for chunk in stored)
    print(f"put: groups of {GROUP_OBJECTS} objects of {mean / 1000:.0f} KB, durability full, {len(found)} pairs")
    print(f"  x of the same bytes sequentially + one syncfs   {spread(found)}")
    print(f"  the same without the time for encoding          {spread(without)}")
    print(f"  ms per group                                    {spread([1000 * t for t in whole[1:]])}")
    print(f"  ms of that for encoding, on the same thread     {spread([1000 * t for t in encode[1:]])}")
    store.close()


def bench_index(folder: Path) -> None:
    """Opening, looking up and writing rows, against SQLite asked for the same by hand."""
    sizes = (10_000, 50_000)
    opened: dict[int, list[float]] = {}
    for size in sizes:
        with casstore.open(folder / str(size), create=True, durability="off") as store:
            synthetic.fill(store, size)
        opened[size] = []
        for _ in range(RUNS):
            began = time.perf_counter()
            store = casstore.open(folder / str(size))
            opened[size].append(1000 * (time.perf_counter() - began))
            store.close()
    store = casstore.open(folder / str(sizes[-1]))
    handle = store._handle
    index = Path(store.path, "index.sqlite")
    keys = [synthetic.key_of(number) for number in range(0, sizes[-1], sizes[-1] // 1000)]
    lookup(handle, keys[:1]), lookup(handle, keys)
    statements = {n: _by_content.of(n).sql for n in (1, 500)}
    with contextlib.closing(sqlite3.connect(index, isolation_level=None)) as raw:

        def one(run: int) -> float:
            began = time.perf_counter()
            for key in keys[:200]:
                lookup(handle, [key])
            return time.perf_counter() - began

        def raw_one(run: int) -> float:
            began = time.perf_counter()
            for key in keys[:200]:
                raw.execute(statements[1], (key.primary.digest,)).fetchall()
            return time.perf_counter() - began

        def many(run: int) -> float:
            began = time.perf_counter()
            lookup(handle, keys)
            return time.perf_counter() - began

        def raw_many(run: int) -> float:
            began = time.perf_counter()
            for start in range(0, len(keys), 500):
                raw.execute(statements[500], [k.primary.digest for k in keys[start : start + 500]]).fetchall()
            return time.perf_counter() - began

        print(f"index: {sizes[-1]:,} entries, {RUNS} pairs")
        print(f"  ms to open {sizes[0]:,} entries (imports done)     {spread(opened[sizes[0]])}")
        print(f"  ms to open {sizes[1]:,} entries                    {spread(opened[sizes[1]])}")
        print(f"  lookup of one key, x the raw select            {spread(ratios(one, raw_one))}")
        print(f"  lookup of 1,000 keys, x the raw select         {spread(ratios(many, raw_many))}")
    held: list[float] = []
    honest = handle.index.write

    @contextlib.contextmanager
    def watched() -> Any:
        with honest() as connection:
            began = time.perf_counter()
            yield connection
        held.append(1000 * (time.perf_counter() - began))

    handle.index.write = watched  # type: ignore[method-assign]
    for run in range(RUNS + 1):
        with store.batch() as batch:
            for number in range(GROUP_OBJECTS):
                key = casstore.Key.text(f"{run} {number}", synthetic.RECIPE)
                batch.put(key, {"t": np.full(8, run * GROUP_OBJECTS + number)})
    print(f"  ms of write lock per group of 64               {spread(held[1:])}")
    store.close()
    print(f"  bytes of index per entry                       {index.stat().st_size / sizes[-1]:6.0f}")


BENCHES: dict[str, Callable[[Path], Any]] = {"index": bench_index, "put": bench_put}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in BENCHES]
    if unknown or not names:
        print(f"usage: scripts/bench NAME...   names: {', '.join(sorted(BENCHES))}", file=sys.stderr)
        return 2
    for name in names:
        folder = Path(tempfile.mkdtemp(prefix="casstore-bench-"))
        try:
            BENCHES[name](folder)
        finally:
            shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
