"""What is done while the power may fail. A new workload takes ten lines:

    @workload(states=300)                    # the fewest distinct crash states that it has to leave
    def rename_a_recipe(path: str, told: Told) -> None:
        "What is proved, in one line."
        with opened(path) as store:
            store.rename(RECIPE, "new name")
            told.stored("a")                 # acknowledged: from here on it must be there, whatever happens

It starts from a durable store that holds `a`, `b` and `c`, or from what `prepare=` made; what is in there counts as
acknowledged. What it is about to take away it names before (`told.going`), what is gone for good afterwards
(`told.gone`). It is run again on a part of what crashes left, so it must bear to find its own work done already.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from core.helpers import Child, child, fast_folder, key, object_file, overwrite, put, result
from kit import FakeEncoder, build, old_store, pictures
from powercut.checks import STORE
from powercut.recording import Told, Workload, object_of

import casstore
from casstore.core import batch as batches
from casstore.core import gathering
from casstore.core.batch import Batch
from casstore.core.put import PutItem
from casstore.data.lease import Lease
from casstore.index import migrate
from casstore.upkeep.restore import restore

SAME = result("the same")
LARGE = result("large", 6_000)


@dataclass(frozen=True, slots=True)
class Entry:
    """A workload of the table.

    Attributes:
        run: what is done.
        prepare: makes the store before; gets the folder that is to hold it.
        states: the fewest distinct states that it has to leave.
        syncfs: whether it takes the path with syncfs, or flushes each file by itself.
        fault: what casstore still does wrong there.
    """

    run: Workload
    prepare: Callable[[Path], None]
    states: int
    syncfs: bool = True
    fault: str | None = None


WORKLOADS: dict[str, Entry] = {}


def store_with_abc(folder: Path) -> None:
    """A durable store that holds a, b and c."""
    with casstore.open(folder / STORE, create=True) as store:
        put(store, "a", "b", "c")
    (folder / STORE / "ballast").unlink(missing_ok=True)


def workload(
    *, states: int, prepare: Callable[[Path], None] = store_with_abc, syncfs: bool = True, fault: str | None = None
) -> Callable[[Workload], Workload]:
    """Enter a function into the table."""

    def enter(run: Workload) -> Workload:
        WORKLOADS[run.__name__] = Entry(run, prepare, states, syncfs, fault)
        return run

    return enter


def opened(path: str) -> casstore.Store:
    return casstore.open(path, unsafe_filesystem=True)


# -- put -------------------------------------------------------------------------------------------------------------


def _puts(path: str, told: Told) -> None:
    with opened(path) as store:
        for name in ("one", "two"):
            put(store, name)
            told.stored(name)
    with opened(path) as store:  # the WAL has been folded in, and begins anew
        put(store, large=LARGE)
        told.stored("large", made=LARGE)


@workload(states=900)
def puts(path: str, told: Told) -> None:
    """Single results, one after the other."""
    _puts(path, told)


@workload(states=1400, syncfs=False)
def puts_file_by_file(path: str, told: Told) -> None:
    """The same where there is no syncfs: each file and each folder is flushed by itself."""
    _puts(path, told)


@workload(states=900)
def batch(path: str, told: Told) -> None:
    """Groups of results: acknowledged when they are flushed."""
    with opened(path) as store, store.batch() as group:
        for first in (0, 6):
            names = [f"item {number}" for number in range(first, first + 6)]
            for name in names:
                group.put(key(name), result(name))
            group.flush()
            told.stored(*names)


@workload(states=900)
def groups_in_a_row(path: str, told: Told) -> None:
    """Groups of which one is written while the one before is made durable: acknowledged when that one is told of."""

    def committed(items: Sequence[PutItem], _: object) -> None:
        done = {item.key for item in items}
        told.stored(*(name for name in names if key(name) in done))

    names = [f"item {number}" for number in range(8)]
    with patch.object(batches, "GROUP_OBJECTS", 2), patch.object(gathering, "RUN_OBJECTS", 1), opened(path) as store:
        with Batch(store._handle, on_commit=committed) as group:
            for name in names:
                group.put(key(name), result(name))


@workload(states=600)
def dedup_hit(path: str, told: Told) -> None:
    """Results whose tensors are stored already under other keys: in the same group, and since before."""
    with opened(path) as store:
        put(store, one=SAME, two=SAME)
        told.stored("one", "two", made=SAME)
        put(store, three=SAME, four=result("a"))
        told.stored("three", made=SAME)
        told.stored("four", made=result("a"))


@workload(states=1100)
def two_writers(path: str, told: Told) -> None:
    """Two processes that store at once, some of it under the same keys, some of it the same tensors."""

    def writer(whose: str) -> None:
        with opened(path) as store:
            for number in range(2):
                own, shared = f"{whose} {number}", f"shared {number}"
                put(store, own, shared, **{f"{own} same": SAME})
                told.stored(own, shared)
                told.stored(f"{own} same", made=SAME)

    with child(lambda _: writer("left")) as left, child(lambda _: writer("right")) as right:
        left.result(), right.result()


# -- healing ---------------------------------------------------------------------------------------------------------


def damaged_store(folder: Path) -> None:
    """a's object has a flipped byte, which was noticed; b's is cut short, c's is gone, which nobody noticed."""
    store_with_abc(folder)
    with casstore.open(folder / STORE) as store:
        files = {name: object_file(store, name) for name in "abc"}
        overwrite(files["a"], files["a"].read_bytes()[:-1] + b"?")
        store.verify(deep=True)
        overwrite(files["b"], files["b"].read_bytes()[:-1])
        files["c"].unlink()


@workload(states=300, prepare=damaged_store)
def heal(path: str, told: Told) -> None:
    """Damaged objects are put again: quarantine, another file under the same name, marks taken back."""
    for name in "abc":
        with opened(path) as store:
            put(store, name)
            told.stored(name)


# -- taking away -----------------------------------------------------------------------------------------------------


@workload(states=2400)
def gc(path: str, told: Told) -> None:
    """Forgetting, condemning and sweeping without grace, beside what stays and what comes back."""
    with opened(path) as store:
        put(store, "old", "older")
        told.stored("old", "older")
        told.going("old", "older", "a")
        for name in ("old", "older", "a"):
            store.forget(key(name)).execute()
            told.gone(name)
        store.gc(yes=True, grace_hours=0)
        told.going("old")
        put(store, "old")  # swept a moment ago
        told.stored("old")


@workload(states=600)
def gc_beside_a_reader(path: str, told: Told) -> None:
    """What an open dataset may read stays, whatever is forgotten, until it has ended."""
    with opened(path) as store:
        known = isinstance(store.lookup(key("a")), casstore.Hit)
        reader = Lease(store._handle, [])
        told.going("a")
        store.forget(key("a")).execute()
        told.gone("a")
        store.gc(yes=True, grace_hours=0)
        name = object_of("a")
        assert not known or Path(path, "objects", name[:2], f"{name}.cso").exists()
        reader.close()
        store.gc(yes=True, grace_hours=0)
        put(store, "f")
        told.stored("f")


def store_after_a_crash(folder: Path) -> None:
    """Left behind by a process that died: a WAL that isn't folded in, a temp, an object without a row."""
    store_with_abc(folder)

    def work(me: Child) -> None:
        with casstore.open(folder / STORE) as store:
            put(store, "d")
            data = object_file(store, "d").read_bytes()
            store.forget(key("d")).execute()
            store.gc(yes=True, grace_hours=0)
            temp = Path(store._handle.new_temp())
            temp.write_bytes(data)
            os.link(temp, folder / STORE / "objects" / object_of("d")[:2] / f"{object_of('d')}.cso")
            me.say("done")
            me.hear()  # and is killed

    with child(work) as found:
        found.hear()
    (folder / STORE / "ballast").unlink(missing_ok=True)


@workload(states=600, prepare=store_after_a_crash)
def after_a_crash(path: str, told: Told) -> None:
    """Going on where a process died, and tidying up behind it."""
    with opened(path) as store:
        put(store, "d", "e")
        told.stored("d", "e")
        store.gc(yes=True, grace_hours=0)


# -- the index as a whole --------------------------------------------------------------------------------------------


def store_of_schema_1(folder: Path) -> None:
    """The fixture of the first schema."""
    old_store(folder / os.path.dirname(STORE))


@workload(states=600, prepare=store_of_schema_1)
def upgrade(path: str, told: Told) -> None:
    """An old store becomes a new one: backup, revisions, stamp."""
    migrate.upgrade(path, unsafe_filesystem=True)


def store_with_backup(folder: Path) -> None:
    """A backup of a, b and c; since then a was forgotten, and d has come."""
    store_with_abc(folder)
    with casstore.open(folder / STORE) as store:
        store._handle.backup_if_due()
        store.forget(key("a")).execute()
        put(store, "d")


def store_with_backup_and_gc(folder: Path) -> None:
    """The same, and a's object was swept."""
    store_with_backup(folder)
    with casstore.open(folder / STORE) as store:
        store.gc(yes=True, grace_hours=0)
    (folder / STORE / "ballast").unlink(missing_ok=True)


def _restore(path: str, told: Told) -> None:
    told.going("d")
    oldest = min(name for name in os.listdir(Path(path, "backups")) if name.endswith(".sqlite"))  # no half copy
    restore(path, str(Path(path, "backups", oldest)), yes=True, unsafe_filesystem=True)
    told.gone("d")


@workload(states=1100, prepare=store_with_backup)
def restore_a_backup(path: str, told: Told) -> None:
    """The index of then takes the place of today's; what came since is forgotten."""
    _restore(path, told)


@workload(
    states=1000,
    prepare=store_with_backup_and_gc,
)
def restore_a_backup_after_gc(path: str, told: Told) -> None:
    """The same where files of then are gone by now: their objects are marked as damaged."""
    _restore(path, told)


def store_with_a_broken_index(folder: Path) -> None:
    """A backup of a, b and c, and an index that is no database any more, with a WAL beside it."""
    store_after_a_crash(folder)
    with casstore.open(folder / STORE) as store:
        store._handle.backup_if_due()
    store_after_a_crash(folder)
    (folder / STORE / "index.sqlite").write_bytes(b"no database" * 1000)


@workload(states=550, prepare=store_with_a_broken_index)
def restore_over_a_broken_index(path: str, told: Told) -> None:
    """Where there is no database to write into, the backup takes its place."""
    oldest = min(name for name in os.listdir(Path(path, "backups")) if name.startswith("index-"))
    restore(path, str(Path(path, "backups", oldest)), yes=True, unsafe_filesystem=True)
    told.stored("a", "b", "c")
    with opened(path) as store:
        put(store, "f")
        told.stored("f")


_HELD = """
SELECT lower(hex(h.digest)), lower(hex(o.digest)) FROM variants v
  JOIN hashes h ON h.id = v.hash_id JOIN variant_parts p ON p.variant_id = v.id JOIN objects o ON o.id = p.object_id
"""


@workload(states=1100)
def build_and_backup(path: str, told: Told) -> None:
    """A build of pictures, after which the index is saved."""
    with fast_folder() as photos, opened(path) as store:
        pictures(photos, 3)
        report = build(store, photos, FakeEncoder())
        assert report.encoded + report.hits == 3
        for content, name in store.sql(_HELD).rows:
            told.holds(content, name)
        assert os.listdir(Path(path, "backups")) or not report.encoded


def nothing(folder: Path) -> None:
    """An empty disk."""


def an_empty_folder(folder: Path) -> None:
    """Only the folder that the store is to be made in."""
    (folder / STORE).parent.mkdir()


def _create(path: str, told: Told) -> None:
    with casstore.open(path, create=True, unsafe_filesystem=True) as store:
        put(store, "first")
        told.stored("first")


@workload(states=3000, prepare=nothing)
def create(path: str, told: Told) -> None:
    """A new store in a new folder, and the first put."""
    _create(path, told)


@workload(states=3500, prepare=an_empty_folder, syncfs=False)
def create_file_by_file(path: str, told: Told) -> None:
    """A new store where there is no syncfs."""
    _create(path, told)


@workload(
    states=3000,
    prepare=nothing,
    syncfs=False,
)
def create_in_a_new_folder_file_by_file(path: str, told: Told) -> None:
    """A new store in a new folder where there is no syncfs."""
    _create(path, told)


@workload(states=600)
def repack_there_and_back(path: str, told: Told) -> None:
    """What is stored is stored at any moment, in one form or the other."""
    with opened(path) as store:
        store.repack("raw", yes=True)
        put(store, "f")
        told.stored("f")
        store.repack("zstd", yes=True)
