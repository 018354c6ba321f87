"""repack: another stored form for every object, while others read, and whatever happens meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from core.helpers import (
    RAW,
    RECIPE,
    Child,
    child,
    expect,
    failing,
    fast_folder,
    flipped,
    get,
    handle_of,
    in_child,
    key,
    object_file,
    outcome,
    overwrite,
    plain,
    put,
    result,
    sql,
    temps,
)
from killing import Report, kill_once
from kit import object_files

import casstore
from casstore import fsio
from casstore.cli import run
from casstore.core import put as putting
from casstore.errors import NoSpaceError, StoreReadOnlyError, UsageError
from casstore.locks import FileLock
from casstore.upkeep import repack as repacking

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")

SUFFIX = {"zstd": ".cso", "raw": ".st"}
OTHER: dict[str, Any] = {"zstd": "raw", "raw": "zstd"}
RECIPES = {"zstd": RECIPE, "raw": RAW}
by_codec = pytest.mark.parametrize("codec", ["raw", "zstd"])
NAMES = [f"item {number}" for number in range(8)]


def fill(store: casstore.Store, codec: str, names: list[str] = NAMES) -> None:
    """Store result(name) for each name in one form."""
    with store.batch() as batch:
        for name in names:
            batch.put(key(name, RECIPES[codec]), result(name))


def wrong(store: casstore.Store, names: list[str] = NAMES) -> list[str]:
    """Those of the names that aren't served with their own result."""
    return [name for name in names if get(store, name) != expect(name)]


def suffixes(store: casstore.Store) -> list[str]:
    return sorted({path.suffix for path in object_files(store.path)})


def state(store: casstore.Store) -> Any:
    """The object files with inode and size, and the rows that speak of them."""
    files = [(str(path), path.stat().st_ino, path.stat().st_size) for path in object_files(store.path)]
    return files, sql(store, "SELECT * FROM objects ORDER BY id")


# -- what it does ------------------------------------------------------------------------------------------------------


@by_codec
def test_every_object_gets_the_other_form_and_stays_what_it_is(store: casstore.Store, codec: Any) -> None:
    """Keys, digests, tensors and values are the same; each object has one file, of the other form; verify is clean."""
    rng = np.random.default_rng(0)
    special = {
        "empty": {"t": np.zeros((0, 3), np.float16)},
        "large": {"t": rng.standard_normal(1_200_000, np.float32), "u": np.zeros(1000), "n": [1]},
        "same 1": {"t": np.arange(9), "n": 1},
        "same 2": {"t": np.arange(9), "n": 2},
    }
    fill(store, OTHER[codec])
    with store.batch() as batch:
        for name, made in special.items():
            batch.put(key(name, RECIPES[OTHER[codec]]), made)
    names = [*NAMES, *special]
    before = {name: store.lookup(key(name)) for name in names}
    files = object_files(store.path)
    told: list[int] = []
    report = store.repack(codec, yes=True, progress=told.append)
    after = object_files(store.path)
    assert [path.stem for path in after] == [path.stem for path in files] and len(files) == len(names) - 1
    assert suffixes(store) == [SUFFIX[codec]]
    assert (report.codec, report.objects, report.done, report.damaged) == (codec, len(files), len(files), 0)
    assert report.bytes_after == sum(path.stat().st_size for path in after) == store.status().stored_bytes
    assert told[-1] == len(files)
    assert {name: store.lookup(key(name)) for name in names} == before
    assert wrong(store) == []
    assert {name: get(store, name) for name in special} == {name: plain(made) for name, made in special.items()}
    assert store.verify(deep=True).findings == ()
    assert temps(store) == [] == os.listdir(Path(store.path, "quarantine"))
    assert [path.stat().st_mode & 0o777 for path in after] == [0o400] * len(after)


def test_there_and_back_gives_the_same_files(store: casstore.Store) -> None:
    """zstd to raw to zstd leaves every byte on disk as it was."""
    fill(store, "zstd")
    before = {path.name: path.read_bytes() for path in object_files(store.path)}
    assert store.repack("raw", yes=True).bytes_before == sum(map(len, before.values()))
    assert store.repack("zstd", yes=True).bytes_after == sum(map(len, before.values()))
    assert {path.name: path.read_bytes() for path in object_files(store.path)} == before


def test_a_dry_run_says_what_would_change_and_changes_nothing(store: casstore.Store) -> None:
    """Without yes every file and row stays; the report counts the objects and bytes that are in the other form."""
    fill(store, "zstd", NAMES[:5])
    fill(store, "raw", NAMES[5:])
    before = state(store)
    for codec, suffix, count in (("raw", ".cso", 5), ("zstd", ".st", 3)):
        report = store.repack(codec)  # type: ignore[arg-type]
        size = sum(path.stat().st_size for path in object_files(store.path) if path.suffix == suffix)
        assert (report.objects, report.done, report.bytes_before, report.bytes_after) == (count, 0, size, 0)
    assert state(store) == before


@by_codec
def test_a_second_run_does_nothing(store: casstore.Store, codec: Any) -> None:
    """When all objects have the form already not a file or row is touched."""
    fill(store, OTHER[codec])
    store.repack(codec, yes=True)
    before = state(store)
    report = store.repack(codec, yes=True)
    assert (report.objects, report.done, report.bytes_before, report.bytes_after) == (0, 0, 0, 0)
    assert state(store) == before


def test_more_objects_than_a_group_are_changed_in_several(
    store: casstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups are bounded by number and bytes, chunks by number, and every object is reached."""
    monkeypatch.setattr(repacking, "GROUP_OBJECTS", 3)
    monkeypatch.setattr(repacking, "CHUNK", 5)
    fill(store, "zstd")
    told: list[int] = []
    store.repack("raw", yes=True, progress=told.append)
    assert told == [3, 5, 8]
    monkeypatch.setattr(repacking, "GROUP_BYTES", 2 * (64 + 16 * 8 + 64))
    told.clear()
    store.repack("zstd", yes=True, progress=told.append)
    assert told[-1] == 8 and max(np.diff([0, *told])) <= 2
    assert wrong(store) == []


def test_what_cant_be_meant_or_written_is_refused(store: casstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown codec is a usage error, and a store that can't be written says so, for a dry run as well."""
    with pytest.raises(UsageError, match="'lz4'"):
        store.repack("lz4", yes=True)  # type: ignore[arg-type]
    monkeypatch.setattr(handle_of(store), "_obstacle", StoreReadOnlyError("read-only"))
    for yes in (False, True):
        with pytest.raises(StoreReadOnlyError):
            store.repack("raw", yes=yes)


# -- damage ------------------------------------------------------------------------------------------------------------


@by_codec
@pytest.mark.parametrize("how", ["flipped", "gone", "cut"])
def test_damaged_objects_are_noted_and_stop_nothing(store: casstore.Store, codec: Any, how: str) -> None:
    """An object that can't be read keeps its form and is marked, all others change theirs; a put heals it."""
    fill(store, OTHER[codec])
    path = object_file(store, NAMES[3])
    data = path.read_bytes()
    if how == "gone":
        path.unlink()
    else:
        overwrite(path, flipped(data, len(data) - 1) if how == "flipped" else data[:-1])
    report = store.repack(codec, yes=True)
    assert (report.objects, report.done, report.damaged) == (8, 7, 1)
    assert [(name, get(store, name)) for name in wrong(store)] == [(NAMES[3], "damaged")]
    assert store.status().damaged == 1
    again = store.repack(codec, yes=True)
    assert (again.objects, again.done, again.damaged) == (0, 0, 0)
    fill(store, codec)
    assert wrong(store) == []
    assert suffixes(store) == [SUFFIX[codec]]
    assert store.verify(deep=True).findings == ()


def test_a_full_disk_keeps_what_was_done(store: casstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that has no room is a typed error; those before stay repacked, nothing is lost, the next run ends it."""
    monkeypatch.setattr(repacking, "GROUP_OBJECTS", 3)
    fill(store, "zstd")
    with monkeypatch.context() as patch:
        failing(patch, "write_new", {5}, NoSpaceError)
        with pytest.raises(NoSpaceError):
            store.repack("raw", yes=True)
    assert (wrong(store), temps(store)) == ([], [])
    assert store.repack("raw", yes=True).done == 5
    assert suffixes(store) == [".st"]


# -- with others -------------------------------------------------------------------------------------------------------


def test_a_gc_and_a_repack_exclude_each_other(store: casstore.Store) -> None:
    """While locks/gc is held a repack is refused, and while a repack runs a gc and another repack are."""
    fill(store, "zstd")

    def hold(me: Child) -> None:
        lock = FileLock(handle_of(store).directory.lock("gc"))
        assert lock.try_acquire()
        me.say("held")
        me.hear()

    with child(hold) as holder:
        assert holder.hear() == "held"
        assert [outcome(store.repack, "raw", yes=yes) for yes in (False, True)] == ["StoreBusyError"] * 2
    seen = []

    def progress(_: int) -> None:
        seen.append(in_child(lambda: [outcome(store.gc, yes=True), outcome(store.repack, "raw", yes=True)]))

    assert store.repack("raw", yes=True, progress=progress).done == 8
    assert seen == [["StoreBusyError"] * 2]
    store.gc(yes=True)


def test_a_reader_sees_right_values_only(store: casstore.Store) -> None:
    """Another process reads all the time, in every way, while all objects change their form several times: no miss, no
    other value, no mark."""
    fill(store, "raw", NAMES)
    stop = Path(store.path).parent / "stop"

    def read(me: Child) -> Any:
        rng, count = random.Random(1), 0
        me.say("reading")
        while not stop.exists():
            name = rng.choice(NAMES)
            assert get(store, name) == expect(name)
            asked = rng.choices(NAMES, k=6)
            found = store.get_many([key(each) for each in asked], as_numpy=True)
            assert [plain(each) for each in found] == [expect(each) for each in asked]  # type: ignore[arg-type]
            with contextlib.suppress(UsageError):  # it is compressed just now
                assert plain(store.get(key(name), as_numpy=True, mmap=True)) == expect(name)
            count += 1
        return count

    with child(read) as one, child(read) as other:
        assert [one.hear(), other.hear()] == ["reading"] * 2
        for _ in range(5):
            for codec in ("zstd", "raw"):
                assert store.repack(codec, yes=True).done == len(NAMES)  # type: ignore[arg-type]
        stop.touch()
        assert min(one.result(), other.result()) > 0
    assert store.status().damaged == 0
    assert wrong(store) == []


def test_a_writer_meanwhile_loses_nothing(store: casstore.Store) -> None:
    """Another process puts new and old results in both forms while a repack runs again and again."""
    fill(store, "raw", NAMES[:4])
    stop = Path(store.path).parent / "stop"

    def write(me: Child) -> int:
        rng, count = random.Random(2), 0
        me.say("writing")
        while not stop.exists():
            fill(store, rng.choice(["raw", "zstd"]), [rng.choice(NAMES), f"new {count}"])
            count += 1
        return count

    with child(write) as writer:
        assert writer.hear() == "writing"
        for codec in ("zstd", "raw") * 3:
            store.repack(codec, yes=True)  # type: ignore[arg-type]
        stop.touch()
        count = writer.result()
    assert wrong(store, [*NAMES[:4], *(f"new {number}" for number in range(count))]) == []
    assert store.verify(deep=True).findings == ()
    store.gc(yes=True, grace_hours=0)
    store.repack("zstd", yes=True)
    assert suffixes(store) == [".cso"]
    assert len(object_files(store.path)) == store.status().objects


def test_an_object_healed_in_its_old_form_meanwhile_keeps_its_file(
    store: casstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the commit of a repack and the removal of the old file the new one is damaged, and another process heals
    the object in the old form: it stays served."""
    fill(store, "zstd", ["a"])
    index = handle_of(store).index
    real, calls = index.write, []

    def interfere() -> None:
        with casstore.open(store.path) as other:
            object_file(other, "a").unlink()
            assert get(other, "a") in ("damaged", expect("a"))
            other.verify()
            fill(other, "zstd", ["a"])

    @contextlib.contextmanager
    def write() -> Iterator[Any]:
        with real() as connection:
            yield connection
        calls.append(1)
        if len(calls) == 1:
            in_child(interfere)

    monkeypatch.setattr(index, "write", write)
    store.repack("raw", yes=True)
    monkeypatch.undo()
    assert get(store, "a") == expect("a")
    assert store.verify(deep=True).findings == ()


def test_an_object_that_was_put_in_the_new_form_meanwhile_is_left_alone(
    store: casstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was healed in the new form, or swept, between reading and committing isn't written again."""
    fill(store, "zstd", ["a", "b"])
    real = repacking.make_durable

    def meanwhile(*arguments: Any) -> None:
        real(*arguments)
        monkeypatch.setattr(repacking, "make_durable", real)

        def heal() -> None:
            with casstore.open(store.path) as other:
                object_file(other, "a").unlink()
                fill(other, "raw", ["a"])

        in_child(heal)

    monkeypatch.setattr(repacking, "make_durable", meanwhile)
    report = store.repack("raw", yes=True)
    assert (report.objects, report.done) == (2, 1)
    assert [get(store, name) for name in "ab"] == [expect(name) for name in "ab"]
    assert store.verify(deep=True).findings == ()


# -- crashes, leftovers, backups ---------------------------------------------------------------------------------------


def check_after_crash(path: Path, names: list[str], codec: Any) -> None:
    """Every key is served at once, after a gc, and after the repack was run again; nothing is left over."""
    with casstore.open(path) as store:
        assert wrong(store, names) == []
        store.gc(yes=True, grace_hours=0)
        assert wrong(store, names) == []
        assert len(object_files(path)) == len(names), "what the dead one left is gone"
        assert os.listdir(path / "tmp") == []
        store.repack(codec, yes=True)
        assert wrong(store, names) == []
        assert suffixes(store) == [SUFFIX[codec]]
        assert store.verify(deep=True).findings == ()


@pytest.mark.parametrize(
    ("codec", "links"),
    [
        ("raw", True),
        ("zstd", False),
        pytest.param("zstd", True, marks=pytest.mark.nightly),
        pytest.param("raw", False, marks=pytest.mark.nightly),
    ],
)
def test_a_repack_that_dies_at_any_step_loses_nothing(codec: Any, links: bool) -> None:
    """Killed before or after each of its writes, links, renames and removals, it leaves every key served."""
    names = NAMES[:2]
    with fast_folder() as folder:
        with casstore.open(folder / "s", create=True, durability="off") as store:
            fill(store, OTHER[codec], names)
        (folder / "s" / "ballast").unlink(missing_ok=True)
        for step in range(200):
            path = folder / str(step)
            shutil.copytree(folder / "s", path)
            with child(lambda _, step=step, path=path: die_at(step, path, codec, links)) as mortal:
                line = mortal._in.readline()
            check_after_crash(path, names, codec)
            shutil.rmtree(path)
            if line:
                assert json.loads(line) == {"result": 2}
                break
        else:
            pytest.fail("it never came to its end")
        assert step >= 14


def die_at(step: int, path: Path, codec: Any, links: bool) -> int:
    """Repack, and die at the step-th of the moments before and after calls that change files."""
    left = step

    def moment() -> None:
        nonlocal left
        if not left:
            os._exit(9)
        left -= 1

    def watched(real: Any) -> Any:
        def call(*arguments: Any) -> Any:
            moment()
            found = real(*arguments)
            moment()
            return found

        return call

    with casstore.open(path) as store:
        if not links:
            fsio.link = lambda *_: False
        for name in ("write_new", "link", "rename", "unlink"):
            setattr(fsio, name, watched(getattr(fsio, name)))
        return store.repack(codec, yes=True).done


@pytest.mark.parametrize("kills", [5, pytest.param(200, marks=pytest.mark.nightly)])
def test_a_killed_repack_loses_nothing(tmp_path: Path, kills: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL at random moments of repacks there and back, also inside of commits: every key is served."""
    monkeypatch.setattr(repacking, "GROUP_OBJECTS", 5)
    rng, names, path = random.Random(8), [f"item {number}" for number in range(20)], tmp_path / "s"
    with casstore.open(path, create=True) as store:
        fill(store, "zstd", names)

    def work(report: Report) -> None:
        with casstore.open(path) as store:
            for codec in ("raw", "zstd") * 20:
                store.repack(codec, yes=True, progress=report)  # type: ignore[arg-type]

    for number in range(kills):
        kill_once(work, rng, spread=0.1)
        check_after_crash(path, names, ("raw", "zstd")[number % 2])


def test_a_leftover_of_the_other_form_goes_only_where_the_own_file_is_there(store: casstore.Store) -> None:
    """gc takes a second file of an object when the row's own has its size; else the second stays and is served."""
    fill(store, "zstd", ["a", "b", "c"])
    old = {name: (object_file(store, name), object_file(store, name).read_bytes()) for name in "abc"}
    store.repack("raw", yes=True)
    for path, data in old.values():
        path.write_bytes(data)
    object_file(store, "b").unlink()
    overwrite(object_file(store, "c"), b"cut")
    dry = store.gc(grace_hours=0)
    done = store.gc(yes=True, grace_hours=0)
    assert (dry.leftovers, done.leftovers) == (1, 1)
    assert [path.exists() for path, _ in old.values()] == [False, True, True]
    assert [get(store, name) for name in "abc"] == [expect(name) for name in "abc"]
    assert store.gc(yes=True, grace_hours=0).leftovers == 0


@by_codec
def test_a_backup_from_before_a_repack_still_serves_everything(
    tmp_path: Path, codec: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """`casstore db restore` finds objects in their new form; only one that has no sound file counts as damaged."""
    path, backup = tmp_path / "s", tmp_path / "backup.sqlite"
    with casstore.open(path, create=True, durability="off") as store:
        fill(store, OTHER[codec])
        store.copy_index(backup)
        store.repack(codec, yes=True)
        lost, bad = object_file(store, NAMES[0]), object_file(store, NAMES[1])
    lost.unlink()
    overwrite(bad, flipped(bad.read_bytes(), bad.stat().st_size - 1))
    assert run(["db", "restore", str(backup), "--yes", "--json", "--store", str(path)]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (told["done"], told["variants"], told["damaged"]) == (True, 8, 2)
    with casstore.open(path) as store:
        assert [(name, get(store, name)) for name in wrong(store)] == [(name, "damaged") for name in NAMES[:2]]
        assert set(sql(store, "SELECT codec FROM objects WHERE damaged_at IS NULL")) == {(codec,)}
        assert store.gc(yes=True, grace_hours=0).swept == 0
        fill(store, codec)
        assert wrong(store) == []
        assert store.verify(deep=True).findings == ()
        assert store.repack(OTHER[codec], yes=True).done == 8
        assert wrong(store) == []


def test_a_put_that_began_before_a_repack_leaves_nothing_wrong(
    store: casstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group that was staged in one form, and finds the object stored and repacked by others when it commits, is
    served, and its superfluous file goes with gc."""
    real = putting.make_durable

    def meanwhile(*arguments: Any) -> None:
        monkeypatch.setattr(putting, "make_durable", real)

        def others() -> None:
            with casstore.open(store.path) as other:
                fill(other, "zstd", ["a"])
                other.repack("raw", yes=True)

        in_child(others)
        real(*arguments)

    monkeypatch.setattr(putting, "make_durable", meanwhile)
    put(store, "a", "b")
    assert [get(store, name) for name in "ab"] == [expect(name) for name in "ab"]
    store.gc(yes=True, grace_hours=0)
    assert [get(store, name) for name in "ab"] == [expect(name) for name in "ab"]
    assert len(object_files(store.path)) == 2
    assert store.verify(deep=True).findings == ()


# -- command line ------------------------------------------------------------------------------------------------------


def test_the_command_repacks_with_yes_only(store: casstore.Store, capsys: pytest.CaptureFixture[str]) -> None:
    """A dry run tells the objects and the next command; --yes does it; both exit with 0."""
    fill(store, "zstd")

    def told(*arguments: str) -> str:
        assert run(["repack", *arguments, "--store", store.path]) == 0
        return capsys.readouterr().out

    dry = told("--codec", "raw")
    assert "dry run: 8 objects" in dry and "casstore repack --codec raw --yes" in dry
    assert suffixes(store) == [".cso"]
    assert "repacked 8 objects" in told("--codec", "raw", "--yes")
    assert suffixes(store) == [".st"]
    assert "--yes" not in told("--codec", "raw")
    assert wrong(store) == []


def test_the_command_speaks_json(store: casstore.Store, capsys: pytest.CaptureFixture[str]) -> None:
    """With --json there is one object: the report, and whether it was done."""
    fill(store, "zstd")
    for yes in (False, True):
        assert run(["repack", "--codec", "raw", "--json", "--store", store.path, *(["--yes"] if yes else [])]) == 0
        (line,) = capsys.readouterr().out.splitlines()
        found = json.loads(line)
        assert (found["codec"], found["objects"], found["done"], found["damaged"], found["yes"]) == (
            "raw", 8, 8 if yes else 0, 0, yes,
        )  # fmt: skip
        assert {"bytes_before", "bytes_after", "seconds"} <= found.keys()


def test_the_command_ends_with_1_where_something_is_damaged(
    store: casstore.Store, capsys: pytest.CaptureFixture[str]
) -> None:
    """It tells how many objects couldn't be read, and does all others."""
    fill(store, "zstd")
    object_file(store, NAMES[0]).unlink()
    assert run(["repack", "--codec", "raw", "--yes", "--store", store.path]) == 1
    out = capsys.readouterr().out
    assert "repacked 7 objects" in out and "damaged  1 object" in out


def test_the_command_refuses_what_it_cant_do(
    store: casstore.Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No codec, an unknown one and a folder that is no store end with 2; a running gc is an error as well."""
    assert run(["repack", "--store", store.path]) == 2
    assert run(["repack", "--codec", "lz4", "--store", store.path]) == 2
    assert run(["repack", "--codec", "raw", "--store", str(tmp_path / "none")]) != 0
    lock = FileLock(handle_of(store).directory.lock("gc"))
    assert lock.try_acquire()
    capsys.readouterr()
    assert run(["repack", "--codec", "raw", "--yes", "--store", store.path]) != 0
    assert "gc or repack is running" in capsys.readouterr().err
    lock.release()
    assert run(["repack", "--codec", "raw", "--yes", "--store", store.path]) == 0


@pytest.mark.parametrize("use", ["verify", "get", "repack"])
def test_an_index_from_before_a_repack_that_was_put_back_by_hand_takes_up_what_is_there(
    store: casstore.Store, tmp_path: Path, use: str
) -> None:
    """Whoever comes first finds the files in the other form, and nothing is damaged or encoded again."""
    fill(store, "zstd")
    store.copy_index(tmp_path / "copy")
    store.repack("raw", yes=True)
    store.close()
    shutil.copy(tmp_path / "copy", Path(store.path, "index.sqlite"))
    with casstore.open(store.path) as again:
        if use == "verify":
            assert again.verify().findings == ()
        elif use == "repack":
            assert again.repack("zstd", yes=True).damaged == again.repack("raw", yes=True).damaged == 0
        assert wrong(again) == []
        assert again.verify(deep=True).findings == () and again.status().damaged == 0
