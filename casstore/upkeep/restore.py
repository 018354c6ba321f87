"""Writing a backup into the index, and finding out what that costs."""

from __future__ import annotations

from dataclasses import dataclass

import xxhash

from casstore import fsio
from casstore.core.handle import Handle
from casstore.errors import CorruptObjectError
from casstore.identity.digests import signed
from casstore.index import backup as backups
from casstore.index import migrate
from casstore.index.objects import NewObject, ObjectRow, mark_damaged, objects_after, save_objects
from casstore.index.status import count_all
from casstore.model import CODECS, Stored
from casstore.objects.files import read_file
from casstore.objects.stored import decode
from casstore.objects.tensors import payload_digest

CHUNK = 500


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """What a restore did.

    Attributes:
        variants: how many the restored index holds.
        damaged: objects of it whose files are gone; marked, so that the next build makes them again.
        kept: where the index as it was is kept; None if it couldn't be read any more, or nothing was done.
    """

    variants: int
    damaged: int
    kept: str | None


def restore(store: str, backup: str, *, yes: bool, unsafe_filesystem: bool = False) -> RestoreReport:
    """Write a backup into the index of a store that nobody has open, bring it to the newest schema, and mark as damaged
    what has no file any more.

    Args:
        store: path of the store.
        backup: path of the backup.
        yes: do it; otherwise only look at the backup.
        unsafe_filesystem: also where locks can't be trusted.

    Raises:
        UsageError: the backup can't be read, isn't sound, or isn't of a store's index.
        StoreBusyError, StoreTooNewError, NoSpaceError, UnsafePlaceError
    """
    variants = backups.variants_in(backup)
    if not yes:
        return RestoreReport(variants, 0, None)
    kept = backups.restore_index(store, backup, unsafe_filesystem=unsafe_filesystem)
    migrate.upgrade(store, unsafe_filesystem=unsafe_filesystem)
    handle = Handle(store, unsafe_filesystem=unsafe_filesystem)
    try:
        damaged = _mark_lost(handle)
        with handle.index.read() as connection:
            return RestoreReport(count_all(connection).variants, damaged, kept)
    finally:
        handle.close()


def _mark_lost(handle: Handle) -> int:
    count, after = 0, b""
    while True:
        with handle.index.read() as connection:
            rows = objects_after(connection, after, CHUNK)
        if not rows:
            return count
        after = rows[-1].digest
        absent = [
            row for row in rows if fsio.size_of(handle.directory.object(row.digest, row.codec)) != row.stored_bytes
        ]
        found = {row.digest: other for row in absent if (other := _other_form(handle, row)) is not None}
        lost = [row.digest for row in absent if row.digest not in found]
        if absent:
            with handle.index.write() as connection:
                save_objects(connection, list(found.values()))
                count += mark_damaged(connection, lost)


def _other_form(handle: Handle, row: ObjectRow) -> NewObject | None:
    """What an object's row has to say if it was repacked since the backup: its file is there in another form."""
    for codec in CODECS:
        if codec == row.codec:
            continue
        try:
            data = read_file(handle.directory.object(row.digest, codec))
            stored = Stored(row.digest, codec, row.layout, len(data), signed(xxhash.xxh3_64_intdigest(data)))
            _, payload = decode(stored, data)
        except CorruptObjectError:
            continue
        if payload_digest(payload) == row.digest:
            return NewObject(stored, len(payload))
    return None
