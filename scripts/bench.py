"""Benchmarks. Called by scripts/bench NAME..."""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from bench_codec import bench_codec
from bench_index import bench_index, bench_million
from bench_read import bench_read
from timing import ratios, spread

import casstore
from casstore import fsio
from casstore.core.put import GROUP_OBJECTS, PutItem, put_group
from casstore.core.results import check_result
from casstore.objects import container


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


BENCHES: dict[str, Callable[[Path], Any]] = {
    "codec": bench_codec,
    "index": bench_index,
    "million": bench_million,
    "put": bench_put,
    "read": bench_read,
}


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
