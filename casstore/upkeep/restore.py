"""Writing a backup into the index, and finding out what that costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import xxhash

from casstore import fsio
from casstore.core.directory import Directory
from casstore.errors import CorruptObjectError
from casstore.identity.digests import signed
from casstore.index import backup as backups
from casstore.index import migrate
from casstore.index.objects import NewObject, ObjectRow, mark_damaged, objects_after, save_objects
from casstore.index.settings import read_settings
from casstore.model import CODECS, Stored
from casstore.objects.files import read_file
from casstore.objects.stored import decode
from casstore.objects.tensors import payload_digest

if TYPE_CHECKING:
    from sqlalchemy import Connection

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
    with backups.restoring(store, backup, unsafe_filesystem=unsafe_filesystem) as (folder, kept):
        migrate.upgrade_copy(folder)
        with migrate.connect(folder) as connection, connection.begin():
            directory = Directory(store, int(read_settings(connection)["shard_hex"]))
            damaged = _mark_lost(connection, directory)
    return RestoreReport(variants, damaged, kept)


def _mark_lost(connection: Connection, directory: Directory) -> int:
    """Mark objects without a file as damaged; those that are there in another form take that up. Returns how many."""
    count, after = 0, b""
    while rows := objects_after(connection, after, CHUNK):
        after = rows[-1].digest
        absent = [row for row in rows if fsio.size_of(directory.object(row.digest, row.codec)) != row.stored_bytes]
        found = {row.digest: other for row in absent if (other := _other_form(directory, row)) is not None}
        save_objects(connection, list(found.values()))
        count += mark_damaged(connection, [row.digest for row in absent if row.digest not in found])
    return count


def _other_form(directory: Directory, row: ObjectRow) -> NewObject | None:
    """What an object's row has to say if it was repacked since the backup: its file is there in another form."""
    for codec in CODECS:
        if codec == row.codec:
            continue
        try:
            data = read_file(directory.object(row.digest, codec))
            stored = Stored(row.digest, codec, row.layout, len(data), signed(xxhash.xxh3_64_intdigest(data)))
            _, payload = decode(stored, data)
        except CorruptObjectError:
            continue
        if payload_digest(payload) == row.digest:
            return NewObject(stored, len(payload))
    return None
