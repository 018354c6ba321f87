"""Draws: the same numbers everywhere, and only what they are for decides them."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from typing import Any

import pytest
from blake3 import blake3

from casstore.errors import UsageError
from casstore.identity.draws import draw

PRIMARY = bytes(range(32))
GOLDEN = {
    ("crop", None, 0): "0x1.5629c00a79698p-2",
    ("crop", 7, 0): "0x1.be150365f8580p-2",
    ("flip", 7, 0): "0x1.8029acb35b7d2p-2",
    ("crop", 7, 1): "0x1.68b06bd38c330p-4",
    ("größe", -1, 123): "0x1.53c7491e57bd8p-1",
}


def test_the_seed_is_what_the_design_says() -> None:
    """BLAKE3 of the canonical JSON in the context of draws, all 256 bits, as one big-endian number."""
    text = f'["crop",7,"{PRIMARY.hex()}",2]'
    seed = int.from_bytes(blake3(text.encode(), derive_key_context="casstore draw 1").digest(), "big")
    assert draw("crop", 7, PRIMARY, 2).getstate() == random.Random(seed).getstate()


def test_the_numbers_are_the_same_in_every_process() -> None:
    """Fixed numbers, also with another PYTHONHASHSEED, in another order, and after other draws."""
    code = (
        "import random, sys; random.seed(1); from casstore.identity.draws import draw\n"
        f"for name, seed, variation in {list(reversed(GOLDEN))!r}:\n"
        "    print(draw(name, seed, bytes(range(32)), variation).random().hex())"
    )
    for hashseed in ("0", "1", "4294967295"):
        env = {**os.environ, "PYTHONHASHSEED": hashseed}
        told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
        assert told.stdout.split() == list(reversed(GOLDEN.values()))
    assert {(n, s, v): draw(n, s, PRIMARY, v).random().hex() for n, s, v in GOLDEN} == GOLDEN


def test_each_argument_makes_another_draw() -> None:
    """Name, seed (also none and 0), content and variation all count; the same arguments begin anew."""
    asked: list[tuple[Any, ...]] = [("crop", 0, PRIMARY, 0), ("flip", 0, PRIMARY, 0), ("crop", None, PRIMARY, 0)]
    asked += [("crop", 1, PRIMARY, 0), ("crop", 0, PRIMARY[::-1], 0), ("crop", 0, PRIMARY, 1)]
    assert len({draw(*arguments).random() for arguments in asked}) == len(asked)
    assert draw(*asked[0]).random() == draw(*asked[0]).random()


def test_draws_of_many_contents_are_uniform() -> None:
    """The first number over 4,000 contents fills each tenth about evenly (within 5 standard deviations)."""
    counts = [0] * 10
    for number in range(4000):
        counts[int(draw("crop", None, number.to_bytes(32, "big"), 0).random() * 10)] += 1
    assert all(abs(count - 400) < 5 * (4000 * 0.09) ** 0.5 for count in counts)


@pytest.mark.parametrize("name", ["", None, 3])
def test_a_draw_without_a_name_is_refused(name: Any) -> None:
    """Nobody could agree with it."""
    with pytest.raises(UsageError, match="name"):
        draw(name, None, PRIMARY, 0)
