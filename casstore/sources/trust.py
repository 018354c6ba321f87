"""Trust: known files are believed to be unchanged, and folders in which no name has changed aren't even listed."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping

from casstore.core.handle import Handle
from casstore.identity.digests import signed
from casstore.index.directories import DirectoryRow
from casstore.index.sources import names_in


class Trusting:
    """What needn't be looked at, by the index (see `walk.Trust`).

    Args:
        handle: the open store.
        directories: {relpath: row} of what is known.

    Attributes:
        files: how many were in folders that weren't listed.
    """

    def __init__(self, handle: Handle, directories: Mapping[str, DirectoryRow]) -> None:
        self._handle, self._directories = handle, directories
        self.files = 0

    def children(self, relpath: str, state: os.stat_result) -> list[str] | None:
        """The sub-directories of a directory in which no name has changed; None: it has to be listed."""
        row = self._directories.get(relpath)
        if row is None or row.print is None:
            return None
        if (row.print.mtime_ns, row.print.inode) != (state.st_mtime_ns, signed(state.st_ino)):
            return None
        self.files += row.print.files
        return self._below.get(relpath, [])

    def names(self, relpath: str) -> frozenset[str]:
        """The files of a directory that needn't be looked at."""
        row = self._directories.get(relpath)
        if row is None:
            return frozenset()
        with self._handle.index.glance() as connection:
            return frozenset(source.name for source in names_in(connection, row.id) if source.served)

    @functools.cached_property
    def _below(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for relpath in self._directories:
            if relpath:
                found.setdefault(os.path.dirname(relpath), []).append(relpath)
        return found
