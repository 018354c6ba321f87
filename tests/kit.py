"""What tests share: a fake encoder that counts, pictures that are drawn, and the real photos where they are."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import sqlite3
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import casstore
from casstore.identity.recipes import Recipe
from casstore.model import Item

DATA = Path(os.environ.get("CASSTORE_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))
PHOTOS = DATA / "photos"
ROOT = Path(__file__).parents[1]


def fake_tensor(data: bytes, size: tuple[int, int], stamp: str) -> np.ndarray[Any, Any]:
    """A float32 tensor [4, height / 8, width / 8] that depends on every byte of all three arguments."""
    seed = hashlib.sha256(data + repr(size).encode() + stamp.encode()).digest()
    generator = np.random.default_rng(int.from_bytes(seed[:8], "little"))
    return generator.standard_normal((4, size[0] // 8, size[1] // 8), dtype=np.float32)


@dataclass
class FakeEncoder:
    """Makes fake tensors, counts its calls, and misbehaves on demand.

    Attributes:
        recipe: with a stride of 8, so that wrong shapes are noticed.
        seen: samples in the order they were encoded.
        before: called with each batch before it is encoded; may raise.
        change: {sample: function of the result dict}, for wrong results.
    """

    recipe: Recipe = field(default_factory=lambda: Recipe("fake", code=1, stride=8))
    seen: list[str] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    before: Callable[[list[Item]], None] | None = None
    change: Mapping[str, Callable[[dict[str, Any]], Any]] = field(default_factory=dict)

    def __call__(self, items: list[Item]) -> list[dict[str, Any]]:
        if self.before is not None:
            self.before(items)
        self.batches.append(len(items))
        results = []
        for item in items:
            self.seen.append(item.sample)
            result: Any = {"latent": expected(item, self.recipe)}
            if item.sample in self.change:
                result = self.change[item.sample](result)
            results.append(result)
        return results


def expected(item: Item, recipe: Recipe) -> np.ndarray[Any, Any]:
    """What FakeEncoder returns for an item."""
    assert item.data is not None and item.width is not None and item.height is not None
    height, width = (int(side) for side in item.resolution.split("x")) if item.resolution else (item.height, item.width)
    return fake_tensor(item.data, (height, width), recipe.spec)


def expected_of(path: Path, resolution: str, recipe: Recipe) -> np.ndarray[Any, Any]:
    """What is stored, after a build with FakeEncoder, for a file as it is now."""
    height, width = (int(side) for side in resolution.split("x"))
    return fake_tensor(path.read_bytes(), (height, width), recipe.spec)


def picture(path: Path, seed: int = 0, size: tuple[int, int] = (64, 64), mode: str = "RGB", **save: Any) -> Path:
    """Draw a picture of (width, height) pixels, different for each seed, and save it in the format of its ending."""
    generator = np.random.default_rng(seed)
    coarse = generator.integers(0, 256, (4, 4, 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).convert(mode).save(path, **save)
    return path


def pictures(folder: Path, count: int, size: tuple[int, int] = (64, 64)) -> list[Path]:
    """Draw `count` different PNG files in a folder."""
    return [picture(folder / f"p{i:03}.png", seed=i, size=size) for i in range(count)]


def png_bytes(image: Image.Image) -> bytes:
    """A picture as the bytes of a PNG file."""
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def age(*paths: Path, seconds: float = 10) -> None:
    """Set mtimes back, so that a scan may trust them (ctime can't be set back; tests inject the clock for that)."""
    for path in paths:
        found = path.stat()
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns - int(seconds * 1e9)))


def build(store: casstore.Store, folder: Path, encoder: Any, resolution: Any = "64x64", **options: Any) -> Any:
    """Scan, plan and build; the report."""
    plan = store.plan(store.scan(folder), encoder.recipe, resolution=resolution)
    return store.build(plan, encoder, **options)


def object_files(store_path: str | os.PathLike[str]) -> list[Path]:
    """All object files of a store, sorted."""
    return sorted(Path(store_path, "objects").glob("*/*"))


# -- for tests of scanning, building and the command line ------------------------------------------------------------


def clock_ahead(monkeypatch: Any, seconds: float = 60) -> None:
    """Let scans believe that it is later, so that files written just now count as settled."""
    import time

    monkeypatch.setattr("casstore.sources.clock.now_ns", lambda handle, device: time.time_ns() + int(seconds * 1e9))


def spy(monkeypatch: Any, target: str) -> list[Any]:
    """Replace a function, named by its dotted path, by one that does the same; the list of first arguments it got."""
    from importlib import import_module

    module, _, name = target.rpartition(".")
    real, calls = getattr(import_module(module), name), []

    def watched(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments[0] if arguments else None)
        return real(*arguments, **options)

    monkeypatch.setattr(target, watched)
    return calls


def edit_in_place(path: Path, data: bytes) -> None:
    """Overwrite a file's bytes, keep its size and mtime; returns when its ctime has moved on."""
    before = path.stat()
    assert len(data) == before.st_size
    with open(path, "r+b") as stream:
        stream.write(data)
    while path.stat().st_ctime_ns == before.st_ctime_ns or path.stat().st_mtime_ns != before.st_mtime_ns:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def check_counts(report: Any, *, stopped: bool = False) -> Any:
    """The report itself, if its counts add up: planned = hits + encoded + by_others + failed + left."""
    counts = (report.hits, report.encoded, report.by_others, report.failed, report.left)
    assert min(counts) >= 0 and sum(counts) == report.planned, counts
    assert report.failed == len(report.failures) and len({f.sample for f in report.failures}) == report.failed
    assert stopped or report.left == 0, counts
    assert sum(report.reasons.values()) >= report.encoded + report.by_others + report.failed
    return report


def as_nobody(work: Callable[[Path], Any], prepare: Callable[[Path], Any] | None = None) -> Any:
    """What `work(folder)` returns, as JSON, in a forked child that has no rights beyond its own empty folder.

    Args:
        work: run in the child, in the folder.
        prepare: run before in this process, with its rights.
    """
    import json
    import pkgutil
    import shutil
    import tempfile
    import traceback
    from importlib import import_module

    for module in pkgutil.walk_packages(casstore.__path__, "casstore."):  # the child may not be able to import
        if not module.name.endswith("__main__"):
            import_module(module.name)
    Image.init()
    with tempfile.TemporaryDirectory() as place:  # what is imported by the first recipe and the first store only
        FakeEncoder()
        casstore.open(Path(place, "s"), create=True, durability="off").close()
    folder = Path(tempfile.mkdtemp(prefix="casstore-nobody-"))
    try:
        if prepare is not None:
            prepare(folder)
        os.chown(folder, *((65534, 65534) if os.getuid() == 0 else (-1, -1)))
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                if os.getuid() == 0:
                    os.setgroups([])
                    os.setgid(65534)
                    os.setuid(65534)
                os.chdir(folder)
                answer = {"value": work(folder)}
            except BaseException:
                answer = {"error": traceback.format_exc()}
            os.write(writing, json.dumps(answer).encode())
            os._exit(0)
        os.close(writing)
        with open(reading, "rb") as stream:
            answer = json.loads(stream.read())
        os.waitpid(child, 0)
        assert "error" not in answer, answer["error"]
        return answer["value"]
    finally:
        shutil.rmtree(folder)


def python(*arguments: Any, cwd: Path | None = None, env: Mapping[str, str] | None = None, **options: Any) -> Any:
    """Run this Python in a child process with the tests' modules at hand; the finished process with its output."""
    import subprocess
    import sys

    environment = {name: value for name, value in os.environ.items() if name != "CASSTORE_STORE"}
    extra = os.pathsep.join([str(ROOT / "tests"), environment.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    environment |= {"PYTHONPATH": extra, **(env or {})}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, timeout=120, check=False, **options)


def without_ctime(monkeypatch: Any) -> None:
    """Blind casstore to ctime, which no program can set: what is noticed then is noticed by other means."""
    monkeypatch.setattr("casstore.sources.fresh.what_counts", lambda handle: (False, True))
    from casstore.index.sources import Stat

    def blind(cls: type[Stat], found: os.stat_result) -> Stat:
        return Stat(found.st_size, found.st_mtime_ns, 0, found.st_ino)

    monkeypatch.setattr(Stat, "of", classmethod(blind))


FIXTURES = sorted((ROOT / "tests" / "fixtures").glob("store-*.tar.xz"))


def old_store(folder: Path, archive: Path = FIXTURES[0]) -> Path:
    """A store of an old schema, unpacked."""
    with tarfile.open(archive) as found:
        found.extractall(folder, filter="tar")
    return folder / "store"


def dump(path: Path) -> str:
    """The whole index of a store as SQL."""
    with contextlib.closing(sqlite3.connect(path / "index.sqlite")) as index:
        return "\n".join(index.iterdump())
