"""Several variations and several resolutions of one row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import FakeEncoder, build, check_counts, expected_of, picture, pictures
from PIL import Image
from rowing import Recorder, row, rows

import casstore
from casstore.encoders.preprocess import FitCrop
from casstore.errors import AmbiguousResolutionError, MissError, PictureError, UsageError
from casstore.identity.recipes import Recipe
from casstore.model import Item


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


class Drawing:
    """Returns what it draws, the pixels it gets, and which variation it is of."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe, self.items = recipe, list[Item]()

    def __call__(self, items: list[Item]) -> list[dict[str, Any]]:
        self.items += items
        return [{"noise": noise(item.key), "pixels": np.asarray(item.image)} for item in items]


def noise(key: casstore.Key) -> np.ndarray[Any, Any]:
    """Three numbers of the draw called noise."""
    draws = key.rng("noise")
    return np.array([draws.random() for _ in range(3)])


def make(store: casstore.Store, folder: Path, encoder: Any, **plan: Any) -> Any:
    """Scan, plan and build; the report."""
    plan = {"resolution": "64x64", **plan}
    return check_counts(store.build(store.plan(store.scan(folder), encoder.recipe, **plan), encoder))


def shuffled(folder: Path) -> Path:
    """A picture of 200 x 100 pixels, all of them different."""
    folder.mkdir(parents=True, exist_ok=True)
    data = np.random.default_rng(0).integers(0, 256, (100, 200, 3), dtype=np.uint8)
    Image.fromarray(data).save(folder / "a.png")
    return folder / "a.png"


# -- variations --------------------------------------------------------------------------------------------------------


def test_raising_variations_builds_only_the_new_ones(store: casstore.Store, folder: Path) -> None:
    """From one to three: two encodes for each picture, and the first tensors are the same objects."""
    pictures(folder, 2)
    encoder = Drawing(Recipe("r", seed=1))
    assert make(store, folder, encoder).encoded == 2
    encoder.items.clear()
    report = make(store, folder, encoder, variations=3)
    assert (report.planned, report.hits, report.encoded, dict(report.reasons)) == (6, 2, 4, {"variation": 4})
    assert sorted(item.variation for item in encoder.items) == [1, 1, 2, 2]


def test_lowering_variations_builds_nothing(store: casstore.Store, folder: Path) -> None:
    """From three to one: all hits, nothing is removed, and going back is free."""
    pictures(folder, 2)
    encoder = Drawing(Recipe("r", seed=1))
    make(store, folder, encoder, variations=3)
    encoder.items.clear()
    for number in (1, 3, 2):
        assert make(store, folder, encoder, variations=number).hits == 2 * number
    assert (encoder.items, store.status().variants) == ([], 6)


def test_variations_can_depend_on_the_row(store: casstore.Store, folder: Path) -> None:
    """A function says how many each row has."""
    pictures(folder, 3)
    encoder = Drawing(Recipe("r", seed=1))
    report = make(store, folder, encoder, variations=lambda row: 1 + int(row.sample[3]))
    assert report.encoded == 6
    found = sorted((item.sample, item.variation) for item in encoder.items)
    assert found == [(f"p00{n}.png", v) for n in range(3) for v in range(n + 1)]


@pytest.mark.parametrize("variations", [0, -1, True, 1.5, "2", lambda row: 0, lambda row: None])
def test_variations_that_cannot_be_meant_are_refused(store: casstore.Store, folder: Path, variations: Any) -> None:
    """A number from 1 is expected, from a function too."""
    pictures(folder, 1)
    with pytest.raises(UsageError, match=r"variations.*a number from 1 was expected"):
        store.plan(store.scan(folder), Recipe("r"), resolution="64x64", variations=variations)


def test_each_variation_has_its_own_draws(store: casstore.Store, folder: Path) -> None:
    """Three variations of a picture are three tensors, got by their numbers; a fourth is a miss."""
    (path,) = pictures(folder, 1)
    encoder = Drawing(Recipe("r", seed=1))
    make(store, folder, encoder, variations=3)
    found = [store.get(path, encoder.recipe, variation=v, as_numpy=True)["noise"] for v in range(3)]
    for v, one in enumerate(found):
        np.testing.assert_array_equal(one, noise(casstore.Key.file(path, encoder.recipe, variation=v)))
    assert len({one.tobytes() for one in found}) == 3
    with pytest.raises(MissError) as error:
        store.get(path, encoder.recipe, variation=3)
    assert error.value.miss is not None and error.value.miss.reason == "variation"


def test_get_without_a_resolution_looks_at_this_variation(store: casstore.Store, folder: Path) -> None:
    """Variation 1 is stored at one resolution only, variation 0 at two: the one needs no resolution, the other does."""
    (path,) = pictures(folder, 1)
    encoder = Drawing(Recipe("r"))
    make(store, folder, encoder, resolution=["64x64", "32x32"])
    make(store, folder, encoder, resolution="64x32", variations=2)
    make(store, folder, encoder, resolution="64x32")
    found = store.key(path, encoder.recipe, variation=1)
    assert (found.resolution, found.variation) == ("64x32", 1)
    with pytest.raises(AmbiguousResolutionError):
        store.get(path, encoder.recipe)


def test_draws_do_not_depend_on_order_or_batches(tmp_path: Path) -> None:
    """Two stores, filled in different orders, batch sizes and numbers of variations, have the same tensors."""
    paths = pictures(tmp_path / "data", 4)
    encoder = Drawing(Recipe("r", seed=1))
    found = []
    for number, (order, sizes) in enumerate({(1, (1, 2)), (-1, (3, 1))}):
        with casstore.open(tmp_path / f"store{number}", create=True, durability="off") as store:
            given = store.inputs([{"sample": path.name, "image": path} for path in paths[::order]])
            for count in (order + 2, 3):
                plan = store.plan(given, encoder.recipe, resolution="64x64", variations=count)
                store.build(plan, encoder, batch_size=sizes[0], workers=sizes[1])
            keys = [store.key(path, encoder.recipe, variation=v) for path in paths for v in range(3)]
            found.append([one["noise"].tolist() for one in store.get_many(keys, as_numpy=True)])
    assert found[0] == found[1]


def test_recipes_that_share_seed_and_name_draw_alike(store: casstore.Store, folder: Path) -> None:
    """Two recipes crop and mirror a picture alike in each variation; with another seed they don't all."""
    path = shuffled(folder)
    fit = FitCrop("nearest", crop="random", flip="random")
    encoders = [Drawing(Recipe(name, seed=seed, preprocess=fit)) for name, seed in (("a", 1), ("b", 1), ("c", 2))]
    found = []
    for encoder in encoders:
        make(store, folder, encoder, variations=8)
        found.append([store.get(path, encoder.recipe, variation=v, as_numpy=True) for v in range(8)])
    geometry = [[(one["crop_offset"], one["flip"]) for one in each] for each in found]
    assert geometry[0] == geometry[1] != geometry[2]
    assert len({str(one) for one in geometry[0]}) > 1
    for one, other in zip(found[0], found[1], strict=True):
        np.testing.assert_array_equal(one["pixels"], other["pixels"])


def test_a_crop_is_what_its_values_say(store: casstore.Store, folder: Path) -> None:
    """The stored crop_offset and flip lead to the pixels that the encoder got."""
    path = shuffled(folder)
    encoder = Drawing(Recipe("r", seed=3, preprocess=FitCrop("nearest", crop="random", flip="random")))
    make(store, folder, encoder, resolution="100x100", variations=4)
    whole = np.asarray(Image.open(path))
    for variation in range(4):
        found = store.get(path, encoder.recipe, variation=variation, as_numpy=True)
        top, left = found["crop_offset"]
        expected = whole[top : top + 100, left : left + 100]
        np.testing.assert_array_equal(found["pixels"], expected[:, ::-1] if found["flip"] else expected)


def test_variations_whose_size_is_told_late_are_told_apart(
    store: casstore.Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scan could make nothing of the header, the retry can: each variation is stored under its own key, once."""
    (path,) = pictures(folder, 1)
    (folder / "copy.png").write_bytes(path.read_bytes())

    def refuse(data: bytes) -> None:
        raise PictureError("no header")

    with monkeypatch.context() as patched:
        patched.setattr("casstore.sources.read.read_header", refuse)
        inputs = store.scan(folder)
    encoder = Drawing(Recipe("r", seed=1))
    plan = store.plan(inputs, encoder.recipe, resolution="64x64", variations=2)
    assert [r.key for r in plan.rows] == [None] * 4
    report = check_counts(store.build(plan, encoder, retry_failed=True))
    assert (report.encoded, report.hits, report.failed, len(encoder.items)) == (2, 2, 0, 2)
    for v in range(2):
        key = casstore.Key.file(path, encoder.recipe, resolution="64x64", variation=v)
        np.testing.assert_array_equal(store.get(key, as_numpy=True)["noise"], noise(key))


# -- contents that differ per variation --------------------------------------------------------------------------------


def test_lines_of_a_caption_keep_variation_0(store: casstore.Store) -> None:
    """Each line is a content of its own, so that a line that moves is still a hit."""
    encoder = Recorder()
    lines = ["red", "green", "blue"]
    plan = store.plan(rows(row("a", caption=lines)), encoder.recipe)
    assert [(r.variation, r.key.variation, r.primary.content.text) for r in plan.rows] == [
        (v, 0, line) for v, line in enumerate(lines)
    ]
    check_counts(store.build(plan, encoder))
    assert store.plan(rows(row("a", caption=lines[::-1])), encoder.recipe).hits == 3
    assert dict(store.plan(rows(row("a", caption=[*lines, "new"])), encoder.recipe).reasons) == {"new": 1}


def test_more_variations_than_lines_take_the_lines_in_turn(store: casstore.Store) -> None:
    """Five variations of two lines are two encodes; fewer variations than lines take the first ones."""
    encoder = Recorder()
    given = rows(row("a", caption=["red", "green"]))
    plan = store.plan(given, encoder.recipe, variations=5)
    assert [r.primary.content.text for r in plan.rows] == ["red", "green", "red", "green", "red"]
    report = check_counts(store.build(plan, encoder))
    assert (report.planned, report.encoded, report.hits) == (5, 2, 3)
    assert store.plan(given, encoder.recipe, variations=1).planned == 1


def test_a_caption_of_one_line_has_variations_of_its_own(store: casstore.Store) -> None:
    """Where the content is the same for all variations, the key tells them apart."""
    encoder = Recorder()
    plan = store.plan(rows(row("a", caption="red")), encoder.recipe, variations=3)
    assert [r.key.variation for r in plan.rows] == [0, 1, 2]
    assert check_counts(store.build(plan, encoder)).encoded == 3


# -- resolutions -------------------------------------------------------------------------------------------------------


@pytest.fixture
def encoder() -> FakeEncoder:
    return FakeEncoder()


SEVERAL = {
    "list": ["64x64", 128, None],
    "buckets": casstore.Buckets(64, 128, 256),
    "list of buckets": [casstore.Buckets(64), casstore.Buckets(128), "64x128"],
    "function": lambda facts, variation: ["64x64", 256],
}


@pytest.mark.parametrize("name", SEVERAL)
def test_all_resolutions_of_several_are_built_and_served(
    store: casstore.Store, folder: Path, encoder: FakeEncoder, name: str
) -> None:
    """Each is a variant of its own with its own tensor; asked for again they are hits."""
    paths = [picture(folder / f"{n}.png", seed=n, size=(128, 64 + 64 * n)) for n in range(3)]
    plan = store.plan(store.scan(folder), encoder.recipe, resolution=SEVERAL[name])
    asked = {(r.path, r.key.resolution) for r in plan.rows}
    assert len(asked) == plan.planned >= 2 * len(paths)
    assert check_counts(store.build(plan, encoder)).encoded == plan.planned
    for path, resolution in asked:
        if resolution:
            found = store.get(path, encoder.recipe, resolution=resolution, as_numpy=True)["latent"]
            np.testing.assert_array_equal(found, expected_of(Path(path), resolution, encoder.recipe))
    assert build(store, folder, encoder, SEVERAL[name]).hits == plan.planned


def test_going_back_to_a_resolution_costs_nothing(store: casstore.Store, folder: Path, encoder: FakeEncoder) -> None:
    """Sizes live side by side."""
    pictures(folder, 2)
    for resolution in ("64x64", "64x128", 128, "64x64", 128, ["64x128", "64x64"]):
        build(store, folder, encoder, resolution)
    assert len(encoder.seen) == 6
    assert build(store, folder, encoder, ["64x64", "64x128", "32x32"]).reasons == {"resolution": 2}


def test_a_size_that_is_not_stored_is_a_miss_and_never_a_neighbour(
    store: casstore.Store, folder: Path, encoder: FakeEncoder
) -> None:
    """With all sizes around it stored, one that isn't is a miss, in get, lookup and plan."""
    (path,) = pictures(folder, 1)
    build(store, folder, encoder, ["64x64", "64x128", "128x64", "128x128", None])
    for resolution in ("64x72", "72x64", "64x640", 256):
        with pytest.raises(MissError) as error:
            store.get(path, encoder.recipe, resolution=resolution)
        assert error.value.miss is not None and error.value.miss.reason == "resolution"
        assert store.plan(store.scan(folder), encoder.recipe, resolution=resolution).hits == 0


def test_t6_the_same_effective_size_is_the_same_entry(
    store: casstore.Store, folder: Path, encoder: FakeEncoder
) -> None:
    """T6: however a size was set, by default, by a function for one group, as text or as buckets, it is one variant;
    another effective size is a miss."""
    picture(folder / "a.png", size=(256, 256))
    assert build(store, folder, encoder, 256).encoded == 1
    same = ["256x256", "256", casstore.Buckets(256), [256], [256, "256x256"], lambda facts, v: facts.width]
    for wanted in same:
        assert build(store, folder, encoder, wanted).hits == 1, wanted
    assert build(store, folder, encoder, 512).reasons == {"resolution": 1}


def test_t16_a_small_image_shares_one_variant(store: casstore.Store, folder: Path, encoder: FakeEncoder) -> None:
    """T16: 600 x 600 with three larger targets and no upscaling is one triple, one encode, one object."""
    picture(folder / "a.png", size=(600, 600))
    buckets = casstore.Buckets(768, 1024, 1280, upscale=False)
    report = build(store, folder, encoder, buckets)
    assert (report.planned, report.encoded, len(encoder.seen)) == (1, 1, 1)
    assert (store.status().variants, store.status().objects) == (1, 1)
    assert build(store, folder, encoder, casstore.Buckets(1536, upscale=False)).hits == 1


def test_resolutions_and_variations_multiply(store: casstore.Store, folder: Path, encoder: FakeEncoder) -> None:
    """Two resolutions in three variations of two pictures are twelve triples."""
    pictures(folder, 2)
    plan = store.plan(store.scan(folder), encoder.recipe, resolution=["64x64", 128], variations=3)
    assert plan.planned == 12
    assert len({(r.key.digest) for r in plan.rows}) == 12
    assert check_counts(store.build(plan, encoder)).encoded == 12


def test_a_function_of_row_and_variation_chooses(store: casstore.Store, folder: Path, encoder: FakeEncoder) -> None:
    """It is told the row's number, name, group and upright size, and asked for each variation."""
    picture(folder / "a.png", size=(64, 128))
    picture(folder / "b.png", size=(128, 64))
    told: list[Any] = []

    def choose(facts: Any, variation: int) -> Any:
        told.append((facts.index, facts.sample, facts.group, facts.width, facts.height, variation))
        return f"{64 * (variation + 1)}x64"

    plan = store.plan(store.scan(folder), encoder.recipe, resolution=choose, variations=2)
    assert told == [
        (number, name, "", width, 192 - width, variation)
        for number, (name, width) in enumerate([("a.png", 64), ("b.png", 128)])
        for variation in range(2)
    ]
    assert [(r.key.resolution, r.key.variation) for r in plan.rows] == [("64x64", 0), ("128x64", 1)] * 2


def test_a_function_that_says_none_means_the_full_size(
    store: casstore.Store, folder: Path, encoder: FakeEncoder
) -> None:
    """As None does anywhere."""
    pictures(folder, 1)
    plan = store.plan(store.scan(folder), encoder.recipe, resolution=lambda facts, variation: None)
    assert [r.key.resolution for r in plan.rows] == [""]


def test_t13_a_tensor_that_does_not_fit_is_refused_by_name(
    store: casstore.Store, folder: Path, encoder: FakeEncoder
) -> None:
    """T13: one of several latents has the size of another bucket: that item fails, both shapes named, the others are
    stored."""
    pictures(folder, 4)
    encoder.change = {"p002.png": lambda made: {"latent": np.zeros((4, 8, 16), np.float32)}}
    report = check_counts(build(store, folder, encoder, ["64x64", "64x128"]))
    (failure,) = report.failures
    assert (report.encoded, failure.sample) == (7, "p002.png")
    assert "8x16" in failure.message and "8x8" in failure.message and "'latent'" in failure.message


def test_strides_are_declared_by_name(store: casstore.Store, folder: Path) -> None:
    """A mask in pixels beside a latent: each is checked against its own stride, a name without one isn't."""
    pictures(folder, 1)
    recipe = Recipe("r", stride={"latent": 8, "mask": 1})
    fine = {"latent": (4, 8, 8), "mask": (1, 64, 64), "other": (1, 5, 7)}
    for name, shape in (("latent", (4, 64, 64)), ("mask", (1, 8, 8)), ("other", (9, 9, 9))):
        shapes = {**fine, name: shape}

        def encode(items: list[Item], shapes: Any = shapes) -> list[dict[str, Any]]:
            return [{n: np.zeros(s, np.float32) for n, s in shapes.items()} for _ in items]

        plan = store.plan(store.scan(folder), recipe, resolution="64x64", params={"of": name})
        report = check_counts(store.build(plan, encode))
        assert [f"'{name}'" in f.message for f in report.failures] == ([] if name == "other" else [True])


# -- a batch of exactly n ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("pictures_", "number"), [(1, 4), (4, 4), (7, 3), (5, 1), (2, 64)])
def test_every_forward_has_exactly_n_items(store: casstore.Store, folder: Path, pictures_: int, number: int) -> None:
    """With batch=n each call has n items, whatever batch_size says: the last is filled up with repeats, and each
    picture gets its own tensor."""
    paths = pictures(folder, pictures_)
    encoder = FakeEncoder(Recipe("fake", stride=8, batch=number))
    assert check_counts(build(store, folder, encoder, batch_size=2)).encoded == pictures_
    assert set(encoder.batches) == {number} and len(encoder.batches) == -(-pictures_ // number)
    assert set(encoder.seen) == {path.name for path in paths}
    for path in paths:
        found = store.get(path, encoder.recipe, as_numpy=True)["latent"]
        np.testing.assert_array_equal(found, expected_of(path, "64x64", encoder.recipe))


def test_items_of_other_shapes_fill_no_batch(store: casstore.Store, folder: Path) -> None:
    """A batch is filled up with repeats of its own items, not with items of another size."""
    picture(folder / "a.png", size=(64, 64))
    picture(folder / "b.png", size=(128, 64))
    encoder = FakeEncoder(Recipe("fake", stride=8, batch=3))
    build(store, folder, encoder, None)
    assert (sorted(encoder.seen), encoder.batches) == (["a.png"] * 3 + ["b.png"] * 3, [3, 3])


def test_an_encoder_that_returns_too_few_for_a_padded_batch_fails(store: casstore.Store, folder: Path) -> None:
    """One result per item, repeats included."""
    pictures(folder, 2)
    recipe = Recipe("fake", batch=4)
    plan = store.plan(store.scan(folder), recipe, resolution="64x64")
    report = check_counts(store.build(plan, lambda items: [{"t": np.zeros(1)}] * 2))
    assert [f.message for f in report.failures] == [
        "the encoder returned 2 results for 4 items; it returns one dict per item"
    ] * 2


def test_a_second_pass_has_n_items_too(store: casstore.Store, tmp_path: Path) -> None:
    """A variant that is made again as a whole is padded as well."""
    from naming import Folder, Named

    recipe = Recipe("named", stride=8, batch=3)
    folder = Folder(store, tmp_path / "data", Named(recipe, usual=("latent",)))
    folder.picture()
    folder.build()
    sizes: list[int] = []
    folder.encoder.before = lambda items: sizes.append(len(items))
    folder.encoder.values = lambda item: {"crop_offset": [8, 0]}
    folder.build(names=["latent", "mask"])
    assert sizes == [3, 3]
