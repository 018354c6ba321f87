"""Loss is suspicious: a disk that isn't mounted looks like a folder whose files were deleted.

So nothing is noted as missing where the folder isn't the one it was, or where very much would be.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from casstore.core.handle import Handle
from casstore.index.roots import RootRow, sample_of

SAMPLE = 100  # files
ENOUGH = 0.9  # of the sample
FEW = 100  # files that may always go
SHARE = 0.1  # of all files


def too_many(lost: int, known: int) -> bool:
    """Whether so many of the known files have gone that somebody has to confirm it."""
    return lost > max(FEW, SHARE * known)


def is_there(handle: Handle, root: RootRow, relpath: str, path: str | None = None) -> bool:
    """Whether a directory holds what it held, although its file system or inode is another one.

    Args:
        handle: the open store.
        root: that the directory is in.
        relpath: of the directory.
        path: where the root is now, if not at its path.

    Returns:
        Whether 9 of 10 of up to 100 known files are there with their size and mtime; True where none are known.
    """
    with handle.index.read() as connection:
        files = sample_of(connection, root.id, relpath, SAMPLE)
    found = sum(
        _is_there(os.path.join(path or root.path, place, name), size, mtime) for place, name, size, mtime in files
    )
    return found >= ENOUGH * len(files)


def is_file(path: str) -> bool:
    """Whether there is something at this path that isn't a folder; a link counts, wherever it leads."""
    return os.path.lexists(path) and not os.path.isdir(path)


def _is_there(path: str, size: int, mtime_ns: int) -> bool:
    try:
        state = os.stat(path)
    except OSError:
        return False
    return state.st_size == size and state.st_mtime_ns == mtime_ns


def unavailable(root: RootRow) -> str:
    """The warning for a root that isn't the folder it was."""
    return (
        f"{root.path} isn't the folder it was (is another disk mounted there, or none?): nothing was noted as missing. "
        f"If that is right: casstore roots confirm {root.name}"
    )


def suspicious(root: RootRow, lost: int, known: int) -> str:
    """The warning for a root that has lost very much."""
    return (
        f"{lost:,} of {known:,} files are gone from {root.path}: nothing was noted as missing. "
        f"If that is right: casstore roots confirm {root.name}"
    )


def elsewhere(root: RootRow, relpaths: Sequence[str]) -> str:
    """The warning for directories that are on another file system than they were."""
    places = ", ".join(os.path.join(root.path, relpath) for relpath in relpaths[:3])
    more = f" and {len(relpaths) - 3} more" if len(relpaths) > 3 else ""
    return (
        f"{places}{more}: another disk is mounted there, or none, so nothing in it was noted as missing. "
        f"If that is right: casstore roots confirm {root.name}"
    )
