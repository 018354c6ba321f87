"""Benchmarks. Called by scripts/bench NAME..."""

from __future__ import annotations

import argparse
import functools
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench_build import bench_build
from bench_codec import bench_codec
from bench_index import bench_index, bench_million
from bench_loader import SAMPLES, bench_loader
from bench_plan import bench_plan
from bench_put import bench_put
from bench_read import bench_read
from bench_scan import FILES, bench_scan
from bench_weights import bench_weights

BENCHES: dict[str, Callable[[Path], Any]] = {
    "codec": bench_codec,
    "index": bench_index,
    "million": bench_million,
    "plan": bench_plan,
    "put": bench_put,
    "read": bench_read,
    "weights": bench_weights,
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("scripts/bench", description="Ratios to a reference in the same run, with spread.")
    more = ("build", "loader", "scan")
    parser.add_argument("names", nargs="+", metavar="NAME", choices=[*BENCHES, *more], help="%(choices)s")
    parser.add_argument("--large", action="store_true", help="scan: a million files; loader: a million entries as well")
    parser.add_argument("--files", type=int, default=FILES, help="scan: how many (%(default)s)")
    parser.add_argument("--samples", type=int, default=SAMPLES, help="loader: how many (%(default)s)")
    parser.add_argument("--svg", type=Path, help="loader: a file for a chart of the rates")
    parser.add_argument("--peer", type=Path, help="build, scan, loader: a checkout of mgds that has SmartDiskCache")
    given = parser.parse_args(arguments)
    benches = BENCHES | {
        "build": functools.partial(bench_build, peer=given.peer),
        "loader": functools.partial(
            bench_loader, count=given.samples, large=given.large, peer=given.peer, svg=given.svg
        ),
        "scan": functools.partial(bench_scan, files=given.files, large=given.large, peer=given.peer),
    }
    for name in given.names:
        folder = Path(tempfile.mkdtemp(prefix="casstore-bench-"))
        try:
            benches[name](folder)
        finally:
            shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
