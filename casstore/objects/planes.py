"""Byte planes: the bytes of equal rank of all numbers side by side, so that exponents compress without mantissas.

Splitting and merging are whole-array integer operations, which NumPy runs at several GB/s; a transposed copy manages a
tenth of that (docs/performance.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

PLANE_SIZE: dict[str, int] = {"F16": 2, "BF16": 2, "F32": 4, "F64": 8, "C64": 4}
"""Bytes per number of the dtypes that are split; a complex number is two numbers."""

_WORD: dict[int, np.dtype[Any]] = {2: np.dtype("<u2"), 4: np.dtype("<u4"), 8: np.dtype("<u8")}

# 2 ** (8 * p) as words. Arrays without dimensions, which NumPy takes as they are: it converts an int at each call.
_FACTOR = {size: [np.array(1 << 8 * p, word) for p in range(size)] for size, word in _WORD.items()}


def split(data: Bytes, size: int, p: int, out: Bytes) -> None:
    """Write plane p of `data`: byte p (little endian) of each number.

    Args:
        data: uint8 [n * size], contiguous.
        size: 2, 4 or 8.
        p: 0 to size - 1.
        out: uint8 [n], contiguous.
    """
    words = data.view(_WORD[size])
    if p == 0:
        np.copyto(out, words, casting="unsafe")  # truncates
    else:
        np.right_shift(words, words.dtype.type(8 * p), out=out, casting="unsafe")


def merge(size: int, constant: int, ranks: Sequence[int], plane: Callable[[int], Bytes], out: Bytes) -> None:
    """Undo `split`.

    Args:
        size: 2, 4 or 8.
        constant: the number that the planes of one byte only make up; 0 in the bytes of the other planes.
        ranks: which the other planes are, from high to low.
        plane: gives one of them, uint8 [n]; it need not outlive the next call.
        out: uint8 [n * size], contiguous.
    """
    if size < 8:
        _merge(constant, ranks, plane, out.view(_WORD[size]))
        return
    # Wide multiplications are slow: pairs of planes, put in place with a stride.
    lanes = out.view(_WORD[2])
    pair = np.empty(len(out) // size, _WORD[2])
    for low in range(0, size, 2):
        _merge(constant >> 8 * low & 0xFFFF, [p for p in ranks if low <= p < low + 2], plane, pair, low)
        lanes[low // 2 :: size // 2] = pair


def _merge(
    constant: int, ranks: Sequence[int], plane: Callable[[int], Bytes], words: np.ndarray[Any, Any], low: int = 0
) -> None:
    """As `merge`, of the planes from rank `low` on."""
    if not ranks:
        words.fill(constant)
        return
    factor = _FACTOR[words.itemsize]
    for p, below in zip(ranks, (*ranks[1:], low), strict=True):
        # Multiplication is vectorised where NumPy's shift isn't. The first one widens as it goes.
        if p == ranks[0]:
            np.multiply(plane(p), factor[p - below], out=words)
            continue
        np.bitwise_or(words, plane(p), out=words)
        if p > below:
            np.multiply(words, factor[p - below], out=words)
    if constant:
        np.bitwise_or(words, words.dtype.type(constant), out=words)
