"""Benchmarks. Called by scripts/bench NAME..."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench_codec import bench_codec
from bench_index import bench_index, bench_million
from bench_put import bench_put
from bench_read import bench_read

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
