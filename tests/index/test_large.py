"""T56: a large store is opened, counted, asked and paged through, and its size costs no memory."""

from __future__ import annotations

import importlib.util
import json
import math
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import ROOT, object_files, python

import casstore

GARBAGE = 20  # objects that nobody refers to, in stores of every size
LOOKUPS = 1000
PAGE = 1000
PAGES = "SELECT v.id, h.digest FROM variants v JOIN hashes h ON h.id = v.hash_id WHERE v.id > ? ORDER BY v.id LIMIT ?"
pytestmark = pytest.mark.timeout(3600)


def _synthetic() -> Any:
    spec = importlib.util.spec_from_file_location("synthetic", ROOT / "scripts" / "synthetic.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


synthetic = _synthetic()


def filled(path: Path, count: int) -> Path:
    """A store with rows for so many variants, and for the garbage, but without a file."""
    with casstore.open(path, create=True, durability="off") as store:
        synthetic.fill(store, count + GARBAGE)
        for number in range(GARBAGE):
            store.forget(synthetic.key_of(number)).execute()
    return path


@pytest.fixture(scope="module", params=[30_000, pytest.param(1_000_000, marks=pytest.mark.nightly)])
def large(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """(a store, how many variants it has)"""
    return filled(tmp_path_factory.mktemp("large") / "s", request.param), request.param


def test_any_of_many_keys_is_found(large: tuple[Path, int]) -> None:
    """The store says how many there are; each of 1000 keys chosen at random is a hit, one that was forgotten isn't."""
    path, count = large
    with casstore.open(path) as store:
        assert store.status().variants == count
        numbers = random.Random(1).sample(range(GARBAGE, count + GARBAGE), LOOKUPS)
        for number in numbers:
            hit = store.lookup(synthetic.key_of(number))
            assert isinstance(hit, casstore.Hit)
            assert hit.digests == (synthetic.digest("object", number).hex(),)
        assert isinstance(store.lookup(synthetic.key_of(0)), casstore.Miss)


def test_a_large_index_is_paged_through(large: tuple[Path, int]) -> None:
    """Pages that begin after the last id hold every variant once; the view counts as many, each with its file."""
    path, count = large
    found: set[str] = set()
    last = pages = 0
    with casstore.open(path) as store:
        while rows := store.sql(PAGES, (last, PAGE)).rows:
            before = len(found)
            found.update(content for _, content in rows)
            assert len(found) == before + len(rows) <= before + PAGE, "a variant came twice"
            last, pages = rows[-1][0], pages + 1
        seen = store.sql("SELECT count(*), count(path) FROM v_variants").rows
    assert pages == math.ceil(count / PAGE)
    assert found == {synthetic.digest("content", number).hex() for number in range(GARBAGE, count + GARBAGE)}
    assert seen == [(count, count)]


def test_a_dry_run_of_gc_sees_the_garbage_alone(large: tuple[Path, int]) -> None:
    """Of all objects only those that nobody refers to would go, with and without a grace period."""
    path, count = large
    with casstore.open(path) as store:
        later, now = store.gc(), store.gc(grace_hours=0)
        assert store.status().objects == count + GARBAGE
        stored = store.sql("SELECT sum(stored_bytes) FROM v_objects WHERE parts = 0").rows[0][0]
    assert (later.condemned, later.would_free_bytes) == (GARBAGE, 0)
    assert (now.condemned, now.would_free_bytes) == (GARBAGE, stored)


MEASURED = """
import gc, json, random, resource, sys, tracemalloc
from index.test_large import GARBAGE, LOOKUPS, PAGES, PAGE, synthetic
import casstore

def work(path, count):
    with casstore.open(path) as store:
        assert store.status().variants == count
        for number in random.Random(1).sample(range(GARBAGE, count + GARBAGE), min(LOOKUPS, count)):
            assert isinstance(store.lookup(synthetic.key_of(number)), casstore.Hit)
        last = 0
        while rows := store.sql(PAGES, (last, PAGE)).rows:
            last = rows[-1][0]
        assert store.gc().condemned == GARBAGE

def resident():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

small, path, count = sys.argv[1:]
work(small, 100)  # imports everything
gc.collect()
before = resident()
work(path, int(count))
after = resident()
tracemalloc.start()
work(path, int(count))
print(json.dumps([tracemalloc.get_traced_memory()[1], after - before]))
"""


def measured(folder: Path, path: Path, count: int) -> list[int]:
    """[the most bytes of Python objects, the bytes that the process grew by] while a store is used, without imports."""
    small = folder / "small"
    if not small.exists():
        filled(small, 100)
    done = python("-c", MEASURED, small, path, str(count))
    assert done.returncode == 0, done.stderr.decode()
    found: list[int] = json.loads(done.stdout)
    return found


def test_memory_does_not_grow_with_the_store(large: tuple[Path, int], tmp_path: Path) -> None:
    """To open, count, look up, page through and try gc takes as much memory for ten times as many entries."""
    path, count = large
    few = measured(tmp_path, filled(tmp_path / "few", count // 10), count // 10)
    many = measured(tmp_path, path, count)
    assert many[0] < 1.5 * few[0] + (128 << 10), (few, many)
    assert many[1] < 1.5 * few[1] + (8 << 20), (few, many)


@pytest.mark.parametrize("count", [2_000, pytest.param(200_000, marks=pytest.mark.nightly)])
def test_no_folder_of_objects_holds_many_files(tmp_path: Path, count: int) -> None:
    """Objects of a kilobyte are spread evenly over the 256 folders, and a dry run of gc takes none for a stray."""
    recipe = casstore.Recipe("blobs", code=1)
    rng = np.random.default_rng(56)

    def key(number: int) -> casstore.Key:
        return casstore.Key.text(f"caption {number}", recipe)

    with casstore.open(tmp_path / "s", create=True, durability="off") as store:
        with store.batch() as batch:
            for number in range(count):
                blob = rng.integers(0, 256, 1024, dtype=np.uint8)
                blob[:8] = np.frombuffer(number.to_bytes(8, "little"), np.uint8)
                batch.put(key(number), {"t": blob})
        folders = Counter(path.parent.name for path in object_files(tmp_path / "s"))
        assert sum(folders.values()) == count
        mean = count / 256
        assert max(folders.values()) < mean + 6 * math.sqrt(mean), "no more than chance"
        assert max(folders.values()) < 4000
        for number in random.Random(2).sample(range(count), LOOKUPS):
            assert isinstance(store.lookup(key(number)), casstore.Hit)
        for number in random.Random(3).sample(range(count), 20):
            found = store.get(key(number), as_numpy=True)["t"]
            assert int.from_bytes(found[:8].tobytes(), "little") == number
        report = store.gc(grace_hours=0)
        assert (report.condemned, report.leftovers, report.would_free_bytes) == (0, 0, 0)
