"""Named random draws: functions of what they are for, not of order, process or time."""

from __future__ import annotations

import random

from casstore.errors import UsageError
from casstore.identity.digests import DRAW_CONTEXT, json_digest


def draw(name: str, seed: int | None, primary: bytes, variation: int) -> random.Random:
    """A fresh source of random numbers for one draw; the same arguments give the same numbers everywhere.

    Of its methods only `random()` is promised by Python to stay the same over versions: whatever is part of an identity
    is best made from that alone.

    Args:
        name: what is drawn ("crop"); recipes that share name and seed draw alike.
        seed: of the recipe.
        primary: digest of the row's primary content, 32 bytes.
        variation: counts from 0.

    Returns:
        A generator seeded with 256 bits: BLAKE3 in the context "casstore draw 1" of the canonical JSON
        [name, seed, primary in hex, variation].

    Raises:
        UsageError: the name is no text, or empty.
    """
    if not name or not isinstance(name, str):
        raise UsageError(f"a draw needs a name, such as 'crop', not {name!r}")
    return random.Random(int.from_bytes(json_digest(DRAW_CONTEXT, [name, seed, primary.hex(), variation], "draw")))
