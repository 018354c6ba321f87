"""The harness sees each of the classic mistakes, and what a store without durability loses."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from core.helpers import put
from powercut.checks import STORE
from powercut.recording import why_not
from powercut.replaying import replay
from powercut.workloads import WORKLOADS, damaged_store, store_with_abc

import casstore
from casstore import fsio
from casstore.core import put as putting
from casstore.core.handle import Flusher
from casstore.core.publish import remove
from casstore.index import engine

pytestmark = [
    pytest.mark.skipif(why_not() is not None, reason=why_not() or ""),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]

_flush, _close = Flusher.flush, Flusher.close


def are_temps(paths: list[str]) -> bool:
    """Whether it is the data that is to be flushed; otherwise it is the names."""
    return os.path.basename(os.path.dirname(paths[0])) == "tmp"


def no_data_flush() -> None:
    """The objects' bytes are never flushed by themselves."""
    Flusher.flush = lambda self, paths: None if are_temps(paths) else _flush(self, paths)


def no_name_flush() -> None:
    """The objects' names are never flushed."""
    Flusher.flush = lambda self, paths: _flush(self, paths) if are_temps(paths) else None


def row_before_file() -> None:
    """The files get their names, and these are flushed, after the COMMIT."""
    honest, late = putting.make_durable, []
    putting.make_durable = lambda *arguments: late.append(arguments)
    putting.place = lambda *_: None
    putting.remove = lambda temps: (*(honest(*each) for each in late), late.clear(), remove(temps))


def flush_after_commit() -> None:
    """The names are flushed, but only after the COMMIT."""
    late: list[list[str]] = []
    Flusher.flush = lambda self, paths: _flush(self, paths) if are_temps(paths) else late.append(paths)
    Flusher.close = lambda self: ([_flush(self, paths) for paths in late], _close(self))


def shard_directory_made_late() -> None:
    """The folder of an object is made when the first object comes, and nobody flushes the folder that it is in."""
    link = fsio.link
    fsio.link = lambda old, new: (os.makedirs(os.path.dirname(new), exist_ok=True), link(old, new))[1]


def commit_not_flushed() -> None:
    """SQLite's synchronous is NORMAL: a COMMIT isn't flushed."""
    engine._SYNCHRONOUS["full"] = 1


def heal_not_flushed() -> None:
    """What takes the place of a damaged object is renamed, and that isn't flushed."""
    Flusher.flush_now = lambda self, directory: None


def without_shards(folder: Path) -> None:
    """A store with only those shard directories that hold an object."""
    store_with_abc(folder)
    for shard in (folder / STORE / "objects").iterdir():
        if not os.listdir(shard):
            shard.rmdir()


@pytest.mark.parametrize(
    ("sabotage", "seen"),
    [
        (no_data_flush, "an object isn't what its name says"),
        (no_name_flush, "a variant's object is gone"),
        (row_before_file, "a variant's object is gone"),
        (flush_after_commit, "a variant's object is gone"),
        (commit_not_flushed, "acknowledged, but the index has no row"),
    ],
)
@pytest.mark.parametrize("name", ["puts", "puts_file_by_file"])
def test_a_mistake_in_putting_is_seen(sabotage: Callable[[], None], seen: str, name: str, tmp_path: Path) -> None:
    """Each mistake leaves a state that the checks refuse, with syncfs and without."""
    found = replay(tmp_path, WORKLOADS[name], patch=sabotage)
    assert seen in found.violations[0]


@pytest.mark.parametrize(
    ("name", "prepare", "sabotage", "seen"),
    [
        ("puts_file_by_file", without_shards, shard_directory_made_late, "a variant's object is gone"),
        ("heal", damaged_store, heal_not_flushed, "an object isn't what its name says"),
    ],
)
def test_a_mistake_elsewhere_is_seen(
    name: str, prepare: Callable[[Path], None], sabotage: Callable[[], None], seen: str, tmp_path: Path
) -> None:
    """A shard directory whose own name isn't flushed, and a healed object."""
    found = replay(tmp_path, replace(WORKLOADS[name], prepare=prepare), patch=sabotage)
    assert seen in found.violations[0]


def store_without_durability(folder: Path) -> None:
    with casstore.open(folder / STORE, create=True, durability="off") as store:
        put(store, "a", "b", "c")


def test_durability_off_loses_what_was_acknowledged(tmp_path: Path) -> None:
    """The limit that docs/guarantees.md states: a store of durability off survives a crash of the process only."""
    found = replay(tmp_path, replace(WORKLOADS["puts"], prepare=store_without_durability))
    assert found.violations
