"""Memory for intermediate results: aligned, one set per thread, kept for the next call."""

from __future__ import annotations

import threading
import weakref

import numpy as np

from casstore.objects.planes import Bytes

ALIGNMENT = 64
"""Bytes of a cache line. Copies to an address that lies 1 to 31 bytes above the source's, modulo a page, run at a tenth
of the speed on some CPUs (seen on Zen 3), and 16 is just where NumPy begins its large arrays."""


IDLE_NBYTES = 64 << 20
"""How much unused memory `Recycled` keeps at most, unless a single piece is larger."""


def aligned(nbytes: int) -> Bytes:
    """New uninitialised memory, uint8 [nbytes], that begins at a multiple of 64 bytes."""
    memory = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -memory.__array_interface__["data"][0] % ALIGNMENT
    return memory[start : start + nbytes]


class Scratch(threading.local):
    """One buffer per thread that grows by need; what was taken before is overwritten by what is taken next."""

    def __init__(self) -> None:
        self._memory = aligned(0)

    def take(self, nbytes: int) -> Bytes:
        """Uninitialised memory, uint8 [nbytes], valid until the next call in this thread."""
        if len(self._memory) < nbytes:
            self._memory = aligned(nbytes)
        return self._memory[:nbytes]


class Recycled:
    """Memory that is handed out again once nothing uses it. Threads may share it.

    New pages take longer to come than to be filled, and malloc gives old ones back to the system as it sees fit.
    """

    def __init__(self) -> None:
        self._free: dict[int, Bytes] = {}  # without a lock: what was handed out may come back anywhere, even in here

    def take(self, nbytes: int) -> Bytes:
        """Uninitialised memory, uint8 [nbytes], that begins at a multiple of 64 bytes.

        It comes back when this very array is gone: whatever uses its memory has to hold on to it.
        """
        whole = self._found(nbytes)
        if whole is None:
            whole = aligned(nbytes)
        memory = whole[:nbytes]
        weakref.finalize(memory, self._back, whole).atexit = False
        return memory

    def _found(self, nbytes: int) -> Bytes | None:
        for name, whole in list(self._free.items()):
            if nbytes <= len(whole) <= 2 * nbytes and self._free.pop(name, None) is not None:
                return whole
        return None

    def _back(self, whole: Bytes) -> None:
        self._free[id(whole)] = whole
        for name in list(self._free)[:-1]:
            if sum(map(len, list(self._free.values()))) <= IDLE_NBYTES:
                break
            self._free.pop(name, None)
