"""Building, against the encoder alone, against decoding alone, against putting; two processes against one; and a peer.

Encoders here sleep, as the processor does while a GPU is at work, and return real latents of 256 KiB.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from bench_codec import DATA
from bench_read import latents
from timing import spread

import casstore
from casstore.build.ahead import decode_ahead
from casstore.build.decode import Source, decode_row
from casstore.build.options import ITEM_TIMEOUT

RUNS = 3
BATCH = 8
RECIPE = casstore.Recipe("bench", code=1)
COUNTS = {0: 512, 5: 512, 20: 256, 40: 192}  # {ms per item: items}
PHOTOS = 192
PIXELS = 1_000_000
PEER_ITEMS = 5_000


def bench_build(folder: Path, peer: Path | None = None) -> None:
    """Encoders of 0 to 40 ms; photos of 1 MP; arrays against puts; two processes; `peer`: a checkout of mgds."""
    print(f"build: durability full, batches of {BATCH}, latents of 256 KiB, {RUNS} runs")
    made = latents()
    _arrays(folder, made)
    _photos(folder, made)
    _processes(folder)
    if peer is not None:
        _peer(folder, peer)


class Sleeps:
    """Sleeps so long per item, and returns a latent that no other item has; these are made before."""

    recipe = RECIPE

    def __init__(self, milliseconds: float, made: Sequence[Any], count: int) -> None:
        self._seconds = milliseconds / 1000
        self._ready = [made[number % len(made)].clone() for number in range(count)]
        for number, latent in enumerate(self._ready):
            latent.view(-1)[:16] = number // len(made)
        self.seconds = 0.0

    def __call__(self, items: Sequence[Any]) -> list[dict[str, Any]]:
        began = time.perf_counter()
        if self._seconds:
            time.sleep(self._seconds * len(items))
        results = [{"latent": self._ready.pop()} for _ in items]
        self.seconds += time.perf_counter() - began
        return results


def _alone(encoder: Sleeps, count: int) -> float:
    """Seconds of all calls, one after the other."""
    began = time.perf_counter()
    for start in range(0, count, BATCH):
        encoder(range(min(BATCH, count - start)))
    return time.perf_counter() - began


def _in_new_store(folder: Path, work: Callable[[casstore.Store], Any]) -> Any:
    """What work(store) returns, with a new store that goes afterwards."""
    place = folder / f"store-{time.time_ns()}"
    with casstore.open(place, create=True, durability="full") as store:
        found = work(store)
    shutil.rmtree(place)
    os.sync()  # or the next one waits for this one's data
    return found


def _array_plan(store: casstore.Store, count: int, first: int = 0) -> Any:
    rows = [{"sample": str(n), "array": np.full(16, n, dtype=np.int64)} for n in range(first, first + count)]
    return store.plan(store.inputs(rows), RECIPE)


def _timed(store: casstore.Store, plan: Any, encoder: Any, **options: Any) -> float:
    began = time.perf_counter()
    report = store.build(plan, encoder, batch_size=BATCH, progress=False, **options)
    seconds = time.perf_counter() - began
    assert report.encoded == report.planned, report
    return seconds


def _arrays(folder: Path, made: Sequence[Any]) -> None:
    _in_new_store(folder, lambda store: _timed(store, _array_plan(store, 64), Sleeps(0, made, 64)))  # warms up
    print("  arrays, encoder alone / build")
    for milliseconds, count in COUNTS.items():

        def pair(store: casstore.Store, ms: int = milliseconds, count: int = count) -> float:
            alone = _alone(Sleeps(ms, made, count), count)
            return alone / _timed(store, _array_plan(store, count), Sleeps(ms, made, count))

        goal = "   [0.95]" if milliseconds == 40 else ""
        found = [_in_new_store(folder, pair) for _ in range(RUNS)]
        print(f"    {milliseconds:2} ms per item, {count} items                   {spread(found)}{goal}")

    def putting(store: casstore.Store) -> float:
        """Rate of building with an encoder that costs nothing, of the rate of putting the same."""
        count = COUNTS[0]
        results = Sleeps(0, made, count)(range(count))
        keys = [casstore.Key.array(np.full(16, -1 - n, dtype=np.int64), RECIPE) for n in range(count)]
        began = time.perf_counter()
        with store.batch() as batch:
            for key, result in zip(keys, results, strict=True):
                batch.put(key, result)
        put = time.perf_counter() - began
        os.sync()
        for number, result in enumerate(results):
            result["latent"].view(-1)[16:32] = number % 7 + 1  # other tensors, or they would be there
        ready = iter(results)
        return put / _timed(store, _array_plan(store, count), lambda items: [next(ready) for _ in items])

    found = [_in_new_store(folder, putting) for _ in range(RUNS + 1)][1:]
    print(f"    an encoder that costs nothing, of the put rate {spread(found)}   [0.6]")


def _photos(folder: Path, made: Sequence[Any]) -> None:
    names = _make_photos(folder / "photos", PHOTOS)
    if not names:
        print(f"  no photos at {DATA} (CASSTORE_TEST_DATA says where)")
        return
    size = sum(name.stat().st_size for name in names) / len(names)
    threads = min(8, os.cpu_count() or 1)
    print(f"  {len(names)} photos of 1 MP, {size / 1000:.0f} KB, {threads} decode threads")
    for milliseconds in COUNTS:
        shares, walls = [], []

        def once(store: casstore.Store, ms: int = milliseconds) -> tuple[float, float]:
            plan = store.plan(store.scan(folder / "photos"), RECIPE)
            alone = _alone(Sleeps(ms, made, len(names)), len(names))
            decoding = _decoding(store, plan, threads)
            encoder = Sleeps(ms, made, len(names))
            wall = _timed(store, plan, encoder, workers=threads)
            return encoder.seconds / wall, wall / max(alone, decoding)

        for _ in range(RUNS):
            share, wall = _in_new_store(folder, once)
            shares.append(share)
            walls.append(wall)
        goal = "   [0.95]" if milliseconds == 40 else ""
        print(f"    {milliseconds:2} ms: encoder's share of wall                {spread(shares)}{goal}")
        print(f"           wall, x of the longer of encoding and decoding alone {spread(walls)}   [1.05]")


def _decoding(store: casstore.Store, plan: Any, threads: int) -> float:
    """Seconds that the decode threads take for a plan, with nothing else at work."""
    source = Source(store._handle, plan.recipe, plan.resolution)
    began = time.perf_counter()
    items = decode_ahead(
        iter(list(plan.misses)),
        lambda planned: decode_row(planned, source),
        threads=threads,
        depth=threads + 2 * BATCH,
        timeout=ITEM_TIMEOUT,
        stopped=bool,
        failed=lambda planned, error: None,
    )
    assert sum(1 for _ in items) == plan.planned
    return time.perf_counter() - began


def _make_photos(folder: Path, count: int) -> list[Path]:
    """JPEGs of about a megapixel and 200 KB, no two with the same pixels, made of the real photos."""
    from PIL import Image, ImageChops

    photos = sorted((DATA / "photos").glob("*.jpg"))
    if not photos:
        return []
    folder.mkdir()
    names = []
    for number in range(count):
        with Image.open(photos[number % len(photos)]) as image:
            picture = image.convert("RGB")
        scale = (PIXELS / (picture.width * picture.height)) ** 0.5
        picture = picture.resize((round(picture.width * scale), round(picture.height * scale)))
        picture = ImageChops.offset(picture, 16 * (number // len(photos)), 0)
        name = folder / f"{number:03}.jpg"
        for quality in (95, 90, 85, 80, 75, 65, 50):
            picture.save(name, quality=quality)
            if name.stat().st_size < 230_000:
                break
        names.append(name)
    os.sync()
    return names


def _process(place: str, count: int, ready: Any, go: Any, ended: Any) -> None:
    made = latents()
    with casstore.open(place) as store:
        plan = _array_plan(store, count)
        ready.release()
        go.wait()
        store.build(plan, Sleeps(20, made, count), batch_size=BATCH, progress=False)
        ended.put(time.monotonic())  # that a process with torch ends takes as long as a second


def _processes(folder: Path) -> None:
    """The rate of two builders in processes of their own, with the whole list each, by that of one."""
    context = multiprocessing.get_context("spawn")
    count = 400

    def seconds(number: int) -> float:
        place = folder / f"processes-{time.time_ns()}"
        casstore.open(place, create=True, durability="full").close()
        ready, go, ended = context.Semaphore(0), context.Event(), context.Queue()
        builders = [context.Process(target=_process, args=(str(place), count, ready, go, ended)) for _ in range(number)]
        for builder in builders:
            builder.start()
        for _ in builders:
            ready.acquire()
        os.sync()  # or the first groups wait for what was written before
        began = time.monotonic()
        go.set()
        taken = max(ended.get() for _ in builders) - began
        for builder in builders:
            builder.join()
        with casstore.open(place) as store:
            assert store.status().variants == count
        shutil.rmtree(place)
        return taken

    found = [seconds(1) / seconds(2) for _ in range(5)]
    print(f"  two processes, 20 ms per item, x of one         {spread(found)}   [1.8]")


class Full:
    """The tensors that the peer's pipeline gets, of files that are only hashed."""

    recipe = casstore.Recipe("full", code=1)
    reads = "path"

    def __call__(self, items: Sequence[Any]) -> list[dict[str, Any]]:
        import torch

        return [{"latent": torch.full((4, 8, 8), float(int(item.sample[-11:-4])))} for item in items]


def _peer(folder: Path, checkout: Path) -> None:
    """The first build of small items by SmartDiskCache (Nerogar/mgds, pull request 49) against scan, plan and build."""
    from bench_scan import _run
    from PIL import Image

    top = folder / "pictures"
    top.mkdir()
    for number in range(PEER_ITEMS):
        if number % 1000 == 0:
            (top / f"d{number // 1000:04}").mkdir()
        picture = Image.new("RGB", (8, 8), (number % 256, number // 256 % 256, number // 65536))
        picture.save(top / f"d{number // 1000:04}" / f"f{number:07}.png")
    source = checkout / "src" if (checkout / "src").is_dir() else checkout
    os.sync()

    def ours(store: casstore.Store) -> float:
        began = time.perf_counter()
        report = store.build(store.plan(store.scan(top), Full.recipe), Full(), batch_size=64, progress=False)
        seconds = time.perf_counter() - began
        assert report.encoded == PEER_ITEMS
        return seconds

    found = []
    for run in range(3):
        theirs = float(_run("peer", source, folder / f"peer-{run}", top)["seconds"])
        os.sync()
        found.append(theirs / _in_new_store(folder, ours))
    print(
        f"  SmartDiskCache's first build of {PEER_ITEMS:,} small items, x of scan, plan and build {spread(found)}   [4]"
    )
