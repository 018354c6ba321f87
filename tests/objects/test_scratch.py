"""Memory that is handed out again."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from casstore.objects import scratch
from casstore.objects.scratch import ALIGNMENT, Recycled


def address(memory: scratch.Bytes) -> int:
    found: int = memory.__array_interface__["data"][0]
    return found


def test_memory_comes_back_once_nothing_uses_it() -> None:
    """A tensor over it, or a view of that, keeps it; what is dropped is taken again, also for a little less."""
    pool = Recycled()
    memory = pool.take(1000)
    place = address(memory)
    assert place % ALIGNMENT == 0 and memory.shape == (1000,) and memory.dtype == np.uint8
    view = torch.from_numpy(memory).view(10, 100)[3]
    del memory
    other = pool.take(1000)
    assert address(other) != place
    del view
    again = pool.take(900)
    assert address(again) == place and len(again) == 900
    assert address(pool.take(1000)) not in (place, address(other))


def test_what_is_much_too_large_is_left_for_others() -> None:
    """Or a small batch would hold the memory of a large one."""
    pool = Recycled()
    place = address(pool.take(1000))
    assert address(pool.take(499)) != place
    assert address(pool.take(1000)) == place


def test_idle_memory_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest goes first; a single piece may be as large as it likes."""
    monkeypatch.setattr(scratch, "IDLE_NBYTES", 2500)
    pool = Recycled()
    pieces = [pool.take(1000) for _ in range(4)]
    places = [address(piece) for piece in pieces]
    while pieces:
        del pieces[0]
    assert sorted(address(whole) for whole in pool._free.values()) == sorted(places[2:])
    pool.take(9000)
    assert [len(whole) for whole in pool._free.values()] == [9000]
