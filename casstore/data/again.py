"""Reading an object that isn't as the manifest says: the index may know better. Only then does a dataset open it."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping

from casstore.core.handle import Handle
from casstore.core.read import damaged, read_part
from casstore.errors import CasstoreError, CorruptObjectError
from casstore.identity.keys import key_digest
from casstore.index.holders import holders_of
from casstore.index.objects import object_rows
from casstore.index.readonly import retried
from casstore.index.variants import PartRow
from casstore.model import Stored
from casstore.objects.payload import Layout
from casstore.objects.planes import Bytes

_opening = threading.Lock()


class Again:
    """The second look of one dataset, with a store of its own for each process.

    Args:
        path: of the store.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._pid = 0
        self._handle: Handle | None = None

    def read(self, stored: Stored, layout: Layout, out: Mapping[str, Bytes]) -> Stored:
        """Read what was repacked, healed or only misread; otherwise note the damage.

        Args:
            stored: what is known of the object.
            layout: its tensors.
            out: {name: uint8 [bytes of that tensor]}.

        Returns:
            What is known of it now.

        Raises:
            CorruptObjectError: it can't be served.
        """
        handle = self.opened()
        return retried(lambda: _read(handle, stored, layout, out))

    def keys(self, digest: bytes, recipe: bytes) -> list[str]:
        """What an object is stored under with a recipe: digests of keys, in hex. It is for a message, so that an index
        which can't be read just now only makes it shorter."""
        try:
            with self.opened().index.read() as connection:
                return [key_digest(*key).hex() for key in holders_of(connection, digest) if key[3] == recipe]
        except CasstoreError:
            return []

    def opened(self) -> Handle:
        """The store, open in this process."""
        with _opening:
            if self._handle is None or self._pid != os.getpid():
                self._handle, self._pid = Handle(self._path), os.getpid()
            return self._handle

    def close(self) -> None:
        """Close the store, if it was opened here."""
        handle, self._handle = self._handle, None
        if handle is not None and self._pid == os.getpid():
            handle.close()


def _read(handle: Handle, stored: Stored, layout: Layout, out: Mapping[str, Bytes]) -> Stored:
    for attempt in range(2):
        with handle.index.read() as connection:
            row = object_rows(connection, [stored.digest]).get(stored.digest)
        if row is None:
            raise CorruptObjectError(f"the store doesn't have it any more: {handle.directory.path}")
        known = row.stored
        part = PartRow(known.digest, b"", b"", known.layout, known.codec, known.nbytes, known.xxh3, False, False)
        try:
            read_part(handle, part, layout, out)
        except CorruptObjectError as error:
            if attempt or damaged(handle, known.digest, error) is not None:
                raise
        else:
            return known
    raise AssertionError("the second attempt returns or raises")


def _forget_parent() -> None:
    global _opening
    _opening = threading.Lock()  # a thread of the parent may have held it


os.register_at_fork(after_in_child=_forget_parent)
