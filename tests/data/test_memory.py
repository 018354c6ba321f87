"""Where batches lie: memory that is used again, and memory that travels to another process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from data.helpers import COUNT
from torch.utils.data import DataLoader

from casstore.data import loading

SQUARE = [n for n in range(COUNT) if n % 3 < 2]  # rows of one shape


@pytest.fixture
def strategy() -> Iterator[None]:
    """How torch shares memory is put right again."""
    before = torch.multiprocessing.get_sharing_strategy()
    yield
    torch.multiprocessing.set_sharing_strategy(before)


def test_batches_that_are_kept_stay_as_they_are(training: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are read after them; the memory of those that were dropped is used again."""
    monkeypatch.setattr(loading, "LARGE", 1)
    order = SQUARE * 4
    with training.dataset() as dataset:
        expected = [dataset[n]["latent"].clone() for n in order]
        kept = list(dataset.batches(order, 2))
        for _ in dataset.batches(order[::-1], 2):
            pass
        assert torch.equal(torch.cat([batch["latent"] for batch in kept]), torch.stack(expected))
        places = {batch["latent"].data_ptr() for batch in kept}
        assert len(places) == len(kept)
        one = kept[0]["latent"][1]
        del kept
        again = list(dataset.batches(order[::-1], 2))
        assert places & {batch["latent"].data_ptr() for batch in again}
        assert torch.equal(one, expected[1])


@pytest.mark.parametrize("lacking", ["nothing", "memfd", "descriptors"])
def test_workers_give_the_same_whatever_memory_there_is(
    training: Any, monkeypatch: pytest.MonkeyPatch, strategy: None, lacking: str
) -> None:
    """Also where writes are short."""
    if lacking == "memfd":
        monkeypatch.delattr(os, "memfd_create")
    elif lacking == "descriptors":
        torch.multiprocessing.set_sharing_strategy("file_system")
    else:
        write = os.pwrite
        monkeypatch.setattr(os, "pwrite", lambda descriptor, data, offset: write(descriptor, data[:100], offset))
    with training.dataset() as dataset:
        alone = list(DataLoader(dataset, batch_size=3, sampler=SQUARE))
        options: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": "fork"}
        shared = list(DataLoader(dataset, batch_size=3, sampler=SQUARE, **options))
    for one, other in zip(alone, shared, strict=True):
        assert other["latent"].is_shared()
        for name in ("latent", "hidden"):
            assert torch.equal(one[name], other[name])
