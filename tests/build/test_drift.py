"""Names asked for later: they are added beside what is stored, if this pass places the picture as that one did."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from core.helpers import sql
from kit import check_counts, object_files
from naming import Folder, Named, same

import casstore
from casstore.encoders.preprocess import FitCrop
from casstore.errors import BuildInterrupted, UsageError

NAMES = ("latent", "mask")
GEOMETRY = {"crop_offset": [0, 0]}


@pytest.fixture
def folder(store: casstore.Store, tmp_path: Path) -> Folder:
    """One picture, of which the latent is stored; from now on the encoder makes other tensors."""
    found = Folder(store, tmp_path / "data", Named(usual=("latent",)))
    found.picture()
    assert found.build().encoded == 1
    found.encoder.items.clear()
    found.encoder.salt = "later"
    return found


def parts(folder: Folder) -> list[tuple[Any, ...]]:
    """(variant, ordinal, object) of all parts."""
    return sql(folder.store, "SELECT variant_id, ordinal, object_id FROM variant_parts ORDER BY 1, 2")


# -- what is planned ---------------------------------------------------------------------------------------------------


def test_t7_a_name_that_no_part_has_is_output_missing(folder: Folder) -> None:
    """T7: {latent} is stored and {latent, mask} is wanted: a miss that names the mask."""
    plan = folder.plan(names=NAMES)
    assert [str(row.miss) for row in plan.misses] == ["output missing: mask"]
    assert (plan.hits, dict(plan.reasons), plan.misses[0].lacking) == (0, {"output missing": 1}, frozenset({"mask"}))


def test_fewer_names_than_stored_are_hits(folder: Folder) -> None:
    """After the mask was added, asking for the latent alone, the mask alone, nothing or a value is a hit."""
    folder.build(names=NAMES)
    for names in (None, [], ["latent"], ["mask"], ["crop_offset"], [*NAMES, "crop_offset"]):
        assert folder.plan(names=names).hits == 1, names


def test_all_missing_names_are_told(folder: Folder) -> None:
    """Several missing names are told in order; those that are stored aren't."""
    plan = folder.plan(names=["depth", "latent", "a"])
    assert [str(row.miss) for row in plan.misses] == ["output missing: a, depth"]


@pytest.mark.parametrize("names", ["latent", [1], [None]])
def test_names_that_cannot_be_meant_are_refused(folder: Folder, names: Any) -> None:
    """One string instead of a list of them, and what is no string."""
    with pytest.raises(UsageError, match="names="):
        folder.plan(names=names)


def test_augment_is_one_of_two(folder: Folder) -> None:
    """Anything but "add" and "rebuild" is refused."""
    with pytest.raises(UsageError, match="augment is one of 'add', 'rebuild'"):
        folder.plan(augment="replace")


def test_of_a_new_variant_the_names_are_what_is_wanted(folder: Folder) -> None:
    """Where nothing is stored, Item.names is what the plan asked for, and all of it has to come."""
    folder.picture("b", seed=1)
    folder.build(names=["mask"])
    assert sorted(map(str, folder.encoder.asked)) == ["{'mask'}", "{'mask'}"]
    same(folder.get("b"), mask=folder.tensor("mask", "b", "later"), **GEOMETRY)


# -- what is added -----------------------------------------------------------------------------------------------------


def test_an_added_name_leaves_what_is_stored_as_it_is(folder: Folder) -> None:
    """The encoder is asked for the mask alone; the latent keeps its object and file, byte for byte."""
    (before,) = folder.digests()
    (file,) = object_files(folder.store.path)
    data, inode = file.read_bytes(), file.stat().st_ino
    report = folder.build(names=NAMES)
    assert (report.encoded, report.reasons, folder.encoder.asked) == (1, {"output missing": 1}, [{"mask"}])
    assert folder.digests()[0] == before and len(folder.digests()) == 2
    assert (file.read_bytes(), file.stat().st_ino) == (data, inode)
    same(folder.get(), latent=folder.tensor("latent"), mask=folder.tensor("mask", salt="later"), **GEOMETRY)


def test_an_added_part_says_how_it_came(folder: Folder) -> None:
    """The stamp of the first part has its names; that of the second has the method "added" and its own."""
    folder.build(names=NAMES)
    query = (
        "SELECT s.method, json_extract(s.names, '$.tensors') FROM variant_parts p "
        "JOIN schema_stamps s ON s.id = p.stamp_id ORDER BY p.ordinal"
    )
    assert sql(folder.store, query) == [(None, '{"latent":["F32",3]}'), ("added", '{"mask":["F32",3]}')]


def test_names_that_are_stored_are_dropped(folder: Folder) -> None:
    """An encoder that returns the latent as well can't change what is stored."""
    folder.encoder.obeys = False
    folder.build(names=NAMES)
    same(folder.get(), latent=folder.tensor("latent"), mask=folder.tensor("mask", salt="later"), **GEOMETRY)


def test_names_beyond_those_asked_for_are_stored_too(folder: Folder) -> None:
    """What nobody asked for and isn't stored yet goes into the added part."""
    folder.encoder.obeys = False
    folder.encoder.makes = {**folder.encoder.makes, "depth": ("image",)}
    folder.build(names=NAMES)
    assert folder.get().keys() == {"latent", "mask", "depth", "crop_offset"}


def test_values_of_an_added_part_are_merged(folder: Folder) -> None:
    """Its values come beside the stored ones; a stored value stays what it was."""
    folder.encoder.values = lambda item: {**GEOMETRY, "score": 7}
    folder.build(names=NAMES)
    assert folder.get() | {"latent": 0, "mask": 0} == {"latent": 0, "mask": 0, "score": 7, **GEOMETRY}


def test_a_value_can_be_what_is_lacking(folder: Folder) -> None:
    """A name may be a value: it is merged, and no object is added."""
    before = folder.digests()
    folder.encoder.values = lambda item: {**GEOMETRY, "score": 7}
    assert [str(row.miss) for row in folder.plan(names=["score"]).misses] == ["output missing: score"]
    assert folder.build(names=["score"]).encoded == 1
    assert (folder.digests(), folder.get()["score"], folder.plan(names=["score"]).hits) == (before, 7, 1)


def test_names_can_be_added_again_and_again(folder: Folder) -> None:
    """Each addition is a part of its own; all that came before stays."""
    folder.encoder.makes = {**folder.encoder.makes, "depth": ("image",)}
    folder.build(names=NAMES)
    folder.encoder.salt = "last"
    folder.build(names=[*NAMES, "depth"])
    expected = {name: folder.tensor(name, salt=salt) for name, salt in zip(NAMES, ("", "later"), strict=True)}
    same(folder.get(), **expected, depth=folder.tensor("depth", salt="last"), **GEOMETRY)
    assert (len(folder.digests()), folder.encoder.asked) == (3, [{"mask"}, {"depth"}])


def test_a_name_that_is_not_returned_fails_its_item_only(folder: Folder) -> None:
    """The failure says what was asked for; the other item has its mask, and what was stored stays."""
    folder.picture("b", seed=1)
    folder.encoder.salt = ""
    folder.build()

    def only_b(items: list[casstore.Item]) -> None:
        folder.encoder.makes = {"latent": ("image",)} | ({"mask": ("image",)} if items[0].sample == "b.png" else {})

    folder.encoder.before = only_b
    report = folder.build(names=NAMES, batch_size=1)
    assert [(f.sample, f.error) for f in report.failures] == [("a.png", "EncoderError")]
    assert "'mask' was asked for, but the encoder returned crop_offset" in report.failures[0].message
    assert (report.encoded, folder.get("b").keys()) == (1, {"latent", "mask", "crop_offset"})
    same(folder.get(), latent=folder.tensor("latent"), **GEOMETRY)
    assert dict(folder.plan(names=NAMES).reasons) == {"output missing": 1}


def test_nan_in_an_added_part_leaves_the_rest(folder: Folder) -> None:
    """What can't be stored fails its item; the stored name is served as before."""
    folder.encoder.values = lambda item: {**GEOMETRY, "mask": np.full((4, 8, 8), np.nan, np.float32)}
    report = folder.build(names=NAMES)
    assert [f.error for f in report.failures] == ["NonFiniteError"]
    same(folder.get(), latent=folder.tensor("latent"), **GEOMETRY)


# -- when all is encoded again -----------------------------------------------------------------------------------------


def check_whole(folder: Folder, asked: Any = None, **values: Any) -> None:
    """Build, and see that the whole variant came from one pass, after one for the mask alone."""
    old = folder.digests()
    everything = folder.get().keys() | {"mask"} if asked is None else None
    report = folder.build(names=NAMES)
    assert (report.encoded, report.failed) == (1, 0)
    assert folder.encoder.asked == (asked or [{"mask"}, everything])
    expected = {name: folder.tensor(name, salt="later") for name in NAMES}
    same(folder.get(), **expected, **(values or GEOMETRY))
    assert len(folder.digests()) == 1 and folder.digests() != old
    assert folder.plan(names=NAMES).hits == 1


def test_a_crop_drawn_elsewhere_at_equal_shape_means_all_again(folder: Folder) -> None:
    """The mask comes with another crop_offset than the latent has: both are made in one pass, with the new one."""
    folder.encoder.values = lambda item: {"crop_offset": [8, 0]}
    check_whole(folder, crop_offset=[8, 0])


@pytest.mark.parametrize("name", ["crop_offset", "crop_resolution", "original_resolution", "flip", "frames"])
def test_every_geometry_value_counts(store: casstore.Store, tmp_path: Path, name: str) -> None:
    """Each of the usual geometry values, if it differs, means all again."""
    folder = Folder(store, tmp_path / "data", Named(usual=("latent",), values=lambda item: {name: 1, "other": 1}))
    folder.picture()
    folder.build()
    folder.encoder.items.clear()
    folder.encoder.salt = "later"
    folder.encoder.values = lambda item: {name: 2, "other": 1}
    check_whole(folder, **{name: 2}, other=1)


def test_a_geometry_value_that_came_or_went_counts(folder: Folder) -> None:
    """A pass that tells a flip where the stored one told none isn't the same placement."""
    folder.encoder.values = lambda item: {**GEOMETRY, "flip": False}
    check_whole(folder, **GEOMETRY, flip=False)


def test_another_value_is_no_geometry(folder: Folder) -> None:
    """A score that came out differently is no reason to encode again; the stored one stays."""
    folder.encoder.values = lambda item: {**GEOMETRY, "score": 1}
    folder.build(names=["score"])
    folder.encoder.values = lambda item: {**GEOMETRY, "score": 2}
    folder.build(names=NAMES)
    same(folder.get(), latent=folder.tensor("latent"), mask=folder.tensor("mask", salt="later"), **GEOMETRY, score=1)


def test_a_recipe_says_what_its_geometry_is(store: casstore.Store, tmp_path: Path) -> None:
    """With geometry=("window",) that value decides, and crop_offset doesn't."""
    recipe = casstore.Recipe("named", code=1, stride=8, geometry=("window",))
    values = {"window": [1], "crop_offset": [0, 0]}
    folder = Folder(store, tmp_path / "data", Named(recipe, usual=("latent",), values=lambda item: values))
    folder.picture()
    folder.build()
    folder.encoder.salt = "later"
    values = {"window": [1], "crop_offset": [8, 8]}
    folder.build(names=NAMES)
    np.testing.assert_array_equal(folder.get()["latent"], folder.tensor("latent"))
    values = {"window": [2], "crop_offset": [8, 8]}
    folder.encoder.makes = {**folder.encoder.makes, "depth": ("image",)}
    folder.build(names=[*NAMES, "depth"])
    np.testing.assert_array_equal(folder.get()["latent"], folder.tensor("latent", salt="later"))


def test_without_any_geometry_value_all_is_made_again_in_one_pass(store: casstore.Store, tmp_path: Path) -> None:
    """Nobody could tell how the stored latent was cropped: the encoder is asked for both, once."""
    folder = Folder(store, tmp_path / "data", Named(usual=("latent",), values=lambda item: {"score": 1}))
    folder.picture()
    folder.build()
    folder.encoder.items.clear()
    folder.encoder.salt = "later"
    check_whole(folder, asked=[{"latent", "mask", "score"}], score=1)


def test_a_pass_without_geometry_values_is_not_trusted(folder: Folder) -> None:
    """The latent has a crop_offset, the pass that makes the mask tells none: all again."""
    folder.encoder.values = lambda item: {}
    folder.encoder.before = lambda items: setattr(
        folder.encoder, "values", lambda item: GEOMETRY if "latent" in (item.names or ()) else {}
    )
    check_whole(folder, asked=[{"mask"}, {"latent", "mask", "crop_offset"}])


def test_another_spatial_shape_means_all_again(folder: Folder) -> None:
    """A mask at another size than the latent, as strides tell, isn't of the same placement."""
    folder.encoder.recipe = casstore.Recipe("named", code=1)  # without a stride, so that any shape may be stored
    folder.encoder.salt = ""
    folder.build()
    folder.encoder.items.clear()
    folder.encoder.values = lambda item: {**GEOMETRY, "mask": np.zeros((1, 16, 16), np.float32)}
    folder.encoder.salt = "later"
    folder.build(names=NAMES)
    assert folder.encoder.asked == [{"mask"}, {"latent", "mask", "crop_offset"}]
    assert np.array_equal(folder.get()["latent"], folder.tensor("latent", salt="later"))


def test_rebuild_always_makes_all_again(folder: Folder) -> None:
    """With augment="rebuild" the encoder is asked for everything at once, whatever the geometry."""
    old = folder.digests()
    assert folder.build(names=NAMES, augment="rebuild").encoded == 1
    assert folder.encoder.asked == [{"latent", "mask", "crop_offset"}]
    same(folder.get(), **{name: folder.tensor(name, salt="later") for name in NAMES}, **GEOMETRY)
    assert len(folder.digests()) == 1 and folder.digests() != old


def test_rebuild_of_what_lacks_nothing_is_a_hit(folder: Folder) -> None:
    """augment says what becomes of a variant that lacks something."""
    assert folder.plan(augment="rebuild").hits == folder.plan(names=["latent"], augment="rebuild").hits == 1


def test_a_pass_for_all_that_fails_leaves_what_was_stored(folder: Folder) -> None:
    """The second pass, for everything, fails: one failure, and the latent is served as before."""
    folder.encoder.values = lambda item: {"crop_offset": [8, 0]}

    def second(items: list[casstore.Item]) -> None:
        if "latent" in (items[0].names or ()):
            raise RuntimeError("no memory")

    folder.encoder.before = second
    report = folder.build(names=NAMES)
    assert [(f.sample, f.error, f.message) for f in report.failures] == [("a.png", "RuntimeError", "no memory")]
    same(folder.get(), latent=folder.tensor("latent"), **GEOMETRY)


def test_a_pass_for_all_that_fails_is_one_failure_with_raise(folder: Folder) -> None:
    """With on_error="raise" it is raised once, as the encoder's, and counted once."""
    folder.encoder.values = lambda item: {"crop_offset": [8, 0]}
    folder.encoder.before = lambda items: 1 / len([i for i in items if i.names == {"mask"}])  # type: ignore[func-returns-value]
    plan = folder.plan(names=NAMES)
    with pytest.raises(casstore.errors.EncoderError, match=r"^the encoder failed on a\.png: ZeroDivisionError"):
        folder.store.build(plan, folder.encoder, on_error="raise")
    run = folder.store.status().runs[0]
    assert (run.counts["failed"], run.counts["left"]) == (1, 0)


def test_a_full_disk_in_a_pass_for_all_ends_the_build(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """What isn't the item's fault isn't its failure."""
    folder.encoder.values = lambda item: {"crop_offset": [8, 0]}

    def full(*arguments: Any) -> None:
        raise casstore.errors.NoSpaceError("the disk is full")

    monkeypatch.setattr("casstore.build.builder.Batch.add", full)
    with pytest.raises(casstore.errors.NoSpaceError):
        folder.build(names=NAMES)
    monkeypatch.undo()
    assert folder.store.status().failures == 0


# -- with a preprocess -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("crop", ["center", "random"])
def test_a_preprocess_records_the_geometry_itself(store: casstore.Store, tmp_path: Path, crop: Any) -> None:
    """With FitCrop, whose draws are the same at every pass, a mask is added without the encoder telling anything."""
    recipe = casstore.Recipe("named", stride=8, preprocess=FitCrop(crop=crop, flip="random"))
    folder = Folder(store, tmp_path / "data", Named(recipe, usual=("latent",), values=lambda item: {}))
    folder.picture()
    folder.options["resolution"] = "64x32"
    folder.build()
    before = folder.digests()
    folder.build(names=NAMES)
    assert folder.digests()[:1] == before and folder.encoder.asked == [None, {"mask"}]
    assert folder.get().keys() == {*NAMES, "crop_offset", "original_resolution", "flip"}


# -- stops, others, upkeep ---------------------------------------------------------------------------------------------


def many(folder: Folder) -> None:
    """Six pictures more, of which the latent is stored."""
    folder.encoder.salt = ""
    for number in range(6):
        folder.picture(f"p{number}", seed=10 + number)
    folder.build()
    folder.encoder.items.clear()
    folder.encoder.salt = "later"


def stop(folder: Folder) -> None:
    if len(folder.encoder.items) > 3:
        raise KeyboardInterrupt


def fail(folder: Folder) -> None:
    if len(folder.encoder.items) > 3:
        raise RuntimeError("no memory")


@pytest.mark.parametrize("end", [stop, fail])
def test_half_of_the_additions_are_kept_and_the_rest_is_planned(folder: Folder, end: Callable[..., None]) -> None:
    """After a stop, or failures, in the middle of the masks, the next plan wants the others, and no tensor is zero."""
    many(folder)
    folder.encoder.before = lambda items: end(folder)
    plan = folder.plan(names=NAMES)
    if end is stop:
        with pytest.raises(BuildInterrupted):
            folder.store.build(plan, folder.encoder, batch_size=1)
    else:
        assert check_counts(folder.store.build(plan, folder.encoder, batch_size=1)).failed == 4
    folder.encoder.before = None
    assert dict(folder.plan(names=NAMES).reasons) == {"output missing": 4}
    assert folder.plan().hits == 7
    assert folder.build(names=NAMES).encoded == 4
    for name in ["a", *(f"p{number}" for number in range(6))]:
        expected = {"latent": folder.tensor("latent", name), "mask": folder.tensor("mask", name, "later")}
        same(folder.get(name), **expected, **GEOMETRY)


def meanwhile(folder: Folder, work: Callable[[], Any]) -> None:
    """Have something else done after the encoder was called, before its result is committed."""

    def other(items: list[casstore.Item]) -> None:
        folder.encoder.before = None
        work()

    folder.encoder.before = other


def test_a_name_that_another_build_added_meanwhile_is_there_once(folder: Folder) -> None:
    """Another build adds the mask after this one was planned: it is kept, counted as by_others, and not made again."""
    other = Folder(folder.store, folder.path, Named(salt="other"))
    plan = folder.plan(names=NAMES)
    other.build(names=NAMES)
    report = check_counts(folder.store.build(plan, folder.encoder))
    assert (report.encoded, report.by_others, folder.encoder.asked, len(parts(folder))) == (0, 1, [], 2)
    same(folder.get(), latent=folder.tensor("latent"), mask=folder.tensor("mask", salt="other"), **GEOMETRY)


def test_threads_that_add_the_same_name_add_one_part(folder: Folder) -> None:
    """Four builds at once over the same plan: each variant has two parts, and each mask is one of theirs, whole."""
    many(folder)
    together = threading.Barrier(4)
    encoders = [Named(salt=str(number)) for number in range(4)]
    reports: list[Any] = []

    def work(encoder: Named) -> None:
        together.wait(60)
        reports.append(check_counts(folder.store.build(plan, encoder)))

    plan = folder.plan(names=NAMES)
    threads = [threading.Thread(target=work, args=(encoder,)) for encoder in encoders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (sum(r.encoded for r in reports), sum(r.by_others for r in reports)) == (7, 21)
    assert len(parts(folder)) == 14 and folder.plan(names=NAMES).hits == 7
    for name in ["a", *(f"p{number}" for number in range(6))]:
        found = folder.get(name)
        np.testing.assert_array_equal(found["latent"], folder.tensor("latent", name))
        assert any(np.array_equal(found["mask"], folder.tensor("mask", name, str(number))) for number in range(4))


def test_names_added_since_the_plan_are_both_there_at_last(folder: Folder) -> None:
    """Another build adds the depth meanwhile: it stays, and whatever this build reports is so."""
    folder.encoder.makes = {**folder.encoder.makes, "depth": ("image",)}
    other = Folder(folder.store, folder.path, Named(makes=folder.encoder.makes, salt="other"))
    plan = folder.plan(names=NAMES)
    other.build(names=["latent", "depth"])
    report = check_counts(folder.store.build(plan, folder.encoder))
    assert folder.plan(names=NAMES).hits == report.encoded + report.by_others
    folder.build(names=NAMES)
    expected = {"mask": folder.tensor("mask", salt="later"), "depth": folder.tensor("depth", salt="other")}
    same(folder.get(), latent=folder.tensor("latent"), **expected, **GEOMETRY)


def test_values_added_since_the_plan_are_both_there_at_last(folder: Folder) -> None:
    """As with tensors: a value that came meanwhile isn't overwritten by one that was added to what was before."""
    other = Folder(folder.store, folder.path, Named(values=lambda item: {**GEOMETRY, "one": 1}))
    folder.encoder.values = lambda item: {**GEOMETRY, "two": 2}
    plan = folder.plan(names=["two"])
    other.build(names=["one"])
    report = check_counts(folder.store.build(plan, folder.encoder))
    assert folder.plan(names=["two"]).hits == report.encoded + report.by_others
    folder.build(names=["two"])
    same(folder.get(), latent=folder.tensor("latent"), **GEOMETRY, one=1, two=2)


def test_what_was_forgotten_meanwhile_is_not_half_stored(folder: Folder) -> None:
    """The latent's variant goes while the mask is made: a failure that says so, nothing stored, the next build does."""
    meanwhile(folder, lambda: folder.store.forget(folder.key()).execute())
    report = folder.build(names=NAMES)
    assert [f.error for f in report.failures] == ["LostError"]
    assert (folder.store.status().variants, folder.store.status().failures) == (0, 0)
    assert folder.build(names=NAMES).encoded == 1
    same(folder.get(), **{name: folder.tensor(name, salt="later") for name in NAMES}, **GEOMETRY)


def test_gc_after_an_addition_takes_nothing(folder: Folder) -> None:
    """Both objects are referred to."""
    folder.build(names=NAMES)
    assert folder.store.gc(yes=True, grace_hours=0).swept == 0
    assert len(object_files(folder.store.path)) == 2 and folder.plan(names=NAMES).hits == 1


def test_gc_after_a_rebuild_takes_the_old_object_only(folder: Folder) -> None:
    """The latent that was replaced goes, what replaced it stays."""
    (old,) = folder.digests()
    folder.build(names=NAMES, augment="rebuild")
    assert folder.store.gc(yes=True, grace_hours=0).swept == 1
    assert [path.stem for path in object_files(folder.store.path)] == [*folder.digests()] != [old]
    same(folder.get(), **{name: folder.tensor(name, salt="later") for name in NAMES}, **GEOMETRY)


def test_a_stored_object_that_is_gone_is_made_again_with_the_new_name(folder: Folder) -> None:
    """Nothing is added beside a file that isn't there: latent and mask are made in one pass."""
    (file,) = object_files(folder.store.path)
    file.unlink()
    check_whole(folder, asked=[{"latent", "mask", "crop_offset"}])


def test_a_damaged_variant_is_healed_with_all_its_names(folder: Folder) -> None:
    """A mask was added, then an object is lost: a build for the mask alone also brings back the latent."""
    folder.build(names=NAMES)
    folder.encoder.items.clear()
    for file in object_files(folder.store.path):
        file.unlink()
    with pytest.raises(casstore.errors.MissError):
        folder.get()
    assert dict(folder.plan(names=["mask"]).reasons) == {"damaged": 1}
    folder.build(names=["mask"])
    assert folder.get().keys() == {*NAMES, "crop_offset"}


def test_an_added_part_is_read_by_name(folder: Folder) -> None:
    """get(names=) takes names of any part."""
    folder.build(names=NAMES)
    found = folder.store.get(folder.key(), names=["mask"], as_numpy=True)
    same(found, mask=folder.tensor("mask", salt="later"))


def test_verify_finds_nothing_after_additions(folder: Folder) -> None:
    """Rows with several parts agree with their checksums and files."""
    folder.build(names=NAMES)
    assert folder.store.verify(deep=True).findings == ()


# -- names of the cases ----------------------------------------------------------------------------------------


def test_t8_a_mirrored_copy_is_a_name(folder: Folder) -> None:
    """T8: with flip on, an old entry without the mirrored latent is a miss; with flip off the double entry still hits;
    the mirrored one is made of the picture, whatever the seed."""
    folder.encoder.makes = {**folder.encoder.makes, "latent_flipped": ("image",)}
    assert dict(folder.plan(names=["latent", "latent_flipped"]).reasons) == {"output missing": 1}
    folder.build(names=["latent", "latent_flipped"])
    assert folder.plan(names=["latent"]).hits == 1
    expected = folder.tensor("latent_flipped", salt="later")
    same(folder.get(), latent=folder.tensor("latent"), latent_flipped=expected, **GEOMETRY)


def test_t70_any_set_of_names_can_be_stored(store: casstore.Store, tmp_path: Path) -> None:
    """T70: mean and logvar instead of one sample."""
    folder = Folder(store, tmp_path / "data", Named(makes={"mean": ("image",), "logvar": ("image",)}))
    folder.picture()
    folder.build(names=["mean", "logvar"])
    same(folder.get(), mean=folder.tensor("mean"), logvar=folder.tensor("logvar"), **GEOMETRY)
    assert dict(folder.plan(names=["latent"]).reasons) == {"output missing": 1}
