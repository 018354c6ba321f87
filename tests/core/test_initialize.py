"""Making and opening store directories."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import sqlite3
import stat
from pathlib import Path
from typing import Literal

import pytest
from core.helpers import Child, child, expect, fast_folder, get, in_child, mount_tmpfs, outcome, put, sql, tree
from killing import Report, kill_once
from kit import as_nobody, object_files

import casstore
from casstore.core import initialize
from casstore.errors import (
    CorruptStoreError,
    NotAStoreError,
    StoreOutdatedError,
    StoreTooNewError,
    UnsafePlaceError,
    UsageError,
)
from casstore.index.tables import SCHEMA

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root, to give up rights")


def make(path: Path, *names: str) -> Path:
    with casstore.open(path, create=True, durability="off") as store:
        put(store, *names)
    return path


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_store_holds_what_the_design_says_and_nothing_else(tmp_path: Path) -> None:
    """The top level, the lock files and all 256 shards are there, and no sibling is left beside the store."""
    path = make(tmp_path / "s")
    names = {"CASSTORE.txt", "casstore.toml", "index.sqlite", "objects", "tmp", "quarantine", "backups", "locks"}
    assert set(os.listdir(path)) - {"ballast"} == names
    assert set(os.listdir(path / "locks")) == {"store", "write", "gc", "owners"}
    assert sorted(os.listdir(path / "objects")) == [f"{n:02x}" for n in range(256)]
    assert [os.listdir(path / name) for name in ("tmp", "quarantine", "backups", "locks/owners")] == [[]] * 4
    assert os.listdir(tmp_path) == ["s"]


def test_everything_in_a_store_is_private(tmp_path: Path) -> None:
    """Folders are 0700, files 0600, objects 0400, whatever the umask allows."""
    old = os.umask(0)
    try:
        path = make(tmp_path / "s", "a")
        with casstore.open(path) as store:
            put(store, "b")
            index = [path / f"index.sqlite{end}" for end in ("", "-wal", "-shm")]
            assert [mode_of(place) for place in index] == [0o600] * 3
        modes = {(place.is_dir(), place.suffix == ".cso", mode_of(place)) for place in path.rglob("*")}
        assert modes == {(True, False, 0o700), (False, False, 0o600), (False, True, 0o400)}
        assert mode_of(path) == 0o700
    finally:
        os.umask(old)


def test_a_ballast_is_set_aside_only_where_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """16 MiB are really taken when 1 GiB is free, and nothing at all when less is, or at durability off."""

    def made(name: str, durability: Literal["full", "off"]) -> Path:
        casstore.open(tmp_path / name, create=True, durability=durability).close()
        return tmp_path / name / "ballast"

    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage._replace(free=1 << 30))
    assert made("roomy", "full").stat().st_blocks * 512 >= 16 << 20
    assert not made("fleeting", "off").exists()
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage._replace(free=(1 << 30) - 1))
    assert not made("narrow", "full").exists()


def test_processes_that_create_one_store_at_once_all_open_it() -> None:
    """A hundred times 8 processes make and open one store together: none fails, all of a round open the same, and
    nothing is left of the losers."""
    rounds = range(1, 101)
    with fast_folder() as folder, contextlib.ExitStack() as stack:

        def work(me: Child) -> list[str]:
            found = []
            while number := me.hear():
                with casstore.open(folder / str(number), create=True, durability="off") as store:
                    found += [row[0] for row in store.sql("SELECT value FROM settings WHERE key = 'store_id'").rows]
                me.say(number)
            return found

        children = [stack.enter_context(child(work)) for _ in range(8)]
        for number in [*rounds, 0]:
            for each in children:
                each.say(number)
            if number:
                assert [each.hear() for each in children] == [number] * 8
        ids = [each.result() for each in children]
        assert ids == [ids[0]] * 8
        assert len(set(ids[0])) == len(rounds)
        assert sorted(os.listdir(folder), key=int) == [str(number) for number in rounds]


def test_a_store_that_appears_while_the_place_is_looked_at_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever loses the race between the first look and the second opens the winner's store all the same."""
    real = os.path.ismount

    def look(path: str) -> bool:
        monkeypatch.setattr(os.path, "ismount", real)
        make(tmp_path / "s", "a")
        return real(path)

    monkeypatch.setattr(os.path, "ismount", look)
    with casstore.open(tmp_path / "s", create=True) as store:
        assert get(store, "a") == expect("a")


def test_an_existing_store_is_opened_by_create_and_keeps_what_it_holds(tmp_path: Path) -> None:
    """create=True never makes a store anew."""
    path = make(tmp_path / "s", "a")
    with casstore.open(path, create=True) as store:
        assert get(store, "a") == expect("a")


def test_an_empty_folder_becomes_a_store_and_missing_parents_are_made(tmp_path: Path) -> None:
    """Both an empty folder and a path without parents are places for a store, with odd characters in them."""
    (tmp_path / "empty").mkdir()
    for place in (tmp_path / "empty", tmp_path / "a" / "b?c#d%20 é" / "s"):
        make(place, "a")
        with casstore.open(place) as store:
            assert get(store, "a") == expect("a")


def test_a_mount_point_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The root of a mount is no place for a store; the message advises a folder in it, which works."""

    def real() -> list[str] | None:
        if not mount_tmpfs(tmp_path, "8m"):
            return None
        return [
            outcome(casstore.open, tmp_path, create=True),
            outcome(make, tmp_path / "cache", "a"),
            *os.listdir(tmp_path),
        ]

    assert in_child(real) in (None, ["UnsafePlaceError", "fine", "cache"])
    monkeypatch.setattr(os.path, "ismount", lambda _: True)
    with pytest.raises(UnsafePlaceError, match=f"{tmp_path}/cache"):
        casstore.open(tmp_path, create=True)


@pytest.mark.parametrize("create", [False, True])
def test_a_foreign_folder_is_refused_and_left_alone(tmp_path: Path, create: bool) -> None:
    """A folder with anything in it that isn't a store keeps what it holds, down to the modes."""
    (tmp_path / "theirs" / "sub").mkdir(parents=True)
    (tmp_path / "theirs" / "notes.txt").write_text("mine")
    before = tree(tmp_path)
    with pytest.raises(NotAStoreError, match="theirs"):
        casstore.open(tmp_path / "theirs", create=create)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("create", [False, True])
def test_a_file_is_refused_and_left_alone(tmp_path: Path, create: bool) -> None:
    """A file where the store should be is named and kept."""
    (tmp_path / "s").write_text("mine")
    with pytest.raises(NotAStoreError, match=str(tmp_path / "s")):
        casstore.open(tmp_path / "s", create=create)
    assert (tmp_path / "s").read_text() == "mine"


def test_opening_what_is_missing_makes_nothing(tmp_path: Path) -> None:
    """Without create=True a missing path is an error that says how to make a store, and stays missing."""
    with pytest.raises(NotAStoreError, match="casstore init"):
        casstore.open(tmp_path / "s")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("durability", ["full", "off"])
def test_a_creation_that_is_killed_leaves_no_store_or_a_whole_one(durability: str) -> None:
    """Whenever the creating process dies, the path is free or holds a store that works."""
    rng = random.Random(1)
    seen = set()
    for _ in range(15):
        with fast_folder() as folder:
            path = folder / "s"

            def work(report: Report, path: Path = path) -> None:
                report("begun")
                initialize.create_store(str(path), durability)

            kill_once(work, rng, spread=0.02)
            seen.add(path.exists())
            with casstore.open(path, create=not path.exists()) as store:
                put(store, "a")
                assert get(store, "a") == expect("a")
                assert len(os.listdir(path / "objects")) == 256
    assert False in seen, "no kill came early enough to prove anything"


def test_durability_is_fixed_when_a_store_is_made(tmp_path: Path) -> None:
    """Another durability for an existing store is a usage error that changes nothing; the same one or none is fine."""
    path = make(tmp_path / "s", "a")
    before = tree(path)
    with pytest.raises(UsageError, match="'off'"):
        casstore.open(path, durability="full")
    with pytest.raises(UsageError, match="'full' or 'off'"):
        casstore.open(tmp_path / "t", create=True, durability="fast")  # type: ignore[arg-type]
    assert tree(path) == before
    for durability in ("off", None):
        with casstore.open(path, durability=durability) as store:  # type: ignore[arg-type]
            assert store.durability == "off"


def foreign(path: Path, mode: str) -> None:
    path.unlink()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA journal_mode = {mode}")
        connection.execute("CREATE TABLE bookmarks (url)")
        connection.commit()


DISASTERS = {
    "zero bytes": (lambda path: path.write_bytes(b""), CorruptStoreError),
    "garbage": (lambda path: path.write_bytes(bytes(range(256)) * 64), CorruptStoreError),
    "foreign": (lambda path: foreign(path, "DELETE"), NotAStoreError),
    "foreign, WAL": (lambda path: foreign(path, "WAL"), NotAStoreError),
    "missing": (lambda path: path.unlink(), NotAStoreError),
    "a folder": (lambda path: (path.unlink(), path.mkdir()), NotAStoreError),
}


@pytest.mark.parametrize("create", [False, True])
@pytest.mark.parametrize("disaster", DISASTERS)
def test_a_lost_index_is_never_replaced_by_an_empty_one(tmp_path: Path, disaster: str, create: bool) -> None:
    """T19: an index that is empty, foreign or gone is a typed error that names it, and not a byte changes."""
    path = make(tmp_path / "s", "a", "b")
    change, error = DISASTERS[disaster]
    change(path / "index.sqlite")
    before = tree(path)
    for _ in range(2):
        with pytest.raises(error, match=r"index\.sqlite"):
            casstore.open(path, create=create)
    assert tree(path) == before
    assert len(object_files(path)) == 2


@pytest.mark.parametrize(
    ("version", "error"),
    [(SCHEMA - 1, StoreOutdatedError), (SCHEMA + 1, StoreTooNewError), (2**31 - 1, StoreTooNewError)],
)
def test_a_store_of_another_version_is_refused_and_left_alone(
    tmp_path: Path, version: int, error: type[Exception]
) -> None:
    """An older or newer user_version stops every open before anything is written."""
    path = make(tmp_path / "s", "a")
    sql(path, f"PRAGMA user_version = {version}")
    sql(path, f"UPDATE settings SET value = '{version}' WHERE key = 'min_reader'")
    before = tree(path)
    with pytest.raises(error, match=f"schema {version}"):
        casstore.open(path, create=True)
    assert tree(path) == before


def test_a_store_that_was_upgraded_while_it_is_open_takes_no_writes(tmp_path: Path) -> None:
    """The schema version is looked at again by every write transaction, not only at the open."""
    with casstore.open(tmp_path / "s", create=True, durability="off") as store:
        put(store, "a")
        sql(store, f"PRAGMA user_version = {SCHEMA + 1}")
        with pytest.raises(StoreTooNewError):
            put(store, "b")
        sql(store, f"PRAGMA user_version = {SCHEMA}")
        assert get(store, "b") == "new"


@pytest.mark.parametrize("change", ["DELETE FROM settings", "UPDATE settings SET value = 'x'"])
def test_an_index_whose_settings_are_broken_is_a_typed_error(tmp_path: Path, change: str) -> None:
    """Settings that are gone or make no sense are corruption with a message, not a KeyError or ValueError."""
    path = make(tmp_path / "s", "a")
    sql(path, change)
    with pytest.raises(CorruptStoreError, match=r"index\.sqlite"):
        casstore.open(path)


def roots_place(folder: Path) -> Path:
    """A folder that others may look into but not write to, with a store and a private folder in it."""
    make(folder / "roots" / "s", "a")
    (folder / "roots" / "private").mkdir(mode=0o700)
    return folder / "roots"


@needs_root
def test_a_private_store_is_a_permission_error_for_others() -> None:
    """Who may not look into the store, or not make one beside it, gets a typed error."""

    def work(folder: Path) -> list[str]:
        return [outcome(casstore.open, folder / "roots" / name, create=name == "t") for name in "st"]

    assert as_nobody(work, roots_place) == ["StorePermissionError"] * 2


@needs_root
@pytest.mark.parametrize("name", ["s", "private"])
def test_creating_where_one_may_not_even_look_is_a_permission_error(name: str) -> None:
    """open(create=True) on somebody else's private store or folder is a typed error too."""

    def work(folder: Path) -> str:
        return outcome(casstore.open, folder / "roots" / name, create=True)

    assert as_nobody(work, roots_place) == "StorePermissionError"


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    """Closing twice is fine; using a closed store is a usage error, and its owner's lock file is gone."""
    store = casstore.open(tmp_path / "s", create=True, durability="off")
    store.close()
    store.close()
    with pytest.raises(UsageError, match="closed"):
        put(store, "a")
    with pytest.raises(UsageError, match="closed"):
        get(store, "a")
    assert os.listdir(tmp_path / "s" / "locks" / "owners") == []
