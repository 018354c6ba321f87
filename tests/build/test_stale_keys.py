"""Never the wrong tensor: what counts is a miss of exactly what it touches, what doesn't count changes nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import picture, python
from PIL import Image
from staling import CAPTIONS, Dataset, Settings, dump

import casstore

ALL = [f"{name}.png" for name in CAPTIONS]


@pytest.fixture
def dataset(store: casstore.Store, tmp_path: Path) -> Dataset:
    """All of it stored."""
    found = Dataset(tmp_path / "data")
    found.draw()
    assert found.build(store) == 6
    return found


# -- what counts -------------------------------------------------------------------------------------------------------


def one_pixel(folder: Path) -> None:
    path = folder / "a.png"
    pixels = np.array(Image.open(path))
    pixels[40:44, 60:64] ^= 128  # in what a crop leaves
    Image.fromarray(pixels).save(path)


def caption(folder: Path) -> None:
    (folder / "a.txt").write_text("a blue cat")


def mask(folder: Path) -> None:
    picture(folder / "a-masklabel.png", seed=77, size=(144, 96), mode="L")


def vae(**change: Any) -> Callable[[Settings], Settings]:
    return lambda settings: replace(settings, vae={**settings.vae, **change})


def clip(**change: Any) -> Callable[[Settings], Settings]:
    return lambda settings: replace(settings, clip={**settings.clip, **change})


def fit(**change: Any) -> Callable[[Settings], Settings]:
    return lambda settings: replace(settings, fit={**settings.fit, **change})


def also(**change: Any) -> Callable[[Settings], Settings]:
    return lambda settings: replace(settings, **change)


def both(settings: Settings) -> Settings:
    return clip(model="other")(vae(model="other")(settings))


IMAGES = {"image": {"recipe": ALL}}
TEXTS = {"text": {"recipe": ALL}}
CHANGES: Mapping[str, tuple[Callable[[Any], Any], Any]] = {
    "pixel": (one_pixel, {"image": {"edited": ["a.png"]}}),
    "caption": (caption, {"text": {"edited": ["a.png"]}}),
    "mask": (mask, {"image": {"member edited": ["a.png"]}}),
    "vae digest": (vae(weights="b" * 64), IMAGES),
    "dtype": (also(dtype="float16"), IMAGES),
    "resolution": (also(resolution="64x96"), {"image": {"resolution": ALL}}),
    "crop rule": (fit(crop="random"), IMAGES),
    "flip": (fit(flip="random"), IMAGES),
    "clip skip": (clip(clip_skip=2), TEXTS),
    "max length": (clip(max_length=225), TEXTS),
    "posterior": (vae(posterior="mean"), IMAGES),
    "scale": (vae(scale=0.18215), IMAGES),
    "seed": (also(seed=2), IMAGES),
    "tokenizer": (clip(tokenizer="u" * 64), TEXTS),
    "code version": (vae(code=2), IMAGES),
    "model type": (both, IMAGES | TEXTS),
    "prompt reader": (also(reader="lines-1"), {"text": {"new": ["b.png", "b.png"]}}),
    "names": (also(names=("latent", "latent_flipped")), {"image": {"output missing": ALL}}),
    "variation": (also(variations=2), {"image": {"variation": ALL}}),
    "preprocessing filter": (fit(filter="nearest"), IMAGES),
}
OF_FILES = ("pixel", "caption", "mask")


def test_there_are_twenty_changes() -> None:
    """As the issue lists them."""
    assert len(CHANGES) == 20


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_a_miss_of_exactly_what_it_touches(
    store: casstore.Store, dataset: Dataset, tmp_path: Path, name: str
) -> None:
    """The plans miss these rows for this reason and no others; as many encodes; then all that is served is what a new
    store makes, and it shows the change; taken back, everything is a hit and is served as before."""
    change, expected = CHANGES[name]
    before = dataset.served(store)
    files = {path: path.read_bytes() for path in dataset.path.iterdir()}
    if name in OF_FILES:
        change(dataset.path)
    else:
        dataset.settings = change(dataset.settings)
    assert dataset.misses(store) == expected
    count = sum(len(samples) for reasons in expected.values() for samples in reasons.values())
    assert dataset.build(store) == count
    assert (dataset.misses(store), dataset.build(store)) == ({}, 0)
    after = dataset.served(store)
    assert after == dataset.fresh(tmp_path / "fresh")
    shown = sum(after[at] != before.get(at) for at in after)
    assert shown == count or (name == "crop rule" and shown > 0)  # a crop may be drawn where it was
    dataset.settings = Settings()
    for path, data in files.items():
        path.write_bytes(data)
    assert (dataset.misses(store), dataset.build(store)) == ({}, 0)
    again = dataset.served(store)
    if name == "names":
        again = {at: {k: v for k, v in got.items() if k != "latent_flipped"} for at, got in again.items()}
    assert again == before


def test_all_changes_live_side_by_side(store: casstore.Store, dataset: Dataset) -> None:
    """Every setting is tried in one store; then each is served what it was served at first, without an encode."""
    changed = [change(Settings()) for name, (change, _) in CHANGES.items() if name not in (*OF_FILES, "names")]
    served = []
    for settings in changed:
        dataset.settings = settings
        assert dataset.build(store) > 0
        served.append(dataset.served(store))
    for settings, before in zip(changed, served, strict=True):
        dataset.settings = settings
        assert dataset.build(store) == 0
        assert dataset.served(store) == before


# -- what doesn't count ------------------------------------------------------------------------------------------------


def child(dataset: Dataset, store: casstore.Store, code: str = "", cwd: Path | None = None, **env: str) -> int:
    """The number of encodes of a build in a process of its own."""
    script = f"{code}\nimport staling; staling.main()"
    folder = os.path.relpath(dataset.path, cwd) if cwd is not None else str(dataset.path)
    done = python("-W", "error", "-c", script, store.path, folder, cwd=cwd, env=env)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return int(done.stdout)


def renamed(dataset: Dataset, store: casstore.Store) -> int:
    """Other names, in another folder, below another root."""
    for path in dataset.path.iterdir():
        path.rename(path.with_name(f"z{path.name}"))
    dataset.path = dataset.path.rename(dataset.path.with_name("elsewhere"))
    return dataset.build(store)


def touched(dataset: Dataset, store: casstore.Store) -> int:
    for number, path in enumerate(dataset.path.iterdir()):
        os.utime(path, (number, number))
    return dataset.build(store)


def reordered(dataset: Dataset, store: casstore.Store) -> int:
    """Rows of one's own, the last first."""
    rows = [
        {"sample": name, "image": path, "caption": path.with_suffix(".txt"), "mask": mask if mask.exists() else None}
        for name in reversed(CAPTIONS)
        if (path := dataset.path / f"{name}.png") and (mask := dataset.path / f"{name}-masklabel.png")
    ]
    return dataset.build(store, store.inputs(rows))


def elsewhere(dataset: Dataset, store: casstore.Store) -> int:
    (dataset.path.parent / "x" / "y").mkdir(parents=True)
    return child(dataset, store, cwd=dataset.path.parent / "x" / "y")


UNIX_ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
OTHER_HOST = "import socket; socket.gethostname = lambda: 'other'"
OTHER_USER = {"HOME": "/nonexistent", "USER": "other", "LOGNAME": "other", "USERNAME": "other"}
IRRELEVANT: Mapping[str, Callable[[Dataset, casstore.Store], int]] = {
    "path": renamed,
    "mtime": touched,
    "order": reordered,
    "locale": lambda dataset, store: child(dataset, store, **UNIX_ASCII),
    "PYTHONHASHSEED": lambda dataset, store: child(dataset, store, PYTHONHASHSEED="7"),
    "time zone": lambda dataset, store: child(dataset, store, TZ="Asia/Kolkata"),
    "batch size": lambda dataset, store: dataset.build(store, batch_size=1),
    "workers": lambda dataset, store: dataset.build(store, workers=1),
    "other recipes": lambda dataset, store: dataset.build(store),
    "cwd": elsewhere,
    "user": lambda dataset, store: child(dataset, store, **OTHER_USER),
    "host": lambda dataset, store: child(dataset, store, OTHER_HOST),
}


def test_there_are_twelve_things_that_do_not_count() -> None:
    """As the issue lists them."""
    assert len(IRRELEVANT) == 12


@pytest.mark.parametrize("name", IRRELEVANT)
def test_what_does_not_count_encodes_nothing_and_changes_no_row(
    store: casstore.Store, dataset: Dataset, name: str
) -> None:
    """No encode, and no row is another one but those that say where files are and who ran what."""
    if name == "other recipes":
        Dataset(dataset.path, both(Settings())).build(store)
    before, served = dump(store), dataset.served(store)
    assert IRRELEVANT[name](dataset, store) == 0
    assert dump(store) == before
    assert sorted(map(str, dataset.served(store).values())) == sorted(map(str, served.values()))


@pytest.mark.parametrize("options", [{"batch_size": 1}, {"batch_size": 3, "workers": 1}, {"workers": 7}], ids=str)
def test_a_new_store_is_the_same_whatever_the_batches(
    store: casstore.Store, dataset: Dataset, tmp_path: Path, options: dict[str, Any]
) -> None:
    """Batch size and number of threads leave no trace in what is made."""
    assert dataset.fresh(tmp_path / "fresh", **options) == dataset.served(store)


@pytest.mark.parametrize("env", [UNIX_ASCII, {"PYTHONHASHSEED": "7", "TZ": "Asia/Kolkata", **OTHER_USER}], ids=str)
def test_a_new_store_of_another_process_is_the_same(
    store: casstore.Store, dataset: Dataset, tmp_path: Path, env: dict[str, str]
) -> None:
    """Nor does the environment: a store that another process filled serves the same to this one, without an encode."""
    with casstore.open(tmp_path / "other", create=True, durability="off") as other:
        assert child(dataset, other, **env) == 6
        assert dataset.build(other) == 0
        assert dataset.served(other) == dataset.served(store)
