"""Scanning, against bare loops over the same files: unchanged, changed, known paths, hashing, growth, rows; and a peer.

What is timed in a new process is a function `child_*` below, which this file runs as a program of its own: imports and
an empty scan first, then the clock.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from blake3 import blake3
from timing import ratios, spread

import casstore
from casstore.build.cells import key_of
from casstore.index.sources import _in_root
from casstore.sources import hashing
from casstore.sources.fresh import contents_of
from casstore.sources.read import hash_source

FILES = 100_000
PER_FOLDER = 1000
RUNS = 7
ROUNDS = 5  # of changes
ENDINGS = (".bin",)
SETTLED_SECONDS = 2.2
LATE = 20  # files edited right before a scan, and again right after it
PEER_FILES = 20_000
RECIPE = casstore.Recipe("bench", code=1)


def bench_scan(folder: Path, *, files: int = FILES, large: bool = False, peer: Path | None = None) -> None:
    """All rows; `large` adds growth to a million files, `peer` a comparison with the SmartDiskCache in a checkout."""
    (folder / "empty").mkdir()
    _unchanged(folder, files)
    _hashing(folder, max(100, files // 50))
    if large:
        _growth(folder, 10 * files)
    if peer is not None:
        _peer(folder, peer, min(files, PEER_FILES))


# -- trees and processes -----------------------------------------------------------------------------------------------


def _make(top: Path, files: int, data: Callable[[int], bytes], ending: str = ".bin") -> list[str]:
    """Files with these bytes, PER_FOLDER to a folder; their paths below the top."""
    names = []
    for number in range(files):
        name = f"d{number // PER_FOLDER:04}/f{number:07}{ending}"
        if number % PER_FOLDER == 0:
            (top / name).parent.mkdir(parents=True)
        (top / name).write_bytes(data(number))
        names.append(name)
    return names


def _settle(store: Path, top: Path, endings: Sequence[str] = ENDINGS) -> None:
    """Scan until no file is read again and fingerprints stand for all of them."""
    time.sleep(SETTLED_SECONDS)
    with casstore.open(store, create=True, durability="off") as opened:
        for _ in range(2):
            opened.scan(top, extensions=endings)
        report = opened.scan(top, extensions=endings).report
        assert report.unchanged == report.files, report


def _run(name: str, *arguments: object) -> Any:
    """What child_<name> returns in a new process."""
    command = [sys.executable, __file__, name, *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def _warm_up(empty: str) -> None:
    with casstore.open(Path(empty).parent / "empty-store", create=True, durability="off") as store:
        store.scan(empty, extensions=ENDINGS)


def _ram() -> int:
    """KiB that this process has used at most."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def child_scan(store: str, top: str, empty: str, late: str = "", trust: str = "") -> dict[str, float]:
    """Open, scan, close.

    Args:
        store, top: what to scan into which store.
        empty: an empty folder.
        late: a file with paths; they are turned round right before the scan, and right after it.
        trust: not empty: a quick check.
    """
    _warm_up(empty)
    paths = Path(late).read_text().splitlines() if late else []
    before = _ram()
    _turn_round(paths)
    began = time.perf_counter()
    with casstore.open(store) as opened:
        report = opened.scan(top, extensions=ENDINGS, trust=bool(trust)).report
    seconds = time.perf_counter() - began
    _turn_round(paths)
    return {"seconds": seconds, "mib": (_ram() - before) / 1024, "files": report.files, "hashed": report.hashed}


def _turn_round(paths: Sequence[str]) -> None:
    for path in paths:
        with open(path, "r+b") as stream:
            data = stream.read()
            stream.seek(0)
            stream.write(data[::-1])


def child_bare(top: str, changed: str = "") -> float:
    """List the folders and ask for the state of each file; read and hash those that are named in `changed`."""
    paths = Path(changed).read_text().splitlines() if changed else []
    began = time.perf_counter()
    pending = [top]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.is_dir():
                    pending.append(entry.path)
                    continue
                state = entry.stat()
                _ = state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino
    for path in paths:
        _hash(path)
    return time.perf_counter() - began


def _hash(path: str) -> bytes:
    with open(path, "rb", buffering=0) as stream:
        return blake3(stream.read()).digest()


# -- rows of the table -------------------------------------------------------------------------------------------------


def _unchanged(folder: Path, files: int) -> None:
    top, store, empty = folder / "files", folder / "store", folder / "empty"
    model = {name: f"{number:012} {number % 7}".encode() for number, name in enumerate(_names(files))}
    _make(top, files, lambda number: f"{number:012} {number % 7}".encode())
    _settle(store, top)
    print(f"scan: {files:,} files in {-(-files // PER_FOLDER)} folders, warm, {RUNS} pairs; x of a bare loop")
    milliseconds = [1000 * float(_run("bare", top)) for _ in range(RUNS)]
    print(f"  ms of scandir and DirEntry.stat                {spread(milliseconds)}")
    same = ratios(lambda _: _run("scan", store, top, empty)["seconds"], lambda _: _run("bare", top), RUNS)
    print(f"  nothing changed, open and close included       {spread(same)}   [1.25]")
    trusted = [1000 * _run("scan", store, top, empty, "", "trust")["seconds"] for _ in range(RUNS)]
    print(f"  ms with trust                                  {spread(trusted)}")
    known, read = _run("known", store, top)
    print(f"  all as known paths, x os.stat                  {spread(known)}   [1.8]")
    print(f"  the same, and what each of them holds          {spread(read)}")
    counted, listed = _run("rows", store, top)
    print(f"  len of an unchanged scan, x the raw SELECT     {spread(counted)}")
    print(f"  its rows, one after the other, x the SELECT    {spread(listed)}")
    _changed(folder, model)


def _names(files: int) -> Iterator[str]:
    return (f"d{number // PER_FOLDER:04}/f{number:07}.bin" for number in range(files))


def child_known(store: str, top: str) -> tuple[list[float], list[float]]:
    """contents_of over all paths / os.stat over them; the same with a look at each content."""
    paths = [os.path.join(top, d, name) for d in sorted(os.listdir(top)) for name in sorted(os.listdir(f"{top}/{d}"))]
    with casstore.open(store) as opened:

        def ours(look: bool) -> float:
            began = time.perf_counter()
            cells = contents_of(opened._handle, paths)
            if look:
                assert all(cell.content is not None for cell in cells)
            return time.perf_counter() - began

        def reference(_: int) -> float:
            began = time.perf_counter()
            for path in paths:
                os.stat(path)
            return time.perf_counter() - began

        return ratios(lambda _: ours(False), reference, RUNS), ratios(lambda _: ours(True), reference, RUNS)


def child_rows(store: str, top: str) -> tuple[list[float], list[float]]:
    """Counting the rows of a scan, and looking at each / fetching the columns that they are made of."""
    with (
        casstore.open(store) as opened,
        contextlib.closing(sqlite3.connect(Path(store, "index.sqlite"))) as raw,
    ):
        root = raw.execute("SELECT id FROM roots").fetchone()[0]

        def counted(_: int) -> float:
            scan = opened.scan(top, extensions=ENDINGS)
            began = time.perf_counter()
            len(scan)
            return time.perf_counter() - began

        def listed(_: int) -> float:
            scan = opened.scan(top, extensions=ENDINGS)
            began = time.perf_counter()
            contents = [row.content for row in scan]
            seconds = time.perf_counter() - began
            assert None not in contents
            return seconds

        def reference(_: int) -> float:
            began = time.perf_counter()
            rows = raw.execute(_in_root.sql, (root,)).fetchall()
            seconds = time.perf_counter() - began
            assert rows
            return seconds

        return ratios(counted, reference, RUNS), ratios(listed, reference, RUNS)


def _changed(folder: Path, model: dict[str, bytes]) -> None:
    """Rounds of edits, new and moved files: time, and whether the index then says what is on the disk."""
    top, store = folder / "files", folder / "store"
    rng, files = random.Random(0), len(model)
    ever, missed, wrong = set(model.values()), 0, 0
    times = []
    for turn in range(ROUNDS):
        changed, late = _change(top, model, rng, turn, files)
        (folder / "late").write_text("\n".join(str(top / name) for name in late))
        (folder / "changed").write_text("\n".join(str(top / name) for name in (*changed, *late)))
        ours = _run("scan", store, top, folder / "empty", folder / "late")["seconds"]
        times.append(ours / _run("bare", top, folder / "changed"))
        ever |= set(model.values()) | {model[name][::-1] for name in late}
        missed += _missed(store, model | {name: model[name][::-1] for name in late})
        time.sleep(SETTLED_SECONDS)
        with casstore.open(store) as opened:
            opened.scan(top, extensions=ENDINGS)
        missed += _missed(store, model)
        with contextlib.closing(sqlite3.connect(store / "index.sqlite")) as raw:
            wrong += raw.execute("SELECT count(*) FROM hashes").fetchone()[0] != len(ever)
    print(f"  1 % edited, 0.5 % new, 0.5 % moved             {spread(times)}   [1.6]")
    print(f"  missed in {2 * ROUNDS} scans                             {missed:3}   [0]")
    print(f"  rounds in which a moved file lost its content  {wrong:3}   [0]")


def _change(
    top: Path, model: dict[str, bytes], rng: random.Random, turn: int, files: int
) -> tuple[list[str], list[str]]:
    """Change the files and the model; names of those to hash, and of those that are to be edited late."""
    some = rng.sample(sorted(model), files // 100 + files // 200 + LATE)
    edited, moved, late = some[: files // 100], some[files // 100 : -LATE], some[-LATE:]
    changed = list(edited)
    for number, name in enumerate(edited):
        # Half of them keep their size.
        data = f"{turn}{number:011} x".encode() + b"longer" * (number % 2)
        model[name] = data
        (top / name).write_bytes(data)
    for number in range(files // 200):
        name = f"d{rng.randrange(-(-files // PER_FOLDER)):04}/n{turn}-{number}.bin"
        model[name] = f"{turn} {number} new".encode()
        (top / name).write_bytes(model[name])
        changed.append(name)
    for number, name in enumerate(moved):
        place = f"d{rng.randrange(-(-files // PER_FOLDER)):04}/m{turn}-{number}.bin"
        model[place] = model.pop(name)
        (top / name).rename(top / place)
        changed.append(place)
    return changed, late


def _missed(store: Path, model: dict[str, bytes]) -> int:
    """How many files are held with another content than they have, or shouldn't be there."""
    query = (
        "SELECT d.relpath || '/' || s.name, h.digest FROM sources s JOIN directories d ON d.id = s.directory_id "
        "JOIN hashes h ON h.id = s.hash_id WHERE s.missing_since IS NULL AND s.error IS NULL"
    )
    with contextlib.closing(sqlite3.connect(store / "index.sqlite")) as raw:
        held = dict(raw.execute(query))
    wanted = {name: blake3(data).digest() for name, data in model.items()}
    return sum(held.get(name) != wanted.get(name) for name in held.keys() | wanted.keys())


# -- hashing -----------------------------------------------------------------------------------------------------------


def _hashing(folder: Path, count: int) -> None:
    """The first scan of files of 1 MB, one thread against one; two threads against two processes."""
    top = folder / "large"
    noise = random.Random(0).randbytes(1_000_000)
    names = _make(top, count, lambda number: number.to_bytes(8, "little") + noise[8:], ".bin")
    paths = [str(top / name) for name in names]
    stores = iter(range(1_000_000))
    os.sync()  # or the store's flushes wait for the files just made

    def ours(threads: int) -> float:
        hashing.THREADS = threads
        with casstore.open(folder / f"hashing-{next(stores)}", create=True) as store:
            began = time.perf_counter()
            store.scan(top, extensions=ENDINGS)
            return time.perf_counter() - began

    def reference(_: int) -> float:
        began = time.perf_counter()
        for path in paths:
            _hash(path)
        return time.perf_counter() - began

    print(f"  first scan of {count:,} files of 1 MB, {RUNS} pairs, one thread")
    print(
        f"    x of reading and BLAKE3                      {spread(ratios(lambda _: ours(1), reference, RUNS))}   [1.1]"
    )
    gain = _two_processes(paths)
    threads = ratios(lambda _: ours(1), lambda _: ours(2), RUNS)
    print(f"    two processes, x one                         {gain:6.2f}")
    print(f"    two threads, x one                           {spread(threads)}")
    print(f"    the share of that                            {statistics.median(threads) / gain:6.2f}   [0.85]")


def _hash_all(paths: Sequence[str], barrier: Any, out: Any) -> None:
    for _ in range(RUNS):
        barrier.wait()
        began = time.perf_counter()
        for path in paths:
            hash_source(path)
        out.put(time.perf_counter() - began)
        barrier.wait()


def _two_processes(paths: Sequence[str]) -> float:
    """What two processes that hash half of the files each gain over one that hashes all."""
    context = multiprocessing.get_context("spawn")
    medians = []
    for processes in (1, 2):
        barrier, out = context.Barrier(processes), context.Queue()
        parts = [paths[n::processes] for n in range(processes)]
        running = [context.Process(target=_hash_all, args=(part, barrier, out)) for part in parts]
        for process in running:
            process.start()
        medians.append(statistics.median([out.get() for _ in range(processes * RUNS)]))
        for process in running:
            process.join()
    return medians[0] / medians[1]


# -- growth ------------------------------------------------------------------------------------------------------------


def _growth(folder: Path, files: int) -> None:
    """A hundred times as many files: seconds per file, memory, and a quick check."""
    empty = folder / "empty"
    figures: dict[int, tuple[float, float]] = {}
    for count, runs in ((files // 100, RUNS), (files, 3)):
        top, store = folder / f"grown-{count}", folder / f"grown-store-{count}"
        _make(top, count, lambda _: b"")
        _settle(store, top)
        scans = [_run("scan", store, top, empty) for _ in range(runs)]
        bare = [float(_run("bare", top)) for _ in range(runs)]
        figures[count] = statistics.median([scan["seconds"] for scan in scans]), statistics.median(bare)
    (ours_few, bare_few), (ours, bare) = figures[files // 100], figures[files]
    print(f"  {files // 100:,} to {files:,} files, nothing changed")
    print(f"    x of a bare loop, few and many               {ours_few / bare_few:6.2f} {ours / bare:6.2f}")
    print(f"    seconds per file, x of the loop's own growth {(ours / ours_few) / (bare / bare_few):6.2f}   [1.25]")
    print(f"    MiB of RAM above the imports                 {spread([scan['mib'] for scan in scans])}   [50]")
    trusted = [_run("scan", store, top, empty, "", "trust") for _ in range(3)]
    assert all(scan["files"] == files for scan in trusted)
    print(f"    seconds with trust                           {spread([scan['seconds'] for scan in trusted])}   [0.3]")


# -- a peer ------------------------------------------------------------------------------------------------------------


def _peer(folder: Path, checkout: Path, files: int) -> None:
    """An epoch's start of SmartDiskCache (Nerogar/mgds, pull request 49) against opening, scanning and planning."""
    top, store, cache, empty = folder / "pictures", folder / "peer-store", folder / "peer-cache", folder / "empty"
    from PIL import Image

    top.mkdir()
    for number in range(files):
        if number % PER_FOLDER == 0:
            (top / f"d{number // PER_FOLDER:04}").mkdir()
        picture = Image.new("RGB", (8, 8), (number % 256, number // 256 % 256, number // 65536))
        picture.save(top / f"d{number // PER_FOLDER:04}" / f"f{number:07}.png")
    _settle(store, top, (".png",))
    _fill(store, top)
    source = checkout / "src" if (checkout / "src").is_dir() else checkout
    _run("peer", source, cache, top)  # builds
    touched = top / "d0000" / "f0000000.png"

    def touch() -> None:
        state = touched.stat()
        os.utime(touched, ns=(state.st_atime_ns, state.st_mtime_ns + 3_000_000_000))

    print(f"  SmartDiskCache, {files:,} pictures with a latent each, x of ours (planned: all are hits), 3 pairs")
    for name, change in (("fast path (nothing changed)", False), ("full validation (one touched)", True)):
        scans, plans = [], []
        for _ in range(3):
            if change:
                touch()
            peer = _run("peer", source, cache, top)
            scan, plan = _run("plan", store, top, empty)
            assert peer["fast"] != change, "the peer has taken the other path"
            scans.append(peer["seconds"] / scan)
            plans.append(peer["seconds"] / plan)
            time.sleep(SETTLED_SECONDS)
            _settle(store, top, (".png",))
        goal = 20 if change else 8
        print(f"    {name:<29}, x open and scan {spread(scans)}   [{goal}]")
        print(f"    {'':<29}  x with the plan {spread(plans)}")


def _fill(store: Path, top: Path) -> None:
    import torch

    with casstore.open(store) as opened:
        rows = opened.scan(top, extensions=(".png",))
        with opened.batch() as batch:
            for number, row in enumerate(rows):
                assert row.content is not None
                key = key_of({"image": row.first}, RECIPE, None)
                assert key is not None
                batch.put(key, {"latent": torch.full((4, 8, 8), float(number))})


def child_plan(store: str, top: str, empty: str) -> tuple[float, float]:
    """Seconds until the scan is done; until the plan is, too."""
    _warm_up(empty)
    with casstore.open(Path(empty).parent / "empty-store") as opened:
        opened.plan(opened.scan(empty, extensions=(".png",)), RECIPE)
    began = time.perf_counter()
    with casstore.open(store) as opened:
        scan = opened.scan(top, extensions=(".png",))
        scanned = time.perf_counter() - began
        plan = opened.plan(scan, RECIPE)
        planned = time.perf_counter() - began
        assert plan.hits == plan.planned, plan
    return scanned, planned


def child_peer(source: str, cache: str, top: str) -> dict[str, Any]:
    """One epoch's start of the peer: its module behind one that knows the paths and makes a tensor for each."""
    import io

    sys.path.insert(0, source)
    import torch
    from mgds.PipelineModule import PipelineModule, PipelineState  # type: ignore[import-not-found]
    from mgds.pipelineModules.SmartDiskCache import SmartDiskCache  # type: ignore[import-not-found]
    from mgds.pipelineModuleTypes.RandomAccessPipelineModule import (  # type: ignore[import-not-found]
        RandomAccessPipelineModule,
    )

    paths = [str(path) for path in sorted(Path(top).glob("*/*.png"))]

    class Upstream(PipelineModule, RandomAccessPipelineModule):  # type: ignore[misc]
        def length(self) -> int:
            return len(paths)

        def get_inputs(self) -> list[str]:
            return []

        def get_outputs(self) -> list[str]:
            return ["image_path", "latent_image"]

        def get_item(self, variation: int, index: int, requested_name: str | None = None) -> dict[str, Any]:
            if requested_name == "image_path":
                return {"image_path": paths[index]}
            return {"latent_image": torch.full((4, 8, 8), float(index))}

    class Pipeline:
        device = torch.device("cpu")

    module = SmartDiskCache(
        cache_dir=cache, split_names=["latent_image"], aggregate_names=[], source_path_in_name="image_path"
    )
    pipeline, state = Pipeline(), PipelineState(2)
    pipeline.modules = [Upstream(), module]  # type: ignore[attr-defined]
    for place, each in enumerate(pipeline.modules):  # type: ignore[attr-defined]
        each.init(pipeline, 0, place, state)
    module.current_variation = 0
    told = io.StringIO()
    with torch.no_grad(), contextlib.redirect_stdout(told), contextlib.redirect_stderr(io.StringIO()):
        began = time.perf_counter()
        module.start(0)
        seconds = time.perf_counter() - began
    return {"seconds": seconds, "fast": "Fast validation passed" in told.getvalue()}


if __name__ == "__main__":
    print(json.dumps(globals()[f"child_{sys.argv[1]}"](*sys.argv[2:])))
