"""Items and batches: what is stored, bit by bit, from any process, in any order."""

from __future__ import annotations

import os
import pickle  # noqa: TID251
import threading
from typing import Any

import numpy as np
import pytest
import torch
from data.helpers import CLIP, COUNT, encode_text
from kit import picture, spy
from torch.utils.data import BatchSampler, DataLoader, WeightedRandomSampler, default_collate

import casstore
from casstore.data import EMPTY, Dataset, Pick, Row
from casstore.errors import MissError, SourceChangedError, UsageError


def alike(one: Any, other: Any) -> bool:
    """Whether two batches or items are equal, tensors bit by bit."""
    if isinstance(one, torch.Tensor):
        return (
            one.dtype == other.dtype and one.shape == other.shape and one.numpy().tobytes() == other.numpy().tobytes()
        )
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(one[name], other[name]) for name in one)
    return bool(one == other)


SQUARE = [n for n in range(COUNT) if n % 3 < 2]  # rows of one shape


def test_an_item_has_tensors_values_facts_and_its_name(training: Any) -> None:
    """All of a row under the stored names; the rows are in the order of the inputs."""
    with training.dataset() as dataset:
        assert len(dataset) == COUNT
        for n in range(COUNT):
            item = dataset[n]
            assert type(item) is Row
            assert torch.equal(item["latent"], training.latent(n))
            assert item["hidden"].shape == (5, 3) and item["hidden"].dtype == torch.float16
            assert (item["length"], item["concept"], item["sample"]) == (len(f"picture {n}"), f"c{n % 2}", f"s{n:02}")
            assert item.keys() == {"latent", "hidden", "length", "concept", "sample"}
        assert dataset[-1]["sample"] == dataset[np.int64(COUNT - 1)]["sample"] == "s11"
        for wrong in (COUNT, -COUNT - 1):
            with pytest.raises(IndexError, match="of 12"):
                dataset[wrong]


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than cores
@pytest.mark.parametrize("workers, method", [(2, "fork"), (2, "spawn"), (2, "forkserver"), (8, "fork")])
def test_batches_are_bit_equal_from_any_process(training: Any, workers: int, method: str) -> None:
    """Workers, however they start, and threads of this process give what no workers give."""
    order = [SQUARE[n] for n in (5, 0, 3, 3, 7, 1, 2, 6)]
    with training.dataset() as dataset:
        alone = list(DataLoader(dataset, batch_size=3, sampler=order))
        assert [len(batch["sample"]) for batch in alone] == [3, 3, 2]
        shared = list(
            DataLoader(dataset, batch_size=3, sampler=order, num_workers=workers, multiprocessing_context=method)
        )
        assert len(shared) == len(alone) and all(map(alike, alone, shared))
        assert all(map(alike, alone, dataset.batches(order, 3)))
        assert all(batch["latent"].is_shared() for batch in shared)


def test_a_batch_is_one_tensor_that_nobody_copies(training: Any) -> None:
    """Items that are read together are views; collating them gives the tensor they are in."""
    with training.dataset() as dataset:
        items = dataset.__getitems__(SQUARE[:4])
        batch = default_collate(items)
        assert type(batch) is dict and batch["latent"].shape[0] == 4
        for name in ("latent", "hidden"):
            assert [item[name].data_ptr() for item in items] == [part.data_ptr() for part in batch[name]]
        assert batch["length"].tolist() == [9, 9, 9, 9] and batch["concept"] == ["c0", "c1", "c1", "c0"]


@pytest.mark.parametrize("change", ["left out", "moved", "replaced", "one more", "from two batches"])
def test_changed_items_are_stacked_anew(training: Any, change: str) -> None:
    """What a transform did to the items is in the batch."""
    with training.dataset() as dataset:
        items = dataset.__getitems__(SQUARE[:3])
        if change == "left out":
            del items[1]
        elif change == "moved":
            items.reverse()
        elif change == "replaced":
            items[2]["latent"] = items[2]["latent"] * 2
        elif change == "one more":
            items += [dataset[SQUARE[5]]]
        else:
            items = [*items[:1], *dataset.__getitems__(SQUARE[:3])[1:]]
        expected = torch.stack([item["latent"] for item in items])
        batch = default_collate(items)
        assert torch.equal(batch["latent"], expected) and batch["latent"].data_ptr() != items[0]["latent"].data_ptr()


def test_items_of_different_shapes_have_their_own_tensors(training: Any) -> None:
    """They are read together all the same; only a batch can't be made of them, and the error names two."""
    with training.dataset() as dataset:
        items = dataset.__getitems__([0, 2])
        assert items[0]["latent"].shape != items[1]["latent"].shape
        assert torch.equal(items[1]["latent"], training.latent(2))
        assert default_collate([{"hidden": item["hidden"]} for item in items])["hidden"].shape == (2, 5, 3)
        with pytest.raises(UsageError, match=r"'latent' can't be stacked: 's00' has .*'s02' has .*resolution"):
            default_collate(items)
        with pytest.raises(UsageError, match="resolution"):
            list(DataLoader(dataset, batch_size=3, num_workers=1))


def test_a_dataset_travels_as_its_manifest(training: Any) -> None:
    """Pickled it is small, and the same on the other side, again and again; a closed one doesn't travel."""
    with training.dataset() as dataset:
        manifest = len(pickle.dumps(dataset._manifest))
        assert len(pickle.dumps(dataset)) < manifest + 1024
        other = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(dataset))))  # noqa: S301
        assert len(other) == COUNT and alike(dict(other[3]), dict(dataset[3]))
        other.close()
        assert alike(dict(pickle.loads(pickle.dumps(dataset[3]))), dict(dataset[3]))  # noqa: S301
    with pytest.raises(UsageError, match="closed"):
        pickle.dumps(dataset)
    with pytest.raises(UsageError, match="closed"):
        dataset[0]


def test_a_manifest_takes_few_bytes(training: Any) -> None:
    """58 bytes per object, 4 per variant, and per row and label 8."""
    with training.dataset() as dataset:
        manifest = dataset._manifest
        columns = ("digests", "nbytes", "checksums", "layouts", "values", "codecs", "more")
        assert sum(getattr(manifest.entries, name)[0].nbytes for name in columns) == 58
        for label in manifest.labels:
            assert [array.itemsize for array in (label.entries, label.first, label.form)] == [4, 4, 4]


def test_no_item_costs_a_query(training: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it is made, a dataset opens no store, until an object isn't there."""
    with training.dataset() as dataset:
        opened = spy(monkeypatch, "casstore.data.again.Handle")
        training.store.close()
        for batch in dataset.batches(SQUARE, 4):
            assert len(batch["sample"]) == 4
        assert opened == []


def test_threads_share_a_dataset(training: Any) -> None:
    """Many threads at once read what one alone does."""
    wrong: list[int] = []
    with training.dataset() as dataset:
        expected = [dict(dataset[n]) for n in range(COUNT)]

        def work(start: int) -> None:
            for n in range(COUNT):
                number = (start * 5 + n) % COUNT
                if not alike(dict(dataset[number]), expected[number]):
                    wrong.append(number)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


# -- picks -------------------------------------------------------------------------------------------------------------


def test_a_pick_chooses_resolution_and_variation(store: casstore.Store, training: Any) -> None:
    """Each (variation, resolution) of the plans is reached by a Pick, also from samplers and workers."""
    recipe = training.encoder.recipe
    image = store.plan(training.inputs, recipe, role="image", resolution=["64x64", "128x64"], variations=2)
    lines = store.inputs([{"sample": f"s{n:02}", "caption": [f"a{n}", f"bb{n}", f"ccc{n}"]} for n in range(COUNT)])
    text = store.plan(lines, training.text.recipe, role="caption")
    store.build(image, training.encoder)
    store.build(text, encode_text)
    with store.dataset(image=image, text=text) as dataset:
        assert dataset.resolutions(4) == ("64x64", "128x64")
        assert dataset.variations(4) == {"image": 2, "text": 3}
        keys = {(row.row.sample, row.variation, row.key.resolution): row.key for row in image.rows}
        for variation in range(2):
            for resolution in dataset.resolutions(4):
                pick = Pick(4, {"image": variation, "text": 2}, resolution)
                item = dataset[pick]
                assert torch.equal(item["latent"], store.get(keys["s04", variation, resolution])["latent"])
                assert item["length"] == len("ccc4")
                assert dataset.shape(pick) == {"latent": tuple(item["latent"].shape), "hidden": (5, 3)}
        picks = [Pick(n, {"text": n % 3}, "128x64") for n in range(COUNT)]
        loaded = list(DataLoader(dataset, batch_sampler=BatchSampler(picks, 4, False), num_workers=1))
        assert [tuple(batch["latent"].shape) for batch in loaded] == [(4, 4, 16, 8)] * 3
        assert all(map(alike, loaded, dataset.batches(BatchSampler(picks, 4, False))))
        with pytest.raises(UsageError, match=r"image at 2 resolutions.*Pick\(4, resolution='64x64'\)"):
            dataset[4]
        with pytest.raises(UsageError, match="isn't at resolution 8x8; image is at 64x64, 128x64"):
            dataset[Pick(4, resolution="8x8")]
        with pytest.raises(UsageError, match="2 variations of image at 64x64; there is no 2"):
            dataset[Pick(4, {"image": 2}, "64x64")]
        with pytest.raises(UsageError, match="this dataset has image, text"):
            dataset[Pick(4, {"texts": 2}, "64x64")]


def test_the_empty_text_is_reached_by_a_pick(training: Any) -> None:
    """However it came to be stored, each dataset has it; before, the error says how to store it."""
    store = training.store
    with training.dataset() as dataset, pytest.raises(UsageError, match=r"empty text.*store\.plan.*empty_text=True"):
        dataset[Pick(0, {"text": EMPTY})]
    store.build(store.plan(store.inputs([{"caption": ""}]), training.text.recipe, role="caption"), encode_text)
    with training.dataset() as dataset:
        item = dataset[Pick(3, {"text": EMPTY})]
        assert (item["length"], item["hidden"].sum().item(), item["sample"]) == (0, 0, "s03")
        assert torch.equal(item["latent"], training.latent(3))
        assert len(dataset) == COUNT
        with pytest.raises(UsageError, match="empty text"):
            dataset[Pick(3, {"image": EMPTY})]


def test_the_empty_text_that_is_planned_along_is_no_row(training: Any) -> None:
    """A plan with it joins as one without; it is missed, left out and filled with zeros by nobody."""
    store = training.store
    text = store.plan(training.inputs, CLIP, role="caption", empty_text=True)
    with pytest.raises(MissError, match=r"1 of 13 variants of text aren't stored: '\(the empty text\)' \(new"):
        store.dataset(image=training.image, text=text)
    for missing in ("skip", "zeros"):
        with store.dataset(image=training.image, text=text, missing=missing) as dataset:
            assert (len(dataset), dataset.skipped, dataset.zeros) == (COUNT, 0, 0)
            with pytest.raises(UsageError, match="empty_text=True"):
                dataset[Pick(0, {"text": EMPTY})]
    assert store.build(text, encode_text).encoded == 1
    with store.dataset(image=training.image, text=text) as dataset:
        assert [dataset.sample(n) for n in range(len(dataset))] == [f"s{n:02}" for n in range(COUNT)]
        assert dataset[Pick(3, {"text": EMPTY})]["length"] == 0
        assert (dataset[3]["length"], dataset.variations(3)) == (9, {"image": 1, "text": 1})


def test_shapes_and_weights_come_from_the_manifest(training: Any) -> None:
    """Neither opens an object."""
    with training.dataset() as dataset:
        for path in training.folder.parent.glob("store/objects/*/*"):
            path.unlink()
        assert (
            dataset.shape(2)["latent"] == (4, 8, 12) or dataset.shape(2)["latent"][-1] > dataset.shape(2)["latent"][-2]
        )
        assert dataset.weights.tolist() == [float(n + 1) for n in range(COUNT)]
        assert (dataset.sample(-1), dataset.group(0), dataset.labels) == ("s11", "", ("image", "text"))


def test_weights_are_for_samplers_and_values_of_rows_come_with_items(store: casstore.Store) -> None:
    """A row that weighs nothing is never drawn by torch's sampler; weights of captions are facts of their row."""
    given = [
        {"sample": str(n), "weight": n, "caption": ["a", f"b{n}"], "values": {"caption_weights": [3, n]}}
        for n in range(3)
    ]
    plan = store.plan(store.inputs(given), CLIP, role="caption")
    store.build(plan, encode_text)
    with store.dataset(text=plan) as dataset:
        drawn = list(WeightedRandomSampler(dataset.weights.tolist(), 50))
        assert 0 not in drawn and [dataset[n]["caption_weights"] for n in set(drawn)] == [[3, n] for n in set(drawn)]
        assert dataset[Pick(2, {"text": 1})]["caption_weights"] == [3, 2]


# -- in process, streams, sources --------------------------------------------------------------------------------------


def test_batches_are_read_ahead_by_so_many(training: Any) -> None:
    """With prefetch n, at most n + 1 batches are asked for before the first is taken; all come in order."""
    asked: list[int] = []

    def sampler() -> Any:
        for n in SQUARE:
            asked.append(n)
            yield [n]

    with training.dataset() as dataset:
        for prefetch in (0, 1, 3):
            asked.clear()
            batches = dataset.batches(sampler(), prefetch=prefetch, threads=2)
            first = next(batches)
            assert len(asked) <= prefetch + 2 and first["sample"] == ["s00"]
            assert [batch["sample"] for batch in batches] == [[f"s{n:02}"] for n in SQUARE[1:]]
        batches = dataset.batches(sampler())
        next(batches)
        batches.close()
        with pytest.raises(UsageError, match="batch_size"):
            list(dataset.batches(SQUARE))
        batches = dataset.batches([[0], [Pick(1, {"text": 7})], [3]])
        assert next(batches)["sample"] == ["s00"]  # an error comes when its batch is due
        with pytest.raises(UsageError, match="no 7"):
            next(batches)
        for wrong in ({"threads": 0}, {"prefetch": -1}, {"batch_size": 0}):
            with pytest.raises(UsageError, match="is a number from"):
                dataset.batches(SQUARE, **wrong)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than cores
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_stream_has_each_item_once(training: Any, workers: int) -> None:
    """Workers share the items; without them they come in order."""
    with training.dataset(names={"image": ["latent"], "text": ["length"]}) as dataset:
        names = [
            item["sample"] for item in DataLoader(dataset.stream(batch_size=2), batch_size=None, num_workers=workers)
        ]
        expected = [f"s{n:02}" for n in range(COUNT)]
        assert sorted(names) == expected and (workers > 1 or names == expected)


def test_the_raw_picture_may_be_wanted_too(training: Any) -> None:
    """source="path" and "image" add what the file is."""
    with training.dataset(source="path") as dataset:
        assert dataset[5]["path"] == str(training.folder / "p005.png")
        assert next(iter(DataLoader(dataset, batch_size=2, sampler=[0, 1])))["path"][1].endswith("p001.png")
    with training.dataset(source="image") as dataset:
        assert dataset[2]["image"].size == (128, 32) and dataset[2]["image"].mode == "RGB"
        assert len(default_collate(dataset.__getitems__([0, 1]))["image"]) == 2
    with pytest.raises(UsageError, match="'path', 'image'"):
        training.dataset(source="both")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_picture_that_isnt_the_planned_one_any_more_is_refused(training: Any, workers: int) -> None:
    """Its bytes count: another one of the same size and time is named with its sample, a touched one is read."""
    path = training.folder / "p004.png"
    before = path.stat()
    with training.dataset(source="image") as dataset:
        os.utime(path)
        assert dataset[4]["image"].size == (64, 64)
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        with pytest.raises(SourceChangedError, match=r"'s04': .*p004\.png changed since it was planned; scan and plan"):
            list(DataLoader(dataset, batch_size=1, sampler=[3, 4], num_workers=workers, collate_fn=list))
        assert dataset[3]["image"].size == (64, 64)
    with training.dataset(source="path") as dataset:
        assert dataset[4]["path"] == str(path)


def test_groups_are_told_where_there_are_any(store: casstore.Store, tmp_path: Any) -> None:
    """Rows of one name in two groups are two rows."""
    clip = casstore.Recipe("clip", code=1)
    given = [{"sample": "a", "group": group, "caption": f"of {group}"} for group in ("cats", "dogs")]
    plan = store.plan(store.inputs(given), clip, role="caption")
    store.build(plan, encode_text)
    with store.dataset(text=plan) as dataset:
        assert [(item["sample"], item["group"]) for item in map(dataset.__getitem__, range(2))] == [
            ("a", "cats"),
            ("a", "dogs"),
        ]
        assert dataset.group(1) == "dogs"


def test_a_dataset_of_a_scanned_folder(store: casstore.Store, tmp_path: Any) -> None:
    """Rows that are made when they are asked for join like any other; names that aren't UTF-8 travel."""
    from kit import FakeEncoder, pictures

    pictures(tmp_path / "p", 4)
    picture(tmp_path / "p" / "odd\udcff.png", seed=9)
    encoder = FakeEncoder()
    plan = store.plan(store.scan(tmp_path / "p"), encoder.recipe, resolution="64x64")
    store.build(plan, encoder)
    with store.dataset(image=plan) as dataset:
        assert isinstance(dataset, Dataset) and len(dataset) == 5
        names = [dataset[n]["sample"] for n in range(5)]
        assert names == [row.row.sample for row in plan.rows] and "odd\udcff.png" in names
        assert [name for batch in DataLoader(dataset, batch_size=2, num_workers=1) for name in batch["sample"]] == names


def test_parts_of_one_variant_are_one_item(store: casstore.Store, tmp_path: Any) -> None:
    """Names that depend on other inputs are objects of their own, and come together."""
    for n in range(3):
        picture(tmp_path / f"p{n}.png", seed=n)
        picture(tmp_path / f"m{n}.png", seed=n + 10)
    recipe = casstore.Recipe("masked", code=1, depends={"latent": ()})
    given = [{"sample": str(n), "image": tmp_path / f"p{n}.png", "mask": tmp_path / f"m{n}.png"} for n in range(3)]
    plan = store.plan(store.inputs(given), recipe, role=("image", "mask"), resolution="64x64")

    def encode(items: list[Any]) -> list[dict[str, Any]]:
        return [
            {"latent": np.full((2, 2), int(item.sample), np.float32), "mask": np.full(3, int(item.sample), np.int64)}
            for item in items
        ]

    store.build(plan, encode)
    with store.dataset(image=plan) as dataset:
        assert int(dataset._manifest.entries.more.sum()) == 3
        batch = default_collate(dataset.__getitems__([2, 0]))
        assert batch["latent"].tolist() == [[[2.0] * 2] * 2, [[0.0] * 2] * 2]
        assert batch["mask"].tolist() == [[2] * 3, [0] * 3]


@pytest.mark.parametrize("index", [1.5, 1.0, "1", None])
def test_only_whole_numbers_are_rows(training: Any, index: Any) -> None:
    """Anything else is refused, and isn't taken for the row that is next to it."""
    with training.dataset() as dataset, pytest.raises(TypeError):
        dataset[index]
