"""Stores that a newer casstore has upgraded: read where it allows that, never written."""

from __future__ import annotations

from pathlib import Path

import pytest
from core.helpers import expect, get, key, put, result, sql, tree

import casstore
from casstore.cli import run
from casstore.errors import StoreTooNewError
from casstore.index.tables import SCHEMA


def newer(path: Path, min_reader: int | str) -> Path:
    """A store with an entry "a", as a later casstore may leave it: with tables and columns that we don't know."""
    with casstore.open(path, create=True, durability="off") as store:
        put(store, "a")
    for statement in (
        "CREATE TABLE moods (id INTEGER NOT NULL PRIMARY KEY, mood TEXT NOT NULL) STRICT",
        "ALTER TABLE variants ADD COLUMN mood_id INTEGER REFERENCES moods (id)",
        f"UPDATE alembic_version SET version_num = '{SCHEMA + 1:04}'",
        f"UPDATE settings SET value = '{SCHEMA + 1}' WHERE key IN ('schema', 'min_writer')",
        f"UPDATE settings SET value = '{min_reader}' WHERE key = 'min_reader'",
        f"PRAGMA user_version = {SCHEMA + 1}",
    ):
        sql(path, statement)
    return path


@pytest.mark.parametrize("min_reader", sorted({1, SCHEMA}))
def test_a_newer_store_that_allows_it_is_read_but_not_written(tmp_path: Path, min_reader: int) -> None:
    """With min_reader <= our schema get, lookup, status and sql work, every write says that casstore is too old, and
    not a byte changes."""
    path = newer(tmp_path / "s", min_reader)
    before = tree(path)
    with casstore.open(path) as store:
        assert store.read_only
        assert (get(store, "a"), get(store, "b")) == (expect("a"), "new")
        assert isinstance(store.lookup(key("a")), casstore.Hit)
        assert isinstance(store.lookup(key("b")), casstore.Miss)
        assert (store.status().variants, store.status().objects) == (1, 1)
        assert store.sql("SELECT text FROM v_variants").rows == [("a",)]
        assert store.verify(deep=True).findings == ()
        assert store.get_or_encode(key("a"), lambda: result("b"), as_numpy=True)["from"] == "a"
        for write in (
            lambda: put(store, "b"),
            lambda: put(store, "a"),
            lambda: store.get_or_encode(key("b"), lambda: result("b")),
            lambda: store.scan(tmp_path),
            lambda: store.gc(yes=True),
            lambda: store.forget(key("a")).execute(),
        ):
            with pytest.raises(StoreTooNewError, match=f"schema {SCHEMA + 1}"):
                write()
    assert [run(["status", "--store", str(path)]), run(["gc", "--yes", "--store", str(path)])] == [0, 4]
    assert run(["db", "upgrade", "--store", str(path)]) == 4
    assert tree(path) == before


@pytest.mark.parametrize("min_reader", [SCHEMA + 1, "", "x"])
def test_a_newer_store_that_does_not_allow_it_is_not_opened(tmp_path: Path, min_reader: int | str) -> None:
    """With min_reader > our schema, or one that can't be understood, opening says that casstore is too old, exit code
    4, and not a byte changes."""
    path = newer(tmp_path / "s", min_reader)
    before = tree(path)
    for create in (False, True):
        with pytest.raises(StoreTooNewError, match=f"schema {SCHEMA + 1}"):
            casstore.open(path, create=create)
    assert run(["status", "--store", str(path)]) == 4
    assert tree(path) == before


def test_damage_in_a_newer_store_is_a_miss_and_nothing_is_noted(tmp_path: Path) -> None:
    """A reader that can't write the mark still reports it."""
    path = newer(tmp_path / "s", SCHEMA)
    (file,) = (path / "objects").glob("*/*")
    file.unlink()
    with casstore.open(path) as store:
        assert get(store, "a") == "damaged"
