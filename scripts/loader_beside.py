"""Four readers beside four writers, against four readers beside four processes that burn as much of the CPU."""

from __future__ import annotations

import itertools
import multiprocessing
import random
import statistics
import threading
import time
from pathlib import Path
from typing import Any

import loader_data
import numpy as np
import zstandard
from loader_data import Sample
from timing import spread

import casstore
from casstore.errors import StoreBusyError
from casstore.identity.keys import Key

EACH = 4
SECONDS = 5.0
GROUP = 16  # samples that a writer puts together
SLICE_SECONDS = 0.002
KINDS = ("dataset[i]", "store.get(key)")


def beside(path: Path, dataset: casstore.data.Dataset, rounds: int) -> None:
    """Print how much longer the slowest hundredth of reads takes beside writers.

    Args:
        path: of the store, which grows.
        dataset: of that store.
        rounds: pairs of runs.
    """
    context = multiprocessing.get_context("spawn")
    readers = [_Process(context, _reader, path, dataset, n) for n in range(EACH)]
    others = [_Process(context, _other, path, n) for n in range(EACH)]
    for process in (*readers, *others):
        process.ask("ready")
    errors, shares = 0, []
    slow: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
    for _ in range(rounds):
        pair: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for task in ("write", "burn"):
            for process in readers:
                process.send("read", SECONDS)
            for process in others:
                process.send(task, SECONDS)
            told, burnt = [process.receive() for process in readers], [process.receive() for process in others]
            errors += sum(each[1] for each in (*told, *burnt))
            shares.append(sum(each[0] for each in burnt))
            for kind in KINDS:
                times = list(itertools.chain.from_iterable(each[0][kind] for each in told))
                pair[kind].append(float(np.percentile(times, 99)))
        for kind in KINDS:
            slow[kind].append(pair[kind])
    for process in (*readers, *others):
        process.close()
    print(f"  {EACH} readers beside {EACH} writers, x beside {EACH} processes that burn as much CPU, {rounds} pairs")
    for kind in KINDS:
        told_ms = f"{1000 * statistics.median(burn for _, burn in slow[kind]):.1f} ms"
        print(f"    p99 of {kind:<14}, x {told_ms:>8}           {spread([a / b for a, b in slow[kind]])}   goal <= 1.5")
    written, burning = statistics.median(shares[::2]), statistics.median(shares[1::2])
    print(f"    cores that writers used, and burners         {written:6.2f}  {burning:.2f}")
    print(f"    lock errors                                  {errors:6}   goal 0")


class _Process:
    """One that does what it is asked, again and again."""

    def __init__(self, context: Any, target: Any, *arguments: Any) -> None:
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=target, args=(other, *arguments), daemon=True)
        self._process.start()
        other.close()

    def send(self, *question: Any) -> None:
        self._pipe.send(question)

    def receive(self) -> Any:
        return self._pipe.recv()

    def ask(self, *question: Any) -> Any:
        self.send(*question)
        return self.receive()

    def close(self) -> None:
        self.send("end")
        self._process.join()


def _reader(pipe: Any, path: Path, dataset: casstore.data.Dataset, seed: int) -> None:
    """Items of the dataset and by key, in turn."""
    rng = random.Random(seed)
    recipe = casstore.Recipe("latent", code=1)
    with casstore.open(path) as store:
        calls = (
            lambda n: dataset[n],
            lambda n: store.get(Key.text(f"text {n}", recipe)),
        )
        for _ in range(20):
            assert all(call(rng.randrange(len(dataset))) is not None for call in calls)
        while (question := pipe.recv()) != ("end",):
            times: dict[str, list[float]] = {kind: [] for kind in KINDS}
            errors, end = 0, time.perf_counter() + (question[1] if question[0] == "read" else 0)
            while time.perf_counter() < end:
                for kind, call in zip(KINDS, calls, strict=True):
                    number, began = rng.randrange(len(dataset)), time.perf_counter()
                    try:
                        call(number)
                    except StoreBusyError:
                        errors += 1
                    times[kind].append(time.perf_counter() - began)
            pipe.send((times, errors))


def _other(pipe: Any, path: Path, seed: int) -> None:
    """Writes new samples; or compresses them, for the share of the CPU that writing took just before."""
    tensors = loader_data.samples()
    recipe = casstore.Recipe("beside", code=1)
    raw = loader_data.packed(tensors[0])[: 1 << 18]
    share, numbers = 0.5, itertools.count(8192 * (seed + 1))  # others than those that are stored
    with casstore.open(path) as store:
        while (question := pipe.recv()) != ("end",):
            task, seconds = question[0], question[-1] if len(question) > 1 else 0
            began, used, errors = time.perf_counter(), time.process_time(), 0
            while task == "write" and time.perf_counter() - began < seconds:
                errors += _write(store, recipe, tensors, [next(numbers) for _ in range(GROUP)])
            if task == "burn":
                threads = [threading.Thread(target=_burn, args=(raw, seconds, share / 2)) for _ in range(2)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
            spent = (time.process_time() - used) / (time.perf_counter() - began)
            share = spent if task == "write" else share
            pipe.send((spent, errors))


def _burn(data: bytes, seconds: float, share: float) -> None:
    """Compress; one of two threads of a process, since a writer has a thread that commits, too."""
    began, used = time.perf_counter(), time.thread_time()
    while (passed := time.perf_counter() - began) < seconds:
        if time.thread_time() - used < share * passed:
            zstandard.compress(data, 1)
        else:
            time.sleep(SLICE_SECONDS)


def _write(store: casstore.Store, recipe: casstore.Recipe, tensors: list[Sample], numbers: list[int]) -> int:
    """How many of these samples met a lock error."""
    try:
        with store.batch() as batch:
            for number in numbers:
                batch.put(Key.text(f"beside {number}", recipe), loader_data.sample(tensors, number))
    except StoreBusyError:
        return len(numbers)
    return 0
