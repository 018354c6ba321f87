"""Every write, flush, link, rename and unlink of a store, in one place.

Only this module (and locks.py) changes the file system, so a test can watch the order of operations, let one fail, or
record them all. Errors of the operating system become casstore's own: the message names the path and what to do.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import shutil
import stat
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from casstore.errors import CasstoreError, NoSpaceError, StoreIOError, StorePermissionError

# File systems on which one syncfs makes all earlier writes durable and reports their errors to us (syncfs(2): errors
# are reported since Linux 5.8). Elsewhere each file is flushed by itself.
SYNCFS_FILESYSTEMS = frozenset({"ext4", "xfs", "btrfs", "f2fs", "tmpfs"})
FLUSH_THREADS = 8

FILE_MODE = 0o600
OBJECT_MODE = 0o400
DIRECTORY_MODE = 0o700

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NO_PERMISSION = {errno.EACCES, errno.EPERM, errno.EROFS}
_NO_HARD_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS}


def reason(error: OSError) -> str:
    """What the system said, in words and by its name: "No space left on device [ENOSPC]"."""
    return f"{error.strerror or error} [{errno.errorcode.get(error.errno or 0, error.errno)}]"


def typed(error: OSError, what: str, path: str | os.PathLike[str], needed: int | None = None) -> CasstoreError:
    """The error of casstore's tree for an error of the operating system.

    Args:
        error: what the system said.
        what: the action that failed, as a verb phrase ("write", "flush").
        path: what it was done to.
        needed: how many bytes it wanted to write, where that is known.
    """
    place = os.fspath(path)
    said = reason(error)
    if error.errno in _NO_SPACE:
        free = "" if needed is None else f"; {needed:,} bytes are needed"
        with contextlib.suppress(OSError):
            free += f"; {shutil.disk_usage(os.path.dirname(place) or '.').free:,} bytes are free"
        found: CasstoreError = NoSpaceError(f"can't {what} {place}: {said}{free}. Free some space, or run: casstore gc")
    elif error.errno in _NO_PERMISSION:
        found = StorePermissionError(f"can't {what} {place}: {said}. Check its owner and mode")
    else:
        found = StoreIOError(f"can't {what} {place}: {said}. Check the disk, then try again")
    found.__cause__ = error
    if isinstance(found, OSError):
        found.errno = error.errno
        found.filename = place
    return found


@contextlib.contextmanager
def errors_typed(what: str, path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn an OSError of the block into casstore's own (which are let through)."""
    try:
        yield
    except CasstoreError:
        raise
    except OSError as error:
        raise typed(error, what, path) from error


def write_new(path: str, chunks: Iterable[bytes | memoryview], mode: int = FILE_MODE) -> int:
    """Create the file at `path`, which must not exist, and write all chunks into it; nothing is flushed.

    Returns:
        The number of bytes written, checked against the size that the system reports.

    Raises:
        NoSpaceError, StorePermissionError, StoreIOError: the file is removed again where that is possible.
    """
    pieces = [memoryview(chunk).cast("B") for chunk in chunks]
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            total = 0
            try:
                for view in pieces:
                    total += len(view)
                    while view:  # a write may be short
                        view = view[os.write(descriptor, view) :]
                size = os.fstat(descriptor).st_size
                if size != total:
                    raise OSError(errno.EIO, f"wrote {total} bytes, the file has {size}")
            finally:
                os.close(descriptor)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise
        return total
    except OSError as error:
        raise typed(error, "write", path, sum(len(view) for view in pieces)) from error


def flush_file(path: str) -> None:
    """Make the content of one file, or the names in one directory, durable (fsync)."""
    with errors_typed("flush", path):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def flush_files(paths: Iterable[str]) -> None:
    """fsync many files or directories from a small pool of threads."""
    unique = list(dict.fromkeys(paths))
    if len(unique) <= 1:
        for path in unique:
            flush_file(path)
        return
    with ThreadPoolExecutor(FLUSH_THREADS) as pool:
        for _ in pool.map(flush_file, unique):
            pass


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def flush_filesystem(descriptor: int, path: str) -> None:
    """Make everything written to the file system of `descriptor` so far durable (syncfs).

    The kernel tells an error of writing back once per descriptor, and only to those opened before it: open the
    descriptor before the first write that it is to cover. Never call this again for the same data after it failed.
    """
    if _libc().syncfs(descriptor):  # ctypes releases the GIL
        code = ctypes.get_errno()
        raise typed(OSError(code, os.strerror(code)), "flush", path)


def has_syncfs(path: str) -> bool:
    """Whether `flush_filesystem` can be relied upon at `path`."""
    if not sys.platform.startswith("linux"):
        return False
    release = tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in os.uname().release.split(".")[:2])
    return release >= (5, 8) and filesystem_type(path) in SYNCFS_FILESYSTEMS


MOUNT_TABLE = "/proc/self/mountinfo"


def filesystem_type(path: str) -> str:
    """The type of the mount that holds `path` ("ext4"), or "" where that isn't known."""
    return _mount(path)[0]


_OWN_ID = frozenset({"ext2", "ext3", "ext4", "btrfs", "f2fs", "zfs"})


def filesystem_id(path: str) -> str:
    """What tells the file system at `path` from others, and stays the same when it is mounted again.

    Its own id where it has one that outlives a mount, else type and source of the mount. Never the device number, which
    the kernel deals out anew.
    """
    kind, source = _mount(path)
    if kind in _OWN_ID:
        with errors_typed("look at", path):
            return f"{kind}:{os.statvfs(path).f_fsid:x}"
    return f"{kind}:{source}"


def _mount(path: str) -> tuple[str, str]:
    """(type, source) of the mount that holds `path`; empty where that isn't known."""
    place = os.path.realpath(path)
    best, found = "", ("", "")
    try:
        with open(MOUNT_TABLE, "rb") as lines:
            for line in lines:
                before, _, after = line.partition(b" - ")
                point = _unescaped(before.split(b" ")[4])
                inside = place == point or place.startswith(point.rstrip("/") + "/")
                if inside and len(point) >= len(best):
                    kind, source = after.split(b" ")[:2]
                    best, found = point, (kind.decode(), _unescaped(source))
    except OSError:
        return "", ""
    return found


def _unescaped(field: bytes) -> str:
    """A field of the mount table, where blanks and the like stand as octal escapes."""
    return os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda m: bytes([int(m[1], 8)]), field))


def link(source: str, target: str) -> bool:
    """Give the file a second name, `target`, unless that name is taken.

    Returns:
        False where the file system has no hard links; then nothing was done.
    """
    try:
        os.link(source, target)
    except FileExistsError:
        return True
    except OSError as error:
        if error.errno in _NO_HARD_LINKS:
            return False
        raise typed(error, "link", target) from error
    return True


def rename(source: str, target: str) -> None:
    """Atomically give `source` the name `target`, replacing what is there."""
    with errors_typed("rename", target):
        os.rename(source, target)


def unlink(path: str) -> bool:
    """Remove a name; False if it was gone already."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise typed(error, "remove", path) from error
    return True


def make_directory(path: str) -> None:
    """Create one directory that must not exist yet."""
    with errors_typed("create", path):
        os.mkdir(path, DIRECTORY_MODE)


def make_parents(path: str, *, durable: bool) -> None:
    """Create a directory and all above it that are missing; `durable`: their names as well."""
    missing = []
    place = path
    while not os.path.isdir(place):
        missing.append(place)
        place = os.path.dirname(place)
    with errors_typed("create", path):
        os.makedirs(path, exist_ok=True)
    if durable:
        for made in missing:
            flush_file(os.path.dirname(made))


def remove_tree(path: str) -> None:
    """Remove a directory of ours with all that is in it; what can't be removed stays."""
    with contextlib.suppress(OSError):  # closing a directory may fail as well
        shutil.rmtree(path, ignore_errors=True)


def clock_ns(path: str, device: int) -> int:
    """The time, in ns since 1970, that a new file gets; the wall clock's where `path` isn't on that device.

    Args:
        path: of a file that doesn't exist; it is made and removed.
        device: `st_dev` of the file system that is asked.
    """
    with errors_typed("write", path):
        if os.stat(os.path.dirname(path)).st_dev != device:
            return time.time_ns()
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, FILE_MODE)
        try:
            return os.fstat(descriptor).st_mtime_ns
        finally:
            os.close(descriptor)
            os.unlink(path)


def allocate(path: str, nbytes: int) -> None:
    """Create a file that occupies `nbytes` of the disk."""
    with errors_typed("create", path):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
        try:
            os.posix_fallocate(descriptor, 0, nbytes)
        finally:
            os.close(descriptor)


def will_read(path: str) -> None:
    """Tell the system that a file is about to be read whole, so that its disk may begin; what is wrong shows later."""
    if hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
            finally:
                os.close(descriptor)


def look(path: str) -> os.stat_result | None:
    """The state of what has this name (of a link: its own), or None if there is nothing."""
    try:
        return os.stat(path, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise typed(error, "look at", path) from error


def is_directory(path: str) -> bool:
    """Whether this is a directory, or a link to one. Only an answer of the system counts as a no."""
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError, PermissionError, ValueError):  # ValueError: a name with a NUL
        return False
    except OSError as error:
        raise typed(error, "look at", path) from error


def spelling(path: str) -> str:
    """The path as the file system spells it, where capitals don't count there; else unchanged.

    Args:
        path: absolute.
    """
    swapped = path.swapcase()
    if swapped == path or not same_file(path, swapped):
        return path
    place = "/"
    for part in path.strip("/").split("/"):
        names = names_in(place)
        alike = [name for name in names if name.casefold() == part.casefold()]
        place = os.path.join(place, part if part in names or len(alike) != 1 else alike[0])
    return place


def same_file(path: str, other: str) -> bool:
    """Whether both names belong to one file (device and inode); False if either is missing."""
    a, b = look(path), look(other)
    return a is not None and b is not None and (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino)


def size_of(path: str) -> int | None:
    """The size of a regular file in bytes, or None if there is none under this name."""
    found = look(path)
    return found.st_size if found is not None and stat.S_ISREG(found.st_mode) else None


def names_in(path: str) -> list[str]:
    """The names in a directory."""
    with errors_typed("list", path):
        return os.listdir(path)


def free_bytes(path: str) -> int:
    """Bytes that are free on the disk that holds `path`."""
    with errors_typed("look at", path):
        return shutil.disk_usage(path).free
