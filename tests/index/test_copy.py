"""Copies of the index for other programs."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from core.helpers import put
from kit import as_nobody

import casstore
from casstore.errors import UsageError
from casstore.index.driver import sqlite3


@pytest.mark.parametrize("name", ["copy.sqlite", "with blanks ? # %41.sqlite"], ids=["plain", "odd"])
def test_a_copy_is_a_plain_database_with_all_rows(store: casstore.Store, tmp_path: Path, name: str) -> None:
    """What was committed, also what is still in the WAL, is in the copy, which needs no WAL of its own."""
    put(store, "a", "b")
    store.copy_index(tmp_path / name)
    with contextlib.closing(sqlite3.connect(tmp_path / name)) as copy:
        assert copy.execute("SELECT count(*) FROM v_variants").fetchone() == (2,)
        assert copy.execute("PRAGMA journal_mode").fetchone() == ("delete",)
        assert copy.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["store", name])


def test_a_copy_replaces_nothing(store: casstore.Store, tmp_path: Path) -> None:
    """A name that is taken, or that SQLite can't spell, is refused, and what is there stays."""
    with pytest.raises(UsageError, match="UTF-8"):
        store.copy_index(tmp_path / "\udcff")
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(UsageError, match="exists"):
        store.copy_index(tmp_path / "taken")
    assert (tmp_path / "taken").read_text() == "mine"


def test_a_store_that_can_only_be_read_can_be_copied() -> None:
    """Who may read an index may copy it elsewhere."""

    def prepare(folder: Path) -> None:
        with casstore.open(folder / "s", create=True, durability="off") as store:
            put(store, "a")
        for path in [folder / "s", *(folder / "s").rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o444)

    def work(folder: Path) -> int:
        with casstore.open(folder / "s") as store:
            store.copy_index(folder / "copy")
        with contextlib.closing(sqlite3.connect(folder / "copy")) as copy:
            return int(copy.execute("SELECT count(*) FROM variants").fetchone()[0])

    assert as_nobody(work, prepare) == 1
