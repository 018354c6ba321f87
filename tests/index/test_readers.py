"""Readers that stay, queries that run away, and what is opened how."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

import numpy as np
import pytest
from core.helpers import put
from kit import python

import casstore
from casstore.errors import UsageError
from casstore.index import engine
from casstore.index.driver import sqlite3


def test_a_foreign_reader_is_named_and_its_end_folds_the_wal_in(
    store: casstore.Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While some program holds an old state the WAL grows, which is told once; the first group after it shrinks it."""
    monkeypatch.setattr(engine, "WAL_LIMIT", 1 << 16)
    monkeypatch.setattr(engine, "WAL_WARNING", 1 << 18)
    put(store, "first")
    with contextlib.closing(sqlite3.connect(Path(store.path, "index.sqlite"), isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM variants").fetchone()
        with caplog.at_level(logging.WARNING, "casstore"):
            number = 0
            while store.status().wal_bytes < 1 << 19:
                put(store, *(f"{number} {i}" for i in range(64)))
                number += 1
        assert [record.message for record in caplog.records if "another program" in record.message] != []
        assert len(caplog.records) == 1, "told once"
        reader.execute("ROLLBACK")
        put(store, "last")
    assert store.status().wal_bytes <= 1 << 16


def test_a_query_that_runs_away_is_stopped(store: casstore.Store) -> None:
    """A query that would never end is a usage error after its time, and the store works on."""
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    with pytest.raises(UsageError, match="longer than"):
        store.sql(endless, seconds=0.05)
    assert store.sql("SELECT 1").rows == [(1,)]


def test_a_query_returns_no_more_rows_than_its_limit(store: casstore.Store) -> None:
    """`more` says that rows were left out."""
    put(store, *map(str, range(5)))
    assert [(len(t.rows), t.more) for t in (store.sql("SELECT 1 FROM variants", limit=n) for n in (3, 5))] == [
        (3, True),
        (5, False),
    ]


WATCHED = """
import os, sys
opened = []
def hook(name, args):
    if name == "open" and not isinstance(args[0], int):
        opened.append(os.fsdecode(args[0]))
sys.addaudithook(hook)
import numpy as np
import casstore
from casstore.index import migrate
key = casstore.Key.text("a", casstore.Recipe("r"))
with casstore.open("s", create=True) as store:
    with store.batch() as batch:
        batch.put(key, {"t": np.arange(3)})
    store.get(key, as_numpy=True)
    store.verify(deep=True)
    store.gc(yes=True, grace_hours=0)
    store.sql("SELECT 1")
    store.copy_index("copy.sqlite")
    store.status()
migrate.upgrade(os.path.abspath("s"))
migrate.schema_of(os.path.abspath("s"))
print([p for p in opened if os.path.basename(p).startswith("index.sqlite") and ".init" not in p])
"""


def test_nothing_but_sqlite_opens_the_index(tmp_path: Path) -> None:
    """Closing an ordinary descriptor of the index would drop all locks of the process: so there is never one, but for
    the unborn store that init builds."""
    done = python("-c", WATCHED, cwd=tmp_path)
    assert done.stdout.decode().strip() == "[]", done.stderr.decode()


def test_a_full_store_group_fits_one_checkpoint(store: casstore.Store) -> None:
    """A group of 64 leaves far less WAL than the limit, so a checkpoint is rare."""
    before = store.status().wal_bytes
    with store.batch() as batch:
        for number in range(64):
            batch.put(casstore.Key.text(str(number), casstore.Recipe("r")), {"t": np.full(3, number)})
    assert store.status().wal_bytes - before < engine.WAL_LIMIT / 16
