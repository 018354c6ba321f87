"""What the loader benchmarks read: samples, a store of them, and the kinds of files that others keep them in."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_read import latents
from torch.utils.data import Dataset, IterableDataset

import casstore
from casstore.build.plan import Plan
from casstore.model import Item

BATCH = 16
LATENT = (16, 64, 64)  # bfloat16: 128 KiB
TEXT = (80, 3072)  # float16: 480 KiB
SHARD = 250  # samples of a tar file
_CUT = 2 * LATENT[0] * LATENT[1] * LATENT[2]
Sample = dict[str, torch.Tensor]


def samples() -> list[Sample]:
    """256 different samples: half a real bf16 latent, and noise in place of a text embedding."""
    generator = torch.Generator().manual_seed(0)
    text = torch.randn(*TEXT, generator=generator).half()
    return [
        {"latent": latent.flatten()[: _CUT // 2].reshape(LATENT), "hidden": torch.roll(text.flatten(), n).view(TEXT)}
        for n, latent in enumerate(latents())
    ]


def sample(tensors: Sequence[Sample], number: int) -> Sample:
    """One of any number of samples that all differ."""
    return {name: torch.roll(tensor, number) for name, tensor in tensors[number % len(tensors)].items()}


def planned(store: casstore.Store, codec: Any, count: int) -> dict[str, Plan]:
    """Plans of `count` rows in which latent and text are objects of their own."""
    inputs = store.inputs([{"sample": str(n), "caption": f"text {n}"} for n in range(count)])
    recipes = {name: casstore.Recipe(name, code=1, codec=codec) for name in ("latent", "hidden")}
    return {name: store.plan(inputs, recipe, role="caption") for name, recipe in recipes.items()}


def stored(
    folder: Path, codec: Any, tensors: Sequence[Sample], count: int, *, alike: bool = False
) -> casstore.data.Dataset:
    """A dataset of `count` rows whose samples all differ, or are `tensors` again and again."""
    store = casstore.open(folder, create=True, durability="off")
    for name, plan in planned(store, codec, count).items():

        def encode(items: list[Item], name: str = name) -> list[Sample]:
            numbers = [int(item.sample) for item in items]
            found = [tensors[n % len(tensors)][name] for n in numbers]
            return [{name: each if alike else torch.roll(each, n)} for n, each in zip(numbers, found, strict=True)]

        store.build(plan, encode, batch_size=64, progress=False)
    return store.dataset(**planned(store, codec, count))


class Ready(Dataset[Sample]):
    """Tensors that are in memory already: what a loader costs by itself."""

    def __init__(self, tensors: Sequence[Sample], count: int) -> None:
        self._tensors, self._count = tensors, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> Sample:
        return self._tensors[number % len(self._tensors)]


class Files(Dataset[Sample]):
    """A file per sample, as most training scripts have it: torch.save, or npz in float32."""

    def __init__(self, folder: Path, kind: str, tensors: Sequence[Sample], count: int) -> None:
        self._folder, self._kind, self._count = folder, kind, count
        folder.mkdir()
        for n in range(count):
            each = sample(tensors, n)
            if kind == "pt":
                torch.save(each, folder / f"{n}.pt")
            else:
                np.savez(folder / f"{n}.npz", **{name: tensor.float().numpy() for name, tensor in each.items()})

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> Sample:
        path = self._folder / f"{number}.{self._kind}"
        if self._kind == "pt":
            found: Sample = torch.load(path, weights_only=True)  # noqa: TID251
            return found
        with np.load(path) as arrays:
            return {name: torch.from_numpy(arrays[name]) for name in arrays}


def packed(each: Sample) -> bytes:
    """The bytes of a sample, as those store them who know its shapes."""
    return b"".join(each[name].view(torch.uint8).numpy().tobytes() for name in ("latent", "hidden"))


def unpacked(data: Any) -> Sample:
    """Tensors of their own from such bytes."""
    whole = np.frombuffer(data, np.uint8)
    latent, hidden = (torch.from_numpy(part.copy()) for part in (whole[:_CUT], whole[_CUT:]))
    return {"latent": latent.view(torch.bfloat16).view(LATENT), "hidden": hidden.view(torch.float16).view(TEXT)}


class Lmdb(Dataset[Sample]):
    """A value per sample in LMDB, read in place and copied once; opened by each worker, as its users do."""

    def __init__(self, folder: Path, tensors: Sequence[Sample], count: int) -> None:
        import lmdb

        self._folder, self._count, self._environment = folder, count, None
        environment = lmdb.open(str(folder), map_size=2 * count * len(packed(tensors[0])) + (1 << 30), sync=False)
        for start in range(0, count, SHARD):
            with environment.begin(write=True) as transaction:
                for n in range(start, min(start + SHARD, count)):
                    transaction.put(str(n).encode(), packed(sample(tensors, n)))
        environment.close()

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> Sample:
        if self._environment is None:
            import lmdb

            self._environment = lmdb.open(
                str(self._folder), readonly=True, lock=False, readahead=False, meminit=False, max_spare_txns=1
            )
        with self._environment.begin(buffers=True) as transaction:
            return unpacked(transaction.get(str(number).encode()))


class Tars(IterableDataset[Sample]):
    """WebDataset: tar files one after the other, each worker its share; the samples come in the order of the files."""

    def __init__(self, folder: Path, tensors: Sequence[Sample], count: int) -> None:
        import webdataset

        folder.mkdir()
        self._shards = []
        size = min(SHARD, -(-count // 2))  # a shard for each worker at least
        for start in range(0, count, size):
            self._shards.append(str(folder / f"{start:06}.tar"))
            with webdataset.TarWriter(self._shards[-1]) as tar:
                for n in range(start, min(start + size, count)):
                    tar.write({"__key__": f"{n:06}", "bin": packed(sample(tensors, n))})

    def __iter__(self) -> Iterator[Sample]:
        import webdataset

        each = webdataset.WebDataset(self._shards, shardshuffle=False, empty_check=False)
        return iter(each.map(lambda found: unpacked(found["bin"])))


def installed(module: str) -> bool:
    """Whether a peer can be compared with; says so if not."""
    found = importlib.util.find_spec(module) is not None
    if not found:
        print(f"  {module} isn't installed: not compared with")
    return found
