"""Planning: what is stored, what isn't and why, without opening a picture."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import FakeEncoder, build, check_counts, expected_of, object_files, picture, pictures, spy
from PIL import Image

import casstore
from casstore.errors import MissError, UsageError
from casstore.identity.recipes import Recipe


def reasons(store: casstore.Store, folder: Path, recipe: Recipe, resolution: Any = "64x64") -> dict[str, int]:
    """Why the files of a folder aren't served."""
    return dict(store.plan(store.scan(folder), recipe, resolution=resolution).reasons)


@pytest.fixture
def encoder() -> FakeEncoder:
    return FakeEncoder()


@pytest.fixture
def stored(store: casstore.Store, tmp_path: Path, encoder: FakeEncoder) -> list[Path]:
    """Two pictures that are stored at 64x64."""
    paths = pictures(tmp_path / "data", 2)
    check_counts(build(store, tmp_path / "data", encoder))
    return paths


def test_what_was_never_stored_is_new(store: casstore.Store, tmp_path: Path, encoder: FakeEncoder) -> None:
    """Pictures that the store knows nothing of miss as "new"."""
    pictures(tmp_path / "data", 2)
    assert reasons(store, tmp_path / "data", encoder.recipe) == {"new": 2}


def test_what_is_stored_is_a_hit(store: casstore.Store, stored: list[Path], encoder: FakeEncoder) -> None:
    """After a build everything is a hit and no reason is left."""
    plan = store.plan(store.scan(stored[0].parent), encoder.recipe, resolution="64x64")
    assert (plan.planned, plan.hits, list(plan.misses), plan.reasons) == (2, 2, [], {})


def test_new_bytes_in_a_known_file_are_edited(store: casstore.Store, stored: list[Path], encoder: FakeEncoder) -> None:
    """A file whose content changed since it was encoded misses as "edited"."""
    picture(stored[0], seed=99)
    assert reasons(store, stored[0].parent, encoder.recipe) == {"edited": 1}


def test_another_recipe_of_the_same_name_is_recipe(store: casstore.Store, stored: list[Path]) -> None:
    """What is stored under another recipe of this name misses as "recipe"; under another name it is "new"."""
    assert reasons(store, stored[0].parent, Recipe("fake", code=2)) == {"recipe": 2}
    assert reasons(store, stored[0].parent, Recipe("other")) == {"new": 2}


@pytest.mark.parametrize("resolution", ["64x128", 128, None])
def test_another_resolution_is_resolution(
    store: casstore.Store, stored: list[Path], encoder: FakeEncoder, resolution: Any
) -> None:
    """What is stored at another resolution only misses as "resolution"."""
    assert reasons(store, stored[0].parent, encoder.recipe, resolution) == {"resolution": 2}


def test_a_lost_object_is_damaged_until_a_build_heals_it(
    store: casstore.Store, stored: list[Path], encoder: FakeEncoder
) -> None:
    """After an object file has gone, get is a miss, "damaged", so is the plan, and a build makes it again."""
    folder, recipe = stored[0].parent, encoder.recipe
    for path in object_files(store.path):
        path.unlink()
    with pytest.raises(MissError) as error:
        store.get(stored[0], recipe, as_numpy=True)
    assert error.value.miss is not None and error.value.miss.reason == "damaged"
    assert reasons(store, folder, recipe) == {"damaged": 1}
    assert check_counts(build(store, folder, encoder)).encoded == 1
    got = store.get(stored[0], recipe, as_numpy=True)["latent"]
    np.testing.assert_array_equal(got, expected_of(stored[0], "64x64", recipe))


def test_a_picture_that_failed_is_failed(store: casstore.Store, tmp_path: Path, encoder: FakeEncoder) -> None:
    """A picture whose decoding failed misses as "failed" with the message of then."""
    path = picture(tmp_path / "data" / "a.jpg")
    path.write_bytes(path.read_bytes()[:-9])
    first = check_counts(build(store, path.parent, encoder))
    plan = store.plan(store.scan(path.parent), encoder.recipe, resolution="64x64")
    assert dict(plan.reasons) == {"failed": 1}
    assert plan.misses[0].miss is not None and plan.misses[0].miss.detail == first.failures[0].message


@pytest.mark.parametrize("resolution", [64, "64x64", None])
def test_a_file_whose_header_was_refused_is_failed(
    store: casstore.Store, tmp_path: Path, encoder: FakeEncoder, resolution: Any
) -> None:
    """A file that is no picture misses as "failed" from the first plan on, at any resolution."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jpg").write_text("a red cat")
    assert reasons(store, tmp_path / "data", encoder.recipe, resolution) == {"failed": 1}


def test_what_the_encoder_failed_on_is_retry(store: casstore.Store, tmp_path: Path) -> None:
    """A picture on which the encoder failed misses as "retry"."""
    pictures(tmp_path / "data", 1)
    encoder = FakeEncoder(change={"p000.png": lambda result: {}})
    check_counts(build(store, tmp_path / "data", encoder))
    assert reasons(store, tmp_path / "data", encoder.recipe) == {"retry": 1}


def test_an_unreadable_file_is_source_unavailable(store: casstore.Store, tmp_path: Path, encoder: FakeEncoder) -> None:
    """A file that can't be read misses as "source unavailable"."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.png").symlink_to(tmp_path / "nowhere")
    assert reasons(store, tmp_path / "data", encoder.recipe) == {"source unavailable": 1}


def test_planning_opens_no_picture(
    store: casstore.Store, stored: list[Path], encoder: FakeEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan is made from the index alone: the files may even be gone."""
    inputs = store.scan(stored[0].parent)
    opened = spy(monkeypatch, "PIL.Image.open")
    for path in stored:
        path.unlink()
    assert store.plan(inputs, encoder.recipe, resolution=128).planned == 2
    assert opened == []


def test_equal_bytes_under_another_name_are_a_hit(
    store: casstore.Store, stored: list[Path], encoder: FakeEncoder
) -> None:
    """A copy, in another folder too, is served from what is stored."""
    (stored[0].parent / "x").mkdir()
    (stored[0].parent / "x" / "copy.png").write_bytes(stored[0].read_bytes())
    assert reasons(store, stored[0].parent, encoder.recipe) == {}


def test_an_edit_that_is_taken_back_is_a_hit(store: casstore.Store, stored: list[Path], encoder: FakeEncoder) -> None:
    """The old tensor is still there for the old bytes."""
    old = stored[0].read_bytes()
    picture(stored[0], seed=99)
    build(store, stored[0].parent, encoder)
    stored[0].write_bytes(old)
    assert reasons(store, stored[0].parent, encoder.recipe) == {}


def test_the_bucket_follows_the_upright_picture(store: casstore.Store, tmp_path: Path, encoder: FakeEncoder) -> None:
    """With an area as resolution, a picture that is stored lying is planned and encoded standing."""
    exif = Image.Exif()
    exif[0x0112] = 6
    picture(tmp_path / "data" / "a.jpg", size=(128, 64), exif=exif)
    plan = store.plan(store.scan(tmp_path / "data"), encoder.recipe, resolution=128)
    assert [row.key.resolution for row in plan.rows if row.key] == ["256x64"]
    assert check_counts(store.build(plan, encoder)).encoded == 1


def test_a_resolution_that_means_nothing_is_refused(
    store: casstore.Store, stored: list[Path], encoder: FakeEncoder
) -> None:
    """What is no area, "HxW" or None is a UsageError, as is none at all; digits are the area that they spell."""
    inputs = store.scan(stored[0].parent)
    for resolution in ("abc", "64x", "0x64", 0, 63, True, 1.5, (), {64}):
        with pytest.raises(UsageError):
            store.plan(inputs, encoder.recipe, resolution=resolution)
    assert store.plan(inputs, encoder.recipe, resolution="64").hits == 2


def test_a_plan_says_in_one_line_what_it_would_do(
    store: casstore.Store, stored: list[Path], encoder: FakeEncoder
) -> None:
    """str(plan) counts hits and reasons."""
    picture(stored[0], seed=99)
    picture(stored[0].parent / "new.png", seed=98)
    plan = store.plan(store.scan(stored[0].parent), encoder.recipe, resolution="64x64")
    assert re.fullmatch("3 planned with fake: 1 stored, 1 edited, 1 new; about [0-9]+ m?s of encoding", str(plan))


def test_what_is_no_input_plan_or_key_is_a_usage_error(store: casstore.Store, tmp_path: Path) -> None:
    """Mixed-up arguments are named, not attribute errors from deep inside."""
    pictures(tmp_path / "p", 1)
    inputs, recipe = store.scan(tmp_path / "p"), FakeEncoder().recipe
    for call in (
        lambda: store.plan("photos", recipe),  # type: ignore[arg-type]
        lambda: store.plan(inputs, FakeEncoder()),  # type: ignore[arg-type]
        lambda: store.build(inputs, FakeEncoder()),  # type: ignore[arg-type]
        lambda: store.lookup("a.jpg"),  # type: ignore[arg-type]
    ):
        with pytest.raises(UsageError, match="needs"):
            call()


def test_a_resolution_that_no_tensor_can_have_is_refused_by_the_plan(store: casstore.Store, tmp_path: Path) -> None:
    """A fixed size that the recipe's stride doesn't divide would fail every item after encoding it."""
    pictures(tmp_path / "p", 1)
    with pytest.raises(UsageError, match="250x250 isn't divisible by the stride 8"):
        store.plan(store.scan(tmp_path / "p"), FakeEncoder().recipe, resolution="250x250")


def test_ids_of_a_scan_that_stand_for_other_contents_serve_nothing(
    store: casstore.Store, stored: list[Path], encoder: FakeEncoder
) -> None:
    """A plan looks files up by the row ids that the scan has seen. If these stand for other contents by then, as after
    restoring an index, what is stored is found all the same, and what isn't is a miss."""
    picture(stored[0].parent / "new.png", seed=99)
    scan = store.scan(stored[0].parent)
    ids = scan.rows.files.ids  # type: ignore[attr-defined]
    ids.append(ids.pop(0))
    plan = store.plan(scan, encoder.recipe, resolution="64x64")
    assert (plan.hits, plan.reasons) == (2, {"new": 1})
    assert [planned.row.sample for planned in plan.misses] == ["new.png"]
