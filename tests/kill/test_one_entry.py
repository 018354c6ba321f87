"""T46: many processes write the same few entries, and one of them is killed."""

from __future__ import annotations

import contextlib
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from core.helpers import Child, child
from killing import Report, kill_once
from kit import object_files

import casstore
from casstore.errors import MissError

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")

RECIPE = casstore.Recipe("clip", code=1)
CAPTIONS = [f"a red cat, number {number}" for number in range(25)]
PROCESSES = 8


def writer_of(store: casstore.Store, caption: str) -> int | None:
    """Whose tensor is served for a caption; None: nobody's yet."""
    try:
        found = store.get(casstore.Key.text(caption, RECIPE), as_numpy=True)
    except MissError as error:
        assert error.miss is not None and error.miss.reason == "new", error
        return None
    number: int = found["writer"]
    assert np.array_equal(found["hidden"], hidden(number, caption)), "half of one, half of another"
    return number


def hidden(number: int, caption: str) -> np.ndarray[Any, Any]:
    """What a process makes of a caption: no two make the same."""
    seed = 100 * number + CAPTIONS.index(caption)
    return np.random.default_rng(seed).standard_normal((77, 16), dtype=np.float32)


def put_all(store: casstore.Store, number: int, seed: int) -> dict[str, list[int]]:
    """Put every caption, in groups of any size and in any order; {caption: the writers that were seen meanwhile}."""
    rng = random.Random(seed)
    seen: dict[str, list[int]] = {caption: [] for caption in CAPTIONS}
    left = rng.sample(CAPTIONS, len(CAPTIONS))
    while left:
        group, left = left[: (size := rng.randrange(1, 6))], left[size:]
        with store.batch() as batch:
            for caption in group:
                batch.put(casstore.Key.text(caption, RECIPE), {"hidden": hidden(number, caption), "writer": number})
        for caption in [*group, *rng.sample(CAPTIONS, 3)]:
            writer = writer_of(store, caption)
            assert writer is not None or caption not in group, "what was put can be got"
            if writer is not None:
                seen[caption].append(writer)
    return seen


@pytest.mark.parametrize("rounds", [5, pytest.param(50, marks=pytest.mark.nightly)])
@pytest.mark.timeout(1800)
def test_entries_that_all_processes_write_are_stored_once_though_one_is_killed(tmp_path: Path, rounds: int) -> None:
    """Of 8 processes that put the same 25 captions one dies anywhere: each caption has one tensor, which all see, no
    survivor has an error, and gc leaves no trace of the dead."""
    rng = random.Random(46)
    unfinished, spread = 0, 1.0
    for number in range(rounds):
        path = tmp_path / str(number)
        casstore.open(path, create=True, durability="off").close()
        reading, writing = os.pipe()  # a byte for each that may start

        def survive(me: Child, path: Path = path, gate: int = reading) -> Any:
            with casstore.open(path) as store:
                writer, seed = me.hear()
                me.say()
                os.read(gate, 1)
                return put_all(store, writer, seed)

        def die(report: Report, path: Path = path, gate: int = writing, seed: int = number) -> None:
            with casstore.open(path) as store:
                report("ready")
                os.write(gate, b"." * PROCESSES)
                put_all(store, 0, seed)
                report("done")

        with contextlib.ExitStack() as living:
            survivors = [living.enter_context(child(survive)) for _ in range(1, PROCESSES)]
            for writer, survivor in enumerate(survivors, 1):
                survivor.say([writer, PROCESSES * number + writer])
                survivor.hear()
            told = kill_once(die, rng, spread=spread)
            seen = [survivor.result() for survivor in survivors]
        os.close(reading)
        os.close(writing)
        if "done" in told:
            spread /= 2  # this machine is faster than that
        else:
            unfinished += 1
        with casstore.open(path) as store:
            final = {caption: writer_of(store, caption) for caption in CAPTIONS}
            assert None not in final.values()
            wrong = [(c, each[c]) for each in seen for c in CAPTIONS if set(each[c]) != {final[c]}]
            assert wrong == [], "a reader saw another tensor than the one that stays"
            assert store.sql("SELECT count(*) FROM variants").rows == [(len(CAPTIONS),)]
            assert store.verify(deep=True).findings == ()
            store.gc(yes=True, grace_hours=0)
            assert os.listdir(path / "tmp") == []
            assert len(os.listdir(path / "locks" / "owners")) == 1, "the dead one's lock file goes"
            assert len(object_files(path)) == len(CAPTIONS)
            assert {c: writer_of(store, c) for c in CAPTIONS} == final
    assert unfinished, "no kill came early enough to prove anything"
