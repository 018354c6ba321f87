"""Getting by path: what a file holds now decides, for the price of one stat where that can be trusted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import FakeEncoder, build, clock_ahead, edit_in_place, expected_of, picture, python, spy, without_ctime

import casstore
from casstore.errors import (
    AmbiguousResolutionError,
    MissError,
    PictureError,
    SourceNotFoundError,
    UsageError,
)

READ = "casstore.sources.fresh.read_source"


@pytest.fixture
def encoder() -> FakeEncoder:
    return FakeEncoder()


@pytest.fixture
def path(store: casstore.Store, tmp_path: Path, encoder: FakeEncoder, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A picture that is stored at 64x64 and settled."""
    clock_ahead(monkeypatch)
    drawn = picture(tmp_path / "data" / "a.bmp", size=(128, 64))
    build(store, drawn.parent, encoder)
    return drawn


def get(store: casstore.Store, path: Any, encoder: FakeEncoder, **options: Any) -> Any:
    return store.get(path, encoder.recipe, as_numpy=True, **options)["latent"]


def test_the_only_stored_resolution_is_the_default(store: casstore.Store, path: Path, encoder: FakeEncoder) -> None:
    """Without a resolution, get gives what is stored if that is just one thing."""
    np.testing.assert_array_equal(get(store, path, encoder), expected_of(path, "64x64", encoder.recipe))


def test_several_stored_resolutions_must_be_told_apart(store: casstore.Store, path: Path, encoder: FakeEncoder) -> None:
    """With several stored, get without a resolution is an error that lists them all, the full size too."""
    build(store, path.parent, encoder, resolution="64x128")
    build(store, path.parent, encoder, resolution=None)
    with pytest.raises(AmbiguousResolutionError) as error:
        get(store, path, encoder)
    assert all(name in str(error.value) for name in ("'64x64'", "'64x128'", "None"))


@pytest.mark.parametrize("resolution", ["64x64", "64x128", 128, None])
def test_a_resolution_picks_what_a_build_stored_for_it(
    store: casstore.Store, path: Path, encoder: FakeEncoder, resolution: Any
) -> None:
    """The resolution of a build, area, "HxW" or None, gives in get what that build stored."""
    for stored in ("64x128", 128, None):
        build(store, path.parent, encoder, resolution=stored)
    key = store.key(path, encoder.recipe, resolution=resolution)
    wanted = expected_of(path, key.resolution or "64x128", encoder.recipe)
    np.testing.assert_array_equal(get(store, path, encoder, resolution=resolution), wanted)
    np.testing.assert_array_equal(get_key(store, key), wanted)


def get_key(store: casstore.Store, key: casstore.Key) -> Any:
    return store.get(key, as_numpy=True)["latent"]


@pytest.mark.parametrize("resolution", ["128x64", 256, None])
def test_a_resolution_that_is_not_stored_is_a_miss(
    store: casstore.Store, path: Path, encoder: FakeEncoder, resolution: Any
) -> None:
    """No other resolution is served in its place (case T11); the miss says which are stored."""
    with pytest.raises(MissError, match="64x64") as error:
        get(store, path, encoder, resolution=resolution)
    assert error.value.miss is not None and error.value.miss.reason == "resolution"


def test_a_known_settled_file_is_not_opened(
    store: casstore.Store, path: Path, encoder: FakeEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the last scan saw and trusted costs one stat."""
    opened = spy(monkeypatch, READ)
    get(store, path, encoder)
    assert opened == []


def test_an_unknown_path_is_hashed(store: casstore.Store, path: Path, tmp_path: Path, encoder: FakeEncoder) -> None:
    """A copy that was never scanned is served by its bytes."""
    copy = tmp_path / "elsewhere.bin"
    copy.write_bytes(path.read_bytes())
    np.testing.assert_array_equal(get(store, copy, encoder), get(store, path, encoder))


@pytest.mark.parametrize("restore_mtime", [False, True])
def test_an_edited_file_is_a_miss(store: casstore.Store, path: Path, encoder: FakeEncoder, restore_mtime: bool) -> None:
    """An edit since the last scan, with the mtime put back too, is a miss and never the old tensor."""
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    if restore_mtime:
        edit_in_place(path, bytes(data))
    else:
        path.write_bytes(data)
    with pytest.raises(MissError):
        get(store, path, encoder)


def test_a_young_file_is_hashed_by_get(
    store: casstore.Store, tmp_path: Path, encoder: FakeEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An edit that no stat can tell, of a file that was young when it was scanned, is a miss all the same."""
    without_ctime(monkeypatch)
    path = picture(tmp_path / "data" / "a.bmp")
    build(store, path.parent, encoder)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    edit_in_place(path, bytes(data))
    with pytest.raises(MissError):
        get(store, path, encoder)


def test_a_miss_is_a_key_error(store: casstore.Store, path: Path) -> None:
    """Code that treats the store like a dict can catch KeyError."""
    with pytest.raises(KeyError, match="new"):
        store.get(path, casstore.Recipe("other"), as_numpy=True)


@pytest.mark.parametrize("name", ["nothing.png", "folder", "a.bmp/inside"])
def test_a_path_without_a_file_is_an_error_that_names_it(
    store: casstore.Store, path: Path, encoder: FakeEncoder, name: str
) -> None:
    """A missing file isn't a miss: it is a SourceNotFoundError (a FileNotFoundError) with the path."""
    (path.parent / "folder").mkdir()
    with pytest.raises(SourceNotFoundError, match=str(path.parent / name)):
        get(store, path.parent / name, encoder)


def test_a_deleted_file_is_not_served_by_its_path(store: casstore.Store, path: Path, encoder: FakeEncoder) -> None:
    """A known file that has gone is an error as well, though its tensor is stored."""
    path.unlink()
    with pytest.raises(FileNotFoundError):
        get(store, path, encoder)


def test_an_area_needs_a_picture(store: casstore.Store, path: Path, encoder: FakeEncoder) -> None:
    """For a file whose size can't be told, a resolution N is a PictureError that says what to do."""
    path.write_bytes(b"a red cat")
    with pytest.raises(PictureError, match="HxW"):
        get(store, path, encoder, resolution=64)


def test_a_path_needs_a_recipe_and_a_key_has_one(store: casstore.Store, path: Path, encoder: FakeEncoder) -> None:
    """get(path) without a recipe and get(key, recipe) are mistakes of the caller's."""
    with pytest.raises(UsageError, match="recipe"):
        store.get(path)
    key = store.key(path, encoder.recipe)
    with pytest.raises(UsageError, match="leave them out"):
        store.get(key, encoder.recipe)
    with pytest.raises(UsageError, match="leave them out"):
        store.get(key, resolution="64x64")


def test_lookup_says_what_get_would_give(store: casstore.Store, path: Path, encoder: FakeEncoder) -> None:
    """A Hit has the shapes and dtypes, a Miss the reason, and no object is opened."""
    hit = store.lookup(store.key(path, encoder.recipe))
    assert isinstance(hit, casstore.Hit)
    assert (hit.layout["latent"].dtype, hit.layout["latent"].shape) == ("F32", (4, 8, 8))
    miss = store.lookup(store.key(path, encoder.recipe, resolution="64x128"))
    assert isinstance(miss, casstore.Miss) and miss.reason == "resolution"


def test_forgetting_a_file_that_is_gone(store: casstore.Store, path: Path, encoder: FakeEncoder) -> None:
    """What a deleted file held can be forgotten by its path."""
    path.unlink()
    plan = store.forget(path)
    assert (plan.variants, plan.execute(), store.status().variants) == (1, 1, 0)


@pytest.mark.parametrize("work", ["build", "get"])
def test_torch_is_not_imported_for_arrays(tmp_path: Path, work: str) -> None:
    """A build with `pixels`, and a get with as_numpy, never import torch."""
    picture(tmp_path / "data" / "a.png")
    code = (
        "import sys, casstore\n"
        "from casstore.encoders.pixels import Pixels\n"
        "pixels = Pixels()\n"
        "with casstore.open('store', create=True, durability='off') as store:\n"
        "    plan = store.plan(store.scan('data'), pixels.recipe, resolution=64)\n"
        "    assert store.build(plan, pixels).encoded == 1\n"
        "    if sys.argv[1] == 'get':\n"
        "        assert store.get('data/a.png', pixels.recipe, as_numpy=True)['pixels'].shape == (3, 64, 64)\n"
        "print('torch' in sys.modules)\n"
    )
    done = python("-c", code, work, cwd=tmp_path)
    assert (done.stdout, done.stderr) == (b"False\n", b"")
