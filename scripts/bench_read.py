"""Reading by key, warm: one latent and many, against torch.load of the same tensors in the same run."""

from __future__ import annotations

import functools
import multiprocessing
import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from bench_codec import DATA
from timing import RUNS, ratios, spread

import casstore
from casstore.core.pool import THREADS

COUNT = 256  # latents of 256 KiB
MANY = 64


def latents() -> list[torch.Tensor]:
    """bf16 latents of [16, 96, 88] or so, 256 KiB each: real ones, rolled, so that no two are equal."""
    if (DATA / "latents_bf16.safetensors").is_file():
        from safetensors.torch import load_file

        real = list(load_file(DATA / "latents_bf16.safetensors").values())
    else:
        print(f"  no real latents at {DATA} (CASSTORE_TEST_DATA says where): noise takes their place")
        generator = torch.Generator().manual_seed(0)
        real = [torch.randn(16, 64, 128, generator=generator).bfloat16()]
    return [torch.roll(real[n % len(real)].flatten(), n).reshape(real[n % len(real)].shape) for n in range(COUNT)]


def bench_read(folder: Path) -> None:
    """get and get_many of compressed and raw objects; by new memory, and into the caller's."""
    tensors = latents()
    print(f"read: {COUNT} latents of {tensors[0].numel() * 2 >> 10} KiB, bf16, warm, {RUNS} pairs; x of torch.load")
    files = [folder / f"{n}.pt" for n in range(COUNT)]
    for file, tensor in zip(files, tensors, strict=True):
        torch.save(tensor.clone(), file)
    order = random.Random(0).sample(range(COUNT), COUNT)
    mine = torch.empty_like(tensors[0])
    batch = torch.empty(MANY, *tensors[0].shape, dtype=torch.bfloat16)

    def per_item(work: Callable[[int], Any], count: int = COUNT) -> Callable[[int], float]:
        def run(_: int) -> float:
            began = time.perf_counter()
            for n in order[:count]:
                work(n)
            return (time.perf_counter() - began) / count

        return run

    reference = per_item(lambda n: torch.load(files[n], weights_only=True))  # noqa: TID251
    for codec in ("zstd", "raw"):
        recipe = casstore.Recipe("bench", code=1, codec=codec)  # type: ignore[arg-type]
        keys = [casstore.Key.text(str(n), recipe) for n in range(COUNT)]
        with casstore.open(folder / codec, create=True, durability="off") as store:
            with store.batch() as puts:
                for key, tensor in zip(keys, tensors, strict=True):
                    puts.put(key, {"latent": tensor})
            groups = [[keys[n] for n in order[start : start + MANY]] for start in range(0, COUNT, MANY)]

            def many(
                _: int,
                groups: Sequence[Sequence[casstore.Key]] = groups,
                store: casstore.Store = store,
                out: dict[str, torch.Tensor] | None = None,
            ) -> float:
                began = time.perf_counter()
                for group in groups:
                    store.get_many(group, out=out)
                return (time.perf_counter() - began) / COUNT

            fresh = ratios(many, reference)
            into = ratios(functools.partial(many, out={"latent": batch}), reference)
            get = ratios(per_item(lambda n, s=store, k=keys: s.get(k[n])), reference)
            given = ratios(per_item(lambda n, s=store, k=keys: s.get(k[n], out={"latent": mine})), reference)
            print(f"  get, {codec:<4}                                      {spread(get)}")
            print(f"  get, {codec:<4}, into given memory                   {spread(given)}")
            print(f"  get_many({MANY}), {codec:<4}, per item                    {spread(fresh)}")
            print(f"  get_many({MANY}), {codec:<4}, into a batch, per item      {spread(into)}")
            if codec == "raw":
                mapped = per_item(lambda n, s=store, k=keys: s.get(k[n], mmap=True))
                print(f"  get, raw, mapped                               {spread(ratios(mapped, reference))}")
    began = [reference(0) for _ in range(RUNS)]
    print(f"  us of torch.load                               {spread([1e6 * seconds for seconds in began])}")
    _scaling(folder / "zstd", [casstore.Key.text(str(n), casstore.Recipe("bench", code=1)) for n in order[:MANY]])


def _loop(path: Path, keys: Sequence[casstore.Key], barrier: Any, out: Any, rounds: int) -> None:
    with casstore.open(path) as store:
        memory = torch.empty(16, 64, 128, dtype=torch.bfloat16)
        first = store.get(keys[0])["latent"]
        memory = torch.empty_like(first)
        for _ in range(rounds):
            barrier.wait()
            began = time.perf_counter()
            for key in keys:
                store.get(key, out={"latent": memory})
            out.put(time.perf_counter() - began)
            barrier.wait()


def _scaling(path: Path, keys: Sequence[casstore.Key]) -> None:
    """What two threads of get_many gain, as a share of what two processes gain in the same run."""
    context = multiprocessing.get_context("spawn")
    speeds: dict[int, list[float]] = {}
    for processes in (1, 2):
        barrier, out = context.Barrier(processes), context.Queue()
        running = [context.Process(target=_loop, args=(path, keys, barrier, out, RUNS)) for _ in range(processes)]
        for process in running:
            process.start()
        times = [out.get() for _ in range(processes * RUNS)]
        for process in running:
            process.join()
        speeds[processes] = [processes * len(keys) / seconds for seconds in times]
    two = statistics.median(speeds[2]) / statistics.median(speeds[1])
    from casstore.core import pool

    with casstore.open(path) as store:
        batch = torch.empty(len(keys), *store.get(keys[0])["latent"].shape, dtype=torch.bfloat16)

        def run(threads: int) -> float:
            pool.THREADS = threads
            began = time.perf_counter()
            store.get_many(keys, out={"latent": batch})
            return time.perf_counter() - began

        gains = ratios(lambda _: run(1), lambda _: run(2))
    print(f"  two processes, x one                           {two:6.2f}")
    print(f"  get_many with two threads, x one               {spread(gains)}")
    print(f"  the share of that                              {statistics.median(gains) / two:6.2f}")
    print(f"  cores {os.cpu_count()}, threads by default {THREADS}")
