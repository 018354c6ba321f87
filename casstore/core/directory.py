"""The names inside a store directory."""

from __future__ import annotations

import os
from dataclasses import dataclass

from casstore import fsio
from casstore.errors import NotAStoreError, StorePermissionError
from casstore.model import suffix

MARKER = "casstore.toml"
README = "CASSTORE.txt"
INDEX = "index.sqlite"
BALLAST = "ballast"
BALLAST_BYTES = 16 << 20
BALLAST_NEEDS_FREE = 1 << 30
SUBDIRECTORIES = ("objects", "tmp", "quarantine", "backups", "locks", os.path.join("locks", "owners"))


@dataclass(frozen=True, slots=True)
class Directory:
    """Where everything of one store is.

    Attributes:
        path: absolute.
        shard_hex: number of hex digits that name a shard, 2 or 3.
    """

    path: str
    shard_hex: int = 2

    @property
    def index(self) -> str:
        return os.path.join(self.path, INDEX)

    @property
    def objects(self) -> str:
        return os.path.join(self.path, "objects")

    @property
    def tmp(self) -> str:
        return os.path.join(self.path, "tmp")

    @property
    def quarantine(self) -> str:
        return os.path.join(self.path, "quarantine")

    @property
    def backups(self) -> str:
        return os.path.join(self.path, "backups")

    @property
    def owners(self) -> str:
        return os.path.join(self.path, "locks", "owners")

    @property
    def ballast(self) -> str:
        return os.path.join(self.path, BALLAST)

    @property
    def marker(self) -> str:
        return os.path.join(self.path, MARKER)

    def lock(self, name: str) -> str:
        """The lock file "store", "write" or "gc"."""
        return os.path.join(self.path, "locks", name)

    def shards(self) -> list[str]:
        """All shard directories; they are made at init and never removed."""
        return [os.path.join(self.objects, f"{n:0{self.shard_hex}x}") for n in range(16**self.shard_hex)]

    def shard(self, digest: bytes) -> str:
        """The shard directory of an object."""
        return os.path.join(self.objects, digest.hex()[: self.shard_hex])

    def object(self, digest: bytes, codec: str) -> str:
        """The final path of an object in this stored form."""
        name = digest.hex()
        return f"{self.path}/objects/{name[: self.shard_hex]}/{name}{suffix(codec)}"


def is_store(path: str) -> bool:
    """Whether this is a store directory (or once was: it has our marker).

    Raises:
        StoreIOError: the system can't tell.
    """
    try:
        return fsio.look(os.path.join(path, MARKER)) is not None
    except (StorePermissionError, ValueError):  # ValueError: a name with a NUL
        return False


def check_is_store(path: str, *, index: bool = True) -> None:
    """Refuse a path that isn't a store; `index`: its index has to be there, too.

    Raises:
        NotAStoreError, StorePermissionError
        StoreIOError: the system can't tell.
    """
    if not fsio.is_directory(path):
        kind = "is a file" if os.path.exists(path) else "doesn't exist"
        raise NotAStoreError(
            f"{path} {kind}, so there is no store; make one in a new folder: casstore init --store DIR"
        )
    if not os.access(path, os.R_OK | os.X_OK):
        raise StorePermissionError(f"can't look into {path}. Check its owner and mode")
    if not is_store(path):
        raise NotAStoreError(f"{path} isn't a casstore store; make one in a new folder: casstore init --store DIR")
    if index and fsio.size_of(os.path.join(path, INDEX)) is None:
        raise NotAStoreError(
            f"{path} has lost its {INDEX}; write a backup back: casstore db restore BACKUP. The objects are untouched"
        )
