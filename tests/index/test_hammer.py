"""Everything at once: four processes of four threads on one store, with every way of starting them."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest
from hammering import hammer, key_of

import casstore
from casstore.core.read import lookup

PROCESSES = 4


@pytest.mark.parametrize("seconds", [8, pytest.param(200, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.timeout(900)
def test_nobody_sees_a_lock_error_a_wrong_value_or_a_lost_one(tmp_path: Path, method: Any, seconds: float) -> None:
    """No error but misses of what was forgotten; every value right at each read; everything acknowledged is there."""
    with casstore.open(tmp_path / "s", create=True, durability="off") as store:
        context = multiprocessing.get_context(method)
        with context.Pool(PROCESSES) as pool:
            jobs = [pool.apply_async(hammer, (store, seed, seconds)) for seed in range(PROCESSES)]
            results = [job.get() for job in jobs]
        assert [result["wrong"] for result in results] == [[]] * PROCESSES
        done = {name: sum(result["done"].get(name, 0) for result in results) for name in ("put", "get", "gc", "reopen")}
        assert min(done.values()) > 0, done
        for result in results:
            before, _, after = result["descriptors"]
            assert after <= before + 2, "descriptors are given back"
        kept = [key_of(name) for result in results for name in result["kept"]]
        assert kept and all(isinstance(found, casstore.Hit) for found in lookup(store._handle, kept))
        assert store.verify(deep=True).findings == ()
        store.gc(yes=True, grace_hours=0)
        assert list((tmp_path / "s" / "tmp").iterdir()) == []
