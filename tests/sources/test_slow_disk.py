"""A disk that a network answers for: no call too many, and many at once (case T57)."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
from kit import clock_ahead
from sources.watching import LISTS, OPENS, STATS, traced_scan

import casstore
from casstore.sources import walk

FOLDERS, FILES = 10, 200


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """2,000 files in 10 folders."""
    for folder in range(FOLDERS):
        (tmp_path / "data" / str(folder)).mkdir(parents=True)
        for number in range(FILES):
            (tmp_path / "data" / str(folder) / f"{number}.png").write_bytes(f"{folder} {number}".encode())
    return tmp_path / "data"


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every disk counts as slow, from the first file on; the names that are asked for ahead."""
    monkeypatch.setattr(walk, "SLOW_STAT", -1.0)
    monkeypatch.setattr(walk, "SAMPLE", 1)
    real, asked = walk._ask, list[str]()

    def ask(entry: os.DirEntry[str]) -> None:
        asked.append(entry.name)
        real(entry)

    monkeypatch.setattr(walk, "_ask", ask)
    return asked


def test_a_slow_disk_is_asked_for_many_states_at_once(data: Path, store: casstore.Store, slow: list[str]) -> None:
    """As many threads as there are wait for an answer at the same time."""
    together = threading.Barrier(walk.STAT_THREADS, timeout=20)
    real, met, lock = walk._ask, [0], threading.Lock()

    def ask(entry: os.DirEntry[str]) -> None:
        with lock:
            met[0] += 1
            first = met[0] <= walk.STAT_THREADS
        if first:
            together.wait()
        real(entry)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(walk, "_ask", ask)
        assert store.scan(data).report.files == FOLDERS * FILES
    assert not together.broken and met[0] == FOLDERS * FILES


def test_a_slow_disk_has_the_same_answers(
    data: Path, store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows, counts and fingerprints are those of a fast one, whatever lies between the files."""
    clock_ahead(monkeypatch)
    (data / "0" / "dangling.png").symlink_to(tmp_path / "nowhere")
    (data / "0" / "link.png").symlink_to(data / "1" / "0.png")
    (data / "0" / "folder.png").mkdir()
    (data / "0" / "folder.png" / "deep.png").write_bytes(b"deep")
    (data / "0" / "notes.txt").write_bytes(b"text")
    first = store.scan(data)
    rows = list(first)
    monkeypatch.setattr(walk, "SLOW_STAT", -1.0)
    monkeypatch.setattr(walk, "SAMPLE", 1)
    again = store.scan(data)
    assert (list(again), again.report.hashed) == (rows, 0)
    with casstore.open(tmp_path / "other", create=True, durability="off") as other:
        found = other.scan(data)
        assert list(found) == rows
        assert (found.report.files, found.report.failed) == (first.report.files, first.report.failed)


def test_only_what_is_looked_for_is_asked_for(data: Path, store: casstore.Store, slow: list[str]) -> None:
    """Files with other endings cost a slow disk nothing."""
    for number in range(50):
        (data / "0" / f"{number}.txt").write_bytes(b"text")
    store.scan(data)
    assert len(slow) == FOLDERS * FILES and not [name for name in slow if name.endswith(".txt")]


def test_no_thread_is_left_behind(data: Path, store: casstore.Store, slow: list[str]) -> None:
    """The threads that ask end with the scan, also when it is stopped."""

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.scan(data, progress=stop)
    store.scan(data)
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith(("casstore-stat", "casstore-hash"))]


def test_a_fast_disk_is_asked_by_one_thread(data: Path, store: casstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a stat takes no longer than it should, threads would only cost."""
    monkeypatch.setattr(walk, "SLOW_STAT", 3600.0)
    asked: list[Any] = []
    monkeypatch.setattr(walk, "_ask", asked.append)
    assert store.scan(data).report.files == FOLDERS * FILES
    assert asked == []


def test_a_slow_disk_costs_no_call_more(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unchanged folder costs one stat per file and a few calls per folder, as on a fast disk; in other threads."""
    clock_ahead(monkeypatch)
    with casstore.open(tmp_path / "store", create=True, durability="off") as store:
        store.scan(data)
    # Python runs sitecustomize first: it makes every disk slow in the child.
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(
        "from casstore.sources import walk\nwalk.SLOW_STAT, walk.SAMPLE = -1.0, 1\n"
    )
    path = os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    found = traced_scan(tmp_path / "store", data, env={"PYTHONPATH": path})
    assert (found.files, found.hashed) == (FOLDERS * FILES, 0)
    assert FOLDERS * FILES <= found.count(STATS) <= FOLDERS * FILES + 5 * FOLDERS
    assert found.count(OPENS + LISTS) <= 4 * (FOLDERS + 1)
    assert found.threads > 1
