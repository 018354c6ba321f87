"""A quick check: known files aren't looked at, new ones are found, and nothing counts as checked that wasn't."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from kit import FakeEncoder, build, clock_ahead, picture, spy
from sources.watching import LISTS, OPENS, STATS, traced_scan

import casstore
from casstore.errors import UsageError
from casstore.identity.digests import file_digest
from casstore.sources.walk import Walk

READ = "casstore.sources.hashing.read_source"
FOLDERS = ("", "x", "x/y", "z")


def fill(folder: Path, count: int = 3, folders: tuple[str, ...] = FOLDERS) -> Path:
    """Small files in some folders."""
    for name in folders:
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            (folder / name / f"{number}.png").write_bytes(f"{name} {number}".encode())
    return folder


@pytest.fixture
def data(store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that was scanned when everything in it was settled."""
    clock_ahead(monkeypatch)
    folder = fill(tmp_path / "data")
    store.scan(folder)
    return folder


def held(scan: Any) -> dict[str, bytes | None]:
    return {row.sample: row.content and row.content.digest for row in scan}


def listed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The directories that are listed from now on, below the root."""
    real, found = Walk._list, list[str]()

    def watched(self: Walk, listing: Any, *arguments: Any) -> Any:
        found.append(listing.relpath)
        return real(self, listing, *arguments)

    monkeypatch.setattr(Walk, "_list", watched)
    return found


# -- what it costs ---------------------------------------------------------------------------------------------------


def test_no_known_file_is_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a stat nor an open of a file, and no listing of a folder in which no name has changed (case T57)."""
    clock_ahead(monkeypatch)
    data = fill(tmp_path / "data", 50)
    with casstore.open(tmp_path / "store", create=True, durability="off") as store:
        store.scan(data)
    found = traced_scan(tmp_path / "store", data, trust=True)
    assert (found.files, found.hashed, found.trusted) == (200, 0, True)
    assert found.count(STATS + OPENS, ".png") == 0
    assert found.count(LISTS) == 0
    assert len(found.calls) <= 8 * len(FOLDERS)


def test_a_new_file_costs_one_listing_and_nothing_of_its_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the folder with a new name is listed; only the new file is looked at and opened."""
    clock_ahead(monkeypatch)
    data = fill(tmp_path / "data", 50)
    with casstore.open(tmp_path / "store", create=True, durability="off") as store:
        store.scan(data)
    (data / "x" / "new.png").write_bytes(b"new")
    found = traced_scan(tmp_path / "store", data, trust=True)
    assert (found.files, found.hashed) == (201, 1)
    assert {path for call, path in found.calls if path.endswith(".png")} == {str(data / "x" / "new.png")}
    assert {path for call, path in found.calls if call in LISTS} == {str(data / "x")}


def test_the_environment_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CASSTORE_TRUST=1 is trust=True where nothing else is said."""
    clock_ahead(monkeypatch)
    data = fill(tmp_path / "data")
    with casstore.open(tmp_path / "store", create=True, durability="off") as store:
        store.scan(data)
    found = traced_scan(tmp_path / "store", data, env={"CASSTORE_TRUST": "1"})
    assert (found.trusted, found.count(STATS + OPENS, ".png")) == (True, 0)


@pytest.mark.parametrize("value", ["", "0"])
def test_an_environment_that_says_no_is_honest(
    store: casstore.Store, data: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    """CASSTORE_TRUST=0, or empty, changes nothing."""
    monkeypatch.setenv("CASSTORE_TRUST", value)
    assert not store.scan(data).report.trusted


def test_what_the_call_says_counts_more_than_the_environment(
    store: casstore.Store, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """trust=False and rehash=True look at every file, whatever the environment says."""
    monkeypatch.setenv("CASSTORE_TRUST", "1")
    assert not store.scan(data, trust=False).report.trusted
    report = store.scan(data, rehash=True).report
    assert (report.trusted, report.hashed) == (False, 12)


def test_trusting_and_hashing_all_at_once_is_refused(store: casstore.Store, data: Path) -> None:
    """Nobody can believe the files and read them anyway."""
    with pytest.raises(UsageError, match="trust"):
        store.scan(data, trust=True, rehash=True)


# -- what it finds ---------------------------------------------------------------------------------------------------


def test_new_files_are_found_and_deleted_ones_noted(store: casstore.Store, data: Path) -> None:
    """Names are believed as they are listed: those that are new are hashed, those that are gone are missing."""
    (data / "x" / "new.png").write_bytes(b"new")
    fill(data, 1, ("z/deep",))
    (data / "0.png").unlink()
    shutil.rmtree(data / "x" / "y")
    found = store.scan(data, trust=True)
    assert (found.report.new, found.report.hashed, found.report.missing, found.report.files) == (2, 2, 4, 10)
    assert held(found)["x/new.png"] == file_digest(b"new")
    assert "0.png" not in held(found) and "x/y/0.png" not in held(found) and "z/deep/0.png" in held(found)


def test_what_it_has_found_is_what_an_honest_scan_finds(store: casstore.Store, data: Path) -> None:
    """A scan of everything has the same rows afterwards, and nothing to hash."""
    (data / "x" / "new.png").write_bytes(b"new")
    (data / "0.png").unlink()
    quick = held(store.scan(data, trust=True))
    honest = store.scan(data)
    assert (held(honest), honest.report.hashed, honest.report.missing) == (quick, 0, 0)


def test_an_edit_is_not_noticed_and_the_report_says_that_it_was_a_quick_check(
    store: casstore.Store, data: Path
) -> None:
    """An edited file has its old content, `report.trusted` says why (case T1b), and the next honest scan notices it."""
    before = held(store.scan(data))
    (data / "0.png").write_bytes(b"edited")
    quick = store.scan(data, trust=True)
    assert (held(quick), quick.report.trusted, quick.report.edited) == (before, True, 0)
    honest = store.scan(data)
    assert (honest.report.trusted, honest.report.edited) == (False, 1)
    assert held(honest)["0.png"] == file_digest(b"edited")


def test_trusted_files_do_not_count_as_checked(store: casstore.Store, data: Path) -> None:
    """An edit in a folder that a quick check had to list, since another name was new, is noticed by the next scan."""
    (data / "0.png").write_bytes(b"edited")
    (data / "new.png").write_bytes(b"new")
    assert store.scan(data, trust=True).report.hashed == 1
    assert store.scan(data, trust=True).report.hashed == 0
    found = store.scan(data)
    assert (found.report.edited, held(found)["0.png"]) == (1, file_digest(b"edited"))


def test_unsettled_files_stay_unsettled(store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was too young to be trusted by an honest scan is hashed by the next one, quick checks between or not."""
    data = fill(tmp_path / "data")
    store.scan(data)
    store.scan(data, trust=True)
    opened = spy(monkeypatch, READ)
    store.scan(data)
    assert len(opened) == 12


def test_a_file_that_returns_is_hashed(store: casstore.Store, data: Path, tmp_path: Path) -> None:
    """A file that was missing is a new one: nobody knows what happened to it meanwhile."""
    (data / "0.png").rename(tmp_path / "kept")
    store.scan(data, trust=True)
    (tmp_path / "kept").write_bytes(b"changed elsewhere")
    (tmp_path / "kept").rename(data / "0.png")
    assert held(store.scan(data, trust=True))["0.png"] == file_digest(b"changed elsewhere")


def test_a_first_scan_hashes_everything(store: casstore.Store, tmp_path: Path) -> None:
    """Where nothing is known there is nothing to trust."""
    assert store.scan(fill(tmp_path / "data"), trust=True).report.hashed == 12


def test_other_endings_are_listed_again(store: casstore.Store, data: Path) -> None:
    """Files with endings that no scan has looked for are found, though no name has changed."""
    (data / "x" / "a.jpg").write_bytes(b"jpg")
    store.scan(data, extensions=[".png"])
    found = store.scan(data, extensions=[".png", ".jpg"], trust=True)
    assert (found.report.files, found.report.hashed) == (13, 1)


# -- folders ---------------------------------------------------------------------------------------------------------


def test_only_folders_whose_names_changed_are_listed(
    store: casstore.Store, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder with the mtime and inode that it had isn't listed again."""
    (data / "x" / "new.png").write_bytes(b"new")
    found = listed(monkeypatch)
    store.scan(data, trust=True)
    assert found == ["x"]


def test_a_folder_that_changed_just_now_is_listed_again(
    store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another name may come within the same tick of the clock, so a young folder's mtime says nothing."""
    data = fill(tmp_path / "data")
    when = data.stat().st_mtime_ns
    store.scan(data)
    (data / "new.png").write_bytes(b"new")
    os.utime(data, ns=(when, when))
    found = listed(monkeypatch)
    assert store.scan(data, trust=True).report.hashed == 1
    assert sorted(found) == sorted(FOLDERS)


def test_a_folder_that_vanished_long_ago_is_not_looked_for(store: casstore.Store, data: Path) -> None:
    """A folder that was deleted, and noted as missing, is neither a row nor a failure of a quick check."""
    shutil.rmtree(data / "x")
    honest = store.scan(data)
    quick = store.scan(data, trust=True)
    assert (quick.report.failed, quick.report.files) == (0, 6)
    assert list(quick) == list(honest)


def test_a_folder_that_became_a_file_is_not_looked_for(store: casstore.Store, data: Path) -> None:
    """What is a file now has no sub-folder's rows."""
    shutil.rmtree(data / "z")
    (data / "z").write_bytes(b"a file")
    honest = store.scan(data)
    quick = store.scan(data, trust=True)
    assert (quick.report.failed, list(quick)) == (0, list(honest))


def test_links_to_folders_are_followed(store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files behind a link are known and found under the link's path; a folder with a name of its own goes first."""
    clock_ahead(monkeypatch)
    data, outside = fill(tmp_path / "data"), fill(tmp_path / "outside", folders=("", "deep"))
    (data / "link").symlink_to(outside)
    (data / "a").symlink_to(data / "x")
    honest = store.scan(data)
    (outside / "deep" / "new.png").write_bytes(b"new")
    quick = store.scan(data, trust=True)
    assert set(held(quick)) == set(held(honest)) | {"link/deep/new.png"}
    assert quick.report.missing == 0


def test_a_store_made_in_a_known_folder_is_not_entered(store: casstore.Store, data: Path) -> None:
    """A folder that has become a store since isn't searched by a quick check either."""
    shutil.rmtree(data / "z")
    casstore.open(data / "z", create=True, durability="off").close()
    (data / "z" / "a.png").write_bytes(b"inside a store")
    assert "z/a.png" not in held(store.scan(data, trust=True))


def test_a_build_from_a_quick_check_encodes_what_is_new(
    store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One new picture among known ones is one encode."""
    clock_ahead(monkeypatch)
    data, encoder = tmp_path / "data", FakeEncoder()
    for number in range(3):
        picture(data / f"{number}.png", number)
    build(store, data, encoder)
    picture(data / "new.png", 9)
    plan = store.plan(store.scan(data, trust=True), encoder.recipe, resolution="64x64")
    assert store.build(plan, encoder).encoded == 1
    assert encoder.seen[3:] == ["new.png"]
