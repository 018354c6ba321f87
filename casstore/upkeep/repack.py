"""Changing the stored form of objects, online: the payload, and with it the name, stays what it is.

The new file is durable under its name before the row speaks of it, and the old one goes after the commit. So at any
instant the row's file is there; a crash leaves a file that no row speaks of, which gc removes. A reader that comes
between the commit and his open finds no file, looks again and takes the new one.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence

from casstore import fsio
from casstore.core.handle import Handle
from casstore.core.publish import Temp, make_durable, place, remove, stage
from casstore.core.put import GROUP_BYTES, GROUP_OBJECTS
from casstore.core.read import damaged
from casstore.errors import CorruptObjectError, StoreBusyError, StoreIOError, StorePermissionError, UsageError
from casstore.index.objects import NewObject, ObjectRow, object_rows, objects_after, save_form
from casstore.locks import FileLock
from casstore.model import CODECS, Codec, RepackReport
from casstore.objects.files import read_file
from casstore.objects.stored import decode
from casstore.objects.tensors import Payload, payload_digest

CHUNK = 500


def repack(
    handle: Handle, codec: Codec, *, yes: bool = False, progress: Callable[[int], None] | None = None
) -> RepackReport:
    """Store every object in one form; see `Store.repack`."""
    handle.check_writable()
    if codec not in CODECS:
        raise UsageError(f"there is no codec {codec!r}; use {' or '.join(map(repr, CODECS))}")
    lock = FileLock(handle.directory.lock("gc"))
    if not lock.try_acquire():
        raise StoreBusyError(f"a gc or repack is running on {handle.directory.path}; try again when it is done")
    try:
        return _Repack(handle, codec, yes, progress).run()
    finally:
        lock.release()


class _Repack:
    def __init__(self, handle: Handle, codec: Codec, yes: bool, progress: Callable[[int], None] | None) -> None:
        self._handle, self._codec, self._yes, self._progress = handle, codec, yes, progress
        self._seen = self._done = self._damaged = self._before = self._after = 0

    def run(self) -> RepackReport:
        started = time.monotonic()
        after = b""
        while True:
            with self._handle.index.read() as connection:
                rows = objects_after(connection, after, CHUNK)
            if not rows:
                break
            after = rows[-1].digest
            others = [row for row in rows if row.live and row.codec != self._codec]
            self._seen += len(others)
            if self._yes:
                for group in _groups(others):
                    self._change(group)
            else:
                self._before += sum(row.stored_bytes for row in others)
        seconds = time.monotonic() - started
        return RepackReport(self._codec, self._seen, self._done, self._damaged, self._before, self._after, seconds)

    def _change(self, rows: Sequence[ObjectRow]) -> None:
        """Give a group of objects its new form, in one commit."""
        handle = self._handle
        temps: dict[bytes, Temp] = {}
        try:
            with handle.open_for_flush() as flusher:
                for row in rows:
                    payload = self._read(row)
                    if payload is not None:
                        temps[row.digest] = stage(handle, payload, self._codec)
                make_durable(handle, flusher, temps.values())
                changed: list[tuple[ObjectRow, NewObject]] = []
                with handle.index.write() as connection:
                    now = object_rows(connection, list(temps))
                    for digest, temp in temps.items():
                        current = now.get(digest)
                        if current is None or not current.live or current.codec == self._codec:
                            continue  # swept, found damaged or healed meanwhile
                        place(handle, flusher, temp, None)
                        changed.append((current, temp.row))
                    save_form(connection, [new for _, new in changed])
            self._remove([old for old, _ in changed])
            for old, new in changed:
                self._before += old.stored_bytes
                self._after += new.stored.nbytes
            self._done += len(changed)
            if self._progress is not None:
                self._progress(self._done)
        finally:
            remove(temps.values())

    def _remove(self, rows: Sequence[ObjectRow]) -> None:
        """Remove the files of the old form. Under the write lock and by the rows as they are now: somebody may have
        healed an object by storing it in its old form again."""
        if not rows:
            return
        with self._handle.index.write() as connection:
            now = object_rows(connection, [row.digest for row in rows])
            for row in rows:
                if row.digest not in now or now[row.digest].codec != row.codec:
                    with contextlib.suppress(StorePermissionError, StoreIOError):  # it is the next gc's
                        fsio.unlink(self._handle.directory.object(row.digest, row.codec))

    def _read(self, row: ObjectRow) -> Payload | None:
        """The payload, checked against its name; None if it is damaged, which is noted."""
        try:
            layout, data = decode(row.stored, read_file(self._handle.directory.object(row.digest, row.codec)))
            if payload_digest(data) != row.digest:
                raise CorruptObjectError("its content isn't what its name says")
        except CorruptObjectError as error:
            self._damaged += damaged(self._handle, row.digest, error) is not None
            return None
        return Payload(layout, data, row.digest)


def _groups(rows: Sequence[ObjectRow]) -> list[list[ObjectRow]]:
    """Groups as a put makes them: of so many objects or bytes."""
    groups: list[list[ObjectRow]] = []
    room = 0
    for row in rows:
        if not groups or len(groups[-1]) == GROUP_OBJECTS or room < row.payload_bytes:
            groups.append([])
            room = GROUP_BYTES
        groups[-1].append(row)
        room -= row.payload_bytes
    return groups
