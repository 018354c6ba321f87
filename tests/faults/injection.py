"""Faults on purpose: each call that Python makes on files below a folder is recorded, and the n-th can be made to fail.

    with Faults(folder) as faults:                                     # only records
        work()
    with Faults(folder, Fault(7, "ENOSPC", for_ever=True)) as faults:  # call 7, and all later ones that can fail so
        work()
    with Faults(folder, rule=lambda name, path: "EIO" if name == "read" else "") as faults:
        work()

The functions of `os` (and `open`, `flock`, `syncfs`) are replaced as long as the block lasts, so that the calls of
shutil and os.path count as well. SQLite makes its own system calls; for those there is test_binary.py.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import errno
import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from casstore import fsio

SHORT = "short"  # no error: a write that takes only half of what it is given
_CHANGES = ("ENOSPC", "EIO", "EINTR", "EDQUOT", "EROFS")
FITTING: dict[str, tuple[str, ...]] = {
    "create": (*_CHANGES, "EMFILE"),
    "open": ("EIO", "EINTR", "EMFILE"),
    "read": ("EIO", "EINTR"),
    "write": ("ENOSPC", "EIO", "EINTR", "EDQUOT", SHORT),
    "flush": ("EIO", "ENOSPC", "EDQUOT", "EINTR", "EROFS"),
    "link": (*_CHANGES, "EPERM", "EMLINK"),
    "rename": _CHANGES,
    "unlink": ("EIO", "EINTR", "EROFS"),
    "mkdir": _CHANGES,
    "stat": ("EIO", "EINTR"),
    "list": ("EIO", "EINTR", "EMFILE"),
    "close": ("EIO", "EINTR", "ENOSPC", "EDQUOT"),
    "truncate": ("EIO", "EINTR", "EROFS"),
    "allocate": ("ENOSPC", "EIO", "EINTR", "EDQUOT"),
    "space": ("EIO", "EINTR"),
    "access": ("EIO", "EROFS"),
    "lock": ("EIO", "EINTR", "ENOLCK"),
}
"""{call: how it can fail}"""


@dataclass(frozen=True, slots=True)
class Fault:
    """What is to happen: `error` (a name of errno, or SHORT) at the call with this number; `for_ever`: and at every
    later one that can fail in this way, as on a disk that is full or broken; `only`: of this name."""

    number: int
    error: str
    for_ever: bool = False
    only: str = ""


Rule = Callable[[str, str], str]
"""rule(call, path) -> the error that this call is to fail with, or "" """


@dataclass(frozen=True, slots=True)
class Call:
    """A call that was made: on which path (for `link` and `rename`, `other` is the new name), and how it failed."""

    name: str
    path: str
    other: str = ""
    opened: int = 0  # which opening of a file this belongs to; 0: none
    error: str = ""
    whole: bool = False  # a flush of the whole file system


class Faults:
    """A context manager; see above. `calls`: what was done so far. `hit`: which calls failed."""

    def __init__(self, folder: Path, fault: Fault | None = None, *, rule: Rule | None = None) -> None:
        self.folder = str(folder)
        self.calls: list[Call] = []
        self.fault = fault
        self._rule = rule
        self.hit: set[str] = set()
        self._lock = threading.Lock()
        self._count = 0
        self._openings = 0
        self._open: dict[int, tuple[str, int]] = {}  # descriptor -> path, number of the opening
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> Faults:
        for name, replacement in self._replacements():
            place: Any = {"open_": builtins, "flock": fcntl, "_libc": fsio}.get(name, os)
            attribute = name.rstrip("_")
            self._undo.callback(setattr, place, attribute, getattr(place, attribute))
            setattr(place, attribute, replacement)
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    # -- one call --------------------------------------------------------------------------------------------------

    def _call(
        self, name: str, path: str, real: Callable[[], Any], *, other: str = "", opened: int = 0, whole: bool = False
    ) -> Any:
        """Make a call, or let it fail; either way it is recorded."""
        with self._lock:
            number, self._count = self._count, self._count + 1
            code = self._due(name, number) if self._rule is None else self._rule(name, path)
            self.hit |= {name} if code else set()
        error = code
        try:
            if code:
                raise OSError(getattr(errno, code), os.strerror(getattr(errno, code)), path)
            return real()
        except OSError as raised:
            error = errno.errorcode.get(raised.errno or 0, "?")
            raise
        finally:
            with self._lock:
                self.calls.append(Call(name, path, other, opened, error, whole))

    def _due(self, name: str, number: int) -> str:
        """The error that this call is to fail with; "" if it isn't."""
        fault = self.fault
        if fault is None or fault.error == SHORT or number < fault.number:
            return ""
        again = fault.for_ever and fault.error in FITTING[name] and fault.only in ("", name)
        if number > fault.number and not again:
            return ""
        return fault.error

    def _allowed(self, nbytes: int) -> int:
        """How many bytes the write that comes now may take."""
        fault = self.fault
        if fault is None or fault.error != SHORT or nbytes < 2 or self._count < fault.number:
            return nbytes
        if self.hit and not fault.for_ever:
            return nbytes
        self.hit.add("write")
        return nbytes // 2

    def _where(self, place: Any, dir_fd: int | None = None) -> str | None:
        """The path of what is named, if it is ours."""
        if isinstance(place, int):
            return self._open[place][0] if place in self._open else None
        path = os.fsdecode(place)
        if dir_fd is not None:
            if dir_fd not in self._open:
                return None
            path = os.path.join(self._open[dir_fd][0], path)
        ours = path == self.folder or path.startswith(self.folder + "/") or path == fsio.MOUNT_TABLE
        return path if ours else None

    # -- what stands in for the functions of `os` ------------------------------------------------------------------

    def _replacements(self) -> Iterator[tuple[str, Callable[..., Any]]]:
        for name, call in {
            "stat": "stat",
            "lstat": "stat",
            "fstat": "stat",
            "unlink": "unlink",
            "rmdir": "unlink",
            "mkdir": "mkdir",
            "listdir": "list",
            "scandir": "list",
            "ftruncate": "truncate",
            "posix_fallocate": "allocate",
            "statvfs": "space",
        }.items():
            yield name, self._plain(call, getattr(os, name))
        yield "link", self._two("link", os.link)
        yield "rename", self._two("rename", os.rename)
        yield "replace", self._two("rename", os.replace)
        yield "open", self._os_open(os.open)
        yield "close", self._os_close(os.close)
        yield "write", self._write(os.write)
        yield "pwrite", self._write(os.pwrite)
        yield "read", self._read(os.read)
        yield "readv", self._read(os.readv)
        yield "fsync", self._fsync(os.fsync)
        yield "access", self._access(os.access)
        yield "fdopen", self._stream(os.fdopen, "open")
        yield "open_", self._stream(builtins.open, "open")
        yield "flock", self._flock(fcntl.flock)
        yield "_libc", self._syncfs(fsio._libc)

    def _plain(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(place: Any = ".", *arguments: Any, dir_fd: int | None = None, **options: Any) -> Any:
            path = self._where(place, dir_fd)
            if dir_fd is not None:
                options["dir_fd"] = dir_fd
            if path is None:
                return real(place, *arguments, **options)
            return self._call(name, path, lambda: real(place, *arguments, **options))

        return call

    def _two(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(source: Any, target: Any, **options: Any) -> Any:
            path = self._where(source)
            if path is None:
                return real(source, target, **options)
            return self._call(name, path, lambda: real(source, target, **options), other=os.fsdecode(target))

        return call

    def _os_open(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(place: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            path = self._where(place, dir_fd)
            if path is None:
                return int(real(place, flags, mode, dir_fd=dir_fd))
            with self._lock:
                self._openings += 1
                opening = self._openings
            name = "create" if flags & os.O_CREAT else "open"
            found = int(self._call(name, path, lambda: real(place, flags, mode, dir_fd=dir_fd), opened=opening))
            self._open[found] = (path, opening)
            return found

        return call

    def _os_close(self, real: Callable[[int], None]) -> Callable[[int], None]:
        def call(descriptor: int) -> None:
            path, opened = self._open.pop(descriptor, ("", 0))
            real(descriptor)  # Linux gives the descriptor back also when it reports an error
            if path:
                self._call("close", path, lambda: None, opened=opened)

        return call

    def _write(self, real: Callable[..., int]) -> Callable[..., int]:
        def call(descriptor: int, data: Any, *offset: int) -> int:
            path, opened = self._open.get(descriptor, ("", 0))
            if not path:
                return real(descriptor, data, *offset)
            part = memoryview(data)[: self._allowed(len(data))]
            return int(self._call("write", path, lambda: real(descriptor, part, *offset), opened=opened))

        return call

    def _read(self, real: Callable[[int, Any], Any]) -> Callable[[int, Any], Any]:
        def call(descriptor: int, wanted: Any) -> Any:
            path, opened = self._open.get(descriptor, ("", 0))
            if not path:
                return real(descriptor, wanted)
            return self._call("read", path, lambda: real(descriptor, wanted), opened=opened)

        return call

    def _fsync(self, real: Callable[[int], None]) -> Callable[[int], None]:
        def call(descriptor: int) -> None:
            path, opened = self._open.get(descriptor, ("", 0))
            if not path:
                return real(descriptor)
            return self._call("flush", path, lambda: real(descriptor), opened=opened)

        return call

    def _access(self, real: Callable[..., bool]) -> Callable[..., bool]:
        def call(place: Any, mode: int, **options: Any) -> bool:
            path = self._where(place)
            if path is None:
                return real(place, mode, **options)
            try:
                return bool(self._call("access", path, lambda: real(place, mode, **options)))
            except OSError:
                return False  # as the real one answers

        return call

    def _flock(self, real: Callable[[int, int], None]) -> Callable[[int, int], None]:
        def call(descriptor: int, operation: int) -> None:
            path, opened = self._open.get(descriptor, ("", 0))
            if not path or operation & fcntl.LOCK_UN:  # giving a lock back can't fail
                return real(descriptor, operation)
            return self._call("lock", path, lambda: real(descriptor, operation), opened=opened)

        return call

    def _syncfs(self, real: Callable[[], ctypes.CDLL]) -> Callable[[], Any]:
        def syncfs(descriptor: int) -> int:
            path, opened = self._open.get(descriptor, ("", 0))
            if not path:
                return int(real().syncfs(descriptor))

            def flush() -> int:
                if real().syncfs(descriptor):
                    raise OSError(ctypes.get_errno(), "syncfs")
                return 0

            try:
                return int(self._call("flush", path, flush, opened=opened, whole=True))
            except OSError as error:
                ctypes.set_errno(error.errno or 0)
                return -1

        library = type("Library", (), {"syncfs": staticmethod(syncfs)})()
        return lambda: library

    def _stream(self, real: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(place: Any, *arguments: Any, **options: Any) -> Any:
            path = self._where(place)
            if path is None:
                return real(place, *arguments, **options)
            if isinstance(place, int):
                return _Stream(self, path, real(place, *arguments, **options), place)
            return _Stream(self, path, self._call(name, path, lambda: real(place, *arguments, **options)), -1)

        return call


class _Stream:
    """A file object whose reads and whose end are calls like others."""

    def __init__(self, faults: Faults, path: str, stream: Any, descriptor: int) -> None:
        self.faults, self._path, self._stream, self._descriptor = faults, path, stream, descriptor

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._stream, name)
        if not name.startswith("read"):
            return found
        return lambda *arguments: self.faults._call("read", self._path, lambda: found(*arguments))

    def __iter__(self) -> Iterator[Any]:
        return iter(self.faults._call("read", self._path, self._stream.readlines))

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.faults._open.pop(self._descriptor, None)
        self._stream.close()
        self.faults._call("close", self._path, lambda: None)
