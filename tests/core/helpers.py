"""What these folders share: children that talk through pipes, trees to compare, results that are easily told apart."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import signal
import sqlite3
import stat
import tempfile
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

import casstore
from casstore import fsio
from casstore.core.handle import Handle
from casstore.errors import StoreIOError
from casstore.model import suffix

RECIPE = casstore.Recipe("r")
RAW = casstore.Recipe("r", codec="raw")  # the same identity, stored in the other form


class Child:
    """A forked child that runs work(child); both sides `say` and `hear` JSON values; `result` is what work returned."""

    def __init__(self, work: Callable[[Child], Any]) -> None:
        (here, there), (back, forth) = os.pipe(), os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: forking with threads around
            self.pid = os.fork()
        mine = (back, there) if self.pid else (here, forth)
        for descriptor in {here, there, back, forth} - set(mine):
            os.close(descriptor)
        self._in, self._out = os.fdopen(mine[0], "rb"), os.fdopen(mine[1], "wb", buffering=0)
        if not self.pid:
            try:
                self.say({"result": work(self)})
            except BaseException:
                self.say({"failed": traceback.format_exc()})
            finally:
                os._exit(0)  # nothing of the parent's may run here

    def say(self, value: Any = None) -> None:
        self._out.write(json.dumps(value).encode() + b"\n")

    def hear(self) -> Any:
        line = self._in.readline()
        assert line, "the other side is gone"
        value = json.loads(line)
        assert not (isinstance(value, dict) and "failed" in value), value["failed"]
        return value

    def result(self) -> Any:
        value = self.hear()["result"]
        self.end()
        return value

    def end(self, number: int = signal.SIGKILL) -> None:
        if self.pid:
            os.kill(self.pid, number)
            os.waitpid(self.pid, 0)
            self.pid = 0
            self._in.close()
            self._out.close()


@contextlib.contextmanager
def child(work: Callable[[Child], Any]) -> Iterator[Child]:
    """A running child, killed at the end of the block."""
    found = Child(work)
    try:
        yield found
    finally:
        found.end()


def in_child(work: Callable[[], Any]) -> Any:
    """What work() returns in a forked child (a JSON value)."""
    with child(lambda _: work()) as found:
        return found.result()


def outcome(work: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    """The name of the class of what a call raises, or "fine"."""
    try:
        work(*arguments, **options)
    except Exception as error:
        return type(error).__name__
    return "fine"


def mount_tmpfs(path: Path, size: str) -> bool:
    """In a child: mount a tmpfs that only this child sees; False where that isn't allowed."""
    libc = ctypes.CDLL(None, use_errno=True)
    new_mounts, private = 0x20000, 0x44000  # CLONE_NEWNS, MS_REC | MS_PRIVATE
    if libc.unshare(new_mounts) or libc.mount(b"none", b"/", None, private, None):
        return False
    return not libc.mount(b"none", os.fsencode(path), b"tmpfs", 0, b"size=" + size.encode())


def on_a_small_disk(tmp_path: Path, work: Any, size: str = "24m") -> Any:
    """What work(folder) returns in a child, on a disk of its own; skips where mounting isn't allowed."""

    def mounted() -> Any:
        place = tmp_path / "m"
        place.mkdir()
        return [work(place)] if mount_tmpfs(place, size) else None

    found = in_child(mounted)
    if found is None:
        pytest.skip("mounting isn't allowed here")
    return found[0]


def fill(place: Path) -> None:
    """Leave not a byte free."""
    with open(place / "filler", "wb", buffering=0) as stream, contextlib.suppress(OSError):
        for size in (1 << 20, 4096):
            with contextlib.suppress(OSError):
                while True:
                    stream.write(bytes(size))
    assert os.statvfs(place).f_bavail == 0


@contextlib.contextmanager
def fast_folder() -> Iterator[Path]:
    """A temporary folder, in memory where that is possible: making and removing a store costs a quarter there."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as place:
        yield Path(place)


def tree(path: Path) -> dict[str, tuple[str, str]]:
    """{relative path: (mode, digest)} of all that is below a folder. Never of a store that this process has open:
    closing a descriptor of its index would drop SQLite's locks."""
    found = {}
    for place in sorted(path.rglob("*")):
        mode = stat.filemode(place.lstat().st_mode)
        digest = hashlib.sha256(place.read_bytes()).hexdigest() if place.is_file() else ""
        found[str(place.relative_to(path))] = (mode, digest)
    return found


def key(name: str, recipe: casstore.Recipe = RECIPE) -> casstore.Key:
    return casstore.Key.text(name, recipe)


def result(name: str, size: int = 16) -> dict[str, Any]:
    """Tensors and values that depend on a name."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little")
    return {"t": np.random.default_rng(seed).standard_normal(size), "from": name}


def put(store: casstore.Store, *names: str, **results: dict[str, Any]) -> None:
    """Store results in one group: result(name) for names, others as given."""
    with store.batch() as batch:
        for name in names:
            batch.put(key(name), result(name))
        for name, made in results.items():
            batch.put(key(name), made)


def get(store: casstore.Store, name: str) -> dict[str, Any] | str:
    """What is stored under a name, as plain lists, or why it is missed."""
    try:
        return plain(store.get(key(name), as_numpy=True))
    except casstore.errors.MissError as error:
        assert error.miss is not None
        return error.miss.reason


def plain(found: dict[str, Any]) -> dict[str, Any]:
    """A result with lists for arrays, for comparing with ==."""
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in found.items()}


def expect(name: str) -> dict[str, Any]:
    """What `get` returns for a stored result(name)."""
    return plain(result(name))


def object_file(store: casstore.Store, name: str) -> Path:
    """The only object file of a stored name, in whichever form."""
    hit = store.lookup(key(name))
    assert isinstance(hit, casstore.Hit), hit
    (digest,) = hit.digests
    (codec,) = sql(store, "SELECT codec FROM objects WHERE digest = ?", bytes.fromhex(digest))[0]
    return Path(store.path, "objects", digest[:2], digest + suffix(codec))


def overwrite(path: Path, data: bytes) -> None:
    """Change an object file in place, as a bad disk would."""
    path.chmod(0o600)
    path.write_bytes(data)
    path.chmod(0o400)


def flipped(data: bytes, position: int, bit: int = 0) -> bytes:
    return data[:position] + bytes([data[position] ^ (1 << bit)]) + data[position + 1 :]


def sql(store: casstore.Store | str | os.PathLike[str], statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
    """Run a statement on the index behind the store's back, with no check in the way."""
    path = store.path if isinstance(store, casstore.Store) else store
    with contextlib.closing(sqlite3.connect(Path(path, "index.sqlite"), isolation_level=None)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = 1")
        return connection.execute(statement, parameters).fetchall()


def handle_of(store: casstore.Store) -> Handle:
    return store._handle


def failing(patch: pytest.MonkeyPatch, name: str, failures: Collection[int], error: Any = StoreIOError) -> list[str]:
    """Let some calls (counted from 0) of a function of fsio fail; returns the list of paths that it was called with."""
    real, calls = getattr(fsio, name), []

    def call(*arguments: Any) -> Any:
        calls.append(arguments[-1])
        if len(calls) - 1 in failures:
            raise error("the disk is bad")
        return real(*arguments)

    patch.setattr(fsio, name, call)
    return calls


def temps(store: casstore.Store) -> list[str]:
    return os.listdir(Path(store.path, "tmp"))


def examples(number: int) -> int:
    """A number of hypothesis examples; the nightly profile takes 20 times as many."""
    return number * settings.default.max_examples // 100
