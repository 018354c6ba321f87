"""Epochs beside other processes that collect, repack and damage what is read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from core.helpers import child, sql
from data.helpers import COUNT, encode_text
from kit import object_files
from torch.utils.data import DataLoader

import casstore

ROUNDS = 4
SQUARE = [n for n in range(COUNT) if n % 3 < 2]


@pytest.mark.parametrize("workers", [0, 2])
def test_epochs_are_equal_while_another_process_has_its_way(training: Any, workers: int) -> None:
    """gc without grace, repacks to and fro, forgetting, and files that vanish: each epoch has the same bits.

    What was forgotten stays for the dataset; what is damaged is made again, in whichever worker finds it.
    """
    path = training.store.path

    def work(me: Any) -> list[int]:
        swept = []
        with casstore.open(path) as mine:
            for number in range(ROUNDS):
                me.hear()
                mine.forget(training.image.row(number).key).execute()
                for codec in ("raw", "zstd"):
                    mine.repack(codec, yes=True)
                    swept.append(mine.gc(yes=True, grace_hours=0).swept)
                    files = object_files(path)
                    files[number * 5 % len(files)].unlink(missing_ok=True)
                me.say()
        return swept

    encoders = {"image": training.encoder, "text": encode_text}
    with training.dataset(encoders=encoders, names={"image": ["latent"], "text": ["hidden"]}) as dataset:

        def epoch() -> list[Any]:
            return [
                (batch["latent"].clone(), batch["hidden"].clone())
                for batch in DataLoader(dataset, batch_size=2, sampler=SQUARE, num_workers=workers)
            ]

        expected = epoch()
        with child(work) as other:
            for _ in range(ROUNDS):
                other.say()
                found = epoch()
                other.hear()
                for pair, same in zip(found, expected, strict=True):
                    assert all(map(torch.equal, pair, same))
            assert other.result() == [0] * 2 * ROUNDS  # of all that the dataset may read
    assert len(sql(training.store, "SELECT * FROM runs WHERE kind = 'build'")) > 2  # some of it was made again


def test_gc_loops_in_another_process_beside_readers(training: Any) -> None:
    """All of it forgotten, workers and threads read on; when the dataset is closed the next round takes it."""
    store = training.store

    def work(me: Any) -> int:
        rounds = swept = 0
        with casstore.open(store.path) as mine:
            me.say()
            while not swept:
                swept = mine.gc(yes=True, grace_hours=0).swept
                rounds += 1
        return rounds

    with training.dataset(names={"image": ["latent"], "text": ["hidden"]}) as dataset:
        for plan in (training.image, training.text):
            store.forget(plan.recipe).execute()
        count = len(object_files(store.path))
        with child(work) as other:
            other.hear()
            for batch in DataLoader(dataset, batch_size=2, sampler=SQUARE * 3, num_workers=2):
                assert batch["latent"].shape == (2, 4, 8, 8)
            for batch in dataset.batches(SQUARE * 3, 2):
                assert batch["latent"].shape == (2, 4, 8, 8)
            assert len(object_files(store.path)) == count
            dataset.close()
            assert other.result() > 0
    store.gc(yes=True, grace_hours=0)
    assert object_files(store.path) == []
