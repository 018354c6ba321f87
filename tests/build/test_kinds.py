"""Building what isn't a picture: texts, arrays, files that the encoder opens itself, and several together."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from kit import check_counts, clock_ahead, edit_in_place, object_files, picture, spy, without_ctime
from rowing import Recorder, cell, row, rows, save_caption, tensor_of

import casstore
from casstore.errors import UsageError
from casstore.sources.inputs import Cell, Inputs


@pytest.fixture
def encoder() -> Recorder:
    return Recorder()


def build(store: casstore.Store, inputs: Inputs, encoder: Any, role: Any = None, **options: Any) -> Any:
    plan = store.plan(inputs, encoder.recipe, role=role)
    return check_counts(store.build(plan, encoder, **options))


# -- texts -----------------------------------------------------------------------------------------------------------


def captions(*texts: str) -> Inputs:
    return rows(*(row(f"{number:05}", caption=text) for number, text in enumerate(texts)))


def test_a_text_reaches_the_encoder_as_it_is(store: casstore.Store, encoder: Recorder) -> None:
    """Item.text is the exact string; there is no path, picture or size."""
    build(store, captions(" a red cat\r\n"), encoder)
    (item,) = encoder.items
    assert (item.text, item.path, item.data, item.image, item.width) == (" a red cat\r\n", None, None, None, None)
    assert item.key == casstore.Key.text(" a red cat\r\n", encoder.recipe)


def test_2000_equal_captions_are_one_encode(store: casstore.Store, encoder: Recorder) -> None:
    """One encode and one object; all the others are hits, and none is left."""
    report = build(store, captions(*["a red cat"] * 2000), encoder, batch_size=64)
    assert (report.planned, report.encoded, report.hits, encoder.batches) == (2000, 1, 1999, [1])
    assert len(object_files(store.path)) == 1


def test_equal_captions_fail_together(store: casstore.Store, encoder: Recorder) -> None:
    """When the one encode fails, every row with that text is listed, and rows with others aren't."""

    def refuse(items: list[Any]) -> None:
        if any(item.text == "bad" for item in items):
            raise MemoryError("too long")

    encoder.before = refuse
    report = build(store, captions("bad", "good", "bad", "bad", "good"), encoder, batch_size=1)
    assert (report.encoded, report.hits, report.failed) == (1, 1, 3)
    assert {failure.message for failure in report.failures} == {"too long"}


def test_rows_of_one_name_in_two_groups_fail_apart(store: casstore.Store, encoder: Recorder) -> None:
    """What failed is known by its key: a row of the same name in another group is a hit all the same."""
    encoder.before = lambda items: (_ for _ in ()).throw(MemoryError) if items[0].text == "bad" else None
    given = [row("a", caption="good"), row("b", caption="good"), row("b", caption="bad")]
    given[2] = casstore.sources.inputs.Row("b", given[2].roles, group="other")
    report = store.build(store.plan(Inputs(given), encoder.recipe), encoder, batch_size=1)
    assert (report.encoded, report.hits, report.failed) == (1, 1, 1)


def test_progress_counts_every_row(store: casstore.Store, encoder: Recorder) -> None:
    """Equal captions advance the progress too, and the total stays what it was."""
    told: list[tuple[int, int]] = []
    build(store, captions("a", "b", "a", "a"), encoder, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (4, 4) and told == sorted(told) and {total for _, total in told} == {4}


def test_a_text_that_the_rows_do_not_carry_comes_from_the_index(
    store: casstore.Store, tmp_path: Path, encoder: Recorder
) -> None:
    """Rows of a large set needn't hold their texts: they are read at once when they are encoded."""
    path = tmp_path / "a.txt"
    path.write_text("a red cat")
    text = save_caption(store, path)
    bare = casstore.model.Content("text", text.digest, text.nbytes)
    build(store, rows(row("a", caption=Cell(bare, str(path)))), encoder)
    assert [item.text for item in encoder.items] == ["a red cat"]


@pytest.mark.parametrize("damage", ["UPDATE texts SET text = 'blue'", "DELETE FROM texts"])
def test_a_text_that_is_not_the_planned_one_costs_its_row_only(
    store: casstore.Store, tmp_path: Path, encoder: Recorder, damage: str
) -> None:
    """A flipped bit in the index, or a text that has gone from it, is a failure; nothing is stored for it."""
    path = tmp_path / "a.txt"
    path.write_text("a red cat")
    text = save_caption(store, path)
    bare = casstore.model.Content("text", text.digest, text.nbytes)
    with sqlite3.connect(Path(store.path, "index.sqlite")) as connection:
        connection.execute(damage)
    connection.close()
    report = build(store, rows(row("a", caption=Cell(bare)), row("b", caption="green")), encoder)
    assert ([f.sample for f in report.failures], report.encoded, encoder.seen) == (["a"], 1, ["b"])
    assert "scan again" in report.failures[0].message


@pytest.mark.parametrize("value", ["a red cat", np.zeros(3)], ids=["text", "array"])
def test_texts_and_arrays_have_no_resolution(store: casstore.Store, encoder: Recorder, value: Any) -> None:
    """A resolution for them is refused by the plan."""
    with pytest.raises(UsageError, match="no resolution"):
        store.plan(rows(row("a", caption=value)), encoder.recipe, resolution="64x64")


# -- arrays ----------------------------------------------------------------------------------------------------------


def test_equal_arrays_are_encoded_once(store: casstore.Store, encoder: Recorder) -> None:
    """A tensor and an array of the same bytes are one content; the encoder gets what was given."""
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    given = rows(row("a", image=array), row("b", image=torch.from_numpy(array.copy())), row("c", image=array.T))
    report = build(store, given, encoder)
    assert (report.encoded, report.hits) == (2, 1)
    assert encoder.items[0].array is array and store.plan(given, encoder.recipe).hits == 3


def test_arrays_of_one_call_have_the_same_shape_and_dtype(store: casstore.Store, encoder: Recorder) -> None:
    """So that an encoder may stack them."""
    shapes = [(2, 2), (3, 2), (2, 2), (3, 2)]
    arrays = [np.full(shape, place, np.float32) for place, shape in enumerate(shapes)]
    arrays.append(np.full((2, 2), 9, np.float64))
    encoder.before = lambda items: np.stack([item.array for item in items], dtype=items[0].array.dtype, casting="no")
    report = build(store, rows(*(row(str(place), image=array) for place, array in enumerate(arrays))), encoder)
    assert (report.encoded, sorted(encoder.batches)) == (5, [1, 2, 2])


def test_an_array_that_was_written_to_since_is_not_stored(store: casstore.Store, encoder: Recorder) -> None:
    """What the plan hashed isn't there any more: changed while building."""
    array = np.zeros(4, np.float32)
    plan = store.plan(rows(row("a", image=array), row("b", image=np.ones(4, np.float32))), encoder.recipe)
    array[1] = 5
    report = check_counts(store.build(plan, encoder))
    assert ([f.error for f in report.failures], encoder.seen) == (["SourceChangedError"], ["b"])


# -- files that the encoder opens ------------------------------------------------------------------------------------


@pytest.fixture
def video(tmp_path: Path) -> Path:
    path = tmp_path / "data" / "a.mp4"
    path.parent.mkdir()
    path.write_bytes(b"frames" * 100)
    return path


def test_a_file_that_is_no_picture_is_given_by_its_path(store: casstore.Store, video: Path, encoder: Recorder) -> None:
    """Nothing of it is read or decoded for the encoder; its key is that of its bytes, at the full size."""
    build(store, rows(row("a", image=video)), encoder)
    (item,) = encoder.items
    assert (item.path, item.data, item.image, item.text) == (str(video), None, None, None)
    assert item.key == casstore.Key.file(video, encoder.recipe)
    np.testing.assert_array_equal(store.get(video, encoder.recipe, as_numpy=True)["t"], tensor_of(item))


def test_an_edited_file_is_one_encode(store: casstore.Store, video: Path, encoder: Recorder) -> None:
    """Of two files, the one that was edited is encoded again."""
    other = video.with_name("b.mp4")
    other.write_bytes(b"other")
    build(store, rows(row("a", image=video), row("b", image=other)), encoder)
    video.write_bytes(b"edited")
    report = build(store, rows(row("a", image=video), row("b", image=other)), encoder)
    assert (report.encoded, report.hits, encoder.seen) == (1, 1, ["a", "b", "a"])


def test_a_large_file_is_hashed_in_pieces(
    store: casstore.Store, video: Path, encoder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be larger than the memory: never more than a MiB of it is held."""
    given = rows(row("a", image=video))
    monkeypatch.setattr("casstore.sources.read._buffer", SimpleNamespace(memory=memoryview(bytearray(7))))
    whole = spy(monkeypatch, "casstore.build.decode.read_source")
    assert build(store, given, encoder).encoded == 1
    assert whole == []


def test_a_file_as_the_last_scan_saw_it_is_not_read(
    store: casstore.Store, video: Path, encoder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A settled file costs two stats, before the encode and after it."""
    clock_ahead(monkeypatch)
    inputs = store.scan(video.parent, extensions=(".mp4",))
    hashed = spy(monkeypatch, "casstore.sources.opaque.hash_file")
    assert build(store, inputs, encoder).encoded == 1
    assert hashed == []


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("how", ["written", "gone"])
def test_a_file_that_changes_while_it_is_encoded_is_not_stored(
    store: casstore.Store, video: Path, encoder: Recorder, when: str, how: str
) -> None:
    """Whatever the encoder made of it may be of other bytes: changed while building, and the next build makes it."""
    change = {"written": lambda items: video.write_bytes(b"x"), "gone": lambda items: video.rename(video.parent / "b")}
    given = rows(row("a", image=video))
    if when == "before":
        plan = store.plan(given, encoder.recipe)
        change[how]([])
        report = check_counts(store.build(plan, encoder))
        assert report.failures[0].error == ("SourceChangedError" if how == "written" else "SourceNotFoundError")
    else:
        encoder.after = change[how]
        report = build(store, given, encoder)
        assert report.failures[0].error == "SourceChangedError"
    assert (report.failed, store.status().variants) == (1, 0)


def test_a_young_file_is_hashed_again_after_the_encode(
    store: casstore.Store, video: Path, encoder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change within a clock tick leaves no trace in the times, so they aren't trusted for a file just written."""
    without_ctime(monkeypatch)
    data = video.read_bytes()
    encoder.after = lambda items: edit_in_place(video, data[::-1])
    report = build(store, rows(row("a", image=video)), encoder)
    assert [failure.error for failure in report.failures] == ["SourceChangedError"]


def test_an_area_needs_a_size(store: casstore.Store, video: Path, encoder: Recorder) -> None:
    """Without a probe N can't choose a bucket: the row fails by name; HxW, or a probed size, works."""
    given = rows(row("a", image=video))
    plan = store.plan(given, encoder.recipe, resolution=64)
    assert dict(plan.reasons) == {"failed": 1}
    assert "probe" in check_counts(store.build(plan, encoder)).failures[0].message
    fixed = store.plan(given, encoder.recipe, resolution="64x128").rows[0].key
    probed = casstore.model.Content("file", cell(video).content.digest, 600, 200, 100, frames=9)  # type: ignore[union-attr]
    plan = store.plan(rows(row("a", image=Cell(probed, str(video)))), encoder.recipe, resolution="64x128")
    assert plan.rows[0].key == fixed and fixed is not None and fixed.resolution == "64x128"
    store.build(plan, encoder)
    assert (encoder.items[0].width, encoder.items[0].height, encoder.items[0].image) == (200, 100, None)


def test_a_picture_by_any_other_name_is_a_picture(store: casstore.Store, tmp_path: Path, encoder: Recorder) -> None:
    """What a file is, is decided by its content where that was looked at."""
    path = picture(tmp_path / "a.png").rename(tmp_path / "a.img")
    build(store, rows(row("a", image=path)), encoder)
    assert encoder.items[0].image.size == (64, 64)


# -- several together ------------------------------------------------------------------------------------------------


def test_each_file_of_a_row_is_read_once(
    store: casstore.Store, tmp_path: Path, encoder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Picture and mask are read once each, hashed and decoded from the same bytes."""
    paths = [picture(tmp_path / f"{name}.png", seed=seed) for seed, name in enumerate("am")]
    given = rows(row("a", image=paths[0], mask=paths[1]))
    read = spy(monkeypatch, "casstore.build.decode.read_source")
    build(store, given, encoder, ("image", "mask"))
    assert sorted(read) == sorted(map(str, paths))


def test_members_of_every_kind(store: casstore.Store, video: Path, tmp_path: Path, encoder: Recorder) -> None:
    """Texts, arrays and files that aren't opened can be members, each under its own field."""
    path, array = picture(tmp_path / "a.png"), np.ones(3, np.float32)
    given = rows(row("a", image=path, caption="red", depth=array, clip=video))
    build(store, given, encoder, ("image", "caption", "depth", "clip"))
    members = encoder.items[0].members
    assert (members["caption"].text, members["depth"].array is array, members["clip"].path) == ("red", True, str(video))
    contents = {"image": path, "caption": "red", "depth": array, "clip": video}
    assert isinstance(store.lookup(casstore.Key.of(contents, encoder.recipe)), casstore.Hit)


def test_members_are_preprocessed_like_the_primary(store: casstore.Store, tmp_path: Path) -> None:
    """A mask is cut as its picture is; the values that are stored are the picture's."""
    image, mask = (picture(tmp_path / f"{name}.png", seed=1, size=(96, 64)) for name in "am")
    encoder = Recorder(casstore.Recipe("recorder", preprocess=casstore.FitCrop("lanczos")))
    plan = store.plan(
        rows(row("a", image=image, mask=mask)), encoder.recipe, role=("image", "mask"), resolution="64x64"
    )
    encoder.before = lambda items: np.testing.assert_array_equal(items[0].image, items[0].members["mask"].image)
    assert check_counts(store.build(plan, encoder)).encoded == 1
    got = store.get(encoder.items[0].key, as_numpy=True)
    assert (got["crop_offset"], encoder.items[0].members["mask"].width) == ([0, 16], 96)


@pytest.mark.parametrize("changed", ["image", "mask", "clip"])
def test_a_content_that_changes_costs_its_row_only(
    store: casstore.Store, tmp_path: Path, encoder: Recorder, changed: str
) -> None:
    """A member that isn't what was planned is "changed while building"; other rows are stored."""
    paths = {"image": tmp_path / "a.png", "mask": tmp_path / "m.png", "clip": tmp_path / "c.mp4"}
    for seed, path in enumerate(paths.values()):
        picture(path.with_suffix(".png"), seed=seed).rename(path)
    os.truncate(paths["clip"], 20)
    other = picture(tmp_path / "b.png", seed=9)
    plan = store.plan(rows(row("a", **paths), row("b", image=other)), encoder.recipe, role=tuple(paths))
    paths[changed].write_bytes(other.read_bytes())
    report = check_counts(store.build(plan, encoder))
    assert ([f.sample for f in report.failures], report.encoded) == (["a"], 1)
    assert report.failures[0].error == "SourceChangedError" and store.status().variants == 1


def test_rows_with_and_without_a_member_are_not_called_together(
    store: casstore.Store, tmp_path: Path, encoder: Recorder
) -> None:
    """All items of a call have the same members, of the same shapes."""
    paths = [picture(tmp_path / f"{number}.png", seed=number) for number in range(7)]
    wide = picture(tmp_path / "wide.png", seed=9, size=(80, 64))
    masks = [paths[4], None, paths[4], None, wide, None, wide]

    def stack(items: list[Any]) -> None:
        for role in items[0].members:
            np.stack([item.members[role].image for item in items])

    encoder.before = stack
    given = rows(*(row(str(n), image=paths[n], mask=masks[n]) for n in range(7)))
    report = build(store, given, encoder, ("image", "mask"))
    assert (report.encoded, sorted(encoder.batches)) == (7, [2, 2, 3])


def test_the_index_knows_what_a_composite_consists_of(store: casstore.Store, tmp_path: Path, encoder: Recorder) -> None:
    """v_variants has the members by role, with their paths and texts; alone it has none."""
    image, mask = (picture(tmp_path / "d" / f"{name}.png", seed=seed) for seed, name in enumerate("am"))
    store.scan(tmp_path / "d")
    given = rows(row("a", image=image, mask=mask, caption="red"))
    build(store, given, encoder, ("image", "mask", "caption"))
    build(store, given, encoder, "image")
    found = store.sql("SELECT path, members FROM v_variants ORDER BY members").rows
    assert [tuple(one) for one in found] == [
        (str(image), None),
        (str(image), f"caption=red, image={image}, mask={mask}"),
    ]
