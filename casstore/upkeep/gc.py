"""Garbage collection: live -> condemned (nobody refers to it) -> swept, after the grace period.

Condemning and sweeping are short write transactions that look at every fact again. Whoever creates a reference does so
under the same lock and looks at the file first, so an object is swept either before a reference exists (then its
writer stages it again) or not at all.

Readers that hold no reference, such as open datasets, are owners with an epoch: what is condemned after they began is
swept when they have ended.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from casstore import fsio
from casstore.core.directory import BALLAST_BYTES
from casstore.core.handle import Handle
from casstore.core.initialize import make_ballast
from casstore.errors import StoreBusyError, StoreIOError, StorePermissionError, UsageError
from casstore.index import garbage
from casstore.index.bulk import now_ms
from casstore.index.objects import ObjectRow, object_rows
from casstore.index.owners import owner_names, reader_epochs, remove_dead
from casstore.index.runs import finish_run, start_run
from casstore.locks import FileLock
from casstore.model import CODECS, SUFFIXES, GcReport

CONDEMN_CHUNK = 500
SWEEP_CHUNK = 200
EVERYTHING = 1 << 62
DEFAULT_GRACE_HOURS = 24.0
COPY_SECONDS = 24 * 3600.0
LONGEST_GRACE_HOURS = 1e6  # a century
_OBJECT = re.compile(f"([0-9a-f]{{64}})({'|'.join(map(re.escape, SUFFIXES.values()))})")
_OWNER = re.compile("[0-9a-f]{16}")


def collect(handle: Handle, *, yes: bool = False, grace_hours: float | None = None) -> GcReport:
    """Remove what nobody needs, or (without `yes`) say what would be removed.

    Args:
        handle: the open store.
        yes: do it.
        grace_hours: how long a condemned object or a file without a row is kept; None: what casstore.toml says, else
            24.

    Raises:
        StoreBusyError: another gc is running.
    """
    handle.check_open()
    if handle.full and yes:
        freed = _remove_dead(handle)  # needs no index
        if sum(freed):
            return GcReport(0, 0, sum(freed), 0, 0, len(freed), 0.0)
    if yes or not handle.full:  # on a full disk it can at least be said what would go
        handle.check_writable()
    grace = _grace(handle) if grace_hours is None else grace_hours
    if not 0 <= grace <= LONGEST_GRACE_HOURS:
        raise UsageError(f"a grace of {grace} hours can't be meant; use 0 to {LONGEST_GRACE_HOURS:,.0f}")
    lock = FileLock(handle.directory.lock("gc"))
    if not lock.try_acquire():
        raise StoreBusyError(f"another gc is running on {handle.directory.path}; try again when it is done")
    try:
        started = time.monotonic()
        grace_ms = round(grace * 3_600_000)
        return _run(handle, grace_ms, started) if yes else _dry_run(handle, grace_ms, started)
    finally:
        lock.release()


def _grace(handle: Handle) -> float:
    section = handle.toml().get("gc", {})
    found = section.get("grace_hours", DEFAULT_GRACE_HOURS) if isinstance(section, dict) else None
    if isinstance(found, bool) or not isinstance(found, (int, float)):
        raise UsageError(f"{handle.directory.marker}: gc.grace_hours is {found!r}; write a number of hours")
    return float(found)


def _dry_run(handle: Handle, grace_ms: int, started: float) -> GcReport:
    before = now_ms() - grace_ms
    dead = _dead_temps(handle)
    leftovers = [*map(_own_size, dead), *_strays(handle, before, dead)]
    with handle.index.read() as connection:
        epoch = _oldest_epoch(handle, reader_epochs(connection))
        also_fresh = grace_ms == 0 and epoch == EVERYTHING  # its epoch would be later than any reader's
        condemned, _ = garbage.condemnable(connection)
        doomed = garbage.sweepable(connection, before, EVERYTHING, epoch=epoch, also_fresh=also_fresh)
        waiting = garbage.waiting(connection, before, epoch)
    would = sum(stored for _, stored in doomed) + sum(leftovers)
    return GcReport(condemned, 0, 0, would, waiting, len(leftovers), time.monotonic() - started)


def _run(handle: Handle, grace_ms: int, started: float) -> GcReport:
    # On a full disk even a delete needs room for the WAL, so what needs no index write goes first.
    if handle.free_bytes() < BALLAST_BYTES:
        fsio.unlink(handle.directory.ballast)
    leftovers = _remove_dead(handle)
    with handle.index.write() as connection:
        run_id = start_run(connection, "gc")
        remove_dead(connection, [name for name in owner_names(connection) if not _is_alive(handle, name)])
    leftovers += _strays(handle, now_ms() - grace_ms)
    condemned = swept = freed = 0
    while True:
        with handle.index.write() as connection:
            count = garbage.condemn(connection, CONDEMN_CHUNK)
        condemned += count
        if count < CONDEMN_CHUNK:
            break
    before = now_ms() - grace_ms  # taken now, so that a grace of 0 takes what has just been condemned
    with handle.index.read() as connection:
        epoch = _oldest_epoch(handle, reader_epochs(connection))  # those to come begin in the present one, or later
    while True:
        with handle.index.write() as connection:
            doomed = garbage.sweepable(connection, before, SWEEP_CHUNK, epoch=epoch)
            garbage.delete_objects(connection, [digest for digest, _ in doomed])
            for digest, _ in doomed:
                # Inside the transaction: a crash from here on leaves condemned rows without a file, never the reverse.
                _remove_file(handle, digest)
        swept += len(doomed)
        freed += sum(stored for _, stored in doomed)
        if len(doomed) < SWEEP_CHUNK:
            break
    if handle.durable:
        make_ballast(handle.directory)
    freed += sum(leftovers)
    with handle.index.write() as connection:
        waiting = garbage.waiting(connection, before, epoch)
        counts = {"condemned": condemned, "swept": swept, "leftovers": len(leftovers)}
        finish_run(connection, run_id, counts, freed)
    handle.backup_if_due()
    return GcReport(condemned, swept, freed, 0, waiting, len(leftovers), time.monotonic() - started)


def _oldest_epoch(handle: Handle, readers: Mapping[str, int]) -> int:
    """The epoch of the reader among the living ones that began first; EVERYTHING: there is none."""
    return min((epoch for name, epoch in readers.items() if _is_alive(handle, name)), default=EVERYTHING)


def _remove_file(handle: Handle, digest: bytes) -> None:
    for codec in CODECS:
        _removed(handle.directory.object(digest, codec))


def _dead_temps(handle: Handle) -> list[str]:
    """The temps of owners that live no more, and copies of the index that were never finished."""
    alive: dict[str, bool] = {}
    dead = []
    for name in sorted(fsio.names_in(handle.directory.tmp)):
        owner, _, rest = name.partition("-")
        if not _OWNER.fullmatch(owner) or not rest.isdecimal():
            continue  # not one of ours
        if owner not in alive:
            alive[owner] = _is_alive(handle, owner)
        if not alive[owner]:
            dead.append(os.path.join(handle.directory.tmp, name))
    parts = (os.path.join(handle.directory.backups, name) for name in fsio.names_in(handle.directory.backups))
    return dead + [path for path in parts if path.endswith(".part") and _is_old(path)]


def _is_old(path: str) -> bool:
    """Whether nobody has written to a file for a day: a copy that is being made would have been."""
    try:
        found = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_mtime < time.time() - COPY_SECONDS


def _remove_dead(handle: Handle) -> list[int]:
    """Remove the temps and lock files of owners that live no more; returns the bytes that each temp gave back."""
    freed = []
    for path in _dead_temps(handle):
        size = _own_size(path)
        if fsio.unlink(path):
            freed.append(size)
    for owner in filter(_OWNER.fullmatch, fsio.names_in(handle.directory.owners)):
        lock = FileLock(os.path.join(handle.directory.owners, owner))
        with contextlib.suppress(FileNotFoundError):
            if lock.try_acquire(create=False):
                try:
                    fsio.unlink(lock.path)
                finally:
                    lock.release()
    return freed


def _own_size(path: str) -> int:
    """The bytes that removing this name gives back: none while the file has another name."""
    found = fsio.look(path)
    return found.st_size if found is not None and found.st_nlink == 1 else 0


def _is_alive(handle: Handle, owner: str) -> bool:
    lock = FileLock(os.path.join(handle.directory.owners, owner))
    try:
        if not lock.try_acquire(create=False):
            return True
    except FileNotFoundError:
        return False
    lock.release()
    return False


def _strays(handle: Handle, before: int, dead_temps: Sequence[str] | None = None) -> Iterator[int]:
    """Sizes of object files without a row that are old enough and that no living put holds a temp of.

    Args:
        handle: the open store.
        before: what was written later (ms UTC) stays.
        dead_temps: for a dry run, the temps that would have gone before; None: remove the files.
    """
    spare = Counter(_inode(path) for path in dead_temps or ())
    for shard in handle.directory.shards():
        candidates = {}
        for name in fsio.names_in(shard):
            digest, path = _digest_of(name), os.path.join(shard, name)
            if digest is not None and _stray_size(path, before, spare) is not None:
                candidates[path] = digest
        if not candidates:
            continue
        with handle.index.read() as connection:
            known = object_rows(connection, list(candidates.values()))
        strays = {
            path: digest for path, digest in candidates.items() if not _is_needed(handle, path, known.get(digest))
        }
        if dead_temps is not None:
            yield from (_stray_size(path, before, spare) or 0 for path in strays)
        elif strays:
            with handle.index.write() as connection:
                known = object_rows(connection, list(strays.values()))
                for path, digest in strays.items():
                    needed = _is_needed(handle, path, known.get(digest))
                    size = None if needed else _stray_size(path, before, spare)
                    if size is not None and _removed(path):
                        yield size


def _is_needed(handle: Handle, path: str, row: ObjectRow | None) -> bool:
    """Whether a file is what its object's row speaks of, or may have to stand in for that."""
    if row is None:
        return False
    own = handle.directory.object(row.digest, row.codec)
    return own == path or fsio.size_of(own) != row.stored_bytes


def _removed(path: str) -> bool:
    """Whether a file is gone. One that can't be removed (where the system minds that somebody maps it) has no row, and
    is the next gc's."""
    try:
        return fsio.unlink(path)
    except (StorePermissionError, StoreIOError):
        return False


def _digest_of(name: str) -> bytes | None:
    found = _OBJECT.fullmatch(name)
    return bytes.fromhex(found[1]) if found else None  # not one of ours: gc never touches it


def _stray_size(path: str, before: int, spare: Mapping[tuple[int, int], int]) -> int | None:
    """The size of a file that may go if it has no row; None if it is young, or if a put still holds its temp.

    Args:
        path: of the file.
        before: what was written later (ms UTC) stays.
        spare: {inode: names of it that don't count}.
    """
    found = fsio.look(path)
    if found is None:
        return None
    old = max(found.st_mtime_ns, found.st_ctime_ns) // 1_000_000 <= before
    held = found.st_nlink - spare.get((found.st_dev, found.st_ino), 0) > 1
    return None if held or not old else found.st_size


def _inode(path: str) -> tuple[int, int]:
    found = fsio.look(path)
    return (found.st_dev, found.st_ino) if found is not None else (0, 0)
