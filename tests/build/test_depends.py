"""Names that depend on some roles only: where a member was edited, the others are taken over as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from core.helpers import sql
from kit import object_files
from naming import BOTH, Folder, Named, same

import casstore
from casstore.errors import MissError

DEPENDS = {"latent_mask": BOTH, "latent": ("image",)}
GEOMETRY = {"crop_offset": [0, 0]}


def named(depends: Any = None, **options: Any) -> Named:
    recipe = casstore.Recipe("named", code=1, stride=8, depends=DEPENDS if depends is None else depends)
    return Named(recipe, makes={"latent": ("image",), "latent_mask": BOTH}, **options)


@pytest.fixture
def folder(store: casstore.Store, tmp_path: Path) -> Folder:
    """A picture and its mask, and another such pair, are stored; from now on the encoder makes other tensors."""
    found = Folder(store, tmp_path / "data", named(), {"resolution": "64x64", "role": BOTH})
    for number, name in enumerate("ab"):
        found.picture(name, seed=number)
        found.mask(name, seed=100 + number)
    assert found.build().encoded == 2
    later(found)
    return found


def later(folder: Folder, salt: str = "later") -> None:
    folder.encoder.items.clear()
    folder.encoder.salt = salt


def users(folder: Folder, digest: str) -> int:
    """Number of variants that refer to an object."""
    query = "SELECT count(*) FROM variant_parts p JOIN objects o ON o.id = p.object_id WHERE o.digest = ?"
    return int(sql(folder.store, query, bytes.fromhex(digest))[0][0])


def check_taken(folder: Folder, asked: Any, reasons: Any, **expected: Any) -> None:
    """Build, and see that `a` has the old latent beside what is new."""
    report = folder.build()
    assert (report.encoded, report.failed, dict(report.reasons), folder.encoder.asked) == (1, 0, reasons, asked)
    same(folder.get(), latent=folder.tensor("latent"), **expected, **GEOMETRY)
    latents = {digest for digest in folder.digests() if users(folder, digest) > 1}
    assert len(latents) == 1


# -- members -----------------------------------------------------------------------------------------------------------


def test_each_set_of_roles_is_a_part(folder: Folder) -> None:
    """The latent is an object of its own, so that variants can share it; its inputs are the picture alone."""
    assert len(folder.digests()) == 2
    query = "SELECT DISTINCT h.kind FROM variant_parts p LEFT JOIN hashes h ON h.id = p.inputs_id ORDER BY 1"
    assert sql(folder.store, query) == [(None,), ("file",)]
    same(folder.get(), latent=folder.tensor("latent"), latent_mask=folder.tensor("latent_mask"), **GEOMETRY)


def test_an_edited_member_refreshes_what_depends_on_it(folder: Folder) -> None:
    """A mask that was drawn anew: the encoder is asked for the latent_mask alone, the latent is the same object."""
    old = folder.digests()
    folder.mask(seed=50)
    check_taken(folder, [{"latent_mask"}], {"member edited": 1}, latent_mask=folder.tensor("latent_mask", salt="later"))
    assert set(folder.digests()) & set(old) and folder.plan().hits == 2


def test_what_was_there_before_the_edit_stays(folder: Folder) -> None:
    """The variant of the old mask is served when the mask comes back, without an encode."""
    mask = folder.path / "a-mask.png"
    old = mask.read_bytes()
    folder.mask(seed=50)
    folder.build()
    mask.write_bytes(old)
    assert folder.build().hits == 2
    same(folder.get(), latent=folder.tensor("latent"), latent_mask=folder.tensor("latent_mask"), **GEOMETRY)


def test_an_added_member_keeps_what_does_not_depend_on_it(folder: Folder) -> None:
    """A picture that was stored without a mask gets one: the latent is taken over."""
    folder.picture("c", seed=5)
    folder.encoder.makes = {"latent": ("image",)}
    folder.build()
    folder.encoder.makes = {"latent": ("image",), "latent_mask": BOTH}
    later(folder, "last")
    folder.mask("c", seed=51)
    assert folder.build().encoded == 1
    assert folder.encoder.asked == [{"latent_mask"}]
    expected = {
        "latent": folder.tensor("latent", "c", "later"),
        "latent_mask": folder.tensor("latent_mask", "c", "last"),
    }
    same(folder.get("c"), **expected, **GEOMETRY)


def test_a_deleted_member_keeps_what_does_not_depend_on_it(folder: Folder) -> None:
    """The mask is gone: the latent is taken over; what the encoder makes without one is for it to say."""
    (folder.path / "a-mask.png").unlink()
    expected = folder.tensor("latent_mask", salt="later")
    check_taken(folder, [{"latent_mask"}], {"new": 1}, latent_mask=expected)


def test_an_encoder_need_not_make_what_it_has_no_role_for(folder: Folder) -> None:
    """Without a mask it makes no latent_mask: no failure, the variant is the latent alone."""
    (folder.path / "a-mask.png").unlink()
    folder.encoder.makes = {"latent": ("image",)}
    check_taken(folder, [{"latent_mask"}], {"new": 1})
    assert (len(folder.digests()), folder.plan().hits) == (1, 2)


def test_what_depended_on_nothing_in_particular_is_not_demanded_without_the_member(folder: Folder) -> None:
    """A value that the encoder told only of rows with a mask isn't missed where there is none."""
    folder.encoder.values = lambda item: {**GEOMETRY, **({"area": 7} if item.members else {})}
    folder.mask(seed=50)
    folder.build()
    (folder.path / "a-mask.png").unlink()
    report = folder.build()
    assert (report.encoded, report.failed, folder.get().keys()) == (1, 0, {"latent", "latent_mask", "crop_offset"})


def test_a_name_that_was_made_with_these_roles_before_has_to_come(folder: Folder) -> None:
    """An edited mask, and an encoder that forgets the latent_mask: a failure that says so, nothing is stored."""
    folder.mask(seed=50)
    folder.encoder.makes = {"latent": ("image",)}
    report = folder.build()
    assert [(f.sample, f.error) for f in report.failures] == [("a.png", "EncoderError")]
    assert "'latent_mask' was asked for" in report.failures[0].message
    assert folder.store.status().variants == 2


def test_a_primary_that_was_edited_means_all_again(folder: Folder) -> None:
    """Nothing is taken over from another picture."""
    folder.picture(seed=60)
    report = folder.build()
    assert (report.encoded, dict(report.reasons), folder.encoder.asked) == (1, {"edited": 1}, [None])
    expected = {name: folder.tensor(name, salt="later") for name in DEPENDS}
    same(folder.get(), **expected, **GEOMETRY)


def test_without_depends_an_edited_member_means_all_again(store: casstore.Store, tmp_path: Path) -> None:
    """All names depend on all of the plan's roles unless the recipe says less."""
    folder = Folder(store, tmp_path / "data", named(depends={}), {"resolution": "64x64", "role": BOTH})
    folder.picture()
    folder.mask()
    folder.build()
    later(folder)
    folder.mask(seed=50)
    assert folder.build().encoded == 1 and folder.encoder.asked == [None]
    same(folder.get(), **{name: folder.tensor(name, salt="later") for name in DEPENDS}, **GEOMETRY)


def test_a_name_that_depends_does_not_say_depends_on_all(store: casstore.Store, tmp_path: Path) -> None:
    """Only the names in depends can be taken over."""
    folder = Folder(store, tmp_path / "data", named({"latent": ("image",)}), {"resolution": "64x64", "role": BOTH})
    folder.picture()
    folder.mask()
    folder.build()
    later(folder)
    folder.mask(seed=50)
    folder.build()
    assert folder.encoder.asked == [{"latent_mask"}]
    same(
        folder.get(), latent=folder.tensor("latent"), latent_mask=folder.tensor("latent_mask", salt="later"), **GEOMETRY
    )


def test_what_differs_elsewhere_is_no_relative(folder: Folder) -> None:
    """Another resolution, variation, params or recipe takes nothing over."""
    folder.mask(seed=50)
    for options in ({"resolution": "64x32"}, {"variations": 2}, {"params": {"n": 1}}):
        folder.encoder.items.clear()
        folder.build(**options)
        assert all(item.names is None for item in folder.encoder.items if item.sample == "b.png"), options
    later(folder)
    folder.encoder.recipe = casstore.Recipe("named", code=2, stride=8, depends=DEPENDS)
    folder.build()
    assert folder.encoder.asked == [None, None]


def test_rebuild_takes_nothing_over(folder: Folder) -> None:
    """augment="rebuild": an edited member means all again."""
    folder.mask(seed=50)
    folder.build(augment="rebuild")
    assert folder.encoder.asked == [None]
    same(folder.get(), **{name: folder.tensor(name, salt="later") for name in DEPENDS}, **GEOMETRY)


def test_only_the_names_asked_for_are_made(folder: Folder) -> None:
    """With names=["latent"] an edited mask costs no encode: what is asked for is all taken over."""
    folder.mask(seed=50)
    report = folder.build(names=["latent"])
    assert (report.encoded, report.hits, folder.encoder.items) == (0, 2, [])
    assert dict(folder.plan(names=list(DEPENDS)).reasons) == {"output missing": 1}
    folder.build(names=list(DEPENDS))
    assert folder.encoder.asked == [{"latent_mask"}]
    same(
        folder.get(), latent=folder.tensor("latent"), latent_mask=folder.tensor("latent_mask", salt="later"), **GEOMETRY
    )


# -- nothing to encode -------------------------------------------------------------------------------------------------


@pytest.fixture
def captioned(store: casstore.Store, tmp_path: Path) -> Folder:
    """A picture with its mask and caption, of which nothing depends on the caption but what is said to."""
    encoder = named({**DEPENDS, "words": ("caption",)})
    roles = ("image", "mask", "caption")
    folder = Folder(store, tmp_path / "data", encoder, {"resolution": "64x64", "role": roles})
    folder.picture()
    folder.mask()
    (folder.path / "a.txt").write_text("red")
    return folder


def test_an_edit_that_nothing_depends_on_costs_no_encode(captioned: Folder) -> None:
    """The caption changed, and no name depends on it: the variant is put together from what is stored."""
    captioned.encoder.recipe = named(DEPENDS).recipe
    captioned.build()
    old = captioned.digests()
    later(captioned)
    (captioned.path / "a.txt").write_text("blue")
    report = captioned.build()
    assert (report.encoded, report.hits, dict(report.reasons), captioned.encoder.items) == (
        0,
        1,
        {"member edited": 1},
        [],
    )
    assert captioned.digests() == old and all(users(captioned, digest) == 2 for digest in old)
    same(captioned.get(), **{name: captioned.tensor(name) for name in DEPENDS}, **GEOMETRY)
    assert captioned.plan().hits == 1


def test_parts_come_from_several_variants(captioned: Folder) -> None:
    """The latent_mask of the mask before last and the words of the last caption: both are there already."""
    captioned.encoder.makes = {**captioned.encoder.makes, "words": ("caption",)}
    mask, caption = captioned.path / "a-mask.png", captioned.path / "a.txt"
    old = mask.read_bytes()
    captioned.build()
    captioned.mask(seed=50)
    caption.write_text("blue")
    later(captioned, "second")
    captioned.build()
    later(captioned, "third")
    mask.write_bytes(old)
    report = captioned.build()
    assert (report.encoded, report.hits, captioned.encoder.items) == (0, 1, [])
    found = captioned.get()
    np.testing.assert_array_equal(found["latent_mask"], captioned.tensor("latent_mask"))
    words = captioned.encoder
    assert np.array_equal(found["words"], words_of(words, "blue", "second")), "of the last caption"


def words_of(encoder: Named, text: str, salt: str) -> Any:
    from naming import made

    return made("words", {"caption": text.encode()}, encoder.recipe, "64x64", salt)


def test_parts_that_were_placed_differently_are_not_put_together(captioned: Folder) -> None:
    """The second variant was cropped elsewhere than the first: its latent doesn't go with the first one's mask."""
    captioned.encoder.makes = {**captioned.encoder.makes, "words": ("caption",)}
    mask = captioned.path / "a-mask.png"
    old = mask.read_bytes()
    captioned.build()
    captioned.mask(seed=50)
    (captioned.path / "a.txt").write_text("blue")
    later(captioned, "second")
    captioned.encoder.values = lambda item: {"crop_offset": [8, 8]}
    captioned.build()
    mask.write_bytes(old)
    later(captioned, "third")
    captioned.build()
    found = captioned.get()
    salts = {
        name: next(s for s in ("", "second", "third") if np.array_equal(found[name], captioned.tensor(name, salt=s)))
        for name in DEPENDS
    }
    offsets = {"": [0, 0], "second": [8, 8], "third": [8, 8]}
    assert {str(offsets[salt]) for salt in salts.values()} == {str(found["crop_offset"])}, salts


# -- the geometry rule -------------------------------------------------------------------------------------------------


def test_a_crop_drawn_elsewhere_means_all_again(folder: Folder) -> None:
    """The latent_mask of the new mask comes with another crop_offset than the latent has."""
    folder.mask(seed=50)
    folder.encoder.values = lambda item: {"crop_offset": [8, 0]}
    assert folder.build().encoded == 1
    assert folder.encoder.asked == [{"latent_mask"}, None]
    expected = {name: folder.tensor(name, salt="later") for name in DEPENDS}
    same(folder.get(), **expected, crop_offset=[8, 0])


def test_without_geometry_values_all_is_made_again_in_one_pass(store: casstore.Store, tmp_path: Path) -> None:
    """Nobody could tell how the stored latent was placed."""
    encoder = named(values=lambda item: {})
    folder = Folder(store, tmp_path / "data", encoder, {"resolution": "64x64", "role": BOTH})
    folder.picture()
    folder.mask()
    folder.build()
    later(folder)
    folder.mask(seed=50)
    folder.build()
    assert folder.encoder.asked == [None]
    same(folder.get(), **{name: folder.tensor(name, salt="later") for name in DEPENDS})


# -- values ------------------------------------------------------------------------------------------------------------


def test_values_go_with_the_roles_that_they_depend_on(store: casstore.Store, tmp_path: Path) -> None:
    """A value of the picture alone is taken over; one of the mask comes anew, and one of which nothing is said too."""
    depends = {**DEPENDS, "of_image": ("image",), "of_mask": BOTH}
    told = {"of_image": 1, "of_mask": 1, "of_all": 1}
    encoder = named(depends, values=lambda item: {**GEOMETRY, **told})
    folder = Folder(store, tmp_path / "data", encoder, {"resolution": "64x64", "role": BOTH})
    folder.picture()
    folder.mask()
    folder.build()
    later(folder)
    told = {"of_image": 2, "of_mask": 2, "of_all": 2}
    folder.mask(seed=50)
    folder.build()
    assert folder.encoder.asked == [{"latent_mask", "of_mask", "of_all"}]
    assert {name: folder.get()[name] for name in told} == {"of_image": 1, "of_mask": 2, "of_all": 2}


# -- a mask that is the picture ----------------------------------------------------------------------------------------


def test_a_mask_with_the_bytes_of_its_picture_is_no_primary(store: casstore.Store, tmp_path: Path) -> None:
    """The same bytes under both roles, and roles whose order doesn't tell the primary: nothing of it is served for
    another mask."""
    folder = Folder(store, tmp_path / "data", named(), {"resolution": "64x64", "role": BOTH})
    image, mask = folder.picture(), folder.path / "a-mask.png"
    mask.write_bytes(image.read_bytes())
    folder.build()
    same(folder.get(), **{name: folder.tensor(name) for name in DEPENDS}, **GEOMETRY)
    folder.mask(seed=50)
    later(folder)
    folder.build()
    np.testing.assert_array_equal(folder.get()["latent_mask"], folder.tensor("latent_mask", salt="later"))
    mask.unlink()
    later(folder, "last")
    folder.build()
    np.testing.assert_array_equal(folder.get()["latent_mask"], folder.tensor("latent_mask", salt="last"))


def test_equal_contents_under_roles_in_any_order_are_told_apart() -> None:
    """What a name depends on counts a member that holds the primary's bytes as if it were the primary."""
    recipe = casstore.Recipe("r", depends={"of_b": ("b",), "of_z": ("z",)})
    key = casstore.Key.of({"z": casstore.Text("same"), "b": casstore.Text("same")}, recipe)
    alone = casstore.Key.of({"z": casstore.Text("same")}, recipe)
    for name in ("of_b", "of_z"):
        depends = key.inputs_of(name)
        assert (key.inputs if depends is None else depends.inputs) != alone.inputs


# -- damage and gc -----------------------------------------------------------------------------------------------------


def the_latent(folder: Folder) -> Path:
    """The object file of the latent of a."""
    query = (
        "SELECT o.digest FROM variant_parts p JOIN objects o ON o.id = p.object_id "
        "JOIN layouts l ON l.id = o.layout_id "
        "JOIN hashes h ON h.id = p.inputs_id JOIN sources s ON s.hash_id = h.id "
        "WHERE s.name = 'a.png' AND l.tensors LIKE '%\"latent\"%'"
    )
    digests = {digest.hex() for (digest,) in sql(folder.store, query)}
    (file,) = [file for file in object_files(folder.store.path) if file.stem in digests]
    return file


@pytest.mark.parametrize("known", [False, True])
def test_a_lost_object_is_not_taken_over(folder: Folder, known: bool) -> None:
    """The file of the latent is gone, whether the index knows or not: all is encoded, and nothing fails."""
    the_latent(folder).unlink()
    if known:
        with pytest.raises(MissError):
            folder.get()
    folder.mask(seed=50)
    report = folder.build()
    assert (report.encoded, report.failed, folder.encoder.asked) == (1, 0, [None])
    same(folder.get(), **{name: folder.tensor(name, salt="later") for name in DEPENDS}, **GEOMETRY)


def test_an_object_that_goes_during_the_build_is_a_failure_and_not_a_hole(folder: Folder) -> None:
    """The latent's file goes after it was decided to take it over: the row fails, and the next build makes all."""
    folder.mask(seed=50)
    file = the_latent(folder)
    folder.encoder.before = lambda items: file.unlink(missing_ok=True)
    report = folder.build()
    assert [f.error for f in report.failures] == ["LostError"] and "Build again" in report.failures[0].message
    folder.encoder.before = None
    assert folder.build().encoded == 1
    same(folder.get(), **{name: folder.tensor(name, salt="later") for name in DEPENDS}, **GEOMETRY)


def test_a_swept_object_is_not_taken_over(folder: Folder) -> None:
    """The old variant was forgotten and its objects collected: there is nothing to take over."""
    folder.store.forget(folder.key()).execute()
    folder.store.gc(yes=True, grace_hours=0)
    folder.mask(seed=50)
    folder.build()
    assert folder.encoder.asked == [None]


def test_a_variant_that_is_swept_during_the_build_is_a_failure_and_not_a_hole(folder: Folder) -> None:
    """forget and gc come after it was decided to take the latent over."""
    key = folder.key()
    folder.mask(seed=50)

    def sweep(items: list[casstore.Item]) -> None:
        folder.store.forget(key).execute()
        folder.store.gc(yes=True, grace_hours=0)

    folder.encoder.before = sweep
    assert [f.error for f in folder.build().failures] == ["LostError"]
    folder.encoder.before = None
    assert folder.build().encoded == 1
    same(folder.get(), **{name: folder.tensor(name, salt="later") for name in DEPENDS}, **GEOMETRY)


def test_forgetting_the_old_variant_keeps_the_shared_object(folder: Folder) -> None:
    """gc takes the old latent_mask; the latent is still referred to by the new variant."""
    old_key = folder.key()
    folder.mask(seed=50)
    folder.build()
    assert folder.store.forget(old_key).execute() == 1
    assert folder.store.gc(yes=True, grace_hours=0).swept == 1
    same(
        folder.get(), latent=folder.tensor("latent"), latent_mask=folder.tensor("latent_mask", salt="later"), **GEOMETRY
    )
    assert folder.store.verify(deep=True).findings == ()


def test_forgetting_the_new_variant_keeps_the_old_one(folder: Folder) -> None:
    """And the other way round."""
    mask = folder.path / "a-mask.png"
    old = mask.read_bytes()
    folder.mask(seed=50)
    folder.build()
    folder.store.forget(folder.key()).execute()
    assert folder.store.gc(yes=True, grace_hours=0).swept == 1
    mask.write_bytes(old)
    same(folder.get(), **{name: folder.tensor(name) for name in DEPENDS}, **GEOMETRY)


def test_a_damaged_shared_object_is_healed_for_all_its_variants(folder: Folder) -> None:
    """Both variants miss while the latent is damaged; one build of one of them brings it back for both."""
    mask = folder.path / "a-mask.png"
    old = mask.read_bytes()
    folder.mask(seed=50)
    folder.build()
    the_latent(folder).unlink()
    with pytest.raises(MissError):
        folder.get()
    folder.encoder.salt = ""
    assert dict(folder.plan().reasons) == {"damaged": 1}
    assert folder.build().encoded == 1
    mask.write_bytes(old)
    assert folder.plan().hits == 2
    same(folder.get(), **{name: folder.tensor(name) for name in DEPENDS}, **GEOMETRY)


def test_a_plan_of_the_primary_alone_takes_over_what_depends_on_nothing_else(folder: Folder) -> None:
    """A variant with other roles is a relative too: the latent is the same object."""
    folder.build(role="image")
    assert folder.encoder.asked == [{"latent_mask"}] * 2
    np.testing.assert_array_equal(folder.get(role="image")["latent"], folder.tensor("latent"))
