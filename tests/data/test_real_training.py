"""A little training with the real encoder on real photos: what is cached changes nothing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader

import casstore

taef2 = pytest.importorskip("taef2")
if not taef2.WEIGHTS.is_file():
    pytest.skip(f"the real weights aren't at {taef2.WEIGHTS}", allow_module_level=True)

COUNT, EPOCHS = 4, 3


def train(epochs: Any) -> list[float]:
    """The losses of a small denoiser on these epochs of batches, each bfloat16 [n, 32, h, w]."""
    torch.manual_seed(0)
    denoiser = nn.Sequential(nn.Conv2d(32, 16, 3, padding=1), nn.SiLU(), nn.Conv2d(16, 32, 3, padding=1))
    optimizer = torch.optim.AdamW(denoiser.parameters(), 1e-3)
    noises = torch.Generator().manual_seed(0)  # its own: a DataLoader draws from the global one
    losses = []
    for batches in epochs:
        for latent in batches:
            noise = torch.randn(latent.shape, generator=noises)
            loss = nn.functional.mse_loss(denoiser(latent.float() + noise), noise)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


def test_cached_training_has_the_losses_of_uncached_training(
    store: casstore.Store, photos: list[Path], tmp_path: Path
) -> None:
    """Three epochs, shuffled: from workers, in process, and with the encoder in the loop: equal to the last bit."""
    encoder, in_the_loop, paths = taef2.Taef2(), taef2.Taef2(), photos[:COUNT]
    inputs = store.inputs([{"sample": path.name, "image": path} for path in paths])
    plan = store.plan(inputs, encoder.recipe, resolution="64x64")
    assert store.build(plan, encoder, batch_size=1).encoded == COUNT
    orders = [torch.randperm(COUNT, generator=torch.Generator().manual_seed(epoch)).tolist() for epoch in range(EPOCHS)]

    def encoded(path: Path) -> torch.Tensor:
        with Image.open(path) as image:
            pixels, _ = encoder.recipe.preprocess(image.convert("RGB"), (64, 64))
        latent: torch.Tensor = in_the_loop([SimpleNamespace(image=pixels)])[0]["latent"]
        return latent

    uncached = train(
        [torch.stack([encoded(paths[n]) for n in order[start : start + 2]]) for start in range(0, COUNT, 2)]
        for order in orders
    )
    with store.dataset(image=plan) as dataset:
        workers = train(
            (batch["latent"] for batch in DataLoader(dataset, batch_size=2, sampler=order, num_workers=2))
            for order in orders
        )
        inside = train((batch["latent"] for batch in dataset.batches(order, 2)) for order in orders)
    assert len(uncached) == EPOCHS * COUNT / 2
    assert workers == uncached
    assert inside == uncached
    assert encoder.calls == COUNT
