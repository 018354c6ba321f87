"""A passthrough file system that writes down, in one order, everything that changes it.

    python recorder.py DISK MOUNT LOG

serves DISK at MOUNT until it gets SIGTERM, says "ready" when it is mounted, and leaves one JSON list per operation in
LOG, with the bytes of the writes behind each other in LOG.data:

    ["create", folder, name, file]    ["mkdir", folder, name, new folder]    ["link", folder, name, file]
    ["unlink", folder, name]          ["rename", folder, name, to folder, to name]
    ["write", file, offset, length]   ["truncate", file, size]    ["fsync", file or folder]    ["mark", text]

Files and folders are inode numbers; a number that is created again is another file. Nothing is flushed here: what a
flush is worth is for the replayer to say. A look at the name `.mark|TEXT` in the top folder leaves a mark: so a program
says, in the same order, what the kernel doesn't tell a FUSE file system (syncfs), and what it has acknowledged.

Lock files and SQLite's shared memory aren't written down: both are worth nothing after a crash, and nobody reads them.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from typing import Any

from mfusepy import FUSE, Operations

MARK = ".mark|"
FREE_BYTES = 512 << 20  # too little for a store's ballast: it would only slow down what is tested
BLOCK = 4096
ENDED_BY_SIGNAL = 8  # what fuse_main returns then


def is_quiet(path: str) -> bool:
    """Whether changes of this file aren't written down."""
    return path.endswith("-shm") or "/locks/" in path


class Recorder(Operations):  # type: ignore[misc]
    """Does everything on the disk, and writes it down once it is done."""

    use_ns = True
    flag_nopath = flag_nullpath_ok = True  # files may be used after their name is gone

    def __init__(self, disk: str, log: str) -> None:
        self._disk = disk
        self._log = open(log, "w", encoding="utf-8")  # noqa: SIM115, `close` does
        self._data = open(log + ".data", "wb")  # noqa: SIM115
        self._quiet: set[int] = set()  # descriptors

    def close(self) -> None:
        self._log.close()
        self._data.close()

    def init(self, path: str) -> None:
        print("ready", flush=True)

    # -- what is written down --------------------------------------------------------------------------------------

    def create(self, path: str, mode: int, flags: int) -> int:
        descriptor = os.open(self._on_disk(path), flags | os.O_CREAT, mode)
        if is_quiet(path):
            self._quiet.add(descriptor)
        else:
            self._tell("create", *self._place(path), os.fstat(descriptor).st_ino)
        return descriptor

    def write(self, path: str | None, data: bytes, offset: int, fh: int) -> int:
        done = os.pwrite(fh, data, offset)
        if fh not in self._quiet:
            self._data.write(data[:done])
            self._tell("write", os.fstat(fh).st_ino, offset, done)
        return done

    def truncate(self, path: str | None, length: int, fh: int | None = None) -> None:
        place = self._on_disk(path) if fh is None and path is not None else fh
        assert place is not None
        os.truncate(place, length)
        if fh not in self._quiet and not (path and is_quiet(path)):
            self._tell("truncate", os.stat(place).st_ino, length)

    def fsync(self, path: str | None, datasync: int, fh: int) -> None:
        if fh not in self._quiet:
            self._tell("fsync", os.fstat(fh).st_ino)

    def fsyncdir(self, path: str | None, datasync: int, fh: int) -> None:
        self._tell("fsync", os.fstat(fh).st_ino)

    def mkdir(self, path: str, mode: int) -> None:
        os.mkdir(self._on_disk(path), mode)
        self._tell("mkdir", *self._place(path), os.stat(self._on_disk(path)).st_ino)

    def link(self, target: str, source: str) -> None:
        os.link(self._on_disk(source), self._on_disk(target))
        self._tell("link", *self._place(target), os.stat(self._on_disk(target)).st_ino)

    def rename(self, old: str, new: str) -> None:
        os.rename(self._on_disk(old), self._on_disk(new))
        self._tell("rename", *self._place(old), *self._place(new))

    def unlink(self, path: str) -> None:
        os.unlink(self._on_disk(path))
        if not is_quiet(path):
            self._tell("unlink", *self._place(path))

    def rmdir(self, path: str) -> None:
        os.rmdir(self._on_disk(path))
        self._tell("unlink", *self._place(path))

    def getattr(self, path: str | None, fh: int | None = None) -> dict[str, Any]:
        if path is not None and path.startswith("/" + MARK):
            self._tell("mark", path[1 + len(MARK) :])
            raise OSError(errno.ENOENT, "a mark")
        found = os.fstat(fh) if fh is not None else os.lstat(self._on_disk(path or "/"))
        names = ("st_mode", "st_ino", "st_nlink", "st_uid", "st_gid", "st_size", "st_blocks", "st_blksize")
        times = {f"st_{name}": getattr(found, f"st_{name}_ns") for name in ("atime", "mtime", "ctime")}
        return {name: getattr(found, name) for name in names} | times

    # -- what isn't ------------------------------------------------------------------------------------------------

    def open(self, path: str, flags: int) -> int:
        descriptor = os.open(self._on_disk(path), flags & ~os.O_CREAT)
        if is_quiet(path):
            self._quiet.add(descriptor)
        return descriptor

    def read(self, path: str | None, size: int, offset: int, fh: int) -> bytes:
        return os.pread(fh, size, offset)

    def release(self, path: str | None, fh: int) -> None:
        self._quiet.discard(fh)
        os.close(fh)

    def opendir(self, path: str) -> int:
        return os.open(self._on_disk(path), os.O_RDONLY | os.O_DIRECTORY)

    def readdir(self, path: str | None, fh: int) -> list[tuple[str, dict[str, int], int]]:
        found = [(name, os.stat(name, dir_fd=fh, follow_symlinks=False)) for name in (".", "..", *os.listdir(fh))]
        # A name with the inode 0, as it would be without these, counts as removed.
        return [(name, {"st_ino": stat.st_ino, "st_mode": stat.st_mode}, 0) for name, stat in found]

    def releasedir(self, path: str | None, fh: int) -> None:
        os.close(fh)

    def chmod(self, path: str, mode: int) -> None:
        os.chmod(self._on_disk(path), mode)

    def chown(self, path: str, uid: int, gid: int) -> None:
        os.chown(self._on_disk(path), uid, gid)

    def utimens(self, path: str, times: tuple[int, int] | None = None) -> None:
        os.utime(self._on_disk(path), ns=times)

    def statfs(self, path: str) -> dict[str, int]:
        blocks = FREE_BYTES // BLOCK
        return {"f_bsize": BLOCK, "f_frsize": BLOCK, "f_blocks": 2 * blocks, "f_bfree": blocks, "f_bavail": blocks}

    def _on_disk(self, path: str) -> str:
        return self._disk + path

    def _place(self, path: str) -> tuple[int, str]:
        """(folder, name) of a path."""
        folder, name = os.path.split(path)
        return os.stat(self._on_disk(folder)).st_ino, name

    def _tell(self, *operation: Any) -> None:
        self._log.write(json.dumps(operation) + "\n")


class Mount(FUSE):  # type: ignore[misc]
    """mfusepy's, but for libfuse 3's truncate, to which it doesn't hand the descriptor."""

    def truncate_fuse_3(self, path: Any, length: int, fip: Any) -> int:
        return int(self.ftruncate(path, length, fip) or 0)


def main() -> None:
    disk, mount, log = sys.argv[1:]
    recorder = Recorder(disk, log)
    fresh = {"attr_timeout": 0, "entry_timeout": 0, "negative_timeout": 0}  # nothing is answered from memory
    try:
        Mount(recorder, mount, foreground=True, nothreads=True, use_ino=True, hard_remove=True, fsname="cut", **fresh)
    except RuntimeError as error:
        if error.args != (ENDED_BY_SIGNAL,):
            raise
    finally:
        recorder.close()


if __name__ == "__main__":
    main()
