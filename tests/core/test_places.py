"""Stores where they can only be read, and places where none may be written."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import socket
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from core.helpers import Child, child, expect, get, in_child, mount_tmpfs, put, tree
from kit import as_nobody, old_store, pictures

import casstore
from casstore import fsio, locks
from casstore.cli import run
from casstore.errors import StoreBusyError, StoreChangedError, StoreReadOnlyError, UnsafePlaceError
from casstore.index import engine, migrate
from casstore.index.place import is_unsafe
from casstore.index.readonly import retried

OTHER = casstore.Key.text("other", casstore.Recipe("r"))


def outcomes(store: casstore.Store) -> list[str]:
    """The classes of error with which every way of writing is refused."""
    folder = Path(store.path).parent
    ways: list[Any] = [
        lambda: put(store, "new"),
        lambda: store.get_or_encode(OTHER, lambda: {"t": np.arange(2)}),
        lambda: store.scan(folder),
        lambda: store.gc(yes=True),
        lambda: store.forget(casstore.Recipe("r")).execute(),
    ]
    found = []
    for way in ways:
        try:
            way()
            found.append("nothing")
        except casstore.errors.CasstoreError as error:
            found.append(type(error).__name__)
    return found


def test_another_users_store_is_read_and_no_file_is_made() -> None:
    """A user without rights reads everything, gets a typed error at once by writing, and changes nothing."""

    def prepare(folder: Path) -> None:
        with casstore.open(folder / "s", create=True) as store:
            put(store, "a")
        for path in [folder / "s", *(folder / "s").rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o444)

    def work(folder: Path) -> Any:
        before = tree(folder / "s")
        with casstore.open(folder / "s") as store:
            found = [get(store, "a"), store.status().variants, store.verify(deep=True).damaged, outcomes(store)]
        return [*found, tree(folder / "s") == before]

    assert as_nobody(work, prepare) == [expect("a"), 1, 0, ["StoreReadOnlyError"] * 5, True]


def test_four_processes_read_from_a_read_only_mount(tmp_path: Path) -> None:
    """A cleanly closed store on a mount that nobody can write is read, by several at once, without making a file."""

    def work() -> Any:
        place = tmp_path / "m"
        place.mkdir()
        if not mount_tmpfs(place, "64m"):
            return None
        with casstore.open(place / "s", create=True, durability="off") as store:
            put(store, "a")
        assert os.system(f"mount -o remount,ro {place}") == 0

        def read(me: Child) -> Any:
            with casstore.open(place / "s") as store:
                me.say()
                me.hear()
                return [get(store, "a"), outcomes(store)]

        readers = [Child(read) for _ in range(4)]
        for reader in readers:
            reader.hear()
        for reader in readers:
            reader.say()
        return [reader.result() for reader in readers]

    found = in_child(work)
    if found is None:
        pytest.skip("mounting isn't allowed here")
    assert found == [[expect("a"), ["StoreReadOnlyError"] * 5]] * 4


def test_a_reader_sees_what_the_owner_has_written_since(tmp_path: Path) -> None:
    """An immutable connection isn't kept when the owner, in between two calls, has written and closed."""

    with casstore.open(tmp_path / "s", create=True, durability="off") as store:
        put(store, "a")

    def work(me: Child) -> Any:
        fake_read_only()
        with casstore.open(tmp_path / "s") as store:
            first = get(store, "b")
            me.say()
            me.hear()
            return [first, get(store, "b")]

    with child(work) as reader:
        reader.hear()
        with casstore.open(tmp_path / "s") as store:
            put(store, "b")
        reader.say()
        assert reader.result() == ["new", expect("b")]


def fake_read_only() -> None:
    """Make this process take every store for one that it can't write."""
    from casstore.core import handle

    handle.obstacle = lambda path, **_: StoreReadOnlyError(f"{path} can only be read")  # type: ignore[assignment]


def test_what_was_read_while_the_owner_wrote_is_thrown_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change during a call discards its result: it is read again, and if that goes on a typed error says so."""
    with casstore.open(tmp_path / "s", create=True, durability="off") as store:
        put(store, "a")
    monkeypatch.setattr("casstore.core.handle.obstacle", lambda path, **_: StoreReadOnlyError(path))
    index = tmp_path / "s" / "index.sqlite"
    calls = 0
    with casstore.open(tmp_path / "s") as reader:

        def read(changes: int) -> str:
            nonlocal calls
            calls += 1
            with reader._handle.index.read() as connection:
                found = connection.exec_driver_sql("SELECT count(*) FROM variants").scalar_one()
                if calls <= changes:
                    os.utime(index, ns=(calls, calls))
                return f"{found} in call {calls}"

        assert retried(lambda: read(2)) == "1 in call 3"
        calls = 0
        with pytest.raises(StoreChangedError, match="db copy"):
            retried(lambda: read(1000))


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "9p", "virtiofs", "fuse.sshfs", "fuse", "fuse.something"])
def test_no_store_is_made_where_locks_cannot_be_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """T48: on a network or unknown FUSE mount `init` ends with exit code 7 and both ways out, and nothing is made."""
    mounted(monkeypatch, tmp_path, kind)
    assert run(["init", "--store", str(tmp_path / "s")]) == 7
    told = capsys.readouterr().err
    assert kind in told and "local disk" in told and "db copy" in told
    assert os.listdir(tmp_path) == ["mounts"]


def test_a_store_on_an_unsafe_mount_is_read_but_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T48: what was copied to a share can be read there; a write is an UnsafePlaceError, unless it is insisted on."""
    with casstore.open(tmp_path / "s", create=True, durability="off") as store:
        put(store, "a")
    mounted(monkeypatch, tmp_path, "nfs4")
    with casstore.open(tmp_path / "s") as store:
        assert (store.read_only, get(store, "a")) == (True, expect("a"))
        assert outcomes(store) == ["UnsafePlaceError"] * 5
    with casstore.open(tmp_path / "s", unsafe_filesystem=True) as store:
        put(store, "b")
        assert get(store, "b") == expect("b")
    with pytest.raises(UnsafePlaceError):
        casstore.open(tmp_path / "other", create=True)


def mounted(monkeypatch: pytest.MonkeyPatch, place: Path, kind: str) -> None:
    """Make casstore believe that `place` is a mount of this type."""
    table = place / "mounts"
    line = f"36 35 98:0 / {place} rw - {kind} server:/share rw\n"
    table.write_text("22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n" + line)
    monkeypatch.setattr(fsio, "MOUNT_TABLE", str(table))


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs", "zfs", "overlay", "fuseblk", "f2fs", ""])
def test_local_file_systems_are_trusted(kind: str) -> None:
    """What one kernel keeps is no unsafe place."""
    assert not is_unsafe(kind)


def test_a_store_keeps_its_option_when_it_travels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pickled store opens with the path and the options that it had."""
    import pickle  # noqa: TID251

    mounted(monkeypatch, tmp_path, "nfs4")
    with casstore.open(tmp_path / "s", create=True, durability="off", unsafe_filesystem=True) as store:
        put(store, "a")
        with pickle.loads(pickle.dumps(store)) as again:  # noqa: S301
            assert (again.path, again.read_only, get(again, "a")) == (store.path, False, expect("a"))
    shutil.rmtree(tmp_path / "s")


WAYS_OUT = ("local disk", "db copy", "--unsafe-filesystem")


@pytest.mark.parametrize("verb", [["build"], ["gc", "--yes"]])
def test_a_command_that_writes_is_refused_on_an_unsafe_mount_with_every_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verb: list[str]
) -> None:
    """T48: exit code 7, the type of the mount and all that can be done; not a byte changes."""
    with casstore.open(tmp_path / "s", create=True, durability="off") as store:
        put(store, "a")
    pictures(tmp_path / "data", 2)
    mounted(monkeypatch, tmp_path, "nfs4")
    arguments = [str(tmp_path / "data"), "--encoder", "pixels"] if verb == ["build"] else []
    before = tree(tmp_path / "s")
    assert run([*verb, *arguments, "--store", str(tmp_path / "s")]) == 7
    told = capsys.readouterr().err
    assert [way for way in ("nfs4", *WAYS_OUT) if way not in told] == []
    assert tree(tmp_path / "s") == before


def test_the_ways_out_of_an_unsafe_mount_are_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T48: a copy of the index can be made of a store on such a mount, and the flag lets a command write there."""
    (tmp_path / "share").mkdir()
    with casstore.open(tmp_path / "share" / "s", create=True, durability="off") as store:
        put(store, "a")
    pictures(tmp_path / "data", 2)
    mounted(monkeypatch, tmp_path / "share", "nfs4")
    place = ["--store", str(tmp_path / "share" / "s")]
    assert run(["db", "copy", str(tmp_path / "copy.sqlite"), *place]) == 0
    with contextlib.closing(sqlite3.connect(tmp_path / "copy.sqlite")) as copy:
        assert copy.execute("SELECT text FROM v_variants").fetchall() == [("a",)]
    build = ["build", str(tmp_path / "data"), "--encoder", "pixels", *place]
    assert [run(build), run([*build, "--unsafe-filesystem"])] == [7, 0]
    with casstore.open(tmp_path / "share" / "s") as store:
        assert (store.read_only, store.status().variants) == (True, 3)


def be_on(host: str) -> None:
    """Give this process a host name of its own: really where that is allowed, else as far as Python is asked."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not libc.unshare(0x04000000):  # CLONE_NEWUTS
        socket.sethostname(host)
    else:
        socket.gethostname = lambda: host
    locks._host.cache_clear()


def test_two_hosts_share_a_directory_whose_locks_work(tmp_path: Path) -> None:
    """T48: what is put under one host name is got under the other, and who has to wait is told the other's name."""
    casstore.open(tmp_path / "s", create=True, durability="off").close()

    def alpha(me: Child) -> Any:
        be_on("alpha")
        with casstore.open(tmp_path / "s") as store:
            put(store, "a")
            with store._handle.index.write():
                me.say()
                me.hear()
            me.say()
            me.hear()
            store.gc(yes=True)
            return [get(store, "a"), get(store, "b")]

    def beta(me: Child) -> Any:
        be_on("beta")
        engine.BUSY_SECONDS = 0.02
        with casstore.open(tmp_path / "s") as store:
            message = ""
            try:
                put(store, "b")
            except StoreBusyError as error:
                message = str(error)
            me.say(message)
            me.hear()
            engine.BUSY_SECONDS = 30
            put(store, "b")
            store.gc(yes=True)
            return [get(store, "a"), get(store, "b")]

    with child(alpha) as first:
        first.hear()
        with child(beta) as second:
            message = second.hear()
            first.say()
            first.hear()
            second.say()
            assert second.result() == [expect("a"), expect("b")]
        first.say()
        assert first.result() == [expect("a"), expect("b")]
    assert " on alpha (" in message
    with casstore.open(tmp_path / "s") as store:
        assert store.sql("SELECT host FROM v_runs ORDER BY run").rows == [("beta",), ("alpha",)]
        assert store.verify(deep=True).findings == ()


def test_no_index_is_upgraded_or_restored_on_an_unsafe_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T48: what writes the index is refused where its locks can't be trusted, unless it is insisted on."""
    path = old_store(tmp_path / "old")
    backup = migrate.upgrade(str(old_store(tmp_path / "other"))).backup
    mounted(monkeypatch, tmp_path, "nfs4")
    before = tree(path)
    assert run(["db", "upgrade", "--store", str(path)]) == 7
    assert run(["db", "restore", str(backup), "--yes", "--store", str(path)]) == 7
    assert tree(path) == before
    assert run(["db", "upgrade", "--store", str(path), "--unsafe-filesystem"]) == 0
    casstore.open(path).close()
