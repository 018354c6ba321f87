"""Plans of roles: which contents of a row count, and why what they are together isn't stored."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import check_counts, clock_ahead, picture
from rowing import Recorder, cell, row, rows, save_caption, tensor_of

import casstore
from casstore.build.cells import side_by_side
from casstore.errors import AmbiguousMembersError, MissError, UsageError
from casstore.sources.inputs import Cell, Inputs

BOTH = ("image", "mask")


@pytest.fixture
def encoder() -> Recorder:
    return Recorder()


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return picture(tmp_path / "data" / "a.png", seed=1)


@pytest.fixture
def mask(tmp_path: Path) -> Path:
    return picture(tmp_path / "data" / "a-mask.png", seed=2)


def build(store: casstore.Store, inputs: Inputs, encoder: Recorder, **plan: Any) -> Any:
    return check_counts(store.build(store.plan(inputs, encoder.recipe, **plan), encoder))


def reasons(store: casstore.Store, inputs: Inputs, encoder: Recorder, **plan: Any) -> dict[str, int]:
    return dict(store.plan(inputs, encoder.recipe, **plan).reasons)


# -- which contents count --------------------------------------------------------------------------------------------


def test_the_first_role_is_the_primary_and_the_others_its_members(
    store: casstore.Store, image: Path, mask: Path, encoder: Recorder
) -> None:
    """The key is that of `Key.of`, and the encoder gets the members under their roles, decoded like the primary."""
    build(store, rows(row("a", mask=mask, image=image)), encoder, role=BOTH, resolution="64x64")
    (item,) = encoder.items
    assert item.key == casstore.Key.of({"image": image, "mask": mask}, encoder.recipe, resolution="64x64")
    assert (item.path, list(item.members), item.members["mask"].path) == (str(image), ["mask"], str(mask))
    assert item.members["mask"].data == mask.read_bytes() and item.members["mask"].image.size == (64, 64)
    np.testing.assert_array_equal(store.get(item.key, as_numpy=True)["t"], tensor_of(item))


def test_the_default_role_is_the_first_of_the_first_row(store: casstore.Store, image: Path, encoder: Recorder) -> None:
    """Without a role, what the rows begin with is planned, alone."""
    plan = store.plan(rows(row("a", caption="red", image=image), row("b", image=image)), encoder.recipe)
    assert (plan.roles, plan.planned, plan.absent) == (("caption",), 1, 1)


def test_roles_that_are_not_asked_for_do_not_exist(
    store: casstore.Store, image: Path, mask: Path, tmp_path: Path, encoder: Recorder
) -> None:
    """An unreadable caption and a mask change nothing about a plan of images."""
    plain = store.plan(rows(row("a", image=image)), encoder.recipe, role="image").rows[0].key
    given = rows(row("a", image=image, mask=mask, caption=tmp_path / "nowhere.txt"))
    plan = store.plan(given, encoder.recipe, role="image")
    assert (plan.rows[0].key, dict(plan.reasons)) == (plain, {"new": 1})


@pytest.mark.parametrize("role", ["", (), ("image", "image"), ("image", 1)], ids=repr)
def test_what_cannot_be_a_role_is_refused(store: casstore.Store, image: Path, encoder: Recorder, role: Any) -> None:
    """Empty names, none at all, and the same twice are a UsageError."""
    with pytest.raises(UsageError, match="role"):
        store.plan(rows(row("a", image=image)), encoder.recipe, role=role)


def test_the_order_of_members_does_not_matter(
    store: casstore.Store, image: Path, mask: Path, encoder: Recorder
) -> None:
    """What was stored with (image, mask, depth) is a hit for (image, depth, mask); with another primary it isn't."""
    given = rows(row("a", image=image, mask=mask, depth=image))
    build(store, given, encoder, role=("image", "mask", "depth"))
    assert store.plan(given, encoder.recipe, role=("image", "depth", "mask")).hits == 1
    assert store.plan(given, encoder.recipe, role=("mask", "image", "depth")).hits == 0


def test_an_absent_member_is_left_out(store: casstore.Store, image: Path, encoder: Recorder) -> None:
    """A row without any of the members has the key of its primary alone."""
    build(store, rows(row("a", image=image)), encoder, role="image")
    assert store.plan(rows(row("a", image=image)), encoder.recipe, role=BOTH).hits == 1


# -- rows without the primary ----------------------------------------------------------------------------------------


def test_a_row_without_the_primary_is_left_out_and_counted(
    store: casstore.Store, image: Path, encoder: Recorder
) -> None:
    """The plan says how many, in its text too."""
    given = rows(row("a", image=image, caption="red"), row("b", image=image))
    plan = store.plan(given, encoder.recipe, role="caption")
    assert (plan.planned, plan.absent) == (1, 1)
    assert str(plan) == "1 planned with recorder: 0 stored, 1 new, 1 without caption"


def test_absent_error_names_the_rows(store: casstore.Store, image: Path, encoder: Recorder) -> None:
    """With absent="error" the plan is refused; the message names rows and the role."""
    given = rows(row("a", image=image, caption="red"), row("b.png", image=image))
    with pytest.raises(UsageError, match=r"1 rows have no caption: b\.png"):
        store.plan(given, encoder.recipe, role="caption", absent="error")


def test_absent_empty_is_the_empty_text(store: casstore.Store, image: Path, encoder: Recorder) -> None:
    """With absent="empty" such rows share the key of the empty text; where the role holds no texts it is refused."""
    given = rows(row("a", image=image, caption="red"), row("b", image=image), row("c", image=image))
    plan = store.plan(given, encoder.recipe, role="caption", absent="empty")
    empty = casstore.Key.text("", encoder.recipe)
    assert [planned.key for planned in plan.rows[1:]] == [empty, empty] and plan.absent == 0
    with pytest.raises(UsageError, match="empty"):
        store.plan(rows(row("a", image=image), row("b", caption="x")), encoder.recipe, role="image", absent="empty")


def test_absent_is_one_of_three(store: casstore.Store, encoder: Recorder) -> None:
    """Another word is refused with the list of those that mean something."""
    with pytest.raises(UsageError, match="'skip', 'error', 'empty'"):
        store.plan(rows(), encoder.recipe, absent="drop")  # type: ignore[arg-type]


# -- several contents under a role -----------------------------------------------------------------------------------


def test_a_row_is_planned_once_for_each_of_its_contents(store: casstore.Store, encoder: Recorder) -> None:
    """Each line of a caption is a text of its own; the key's variation stays 0."""
    report = build(store, rows(row("a", caption=["red", "green"])), encoder, role="caption")
    assert (report.planned, report.encoded) == (2, 2)
    for text in ("red", "green"):
        assert isinstance(store.lookup(casstore.Key.text(text, encoder.recipe)), casstore.Hit)


def test_contents_of_several_roles_go_side_by_side(
    store: casstore.Store, image: Path, mask: Path, encoder: Recorder
) -> None:
    """Roles with as many contents are paired; a single one goes with all."""
    given = rows(row("a", image=[image, mask], mask=[mask, image], caption="red"))
    plan = store.plan(given, encoder.recipe, role=("image", "mask", "caption"))
    pairs = [{role: one.path for role, one in planned.cells.items()} for planned in plan.rows]
    assert [(p["image"], p["mask"]) for p in pairs] == [(str(image), str(mask)), (str(mask), str(image))]
    assert all(planned.cells["caption"].content == cell("red").content for planned in plan.rows)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=4))
def test_there_are_as_many_variations_as_the_longest_role_has_contents(counts: list[int]) -> None:
    """Each variation has one content of every role that has any; different numbers beyond one can't be paired."""
    names = {f"r{place}": [f"{place}.{n}" for n in range(count)] for place, count in enumerate(counts)}
    one = row("a", **names)
    if len({count for count in counts if count > 1}) > 1:
        with pytest.raises(UsageError):
            side_by_side(one, list(names))
        return
    found = side_by_side(one, list(names))
    assert len(found) == max(1, *counts)
    for place, cells in enumerate(found):
        texts = {role: part.content.text for role, part in cells.items() if part.content}
        assert texts == {role: all_[min(place, len(all_) - 1)] for role, all_ in names.items() if all_}


def test_contents_that_cannot_be_paired_are_a_listed_failure(
    store: casstore.Store, image: Path, mask: Path, encoder: Recorder
) -> None:
    """Two contents beside three cost that row only; what was given is told, and retrying doesn't help."""
    given = rows(row("bad", image=[image, mask], mask=[mask, image, mask]), row("good", image=image, mask=mask))
    plan = store.plan(given, encoder.recipe, role=BOTH)
    for retry in (False, True):
        report = check_counts(store.build(plan, encoder, retry_failed=retry))
        (failure,) = report.failures
        assert (failure.sample, report.planned) == ("bad", 2)
        assert "2 under 'image'" in failure.message and "3 under 'mask'" in failure.message


# -- what can't be read ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", BOTH)
def test_a_content_that_cannot_be_read_costs_its_row_only(
    store: casstore.Store, image: Path, mask: Path, tmp_path: Path, encoder: Recorder, role: str
) -> None:
    """It is a miss "source unavailable" and a failure of the build, whether primary or member; others are built."""
    paths = {"image": image, "mask": mask, role: tmp_path / "nowhere.png"}
    given = rows(row("bad", **paths), row("good", image=image, mask=mask))
    assert reasons(store, given, encoder, role=BOTH) == {"source unavailable": 1, "new": 1}
    report = build(store, given, encoder, role=BOTH)
    assert (report.failed, report.encoded, encoder.seen) == (1, 1, ["good"])
    assert "nowhere.png" in report.failures[0].message


def test_a_member_that_is_no_picture_costs_its_row_only(
    store: casstore.Store, image: Path, tmp_path: Path, encoder: Recorder
) -> None:
    """A mask that can't be decoded fails its row, and isn't tried again until its bytes change."""
    bad = tmp_path / "data" / "bad.png"
    bad.write_text("a red cat")
    given = rows(row("bad", image=image, mask=bad), row("good", image=image))
    report = build(store, given, encoder, role=BOTH)
    assert ([f.sample for f in report.failures], report.encoded) == (["bad"], 1)
    assert reasons(store, given, encoder, role=BOTH) == {"failed": 1}
    picture(bad, seed=5)
    assert build(store, rows(row("bad", image=image, mask=bad)), encoder, role=BOTH).encoded == 1


# -- why it isn't stored ---------------------------------------------------------------------------------------------


def scanned(store: casstore.Store, image: Path, mask: Path | None) -> Inputs:
    """The row of a picture and its mask, both known to the index."""
    store.scan(image.parent)
    return rows(row("a", image=image, mask=mask))


@pytest.mark.parametrize("seed", [7, 8])
def test_an_edited_mask_is_member_edited_and_one_encode(
    store: casstore.Store, image: Path, mask: Path, encoder: Recorder, seed: int
) -> None:
    """Drawing the mask anew makes another key, and the plan says why; the old variant stays, for when it comes back."""
    old = mask.read_bytes()
    build(store, scanned(store, image, mask), encoder, role=BOTH, resolution="64x64")
    picture(mask, seed=seed)
    given = scanned(store, image, mask)
    plan = store.plan(given, encoder.recipe, role=BOTH, resolution="64x64")
    assert dict(plan.reasons) == {"member edited": 1}
    assert plan.misses[0].miss is not None and "mask" in plan.misses[0].miss.detail
    assert check_counts(store.build(plan, encoder)).encoded == 1
    mask.write_bytes(old)
    assert store.plan(scanned(store, image, mask), encoder.recipe, role=BOTH, resolution="64x64").hits == 1


def test_an_edited_picture_with_a_mask_is_edited(
    store: casstore.Store, image: Path, mask: Path, encoder: Recorder
) -> None:
    """When the primary changed, that is the reason, whatever its members are."""
    build(store, scanned(store, image, mask), encoder, role=BOTH)
    picture(image, seed=9)
    assert reasons(store, scanned(store, image, mask), encoder, role=BOTH) == {"edited": 1}


def test_another_mask_is_new(store: casstore.Store, image: Path, mask: Path, encoder: Recorder) -> None:
    """A mask from another file, one that came, and one that went are other inputs, of which nothing was stored."""
    build(store, scanned(store, image, mask), encoder, role=BOTH)
    other = picture(mask.parent / "b-mask.png", seed=10)
    assert reasons(store, scanned(store, image, other), encoder, role=BOTH) == {"new": 1}
    assert reasons(store, scanned(store, image, None), encoder, role=BOTH) == {"new": 1}


def test_a_touched_mask_is_a_hit(store: casstore.Store, image: Path, mask: Path, encoder: Recorder) -> None:
    """Times don't count."""
    build(store, scanned(store, image, mask), encoder, role=BOTH)
    os.utime(mask, (1, 1))
    assert store.plan(scanned(store, image, mask), encoder.recipe, role=BOTH).hits == 1


def test_the_same_contents_at_another_resolution_are_resolution(
    store: casstore.Store, image: Path, mask: Path, encoder: Recorder
) -> None:
    """Another resolution, other params and another recipe are told apart for composites as for pictures."""
    given = scanned(store, image, mask)
    build(store, given, encoder, role=BOTH, resolution="64x64")
    assert reasons(store, given, encoder, role=BOTH, resolution="64x128") == {"resolution": 1}
    assert reasons(store, given, encoder, role=BOTH, resolution="64x64", params={"n": 1}) == {"variation": 1}
    other = Recorder(casstore.Recipe("recorder", code=2))
    assert reasons(store, given, other, role=BOTH, resolution="64x64") == {"recipe": 1}


def test_t2_an_edited_caption_is_edited_and_the_picture_a_hit(
    store: casstore.Store, image: Path, encoder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T2: a.txt goes from red to blue: the text misses as "edited", the image is a hit; back to red it is one again."""
    clock_ahead(monkeypatch)
    path = image.with_suffix(".txt")

    def captioned(text: str) -> Inputs:
        path.write_text(text)
        store.scan(path.parent, extensions=(".txt", ".png"))
        return rows(row("a", image=image, caption=Cell(save_caption(store, path), str(path))))

    red = captioned("red")
    build(store, red, encoder, role="image")
    build(store, red, encoder, role="caption")
    blue = captioned("blue")
    assert reasons(store, blue, encoder, role="image") == {}
    assert reasons(store, blue, encoder, role="caption") == {"edited": 1}
    assert build(store, blue, encoder, role="caption").encoded == 1
    assert store.plan(captioned("red"), encoder.recipe, role="caption").hits == 1


def test_an_edited_caption_of_a_picture_is_member_edited(store: casstore.Store, image: Path, encoder: Recorder) -> None:
    """Also a text can be a member; the file that it was read from tells that it was edited."""
    path = image.with_suffix(".txt")
    for text, why in (("red", "new"), ("blue", "member edited")):
        path.write_text(text)
        store.scan(path.parent, extensions=(".txt", ".png"))
        given = rows(row("a", image=image, caption=save_and_cell(store, path)))
        assert reasons(store, given, encoder, role=("image", "caption")) == {why: 1}
        build(store, given, encoder, role=("image", "caption"))


def save_and_cell(store: casstore.Store, path: Path) -> Cell:
    return Cell(save_caption(store, path), str(path))


# -- params ----------------------------------------------------------------------------------------------------------


def test_params_are_part_of_the_key_and_reach_the_encoder(
    store: casstore.Store, image: Path, encoder: Recorder
) -> None:
    """A dict holds for all rows; a function says of each; both as the encoder finds them in item.params."""
    given = rows(row("a", image=image), row("b", image=image))
    build(store, given, encoder, params={"frames": 3})
    assert [item.params for item in encoder.items] == [{"frames": 3}]
    build(store, given, encoder, params=lambda one: {"of": one.sample})
    assert [item.params for item in encoder.items[1:]] == [{"of": "a"}, {"of": "b"}]
    assert reasons(store, given, encoder) == {"variation": 2}


def test_params_are_told_by_a_miss_and_given_to_get(store: casstore.Store, image: Path, encoder: Recorder) -> None:
    """get with the params of the build gives its result; without, the miss says which are stored."""
    build(store, rows(row("a", image=image)), encoder, params={"frames": 3})
    expected = tensor_of(encoder.items[0])
    np.testing.assert_array_equal(store.get(image, encoder.recipe, params={"frames": 3}, as_numpy=True)["t"], expected)
    with pytest.raises(MissError, match=r'stored with \{"frames":3\}'):
        store.get(image, encoder.recipe)


@pytest.mark.parametrize("params", [{"a": object()}, lambda one: [1]], ids=["no JSON", "no dict"])
def test_params_that_are_no_json_object_are_refused(
    store: casstore.Store, image: Path, encoder: Recorder, params: Any
) -> None:
    """The message names what is wrong."""
    with pytest.raises(UsageError, match="params"):
        store.plan(rows(row("a", image=image)), encoder.recipe, params=params)


# -- getting by path -------------------------------------------------------------------------------------------------


def two_masks(store: casstore.Store, image: Path, mask: Path, encoder: Recorder) -> Path:
    """Store a picture with two masks; the second one's path."""
    other = picture(mask.parent / "a-other.png", seed=11)
    store.scan(image.parent)
    build(store, rows(row("1", image=image, mask=mask), row("2", image=image, mask=other)), encoder, role=BOTH)
    return other


def test_one_picture_with_two_masks_is_two_variants(
    store: casstore.Store, image: Path, mask: Path, encoder: Recorder
) -> None:
    """They stand side by side, and `members` picks one."""
    other = two_masks(store, image, mask, encoder)
    assert store.status().variants == 2
    for place, path in enumerate((mask, other)):
        got = store.get(image, encoder.recipe, members={"mask": path}, as_numpy=True)["t"]
        np.testing.assert_array_equal(got, tensor_of(encoder.items[place]))


def test_without_members_the_only_stored_ones_are_meant(
    store: casstore.Store, image: Path, mask: Path, encoder: Recorder
) -> None:
    """A path is enough where just one thing is stored for it, alone or with a mask; members={} means alone."""
    build(store, rows(row("a", image=image, mask=mask)), encoder, role=BOTH)
    np.testing.assert_array_equal(store.get(image, encoder.recipe, as_numpy=True)["t"], tensor_of(encoder.items[0]))
    with pytest.raises(MissError):
        store.get(image, encoder.recipe, members={})
    with pytest.raises(MissError):
        store.get(image, encoder.recipe, members={"mask": image})


def test_the_role_of_the_file_itself_need_not_be_said(
    store: casstore.Store, image: Path, mask: Path, encoder: Recorder
) -> None:
    """Whatever the primary's role is, its members pick the variant; a member may even be called image."""
    build(store, rows(row("a", control=mask, image=image)), encoder, role=("control", "image"))
    got = store.get(mask, encoder.recipe, members={"image": image}, as_numpy=True)["t"]
    np.testing.assert_array_equal(got, tensor_of(encoder.items[0]))
    for members in ({"image": mask}, {"image": image, "mask": mask}, {"image": mask, "primary": mask}):
        with pytest.raises(MissError):
            store.get(mask, encoder.recipe, members=members)


def test_several_stored_members_must_be_told_apart(
    store: casstore.Store, image: Path, mask: Path, encoder: Recorder
) -> None:
    """The error lists them by role and path, and that it is stored alone too."""
    other = two_masks(store, image, mask, encoder)
    build(store, rows(row("a", image=image)), encoder)
    with pytest.raises(AmbiguousMembersError) as error:
        store.get(image, encoder.recipe)
    assert all(text in str(error.value) for text in (f"mask: {mask}", f"mask: {other}", "alone"))
    np.testing.assert_array_equal(
        store.get(image, encoder.recipe, members={}, as_numpy=True)["t"], tensor_of(encoder.items[-1])
    )
