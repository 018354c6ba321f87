"""Writing a backup into the index, and finding out what that costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from casstore import fsio
from casstore.core.directory import Directory
from casstore.core.forms import other_form
from casstore.index import backup as backups
from casstore.index import migrate
from casstore.index.objects import mark_damaged, objects_after, save_form
from casstore.index.settings import read_settings

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
        found = {row.digest: other for row in absent if (other := other_form(directory, row)) is not None}
        save_form(connection, list(found.values()))
        count += mark_damaged(connection, [row.digest for row in absent if row.digest not in found])
    return count
