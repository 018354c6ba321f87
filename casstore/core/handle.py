"""An open store: its directory, its index, and the locks that say that somebody is using it."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import secrets
import tomllib

from casstore import fsio
from casstore.core.directory import INDEX, Directory, check_is_store
from casstore.core.initialize import DURABILITIES, check_durability, create_store
from casstore.errors import (
    CasstoreError,
    CorruptStoreError,
    NoSpaceError,
    StoreBusyError,
    StoreTooNewError,
    UsageError,
)
from casstore.identity.recipes import Recipe
from casstore.index.backup import backup_if_due
from casstore.index.driver import BUSY_SECONDS
from casstore.index.engine import Index
from casstore.index.place import obstacle
from casstore.index.readonly import ReadOnlyIndex
from casstore.index.settings import read_settings
from casstore.locks import FileLock
from casstore.model import CODECS, Codec

_log = logging.getLogger("casstore.store")


class Handle:
    """One open store in this process. Threads may share it; a forked child gets connections and locks of its own.

    Attributes:
        directory: where things are.
        index: the SQL side.
        durability: "full" or "off".
        mapped: digests of objects whose file was checked when it was mapped; once is enough.
        told_conflicts: recipes whose conflicting results were told; once is enough.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        create: bool = False,
        durability: str | None = None,
        unsafe_filesystem: bool = False,
    ) -> None:
        """Open the store at `path`.

        Args:
            path: of the store directory.
            create: make it if there is none.
            durability: what a new store gets ("full" if None); for an existing one it must be what it was made with.
            unsafe_filesystem: write on a network or unknown file system as well.

        Raises:
            NotAStoreError, UnsafePlaceError, StoreBusyError, StorePermissionError, StoreOutdatedError,
            StoreTooNewError, CorruptStoreError
            UsageError: the store exists with another durability.
        """
        check_durability(durability)
        place = os.path.abspath(os.fspath(path))
        if create and not os.path.lexists(os.path.join(place, INDEX)):
            create_store(place, durability or "full", unsafe_filesystem=unsafe_filesystem)
        check_is_store(place)
        if fsio.size_of(os.path.join(place, INDEX)) == 0:
            raise CorruptStoreError(
                f"{os.path.join(place, INDEX)} is empty; nothing was changed. "
                "Put a copy of it back; the objects are untouched"
            )
        self.directory = Directory(place)
        self._store_lock = FileLock(self.directory.lock("store"))
        self._pid = 0
        self._closed = False
        self._counts: dict[str, bool] | None = None
        self.mapped: set[bytes] = set()
        self.told_conflicts: set[Recipe] = set()
        self._obstacle = obstacle(place, unsafe_filesystem=unsafe_filesystem)
        self._newer: StoreTooNewError | None = None
        try:
            settings = self._open(durability)
        except NoSpaceError as error:
            # Opening takes a lock file and a few pages of shared memory. The ballast is kept for that; without one the
            # store is read as it is.
            if not fsio.unlink(self.directory.ballast):
                self._obstacle = NoSpaceError(f"{error} (until then {place} can only be read)")
            settings = self._open(durability)
        self.directory = Directory(place, int(settings["shard_hex"]))
        self._syncfs = self.durability == "full" and fsio.has_syncfs(place)

    @property
    def read_only(self) -> bool:
        """Whether this store can only be read here; writing raises the reason."""
        return self._obstacle is not None or self._newer is not None

    @property
    def durable(self) -> bool:
        """Whether what is acknowledged has to survive a power cut."""
        return self.durability == "full"

    @property
    def owner(self) -> str:
        """16 random hex digits; the file of that name in locks/owners is locked while this handle lives."""
        self._ensure_process()
        return self._owner

    def new_temp(self) -> str:
        """A path in tmp/ that nobody else uses."""
        return os.path.join(self.directory.tmp, f"{self.owner}-{next(self._numbers)}")

    def open_for_flush(self) -> Flusher:
        """A flusher; open it before the first write that it is to make durable."""
        return Flusher(self.directory, durable=self.durable, syncfs=self._syncfs)

    def toml(self) -> dict[str, object]:
        """What casstore.toml says now.

        Raises:
            UsageError: it isn't valid TOML.
        """
        if fsio.look(self.directory.marker) is None:
            return {}
        try:
            with fsio.errors_typed("read", self.directory.marker), open(self.directory.marker, "rb") as stream:
                return tomllib.load(stream)
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise UsageError(f"{self.directory.marker} isn't valid TOML: {error}. Mend it") from error

    def default_codec(self) -> Codec:
        """How new objects are stored whose recipe doesn't say: by casstore.toml, else "zstd".

        A mistake in that file is only told: what is put was expensive, and any form will do.
        """
        try:
            section = self.toml().get("objects", {})
            found = section.get("codec", "zstd") if isinstance(section, dict) else None
            for codec in CODECS:
                if found == codec:
                    return codec
            text = f"{self.directory.marker}: objects.codec is {found!r}; write {' or '.join(map(repr, CODECS))}"
        except UsageError as error:
            text = str(error)
        _log.warning("%s. New objects are stored with codec 'zstd'", text)
        return "zstd"

    def counts(self, what: str) -> bool:
        """Whether "ctime" or "inode" tells that a file has changed: yes, unless casstore.toml says otherwise."""
        if self._counts is None:
            section = self.toml().get("sources", {})
            known = section if isinstance(section, dict) else {}
            self._counts = {name: known.get(name, True) is not False for name in ("ctime", "inode")}
        return self._counts[what]

    def free_bytes(self) -> int:
        """Bytes that are free on the store's disk."""
        return fsio.free_bytes(self.directory.path)

    def backup_if_due(self) -> None:
        """Copy the index to backups/ when the newest copy is old; a failure of that is told, and costs nothing else."""
        if self.durable:
            backup_if_due(self.index, self.directory.path)

    def close(self) -> None:
        """Give everything back; temps that a failed put left behind are removed. Closing twice is fine."""
        if self._closed:
            return
        self._closed = True
        try:
            self.index.close()
        finally:
            self._release_locks()

    def check_open(self) -> None:
        """Refuse to work on a closed handle."""
        if self._closed:
            raise UsageError(f"the store {self.directory.path} is closed; open it again")

    def check_writable(self) -> None:
        """Refuse to write where that is impossible or unsafe, before anything is computed for it.

        Raises:
            UsageError: the handle is closed.
            StoreReadOnlyError, UnsafePlaceError
            StoreTooNewError: a newer casstore made it, and left it readable only.
        """
        self.check_open()
        refusal = self._obstacle or self._newer
        if refusal is not None:
            raise type(refusal)(*refusal.args)

    def _open(self, durability: str | None) -> dict[str, str]:
        """Take the locks and open the index; on an error everything is given back."""
        try:
            self._ensure_process()
            self.index = self._open_index()
            try:
                settings, self._newer = _read_settings(self.index)
                self.durability = settings["durability"]
                if durability not in (None, self.durability):
                    raise UsageError(
                        f"{self.directory.path} was made with durability {self.durability!r}, which is fixed; "
                        "open it without durability="
                    )
                self.index.set_durability(self.durability)
            except BaseException:
                self.index.close()
                raise
        except BaseException:
            self._release_locks()
            self._pid = 0
            raise
        return settings

    def _open_index(self) -> Index:
        if self._obstacle is not None:
            return ReadOnlyIndex(self.directory.index, self._obstacle)
        return Index(self.directory.index, self.directory.lock("write"))

    def _ensure_process(self) -> None:
        if self._pid == os.getpid():
            return
        # In a forked child, the descriptors that were inherited are closed already (see locks.py).
        self._pid = os.getpid()
        self._numbers = itertools.count()
        self._owner = secrets.token_hex(8)
        self._owner_lock = FileLock(os.path.join(self.directory.owners, self._owner))
        if self._obstacle is not None:
            return  # makes no file
        self._store_lock.acquire(
            BUSY_SECONDS,
            shared=True,
            on_busy=lambda: StoreBusyError(
                f"{self.directory.path} is being upgraded or restored by another process; try again later"
            ),
        )
        self._owner_lock.acquire(BUSY_SECONDS)

    @property
    def full(self) -> bool:
        """Whether the store can only be read because its disk is full."""
        return isinstance(self._obstacle, NoSpaceError)

    def _release_locks(self) -> None:
        if self._pid != os.getpid():
            return
        if self._owner_lock.held:
            with contextlib.suppress(CasstoreError):  # what stays is gc's; the locks must go in any case
                fsio.unlink(self._owner_lock.path)
        self._owner_lock.release()
        self._store_lock.release()


def _read_settings(index: Index) -> tuple[dict[str, str], StoreTooNewError | None]:
    """The settings of a store, checked, and why it can't be written if it is too new for that.

    Raises:
        NotAStoreError, StoreOutdatedError, StoreTooNewError
        CorruptStoreError: they are missing or can't be meant.
    """
    with index.read() as connection:
        newer = index.newer_schema(connection)
        found = read_settings(connection)
    if found.get("durability") not in DURABILITIES or found.get("shard_hex") not in ("2", "3"):
        raise CorruptStoreError(f"{index.path} has lost its settings; put a copy of it back")
    return found, newer


class Flusher:
    """Makes what was written since it was opened durable: by one syncfs where that is reliable, else file by file."""

    def __init__(self, directory: Directory, *, durable: bool, syncfs: bool) -> None:
        self._path = directory.path
        self._durable = durable
        self._descriptor: int | None = None
        if durable and syncfs:
            with fsio.errors_typed("open", self._path):
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def flush(self, paths: list[str]) -> None:
        """Make the files or directories `paths` durable. Never called again for the same data after it failed."""
        if not self._durable or not paths:
            return
        if self._descriptor is not None:
            fsio.flush_filesystem(self._descriptor, self._path)
        else:
            fsio.flush_files(paths)

    def flush_now(self, directory: str) -> None:
        """Make the names in one directory durable, and wait for nothing else (for use under the write lock)."""
        if self._durable:
            fsio.flush_file(directory)

    def close(self) -> None:
        """Give the descriptor back."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):  # nothing was written through it; it is gone all the same
                os.close(descriptor)

    def __enter__(self) -> Flusher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
