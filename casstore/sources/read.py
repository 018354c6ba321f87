"""Reading a source: its bytes, the state it was in, and what it is."""

from __future__ import annotations

import contextlib
import io
import mmap
import os
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
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
    with opened(path) as stream:
        state = Stat.of(os.fstat(stream.fileno()))
        data = stream.readall()
    return Source(data, state, picture_content(data))


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
    with opened(path) as stream:
        state = Stat.of(os.fstat(stream.fileno()))
        nbytes = 0
        while count := stream.readinto(buffer):
            hasher.update(buffer[:count])
            nbytes += count
    return Source(b"", state, Content("file", hasher.digest(), nbytes, **_probed(path, probe)))


class _Buffer(threading.local):
    def __init__(self) -> None:
        # At the beginning of a page: some processors copy at an eighth of the speed to 1 to 31 bytes behind it, where
        # a bytearray usually lies.
        self.memory = memoryview(mmap.mmap(-1, CHUNK))


_buffer = _Buffer()


@contextlib.contextmanager
def opened(path: str) -> Iterator[io.FileIO]:
    """A regular file, open for reading.

    Raises:
        SourceNotFoundError: also for errors of reading in the block.
    """
    try:
        # Not blocking: a named pipe would otherwise wait for its writer for ever.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0) as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise SourceNotFoundError(f"can't read {path}: it isn't a regular file")
            yield stream
    except OSError as error:
        if isinstance(error, CasstoreError):
            raise
        raise SourceNotFoundError(f"can't read {path}: {fsio.reason(error)}") from error


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
