"""Whether a place can hold a store that is written: SQLite's WAL needs locks and shared memory that one kernel keeps.

On network and foreign file systems these fail, some of them silently: a virtiofs mount lost an index within a minute
where ext4 kept it (sqlite.org/wal.html, section 9; docs/design.md).
"""

from __future__ import annotations

import os

from casstore import fsio
from casstore.errors import CasstoreError, StoreReadOnlyError, UnsafePlaceError

UNSAFE_FILESYSTEMS = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "coda", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "orangefs"}
    | {"prl_fs", "smb2", "smb3", "smbfs", "vboxsf", "virtiofs", "vmhgfs"}
)


def is_unsafe(kind: str) -> bool:
    """Whether a file system of this type can't be trusted with the index: shared ones, and FUSE that we don't know."""
    return kind in UNSAFE_FILESYSTEMS or kind == "fuse" or kind.startswith("fuse.")


def unsafe_place(path: str) -> UnsafePlaceError | None:
    """The error that keeps a store from being written at `path`, or None."""
    kind = fsio.filesystem_type(path)
    if not is_unsafe(kind):
        return None
    return UnsafePlaceError(
        f"{path} is on {kind}, where SQLite's locks can't be trusted, so nothing is written there. "
        "Keep the store on a local disk; or, to read it there, make a copy of the index with: casstore db copy. "
        "If you know that no other machine uses it: --unsafe-filesystem"
    )


def obstacle(path: str, *, unsafe_filesystem: bool = False) -> CasstoreError | None:
    """Why the store at `path` can only be read, as the error that a write raises; None if it can be written.

    Args:
        path: of an existing store.
        unsafe_filesystem: trust the file system, whatever it is.
    """
    with fsio.errors_typed("look at", path):
        read_only = bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    if read_only:
        return StoreReadOnlyError(f"{path} is on a read-only mount; mount it for writing, or copy the store")
    for name in ("", "index.sqlite", "tmp", os.path.join("locks", "owners")):
        if not os.access(os.path.join(path, name), os.W_OK):
            place = os.path.join(path, name) if name else path
            return StoreReadOnlyError(
                f"{path} can only be read by this user: {place} isn't writable. Check owner and mode"
            )
    return None if unsafe_filesystem else unsafe_place(path)
