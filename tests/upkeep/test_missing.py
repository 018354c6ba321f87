"""What files of a folder lack that others have, failures that are remembered, and the list of what is stored."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from kit import FakeEncoder, build, object_files, picture, pictures
from rowing import Recorder

import casstore
from casstore.errors import UsageError

HALF = casstore.Recipe("vae", weights="ab" * 32, dtype="float16", code=1, stride=8)
BRAIN = casstore.Recipe("vae", weights="ab" * 32, dtype="bfloat16", code=1, stride=8)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of five pictures."""
    pictures(tmp_path / "photos", 5)
    return tmp_path / "photos"


def reasons(found: Any) -> dict[str, str]:
    return {Path(file.path).name: file.reason for file in found.missing}


def failing(*samples: str) -> Any:
    def fail(items: list[Any]) -> None:
        if items[0].sample in samples:
            raise RuntimeError(f"no memory for {items[0].sample}")

    return fail


# -- missing -----------------------------------------------------------------------------------------------------------


def test_each_reason_is_told_without_a_look_at_the_files(store: casstore.Store, photos: Path) -> None:
    """What a scan has seen counts: new, edited, damaged, failed and unreadable files; not what changed since."""
    build(store, photos, FakeEncoder(HALF, before=failing("p004.png")), batch_size=1)
    picture(photos / "p000.png", seed=50)
    picture(photos / "new.png", seed=51)
    (photos / "bad.png").write_bytes(b"no picture")
    victim = store.lookup(store.key(photos / "p001.png", HALF))
    assert isinstance(victim, casstore.Hit)
    next(path for path in object_files(store.path) if path.stem == victim.digests[0]).unlink()
    store.verify()
    assert reasons(store.missing(photos)) == {"p001.png": "damaged", "p004.png": "retry"}
    store.scan(photos)
    (photos / "later.png").write_bytes(b"unseen")
    found = store.missing(photos)
    assert reasons(found) == {
        "p001.png": "damaged",
        "p004.png": "retry",
        "p000.png": "edited",
        "new.png": "new",
        "bad.png": "failed",
    }
    assert (found.folder, found.files, found.recipes) == (str(photos), 7, ("vae",))
    assert 0 <= time.time() * 1000 - found.scanned_at < 60_000
    usual = [row[0] for row in store.sql("SELECT encode_us FROM v_variants").rows]
    assert found.seconds == pytest.approx(4 * sum(usual) / len(usual) / 1e6)


def test_an_interrupted_change_of_recipe(store: casstore.Store, photos: Path) -> None:
    """The newest recipe of a name that the folder has is what the others lack; a named one is looked for instead."""
    build(store, photos, FakeEncoder(HALF))
    plan = store.plan(store.inputs([{"image": str(photos / "p000.png")}]), BRAIN, resolution=64)
    store.build(plan, FakeEncoder(BRAIN))
    found = store.missing(photos)
    assert set(reasons(found).values()) == {"recipe"} and len(found.missing) == 4
    assert {file.digest for file in found.missing} == {BRAIN.digest.hex()}
    assert store.missing(photos, HALF).missing == () == store.missing(photos, HALF.digest.hex()[:6]).missing
    store.retire(BRAIN)
    assert store.missing(photos).missing == () == store.missing(photos, "vae").missing
    store.retire(HALF)
    assert store.missing(photos).recipes == ()


def test_masks_lack_nothing(store: casstore.Store, photos: Path) -> None:
    """What only ever goes with other contents isn't missed for itself."""
    encoder = Recorder()
    for number in range(4):
        picture(photos / f"p{number:03}-mask.png", seed=20 + number)
    scan = store.scan(photos, links={"mask": "-mask.png?"})
    store.build(store.plan(scan, encoder.recipe, role=("image", "mask")), encoder)
    assert store.missing(photos).missing == ()
    (photos / "p000.png").rename(photos / "x.png")
    picture(photos / "y.png", seed=80)
    store.scan(photos, links={"mask": "-mask.png?"})
    assert reasons(store.missing(photos)) == {"y.png": "new"}


def test_captions_are_missed_by_their_texts(store: casstore.Store, photos: Path) -> None:
    """A caption that isn't encoded is missing; pictures beside captions aren't missed with a text recipe."""
    encoder = Recorder()
    for path in photos.glob("*.png"):
        path.with_suffix(".txt").write_text(path.stem)

    def scan() -> Any:
        return store.scan(photos, links={"caption": ".txt"})

    store.build(store.plan(scan(), encoder.recipe, role="caption"), encoder)
    assert store.missing(photos).missing == ()
    (photos / "p000.txt").write_text("another")
    scan()
    assert reasons(store.missing(photos)) == {"p000.txt": "edited"}


def test_a_folder_may_be_in_a_root_or_hold_some(store: casstore.Store, tmp_path: Path) -> None:
    """A folder in a root is a part of it; one above has all its roots; one that no scan has seen is refused."""
    for name in ("a/in", "a/out", "b"):
        pictures(tmp_path / name, 1)
    for folder in ("a", "b"):
        store.scan(tmp_path / folder)
        build(store, tmp_path / folder, FakeEncoder(HALF))
    picture(tmp_path / "a" / "in" / "x.png", seed=9)
    picture(tmp_path / "b" / "y.png", seed=10)
    store.scan(tmp_path / "a")
    store.scan(tmp_path / "b")
    assert reasons(store.missing(tmp_path / "a" / "in")) == {"x.png": "new"}
    assert reasons(store.missing(tmp_path / "a" / "out")) == {}
    assert reasons(store.missing(tmp_path)) == {"x.png": "new", "y.png": "new"}
    for folder in ("a/nothing", "c"):
        with pytest.raises(UsageError, match="no scan has seen"):
            store.missing(tmp_path / folder)


# -- failures ----------------------------------------------------------------------------------------------------------


def test_failures_are_listed_with_message_attempts_and_time(store: casstore.Store, photos: Path) -> None:
    """Newest first; of a folder, of a recipe, or all."""
    assert store.failures() == []
    for _ in range(3):
        build(store, photos, FakeEncoder(HALF, before=failing("p001.png")), batch_size=1)
    path = photos.parent / "other" / "bad.png"
    path.parent.mkdir()
    path.write_bytes(picture(photos.parent / "x.png", seed=70).read_bytes()[:-40])
    build(store, path.parent, FakeEncoder(BRAIN))
    bad, memory = store.failures()
    assert (bad.path, bad.recipe_digest, bad.error_type) == (str(path), BRAIN.digest.hex(), "PictureError")
    assert (memory.path, memory.recipe, memory.resolution) == (str(photos / "p001.png"), "vae", "64x64")
    assert (memory.message, memory.attempts) == ("no memory for p001.png", 3)
    assert 0 <= time.time() * 1000 - memory.last_at < 60_000
    assert store.failures(photos) == [memory] == store.failures(recipe=HALF)
    assert store.failures(recipe="vae") == [bad, memory]
    build(store, photos, FakeEncoder(HALF))
    assert store.failures() == [bad]


# -- the list ----------------------------------------------------------------------------------------------------------


def test_what_is_stored_is_listed(store: casstore.Store, photos: Path) -> None:
    """In order of its coming, with tensors and bytes; by recipe, by path, and up to a limit."""
    build(store, photos, FakeEncoder(HALF))
    build(store, photos, FakeEncoder(BRAIN), resolution="128x128")
    found = store.variants()
    assert found.total == len(found.variants) == 10
    first = found.variants[0]
    assert (first.path, first.recipe, first.resolution) == (str(photos / "p000.png"), "vae", "64x64")
    info = first.tensors["latent"]
    assert (info.dtype, info.shape, first.sound) == ("F32", (4, 8, 8), True)
    stored = sum(variant.stored_bytes for variant in found.variants)
    assert stored == sum(path.stat().st_size for path in object_files(store.path))
    assert store.variants(recipe=HALF).total == 5 and store.variants(recipe="vae").total == 10
    limited = store.variants(photos, limit=3)
    assert (limited.total, limited.variants) == (10, found.variants[:3])
    assert store.variants(photos / "p00").total == 10
    assert [variant.path for variant in store.variants(photos / "p003", HALF).variants] == [str(photos / "p003.png")]


def test_texts_are_listed_by_themselves(store: casstore.Store, photos: Path) -> None:
    """A text has no path; with a path prefix the texts in its caption files are listed."""
    encoder = Recorder()
    for path in photos.glob("*.png"):
        path.with_suffix(".txt").write_text(path.stem)
    scan = store.scan(photos, links={"caption": ".txt"})
    store.build(store.plan(scan, encoder.recipe, role="caption"), encoder)
    found = store.variants(photos / "p002")
    assert [(variant.text, variant.path) for variant in found.variants] == [("p002", None)]
    assert store.variants().total == 5


def test_what_no_file_holds_any_more_has_no_path(store: casstore.Store, photos: Path, tmp_path: Path) -> None:
    """It is listed without; a slash behind a prefix means the folder."""
    build(store, photos, FakeEncoder(HALF))
    picture(photos / "p000.png", seed=50)
    store.scan(photos)
    assert sorted(variant.path is None for variant in store.variants().variants) == [False] * 4 + [True]
    assert store.variants(f"{photos}/").total == 4
    assert store.variants(f"{photos}2").total == 0


def test_a_recipe_that_nobody_knows_is_refused(store: casstore.Store, photos: Path) -> None:
    """By each of the questions, with its name."""
    store.scan(photos)
    for ask in (store.failures, store.missing, store.variants):
        with pytest.raises(UsageError, match="no recipe 'sdxl'"):
            ask(photos, "sdxl")
