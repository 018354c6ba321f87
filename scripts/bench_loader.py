"""Training epochs: a DataLoader and in-process batches, against ready tensors and what others keep samples in."""

from __future__ import annotations

import os
import pickle  # noqa: TID251
import random
import shutil
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import chart
from loader_beside import beside
from loader_data import BATCH, LATENT, TEXT, Files, Lmdb, Ready, Tars, installed, samples, stored
from loader_first import first_batch
from loader_mgds import Smart
from timing import interleaved, spread
from torch.utils.data import DataLoader, Dataset

SAMPLES = 4000
ROUNDS = 7
PAIRS = 5  # of runs beside writers
LARGE = 1_000_000  # entries of an index
Run = Callable[[], float]
Times = dict[str, list[float]]
Goals = tuple[tuple[str, str, str], ...]

# (what, x the rate of what, goal)
AGAINST_FILES: Goals = (
    ("raw", "torch.load", ">= 1.6"),
    ("raw", "npz", ">= 2.6"),
    ("zstd", "torch.load", ">= 1.25"),
    ("zstd", "npz", ">= 2"),
    ("raw, in process", "torch.load", ">= 5"),
    ("raw, in process", "npz", ">= 10"),
    ("zstd, in process", "torch.load", ">= 2"),
    ("zstd, in process", "npz", ">= 3"),
)
AGAINST_PACKS: Goals = (
    ("raw", "LMDB", ">= 1.1"),
    ("zstd", "LMDB", ">= 0.85"),
    ("raw", "WebDataset", ">= 1.5"),
    ("zstd", "WebDataset", ">= 1.5"),
)
AGAINST_MGDS: Goals = (
    ("raw, in process", "SmartDiskCache", ">= 3"),
    ("zstd, in process", "SmartDiskCache", ">= 3"),
)


def bench_loader(
    folder: Path, *, count: int = SAMPLES, large: bool = False, peer: Path | None = None, svg: Path | None = None
) -> None:
    """Epochs in random order; every figure is a ratio to a run of the same round.

    Args:
        folder: an empty one.
        count: of samples.
        large: the first batch in an index of a million, too.
        peer: a checkout of mgds that has SmartDiskCache.
        svg: a file for a chart of the rates.
    """
    kib = [2 * size >> 10 for size in (LATENT[0] * LATENT[1] * LATENT[2], TEXT[0] * TEXT[1])]
    print(
        f"loader: {count:,} samples of {kib[0]} KiB bf16 latent + {kib[1]} KiB fp16 text, batch {BATCH}, random order"
    )
    print(f"  warm, {ROUNDS} rounds, {os.cpu_count()} cores, 2 workers or threads; median (lowest to highest)")
    tensors = samples()
    order = random.Random(0).sample(range(count), count)
    ours = {codec: stored(folder / codec, codec, tensors, count) for codec in ("raw", "zstd")}

    def loader(dataset: Dataset[Any], sampler: Iterable[int] | None = order) -> Run:
        return lambda: epoch(DataLoader(dataset, batch_size=BATCH, sampler=sampler, num_workers=2))

    def inside(codec: str) -> Run:
        return lambda: epoch(ours[codec].batches(order, BATCH))

    always = {"ready tensors": loader(Ready(tensors, count))}
    workers = {codec: loader(dataset) for codec, dataset in ours.items()}
    threads = {f"{codec}, in process": inside(codec) for codec in ours}
    rates: dict[str, list[float]] = {}  # in those of ready tensors

    def compare(runs: dict[str, Run], goals: Goals) -> Times:
        os.sync()  # or the files just made are written meanwhile
        times = interleaved(always | runs, ROUNDS)
        _tell(times, goals)
        for name, each in times.items():
            rates.setdefault(name, [b / a for a, b in zip(each, times["ready tensors"], strict=True)])
        return times

    files = {name: Files(folder / kind, kind, tensors, count) for name, kind in (("torch.load", "pt"), ("npz", "npz"))}
    times = compare(workers | threads | {name: loader(each) for name, each in files.items()}, AGAINST_FILES)
    for kind in ("pt", "npz"):
        shutil.rmtree(folder / kind)  # all that is compared at a time has to stay in the page cache
    packs: dict[str, Run] = {}
    if installed("lmdb"):
        packs["LMDB"] = loader(Lmdb(folder / "lmdb", tensors, count))
    if installed("webdataset"):
        packs["WebDataset"] = loader(Tars(folder / "tars", tensors, count), None)
    if packs:
        compare(workers | packs, AGAINST_PACKS)
    for kind in ("lmdb", "tars"):
        shutil.rmtree(folder / kind, ignore_errors=True)
    if peer is not None:
        smart = Smart(peer, folder / "mgds", count)
        compare(threads | {"SmartDiskCache": smart.epoch}, AGAINST_MGDS)
        smart.close()
        shutil.rmtree(folder / "mgds")
    else:
        print("  no --peer (a checkout of mgds): not compared with SmartDiskCache")
    if svg is not None:
        svg.write_text(_chart(rates, count, statistics.median(times["ready tensors"])))
    _sizes(ours["zstd"], order)
    beside(folder / "zstd", ours["zstd"], PAIRS)
    if large:
        first_batch(folder / "large", tensors, LARGE)


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


def _tell(times: Times, goals: Goals) -> None:
    if "torch.load" in times:
        print(f"  samples/s of ready tensors                     {1 / statistics.median(times['ready tensors']):6.0f}")
        for codec, goal in (("raw", "<= 1.15"), ("zstd", "<= 1.5")):
            told = _ratio(times, codec, "ready tensors")
            print(f"  {codec:<16}, x the time of ready tensors   {told}   goal {goal}")
    for name, other, goal in goals:
        if other in times:
            print(f"  {name:<16}, x the rate of {other:<14}   {_ratio(times, other, name)}   goal {goal}")


def _ratio(times: Times, one: str, other: str) -> str:
    return spread([a / b for a, b in zip(times[one], times[other], strict=True)])


def _chart(rates: dict[str, list[float]], count: int, seconds: float) -> str:
    in_process = [name for name in rates if name.endswith("in process") or name == "SmartDiskCache"]
    names = sorted(rates, key=lambda name: -statistics.median(rates[name]))
    groups = {
        heading: {name.removesuffix(", in process"): rates[name] for name in names if (name in in_process) == inside}
        for heading, inside in (("in process", True), ("DataLoader with 2 workers", False))
    }
    note = f"{count:,} samples of 608 KiB, batch 16, warm, {os.cpu_count()} cores; 1 = {1 / seconds:,.0f} samples/s"
    return chart.bars("Samples per second, ready tensors from 2 workers = 1", note, groups, ours=("raw", "zstd"))


def _sizes(dataset: Any, order: list[int]) -> None:
    manifest = len(pickle.dumps(dataset._manifest))
    print(f"  bytes of a pickled manifest per sample         {manifest / len(order):6.0f}")
    print(
        f"  bytes of a pickled dataset beyond its manifest {len(pickle.dumps(dataset)) - manifest:6.0f}   goal < 1024"
    )
    print(f"  MB that a worker grows by                      {max(_growth(dataset, order)) / 1e6:6.1f}   goal <= 50")


class _Grown(Dataset[int]):
    """Tells how much memory of its own a worker has taken since it began."""

    def __init__(self, dataset: Any) -> None:
        self._dataset, self._start = dataset, 0

    def __getitems__(self, numbers: list[int]) -> list[int]:
        self._start = self._start or _own()
        self._dataset.__getitems__(numbers)
        return [_own() - self._start]

    def __len__(self) -> int:
        return len(self._dataset)


def _growth(dataset: Any, order: list[int]) -> Iterator[int]:
    """Bytes, after each batch of an epoch."""
    options: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "spawn", "collate_fn": list}
    for batch in DataLoader(_Grown(dataset), batch_size=BATCH, sampler=order, **options):
        yield batch[0]


def _own() -> int:
    with open("/proc/self/statm") as stream:
        _, resident, shared, *_ = map(int, stream.read().split())
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
