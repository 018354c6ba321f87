"""Copies of the index in backups/: made before an upgrade, checked, kept, and written back."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator

from casstore import fsio
from casstore.errors import (
    CasstoreError,
    CorruptStoreError,
    NoSpaceError,
    StoreBusyError,
    StorePermissionError,
    UsageError,
)
from casstore.index.bulk import driver, last_id
from casstore.index.driver import connect, sqlite3, typed_error, typed_errors
from casstore.index.engine import Index
from casstore.index.place import unsafe_place
from casstore.index.tables import SCHEMA, variants
from casstore.locks import FileLock

KEPT = 3
MAX_AGE = 7 * 24 * 3600.0  # seconds
MAX_NEW_VARIANTS = 100_000
_log = logging.getLogger("casstore.index")
EXCLUSIVE_SECONDS = 10.0
SPACE_FACTOR = 2.2  # an upgrade needs the backup, and a WAL that may hold every page


@contextlib.contextmanager
def exclusive(store: str, *, unsafe_filesystem: bool = False) -> Iterator[None]:
    """Hold a store so that nobody else has it open.

    Raises:
        StoreBusyError: somebody has; close those programs first.
        UnsafePlaceError: locks can't be trusted there, so nobody can tell.
    """
    unsafe = None if unsafe_filesystem else unsafe_place(store)
    if unsafe is not None:
        raise unsafe
    locks = [FileLock(os.path.join(store, "locks", name)) for name in ("store", "write")]
    try:
        for lock in locks:
            lock.acquire(EXCLUSIVE_SECONDS, on_busy=lambda: _busy(store))
        locks[1].write_note()
        yield
    finally:
        for lock in reversed(locks):
            lock.release()


def needs_space(index: str, what: str = "an upgrade") -> None:
    """Refuse to begin what the disk can't hold.

    Raises:
        NoSpaceError: says how much is needed and free.
    """
    needed = round(SPACE_FACTOR * (fsio.size_of(index) or 0))
    free = fsio.free_bytes(os.path.dirname(index))
    if free < needed:
        raise NoSpaceError(f"{what} of {index} needs {needed:,} bytes, {free:,} are free; nothing was changed")


def save_backup(raw: sqlite3.Connection, store: str, schema: int) -> str:
    """Copy the index to backups/ through SQLite's backup API, check the copy, and make it durable under its name.

    Returns:
        Its path.

    Raises:
        CorruptStoreError: the copy, and so the index, isn't sound.
    """
    folder = os.path.join(store, "backups")
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()) + f"-{time.time_ns() % 1_000_000_000:09}"
    path = os.path.join(folder, f"index-{schema:04}-{stamp}.sqlite")
    part = path + ".part"
    try:
        with contextlib.closing(connect(part, "rwc")) as copy:
            raw.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE").fetchone()
            check = copy.execute("PRAGMA integrity_check").fetchone()[0]
        if check != "ok":
            raise CorruptStoreError(f"the index of {store} isn't sound ({check}); nothing was changed")
        fsio.flush_file(part)
        fsio.rename(part, path)
        fsio.flush_file(folder)
    finally:
        fsio.unlink(part)
    return path


def backup_if_due(index: Index, store: str) -> str | None:
    """Save a backup if there is none, or the newest is older than a week or has lived through 100,000 new variants.

    What can't be saved (a full disk) is told in the log: whoever calls this has done his work already.

    Returns:
        Its path, or None.
    """
    try:
        with index.read() as connection:
            now = last_id(connection, variants)
            if not now or not _is_due(store, now):
                return None
            needs_space(index.path, "a backup")
            backup = save_backup(driver(connection), store, SCHEMA)
        keep_newest(store)
        return backup
    except CasstoreError as error:
        _log.warning("no backup of the index was made: %s", error)
        return None


def _is_due(store: str, variants_now: int) -> bool:
    backups = _backups(store)
    if not backups:
        return True
    newest = os.path.join(store, "backups", backups[-1])
    found = fsio.look(newest)
    if found is None or time.time() - found.st_mtime > MAX_AGE:
        return True
    with contextlib.closing(_opened(newest, "ro")) as raw:
        return variants_now - last_id(raw, variants) >= MAX_NEW_VARIANTS


def _backups(store: str) -> list[str]:
    """The names of the backups, oldest first."""
    names = fsio.names_in(os.path.join(store, "backups"))
    return sorted((n for n in names if n.startswith("index-") and n.endswith(".sqlite")), key=_age)


def keep_newest(store: str) -> None:
    """Remove all but the newest backups."""
    for name in _backups(store)[:-KEPT]:
        fsio.unlink(os.path.join(store, "backups", name))


def variants_in(backup: str) -> int:
    """How many variants a backup holds.

    Raises:
        UsageError: it isn't there, or isn't a copy of a store's index.
    """
    if fsio.size_of(backup) in (None, 0):
        raise UsageError(f"{backup} isn't there, or is empty; the backups of a store are in its folder backups/")
    try:
        with contextlib.closing(_opened(backup, "ro")) as raw:
            check = raw.execute("PRAGMA integrity_check").fetchone()[0]
            if check != "ok":
                raise UsageError(f"{backup} isn't sound ({check}); nothing was changed. Choose another backup")
            return int(raw.execute("SELECT count(*) FROM variants").fetchone()[0])
    except sqlite3.DatabaseError as error:
        raise UsageError(f"{backup} isn't a backup of an index: {error}; nothing was changed") from error


@contextlib.contextmanager
def restoring(store: str, backup: str, *, unsafe_filesystem: bool = False) -> Iterator[tuple[str, str | None]]:
    """Write a backup into the index, whole, through SQLite's backup API, while nobody has the store open.

    The block works on a copy of the backup, so that the index changes once, and has then all that the block made of it.

    Yields:
        A folder with the copy (index.sqlite); where the index as it was is kept, None if it can't be read any more.

    Raises:
        StoreBusyError, UnsafePlaceError, NoSpaceError, StorePermissionError, StoreIOError
    """
    index = os.path.join(store, "index.sqlite")
    folder = os.path.join(store, "backups", "restoring.part")
    with exclusive(store, unsafe_filesystem=unsafe_filesystem), typed_errors(index):
        _check_no_reader(store)
        fsio.remove_tree(folder)  # of one that was cut off
        fsio.make_directory(folder)
        try:
            copy = os.path.join(folder, "index.sqlite")
            with contextlib.closing(_opened(copy, "rwc")) as raw, contextlib.closing(_opened(backup, "ro")) as source:
                source.backup(raw)
            yield folder, _keep(store, index)
            try:
                # Into the file, not over it: whoever opens it meanwhile waits for a transaction, and sees old or new.
                with contextlib.closing(_opened(index, "rw")) as raw:
                    _copy(copy, raw)
            except sqlite3.DatabaseError:
                _replace(store, copy)  # there is no database to write into
        finally:
            fsio.remove_tree(folder)


def _check_no_reader(store: str) -> None:
    """Refuse while a dataset is open, which needs no open store: its row, by which gc spares what it may read, wouldn't
    be in the restored index. Of dead owners nothing stays, so that none comes to life again by its file alone.

    Raises:
        StoreBusyError: names whose it is.
    """
    folder = os.path.join(store, "locks", "owners")
    for name in fsio.names_in(folder):
        lock = FileLock(os.path.join(folder, name))
        try:
            dead = lock.try_acquire(create=False)
        except FileNotFoundError:
            continue
        if not dead:
            raise StoreBusyError(
                f"{store} is being read by a dataset of {lock.holder()}; gc would take what it reads once an older "
                "index is back. End that training and try again; nothing was changed"
            )
        fsio.unlink(lock.path)
        lock.release()


def _keep(store: str, index: str) -> str | None:
    """Copy an index that is about to be overwritten to backups/; None if it can't be read any more."""
    try:
        with contextlib.closing(_opened(index, "rw")) as raw:
            return save_backup(raw, store, raw.execute("PRAGMA user_version").fetchone()[0])
    except CorruptStoreError:
        return None
    except sqlite3.DatabaseError as error:
        found = typed_error(error, index)
        if isinstance(found, (NoSpaceError, StorePermissionError)):
            raise found from error  # that says nothing about the index, which isn't given up for it
        return None


def _copy(backup: str, raw: sqlite3.Connection) -> None:
    with contextlib.closing(_opened(backup, "ro")) as copy:
        copy.backup(raw)
    raw.execute("PRAGMA journal_mode = WAL").fetchone()


def _replace(store: str, backup: str) -> None:
    """Put a backup in the place of an index that is missing or can't be opened; what was there is kept in backups/."""
    index = os.path.join(store, "index.sqlite")
    part = os.path.join(store, "backups", "restored.part")
    fsio.unlink(part)
    with contextlib.closing(_opened(part, "rwc")) as raw:
        _copy(backup, raw)
    fsio.flush_file(part)
    if fsio.size_of(index) is not None:
        fsio.rename(index, os.path.join(store, "backups", f"broken-{time.time_ns()}.sqlite"))
    for suffix in ("-wal", "-shm"):
        fsio.unlink(index + suffix)
    fsio.flush_file(store)  # or an old WAL could come back beside the new index
    fsio.rename(part, index)
    fsio.flush_file(store)


def _opened(path: str, mode: str) -> sqlite3.Connection:
    raw = connect(path, mode)
    raw.execute("PRAGMA synchronous = FULL")
    return raw


def _age(name: str) -> str:
    return name.split("-", 2)[-1]


def _busy(store: str) -> StoreBusyError:
    return StoreBusyError(f"{store} is in use by another program; close it (training scripts, builds) and try again")
