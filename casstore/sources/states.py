"""What the files of a directory were, packed: the names and states that its fingerprint is made of.

Where the fingerprint differs, these tell which files have changed or gone, in a quarter of the time that all rows take.
They are kept and removed with the fingerprint, so a state that they have is the one that the file's row has, too.
"""

from __future__ import annotations

import array
import os
import struct
import threading
from collections.abc import Iterable, Sequence

import zstandard

NUMBERS = 4  # per file: size, mtime, ctime, inode
NO_SIZE = -1  # of a file whose row doesn't vouch for its state
_STATE = struct.Struct("32s")

States = dict[str, tuple[bytes]]
"""{name: its state, as bytes}"""


def pack(names: Sequence[str], states: array.array[int], doubtful: Iterable[int]) -> bytes:
    """The states of files, in 10 to 20 bytes for each.

    Args:
        names: of the files; no two are equal.
        states: NUMBERS of each, one after the other.
        doubtful: the places of those whose state nobody may go by.
    """
    kept = states[:]
    for place in doubtful:
        kept[NUMBERS * place] = NO_SIZE
    return _zstd.packing.compress(kept.tobytes() + os.fsencode("\0".join(names)))


def unpack(packed: bytes, files: int) -> States | None:
    """The states of this many files; None: these aren't the bytes that `pack` made."""
    try:
        raw = _zstd.unpacking.decompress(packed)
    except (zstandard.ZstdError, MemoryError):  # the latter for a length in its head that isn't
        return None
    end = _STATE.size * files
    names = os.fsdecode(raw[end:]).split("\0") if files else []
    if len(raw) < end or len(names) != files:
        return None
    return dict(zip(names, _STATE.iter_unpack(memoryview(raw)[:end]), strict=True))


def differences(before: States, names: Sequence[str], states: array.array[int]) -> tuple[dict[str, int], list[str]]:
    """What isn't as it was; this takes what is there out of `before`, so that what has gone is left.

    Returns:
        {name: place} of the files that are new or in another state, and the names of the latter.
    """
    found: dict[str, int] = {}
    there: list[str] = []
    take = before.pop
    for place, (name, state) in enumerate(zip(names, _STATE.iter_unpack(states), strict=True)):
        known = take(name, None)
        if known != state:
            found[name] = place
            if known is not None:
                there.append(name)
    return found, there


class _Zstd(threading.local):  # each is for one thread, and makes its tables once
    def __init__(self) -> None:
        self.packing = zstandard.ZstdCompressor(level=1, write_checksum=True)
        self.unpacking = zstandard.ZstdDecompressor()


_zstd = _Zstd()
