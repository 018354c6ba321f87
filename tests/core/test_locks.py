"""File locks: they die with their process, and no child ever unlocks what its parent holds."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

import pytest
from core.helpers import Child, child, in_child

from casstore import locks
from casstore.errors import StoreBusyError, StorePermissionError
from casstore.locks import FileLock


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "lock")


def holder(path: str, *, shared: bool = False) -> Any:
    """A child that holds the lock until it hears something or dies."""

    def work(me: Child) -> None:
        lock = FileLock(path)
        me.say(lock.try_acquire(shared=shared))
        me.hear()
        lock.release()
        me.say("released")
        me.hear()

    return child(work)


def free(path: str, *, shared: bool = False) -> bool:
    """Whether another process could take the lock now."""
    return bool(in_child(lambda: FileLock(path).try_acquire(shared=shared)))


def test_a_lock_keeps_others_out_until_it_is_released(path: str) -> None:
    """An exclusive lock of one process can't be had by another, and can as soon as it is given back."""
    lock = FileLock(path)
    with holder(path) as other:
        assert other.hear() is True
        assert (lock.try_acquire(), lock.held) == (False, False)
        other.say()
        assert other.hear() == "released"
        assert (lock.try_acquire(), lock.held) == (True, True)
    lock.release()
    lock.release()
    assert not lock.held
    assert free(path)


def test_a_lock_dies_with_its_process(path: str) -> None:
    """After a SIGKILL the lock is free, with nothing to clean up."""
    with holder(path) as other:
        assert other.hear() is True
    assert free(path)


def test_many_share_a_lock_and_keep_the_exclusive_one_out(path: str) -> None:
    """Shared holders don't hinder each other; an exclusive one waits for all of them, and they for it."""
    lock = FileLock(path)
    with holder(path, shared=True) as other:
        assert other.hear() is True
        assert lock.try_acquire(shared=True)
        assert not free(path)
        lock.release()
        assert not free(path)
        assert free(path, shared=True)
    assert lock.try_acquire()
    assert not free(path, shared=True)
    lock.release()


def test_a_forked_child_neither_holds_nor_frees_its_parents_lock(path: str) -> None:
    """The child's copy is closed at the fork; releasing there, or its death, leaves the parent's lock held."""
    lock = FileLock(path)
    assert lock.try_acquire()

    def work() -> list[bool]:
        held = lock.held
        lock.release()
        return [held, FileLock(path).try_acquire()]

    assert in_child(work) == [False, False]
    assert not free(path)
    lock.release()
    with child(lambda me: me.hear()):
        assert free(path), "a child that lives on keeps nothing"


def test_waiting_ends_with_a_typed_error(path: str) -> None:
    """A lock that stays taken is a StoreBusyError, or the caller's own message."""
    with holder(path) as other:
        assert other.hear() is True
        with pytest.raises(StoreBusyError, match=path):
            FileLock(path).acquire(0.02)
        with pytest.raises(StoreBusyError, match="mine"):
            FileLock(path).acquire(0, on_busy=lambda: StoreBusyError("mine"))


def test_waiting_ends_when_the_holder_lets_go(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiter gets the lock once it is free, without any time limit being near."""
    with holder(path) as other:
        assert other.hear() is True
        monkeypatch.setattr(locks.time, "sleep", lambda _: other.pid and other.end())
        lock = FileLock(path)
        lock.acquire(60)
    assert lock.held
    lock.release()


def test_a_lock_file_that_was_removed_meanwhile_is_not_trusted(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the file loses its name between open and lock, the lock is taken on the new file of that name."""
    real, calls = fcntl.flock, []

    def flock(descriptor: int, operation: int) -> None:
        if not calls:
            os.unlink(path)
        calls.append(operation)
        real(descriptor, operation)

    monkeypatch.setattr(locks.fcntl, "flock", flock)
    lock = FileLock(path)
    assert lock.try_acquire()
    assert len(calls) == 2
    assert not free(path)
    lock.release()


def test_create_false_makes_no_file(path: str) -> None:
    """Looking at the lock of an owner that has gone leaves no file behind."""
    with pytest.raises(FileNotFoundError):
        FileLock(path).try_acquire(create=False)
    assert not os.path.exists(path)


def test_one_object_holds_a_lock_once(path: str) -> None:
    """Taking a held lock again is a mistake of ours, not a deadlock; another object of this process is kept out."""
    lock = FileLock(path)
    assert lock.try_acquire()
    with pytest.raises(RuntimeError, match="already held"):
        lock.try_acquire()
    assert not FileLock(path).try_acquire()
    lock.release()


def test_a_lock_that_cant_be_opened_is_a_typed_error(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No permission, or no folder, for a lock file is casstore's error with its path."""

    def refuse(*_: Any) -> int:
        raise PermissionError(13, "no")

    with pytest.raises(locks.fsio.CasstoreError, match="missing/lock"):
        FileLock(os.path.join(os.path.dirname(path), "missing", "lock")).try_acquire()
    monkeypatch.setattr(locks.os, "open", refuse)
    with pytest.raises(StorePermissionError, match=path):
        FileLock(path).try_acquire()
