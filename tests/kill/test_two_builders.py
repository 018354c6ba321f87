"""Two builders of the same items, of which one is killed, or both: little is encoded twice, and nothing is lost."""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from core.helpers import Child, child, fast_folder
from killing import Report, kill_once

import casstore
from casstore.core.put import GROUP_OBJECTS

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
    pytest.mark.timeout(7200),
]

RECIPE = casstore.Recipe("two", code=1)
TEXTS = [f"a red cat, number {number:03}" for number in range(200)]
BATCH_SIZE = 4
MOST = 2 * GROUP_OBJECTS + 2 * BATCH_SIZE  # items that a kill may cost


def hidden(text: str) -> np.ndarray[Any, Any]:
    return np.random.default_rng(TEXTS.index(text)).standard_normal((4, 16), dtype=np.float32)


class Logging:
    """Writes the texts of each call to a file before it encodes them."""

    recipe = RECIPE

    def __init__(self, log: Path) -> None:
        self.log = log

    def __call__(self, items: list[casstore.Item]) -> list[dict[str, Any]]:
        texts = [str(item.text) for item in items]
        descriptor = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, "".join(text + "\n" for text in texts).encode())
        os.close(descriptor)
        return [{"hidden": hidden(text)} for text in texts]


def encoded_by(log: Path) -> list[str]:
    return log.read_text().splitlines() if log.exists() else []


def plan_of(store: casstore.Store, seed: int) -> Any:
    """All texts, in an order of the seed's."""
    rows = [{"sample": text, "caption": text} for text in random.Random(seed).sample(TEXTS, len(TEXTS))]
    return store.plan(store.inputs(rows), RECIPE, role="caption")


def missing(store: casstore.Store) -> list[str]:
    return sorted(planned.row.sample for planned in plan_of(store, 0).misses)


@pytest.fixture
def folder() -> Iterator[Path]:
    with fast_folder() as place:
        yield place


@pytest.mark.parametrize("kills", [100, pytest.param(5000, marks=pytest.mark.nightly)])
def test_a_killed_builder_costs_the_other_little(
    folder: Path, kills: int, record_property: Callable[[str, object], None]
) -> None:
    """One of two builders is killed at a random moment. Either the other goes on, and does the whole rest; or it is
    killed too, and a rerun encodes exactly what isn't stored. Each killed builder has encoded at most two groups and
    two batches in vain, the survivor none; the store verifies clean and no trace of the dead stays."""
    rng = random.Random(8)
    both_at_work = cost = 0
    for number in range(kills):
        path, logs = folder / "store", [folder / f"{number}-{who}" for who in range(3)]
        casstore.open(path, create=True, durability="full" if number % 10 == 0 else "off").close()
        reading, writing = os.pipe()

        def survive(me: Child, path: Path = path, log: Path = logs[0], gate: int = reading, seed: int = number) -> Any:
            with casstore.open(path) as store:
                plan = plan_of(store, 2 * seed)
                me.say()
                os.read(gate, 1)
                report = store.build(plan, Logging(log), batch_size=BATCH_SIZE)
                return [report.encoded, report.by_others, report.failed]

        def die(tell: Report, path: Path = path, log: Path = logs[1], gate: int = writing, seed: int = number) -> None:
            with casstore.open(path) as store:
                plan = plan_of(store, 2 * seed + 1)
                tell("ready")
                os.write(gate, b".")
                store.build(plan, Logging(log), batch_size=BATCH_SIZE)

        kill_both = number % 2 == 1
        with child(survive) as other:
            other.hear()
            kill_once(die, rng, spread=0.4)
            counts = None if kill_both else other.result()
        os.close(reading)
        os.close(writing)

        first, second = encoded_by(logs[0]), encoded_by(logs[1])
        both_at_work += bool(first and second)
        times = Counter(first + second)
        assert max(times.values(), default=0) <= 2 and len(set(first)) == len(first) and len(set(second)) == len(second)
        with casstore.open(path) as store:
            left = missing(store)
            stored = set(TEXTS) - set(left)
            assert stored <= times.keys()
            if counts is not None:
                assert left == [] and counts[2] == 0 and counts[0] + counts[1] == len(TEXTS)
                assert len(first) == counts[0], "what the survivor has encoded is stored"
            in_vain = (len(first) + len(second)) - len(stored)
            cost = max(cost, in_vain)
            assert in_vain <= MOST * (2 if kill_both else 1)
            report = store.build(plan_of(store, number), Logging(logs[2]), batch_size=BATCH_SIZE)
            assert (report.encoded, report.hits, report.failed) == (len(left), len(stored), 0)
            assert sorted(encoded_by(logs[2])) == left, "the rerun encodes exactly the rest"
            assert left == [] or store.sql("SELECT name FROM owners UNION ALL SELECT hex(key) FROM claims").rows == []
            assert store.verify(deep=True).findings == ()
            for text in rng.sample(TEXTS, 5):
                found = store.get(casstore.Key.text(text, RECIPE), as_numpy=True)["hidden"]
                assert np.array_equal(found, hidden(text))
            store.gc(yes=True, grace_hours=0)
            assert (os.listdir(path / "tmp"), len(os.listdir(path / "locks" / "owners"))) == ([], 1)
        shutil.rmtree(path)
    assert both_at_work > kills / 4, "the kills came before anything could go wrong"
    record_property("figure", f"kills of one of two builders, or of both: at most {cost} items encoded in vain")
