"""What turns out damaged or gone is made again by the encoder that the dataset was given for it."""

from __future__ import annotations

import os
import pickle  # noqa: TID251
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from core.helpers import child
from data.helpers import CLIP, COUNT, encode_text
from kit import FakeEncoder, as_nobody, object_files, picture
from torch.utils.data import DataLoader

import casstore
from casstore.data import EMPTY, Pick
from casstore.errors import MissError, UsageError
from casstore.model import Item


class Noting:
    """An encoder that notes each item in a file, whatever process it is in."""

    def __init__(self, encode: Any, notes: Path) -> None:
        self._encode, self._notes = encode, notes

    def __call__(self, items: list[Item]) -> Any:
        with open(self._notes, "a") as stream:
            stream.writelines(f"{item.sample}\n" for item in items)
        return self._encode(items)

    @property
    def seen(self) -> list[str]:
        return self._notes.read_text().split("\n")[:-1] if self._notes.exists() else []


@pytest.fixture
def noting(training: Any, tmp_path: Path) -> Noting:
    return Noting(training.encoder, tmp_path / "notes")


def spoil(store: casstore.Store, key: Any, how: str = "gone") -> Path:
    """Damage what is stored under a key."""
    hit = store.lookup(key)
    path = next(path for path in object_files(store.path) if path.stem == hit.digests[0])
    if how == "gone":
        path.unlink()
    else:
        path.chmod(0o600)
        data = path.read_bytes()
        path.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    return path


@pytest.mark.parametrize("how", ["gone", "flipped"])
@pytest.mark.parametrize("workers", [0, 2])
def test_what_is_damaged_is_made_again_once(
    training: Any, noting: Noting, how: str, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    """An epoch goes on over it; the file lies in quarantine, the next epoch reads what was made."""
    store = training.store
    order = [4, 0, 1, 3, 4, 6, 4, 7]
    with training.dataset(encoders={"image": noting}) as dataset:
        expected = torch.stack([dataset[n]["latent"] for n in order])
        path = spoil(store, training.image.row(4).key, how)
        for _ in range(2):
            batches = list(DataLoader(dataset, batch_size=2, sampler=order, num_workers=workers))
            assert torch.equal(torch.cat([batch["latent"] for batch in batches]), expected)
    assert noting.seen == ["s04"]
    assert path.is_file() and store.lookup(training.image.row(4).key).digests == (path.stem,)
    kept = [found.name for found in Path(store.path, "quarantine").iterdir()]
    assert len(kept) == (how == "flipped") and all(path.stem in name for name in kept)
    if workers == 0:
        assert caplog.text.count("sample 's04': what was stored with fake was damaged or gone; made again") == 1


def test_threads_that_find_the_same_damage_make_it_once(training: Any, noting: Noting) -> None:
    """One encodes, the others read what it has stored."""
    wrong: list[int] = []
    with training.dataset(encoders={"image": noting}) as dataset:
        expected = dataset[4]["latent"].clone()
        spoil(training.store, training.image.row(4).key)
        together = threading.Barrier(4)

        def work() -> None:
            together.wait()
            if not torch.equal(dataset[4]["latent"], expected):
                wrong.append(1)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert (wrong, noting.seen) == ([], ["s04"])


def test_processes_that_find_the_same_damage_make_it_once(training: Any, noting: Noting) -> None:
    """A claim keeps them off each other, or what one has stored serves the other."""
    with training.dataset(encoders={"image": noting}) as dataset:
        expected = float(dataset[4]["latent"].sum())
        spoil(training.store, training.image.row(4).key)

        def work(me: Any) -> float:
            me.hear()
            return float(dataset[4]["latent"].sum())

        with child(work) as one, child(work) as other:
            one.say()
            other.say()
            assert [one.result(), other.result()] == [expected, expected]
    assert noting.seen == ["s04"]


def test_a_copy_in_another_process_has_the_encoder(training: Any, noting: Noting) -> None:
    """It travels with the dataset, and with it what there is to encode; what can't be pickled says so itself."""
    with training.dataset(encoders={"image": noting}) as dataset:
        expected = dataset[4]["latent"].clone()
        spoil(training.store, training.image.row(4).key)
        copy = pickle.loads(pickle.dumps(dataset))  # noqa: S301
        assert torch.equal(copy[4]["latent"], expected)
        copy.close()
    assert noting.seen == ["s04"]
    with training.dataset(encoders={"image": lambda items: noting(items)}) as dataset:
        with pytest.raises((pickle.PicklingError, AttributeError), match=r"lambda|local object"):
            pickle.dumps(dataset)


def test_the_resolution_may_have_been_chosen_by_a_function(training: Any, noting: Noting) -> None:
    """It needn't travel: the plan has chosen."""
    store, recipe = training.store, training.encoder.recipe
    image = store.plan(training.inputs, recipe, role="image", resolution=lambda row, variation: ["64x64", "32x64"])
    store.build(image, training.encoder)
    with store.dataset(image=image, encoders={"image": noting}) as dataset:
        pick = Pick(4, resolution="32x64")
        expected = dataset[pick]["latent"].clone()
        spoil(store, image.row(9).key)
        copy = pickle.loads(pickle.dumps(dataset))  # noqa: S301
        assert torch.equal(copy[pick]["latent"], expected)
        copy.close()


def test_the_right_variant_is_made_of_rows_that_have_many(store: casstore.Store, tmp_path: Path) -> None:
    """Of several variations and resolutions only what is damaged is made, whatever was left out."""
    for n in range(3):
        picture(tmp_path / f"{n}.png", seed=n)
    encoder = FakeEncoder()
    inputs = store.inputs([{"sample": str(n), "image": tmp_path / f"{n}.png"} for n in range(3)])
    plan = store.plan(inputs, encoder.recipe, resolution=["64x64", "32x64"], variations=2)
    store.build(plan, encoder)
    store.forget(plan.row(0).key).execute()
    with store.dataset(image=plan, missing="skip", encoders={"image": encoder}) as dataset:
        pick = Pick(1, {"image": 1}, "32x64")
        expected = dataset[pick]["latent"].clone()
        spoil(store, plan.row(11).key)
        encoder.seen.clear()
        assert torch.equal(dataset[pick]["latent"], expected)
    assert encoder.seen == ["2"] and store.lookup(plan.row(11).key).digests


@pytest.mark.parametrize("along", [True, False])
def test_the_empty_text_is_made_again_too(training: Any, along: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Whether it was planned along with the rows, or is stored for another reason."""
    store = training.store
    store.build(store.plan(training.inputs, CLIP, role="caption", empty_text=True), encode_text)
    text = store.plan(training.inputs, CLIP, role="caption", empty_text=along)
    with store.dataset(text=text, encoders={"text": encode_text}) as dataset:
        spoil(store, casstore.Key.text("", CLIP))
        assert dataset[Pick(3, {"text": EMPTY})]["hidden"].abs().sum() == 0
        assert store.lookup(casstore.Key.text("", CLIP)).digests
    assert "sample 's03', the empty text: what was stored with clip" in caplog.text


def test_what_was_swept_is_made_again(training: Any, noting: Noting) -> None:
    """Gone with its row, it is stored anew."""
    with training.dataset(encoders={"image": noting, "text": encode_text}) as dataset:
        expected = dataset[4]["latent"].clone()
        dataset._lease.close()
        training.store.forget(training.image.recipe).execute()
        assert training.store.gc(yes=True, grace_hours=0).swept == COUNT
        assert torch.equal(dataset[4]["latent"], expected)
    assert noting.seen == ["s04"]


def test_one_label_of_two_may_have_an_encoder(training: Any, noting: Noting) -> None:
    """The other one's damage stays an error."""
    with training.dataset(encoders={"image": noting}) as dataset:
        spoil(training.store, training.text.row(4).key)
        with pytest.raises(MissError, match=r"'s04': nothing to serve for its text .* Build the plan again"):
            dataset[4]


# -- what can't be made ------------------------------------------------------------------------------------------------


def test_a_failure_names_sample_key_and_reason(training: Any) -> None:
    """Of the encoder; the next one that reads it tries again."""
    store, key = training.store, training.image.row(4).key
    fine: list[int] = []

    def encode(items: list[Item]) -> Any:
        if not fine:
            raise RuntimeError("out of memory")
        return training.encoder(items)

    with training.dataset(encoders={"image": encode}) as dataset:
        spoil(store, key)
        with pytest.raises(MissError, match=rf"'s04'.*\(fake, key {key.digest.hex()}.*RuntimeError: out of memory"):
            dataset[4]
        fine.append(1)
        assert torch.equal(dataset[4]["latent"], training.latent(4))


@pytest.mark.parametrize("how", ["edited", "edited and scanned", "gone"])
def test_another_content_is_never_taken_for_it(training: Any, how: str) -> None:
    """Where the file doesn't hold any more what was planned, nothing is made of it."""
    store, path = training.store, training.folder / "p004.png"
    with training.dataset(encoders={"image": training.encoder}) as dataset:
        spoil(store, training.image.row(4).key)
        if how == "gone":
            path.unlink()
        else:
            picture(path, seed=99)
        if how == "edited and scanned":
            store.scan(training.folder)
        expected = "p004.png" if how == "gone" else r"p004\.png was edited since it was planned; scan and plan again"
        with pytest.raises(MissError, match=f"'s04'.*{expected}"):
            dataset[4]
    assert store.lookup(training.image.row(4).key).reason == "damaged"


@pytest.mark.parametrize("change", ["shape", "value"])
def test_what_is_made_otherwise_than_before_is_refused(training: Any, change: str) -> None:
    """A dataset has told shapes and values of it already."""

    def encode(items: list[Item]) -> Any:
        results = encode_text(items)
        for result in results:
            result |= {"hidden": np.zeros((7, 3), np.float16)} if change == "shape" else {"length": 99}
        return results

    store = training.store
    with training.dataset(encoders={"text": encode}) as dataset:
        before = store.lookup(training.text.row(4).key).digests
        spoil(store, training.text.row(4).key)
        if change == "value":  # the same tensors: the object heals, and the row keeps its values
            assert dataset[4]["length"] == 9
            assert store.lookup(training.text.row(4).key).digests == before
            return
        with pytest.raises(MissError, match=r"'s04'.*made again, with other shapes.*make the dataset anew"):
            dataset[4]


def test_an_encoder_that_isnt_deterministic_mixes_nothing(store: casstore.Store, tmp_path: Path) -> None:
    """All parts of an item are of one call: what was there and what was made again don't go together."""
    picture(tmp_path / "p.png")
    picture(tmp_path / "m.png", seed=1)
    recipe = casstore.Recipe("masked", code=1, depends={"latent": ()})
    inputs = store.inputs([{"sample": "a", "image": tmp_path / "p.png", "mask": tmp_path / "m.png"}])
    plan = store.plan(inputs, recipe, role=("image", "mask"), resolution="64x64")
    calls: list[int] = []

    def encode(items: list[Item]) -> Any:
        calls.append(len(calls) + 1)
        return [{"latent": np.full(4, calls[-1], np.float32), "mask": np.full(3, calls[-1], np.int64)} for _ in items]

    store.build(plan, encode)
    key = plan.row(0).key
    for digest in store.lookup(key).digests:
        with store.dataset(image=plan, encoders={"image": encode}) as dataset:
            path = next(path for path in object_files(store.path) if path.stem == digest)
            path.unlink()
            item = dataset[0]
            stored = store.get(key)
            assert torch.equal(item["latent"], stored["latent"]) and torch.equal(item["mask"], stored["mask"])
            assert torch.equal(dataset[0]["latent"], stored["latent"])
        calls.append(len(calls) + 1)


def test_a_store_that_can_only_be_read_stays_as_it_is(tmp_path: Path) -> None:
    """Nothing can be made there: it is the error that it is without an encoder."""
    given = [{"sample": "a", "caption": "text"}]

    def prepare(folder: Path) -> None:
        with casstore.open(folder / "s", create=True, durability="off") as store:
            store.build(store.plan(store.inputs(given), CLIP, role="caption"), encode_text)
            object_files(store.path)[0].unlink()
        for path in [folder, *folder.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)

    def work(folder: Path) -> list[Any]:
        called: list[Any] = []
        with casstore.open(folder / "s") as store:
            plan = store.plan(store.inputs(given), CLIP, role="caption")
            with store.dataset(text=plan, encoders={"text": called.append}) as dataset:
                try:
                    dataset[0]
                except MissError as error:
                    return [str(error)[:10], called]
        return []

    if os.getuid() != 0:
        pytest.skip("needs root, to become another user")
    assert as_nobody(work, prepare) == ["sample 'a'", []]


def test_encoders_that_cant_be_meant_are_refused(training: Any) -> None:
    """Before anything is read."""
    with pytest.raises(UsageError, match="no video here, only image, text"):
        training.dataset(encoders={"video": encode_text})
    with pytest.raises(UsageError, match=r"encoders\['text'\] is str"):
        training.dataset(encoders={"text": "clip"})
