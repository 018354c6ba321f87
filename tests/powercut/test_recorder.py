"""The recording file system: what it serves, and what it writes down."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from powercut.crashes import Disk, Operation, read_log
from powercut.recording import mounted, why_not

pytestmark = pytest.mark.skipif(why_not() is not None, reason=why_not() or "")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("disk", "disk/locks", "mount"):
        (tmp_path / name).mkdir()
    return tmp_path


def recorded(place: Path) -> list[Operation]:
    return read_log(place / "log")


def test_both_names_of_a_file_are_one_inode(place: Path) -> None:
    """A temp and its link have one inode, the disk's, and two links: what a put compares under the write lock."""
    with mounted(place / "disk", place / "mount", place / "log"):
        (place / "mount" / "temp").write_bytes(b"x")
        os.link(place / "mount" / "temp", place / "mount" / "final")
        temp, final = (os.stat(place / "mount" / name) for name in ("temp", "final"))
        assert (temp.st_ino, temp.st_nlink) == (final.st_ino, 2)
        assert temp.st_ino == os.stat(place / "disk" / "temp").st_ino
        assert sorted(os.listdir(place / "mount")) == ["final", "locks", "temp"]


def test_every_change_is_written_down_in_order(place: Path) -> None:
    """Names, bytes, sizes, flushes of files and folders, and marks; a failed look at a mark finds nothing."""
    with mounted(place / "disk", place / "mount", place / "log"):
        mount = place / "mount"
        with open(mount / "a", "wb", buffering=0) as stream:
            stream.write(b"hello")
            os.pwrite(stream.fileno(), b"L", 2)
            os.fsync(stream.fileno())
            stream.truncate(3)
        (mount / "folder").mkdir()
        os.link(mount / "a", mount / "folder" / "b")
        os.rename(mount / "a", mount / "c")
        folder = os.open(mount / "folder", os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
        assert not os.path.lexists(mount / ".mark|stored|x|y")
        os.unlink(mount / "c")
        os.unlink(mount / "folder" / "b")
        (mount / "folder").rmdir()
    top = os.stat(place / "disk").st_ino
    log = recorded(place)
    file, inner = log[0][3], log[5][3]
    assert log == [
        ["create", top, "a", file],
        ["write", file, 0, b"hello"],
        ["write", file, 2, b"L"],
        ["fsync", file],
        ["truncate", file, 3],
        ["mkdir", top, "folder", inner],
        ["link", inner, "b", file],
        ["rename", top, "a", top, "c"],
        ["fsync", inner],
        ["mark", "stored|x|y"],
        ["unlink", top, "c"],
        ["unlink", inner, "b"],
        ["unlink", top, "folder"],
    ]


def test_lock_files_and_shared_memory_are_not_written_down(place: Path) -> None:
    """They are worth nothing after a crash."""
    with mounted(place / "disk", place / "mount", place / "log"):
        for name in ("locks/write", "index.sqlite-shm"):
            (place / "mount" / name).write_bytes(b"note")
            os.truncate(place / "mount" / name, 0)
            os.unlink(place / "mount" / name)
    assert recorded(place) == []


def test_the_log_leads_from_the_first_state_to_the_last(place: Path) -> None:
    """Replayed without a crash, a log makes what is on the disk."""
    (place / "disk" / "old").write_bytes(bytes(range(200)))
    disk = Disk(place / "disk")
    with mounted(place / "disk", place / "mount", place / "log"):
        mount = place / "mount"
        (mount / "deep" / "deeper").mkdir(parents=True)
        for number in range(5):
            (mount / "deep" / "deeper" / f"{number}").write_bytes(os.urandom(300_000))
        with open(mount / "old", "r+b", buffering=0) as stream:
            stream.seek(150)
            stream.write(b"x" * 100)
            stream.truncate(220)
        os.replace(mount / "deep" / "deeper" / "1", mount / "old")
        os.unlink(mount / "deep" / "deeper" / "2")
    for operation in recorded(place):
        disk.apply(operation)
    assert disk.tree() == Disk(place / "disk").tree()
