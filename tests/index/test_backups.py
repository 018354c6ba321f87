"""Backups of the index after builds and gc: seldom, few, sound, and never in the way."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

import pytest
from kit import FakeEncoder, build, pictures

import casstore
from casstore.index import backup
from casstore.index.driver import sqlite3


@pytest.fixture
def store(tmp_path: Path) -> Any:
    """A durable store: the others make no backups."""
    with casstore.open(tmp_path / "s", create=True) as store:
        yield store


def names(store: casstore.Store) -> list[str]:
    return sorted(os.listdir(Path(store.path, "backups")))


def make_old(store: casstore.Store) -> None:
    """As if all backups were eight days old."""
    then = time.time() - 8 * 24 * 3600
    for name in names(store):
        os.utime(Path(store.path, "backups", name), (then, then))


def test_the_first_build_saves_the_index(store: casstore.Store, tmp_path: Path) -> None:
    """The copy is sound and has what the build stored; a second build soon after makes no other."""
    pictures(tmp_path / "p", 3)
    build(store, tmp_path / "p", FakeEncoder())
    (name,) = names(store)
    with contextlib.closing(sqlite3.connect(Path(store.path, "backups", name))) as raw:
        assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert raw.execute("SELECT count(*) FROM variants").fetchone() == (3,)
    pictures(tmp_path / "p", 5)
    build(store, tmp_path / "p", FakeEncoder())
    assert names(store) == [name]


def test_a_week_or_many_variants_make_another(
    store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By age, by the number of new variants, after a gc too; three are kept."""
    pictures(tmp_path / "p", 2)
    build(store, tmp_path / "p", FakeEncoder())
    make_old(store)
    pictures(tmp_path / "p", 3)
    build(store, tmp_path / "p", FakeEncoder())
    assert len(names(store)) == 2
    monkeypatch.setattr(backup, "MAX_NEW_VARIANTS", 2)
    pictures(tmp_path / "p", 5)
    build(store, tmp_path / "p", FakeEncoder())
    assert len(names(store)) == 3
    make_old(store)
    before = names(store)
    store.gc(yes=True)
    assert len(names(store)) == 3 and names(store)[:2] == before[1:]


def test_nothing_is_saved_of_an_empty_store(store: casstore.Store) -> None:
    """A gc of a store without variants leaves backups/ empty."""
    store.gc(yes=True)
    assert names(store) == []


def test_a_backup_that_the_disk_cannot_hold_is_told_and_costs_nothing(
    store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The build's report is as always; the log says how much is needed and free."""
    pictures(tmp_path / "p", 2)
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1234})())
    assert build(store, tmp_path / "p", FakeEncoder()).encoded == 2
    assert names(store) == []
    assert "a backup of" in caplog.text and "1,234 are free" in caplog.text


def test_gc_removes_copies_that_were_never_finished(store: casstore.Store) -> None:
    """What a crash left of a backup goes when nobody has written to it for a day; a young one may still be growing."""
    folder = Path(store.path, "backups")
    for name, age in (("old", 25), ("young", 23)):
        (folder / f"index-{name}.sqlite.part").write_bytes(bytes(1000))
        then = time.time() - age * 3600
        os.utime(folder / f"index-{name}.sqlite.part", (then, then))
    assert store.gc().leftovers == 1 and len(names(store)) == 2
    assert store.gc(yes=True).freed_bytes >= 1000
    assert names(store) == ["index-young.sqlite.part"]
