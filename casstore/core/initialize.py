"""Making a store: a sibling directory is built completely, made durable, and renamed into place.

So a store is never seen half made, and whoever loses a race opens the winner's.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from importlib.resources import files

from casstore import fsio
from casstore.core.directory import (
    BALLAST_BYTES,
    BALLAST_NEEDS_FREE,
    README,
    SUBDIRECTORIES,
    Directory,
    is_store,
)
from casstore.errors import NoSpaceError, NotAStoreError, StoreIOError, UnsafePlaceError, UsageError
from casstore.index.bulk import now_ms
from casstore.index.create import create_index
from casstore.index.place import unsafe_place
from casstore.index.tables import MIN_READER, MIN_WRITER, SCHEMA

DURABILITIES = ("full", "off")
FORMAT = 1

_TOML = """\
# A casstore store. What stands here may be edited at any time.

[gc]
grace_hours = 24   # how long an object that nobody refers to is kept

[objects]
codec = "zstd"     # how new objects are stored; "raw" can be mapped (get(mmap=True)), and takes more room

[sources]
ctime = true       # whether these tell that a file has changed; false where a network disk makes them up
inode = true
"""


def check_durability(durability: str | None) -> None:
    """Refuse a durability that doesn't exist."""
    if durability is not None and durability not in DURABILITIES:
        raise UsageError(f"durability is {' or '.join(map(repr, DURABILITIES))}, not {durability!r}")


def create_store(path: str, durability: str = "full", *, unsafe_filesystem: bool = False) -> None:
    """Make a store at `path`; nothing happens if there is one already.

    Args:
        path: absolute; missing or an empty folder. Missing parents are made.
        durability: "full": what was acknowledged survives a power cut; "off": a crash of the process only.
        unsafe_filesystem: trust the file system, whatever it is.

    Raises:
        UnsafePlaceError: `path` is a mount point, or on a file system that can't be trusted with an index.
        NotAStoreError: something else is there.
        NoSpaceError, StorePermissionError, StoreIOError
    """
    check_durability(durability)
    if is_store(path):
        return
    if os.path.ismount(path):
        raise UnsafePlaceError(f"{path} is a mount point; make the store in a folder inside it: {path}/cache")
    if not unsafe_filesystem and (unsafe := unsafe_place(path)):
        raise unsafe
    with fsio.errors_typed("look into", path):
        taken = os.path.lexists(path) and not (os.path.isdir(path) and not os.listdir(path))
    if taken:
        if is_store(path):
            return  # it appeared while we looked
        raise NotAStoreError(f"{path} exists and isn't an empty folder; nothing was changed. Choose another path")
    parent, name = os.path.split(path)
    fsio.make_parents(parent, durable=durability == "full")
    sibling = os.path.join(parent, f".{name}.{secrets.token_hex(8)}.init")
    try:
        _build(Directory(sibling), durability)
        fsio.rename(sibling, path)
    except StoreIOError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or not is_store(path):
            raise
    finally:
        if os.path.lexists(sibling):
            fsio.remove_tree(sibling)
    if durability == "full":
        fsio.flush_file(parent)


def make_ballast(directory: Directory) -> None:
    """Set 16 MiB aside, if 1 GiB is free, that can be given up when the disk is full."""
    with contextlib.suppress(NoSpaceError, StoreIOError):
        if fsio.size_of(directory.ballast) is None and fsio.free_bytes(directory.path) >= BALLAST_NEEDS_FREE:
            fsio.allocate(directory.ballast, BALLAST_BYTES)


def _build(directory: Directory, durability: str) -> None:
    fsio.make_directory(directory.path)
    for name in SUBDIRECTORIES:
        fsio.make_directory(os.path.join(directory.path, name))
    shards = directory.shards()
    for shard in shards:
        fsio.make_directory(shard)
    text = files("casstore.core").joinpath(README).read_bytes()
    fsio.write_new(os.path.join(directory.path, README), [text])
    fsio.write_new(directory.marker, [_TOML.encode()])
    for name in ("store", "write", "gc"):
        fsio.write_new(directory.lock(name), [])
    if durability == "full":
        make_ballast(directory)
    settings = {
        "store_id": secrets.token_hex(16),
        "created_at": str(now_ms()),
        "format": str(FORMAT),
        "schema": str(SCHEMA),
        "min_reader": str(MIN_READER),
        "min_writer": str(MIN_WRITER),
        "shard_hex": str(directory.shard_hex),
        "durability": durability,
    }
    with fsio.errors_typed("create", directory.index):
        descriptor = os.open(directory.index, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, fsio.FILE_MODE)
        os.close(descriptor)  # gives it our mode, which SQLite copies to -wal and -shm; no connection is open yet
    create_index(directory.index, settings)
    if durability == "full":
        fsio.flush_files([directory.index, directory.marker, os.path.join(directory.path, README)])
        # The shards' own names stand in objects/; each shard is empty, so it needs no flush of its own.
        fsio.flush_files([os.path.join(directory.path, name) for name in SUBDIRECTORIES] + [directory.path])
