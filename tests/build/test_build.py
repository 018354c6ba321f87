"""Building: everything that is missing is encoded once, from the bytes that were hashed."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import FakeEncoder, build, check_counts, clock_ahead, edit_in_place, expected_of, picture, pictures, spy
from PIL import Image

import casstore
from casstore.errors import MissError, UsageError
from casstore.identity.digests import file_digest
from casstore.identity.recipes import Recipe


@pytest.fixture
def encoder() -> FakeEncoder:
    return FakeEncoder()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


def latent(store: casstore.Store, path: Path, encoder: FakeEncoder) -> np.ndarray[Any, Any]:
    """What is stored for a file at 64x64."""
    return store.get(path, encoder.recipe, resolution="64x64", as_numpy=True)["latent"]


def serves(store: casstore.Store, path: Path, encoder: FakeEncoder) -> bool:
    """Whether what is stored for a file is what its present bytes give; False: a miss. Any other tensor fails."""
    try:
        found = latent(store, path, encoder)
    except MissError:
        return False
    np.testing.assert_array_equal(found, expected_of(path, "64x64", encoder.recipe))
    return True


def test_every_picture_is_stored_as_encoded(store: casstore.Store, folder: Path, encoder: FakeEncoder) -> None:
    """After a build, each path gives the tensor that the encoder made of its bytes."""
    paths = pictures(folder, 5)
    assert check_counts(build(store, folder, encoder)).encoded == 5
    assert all(serves(store, path, encoder) for path in paths)


def test_a_second_build_never_calls_the_encoder(store: casstore.Store, folder: Path, encoder: FakeEncoder) -> None:
    """When everything is stored, a build reads nothing, encodes nothing and makes no run."""
    pictures(folder, 3)
    build(store, folder, encoder)
    encoder.batches.clear()
    report = check_counts(build(store, folder, encoder))
    assert (report.hits, report.encoded, report.stored_bytes, encoder.batches) == (3, 0, 0, [])
    assert len(store.status().runs) == 1


@pytest.mark.parametrize("restore_mtime", [False, True])
def test_t1_one_edited_pixel_is_one_miss(
    store: casstore.Store, folder: Path, encoder: FakeEncoder, monkeypatch: pytest.MonkeyPatch, restore_mtime: bool
) -> None:
    """T1: of three pictures, one edited in place is one miss and one encode, with a new mtime or the old one."""
    clock_ahead(monkeypatch)
    paths = [picture(folder / f"{name}.bmp", seed=seed) for seed, name in enumerate("abc")]
    build(store, folder, encoder)
    encoder.seen.clear()
    data = bytearray(paths[1].read_bytes())
    data[-1] ^= 1
    if restore_mtime:
        edit_in_place(paths[1], bytes(data))
    else:
        paths[1].write_bytes(data)
    assert [serves(store, path, encoder) for path in paths] == [True, False, True]
    report = check_counts(build(store, folder, encoder))
    assert (report.hits, report.encoded, dict(report.reasons)) == (2, 1, {"edited": 1})
    assert encoder.seen == ["b.bmp"] and all(serves(store, path, encoder) for path in paths)
    assert store.status().variants == 4  # the old entry stays until somebody forgets it


def test_t59_of_500_only_what_is_new_is_encoded(store: casstore.Store, folder: Path, encoder: FakeEncoder) -> None:
    """T59: 500 stored; one added, edited, deleted, renamed and copied are exactly two encodes."""
    paths = [picture(folder / f"{number:03}.bmp", seed=number, size=(8, 8)) for number in range(500)]
    assert check_counts(build(store, folder, encoder, batch_size=64)).encoded == 500
    encoder.seen.clear()
    picture(folder / "added.bmp", seed=1000, size=(8, 8))
    picture(paths[1], seed=1001, size=(8, 8))
    paths[2].unlink()
    paths[3].rename(folder / "renamed.bmp")
    (folder / "copy.bmp").write_bytes(paths[4].read_bytes())
    report = check_counts(build(store, folder, encoder))
    assert (sorted(encoder.seen), report.planned, report.encoded) == (["001.bmp", "added.bmp"], 501, 2)
    assert serves(store, folder / "renamed.bmp", encoder) and serves(store, folder / "copy.bmp", encoder)


def test_equal_bytes_are_encoded_once(store: casstore.Store, folder: Path, encoder: FakeEncoder) -> None:
    """Of rows with equal bytes the first is encoded, the others count as hits, and all are served."""
    path = picture(folder / "a.png")
    picture(folder / "c.png", seed=1)
    for name in ("b.png", "d.png"):
        (folder / name).write_bytes(path.read_bytes())
    report = check_counts(build(store, folder, encoder))
    assert (report.planned, report.hits, report.encoded, dict(report.reasons)) == (4, 2, 2, {"new": 4})
    assert encoder.seen == ["a.png", "c.png"] and serves(store, folder / "d.png", encoder)


def test_each_source_is_read_once(
    store: casstore.Store, folder: Path, encoder: FakeEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build opens each missing file once, and no other."""
    paths = pictures(folder, 6)
    build(store, folder, encoder)
    for number in (1, 4):
        picture(paths[number], seed=50 + number)
    opened = spy(monkeypatch, "casstore.build.decode.read_source")
    build(store, folder, encoder)
    assert sorted(opened) == [str(paths[1]), str(paths[4])]


def test_an_item_holds_what_was_hashed_and_the_upright_picture(store: casstore.Store, folder: Path) -> None:
    """The bytes of an item are those of its key; its image is RGB and upright, its size that before preprocessing."""
    exif = Image.Exif()
    exif[0x0112] = 6
    path = picture(folder / "x" / "a.jpg", size=(80, 48), mode="L", exif=exif)
    seen: list[casstore.Item] = []
    build(store, folder, FakeEncoder(before=seen.extend), resolution="64x128")
    (item,) = seen
    assert item.data == path.read_bytes() and item.key.primary.digest == file_digest(item.data)
    assert (item.image.mode, item.image.size, item.height, item.width) == ("RGB", (48, 80), 80, 48)
    assert (item.sample, item.path, item.resolution, item.variation) == ("x/a.jpg", str(path), "64x128", 0)


def test_preprocessing_values_are_stored_unless_the_encoder_says_otherwise(store: casstore.Store, folder: Path) -> None:
    """FitCrop's values stand beside the tensors; of a name that the encoder returns too, the encoder's counts."""
    path = picture(folder / "a.png", size=(100, 64))
    recipe = Recipe("fitted", preprocess=casstore.FitCrop("box"))
    encoder = FakeEncoder(recipe, change={"a.png": lambda result: result | {"crop_offset": "mine", "more": [1, 2.5]}})
    build(store, folder, encoder)
    got = store.get(path, recipe, as_numpy=True)
    got.pop("latent")
    assert got == {"crop_offset": "mine", "more": [1, 2.5], "original_resolution": [64, 100]}


SIZES = [(64, 64), (64, 128), (128, 64)]


def test_batches_are_alike_and_never_too_large(store: casstore.Store, tmp_path: Path) -> None:
    """Whatever sizes, resolution and preprocessing, all items of a batch have one shape and resolution, and no more
    than batch_size are asked for at once; everything is encoded exactly once."""
    numbers = itertools.count()

    @settings(max_examples=15)
    @given(
        st.lists(st.sampled_from(SIZES), min_size=1, max_size=9),
        st.integers(1, 5),
        st.sampled_from([None, 64, 128, "64x64"]),
        st.booleans(),
        st.integers(1, 3),
    )
    def check(sizes: list[tuple[int, int]], batch_size: int, resolution: Any, fit: bool, workers: int) -> None:
        number = next(numbers)
        folder = tmp_path / f"set-{number}"
        for i, size in enumerate(sizes):
            picture(folder / f"{i}.bmp", seed=100 * number + i, size=size)

        def look(items: list[casstore.Item]) -> None:
            assert 1 <= len(items) <= batch_size
            shapes = {np.asarray(item.image).shape for item in items}
            assert len(shapes) == len({item.resolution for item in items}) == 1

        encoder = FakeEncoder(
            Recipe("fit", preprocess=casstore.FitCrop("box")) if fit else Recipe("plain"), before=look
        )
        report = build(store, folder, encoder, resolution, batch_size=batch_size, workers=workers)
        assert (check_counts(report).encoded, report.failures) == (len(sizes), ())
        assert sorted(encoder.seen) == sorted(f"{i}.bmp" for i in range(len(sizes)))

    check()


def test_progress_counts_every_miss_once(store: casstore.Store, folder: Path) -> None:
    """T68: done never goes back and ends at the number of misses, with hits, copies and failures about."""
    pictures(folder, 30)
    build(store, folder, FakeEncoder())
    pictures(folder, 100)
    (folder / "copy.png").write_bytes((folder / "p050.png").read_bytes())
    for number in (40, 60, 80):
        (folder / f"p{number:03}.png").write_bytes(b"")
    events: list[tuple[int, int]] = []
    encoder = FakeEncoder(change={"p070.png": lambda result: None})
    report = check_counts(
        build(store, folder, encoder, workers=4, progress=lambda done, total: events.append((done, total)))
    )
    assert (report.planned, report.hits, report.encoded, report.failed) == (101, 31, 66, 4)
    assert events == sorted(events) and events[-1] == (71, 71)


def test_the_run_is_recorded_with_its_counts(store: casstore.Store, folder: Path, encoder: FakeEncoder) -> None:
    """A build leaves one finished run with the counts of its report."""
    pictures(folder, 3)
    report = build(store, folder, encoder)
    (run,) = store.status().runs
    assert (run.kind, run.counts["encoded"], run.counts["reasons"], run.error) == ("build", 3, {"new": 3}, None)
    assert run.finished_at is not None and report.stored_bytes == store.status().stored_bytes


@pytest.mark.parametrize("options", [{"batch_size": 0}, {"workers": 0}, {"on_error": "ignore"}])
def test_options_that_cannot_be_meant_are_refused(
    store: casstore.Store, folder: Path, encoder: FakeEncoder, options: dict[str, Any]
) -> None:
    """Impossible options are a UsageError before anything is encoded."""
    pictures(folder, 1)
    with pytest.raises(UsageError):
        build(store, folder, encoder, **options)
    assert encoder.batches == []


def test_converted_pictures_are_stored_and_noted(store: casstore.Store, folder: Path, encoder: FakeEncoder) -> None:
    """Conversions are notes of the report, with the sample's name, and no failures."""
    picture(folder / "cmyk.jpg", mode="CMYK")
    picture(folder / "plain.png")
    report = check_counts(build(store, folder, encoder))
    assert (report.encoded, [sample for sample, _ in report.notes]) == (2, ["cmyk.jpg"])


# -- files that change ------------------------------------------------------------------------------------------------


def test_a_file_edited_after_the_plan_is_reported_and_not_stored(
    store: casstore.Store, folder: Path, encoder: FakeEncoder
) -> None:
    """A file that changed between plan and build fails by name; neither its old nor its new content gets a tensor."""
    paths = pictures(folder, 3)
    plan = store.plan(store.scan(folder), encoder.recipe, resolution="64x64")
    old = paths[1].read_bytes()
    picture(paths[1], seed=99)
    report = check_counts(store.build(plan, encoder))
    assert [(f.sample, "changed" in f.message) for f in report.failures] == [("p001.png", True)]
    assert [serves(store, path, encoder) for path in paths] == [True, False, True]
    paths[1].write_bytes(old)
    assert not serves(store, paths[1], encoder)


def test_a_file_that_changed_is_encoded_by_the_next_build(
    store: casstore.Store, folder: Path, encoder: FakeEncoder
) -> None:
    """A change while building isn't remembered as a failure."""
    (path,) = pictures(folder, 1)
    plan = store.plan(store.scan(folder), encoder.recipe, resolution="64x64")
    picture(path, seed=99)
    store.build(plan, encoder)
    assert store.status().failures == 0
    assert check_counts(build(store, folder, encoder)).encoded == 1


def test_a_file_deleted_after_the_plan_fails_alone(store: casstore.Store, folder: Path, encoder: FakeEncoder) -> None:
    """A file that has gone since the plan is a failure that names it; the rest is done."""
    paths = pictures(folder, 3)
    plan = store.plan(store.scan(folder), encoder.recipe, resolution="64x64")
    paths[0].unlink()
    report = check_counts(store.build(plan, encoder))
    assert (report.encoded, report.failures[0].sample, store.status().failures) == (2, "p000.png", 0)


def test_a_file_edited_during_the_build_and_reverted_is_a_miss_or_its_own(
    store: casstore.Store, tmp_path: Path
) -> None:
    """Whenever files are overwritten and put back while a build runs, get gives a miss or what a fresh encode of the
    file's bytes gives: no edit leaves its tensor under other bytes, at no moment."""
    numbers = itertools.count(1)

    @settings(max_examples=10)
    @given(
        st.lists(
            st.tuples(st.integers(0, 4), st.integers(0, 5), st.integers(0, 2), st.booleans()), min_size=1, max_size=8
        ),
        st.integers(1, 3),
    )
    def check(edits: list[tuple[int, int, int, bool]], batch_size: int) -> None:
        number = next(numbers)
        folder = tmp_path / f"set-{number}"
        paths = [picture(folder / f"{i}.bmp", seed=100 * number + i, size=(8, 8)) for i in range(6)]
        contents = {path: path.read_bytes() for path in paths}
        calls = itertools.count()

        def tamper(items: list[casstore.Item]) -> None:
            call = next(calls)
            for at, which, seed, revert in edits:
                if at == call and revert:
                    paths[which].write_bytes(contents[paths[which]])
                elif at == call:
                    picture(paths[which], seed=100 * number + 50 + seed, size=(8, 8))

        encoder = FakeEncoder(before=tamper)
        plan = store.plan(store.scan(folder), encoder.recipe, resolution="64x64")
        for at, which, seed, _ in edits:
            if at == 4:
                picture(paths[which], seed=100 * number + 50 + seed, size=(8, 8))
        report = check_counts(store.build(plan, encoder, batch_size=batch_size))
        for path in paths:
            serves(store, path, encoder)
        for path, data in contents.items():
            path.write_bytes(data)
        assert sum(serves(store, path, encoder) for path in paths) == report.encoded
        encoder.before = None
        check_counts(build(store, folder, encoder))
        assert all(serves(store, path, encoder) for path in paths)

    check()


def test_hard_links_and_copies_share_one_tensor(store: casstore.Store, folder: Path, encoder: FakeEncoder) -> None:
    """A hard link is one content with its target (case T43)."""
    path = picture(folder / "a.png")
    os.link(path, folder / "b.png")
    assert check_counts(build(store, folder, encoder)).encoded == 1
    assert store.status().hashes == 1
