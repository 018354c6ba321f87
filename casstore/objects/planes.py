"""Byte planes: the bytes of equal rank of all elements side by side, so that exponents compress without mantissas.

Splitting and merging by vectorised integer operations runs at several GB/s, a transposed copy at a tenth of that
(docs/format.md has the reasons).
"""

from __future__ import annotations

from typing import Any

import numpy as np

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

PLANE_SIZE: dict[str, int] = {"F16": 2, "BF16": 2, "F32": 4, "F64": 8, "C64": 4}
"""Bytes per number of the dtypes that are split; a complex number is two numbers."""

_WORD: dict[int, np.dtype[Any]] = {2: np.dtype("<u2"), 4: np.dtype("<u4"), 8: np.dtype("<u8")}


def split(data: Bytes, size: int) -> list[Bytes]:
    """The planes of `data`, plane p holding byte p (little endian) of each number.

    Args:
        data: uint8 [n * size], contiguous.
        size: 2, 4 or 8.
    """
    words = data.view(_WORD[size])
    planes = [words.astype(np.uint8)]  # a truncating copy
    for p in range(1, size):
        planes.append((words >> np.array(8 * p, words.dtype)).astype(np.uint8))
    return planes


def merge(planes: list[Bytes], out: Bytes) -> None:
    """Undo `split` into `out`, uint8 [n * size], contiguous."""
    size = len(planes)
    words = out.view(_WORD[size])
    np.copyto(words, planes[-1])
    for plane in reversed(planes[:-1]):
        np.left_shift(words, 8, out=words)
        np.bitwise_or(words, plane, out=words)
