"""Files that the encoder opens itself: hashed in pieces before, and looked at again after."""

from __future__ import annotations

import os
import stat
import time
from dataclasses import dataclass

from blake3 import blake3

from casstore import fsio
from casstore.core.handle import Handle
from casstore.errors import SourceNotFoundError
from casstore.index.sources import Stat, find_source
from casstore.sources.read import is_settled

PIECE = 1 << 20  # bytes; such files are larger than memory at times


@dataclass(frozen=True, slots=True)
class Opaque:
    """A file in the state in which it was hashed.

    Attributes:
        path: the file.
        digest: of its bytes.
        stat: its state before the first of them was read.
        settled: it was old enough then for its times to tell any later change.
    """

    path: str
    digest: bytes
    stat: Stat
    settled: bool

    def unchanged(self) -> bool:
        """Whether the file still holds what was hashed, as far as its times tell; one too young for that is hashed
        again."""
        try:
            if Stat.of(os.stat(self.path)) != self.stat:
                return False
            return self.settled or hash_file(self.path).digest == self.digest
        except (OSError, SourceNotFoundError):
            return False


def look(handle: Handle, path: str) -> Opaque:
    """The present state of a file; it is read only if it isn't in the state of the last scan.

    Raises:
        SourceNotFoundError: it can't be read.
    """
    try:
        state = Stat.of(os.stat(path))
    except OSError as error:
        raise SourceNotFoundError(f"can't read {path}: {fsio.reason(error)}") from error
    with handle.index.read() as connection:
        row = find_source(connection, path)
    if row is not None and row.settled and row.content is not None and row.stat == state:
        return Opaque(path, row.content.digest, state, True)
    return hash_file(path)


def hash_file(path: str) -> Opaque:
    """Hash a file piece by piece.

    Raises:
        SourceNotFoundError: it can't be read.
    """
    now = time.time_ns()
    try:
        # Not blocking: a named pipe would otherwise wait for its writer for ever.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0) as stream:
            found = os.fstat(stream.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise SourceNotFoundError(f"can't read {path}: it isn't a regular file")
            hasher = blake3()
            while piece := stream.read(PIECE):
                hasher.update(piece)
    except SourceNotFoundError:
        raise
    except OSError as error:
        raise SourceNotFoundError(f"can't read {path}: {fsio.reason(error)}") from error
    state = Stat.of(found)
    return Opaque(path, hasher.digest(), state, is_settled(state, now))
