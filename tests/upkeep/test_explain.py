"""Why a file is served or isn't: each reason, through files, builds and an encoder that are real."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kit import FakeEncoder, build, dump, edit_in_place, object_files, picture, pictures
from PIL import Image
from rowing import Recorder

import casstore
from casstore.errors import SourceNotFoundError, UsageError
from casstore.explain.explanation import Explanation

HALF = casstore.Recipe("vae", weights="ab" * 32, dtype="float16", code=1, stride=8)
BRAIN = casstore.Recipe("vae", weights="ab" * 32, dtype="bfloat16", code=1, stride=8)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of five pictures."""
    pictures(tmp_path / "photos", 5)
    return tmp_path / "photos"


def only(found: tuple[Explanation, ...]) -> Explanation:
    (one,) = found
    return one


def whats(found: Explanation) -> list[str]:
    return [event.what for event in found.history]


# -- hits --------------------------------------------------------------------------------------------------------------


def test_a_hit_tells_what_is_stored(store: casstore.Store, photos: Path) -> None:
    """Its content, recipe, resolution, tensors, when it was encoded; and nothing is left to do."""
    build(store, photos, FakeEncoder(HALF))
    found = only(store.explain(photos / "p000.png"))
    assert (found.hit, found.recipe, found.resolution, found.to_encode) == (True, "vae", "64x64", 0)
    key = store.key(photos / "p000.png", HALF)
    told = {field.field: (field.then, field.now) for field in found.fields}
    assert told["content"] == (key.primary.digest.hex(),) * 2
    assert told["latent"] == ("F32 [4,8,8]",) * 2
    (event,) = found.history
    assert (event.what, event.reason, event.run) == ("encoded", "new", 1)
    assert (event.encode_us or 0) > 0 and found.relative is None and found.undo is None and found.others is None


def test_nothing_is_written(store: casstore.Store, photos: Path) -> None:
    """Not even when the file was edited since the last scan."""
    build(store, photos, FakeEncoder(HALF))
    picture(photos / "p000.png", seed=50)
    before = dump(Path(store.path))
    store.explain(photos / "p000.png", names=["mask"])
    store.explain(photos / "p001.png", BRAIN, resolution=64)
    store.missing(photos)
    store.variants(photos)
    store.failures()
    assert dump(Path(store.path)) == before


# -- misses ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scanned", [True, False])
def test_an_edited_picture(store: casstore.Store, photos: Path, scanned: bool) -> None:
    """It is compared with what it was, before the next scan as well; others that were edited are counted."""
    build(store, photos, FakeEncoder(HALF))
    was = (photos / "p000.png").stat().st_size
    picture(photos / "p001.png", seed=51)
    store.scan(photos)
    picture(photos / "p000.png", seed=50)
    if scanned:
        store.scan(photos)
    found = only(store.explain(photos / "p000.png", "vae"))
    assert (found.reason, found.resolution, found.to_encode) == ("edited", "64x64", 1)
    assert set(found.differing) == {"content"} and whats(found) == ["encoded", "edited"]
    (file,) = [field for field in found.fields if field.field == "file"]
    assert file.then["bytes"] == was and file.now["bytes"] == (photos / "p000.png").stat().st_size
    assert found.relative is not None and found.relative.same_recipe and not found.relative.same_content
    assert found.others == 1 and found.others_seconds == pytest.approx((found.encode_us or 0) / 1e6)
    plan = store.plan(store.scan(photos), HALF, resolution="64x64")
    assert plan.reasons == {"edited": 2}


def test_a_recipe_of_which_one_field_differs(store: casstore.Store, photos: Path) -> None:
    """The field is named, with both values; all others miss for the same reason; how to undo it brings them back."""
    build(store, photos, FakeEncoder(HALF))
    found = only(store.explain(photos / "p000.png", BRAIN))
    assert found.reason == "recipe"
    assert found.differing.keys() == {"recipe", "dtype"} and found.differing["dtype"] == ("F16", "BF16")
    assert (found.others, found.undone, found.undo) == (4, 5, 'dtype="F16" in the recipe')
    assert found.relative is not None and (found.relative.digest, found.relative.same_content) == (
        HALF.digest.hex(),
        True,
    )
    assert {field.field for field in found.fields} >= {"weights", "code", "dtype", "latent"}


def test_a_name_means_its_newest_recipe(store: casstore.Store, photos: Path) -> None:
    """A file that has something for an older one only is a "recipe" miss; a digest means the one recipe."""
    build(store, photos, FakeEncoder(HALF))
    picture(photos.parent / "other" / "x.png", seed=70)
    build(store, photos.parent / "other", FakeEncoder(BRAIN))
    found = only(store.explain(photos / "p000.png", "vae"))
    assert (found.reason, found.digest, found.others, found.undone) == ("recipe", BRAIN.digest.hex(), 4, 5)
    assert only(store.explain(photos / "p000.png", HALF.digest.hex()[:6])).hit
    assert only(store.explain(photos / "p000.png")).reason == "recipe"


def test_a_retired_recipe_is_not_the_newest(store: casstore.Store, photos: Path) -> None:
    """Who has gone back to the older recipe means that by the name."""
    build(store, photos, FakeEncoder(HALF))
    build(store, photos, FakeEncoder(BRAIN), resolution="128x128")
    store.retire(BRAIN)
    assert only(store.explain(photos / "p000.png", "vae")).digest == HALF.digest.hex()


def test_another_resolution(store: casstore.Store, photos: Path) -> None:
    """It says at which it is stored; others that lack theirs are counted, those that have it aren't."""
    build(store, photos, FakeEncoder(HALF))
    encoder = FakeEncoder(HALF)
    plan = store.plan(store.inputs([{"image": str(photos / "p004.png")}]), HALF, resolution=128)
    store.build(plan, encoder)
    found = only(store.explain(photos / "p000.png", "vae", resolution=128))
    assert (found.reason, found.resolution, found.others) == ("resolution", "128x128", 3)
    assert found.differing == {"resolution": ("64x64", "128x128")} and found.undo == 'resolution="64x64"'
    several = store.explain(photos / "p000.png", "vae", resolution=[64, 128])
    assert [(each.resolution, each.hit, each.others) for each in several] == [
        ("64x64", True, None),
        ("128x128", False, None),
    ]


def test_a_name_that_is_lacking(store: casstore.Store, photos: Path) -> None:
    """The name that was asked for is told, and how many others lack it."""
    encoder = FakeEncoder(HALF, change={"p003.png": lambda result: {**result, "mask": result["latent"]}})
    build(store, photos, encoder)
    found = only(store.explain(photos / "p000.png", names=["latent", "mask"]))
    assert (found.reason, found.detail, found.others) == ("output missing", "mask", 3)
    assert found.differing == {"mask": (None, "wanted")}
    assert only(store.explain(photos / "p003.png", names=["latent", "mask"])).hit


def test_what_the_encoder_failed_on(store: casstore.Store, photos: Path) -> None:
    """The message and the number of attempts are told; the next build tries it again."""

    def fail(items: list[Any]) -> None:
        if items[0].sample in ("p001.png", "p002.png"):
            raise RuntimeError("no memory left")

    for _ in range(2):
        build(store, photos, FakeEncoder(HALF, before=fail), batch_size=1)
    found = only(store.explain(photos / "p001.png", HALF))
    assert (found.reason, found.detail, found.others, found.to_encode) == ("retry", "no memory left", 1, 1)
    (event,) = found.history
    assert (event.what, event.attempts) == ("failed", 2) and "no memory left" in event.detail


def test_what_cannot_be_decoded(store: casstore.Store, photos: Path) -> None:
    """It isn't tried again by itself."""
    path = photos / "p001.png"
    path.write_bytes(path.read_bytes()[:-40])
    build(store, photos, FakeEncoder(HALF))
    found = only(store.explain(path, "vae"))
    assert (found.reason, found.to_encode, found.others) == ("failed", 0, 0)


def test_what_is_no_picture_at_all(store: casstore.Store, photos: Path) -> None:
    """What its header is refused for is told."""
    build(store, photos, FakeEncoder(HALF), resolution=64)
    (photos / "bad.png").write_bytes(b"no picture")
    store.scan(photos)
    found = only(store.explain(photos / "bad.png", "vae"))
    assert (found.reason, found.resolution, found.to_encode) == ("failed", None, 0) and found.detail


def test_what_is_damaged(store: casstore.Store, photos: Path) -> None:
    """The next build makes it again; how many others are damaged is told."""
    build(store, photos, FakeEncoder(HALF))
    for path in object_files(store.path)[:2]:
        path.unlink()
    store.verify()
    damaged = [each for path in photos.iterdir() if not (each := only(store.explain(path))).hit]
    assert [(each.reason, each.others, each.to_encode) for each in damaged] == [("damaged", 1, 1)] * 2


def test_what_was_never_made(store: casstore.Store, photos: Path) -> None:
    """With a recipe whose name it has nothing of it is new, as are others like it; without one there is nothing."""
    clip = casstore.Recipe("clip", code=1)
    assert store.explain(photos / "p000.png") == ()
    store.scan(photos)
    found = only(store.explain(photos / "p000.png", clip))
    assert (found.reason, found.resolution, found.others, found.relative) == ("new", None, 4, None)
    assert (found.encode_us, found.others_seconds, found.fields) == (None, None, ())
    found = only(store.explain(photos / "p000.png", clip, resolution=64))
    assert (found.reason, found.resolution, found.to_encode) == ("new", "64x64", 1)


def test_params_that_nothing_is_stored_with_are_no_question_of_files(store: casstore.Store, photos: Path) -> None:
    """What is stored with params is found with them."""
    plan = store.plan(store.scan(photos), HALF, resolution="64x64", params={"frames": 3})
    store.build(plan, FakeEncoder(HALF))
    found = only(store.explain(photos / "p000.png"))
    assert found.hit and ("params", '{"frames":3}') in [(field.field, field.now) for field in found.fields]


# -- what else a row may have ------------------------------------------------------------------------------------------


def test_variations_count_as_one_thing(store: casstore.Store, photos: Path) -> None:
    """Those that are stored of one resolution are explained together."""
    plan = store.plan(store.scan(photos), HALF, resolution="64x64", variations=3)
    store.build(plan, FakeEncoder(HALF))
    found = only(store.explain(photos / "p000.png"))
    assert (found.variants, found.hits, found.hit) == (3, 3, True)
    picture(photos / "p000.png", seed=50)
    found = only(store.explain(photos / "p000.png"))
    assert (found.variants, found.hits, found.reason, found.to_encode) == (3, 0, "edited", 3)


def test_an_edited_member(store: casstore.Store, photos: Path) -> None:
    """A mask that was edited makes its picture a miss, and the mask is what differs."""
    encoder = Recorder()
    for number in range(5):
        picture(photos / f"p{number:03}-mask.png", seed=20 + number)

    def scan() -> Any:
        return store.scan(photos, links={"mask": "-mask.png"})

    store.build(store.plan(scan(), encoder.recipe, role=("image", "mask")), encoder)
    assert only(store.explain(photos / "p000.png")).hit
    picture(photos / "p000-mask.png", seed=60)
    scan()
    found = only(store.explain(photos / "p000.png"))
    assert (found.reason, set(found.differing)) == ("member edited", {"mask"})


@pytest.mark.parametrize("scanned", [True, False])
def test_a_caption_file_stands_for_its_text(store: casstore.Store, photos: Path, scanned: bool) -> None:
    """What is stored of the text in it counts; blanks around it don't, an edit does."""
    encoder = Recorder()
    for number, path in enumerate(sorted(photos.glob("*.png"))):
        path.with_suffix(".txt").write_text(f"picture {number}")

    def scan() -> Any:
        return store.scan(photos, links={"caption": ".txt"})

    store.build(store.plan(scan(), encoder.recipe, role="caption"), encoder)
    caption = photos / "p000.txt"
    assert only(store.explain(caption)).hit
    caption.write_text("picture 0\n")
    if scanned:
        scan()
    assert only(store.explain(caption)).hit
    caption.write_text("another")
    if scanned:
        scan()
    found = only(store.explain(caption))
    assert (found.kind, found.reason, found.to_encode) == ("text", "edited", 1)
    assert "picture 0" in [field.then for field in found.fields]


def test_a_file_that_went_back_is_a_hit(store: casstore.Store, photos: Path) -> None:
    """What counts is what it holds now."""
    path = photos / "p000.png"
    data = path.read_bytes()
    build(store, photos, FakeEncoder(HALF))
    picture(path, seed=50)
    store.scan(photos)
    path.write_bytes(data)
    assert only(store.explain(path)).hit


def test_a_moved_file_is_a_hit(store: casstore.Store, photos: Path) -> None:
    """Also where no scan has seen it."""
    build(store, photos, FakeEncoder(HALF))
    (photos / "p000.png").rename(photos.parent / "moved.png")
    assert only(store.explain(photos.parent / "moved.png")).hit


def test_an_edit_that_keeps_size_and_mtime_is_seen(store: casstore.Store, photos: Path) -> None:
    """The freshness rule is the same as for get."""
    path = photos / "a.bmp"
    image = Image.new("RGB", (64, 64), "red")
    image.save(path)
    build(store, photos, FakeEncoder(HALF))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    edit_in_place(path, bytes(data))
    assert only(store.explain(path)).reason == "edited"


def test_what_cannot_be_meant_is_refused(store: casstore.Store, photos: Path) -> None:
    """A file that isn't there, and a recipe that nobody knows."""
    build(store, photos, FakeEncoder(HALF))
    with pytest.raises(SourceNotFoundError, match=r"nothing\.png"):
        store.explain(photos / "nothing.png")
    with pytest.raises(UsageError, match="no recipe 'sdxl'"):
        store.explain(photos / "p000.png", "sdxl")


def test_it_prints_as_a_sentence(store: casstore.Store, photos: Path) -> None:
    """str() has the file, the recipe and the verdict."""
    build(store, photos, FakeEncoder(HALF))
    assert str(only(store.explain(photos / "p000.png"))).endswith("p000.png, 64x64, vae: HIT")
    assert "MISS, recipe: stored with another" in str(only(store.explain(photos / "p000.png", BRAIN)))
