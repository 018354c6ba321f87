"""Files that the encoder opens itself: hashed in pieces before, and looked at again after."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from casstore import fsio
from casstore.core.handle import Handle
from casstore.errors import SourceNotFoundError
from casstore.index.sources import Stat, find_source
from casstore.sources import fresh
from casstore.sources.clock import is_settled
from casstore.sources.read import hash_source


@dataclass(frozen=True, slots=True)
class Opaque:
    """A file in the state in which it was hashed.

    Attributes:
        path: the file.
        digest: of its bytes.
        stat: its state before the first of them was read.
        settled: it was old enough then for its times to tell any later change.
        ctime, inode: whether these count.
    """

    path: str
    digest: bytes
    stat: Stat
    settled: bool
    ctime: bool
    inode: bool

    def unchanged(self) -> bool:
        """Whether the file still holds what was hashed, as far as its times tell; one too young for that is hashed
        again."""
        try:
            if not self.stat.agrees(Stat.of(os.stat(self.path)), ctime=self.ctime, inode=self.inode):
                return False
            return self.settled or hash_source(self.path).content.digest == self.digest
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
    with handle.index.glance() as connection:
        row = find_source(connection, path)
    ctime, inode = fresh.what_counts(handle)
    if row is None or not row.settled or row.content is None or not row.stat.agrees(state, ctime=ctime, inode=inode):
        return hash_file(path, ctime=ctime, inode=inode)
    return Opaque(path, row.content.digest, state, True, ctime, inode)


def hash_file(path: str, *, ctime: bool = True, inode: bool = True) -> Opaque:
    """Hash a file piece by piece; `ctime` and `inode`: whether these count.

    Raises:
        SourceNotFoundError: it can't be read.
    """
    now = time.time_ns()
    source = hash_source(path)
    settled = is_settled(source.stat, now, ctime=ctime)
    return Opaque(path, source.content.digest, source.stat, settled, ctime, inode)
