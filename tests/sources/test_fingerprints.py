"""Fingerprints of directories: what an unchanged folder costs, and that they never stand for anything else."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
from kit import clock_ahead, edit_in_place, spy
from sources.watching import LISTS, OPENS, STATS, trace_sql, traced_scan

import casstore
from casstore.identity.digests import file_digest
from casstore.index.sources import Stat
from casstore.sources import compare as comparing
from casstore.sources import folder as scanning
from casstore.sources import hashing

READ = "casstore.sources.hashing.read_source"
WRITES = ("INSERT", "UPDATE", "DELETE", "REPLACE")


def fill(folder: Path, count: int = 4, folders: tuple[str, ...] = ("", "x", "x/y")) -> Path:
    """Small files in some folders."""
    for name in folders:
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            (folder / name / f"{number}.png").write_bytes(f"{name} {number}".encode())
    return folder


def prints(store: casstore.Store) -> dict[tuple[str, str], bool]:
    """{(directory, filter): whether a fingerprint stands for it}"""
    query = (
        "SELECT d.relpath, p.filter, p.fingerprint IS NOT NULL FROM directory_prints p "
        "JOIN directories d ON d.id = p.directory_id"
    )
    return {(relpath, filter_): bool(known) for relpath, filter_, known in store.sql(query).rows}


def held(scan: Any) -> dict[str, bytes | None]:
    return {row.sample: row.content and row.content.digest for row in scan}


def names_asked_for(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The names whose rows are read, of each directory that is compared by its states."""
    asked: list[list[str]] = []
    real = comparing.named_in

    def named_in(connection: Any, directory_id: int, names: list[str]) -> Any:
        asked.append(sorted(names))
        return real(connection, directory_id, names)

    monkeypatch.setattr(comparing, "named_in", named_in)
    return asked


# -- what an unchanged folder costs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3])
def test_an_unchanged_scan_reads_no_source_and_writes_one_row_per_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Nothing is selected from the sources, and each root's row is all that is written."""
    clock_ahead(monkeypatch)
    statements = trace_sql(monkeypatch)
    with casstore.open(tmp_path / "store", create=True, durability="off") as store:
        folders = [fill(tmp_path / f"data{number}") for number in range(count)]
        for folder in folders:
            store.scan(folder)
        statements.clear()
        assert [store.scan(folder).report.hashed for folder in folders] == [0] * count
        ran = list(statements)
    assert [each for each in ran if "FROM sources" in each or "JOIN sources" in each] == []
    written = [each for each in ran if each.startswith(WRITES)]
    assert len(written) == count and all(each.startswith("UPDATE roots") for each in written)


def test_an_unchanged_file_costs_one_stat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most 1.05 stats per file, each folder is opened and listed once, and no file is opened."""
    clock_ahead(monkeypatch)
    folders = ("", *map(str, range(9)))
    data = fill(tmp_path / "data", 100, folders)
    with casstore.open(tmp_path / "store", create=True, durability="off") as store:
        store.scan(data)
    found = traced_scan(tmp_path / "store", data)
    assert (found.files, found.hashed) == (1000, 0)
    assert 1000 <= found.count(STATS) <= 1050
    assert found.count(OPENS, ".png") == 0
    assert (found.count(OPENS), found.count(LISTS)) == (10, 20)  # a listing ends with an empty part


def test_only_the_rows_of_what_differs_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where files were edited, added and deleted, the rows of the first and the last are read, and no others."""
    clock_ahead(monkeypatch)
    data = fill(tmp_path / "data")
    with casstore.open(tmp_path / "store", create=True, durability="off") as store:
        store.scan(data)
        (data / "x" / "0.png").write_bytes(b"edited")
        (data / "x" / "1.png").unlink()
        (data / "x" / "new.png").write_bytes(b"new")
        all_read = spy(monkeypatch, "casstore.sources.compare.usable_in")
        read = names_asked_for(monkeypatch)
        report = store.scan(data).report
        assert (report.hashed, report.new, report.edited, report.missing) == (2, 1, 1, 1)
        assert (read, all_read) == ([["0.png", "1.png"]], [])


# -- filters ---------------------------------------------------------------------------------------------------------


def test_each_filter_has_fingerprints_of_its_own(
    store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Endings in any order and case are one filter; others, and other rules of what counts, are others."""
    clock_ahead(monkeypatch)
    data = fill(tmp_path / "data", folders=("",))
    for extensions in ([".png", ".jpg"], [".JPG", ".png", ".png"], [".png"]):
        store.scan(data, extensions=extensions)
    store.scan(data, extensions=[".png"], ctime=False)
    store.scan(data, extensions=[".png"], inode=False)
    assert prints(store) == {("", name): True for name in (".jpg .png", ".png", ".png -ctime", ".png -inode")}
    for options in ({"extensions": [".jpg", ".png"]}, {"extensions": [".png"]}):
        compared = spy(monkeypatch, "casstore.sources.compare.usable_in")
        assert (store.scan(data, **options).report.hashed, compared) == (0, [])


def test_an_edit_behind_another_filters_scan_is_noticed(
    store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scan that doesn't look for a file vouches for nothing of it."""
    clock_ahead(monkeypatch)
    data = fill(tmp_path / "data", folders=("",))
    (data / "a.jpg").write_bytes(b"jpg")
    store.scan(data)
    store.scan(data, extensions=[".jpg"])
    edit_in_place(data / "0.png", b"0!")
    (data / "a.jpg").write_bytes(b"other")
    assert store.scan(data, extensions=[".jpg"]).report.edited == 1
    found = store.scan(data)
    assert (found.report.edited, found.report.hashed) == (1, 1)
    assert held(found)["0.png"] == file_digest(b"0!") and held(found)["a.jpg"] == file_digest(b"other")


def test_what_another_filter_has_seen_is_not_hashed_again(
    store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are shared: only the comparing is done for each filter."""
    clock_ahead(monkeypatch)
    data = fill(tmp_path / "data")
    store.scan(data)
    (data / "x" / "0.png").write_bytes(b"edited")
    assert store.scan(data, extensions=[".png"]).report.edited == 1
    found = store.scan(data)
    assert (found.report.hashed, held(found)["x/0.png"]) == (0, file_digest(b"edited"))


def test_a_file_lost_under_one_filter_is_lost_for_all(
    store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a scan with other endings has noted a file as missing and it comes back unchanged, every scan has it."""
    clock_ahead(monkeypatch)
    data = fill(tmp_path / "data", folders=("",))
    first = held(store.scan(data))
    (data / "0.png").rename(tmp_path / "kept")
    assert store.scan(data, extensions=[".png"]).report.missing == 1
    (tmp_path / "kept").rename(data / "0.png")
    assert held(store.scan(data)) == first
    assert held(store.scan(data, extensions=[".png"])) == first


@pytest.mark.parametrize("option", ["ctime", "inode"])
def test_what_does_not_count_is_not_looked_at(
    store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    """Where ctime or inode is switched off, a file that differs in that alone is taken as unchanged."""
    clock_ahead(monkeypatch)
    path = fill(tmp_path / "data", 1, ("",)) / "0.png"
    os.utime(path, ns=(10**18, 10**18))
    store.scan(path.parent, **{option: False})
    if option == "ctime":
        edit_in_place(path, b"!!")
    else:
        monkeypatch.setattr(os, "scandir", with_other_stats(os.scandir, inode=7))
    assert store.scan(path.parent, **{option: False}).report.hashed == 0
    assert store.scan(path.parent).report.hashed == 1


def test_without_ctime_the_mtime_says_whether_a_file_is_settled(store: casstore.Store, tmp_path: Path) -> None:
    """The racy rule goes by the time that is trusted: old mtimes settle a file only where ctime doesn't count."""
    data = fill(tmp_path / "data", 1, ("",))
    os.utime(data / "0.png", ns=(10**18, 10**18))
    settled = "SELECT settled FROM sources"
    store.scan(data)
    assert store.sql(settled).rows == [(0,)]
    store.scan(data, ctime=False)
    assert store.sql(settled).rows == [(1,)]


# -- what a fingerprint says -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def closing(entries: list[Any]) -> Iterator[Iterator[Any]]:
    yield iter(entries)


def changed(state: os.stat_result, inode: int) -> Any:
    """A state with another inode."""
    found = {name: getattr(state, name) for name in dir(state) if name.startswith("st_")}
    return SimpleNamespace(**found | {"st_ino": state.st_ino + inode})


def with_other_stats(real: Any, inode: int) -> Any:
    """A scandir whose entries have other inodes."""

    def entry(found: os.DirEntry[str]) -> Any:
        def stat() -> Any:
            return changed(found.stat(), inode)

        return SimpleNamespace(name=found.name, stat=stat, is_dir=found.is_dir, is_symlink=found.is_symlink)

    def scandir(place: Any) -> Any:
        with real(place) as entries:
            return closing([entry(found) for found in entries])

    return scandir


def test_the_order_of_a_listing_does_not_matter(
    store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory that is listed in another order has the same rows, and nothing is hashed."""
    clock_ahead(monkeypatch)
    data = fill(tmp_path / "data")
    first = list(store.scan(data))
    real = os.scandir
    for reverse in (False, True, True):

        def scandir(place: Any, reverse: bool = reverse) -> Any:
            with real(place) as entries:
                return closing(sorted(entries, key=lambda entry: entry.name, reverse=reverse))

        monkeypatch.setattr(os, "scandir", scandir)
        found = store.scan(data)
        assert (list(found), found.report.hashed) == (first, 0)


@pytest.mark.parametrize("kind", ["unsettled", "failing"])
def test_a_doubtful_file_keeps_its_directory_without_a_fingerprint(
    store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A file that is to be looked at again, or that can't be read, is in no fingerprint; other directories have one."""
    clock_ahead(monkeypatch)
    data = fill(tmp_path / "data", folders=("", "x"))
    if kind == "failing":
        (data / "x" / "link.png").symlink_to(tmp_path / "nowhere")
    else:
        real = Stat.of

        def of(cls: type[Stat], found: os.stat_result) -> Stat:
            state = real(found)
            young = found.st_ino == (data / "x" / "0.png").stat().st_ino
            return Stat(state.size, state.mtime_ns, state.ctime_ns + young * 10**12, state.inode)

        monkeypatch.setattr(Stat, "of", classmethod(of))
    store.scan(data)
    assert {relpath: known for (relpath, _), known in prints(store).items()} == {"": True, "x": False}
    opened = spy(monkeypatch, READ)
    store.scan(data)
    assert [Path(path).name for path in opened] == ["link.png" if kind == "failing" else "0.png"] * (
        kind == "unsettled"
    )


def test_a_file_that_changes_while_it_is_hashed_is_in_no_fingerprint(
    store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file whose state when it was opened isn't the one of the listing is looked at again."""
    clock_ahead(monkeypatch)
    data = fill(tmp_path / "data", folders=("",))
    real = scanning.Hasher.submit

    def submit(self: Any, found: Any) -> None:
        (data / "0.png").write_bytes(b"meanwhile")
        real(self, found)

    monkeypatch.setattr(scanning.Hasher, "submit", submit)
    assert held(store.scan(data))["0.png"] == file_digest(b"meanwhile")
    assert list(prints(store).values()) == [False]


def test_inodes_beyond_the_signed_numbers_are_known_again(
    store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inodes of 2^63 and more, beside times before 1970, are held and compared like any other."""
    clock_ahead(monkeypatch)
    data = fill(tmp_path / "data")
    os.utime(data / "0.png", ns=(-1, -1))
    os.utime(data / "1.png", ns=(-(10**18), -(10**18)))
    real = Stat.of

    def of(cls: type[Stat], found: Any) -> Stat:
        return real(changed(found, 2**63))

    monkeypatch.setattr(Stat, "of", classmethod(of))
    monkeypatch.setattr(os, "scandir", with_other_stats(os.scandir, inode=2**63))
    assert store.scan(data).report.hashed == 12
    assert store.sql("SELECT max(st_ino) < 0, min(st_mtime_ns) FROM sources").rows == [(1, -(10**18))]
    assert set(prints(store).values()) == {True}
    compared = spy(monkeypatch, "casstore.sources.compare.usable_in")
    assert (store.scan(data).report.hashed, compared) == (0, [])
    (data / "x" / "0.png").write_bytes(b"edited")
    assert (store.scan(data).report.edited, compared) == (1, [])


# -- stops -----------------------------------------------------------------------------------------------------------


def test_rows_and_their_fingerprint_are_written_in_one_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No commit lies between the rows of a directory and its fingerprint, nor between what is missing and it."""
    clock_ahead(monkeypatch)
    statements = trace_sql(monkeypatch)
    data = fill(tmp_path / "data", folders=("",))
    with casstore.open(tmp_path / "store", create=True, durability="off") as store:
        for row in ("INSERT INTO sources", "UPDATE sources SET missing_since"):
            statements.clear()
            store.scan(data)
            kinds = {row: "row", "INSERT INTO directory_prints": "print", "COMMIT": "commit"}
            marks = [kind for each in statements for start, kind in kinds.items() if each.startswith(start)]
            first, last = marks.index("row"), marks.index("print")
            assert first < last and "commit" not in marks[first:last]
            (data / "0.png").unlink(missing_ok=True)


def test_a_stop_at_any_line_of_a_scan_leaves_nothing_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Ctrl-C wherever the scan is: the next one has every file with what it holds."""
    clock_ahead(monkeypatch)
    monkeypatch.setattr(scanning, "COMMIT_FILES", 1)
    with casstore.open(tmp_path / "store", create=True, durability="off") as store:
        for number in range(0, 1000, 1 if request.config.getoption("--nightly") else 3):
            data = fill(tmp_path / "data", 2, ("", "x"))
            (data / "x" / "new.png").unlink(missing_ok=True)
            store.scan(data)
            (data / "0.png").write_bytes(b"edited")
            (data / "1.png").unlink()
            (data / "x" / "new.png").write_bytes(b"new")
            stopped = stop_at_line(number, lambda data=data: store.scan(data))
            assert held(store.scan(data)) == {
                "0.png": file_digest(b"edited"),
                "x/0.png": file_digest(b"x 0"),
                "x/1.png": file_digest(b"x 1"),
                "x/new.png": file_digest(b"new"),
            }, number
            gone = "SELECT path FROM v_sources WHERE missing_since IS NOT NULL"
            assert store.sql(gone).rows == [(str(data / "1.png"),)], number
            if not stopped:
                break
    assert number > 50


def stop_at_line(number: int, work: Any) -> bool:
    """Raise KeyboardInterrupt at the n-th line that keeps what was found; whether it came to that."""
    files = {scanning.__file__, comparing.__file__, hashing.__file__}
    keeping = {"_compare", "_submit", "_collect", "_take_in", "_finish", "_save", "_end", "submit", "stop", "_take"}
    left = number

    def line(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        if event == "line":
            left -= 1
            if left == -1:
                raise KeyboardInterrupt
        return line

    def call(frame: FrameType, event: str, argument: Any) -> Any:
        return line if frame.f_code.co_filename in files and frame.f_code.co_name in keeping else None

    before = sys.gettrace()
    sys.settrace(call)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False
