"""Training epochs: a DataLoader and in-process batches against ready tensors and against other kinds of files."""

from __future__ import annotations

import gc
import itertools
import os
import pickle  # noqa: TID251
import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_read import latents
from timing import spread
from torch.utils.data import DataLoader

import casstore
from casstore.model import Item

SAMPLES = 1200
BATCH = 16
ROUNDS = 7
TEXT = (77, 3072)  # float16: 462 KiB
Run = Callable[[], float]


class Ready(torch.utils.data.Dataset[dict[str, Any]]):
    """Tensors that are in memory already: what a loader costs by itself."""

    def __init__(self, tensors: Sequence[dict[str, torch.Tensor]]) -> None:
        self._tensors = tensors

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        return self._tensors[number % len(self._tensors)]


class Files(torch.utils.data.Dataset[dict[str, Any]]):
    """A file per sample, as most training scripts have it: torch.save, or npz in float32."""

    def __init__(self, folder: Path, kind: str) -> None:
        self._folder, self._kind = folder, kind

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        path = self._folder / f"{number}.{self._kind}"
        if self._kind == "pt":
            found: dict[str, torch.Tensor] = torch.load(path, weights_only=True)  # noqa: TID251
            return found
        with np.load(path) as arrays:
            return {name: torch.from_numpy(arrays[name]) for name in arrays}


def samples() -> list[dict[str, torch.Tensor]]:
    """256 different samples: half a real bf16 latent (128 KiB), and noise in place of a text embedding."""
    generator = torch.Generator().manual_seed(0)
    text = torch.randn(*TEXT, generator=generator).half()
    return [
        {"latent": latent.flatten()[: 1 << 16].reshape(16, 64, 64), "hidden": torch.roll(text.flatten(), n).view(TEXT)}
        for n, latent in enumerate(latents())
    ]


def stored(folder: Path, codec: Any, tensors: Sequence[dict[str, torch.Tensor]]) -> casstore.data.Dataset:
    """A store of SAMPLES rows in which latent and text are objects of their own."""
    rows = [{"sample": str(n), "caption": f"text {n}"} for n in range(SAMPLES)]
    store = casstore.open(folder, create=True, durability="off")
    plans = {}
    for name in ("latent", "hidden"):

        def encode(items: list[Item], name: str = name) -> list[dict[str, Any]]:
            numbers = [int(item.sample) for item in items]
            return [{name: torch.roll(tensors[n % len(tensors)][name], n)} for n in numbers]

        recipe = casstore.Recipe(name, code=1, codec=codec)
        inputs = store.inputs(rows)
        store.build(store.plan(inputs, recipe, role="caption"), encode, batch_size=64)
        plans[name] = store.plan(inputs, recipe, role="caption")
    return store.dataset(**plans)


def epoch(batches: Iterable[Any]) -> float:
    """Seconds per sample, after the first batch, which waits for the workers to start."""
    each = iter(batches)
    next(each)
    began, count = time.perf_counter(), 0
    for batch in each:
        count += len(batch["latent"])
    took = time.perf_counter() - began
    del each
    return took / count


def bench_loader(folder: Path) -> None:
    """Epochs in random order; every figure is a ratio to a run of the same round."""
    text = 2 * TEXT[0] * TEXT[1] >> 10
    print(f"loader: {SAMPLES} samples of 128 KiB bf16 latent + {text} KiB fp16 text, batch {BATCH}, random order, warm")
    print(f"  {ROUNDS} rounds, {os.cpu_count()} cores; median (lowest to highest)")
    tensors = samples()
    ours = {codec: stored(folder / codec, codec, tensors) for codec in ("raw", "zstd")}
    for kind in ("pt", "npz"):
        (folder / kind).mkdir()
    for n in range(SAMPLES):
        sample = {name: torch.roll(tensor, n) for name, tensor in tensors[n % len(tensors)].items()}
        torch.save(sample, folder / "pt" / f"{n}.pt")
        np.savez(folder / "npz" / f"{n}.npz", **{name: tensor.float().numpy() for name, tensor in sample.items()})
    order = random.Random(0).sample(range(SAMPLES), SAMPLES)

    def loader(dataset: Any, workers: int) -> Run:
        return lambda: epoch(DataLoader(dataset, batch_size=BATCH, sampler=order, num_workers=workers))

    def inside(dataset: Any) -> Run:
        return lambda: epoch(dataset.batches(order, BATCH))

    runs: dict[str, Run] = {
        "ready": loader(Ready(tensors), 2),
        "raw": loader(ours["raw"], 2),
        "zstd": loader(ours["zstd"], 2),
        "torch.load": loader(Files(folder / "pt", "pt"), 2),
        "npz": loader(Files(folder / "npz", "npz"), 2),
        "raw, in process": inside(ours["raw"]),
        "zstd, in process": inside(ours["zstd"]),
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    for name, run in itertools.chain.from_iterable([list(runs.items())] * (ROUNDS + 1)):
        gc.collect()
        times[name].append(run())
    times = {name: each[1:] for name, each in times.items()}  # the first round warms up

    def ratio(one: str, other: str) -> str:
        return spread([a / b for a, b in zip(times[one], times[other], strict=True)])

    print(f"  samples/s of ready tensors, 2 workers          {1 / statistics.median(times['ready']):6.0f}")
    for codec, goal in (("raw", "<= 1.15"), ("zstd", "<= 1.5")):
        print(f"  {codec:<4}, 2 workers, x of ready tensors' time     {ratio(codec, 'ready')}   goal {goal}")
    for name, other, goal in (
        ("raw", "torch.load", ">= 1.6"),
        ("zstd", "torch.load", ">= 1.25"),
        ("raw", "npz", ">= 2.6"),
        ("zstd", "npz", ">= 2"),
    ):
        print(f"  {name:<4}, 2 workers, x the rate of {other:<10}     {ratio(other, name)}   goal {goal}")
    for codec, goals in (("raw", (">= 5", ">= 10")), ("zstd", (">= 2", ">= 3"))):
        for other, goal in zip(("torch.load", "npz"), goals, strict=True):
            told = ratio(other, f"{codec}, in process")
            print(f"  {codec:<4}, in process, x 2 workers' {other:<10}      {told}   goal {goal}")
    manifest = len(pickle.dumps(ours["zstd"]._manifest))
    print(f"  bytes of a pickled manifest per sample         {manifest / SAMPLES:6.0f}")
    print(f"  bytes of a pickled dataset beyond its manifest {len(pickle.dumps(ours['zstd'])) - manifest:6.0f}")
    print(f"  MB that a worker grows by                      {max(growth(ours['zstd'], order)) / 1e6:6.1f}")


class Grown(torch.utils.data.Dataset[int]):
    """Tells how much memory of its own a worker has taken since it began."""

    def __init__(self, dataset: Any) -> None:
        self._dataset, self._start = dataset, 0

    def __getitems__(self, numbers: list[int]) -> list[int]:
        self._start = self._start or _own()
        self._dataset.__getitems__(numbers)
        return [_own() - self._start]

    def __len__(self) -> int:
        return SAMPLES


def growth(dataset: Any, order: list[int]) -> Iterator[int]:
    """Bytes, after each batch of an epoch."""
    options: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "spawn", "collate_fn": list}
    for batch in DataLoader(Grown(dataset), batch_size=BATCH, sampler=order, **options):
        yield batch[0]


def _own() -> int:
    with open("/proc/self/statm") as stream:
        _, resident, shared, *_ = map(int, stream.read().split())
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
