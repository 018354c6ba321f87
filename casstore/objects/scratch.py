"""Memory for intermediate results: aligned, one set per thread, kept for the next call."""

from __future__ import annotations

import threading

import numpy as np

from casstore.objects.planes import Bytes

ALIGNMENT = 64
"""Bytes of a cache line. Copies to an address that lies 1 to 31 bytes above the source's, modulo a page, run at a tenth
of the speed on some CPUs (seen on Zen 3), and 16 is just where NumPy begins its large arrays."""


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
