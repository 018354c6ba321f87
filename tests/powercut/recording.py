"""Running a workload on the recording file system, in a process of its own, and what it says there.

A workload is a function of (path of the store, `Told`). It runs in a forked child, which alone sees patches; forced to
take the path with syncfs (which a FUSE mount isn't trusted with) unless `syncfs=False`.
"""

from __future__ import annotations

import ctypes.util
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from core.helpers import in_child, key, result
from powercut.checks import STORE
from powercut.crashes import Operation, read_log

from casstore import fsio
from casstore.core.results import check_result

RECORDER = Path(__file__).with_name("recorder.py")
MARK = ".mark|"


def why_not() -> str | None:
    """Why nothing can be recorded here, or None."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "there is no /dev/fuse that we may use"
    if importlib.util.find_spec("mfusepy") is None:
        return "mfusepy isn't installed"
    if ctypes.util.find_library("fuse3") is None or shutil.which("fusermount3") is None:
        return "libfuse isn't installed: apt-get install fuse3"
    return None


class Told:
    """What a workload acknowledges; outside of the recording file system this has no effect."""

    def __init__(self, top: str) -> None:
        self._top = top

    def stored(self, *names: str, made: dict[str, Any] | None = None) -> None:
        """These names are stored, for good, with result(name), or what was made."""
        for name in names:
            self.holds(content_of(name), object_of(name, made))

    def holds(self, content: str, name: str) -> None:
        """What was made of a content is this object, for good; both by their digests in hex."""
        self._mark("stored", content, name)

    def going(self, *names: str) -> None:
        """From now on these names may be there or not."""
        for name in names:
            self._mark("going", content_of(name))

    def gone(self, *names: str) -> None:
        """These names are forgotten, for good."""
        for name in names:
            self._mark("gone", content_of(name))

    def begins(self) -> None:
        """What a crash before this may leave is of no interest."""
        self._mark("begins", "")

    def watch_syncfs(self) -> None:
        """Leave a mark before and after each syncfs: the kernel doesn't tell a FUSE file system of them."""
        flush = fsio.flush_filesystem

        def flush_filesystem(descriptor: int, path: str) -> None:
            whose = f"{os.getpid()}-{threading.get_ident()}"
            self._mark("syncfs", whose, "begins")
            flush(descriptor, path)
            self._mark("syncfs", whose, "ends")

        fsio.flush_filesystem = flush_filesystem

    def _mark(self, *words: str) -> None:
        os.path.lexists(os.path.join(self._top, MARK + "|".join(words)))


def content_of(name: str) -> str:
    """The digest of what a name's key is of, in hex."""
    return key(name).primary.digest.hex()


def object_of(name: str, made: dict[str, Any] | None = None) -> str:
    """The digest of the object that result(name), or what was made, becomes, in hex."""
    (part,) = check_result(key(name), result(name) if made is None else made).parts
    return part.payload.digest.hex()


Workload = Callable[[str, Told], Any]


@contextmanager
def mounted(disk: Path, mount: Path, log: Path) -> Iterator[None]:
    """The recording file system at `mount`, while the block lasts; then the log is complete."""
    process = subprocess.Popen([sys.executable, RECORDER, disk, mount, log], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        with process:  # closes the pipe, and waits
            pass


def record(
    folder: Path, workload: Workload, *, syncfs: bool = True, patch: Callable[[], None] | None = None
) -> list[Operation]:
    """The log of a workload that ran on the store in folder/disk, seen through folder/mount.

    Args:
        folder: has the folder disk, and in it the store.
        workload: what is done.
        syncfs: take the path with syncfs; otherwise each file is flushed by itself.
        patch: changes casstore in the workload's process before it runs.
    """
    mount = folder / "mount"
    mount.mkdir()

    def work() -> None:
        warnings.simplefilter("ignore")
        told = Told(str(mount))
        told.watch_syncfs()
        fsio.has_syncfs = lambda _: syncfs
        if patch is not None:
            patch()
        workload(str(mount / STORE), told)

    with mounted(folder / "disk", mount, folder / "log"):
        in_child(work)
    return read_log(folder / "log")
