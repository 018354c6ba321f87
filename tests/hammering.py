"""Workers that hammer one store, for tests/index/test_hammer.py; top-level, for a spawned process to import."""

from __future__ import annotations

import os
import random
import threading
import time
import traceback
from typing import Any

import numpy as np

import casstore
from casstore.errors import MissError, StoreBusyError

RECIPE = casstore.Recipe("hammer", code=1)
UNIVERSE = 257  # few contents, so that writers meet on the same object all the time


def value_of(name: str) -> np.ndarray[Any, Any]:
    """What is stored under a name; names that end alike share an object."""
    seed = int(name.rsplit("-", 1)[-1]) % 64
    return np.random.default_rng(seed).integers(0, 255, 1 + seed * 40, dtype=np.uint8)


def key_of(name: str) -> casstore.Key:
    return casstore.Key.text(name, RECIPE)


def hammer(store: casstore.Store, seed: int, seconds: float) -> dict[str, Any]:
    """Four threads on one store: everything at once; what they did, the names that must be there, and complaints.

    The store comes pickled, as it does to a loader's worker.
    """
    done: dict[str, int] = {}
    kept: list[str] = []
    wrong: list[str] = []
    end = time.monotonic() + seconds

    def thread(number: int) -> None:
        rng = random.Random(seed * 100 + number)
        mine = f"{os.getpid()}-{number}"
        try:
            step = 0
            while time.monotonic() < end and not wrong:
                step += 1
                name = rng.choices(list(OPERATIONS), WEIGHTS)[0]
                OPERATIONS[name](store, rng, f"{mine}-{step}", kept)
                done[name] = done.get(name, 0) + 1
        except BaseException:
            wrong.append(traceback.format_exc())

    before = len(os.listdir("/proc/self/fd"))
    with store:
        for number in range(2):  # two rounds, so that a leak of descriptors shows
            threads = [threading.Thread(target=thread, args=(10 * number + i,)) for i in range(4)]
            end = time.monotonic() + seconds / 2
            for running in threads:
                running.start()
            for running in threads:
                running.join()
        inside = len(os.listdir("/proc/self/fd"))
    after = len(os.listdir("/proc/self/fd"))
    return {"done": done, "kept": kept, "wrong": wrong, "descriptors": (before, inside, after)}


def put(store: casstore.Store, rng: random.Random, mine: str, kept: list[str]) -> None:
    names = [f"shared-{rng.randrange(UNIVERSE)}" for _ in range(rng.randrange(1, 9))]
    with store.batch() as batch:
        for name in [*names, mine]:
            batch.put(key_of(name), {"t": value_of(name)}, {"name": name})
    kept.append(mine)  # acknowledged: nobody forgets it


def get(store: casstore.Store, rng: random.Random, mine: str, kept: list[str]) -> None:
    name = rng.choice(kept) if kept and rng.random() < 0.5 else f"shared-{rng.randrange(UNIVERSE)}"
    try:
        found = store.get(key_of(name), as_numpy=True)
    except MissError as error:
        if name in kept or error.miss is None or error.miss.reason != "new":
            raise
        return
    assert found["name"] == name and np.array_equal(found["t"], value_of(name)), name


def forget(store: casstore.Store, rng: random.Random, mine: str, kept: list[str]) -> None:
    store.forget(key_of(f"shared-{rng.randrange(UNIVERSE)}")).execute()


def collect(store: casstore.Store, rng: random.Random, mine: str, kept: list[str]) -> None:
    try:
        store.gc(yes=True, grace_hours=0)
    except StoreBusyError as error:
        if "another gc" not in str(error):
            raise


def ask(store: casstore.Store, rng: random.Random, mine: str, kept: list[str]) -> None:
    assert store.sql("SELECT count(*) FROM v_variants WHERE tensors IS NULL").rows == [(0,)]


def reopen(store: casstore.Store, rng: random.Random, mine: str, kept: list[str]) -> None:
    with casstore.open(store.path) as other:  # closing folds in the WAL
        get(other, rng, mine, kept)


OPERATIONS = {"put": put, "get": get, "forget": forget, "gc": collect, "sql": ask, "reopen": reopen}
WEIGHTS = [30, 40, 8, 1, 2, 3]
