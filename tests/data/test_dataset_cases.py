"""Reports of others, turned into tests of datasets: shapes that don't agree, many rows, no sources any more."""

from __future__ import annotations

import pickle  # noqa: TID251
import tracemalloc
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from core.helpers import handle_of
from data.helpers import CLIP, COUNT, SIZES, encode_text, rows
from kit import object_files, picture

import casstore
from casstore.data import Pick
from casstore.errors import MissError, UsageError
from casstore.index.variants import NewPart, NewVariant, Stamp, save_variants
from casstore.sources.inputs import Cell, Inputs, Row


def test_a_file_of_another_shape_behind_the_store_costs_its_row_or_its_batch(training: Any) -> None:
    """T13: of a batch of 8 the bad row is named and the other 7 can be read; with an encoder all 8 are given."""
    store = training.store
    digests = {n: store.lookup(training.image.row(n).key).digests[0] for n in (1, 2)}
    files = {path.stem: path for path in object_files(store.path)}
    with training.dataset() as dataset:
        expected = [dataset[n]["latent"].clone() for n in range(8)]
        bad = files[digests[1]]
        bad.chmod(0o600)
        bad.write_bytes(files[digests[2]].read_bytes())  # a sound object, of a wider picture
        with pytest.raises(MissError, match="sample 's01'") as told:
            dataset.__getitems__(range(8))
        assert not any(f"'s{n:02}'" in str(told.value) for n in range(8) if n != 1)
        others = dataset.__getitems__([n for n in range(8) if n != 1])
        assert [item["sample"] for item in others] == [f"s{n:02}" for n in range(8) if n != 1]
    with training.dataset(missing="skip", encoders={"image": training.encoder}) as dataset:
        assert dataset.skipped == 1
    store.build(training.again()[0], training.encoder)
    with training.dataset(encoders={"image": training.encoder}) as dataset:
        bad.chmod(0o600)
        bad.write_bytes(files[digests[2]].read_bytes())
        for item, latent in zip(dataset.__getitems__(range(8)), expected, strict=True):
            assert torch.equal(item["latent"], latent)


@pytest.mark.parametrize(
    "count", [20_000, pytest.param(200_000, marks=[pytest.mark.nightly, pytest.mark.timeout(900)])]
)
def test_many_rows_cost_few_bytes_and_reading_them_none(store: casstore.Store, count: int) -> None:
    """T56: what a row takes is told by its arrays and its name; an epoch leaves nothing behind."""
    names = [f"folder/picture_{n:07}.png" for n in range(count)]
    keys = [casstore.Key.text(name, CLIP) for name in names]
    with store.batch() as batch:
        batch.put(keys[0], {"hidden": np.zeros(3, np.float16)})
    (file,) = object_files(store.path)
    with handle_of(store).index.write() as connection:  # all the others have that object, too
        stamp = '{"tensors":{"hidden":["F16",1]},"values":[]}'
        part = NewPart(bytes.fromhex(file.stem), Stamp(stamp))
        save_variants(connection, [NewVariant(key, (part,), None, "new", 1) for key in keys[1:]], (), None)
    inputs = Inputs([Row(name, {"caption": (Cell(key.primary),)}) for name, key in zip(names, keys, strict=True)])
    with store.dataset(text=store.plan(inputs, CLIP)) as dataset:
        assert len(dataset) == count
        per_object, per_row = 58 + 4, 4 + 4 + 8 + len(names[0]) + 8  # entry; place, form, weight, name and its end
        assert len(pickle.dumps(dataset)) < count * (per_object + per_row) + 4096

        def epoch() -> None:
            for batch in dataset.batches(range(3000), 100, threads=1):
                assert batch["hidden"].shape == (100, 3)

        epoch()
        tracemalloc.start()
        try:
            epoch()
            before, _ = tracemalloc.get_traced_memory()
            epoch()
            after, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert after - before < 50_000 and peak < 5_000_000


def test_a_dataset_trains_on_when_its_sources_are_gone(store: casstore.Store, tmp_path: Path) -> None:
    """T69: a group of rows, batches by shape, sizes, crops, texts: all without a source; what isn't stored is told."""
    folder = tmp_path / "photos"
    for n in range(COUNT):
        picture(folder / f"p{n:03}.png", seed=n, size=SIZES[n % len(SIZES)])
    recipe = casstore.Recipe("vae", code=1, preprocess=casstore.FitCrop("lanczos"))
    given = [row | {"group": f"g{n % 2}"} for n, row in enumerate(rows(folder))]
    resolution = casstore.Buckets(64, quantum=32)

    def encode(items: list[Any]) -> list[dict[str, Any]]:
        return [{"latent": np.asarray(item.image, np.float32).mean(2)} for item in items]

    def plan(wanted: Any) -> Any:
        return store.plan(store.inputs(given), recipe, role="image", resolution=wanted)

    image, text = plan(resolution), store.plan(store.inputs(given), CLIP, role="caption")
    store.build(image, encode)
    store.build(text, encode_text)
    latents = [store.get(image.row(n).key)["latent"] for n in range(COUNT)]
    with store.dataset(image=image, text=text) as dataset:
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
        wanted = [n for n in range(len(dataset)) if dataset.group(n) == "g1"]
        shapes = defaultdict(list)
        for n in wanted:
            shapes[dataset.shape(n)["latent"]].append(n)
        assert len(wanted) == COUNT / 2 and len(shapes) == 2
        for shape, numbers in shapes.items():
            (batch,) = dataset.batches([numbers])
            assert torch.equal(batch["latent"], torch.stack([latents[n] for n in numbers]))
            assert batch["latent"].shape[1:] == shape and batch["hidden"].shape == (len(numbers), 5, 3)
            size = list(SIZES[numbers[0] % len(SIZES)][::-1])
            assert batch["original_resolution"] == [size] * len(numbers)
            assert [len(crop) for crop in batch["crop_offset"]] == [2] * len(numbers)
        with pytest.raises(UsageError, match="isn't at resolution 512x512; image is at"):
            dataset[Pick(0, resolution="512x512")]
    later = plan(resolution)
    with pytest.raises(MissError, match=r"12 of 12 variants of image aren't stored.*source unavailable") as told:
        store.dataset(image=later)
    assert told.value.miss is not None and told.value.miss.reason == "source unavailable"
