"""The clock that file times are held against, and the racy rule.

A change within the resolution of a clock, or under a clock that ran ahead, leaves no trace in a file's times (git's
"racy" problem). So a file that isn't clearly older than the moment it was looked at is hashed again next time.
"""

from __future__ import annotations

import time

from casstore import fsio
from casstore.core.handle import Handle
from casstore.errors import CasstoreError
from casstore.index.sources import Stat

SETTLED_AFTER_NS = 2_000_000_000
"""FAT keeps times to 2 s, which is the coarsest there is."""


def now_ns(handle: Handle, device: int) -> int:
    """The present time of the file system with this device number, in ns since 1970.

    That of a new file in the store's tmp/ where this is on the same one, since a server's clock, or the kernel's
    coarser one, may differ from this machine's; else the wall clock. Nothing is written beside the data.
    """
    try:
        return fsio.clock_ns(handle.new_temp(), device)
    except CasstoreError:  # a full disk keeps nobody from scanning
        return time.time_ns()


def is_settled(state: Stat, now: int, *, ctime: bool = True) -> bool:
    """Whether a file was old enough at that time for its times to tell a later change.

    Args:
        state: as it was before it was read.
        now: when that was, or before.
        ctime: go by the time that no program can set, where the file system keeps one; else by mtime.
    """
    return (state.ctime_ns if ctime else state.mtime_ns) + SETTLED_AFTER_NS < now
