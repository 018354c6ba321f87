"""What an open dataset may read stays; what isn't as it was is read all the same, or is a typed error."""

from __future__ import annotations

import logging
import os
import pickle  # noqa: TID251
from pathlib import Path
from typing import Any

import pytest
import torch
from core.helpers import child, handle_of, sql
from data.helpers import COUNT, encode_text
from kit import as_nobody, object_files
from torch.utils.data import DataLoader

import casstore
from casstore.errors import MissError, StoreBusyError
from casstore.index.owners import save_reader
from casstore.locks import FileLock
from casstore.upkeep.restore import restore


def sweep(store: casstore.Store) -> Any:
    return store.gc(yes=True, grace_hours=0)


def forget_all(training: Any) -> None:
    for plan in (training.image, training.text):
        training.store.forget(plan.recipe).execute()


def owners(store: casstore.Store) -> list[str]:
    """Names of the lock files of all owners but this handle's own."""
    return sorted(set(os.listdir(handle_of(store).directory.owners)) - {handle_of(store).owner})


def test_gc_sweeps_nothing_of_an_open_dataset(training: Any) -> None:
    """Without any grace, all that it may read stays until it is closed; then it goes."""
    store = training.store
    with training.dataset() as dataset:
        expected = [dataset[n]["latent"].clone() for n in range(COUNT)]
        files = object_files(store.path)
        forget_all(training)
        for _ in range(3):
            dry, report = store.gc(grace_hours=0), sweep(store)
            assert (dry.would_free_bytes, report.swept, report.waiting) == (0, 0, len(files))
        assert object_files(store.path) == files
        for n, latent in enumerate(expected):
            assert torch.equal(dataset[n]["latent"], latent)
    dry, report = store.gc(grace_hours=0), sweep(store)
    assert (report.swept, report.waiting, dry.would_free_bytes) == (len(files), 0, report.freed_bytes)
    assert object_files(store.path) == []


def test_what_was_condemned_before_is_swept(training: Any) -> None:
    """A dataset keeps what was referred to when it was made, and nothing else."""
    store = training.store
    store.forget(training.text.row(3).key).execute()
    assert store.gc(yes=True, grace_hours=24).condemned == 1
    with training.dataset(missing="skip"):
        store.forget(training.text.row(4).key).execute()
        report = sweep(store)
        assert (report.condemned, report.swept, report.waiting) == (1, 1, 1)
    assert sweep(store).swept == 1


def test_the_oldest_of_several_datasets_counts(training: Any) -> None:
    """What the first one may read stays when a later one closes."""
    store = training.store
    first = training.dataset()
    store.forget(training.text.row(3).key).execute()
    assert sweep(store).waiting == 1
    second = training.dataset(missing="skip")
    second.close()
    assert sweep(store).swept == 0
    assert first[3]["length"] == 9
    first.close()
    assert sweep(store).swept == 1


def test_each_condemning_is_an_epoch(training: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dataset that is made while gc condemns keeps what the same run condemns after that."""
    from casstore.upkeep import gc as collecting

    store, made = training.store, []
    monkeypatch.setattr(collecting, "CONDEMN_CHUNK", 1)
    for plan in (training.image, training.text):
        store.forget(plan.row(0).key).execute()
    real = collecting.garbage.condemn

    def condemn(connection: Any, limit: int) -> int:
        count = real(connection, limit)
        if not made:  # as if it began between the first transaction and the next
            made.append("0" * 15 + "1")
            lock = FileLock(os.path.join(handle_of(store).directory.owners, made[0]))
            lock.acquire(0, shared=True)
            made.append(lock)
            save_reader(connection, made[0], "dataset", [])
        return count

    monkeypatch.setattr(collecting.garbage, "condemn", condemn)
    report = sweep(store)
    assert (report.condemned, report.swept, report.waiting) == (2, 1, 1)
    made[1].release()
    assert sweep(store).swept == 1


def test_a_dataset_is_an_owner_with_its_recipes(training: Any) -> None:
    """Its row has kind, process, epoch and recipes, and goes when it is closed, or not needed any more."""
    store = training.store
    dataset = training.dataset()
    kind, pid, epoch, recipes = sql(store, "SELECT kind, pid, epoch, recipes FROM owners")[0]
    assert (kind, pid, epoch) == ("dataset", os.getpid(), 0)
    assert training.image.recipe.digest.hex() in recipes and training.text.recipe.digest.hex() in recipes
    assert len(owners(store)) == 1
    dataset.close()
    dataset.close()
    assert (owners(store), sql(store, "SELECT * FROM owners")) == ([], [])
    dataset = training.dataset()
    del dataset
    assert (owners(store), sql(store, "SELECT * FROM owners")) == ([], [])
    with pytest.raises(MissError):
        training.dataset(names={"text": ["nonsense"]})
    assert (owners(store), sql(store, "SELECT * FROM owners")) == ([], [])


def test_a_dataset_keeps_its_objects_after_its_store_was_closed(training: Any) -> None:
    """It needs no open store; the row that stays behind is removed by the next gc."""
    store, dataset = training.store, training.dataset()
    path = store.path
    store.close()
    with casstore.open(path) as other:
        other.forget(training.image.recipe).execute()
        assert sweep(other).swept == 0
        assert torch.is_tensor(dataset[0]["latent"])
        dataset.close()
        assert len(sql(other, "SELECT * FROM owners")) == 1
        assert sweep(other).swept == COUNT
        assert sql(other, "SELECT * FROM owners") == []


def test_a_killed_process_holds_nothing(training: Any) -> None:
    """The owner of a process that was killed is dead: gc sweeps, and removes its row and lock."""
    store = training.store

    def work(me: Any) -> None:
        with casstore.open(store.path) as mine:
            dataset = mine.dataset(image=training.image)
            me.say(len(dataset))
            me.hear()

    with child(work) as other:
        assert other.hear() == COUNT
        store.forget(training.image.recipe).execute()
        assert sweep(store).swept == 0
    assert sweep(store).swept == COUNT
    assert (owners(store), sql(store, "SELECT * FROM owners")) == ([], [])


def test_no_index_is_restored_under_an_open_dataset(training: Any, tmp_path: Path) -> None:
    """A restored index wouldn't know what it may read. It holds the store without having it open, until it dies."""
    store = training.store
    path, backup = store.path, str(tmp_path / "backup.sqlite")
    store.copy_index(backup)

    def work(me: Any) -> None:
        with casstore.open(path) as mine:
            dataset = mine.dataset(image=training.image)
        me.say(len(dataset))
        me.hear()

    with child(work) as other:
        assert other.hear() == COUNT
        store.close()
        with pytest.raises(StoreBusyError, match=f"read by a dataset of process {other.pid} on .*nothing was changed"):
            restore(path, backup, yes=True)
    report = restore(path, backup, yes=True)
    assert report.variants == 2 * COUNT
    with casstore.open(path) as again:
        assert (owners(again), sql(again, "SELECT * FROM owners")) == ([], [])


def test_a_copy_in_another_process_keeps_the_objects(training: Any) -> None:
    """A dataset that has travelled holds the lock as well, when the one that it comes from is closed."""
    store, dataset = training.store, training.dataset()
    data = pickle.dumps(dataset)

    def work(me: Any) -> str:
        mine = pickle.loads(data)  # noqa: S301
        me.say(mine[0]["sample"])
        me.hear()
        return str(mine[3]["sample"])

    with child(work) as other:
        assert other.hear() == "s00"
        dataset.close()
        forget_all(training)
        assert sweep(store).swept == 0
        other.say()
        assert other.result() == "s03"
    assert sweep(store).swept > 0


def test_a_copy_that_comes_too_late_registers_itself(training: Any) -> None:
    """Where the first owner is gone, the copy becomes one of its own before it reads."""
    store, dataset = training.store, training.dataset()
    data = pickle.dumps(dataset)
    dataset.close()
    copy = pickle.loads(data)  # noqa: S301
    assert owners(store) == []
    assert copy[0]["sample"] == "s00"
    assert len(owners(store)) == 1
    forget_all(training)
    assert sweep(store).swept == 0
    copy.close()
    assert sweep(store).swept > 0


def test_workers_read_while_gc_loops(training: Any) -> None:
    """Epochs of workers beside gc without grace, after all has been forgotten."""
    store = training.store
    with training.dataset(names={"image": ["latent"], "text": ["hidden"]}) as dataset:
        forget_all(training)
        square = [n for n in range(COUNT) if n % 3 < 2]
        for batch in DataLoader(dataset, batch_size=2, sampler=square * 3, num_workers=2):
            assert sweep(store).swept == 0
            assert batch["latent"].shape == (2, 4, 8, 8)


def test_a_store_that_is_only_read_gets_no_owner_and_says_so_once(tmp_path: Path) -> None:
    """Another user reads a dataset; nothing is written, and one warning tells that gc isn't held off."""
    clip = casstore.Recipe("clip", code=1)
    given = [{"sample": str(n), "caption": f"text {n}"} for n in range(3)]

    def prepare(folder: Path) -> None:
        with casstore.open(folder / "s", create=True, durability="off") as store:
            store.build(store.plan(store.inputs(given), clip, role="caption"), encode_text)
        for path in [folder, *folder.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)

    def work(folder: Path) -> list[Any]:
        told: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("casstore.data").addHandler(handler)
        with casstore.open(folder / "s") as store:
            assert store.read_only
            for _ in range(2):
                with store.dataset(text=store.plan(store.inputs(given), clip, role="caption")) as dataset:
                    lengths = [item["length"] for item in map(dataset.__getitem__, range(3))]
            return [lengths, len(told), "gc isn't held off" in told[0]]

    if os.getuid() != 0:
        pytest.skip("needs root, to become another user")
    assert as_nobody(work, prepare) == [[6, 6, 6], 1, True]


# -- repacked, damaged, gone -------------------------------------------------------------------------------------------


def test_objects_may_be_repacked_under_a_running_epoch(training: Any) -> None:
    """What lies in another form now is found there; asked again, without a query."""
    store = training.store
    with training.dataset() as dataset:
        expected = [dataset[n]["latent"].clone() for n in range(COUNT)]
        for codec in ("raw", "zstd", "raw"):
            store.repack(codec, yes=True)
            for n, latent in enumerate(expected):
                assert torch.equal(dataset[n]["latent"], latent)
        moved = dict(dataset._reader._moved)
        assert torch.equal(dataset[0]["latent"], expected[0]) and dataset._reader._moved == moved
        loaded = DataLoader(dataset, batch_size=2, sampler=[0, 1], num_workers=1)
        assert torch.equal(next(iter(loaded))["latent"], torch.stack(expected[:2]))


@pytest.mark.parametrize("how", ["gone", "cut", "flipped"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_object_is_a_typed_error_that_names_the_sample(training: Any, how: str, workers: int) -> None:
    """The class survives a worker, the damage is noted, other items are read, and a build heals it."""
    store = training.store
    key = training.image.row(4).key
    hit = store.lookup(key)
    path = next(path for path in object_files(store.path) if path.stem == hit.digests[0])
    path.chmod(0o600)
    with training.dataset() as dataset:
        expected = dataset[4]["latent"].clone()
        if how == "gone":
            path.unlink()
        else:
            data = path.read_bytes()
            path.write_bytes(data[:-9] if how == "cut" else data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
        named = rf"sample 's04': .* for its image \(fake, key {key.digest.hex()}, object {path.stem}"
        with pytest.raises(MissError, match=named):
            list(DataLoader(dataset, batch_size=2, sampler=[0, 1, 3, 4], num_workers=workers))
        assert dataset[3]["sample"] == "s03"
        assert str(store.lookup(training.image.row(4).key)).startswith("damaged")
        store.build(training.again()[0], training.encoder)
        assert torch.equal(dataset[4]["latent"], expected)


def test_an_object_of_several_keys_is_named_with_each(store: casstore.Store) -> None:
    """Equal tensors are one object: nobody can tell which of the keys a row means, but those of other recipes go."""
    recipes = [casstore.Recipe(name, code=1) for name in ("same", "other")]
    given = [{"sample": str(n), "caption": f"text {n}"} for n in range(2)]
    plans = [store.plan(store.inputs(given), recipe, role="caption") for recipe in recipes]
    for plan in plans:
        store.build(plan, lambda items: [{"t": torch.zeros(3)} for _ in items])
    (path,) = object_files(store.path)
    with store.dataset(text=plans[0]) as dataset:
        path.unlink()
        with pytest.raises(MissError) as told:
            dataset[1]
    assert all(plans[0].row(n).key.digest.hex() in str(told.value) for n in range(2))
    assert plans[1].row(1).key.digest.hex() not in str(told.value)


def test_an_object_that_was_swept_is_a_typed_error(training: Any) -> None:
    """Where gc wasn't held off."""
    store = training.store
    with training.dataset() as dataset:
        dataset._lease.close()
        forget_all(training)
        assert sweep(store).swept > 0
        with pytest.raises(MissError, match=r"'s00'.*doesn't have it any more"):
            dataset[0]


def test_an_epoch_goes_on_after_the_sources_went(training: Any) -> None:
    """Once it is made, a dataset needs no source."""
    with training.dataset() as dataset:
        for path in training.folder.iterdir():
            path.unlink()
        assert [item["sample"] for item in dataset.stream()] == [f"s{n:02}" for n in range(COUNT)]
