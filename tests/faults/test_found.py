"""What the loop over all calls has found, each as one case."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zstandard
from core.helpers import expect, fast_folder, get, put
from faults.injection import Call, Fault, Faults
from faults.running import descriptors

import casstore
from casstore import fsio
from casstore.core.directory import check_is_store
from casstore.errors import NotAStoreError, StoreIOError, StorePermissionError
from casstore.locks import FileLock
from casstore.objects import decode, encode


def call_of(calls: list[Call], name: str, ending: str, nth: int = 0) -> int:
    """The number of the nth call of this name on a path with this ending."""
    return [n for n, call in enumerate(calls) if call.name == name and call.path.endswith(ending)][nth]


@pytest.mark.parametrize("name", ["lock", "stat"])
def test_a_lock_that_fails_half_way_is_not_kept(tmp_path: Path, name: str) -> None:
    """An error while a lock is taken, or when its file is looked at then, is typed; the lock is free afterwards."""
    path, before = str(tmp_path / "lock"), descriptors()
    with Faults(tmp_path) as faults:
        lock = FileLock(path)
        assert lock.try_acquire()
        lock.release()
    number = call_of(faults.calls, name, "lock")
    with Faults(tmp_path, Fault(number, "EIO")), pytest.raises(StoreIOError, match=r"can't lock .*EIO"):
        FileLock(path).try_acquire()
    assert descriptors() == before
    assert FileLock(path).try_acquire()


def test_a_lock_is_given_back_whatever_happens_to_its_note(tmp_path: Path) -> None:
    """When the note can't be removed and the file reports an error at its end, the lock is free all the same."""
    path, before = str(tmp_path / "lock"), descriptors()
    lock = FileLock(path)
    with Faults(tmp_path) as faults:
        lock.try_acquire()
        lock.write_note()
        lock.release()
    for name in ("truncate", "close"):
        with Faults(tmp_path, Fault(call_of(faults.calls, name, "lock"), "EIO")) as failing:
            lock.try_acquire()
            lock.write_note()
            lock.release()
        assert failing.hit == {name} and descriptors() == before


@pytest.mark.parametrize("error", ["EROFS", "ENOSPC", "EIO"])
def test_closing_gives_the_locks_back_when_the_owners_file_cannot_be_removed(tmp_path: Path, error: str) -> None:
    """The disk may have become read-only: close() works, and the next upgrade isn't locked out."""
    store = casstore.open(tmp_path / "s", create=True, durability="off")
    owner = store._handle.owner
    with Faults(tmp_path) as faults, casstore.open(tmp_path / "s"):
        pass
    number = [n for n, call in enumerate(faults.calls) if call.name == "unlink"][-1]
    before = descriptors()
    with Faults(tmp_path, Fault(number, error)) as failing, casstore.open(tmp_path / "s"):
        pass
    assert failing.hit == {"unlink"} and descriptors() == before
    assert owner in os.listdir(tmp_path / "s" / "locks" / "owners")
    store.close()


def test_gc_gives_a_dead_owners_lock_back_when_its_file_cannot_be_removed(tmp_path: Path) -> None:
    """The error is told, and the next gc removes the file."""
    with casstore.open(tmp_path / "s", create=True, durability="off") as store:
        dead = tmp_path / "s" / "locks" / "owners" / ("0" * 16)
        dead.touch()
        with Faults(tmp_path) as faults:
            store.gc(yes=True)
        dead.touch()
        with Faults(tmp_path, Fault(call_of(faults.calls, "unlink", "0" * 16), "EIO")), \
                pytest.raises(StoreIOError, match=r"can't remove .*0{16}.*EIO"):  # fmt: skip
            store.gc(yes=True)
        store.gc(yes=True)
        assert not dead.exists()


@pytest.mark.parametrize("number", [0, 2])
def test_a_store_that_cannot_be_looked_at_is_not_called_missing(tmp_path: Path, number: int) -> None:
    """An I/O error on the folder or its marker is told as that, and isn't "there is no store"."""
    casstore.open(tmp_path / "s", create=True, durability="off").close()
    with Faults(tmp_path, Fault(number, "EIO")), pytest.raises(StoreIOError, match="EIO"):
        check_is_store(str(tmp_path / "s"))
    with pytest.raises(NotAStoreError, match="doesn't exist"):
        check_is_store(str(tmp_path / "t"))


LOOKS: dict[str, Callable[[str], Any]] = {
    "stat": fsio.look,
    "list": fsio.names_in,
    "space": fsio.free_bytes,
    "folder": fsio.is_directory,
    "same": lambda path: fsio.same_file(path, path),
}


@pytest.mark.parametrize("name", LOOKS)
def test_looking_fails_with_a_typed_error(tmp_path: Path, name: str) -> None:
    """Sizes, listings, free bytes: what can't be told is a StoreIOError with path and errno."""
    with Faults(tmp_path, Fault(0, "EIO")), pytest.raises(StoreIOError, match=f"{tmp_path}: .*EIO") as caught:
        LOOKS[name](str(tmp_path))
    assert caught.value.errno == errno.EIO


def test_the_message_of_a_picture_that_cannot_be_read_names_the_errno(tmp_path: Path) -> None:
    """As those of the store's own files do."""
    (tmp_path / "x.png").write_bytes(b"x")
    from casstore.sources.read import read_source

    for number in range(4):  # open, stat, read, close
        with Faults(tmp_path, Fault(number, "EIO")), pytest.raises(casstore.errors.SourceNotFoundError) as caught:
            read_source(str(tmp_path / "x.png"))
        assert "EIO" in str(caught.value)


def test_removing_a_half_made_store_never_hides_the_error(tmp_path: Path) -> None:
    """When the disk is full and closing a folder fails too, init still tells what failed first."""
    with fast_folder() as place, Faults(place, Fault(12, "ENOSPC", for_ever=True)), \
            pytest.raises(casstore.errors.NoSpaceError):  # fmt: skip
        casstore.open(place / "s", create=True)


def test_a_disk_that_became_read_only_is_a_permission_error_and_is_read(tmp_path: Path) -> None:
    """From the first write on everything fails with EROFS: the put says so, and what is stored is served."""
    with casstore.open(tmp_path / "s", create=True, durability="off") as store:
        put(store, "a")
        with Faults(tmp_path) as faults:
            put(store, "b")
        number = next(n for n, call in enumerate(faults.calls) if call.name == "create" and "/tmp/" in call.path)
        with Faults(tmp_path, Fault(number, "EROFS", for_ever=True)):
            with pytest.raises(StorePermissionError, match="EROFS"):
                put(store, "c")
            assert get(store, "a") != "new"


class NoMemory:
    """A zstd that gets no memory."""

    def stream_reader(self, _: Any) -> Any:
        raise zstandard.ZstdError("zstd decompress error: Allocation error : not enough memory")

    def compress(self, _: Any) -> bytes:
        raise zstandard.ZstdError("cannot compress: Allocation error : not enough memory")


def test_too_little_memory_for_zstd_is_not_damage(store: casstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading and verifying end with MemoryError; the object isn't marked, and is served when there is memory again."""
    put(store, a={"t": np.arange(5000)})
    with monkeypatch.context() as patched:
        patched.setattr(decode._decompressor, "zstd", NoMemory())
        for work in (lambda: get(store, "a"), lambda: store.verify(deep=True)):
            with pytest.raises(MemoryError):
                work()
    assert get(store, "a") == {"t": list(range(5000))}
    assert store.verify(deep=True).findings == ()


def test_too_little_memory_for_a_put_is_pythons_error_for_that(
    store: casstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No error of zstandard's own gets out; nothing is stored."""
    with monkeypatch.context() as patched:
        patched.setattr(encode, "_compressors", SimpleNamespace(planes=NoMemory(), others=NoMemory()))
        with pytest.raises(MemoryError):
            put(store, a={"t": np.arange(5000)})
    assert get(store, "a") == "new"


def test_a_commit_is_not_called_a_failure_for_what_comes_after_it(store: casstore.Store, tmp_path: Path) -> None:
    """The WAL can't be looked at after COMMIT: what the put stored counts as stored by it, and isn't put again."""
    with Faults(tmp_path, rule=lambda name, path: "EIO" if name == "stat" and path.endswith("-wal") else "") as faults:
        put(store, "a")
    assert faults.hit == {"stat"}
    assert sum(call.name == "create" and "/store/tmp/" in call.path for call in faults.calls) == 1
    assert get(store, "a") == expect("a")
