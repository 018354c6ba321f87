"""The digest of weights: the first time, against BLAKE3 of as many bytes, and again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
from blake3 import blake3
from safetensors.torch import save_file
from timing import ratios, spread
from torch import nn

import casstore

CHANNELS = 384
BLOCKS = 31  # of 8 tensors each: as many as an SDXL VAE has, and about as many bytes
RUNS = 9


def bench_weights(folder: Path) -> None:
    """A module and a file of 248 tensors."""
    module = nn.Sequential(
        *(
            nn.Sequential(*(layer for _ in range(2) for layer in (nn.GroupNorm(32, CHANNELS), _convolution())))
            for _ in range(BLOCKS)
        )
    )
    state = module.state_dict()
    nbytes = sum(tensor.nbytes for tensor in state.values())
    print(f"weights: {len(state)} tensors, {nbytes / 1e6:.0f} MB, {RUNS} pairs")
    path = folder / "model.safetensors"
    save_file(state, path)
    old = path.stat().st_mtime + 3
    while time.time() < old:  # a younger file isn't remembered
        time.sleep(0.1)
    data = torch.zeros(nbytes, dtype=torch.uint8).numpy()

    def hashed(_: int) -> float:
        return _seconds(lambda: blake3(data.data).hexdigest())

    def first(_: int) -> float:
        return _seconds(lambda: casstore.weights_digest(module, fresh=True))

    def again(_: int) -> float:
        return _seconds(lambda: casstore.weights_digest(module))

    def read(_: int) -> float:
        return _seconds(lambda: casstore.weights_digest(path, fresh=True))

    print(f"  a module, x of BLAKE3                        {spread(ratios(first, hashed, RUNS))}")
    print(f"  a file (warm), x of BLAKE3                   {spread(ratios(read, hashed, RUNS))}")
    shares = [100 * ratio for ratio in ratios(again, first, RUNS)]
    print(f"  a module again, % of the first time          {spread(shares)}")
    known = [1000 * _seconds(lambda: casstore.weights_digest(path)) for _ in range(RUNS)]
    print(f"  a file again, ms                             {spread(known)}")
    stats = [1000 * _seconds(lambda: os.stat(path)) for _ in range(RUNS)]
    print(f"  os.stat of it, ms                            {spread(stats)}")


def _convolution() -> nn.Module:
    return nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
