"""Connections: pragmas, the two kinds of transactions, many processes, forks."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sqlite3 as _standard  # knows the names of all codes
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from core.helpers import Child, child, expect, get, handle_of, in_child, outcome, put, sql
from kit import ROOT
from sqlalchemy.exc import DBAPIError

import casstore
from casstore.errors import (
    CasstoreError,
    NoSpaceError,
    StoreBusyError,
    StoreIOError,
    StorePermissionError,
    UsageError,
)
from casstore.index import driver, engine
from casstore.index.driver import sqlite3
from casstore.index.engine import Index


def index_of(store: casstore.Store) -> Index:
    return handle_of(store).index


def count(store: casstore.Store) -> int:
    found: int = store.sql("SELECT count(*) FROM variants").rows[0][0]
    return found


# -- pragmas, transactions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("durability", "synchronous"), [("full", 2), ("off", 0)])
@pytest.mark.parametrize("kind", ["read", "write"])
def test_each_connection_has_the_pragmas_of_the_design(
    tmp_path: Path, durability: Any, synchronous: int, kind: str
) -> None:
    """Readers and writers, durable or not, run with what section 6 lists; only readers are query_only."""
    expected = {
        "busy_timeout": 30000,
        "foreign_keys": 1,
        "synchronous": synchronous,
        "trusted_schema": 0,
        "cell_size_check": 1,
        "mmap_size": 0,
        "cache_size": -16384,
        "journal_size_limit": 64 << 20,
        "wal_autocheckpoint": 0,
        "query_only": int(kind == "read"),
        "journal_mode": "wal",
    }
    with casstore.open(tmp_path / "s", create=True, durability=durability) as store:
        with getattr(index_of(store), kind)() as connection:
            found = {name: connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in expected}
    assert found == expected


def test_a_pragma_that_isnt_kept_is_an_error() -> None:
    """What SQLite makes of each pragma is read back; a build that ignores one isn't worked with."""
    raw = sqlite3.connect(":memory:")
    with pytest.raises(StoreIOError, match="busy_timeout"):
        driver.set_pragmas(raw, {"busy_timeout": -1})
    raw.close()


def test_a_reader_cant_write(store: casstore.Store) -> None:
    """A read transaction refuses every change, with a typed error."""
    before = sql(store, "SELECT * FROM settings")
    with pytest.raises(StorePermissionError), index_of(store).read() as connection:
        connection.exec_driver_sql("DELETE FROM settings")
    assert sql(store, "SELECT * FROM settings") == before != []


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM settings",
        "PRAGMA user_version = 9",
        "ATTACH 'x' AS x",
        "BEGIN",
        "VACUUM",
        "SELECT load_extension('x')",
        "SELECT nonsense",
        "SELECT 1; SELECT 2",
        "",
    ],
)
def test_the_users_sql_is_one_select_or_a_usage_error(store: casstore.Store, statement: str) -> None:
    """Anything but one SELECT is refused, and the connection goes on reading afterwards."""
    put(store, "a")
    with pytest.raises(UsageError):
        store.sql(statement)
    assert store.sql("SELECT count(*) AS n, ? AS x FROM variants", ["y"]).rows == [(1, "y")]
    assert os.listdir(store.path).count("x") == 0


def test_json_can_be_taken_apart_on_a_fresh_connection(tmp_path: Path) -> None:
    """json_each, which the JSON in the views calls for, works in the first query as in any other."""
    with casstore.open(tmp_path / "s", create=True, durability="off") as store:
        assert store.sql("SELECT value FROM json_each('[1, 2]')").rows == [(1,), (2,)]


def test_a_write_that_fails_is_rolled_back_and_gives_its_lock_back(store: casstore.Store) -> None:
    """An exception out of a write transaction undoes it, and the next one finds the way free."""
    before = sql(store, "SELECT * FROM settings")
    with pytest.raises(ZeroDivisionError), index_of(store).write() as connection:
        connection.exec_driver_sql("DELETE FROM settings")
        _ = 1 // 0
    assert sql(store, "SELECT * FROM settings") == before != []
    assert in_child(lambda: put(store, "a")) is None
    assert get(store, "a") == expect("a")


def test_a_read_transaction_sees_one_state(store: casstore.Store) -> None:
    """What another process commits in between is seen by the next transaction only."""

    def work(me: Child) -> None:
        me.hear()
        put(store, "a")

    with child(work) as other, index_of(store).read() as connection:
        before = connection.exec_driver_sql("SELECT count(*) FROM variants").scalar()
        other.say()
        other.result()
        after = connection.exec_driver_sql("SELECT count(*) FROM variants").scalar()
    assert (before, after, count(store)) == (0, 0, 1)


def test_a_foreign_key_is_enforced(store: casstore.Store) -> None:
    """An object that a variant refers to can't be deleted, not even by our own code."""
    put(store, "a")
    with pytest.raises(CasstoreError, match="FOREIGN KEY"), index_of(store).write() as connection:
        connection.exec_driver_sql("DELETE FROM objects")
    assert get(store, "a") == expect("a")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (_standard.SQLITE_FULL, NoSpaceError),
        (_standard.SQLITE_BUSY_SNAPSHOT, StoreBusyError),
        (_standard.SQLITE_LOCKED, StoreBusyError),
        (_standard.SQLITE_READONLY_DBMOVED, StorePermissionError),
        (_standard.SQLITE_IOERR_FSYNC, StoreIOError),
        (_standard.SQLITE_CORRUPT_INDEX, casstore.errors.CorruptStoreError),
        (_standard.SQLITE_NOTADB, casstore.errors.CorruptStoreError),
        (_standard.SQLITE_CANTOPEN, casstore.errors.NotAStoreError),
    ],
)
@pytest.mark.parametrize("wrapped", [False, True])
def test_sqlites_errors_become_casstores(
    store: casstore.Store, code: int, kind: type[CasstoreError], wrapped: bool
) -> None:
    """Primary and extended codes, bare or wrapped by SQLAlchemy, get their class and name the index."""
    error: Exception = sqlite3.OperationalError("odd")
    error.sqlite_errorcode = code  # type: ignore[attr-defined]
    if wrapped:
        error = DBAPIError("SELECT", {}, error)
    with pytest.raises(kind, match=r"index\.sqlite.*odd") as caught, index_of(store).errors():
        raise error
    assert type(caught.value) is kind


# -- WAL ---------------------------------------------------------------------------------------------------------------


def test_the_wal_is_gone_after_the_last_close(tmp_path: Path) -> None:
    """A closed store is one index file, with nothing beside it."""
    with casstore.open(tmp_path / "s", create=True, durability="off") as store:
        put(store, "a")
        assert Path(store.path, "index.sqlite-wal").stat().st_size > 0
    assert [name for name in os.listdir(tmp_path / "s") if name.startswith("index")] == ["index.sqlite"]


def test_the_wal_is_empty_after_a_close_while_others_have_the_store_open(tmp_path: Path) -> None:
    """Whoever closes first folds the WAL into the index, and the other goes on with it."""

    def work(me: Child) -> Any:
        with casstore.open(tmp_path / "s") as other:
            put(other, "b")
            me.say()
            me.hear()
            put(other, "c")
            return [get(other, name) for name in "abc"]

    casstore.open(tmp_path / "s", create=True, durability="off").close()
    with child(work) as other:
        other.hear()
        with casstore.open(tmp_path / "s") as store:
            put(store, "a")
        assert (tmp_path / "s" / "index.sqlite-wal").stat().st_size == 0
        other.say()
        assert other.result() == [expect(name) for name in "abc"]


def test_a_large_wal_is_folded_in_by_the_commit_that_made_it(
    store: casstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that leaves more than the limit of WAL is followed by a checkpoint; smaller ones aren't."""
    wal = Path(store.path, "index.sqlite-wal")
    put(store, "a")
    assert wal.stat().st_size > 0
    monkeypatch.setattr(engine, "WAL_LIMIT", 1)
    put(store, "b")
    assert wal.stat().st_size == 0
    assert [get(store, name) for name in "ab"] == [expect(name) for name in "ab"]


def test_a_close_waits_for_no_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While another process holds the write lock a close gives up the checkpoint, without an error."""
    monkeypatch.setattr(engine, "CLOSE_SECONDS", 0.02)
    store = casstore.open(tmp_path / "s", create=True, durability="off")
    put(store, "a")

    def hold(me: Child) -> None:
        with casstore.open(tmp_path / "s") as other, index_of(other).write():
            me.say()
            me.hear()

    with child(hold) as holder:
        holder.hear()
        store.close()
    with casstore.open(tmp_path / "s") as store:
        assert get(store, "a") == expect("a")


# -- many writers ------------------------------------------------------------------------------------------------------


def test_two_processes_put_at_once_and_nothing_is_lost(store: casstore.Store) -> None:
    """200 groups of one from each of two processes are all there, with no error on either side."""

    def work(me: Child) -> str:
        name = me.hear()
        for number in range(200):
            put(store, **{f"{name}{number}": {"t": np.array([number])}})
        return str(name)

    with child(work) as one, child(work) as two:
        one.say("a")
        two.say("b")
        assert [one.result(), two.result()] == ["a", "b"]
    assert count(store) == 400
    assert [get(store, f"{name}199") for name in "ab"] == [{"t": [199]}] * 2
    assert store.verify(deep=True).damaged == 0


def test_threads_share_a_store(store: casstore.Store) -> None:
    """Eight threads that put and get at once see what they stored."""
    wrong: list[Any] = []

    def work(name: str) -> None:
        try:
            for number in range(10):
                put(store, f"{name}{number}")
                if get(store, f"{name}{number}") != expect(f"{name}{number}"):
                    wrong.append(name)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcdefgh"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert count(store) == 80


def test_a_held_write_lock_is_a_busy_error_for_writers_and_nothing_to_readers(
    store: casstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While another process writes, `write` gives up after its time with a typed error, and `get` serves."""
    put(store, "a")
    monkeypatch.setattr(engine, "BUSY_SECONDS", 0.02)

    def hold(me: Child) -> None:
        with index_of(store).write():
            me.say()
            me.hear()

    with child(hold) as holder:
        holder.hear()
        with pytest.raises(StoreBusyError, match="is locked by process"), index_of(store).write():
            pass
        assert get(store, "a") == expect("a")
    with index_of(store).write():
        pass


def test_a_writer_that_is_killed_leaves_the_lock_and_the_index_in_order(store: casstore.Store) -> None:
    """After a SIGKILL inside a write transaction its changes are gone and the next writer isn't kept waiting."""

    def work(me: Child) -> None:
        with index_of(store).write() as connection:
            connection.exec_driver_sql("DELETE FROM settings")
            me.say()
            me.hear()

    before = sql(store, "SELECT * FROM settings")
    with child(work) as other:
        other.hear()
    put(store, "a")
    assert sql(store, "SELECT * FROM settings") == before != []


# -- forks -------------------------------------------------------------------------------------------------------------


def test_a_forked_child_reads_and_puts_and_its_parent_goes_on(store: casstore.Store) -> None:
    """Parent and child both work with the store that was open at the fork, in turns, and see each other's puts."""
    put(store, "a")

    def work(me: Child) -> list[Any]:
        found = [get(store, "a")]
        put(store, "b")
        me.say()
        me.hear()
        put(store, "d")
        return [*found, get(store, "c")]

    with child(work) as other:
        other.hear()
        assert get(store, "b") == expect("b")
        put(store, "c")
        other.say()
        assert other.result() == [expect("a"), expect("c")]
    put(store, "e")
    assert [get(store, name) for name in "abcde"] == [expect(name) for name in "abcde"]


def test_a_forked_child_is_an_owner_of_its_own(store: casstore.Store) -> None:
    """The child's temps carry another owner than the parent's, whose owner lock stays held when the child ends."""
    mine = handle_of(store).owner

    def work() -> list[Any]:
        owner, temp = handle_of(store).owner, os.path.basename(handle_of(store).new_temp())
        store.close()
        return [owner, temp, os.path.exists(os.path.join(handle_of(store).directory.owners, owner))]

    theirs, temp, left = in_child(work)
    assert theirs != mine
    assert temp.startswith(theirs)
    assert not left
    assert handle_of(store).owner == mine
    with casstore.open(store.path) as other:
        Path(store.path, "tmp", f"{mine}-99").write_text("x")
        assert other.gc(yes=True, grace_hours=0).leftovers == 0
    assert os.listdir(Path(store.path, "tmp")) == [f"{mine}-99"]


def test_what_a_child_puts_after_its_parent_has_closed_the_store_is_kept(tmp_path: Path) -> None:
    """The parent's close (which folds in and removes the WAL when it thinks it is the last) costs no child its puts."""
    store = casstore.open(tmp_path / "s", create=True, durability="off")
    put(store, "a")
    assert get(store, "a") == expect("a")

    def work(me: Child) -> Any:
        put(store, "b")
        me.say()
        me.hear()
        put(store, "c")
        me.say(get(store, "c"))
        me.hear()

    with child(work) as other:
        other.hear()
        store.close()
        other.say()
        assert other.hear() == expect("c")
    with casstore.open(tmp_path / "s") as store:
        assert [get(store, name) for name in "abc"] == [expect(name) for name in "abc"]


def test_a_fork_while_a_thread_writes_harms_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that was forked in the middle of another thread's transaction can write once that has ended."""
    monkeypatch.setattr(engine, "BUSY_SECONDS", 1.0)
    inside, done = threading.Event(), threading.Event()
    with casstore.open(tmp_path / "s", create=True, durability="off") as store:

        def write() -> None:
            with index_of(store).write() as connection:
                connection.exec_driver_sql("UPDATE settings SET value = '0' WHERE key = 'created_at'")
                inside.set()
                done.wait()

        def work(me: Child) -> str:
            me.hear()
            return outcome(put, store, "a")

        writer = threading.Thread(target=write)
        writer.start()
        inside.wait()
        guard = threading.Timer(0.05, done.set)  # the fork itself may wait for the end of the transaction
        guard.start()
        with child(work) as other:
            done.set()
            writer.join()
            guard.join()
            other.say()
            assert other.result() == "fine"
        put(store, "b")
        assert [get(store, name) for name in "ab"] == [expect(name) for name in "ab"]
        assert sql(store, "PRAGMA integrity_check") == [("ok",)]


def test_a_child_that_was_forked_inside_a_transaction_loses_no_put(tmp_path: Path) -> None:
    """Whether it uses the inherited store or opens it again: what such a child is told is stored is there later."""
    store = casstore.open(tmp_path / "s", create=True, durability="off")
    put(store, "a")

    def work(me: Child) -> None:
        with contextlib.ExitStack() as opened:
            stores = [store]
            with contextlib.suppress(CasstoreError):
                stores.append(opened.enter_context(casstore.open(tmp_path / "s")))
            for when in ("before", "after"):
                names = [f"{when}{number}" for number in range(len(stores))]
                me.say([name for name, each in zip(names, stores, strict=True) if outcome(put, each, name) == "fine"])
                me.hear()

    with contextlib.ExitStack() as living:
        with index_of(store).read():
            other = living.enter_context(child(work))
        told = other.hear()
        store.close()
        other.say()
        told += other.hear()
    with casstore.open(tmp_path / "s") as store:
        assert {name: get(store, name) for name in told} == {name: expect(name) for name in told}
        assert get(store, "a") == expect("a")


@pytest.mark.parametrize(
    ("version", "affected"),
    [
        *((affected, True) for affected in ("3.7.0", "3.40.1", "3.44.5", "3.45.0", "3.50.4", "3.51.0", "3.51.2")),
        *((sound, False) for sound in ("3.6.23", "3.44.6", "3.50.7", "3.51.3", "3.53.0")),
    ],
)
def test_the_versions_of_sqlite_with_the_wal_reset_bug_are_known(version: str, affected: bool) -> None:
    """3.7.0 to 3.51.2, without the mended releases of two branches."""
    assert driver.has_wal_reset_bug(tuple(map(int, version.split(".")))) == affected


def test_an_affected_sqlite_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """The first store that is opened for writing warns, the next ones don't."""
    monkeypatch.setattr(driver, "has_wal_reset_bug", lambda _: True)
    driver.warn_of_sqlite.cache_clear()
    for _ in range(2):
        casstore.open(tmp_path / "s", create=True, durability="off").close()
    assert [record.message.split()[0] for record in caplog.records if "WAL-reset" in record.message] == ["SQLite"]


def test_the_newer_sqlite_is_used() -> None:
    """casstore[sqlite]'s library if it is installed and newer than Python's own, else that."""
    try:
        other = importlib.import_module("pysqlite3.dbapi2")
    except ImportError:
        assert sqlite3 is _standard
    else:
        newest = max(other, _standard, key=lambda module: module.sqlite_version_info)
        assert sqlite3 is newest


def test_no_module_but_the_driver_chooses_a_sqlite() -> None:
    """Two copies of SQLite in one process drop each other's locks."""
    found = [
        path for path in (ROOT / "casstore").rglob("*.py") if re.search(r"^\s*import sqlite3", path.read_text(), re.M)
    ]
    assert [path.name for path in found] == ["driver.py"]
