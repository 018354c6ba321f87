"""Reading a source: its bytes, the state it was in, and what it is."""

from __future__ import annotations

import mmap
import os
import stat
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from casstore import fsio
from casstore.errors import CasstoreError, PictureError, SourceNotFoundError
from casstore.identity.digests import file_digest, new_file_hasher
from casstore.index.sources import Stat
from casstore.model import Content
from casstore.sources.images import read_header

CHUNK = 1 << 20  # bytes per read; it stays in the cache until it is hashed

Probe = Callable[[str], Mapping[str, Any]]
"""probe(path) -> any of width, height (pixels), frames, rate (per second) of a file that isn't a picture"""

_MEASURES = {"width": int, "height": int, "frames": int, "rate": float}


@dataclass(frozen=True, slots=True)
class Source:
    """A file as it was read: its bytes, its state before the reading began, and its content."""

    data: bytes
    stat: Stat
    content: Content


def read_source(path: str) -> Source:
    """Read a file whole, hash it, and look at its header, all from the same bytes.

    The state is taken from the open file before the first byte is read: whatever is written later shows in it.

    Raises:
        SourceNotFoundError: it can't be read.
    """
    with Opened(path) as file:
        data = file.read()
    return Source(data, file.stat, picture_content(data))


def hash_source(path: str, probe: Probe | None = None) -> Source:
    """Hash a file of any kind and length without keeping its bytes (`data` is empty).

    Args:
        path: of the file.
        probe: looks at it for what its bytes don't tell; what it raises becomes a note.

    Raises:
        SourceNotFoundError: it can't be read.
    """
    hasher = new_file_hasher()
    buffer = _buffer.memory
    nbytes = 0
    with Opened(path) as file:
        while count := file.read_into(buffer):
            hasher.update(buffer[:count])
            nbytes += count
    return Source(b"", file.stat, Content("file", hasher.digest(), nbytes, **_probed(path, probe)))


class _Buffer(threading.local):
    def __init__(self) -> None:
        # At the beginning of a page: some processors copy at an eighth of the speed to 1 to 31 bytes behind it, where
        # a bytearray usually lies.
        self.memory = memoryview(mmap.mmap(-1, CHUNK))


_buffer = _Buffer()


class Opened:
    """A regular file, open for reading in a `with` block. (A file object takes longer to make than a small file to
    read, and a generator's block half as long.)

    Attributes:
        stat: its state before anything was read.

    Raises:
        SourceNotFoundError: also for errors of reading in the block.
    """

    __slots__ = ("_descriptor", "_path", "stat")

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> Opened:
        try:
            # Not blocking: a named pipe would otherwise wait for its writer for ever.
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                state = os.fstat(self._descriptor)
                if not stat.S_ISREG(state.st_mode):
                    raise SourceNotFoundError(f"can't read {self._path}: it isn't a regular file")
            except BaseException:
                os.close(self._descriptor)
                raise
        except OSError as error:
            raise self._typed(error) from error
        self.stat = Stat.of(state)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            os.close(self._descriptor)
        except OSError as closing:
            error = error or closing
        if isinstance(error, OSError):
            raise self._typed(error) from error

    def read(self) -> bytes:
        """All bytes that haven't been read."""
        parts = [os.read(self._descriptor, self.stat.size + 1)]
        while parts[-1]:
            parts.append(os.read(self._descriptor, CHUNK))
        return parts[0] if len(parts) <= 2 else b"".join(parts)

    def read_into(self, buffer: memoryview) -> int:
        """Read what comes next into a buffer, as far as it goes; 0 at the end."""
        return os.readv(self._descriptor, (buffer,))

    def _typed(self, error: OSError) -> OSError:
        if isinstance(error, CasstoreError):
            return error
        return SourceNotFoundError(f"can't read {self._path}: {fsio.reason(error)}")


def _probed(path: str, probe: Probe | None) -> dict[str, Any]:
    if probe is None:
        return {}
    try:
        found = probe(path)
        measures = {name: kind(found[name]) for name, kind in _MEASURES.items() if found.get(name) is not None}
        for name, value in measures.items():
            if not 0 <= value < 1 << 63:  # nor is NaN
                raise ValueError(f"{name} can't be {value}")
        return measures
    except Exception as error:  # a stranger's code
        return {"note": f"can't be probed: {type(error).__name__}: {error}"}


def picture_content(data: bytes) -> Content:
    """The content of a file that should be a picture; a refused header is a note, not an error."""
    digest = file_digest(data)
    try:
        header = read_header(data)
    except PictureError as error:
        return Content("file", digest, len(data), note=str(error))
    return Content("file", digest, len(data), header.width, header.height, header.orientation, header.note or None)
