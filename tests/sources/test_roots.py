"""Roots: which folder is one, where it is, and when what isn't there counts as gone."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from core.helpers import in_child
from kit import FakeEncoder, build, clock_ahead, pictures, spy

import casstore
from casstore.cli import run
from casstore.errors import StorePermissionError, UsageError

READ = "casstore.sources.hashing.read_source"


def fill(folder: Path, count: int = 3, text: str = "") -> Path:
    """Small files, each with content of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        (folder / f"{number:04}.png").write_bytes(f"{text or folder.name} {number}".encode())
    return folder


def empty(folder: Path, count: int) -> None:
    """Delete the first files of a folder."""
    for path in sorted(folder.glob("*.png"))[:count]:
        path.unlink()


def states(store: casstore.Store) -> dict[str, tuple[str, int, int]]:
    """{root: (state, files, missing)}"""
    return {root.name: (root.state, root.files, root.missing) for root in store.roots()}


def paths(store: casstore.Store) -> dict[str, str]:
    return {root.name: root.path for root in store.roots()}


# -- one per folder --------------------------------------------------------------------------------------------------


def test_a_root_above_known_ones_adopts_them(
    store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scanning the folder above makes one root of all, which knows what they knew: nothing is hashed again."""
    clock_ahead(monkeypatch)
    for name in ("one", "deep/two", "deep/two/three"):
        fill(tmp_path / "data" / name)
    for name in ("one", "deep/two"):
        store.scan(tmp_path / "data" / name)
    (tmp_path / "data" / "one" / "0000.png").unlink()
    report = store.scan(tmp_path / "data").report
    assert (report.files, report.hashed, report.missing) == (8, 0, 1)
    assert states(store) == {"data": ("whole", 8, 1)}


def test_a_root_may_be_adopted_while_it_is_scanned(store: casstore.Store, tmp_path: Path) -> None:
    """Another process scans the folder above meanwhile: the scan goes on below the new root, and all rows are there."""
    data = fill(tmp_path / "data" / "one", 40)
    fill(tmp_path / "data" / "two")
    others = []

    def meanwhile(done: int, total: int) -> None:
        if not others:
            with casstore.open(store.path) as other:
                others.append(other.scan(tmp_path / "data").report.files)

    inputs = store.scan(data, progress=meanwhile)
    assert others == [43]
    assert [row.sample for row in inputs] == [f"{number:04}.png" for number in range(40)]
    assert states(store) == {"data": ("whole", 43, 0)}
    assert store.verify(deep=True).damaged == 0


def test_a_stop_while_a_root_is_adopted_is_a_stop(store: casstore.Store, tmp_path: Path) -> None:
    """Ctrl-C ends the scan, and doesn't begin it anew below the other root."""
    data = fill(tmp_path / "data" / "one", 40)

    def meanwhile(done: int, total: int) -> None:
        with casstore.open(store.path) as other:
            other.scan(tmp_path / "data")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.scan(data, progress=meanwhile)


def test_adoption_keeps_what_files_held_before(store: casstore.Store, tmp_path: Path) -> None:
    """Old contents and misses belong to files, whichever root these belong to."""
    data = fill(tmp_path / "data" / "one")
    store.scan(data)
    (data / "0000.png").write_bytes(b"edited")
    (data / "0001.png").unlink()
    store.scan(data)
    store.scan(tmp_path / "data")
    assert states(store) == {"data": ("whole", 2, 1)}
    assert store.sql("SELECT count(*) FROM source_contents").rows == [(1,)]


@pytest.mark.parametrize("together", [True, False])
def test_rows_of_a_folder_outlive_its_root(store: casstore.Store, tmp_path: Path, together: bool) -> None:
    """A folder whose root is adopted before anybody looks at its rows has them all the same."""
    one = fill(tmp_path / "data" / "deep" / "one")
    fill(one / "sub", 1)
    fill(tmp_path / "data", 1)
    if together:
        found = [row.sample for row in store.scan(one, tmp_path / "data")]
        assert found == [
            *("one/0000.png", "one/0001.png", "one/0002.png", "one/sub/0000.png", "data/0000.png"),
            *(f"data/deep/one/{name}.png" for name in ("0000", "0001", "0002", "sub/0000")),
        ]
    else:
        rows = store.scan(one)
        store.scan(tmp_path / "data")
        assert [(row.sample, row.path, row.content is None) for row in rows] == [
            (name, str(one / name), False) for name in ("0000.png", "0001.png", "0002.png", "sub/0000.png")
        ]


def test_a_folder_beside_with_the_same_beginning_is_not_adopted(store: casstore.Store, tmp_path: Path) -> None:
    """data-2 isn't in data."""
    for name in ("data", "data-2"):
        store.scan(fill(tmp_path / name))
    fill(tmp_path / "data" / "x")
    store.scan(tmp_path / "data" / "x")
    assert paths(store) == {name: str(tmp_path / name) for name in ("data", "data-2")}


def test_equal_folder_names_get_numbers(store: casstore.Store, tmp_path: Path) -> None:
    """Roots are told apart by name, also where their folders have the same."""
    for name in ("1", "2", "3"):
        store.scan(fill(tmp_path / name / "set"))
    assert list(states(store)) == ["set", "set-2", "set-3"]


def test_a_sub_folder_of_a_root_stays_in_it(store: casstore.Store, tmp_path: Path) -> None:
    """A scan of less makes no root, and leaves the rest as it was noted."""
    fill(tmp_path / "data")
    sub = fill(tmp_path / "data" / "sub")
    store.scan(tmp_path / "data")
    empty(tmp_path / "data", 1)
    empty(sub, 1)
    assert store.scan(sub).report.missing == 1
    assert states(store) == {"data": ("whole", 5, 1)}


@pytest.mark.parametrize("form", ["data", "./data/", "./x/../data", "../{0}/data", "{1}/data/sub/.."])
def test_every_form_of_a_path_is_one_root(
    store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """Relative, with dots, absolute: the same folder (case T44)."""
    fill(tmp_path / "data" / "sub")
    (tmp_path / "x").mkdir()
    store.scan(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    store.scan(form.format(tmp_path.name, tmp_path))
    assert paths(store) == {"data": str(tmp_path / "data")}


def test_a_folder_on_a_disk_that_folds_case_is_one_root(
    store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where capitals don't count, a folder is spelled as the disk spells it, however it was asked for (case T42)."""
    data = fill(tmp_path / "Data")
    store.scan(data)
    monkeypatch.setattr("casstore.fsio.same_file", lambda path, other: path.casefold() == other.casefold())
    monkeypatch.setattr("casstore.sources.scan.fsio.is_directory", lambda path: True)
    (tmp_path / "data").symlink_to(data)  # what such a disk does
    monkeypatch.setattr("casstore.fsio.names_in", lambda path: [n for n in os.listdir(path) if n != "data"])
    assert [row.sample for row in store.scan(tmp_path / "data")] == ["0000.png", "0001.png", "0002.png"]
    assert paths(store) == {"Data": str(data)}


# -- moving ----------------------------------------------------------------------------------------------------------


def test_moving_a_dataset_costs_no_encode(store: casstore.Store, tmp_path: Path) -> None:
    """The same files under another path are hits, whether the store was told or not (case T44)."""
    encoder = FakeEncoder()
    pictures(tmp_path / "data", 4)
    build(store, tmp_path / "data", encoder)
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    report = build(store, tmp_path / "elsewhere", encoder)
    assert (report.hits, report.encoded, len(encoder.seen)) == (4, 0, 4)


def test_renaming_a_folder_costs_no_encode(store: casstore.Store, tmp_path: Path) -> None:
    """Files under a folder's new name are hits; under the old one they are missing (case T44)."""
    encoder = FakeEncoder()
    pictures(tmp_path / "data" / "old", 4)
    build(store, tmp_path / "data", encoder)
    (tmp_path / "data" / "old").rename(tmp_path / "data" / "new")
    report = build(store, tmp_path / "data", encoder)
    assert (report.hits, report.encoded, len(encoder.seen)) == (4, 0, 4)
    assert states(store) == {"data": ("whole", 4, 4)}


def test_a_root_that_was_moved_is_known_at_its_new_place(
    store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After `move_root` nothing is hashed, and the name stays."""
    clock_ahead(monkeypatch)
    store.scan(fill(tmp_path / "data"))
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    root = store.move_root("data", tmp_path / "elsewhere")
    assert (root.name, root.path, root.files) == ("data", str(tmp_path / "elsewhere"), 3)
    report = store.scan(tmp_path / "elsewhere").report
    assert (report.hashed, report.missing, report.warnings) == (0, 0, ())
    assert states(store) == {"data": ("whole", 3, 0)}


def test_a_root_may_be_named_by_its_path(store: casstore.Store, tmp_path: Path) -> None:
    """Its name or its old path, both say which one is meant."""
    store.scan(fill(tmp_path / "data"))
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    assert store.move_root(str(tmp_path / "data"), tmp_path / "elsewhere").name == "data"


@pytest.mark.parametrize("place", ["empty", "others", "touched", "nowhere", "file", "store"])
def test_a_move_to_where_the_files_are_not_is_refused(store: casstore.Store, tmp_path: Path, place: str) -> None:
    """Nothing is changed unless 9 of 10 files are there with their size and time; the message names the place."""
    store.scan(fill(tmp_path / "data"))
    (tmp_path / "empty").mkdir()
    fill(tmp_path / "others", text="of another length")
    shutil.copytree(tmp_path / "data", tmp_path / "touched", copy_function=shutil.copyfile)
    for path in (tmp_path / "touched").iterdir():
        os.utime(path, ns=(1, 1))
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UsageError, match=str(tmp_path / place)):
        store.move_root("data", tmp_path / place)
    assert paths(store) == {"data": str(tmp_path / "data")}


def test_nine_of_ten_files_are_enough_for_a_move(store: casstore.Store, tmp_path: Path) -> None:
    """Some may have changed on the way."""
    store.scan(fill(tmp_path / "data", 20))
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    empty(tmp_path / "elsewhere", 2)
    assert store.move_root("data", tmp_path / "elsewhere").path == str(tmp_path / "elsewhere")
    empty(tmp_path / "elsewhere", 1)
    (tmp_path / "elsewhere").rename(tmp_path / "again")
    with pytest.raises(UsageError):
        store.move_root("data", tmp_path / "again")


@pytest.mark.parametrize("inside", ["above", "below", "same"])
def test_a_move_into_another_root_is_refused(store: casstore.Store, tmp_path: Path, inside: str) -> None:
    """Roots never lie in each other."""
    data = fill(tmp_path / "data")
    store.scan(data)
    copy = {"above": tmp_path / "b", "below": tmp_path / "b" / "x", "same": tmp_path / "b"}[inside]
    shutil.copytree(data, copy)
    store.scan(fill(tmp_path / "b" / "root" if inside == "above" else tmp_path / "b", text="b"))
    with pytest.raises(UsageError, match="root"):
        store.move_root("data", copy)
    assert paths(store)["data"] == str(data)


def test_an_unknown_root_is_refused_with_the_names_there_are(store: casstore.Store, tmp_path: Path) -> None:
    """The message for a wrong name says which are right."""
    store.scan(fill(tmp_path / "data"))
    for call in (lambda: store.move_root("dat", tmp_path), lambda: store.confirm_root("dat")):
        with pytest.raises(UsageError, match=r"'dat'.*data"):
            call()


# -- loss ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "lost", "state"), [(300, 100, "whole"), (300, 101, "suspicious"),
                                                      (1200, 120, "whole"), (1200, 121, "suspicious")])  # fmt: skip
def test_a_great_loss_is_suspicious(store: casstore.Store, tmp_path: Path, count: int, lost: int, state: str) -> None:
    """More than 100 files and more than a tenth of a root aren't noted as missing; the warning names the command."""
    data = fill(tmp_path / "data", count)
    store.scan(data)
    empty(data, lost)
    found = store.scan(data)
    assert (len(found), found.report.files) == (count - lost, count - lost)
    if state == "whole":
        assert (found.report.missing, found.report.warnings) == (lost, ())
        assert states(store) == {"data": ("whole", count - lost, lost)}
    else:
        assert found.report.missing == 0
        assert "casstore roots confirm data" in found.report.warnings[0]
        assert states(store) == {"data": ("suspicious", count, 0)}


def test_what_is_suspicious_stays_so_until_it_is_confirmed_or_back(store: casstore.Store, tmp_path: Path) -> None:
    """Every scan says it again; when the files are back all is well."""
    data = fill(tmp_path / "data", 150)
    store.scan(data)
    data.rename(tmp_path / "kept")
    (tmp_path / "kept" / "sub").mkdir()
    data.mkdir()
    shutil.move(tmp_path / "kept" / "0000.png", data)
    (tmp_path / "kept").rename(tmp_path / "gone")
    for _ in range(2):
        report = store.scan(data).report
        assert (report.missing, len(report.warnings)) == (0, 1)
    for path in (tmp_path / "gone").glob("*.png"):
        path.rename(data / path.name)
    assert store.scan(data).report.warnings == ()
    assert states(store) == {"data": ("whole", 150, 0)}


def test_many_renamed_files_are_not_suspicious(store: casstore.Store, tmp_path: Path) -> None:
    """What is gone from one name and found under another isn't lost, however much it is (case T44)."""
    fill(tmp_path / "data" / "old", 150)
    store.scan(tmp_path / "data")
    (tmp_path / "data" / "old").rename(tmp_path / "data" / "new")
    report = store.scan(tmp_path / "data").report
    assert (report.missing, report.new, report.warnings) == (150, 150, ())
    assert states(store) == {"data": ("whole", 150, 150)}


@pytest.mark.parametrize("options", [{}, {"rehash": True}])
def test_copies_that_stay_are_not_what_was_lost(
    store: casstore.Store, tmp_path: Path, options: dict[str, bool]
) -> None:
    """Each lost file has to be found again: that others hold the same, or that one new one does, isn't enough."""
    data = fill(tmp_path / "data", 0)
    for number in range(300):
        (data / f"{number:04}.png").write_bytes(b"the same")
    store.scan(data)
    empty(data, 150)
    (data / "new.png").write_bytes(b"the same")
    report = store.scan(data, **options).report
    assert (report.missing, len(report.warnings)) == (0, 1)


def test_files_that_moved_to_another_root_are_not_suspicious(store: casstore.Store, tmp_path: Path) -> None:
    """What the store has found elsewhere, at any scan, isn't lost."""
    old, new = fill(tmp_path / "old", 150), tmp_path / "new"
    store.scan(old)
    old.rename(new)
    old.mkdir()
    shutil.move(new / "0000.png", old)
    store.scan(new)
    assert "casstore roots confirm" in store.scan(old).report.warnings[0]  # another folder is at that place
    store.confirm_root("old", yes=True)
    assert states(store) == {"old": ("whole", 1, 149), "new": ("whole", 149, 0)}


def test_a_small_part_of_a_root_is_judged_by_itself(store: casstore.Store, tmp_path: Path) -> None:
    """The loss of a sub-folder's files is held against that folder when only it is scanned."""
    fill(tmp_path / "data" / "big", 1500)
    small = fill(tmp_path / "data" / "small", 130)
    store.scan(tmp_path / "data")
    empty(small, 120)
    assert len(store.scan(small).report.warnings) == 1
    assert store.scan(tmp_path / "data").report.missing == 120


# -- confirming ------------------------------------------------------------------------------------------------------


def test_confirming_notes_what_is_gone(store: casstore.Store, tmp_path: Path) -> None:
    """A dry run counts and changes nothing; with yes=True all that is gone is noted, and the root is whole."""
    data = fill(tmp_path / "data", 150)
    store.scan(data)
    empty(data, 140)
    store.scan(data)
    dry = store.confirm_root("data")
    assert (dry.missing, dry.files, states(store)) == (140, 10, {"data": ("suspicious", 150, 0)})
    assert store.confirm_root("data", yes=True) == dry
    assert states(store) == {"data": ("whole", 10, 140)}
    report = store.scan(data).report
    assert (report.missing, report.warnings) == (0, ())


def test_a_root_that_is_gone_can_be_confirmed(store: casstore.Store, tmp_path: Path) -> None:
    """A folder that was deleted has lost all its files, sub-folders' too."""
    data = fill(tmp_path / "data")
    fill(data / "sub")
    store.scan(data)
    shutil.rmtree(data)
    assert store.confirm_root(str(data), yes=True).missing == 6
    assert states(store) == {"data": ("whole", 0, 6)}


def test_what_cannot_be_listed_cannot_be_confirmed(
    store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows what is in a folder without permission, so nothing is noted."""
    data = fill(tmp_path / "data")
    fill(data / "sub")
    store.scan(data)
    empty(data, 1)
    real = os.listdir

    def listdir(place: Any) -> list[str]:
        if str(place).endswith("sub"):
            raise PermissionError(13, "Permission denied")
        return real(place)

    monkeypatch.setattr(os, "listdir", listdir)
    with pytest.raises(StorePermissionError, match="sub"):
        store.confirm_root("data", yes=True)
    assert states(store) == {"data": ("whole", 6, 0)}


def test_files_are_missed_under_every_ending_when_confirmed(store: casstore.Store, tmp_path: Path) -> None:
    """A confirmation isn't about one filter."""
    data = fill(tmp_path / "data")
    (data / "a.mp4").write_bytes(b"video")
    store.scan(data)
    store.scan(data, extensions=[".mp4"])
    (data / "a.mp4").unlink()
    assert store.confirm_root("data", yes=True).missing == 1


# -- another folder, or another disk, at a root's place --------------------------------------------------------------


def test_a_folder_made_anew_with_other_files_makes_nothing_missing(store: casstore.Store, tmp_path: Path) -> None:
    """The root is unavailable, and what is there now is in the rows all the same; confirming it makes it the root."""
    data = fill(tmp_path / "data")
    store.scan(data)
    data.rename(tmp_path / "kept")
    fill(data, 1, "another")
    (data / "0000.png").rename(data / "new.png")
    found = store.scan(data)
    assert [row.sample for row in found] == ["new.png"]
    assert (found.report.missing, "casstore roots confirm data" in found.report.warnings[0]) == (0, True)
    assert states(store) == {"data": ("unavailable", 4, 0)}
    assert store.scan(data).report.missing == 0
    store.confirm_root("data", yes=True)
    assert states(store) == {"data": ("whole", 1, 3)}
    assert store.scan(data).report.warnings == ()


def test_a_folder_made_anew_with_the_same_files_is_the_root(store: casstore.Store, tmp_path: Path) -> None:
    """A copy with its times, at the same place, is taken for what it is; its inode is noted."""
    data = fill(tmp_path / "data", 20)
    store.scan(data)
    data.rename(tmp_path / "kept")
    shutil.copytree(tmp_path / "kept", data)
    empty(data, 2)
    report = store.scan(data).report
    assert (report.missing, report.warnings) == (2, ())
    assert store.sql("SELECT inode FROM roots").rows == [(data.stat().st_ino,)]


def test_a_root_that_is_back_is_whole(store: casstore.Store, tmp_path: Path) -> None:
    """When the right folder is at its place again, nothing has to be confirmed."""
    data = fill(tmp_path / "data")
    store.scan(data)
    data.rename(tmp_path / "kept")
    data.mkdir()
    assert len(store.scan(data).report.warnings) == 1
    data.rmdir()
    (tmp_path / "kept").rename(data)
    report = store.scan(data).report
    assert (report.missing, report.warnings, states(store)) == (0, (), {"data": ("whole", 3, 0)})


NEW_NAMESPACE = 0x00020000
PRIVATE = 1 << 18 | 1 << 14


def with_mounts(work: Callable[[Callable[..., None], Callable[[Path], None]], Any]) -> Any:
    """What work(mount, unmount) returns in a child whose mounts nobody else sees; or a skip with the reason."""
    libc = ctypes.CDLL(None, use_errno=True)

    def child() -> Any:
        def checked(result: int) -> None:
            if result:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

        try:
            checked(libc.unshare(NEW_NAMESPACE))
            checked(libc.mount(b"none", b"/", None, PRIVATE, None))
        except OSError as error:
            return {"skip": f"no private mounts here: {error}"}
        return work(
            lambda place, name=b"a-disk": checked(libc.mount(name, os.fsencode(place), b"tmpfs", 0, None)),
            lambda place: checked(libc.umount(os.fsencode(place))),
        )

    found = in_child(child)
    if isinstance(found, dict) and "skip" in found:
        pytest.skip(found["skip"])
    return found


def new_store(tmp_path: Path) -> casstore.Store:
    return casstore.open(tmp_path / "store", create=True, durability="off")


def test_a_disk_that_is_not_mounted_makes_nothing_missing(tmp_path: Path) -> None:
    """An empty mount point isn't an empty dataset; when the disk is mounted again nothing has happened."""
    data = tmp_path / "data"
    data.mkdir()

    def work(mount: Callable[..., None], unmount: Callable[[Path], None]) -> Any:
        mount(data)
        fill(data)
        store = new_store(tmp_path)
        store.scan(data)
        unmount(data)
        away = store.scan(data)
        found = [len(away), away.report.missing, len(away.report.warnings), states(store)["data"]]
        mount(data, b"another")  # an empty one
        again = store.scan(data)
        found += [again.report.missing, len(again.report.warnings)]
        unmount(data)
        store.confirm_root("data", yes=True)
        return [*found, states(store)["data"], len(store.scan(data).report.warnings)]

    assert with_mounts(work) == [0, 0, 1, ["unavailable", 3, 0], 0, 1, ["whole", 0, 3], 0]


def test_a_disk_that_is_mounted_again_elsewhere_in_the_kernels_numbers_is_the_same(tmp_path: Path) -> None:
    """Device numbers change from mount to mount; the same files on the same disk are the same root."""
    data, other = tmp_path / "data", tmp_path / "other"
    data.mkdir(), other.mkdir()

    def work(mount: Callable[..., None], unmount: Callable[[Path], None]) -> Any:
        mount(data)
        fill(data)
        store = new_store(tmp_path)
        store.scan(data)
        shutil.copytree(data, tmp_path / "kept")
        unmount(data)
        mount(other)  # takes the device number
        mount(data)
        shutil.copytree(tmp_path / "kept", data, dirs_exist_ok=True)
        empty(data, 0)
        report = store.scan(data).report
        return [report.files, report.missing, len(report.warnings), states(store)["data"]]

    assert with_mounts(work) == [3, 0, 0, ["whole", 3, 0]]


def test_a_disk_inside_a_root_that_is_not_mounted_makes_nothing_missing(tmp_path: Path) -> None:
    """Only what is beside the mount point is judged; the warning names it, and confirming notes the rest."""
    disk = tmp_path / "data" / "disk"
    disk.mkdir(parents=True)
    fill(tmp_path / "data")

    def work(mount: Callable[..., None], unmount: Callable[[Path], None]) -> Any:
        mount(disk)
        fill(disk)
        fill(disk / "sub")
        store = new_store(tmp_path)
        store.scan(tmp_path / "data")
        unmount(disk)
        empty(tmp_path / "data", 1)
        away = store.scan(tmp_path / "data")
        found = [len(away), away.report.missing, str(disk) in away.report.warnings[0], states(store)["data"]]
        found += [store.scan(tmp_path / "data").report.missing]
        store.confirm_root("data", yes=True)
        return [*found, states(store)["data"], len(store.scan(tmp_path / "data").report.warnings)]

    assert with_mounts(work) == [2, 1, True, ["whole", 8, 1], 0, ["whole", 2, 7], 0]


@pytest.mark.parametrize("trust", [False, True])
def test_a_link_that_leads_nowhere_makes_nothing_missing(
    store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trust: bool
) -> None:
    """What is behind a link to a disk that isn't mounted isn't deleted; a warning says so until it is confirmed."""
    clock_ahead(monkeypatch)
    fill(tmp_path / "data", 1)
    fill(tmp_path / "disk" / "photos")
    fill(tmp_path / "disk" / "photos" / "sub")
    (tmp_path / "data" / "link").symlink_to(tmp_path / "disk" / "photos")
    store.scan(tmp_path / "data")
    (tmp_path / "disk" / "photos").rename(tmp_path / "away")
    found = store.scan(tmp_path / "data", trust=trust)
    assert ([row.sample for row in found], found.report.missing) == (["0000.png"], 0)
    assert str(tmp_path / "data" / "link") in found.report.warnings[0]
    (tmp_path / "away").rename(tmp_path / "disk" / "photos")
    report = store.scan(tmp_path / "data").report
    assert (report.files, report.hashed, report.warnings) == (7, 0, ())
    shutil.rmtree(tmp_path / "disk")
    assert store.confirm_root("data", yes=True).missing == 6
    assert store.scan(tmp_path / "data", trust=trust).report.warnings == ()


def test_a_disk_mounted_over_known_files_makes_nothing_missing(tmp_path: Path) -> None:
    """What lies below a mount is hidden, not deleted; what is on the disk is found."""
    disk = fill(tmp_path / "data" / "disk")
    fill(disk / "sub")

    def work(mount: Callable[..., None], unmount: Callable[[Path], None]) -> Any:
        store = new_store(tmp_path)
        store.scan(tmp_path / "data")
        mount(disk)
        (disk / "new.png").write_bytes(b"new")
        over = store.scan(tmp_path / "data")
        found = [[row.sample for row in over], over.report.missing, len(over.report.warnings)]
        unmount(disk)
        back = store.scan(tmp_path / "data")
        return [*found, len(back), back.report.missing, len(back.report.warnings), states(store)["data"]]

    assert with_mounts(work) == [["disk/new.png"], 0, 1, 6, 1, 0, ["whole", 6, 1]]


# -- the command line ------------------------------------------------------------------------------------------------


def roots(store: casstore.Store, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """(exit code, output, errors) of `casstore roots ...`"""
    capsys.readouterr()
    code = run(["roots", *arguments, "--store", store.path])
    return code, *capsys.readouterr()


def test_ls_shows_every_root_and_fails_if_one_is_doubtful(
    store: casstore.Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 0 if all are whole, else 1; one line each, or one JSON object and a summary."""
    assert roots(store, capsys, "ls")[0] == 0
    store.scan(fill(tmp_path / "a"))
    data = fill(tmp_path / "b", 150)
    store.scan(data)
    code, out, _ = roots(store, capsys, "ls")
    assert (code, len(out.splitlines())) == (0, 3)
    empty(data, 140)
    store.scan(data)
    code, out, _ = roots(store, capsys, "ls", "--json")
    first, second, summary = [json.loads(line) for line in out.splitlines()]
    assert (code, summary) == (1, {"roots": 2})
    assert {name: first[name] for name in ("name", "path", "state", "files", "missing")} == {
        "name": "a", "path": str(tmp_path / "a"), "state": "whole", "files": 3, "missing": 0,
    }  # fmt: skip
    assert (second["state"], second["files"]) == ("suspicious", 150)
    code, out, _ = roots(store, capsys, "ls")
    assert code == 1 and "suspicious" in out


def test_confirm_is_a_dry_run_without_yes(
    store: casstore.Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says what it would do and how to do it; with --yes it does, and the root is whole."""
    data = fill(tmp_path / "data", 150)
    store.scan(data)
    empty(data, 140)
    store.scan(data)
    code, out, _ = roots(store, capsys, "confirm", "data")
    assert code == 0 and "140 files would be" in out and "casstore roots confirm data --yes" in out
    code, out, _ = roots(store, capsys, "confirm", "data", "--json")
    assert (code, json.loads(out)) == (
        0, {"name": "data", "path": str(data), "missing": 140, "files": 10, "done": False}
    )  # fmt: skip
    assert roots(store, capsys, "ls")[0] == 1
    code, out, _ = roots(store, capsys, "confirm", "data", "--yes")
    assert code == 0 and "140 files noted as missing, 10 left" in out
    assert roots(store, capsys, "ls")[0] == 0


def test_move_says_where_a_root_is(
    store: casstore.Store, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative path counts from here; a refusal is exit code 2, and says why."""
    store.scan(fill(tmp_path / "data"))
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path)
    code, out, _ = roots(store, capsys, "move", "data", "./elsewhere", "--json")
    assert (code, json.loads(out)["path"]) == (0, str(tmp_path / "elsewhere"))
    (tmp_path / "empty").mkdir()
    code, out, errors = roots(store, capsys, "move", "data", "empty")
    assert (code, out) == (2, "") and str(tmp_path / "empty") in errors
    assert roots(store, capsys, "move", "nobody", "empty")[0] == 2
    assert roots(store, capsys, "confirm", "nobody")[0] == 2


def test_a_quick_check_of_an_unavailable_root_makes_nothing_missing(
    store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trust is in files, not in the loss of them."""
    clock_ahead(monkeypatch)
    data = fill(tmp_path / "data")
    store.scan(data)
    data.rename(tmp_path / "kept")
    data.mkdir()
    report = store.scan(data, trust=True).report
    assert (report.missing, len(report.warnings), states(store)) == (0, 1, {"data": ("unavailable", 3, 0)})


def test_nothing_is_opened_to_know_a_root_again(
    store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Size and mtime of at most 100 files say whether a folder is the root."""
    data = fill(tmp_path / "data", 150)
    store.scan(data)
    data.rename(tmp_path / "elsewhere")
    opened, looked = spy(monkeypatch, READ), spy(monkeypatch, "casstore.sources.losses._is_there")
    store.move_root("data", tmp_path / "elsewhere")
    assert (opened, len(looked)) == ([], 100)
