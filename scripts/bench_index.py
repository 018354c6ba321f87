"""The index: opening, looking up and writing rows, against SQLite asked for the same by hand."""

from __future__ import annotations

import contextlib
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import synthetic
from timing import RUNS, ratios, spread

import casstore
from casstore.core.put import GROUP_OBJECTS
from casstore.core.read import lookup
from casstore.index.bulk import CHUNK, Statement
from casstore.index.objects import save_objects
from casstore.index.roots import save_root
from casstore.index.sources import save_sources
from casstore.index.variants import _by_content, find_variants, save_variants

SMALL = 10_000
TABLES = ("hashes", "sources", "objects", "variants", "variant_parts")
_MEMORY = """
import sys, resource, casstore, numpy, sqlalchemy, casstore.core.handle
def kib(): return int([l for l in open("/proc/self/status") if l.startswith("VmRSS")][0].split()[1])
before = kib()
store = casstore.open(sys.argv[1])
print(kib() - before)
"""


def bench_index(folder: Path, size: int = 100_000) -> None:
    """Opening, memory, lookups, bytes and the write lock of an index of `size` entries; bulk writing of 100,000."""
    for entries in (SMALL, size):
        with casstore.open(folder / str(entries), create=True, durability="off") as store:
            synthetic.fill(store, entries)
    print(f"index: {size:,} entries, {RUNS} pairs")
    _opening(folder, size)
    with casstore.open(folder / str(size)) as store:
        _lookups(store, size)
        _bytes(store, size)
        _lock(store)
    _bulk(folder)


def bench_million(folder: Path) -> None:
    """The same with a million entries."""
    bench_index(folder, 1_000_000)


def _opening(folder: Path, size: int) -> None:
    def opened(entries: int) -> float:
        began = time.perf_counter()
        store = casstore.open(folder / str(entries))
        seconds = time.perf_counter() - began
        store.close()
        return seconds

    def memory(entries: int) -> float:
        command = [sys.executable, "-c", _MEMORY, str(folder / str(entries))]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) / 1024

    print(f"  ms to open {SMALL:,} entries (imports done)    {spread([1000 * opened(SMALL) for _ in range(RUNS)])}")
    more = ratios(lambda _: opened(size), lambda _: opened(SMALL))
    print(f"  opening {size:9,}, x opening {SMALL:,}         {spread(more)}")
    for entries in (SMALL, size):
        print(f"  MiB of RAM after opening {entries:9,}           {spread([memory(entries) for _ in range(3)])}")


def _lookups(store: casstore.Store, size: int) -> None:
    handle = store._handle
    keys = [synthetic.key_of(number) for number in random.Random(0).sample(range(size), 1000)]
    contents = [key.primary.digest for key in keys]
    with contextlib.closing(sqlite3.connect(Path(store.path, "index.sqlite"), isolation_level=None)) as raw:

        def timed(work: Any) -> Any:
            def run(_: int) -> float:
                began = time.perf_counter()
                work()
                return time.perf_counter() - began

            return run

        def one() -> None:
            for key in keys[:200]:
                lookup(handle, [key])

        def raw_one() -> None:
            for content in contents[:200]:
                raw.execute(_by_content.of(1).sql, (content,)).fetchall()

        def rows() -> None:
            with handle.index.glance() as connection:
                find_variants(connection, keys)

        def raw_rows() -> None:
            for start in range(0, len(keys), CHUNK):
                raw.execute(_by_content.of(CHUNK).sql, contents[start : start + CHUNK]).fetchall()

        ones = ratios(timed(one), timed(raw_one))
        many = ratios(timed(rows), timed(raw_rows))
        hits = ratios(timed(lambda: lookup(handle, keys)), timed(raw_rows))
    print(f"  lookup of one key, x the raw select            {spread(ones)}")
    print(f"  rows of 1,000 keys, checked, x the raw select  {spread(many)}")
    print(f"  lookup of 1,000 keys, x the raw select         {spread(hits)}")


def _bytes(store: casstore.Store, size: int) -> None:
    with contextlib.closing(sqlite3.connect(Path(store.path, "index.sqlite"))) as raw:
        total = raw.execute("SELECT sum(pgsize) FROM dbstat").fetchone()[0]
    print(f"  bytes of index per entry                       {total / size:6.0f}")


def _lock(store: casstore.Store) -> None:
    held: list[float] = []
    honest = store._handle.index.write

    @contextlib.contextmanager
    def watched() -> Iterator[Any]:
        with honest() as connection:
            began = time.perf_counter()
            yield connection
        held.append(1000 * (time.perf_counter() - began))

    store._handle.index.write = watched  # type: ignore[method-assign]
    for run in range(RUNS + 1):
        with store.batch() as batch:
            for number in range(GROUP_OBJECTS):
                key = casstore.Key.text(f"{run} {number}", synthetic.RECIPE)
                batch.put(key, {"t": np.full(8, run * GROUP_OBJECTS + number)})
    store._handle.index.write = honest  # type: ignore[method-assign]
    print(f"  ms of write lock per group of {GROUP_OBJECTS}               {spread(held[1:])}")


def _bulk(folder: Path, size: int = 100_000) -> None:
    """Entries in batches, as a scan and builds write them, against executemany of exactly the rows that this made."""
    batches = [synthetic.rows(range(first, first + synthetic.BATCH)) for first in range(0, size, synthetic.BATCH)]
    ours, seconds, in_sql = folder / "ours", [], []
    with casstore.open(ours, create=True, durability="off") as store:
        index = store._handle.index
        with index.write() as connection:
            root = save_root(connection, "/synthetic/photos")
        for sources, objects, variants in batches:
            with _statements_timed() as spent:
                began = time.perf_counter()
                with index.write() as connection:
                    save_sources(connection, root, sources)
                    save_objects(connection, objects)
                    save_variants(connection, variants, (), None)
                seconds.append(time.perf_counter() - began)
            in_sql.append(sum(spent))
    by_hand = _by_hand(folder, ours, len(batches))
    whole = [a / b for a, b in zip(seconds, by_hand, strict=True)]
    prepared = [a / b for a, b in zip(in_sql, by_hand, strict=True)]
    print(f"  bulk of {size:,}, x executemany of the rows    {spread(whole)}")
    print(f"  without making tuples and checksums            {spread(prepared)}")
    print(f"  us per entry                                   {spread([1e6 * s / synthetic.BATCH for s in seconds])}")


@contextlib.contextmanager
def _statements_timed() -> Iterator[list[float]]:
    """The seconds that each statement takes in the block."""
    spent: list[float] = []
    honest = {name: getattr(Statement, name) for name in ("rows", "many")}

    def timed(name: str) -> Any:
        def call(*arguments: Any) -> Any:
            began = time.perf_counter()
            found = honest[name](*arguments)
            spent.append(time.perf_counter() - began)
            return found

        return call

    for name in honest:
        setattr(Statement, name, timed(name))
    try:
        yield spent
    finally:
        for name, method in honest.items():
            setattr(Statement, name, method)


def _by_hand(folder: Path, ours: Path, parts: int) -> list[float]:
    """Seconds for each batch: the same rows with the same ids into a new index, nothing looked up or checked."""
    with casstore.open(folder / "hand", create=True, durability="off"):
        pass
    with (
        contextlib.closing(sqlite3.connect(ours / "index.sqlite")) as made,
        contextlib.closing(sqlite3.connect(folder / "hand" / "index.sqlite", isolation_level=None)) as raw,
    ):
        raw.execute("PRAGMA synchronous = OFF")
        raw.execute("PRAGMA wal_autocheckpoint = 0")
        for table in ("roots", "directories", "recipes", "layouts", "schema_stamps", "value_sets"):
            _insert(raw, table, made.execute(f"SELECT * FROM {table}").fetchall())
        rows = {table: made.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall() for table in TABLES}
        seconds = []
        for part in range(parts):
            began = time.perf_counter()
            raw.execute("BEGIN IMMEDIATE")
            for table in TABLES:
                first = part * synthetic.BATCH
                _insert(raw, table, rows[table][first : first + synthetic.BATCH])
            raw.execute("COMMIT")
            seconds.append(time.perf_counter() - began)
            raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # ours is inside its time, when it is due
    return seconds


def _insert(raw: sqlite3.Connection, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
    if rows:
        raw.executemany(f"INSERT INTO {table} VALUES ({','.join('?' * len(rows[0]))})", rows)
