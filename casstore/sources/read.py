"""Reading a source: its bytes, the state it was in, and what it is."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass

from casstore import fsio
from casstore.errors import PictureError, SourceNotFoundError
from casstore.identity.digests import file_digest
from casstore.index.sources import Stat
from casstore.model import Content
from casstore.sources.images import read_header

SETTLED_AFTER_NS = (
    2_000_000_000  # a file written this shortly before it was looked at may change in the same clock tick
)


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
    try:
        # Not blocking: a named pipe would otherwise wait for its writer for ever.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0) as stream:
            found = os.fstat(stream.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise SourceNotFoundError(f"can't read {path}: it isn't a regular file")
            data = stream.readall()
    except SourceNotFoundError:
        raise
    except OSError as error:
        raise SourceNotFoundError(f"can't read {path}: {fsio.reason(error)}") from error
    return Source(data, Stat.of(found), picture_content(data))


def picture_content(data: bytes) -> Content:
    """The content of a file that should be a picture; a refused header is a note, not an error."""
    digest = file_digest(data)
    try:
        header = read_header(data)
    except PictureError as error:
        return Content("file", digest, len(data), note=str(error))
    return Content("file", digest, len(data), header.width, header.height, header.orientation, header.note or None)


def is_settled(state: Stat, now_ns: int) -> bool:
    """Whether a file is old enough, at the time it was looked at, for its times to tell a later change.

    The racy rule: a change within the resolution of the clock, or under a clock that ran ahead, leaves no trace in the
    times, so such a file is hashed again next time.
    """
    return max(state.mtime_ns, state.ctime_ns) + SETTLED_AFTER_NS < now_ns
