"""Where the end of a tensor, or all of it, is one short pattern: padding, masks, planes of zeros."""

from __future__ import annotations

import numpy as np

from casstore.objects.planes import Bytes

TAIL_MIN = 1 << 10
"""Bytes. A tail costs a frame of its own, 48 bytes at most with its row in the table; from here on that is less than a
twentieth of what it stands for, and looking for it costs the rest of the tensors next to nothing."""

_BLOCK = 1 << 15  # words of 8 bytes that are compared at a time


def repeated_tail(data: Bytes) -> tuple[int, bytes]:
    """The longest tail of `data` that repeats 1, 2, 4 or 8 bytes, compared as bits, in steps of 8 bytes from the end.

    Args:
        data: uint8 [n], contiguous, n > 0.

    Returns:
        Where it begins and what repeats there: 0 if that is all of `data`, and (n, b"") if nothing but a tail below
        TAIL_MIN repeats.
    """
    size = len(data)
    odd, last = size % 8, data[-8:].tobytes()
    if size >= 16 and data[-16:-8].tobytes() != last:
        return size, b""  # most tensors end here
    words = data[odd:].view("<u8")
    start, step = len(words), TAIL_MIN // 8  # a short repetition isn't worth the look at a whole block
    while start:
        begin = max(start - step, 0)
        differing = np.flatnonzero(words[begin:start] != words[-1])
        if len(differing):
            start = begin + int(differing[-1]) + 1
            break
        start, step = begin, _BLOCK
    period = next((p for p in (1, 2, 4, 8) if len(last) % p == 0 and last == last[:p] * (len(last) // p)), size)
    tail = odd + 8 * start
    if start == 0 and odd % period == 0 and data[:odd].tobytes() == last[len(last) - odd :]:
        tail = 0
    if period < size and (tail == 0 or size - tail >= TAIL_MIN):
        return tail, last[:period]
    return size, b""
