"""Packed states: which files of a directory have changed, without reading the rows of all of them."""

from __future__ import annotations

import array
import contextlib
import itertools
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from kit import clock_ahead, edit_in_place, spy
from sources.test_fingerprints import fill, held, names_asked_for, prints

import casstore
from casstore.identity.digests import file_digest
from casstore.index.sources import Stat
from casstore.sources import hashing
from casstore.sources.images import EXTENSIONS
from casstore.sources.states import differences, pack, unpack
from casstore.sources.walk import Filter

NAMES = ["a.png", os.fsdecode(b"\xff.png"), "\N{SNOWMAN}\n.png", "z" * 251 + ".png"]
NUMBERS = array.array("q", [1, -2, 3, 2**63 - 1, 0, 0, 0, 0, 5, 5, 5, -(2**63), 9, 8, 7, 6])
FILTER = str(Filter(EXTENSIONS))
ALL_READ = "casstore.sources.compare.usable_in"


def change(store: Path, sql: str, *values: Any) -> None:
    with contextlib.closing(sqlite3.connect(store / "index.sqlite")) as index, index:
        assert index.execute(sql, values).rowcount


# -- packing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 4])
def test_what_was_packed_is_unchanged(count: int) -> None:
    """Any names, any numbers; whatever their order is now."""
    names, states = NAMES[:count], NUMBERS[: 4 * count]
    before = unpack(pack(names, states, ()), count)
    assert before is not None and list(before) == names
    backwards = array.array("q", [n for place in reversed(range(count)) for n in states[4 * place : 4 * place + 4]])
    assert differences(before, names[::-1], backwards) == ({}, [])
    assert before == {}


@pytest.mark.parametrize("number", range(4))
def test_each_number_of_a_state_counts(number: int) -> None:
    """Size, mtime, ctime and inode: one that differs by one is told, for that file alone."""
    before = unpack(pack(NAMES, NUMBERS, ()), 4)
    now = NUMBERS[:]
    now[8 + number] += 1
    assert before is not None and differences(before, NAMES, now) == ({NAMES[2]: 2}, [NAMES[2]])


def test_new_gone_and_doubtful_files_are_told() -> None:
    """A name of another file's state is new; what has gone is left over; a doubtful one differs in any state."""
    before = unpack(pack(NAMES, NUMBERS, [1]), 4)
    assert before is not None
    assert differences(before, ["new", *NAMES[1:]], NUMBERS) == ({"new": 0, NAMES[1]: 1}, [NAMES[1]])
    assert list(before) == [NAMES[0]]


def test_no_bytes_but_those_that_were_packed_are_believed() -> None:
    """Any flipped bit, a cut, and another number of files are noticed."""
    packed = pack(NAMES, NUMBERS, ())
    for place in range(8 * len(packed)):
        flipped = bytearray(packed)
        flipped[place // 8] ^= 1 << place % 8
        found = unpack(bytes(flipped), 4)
        assert found is None or found == unpack(packed, 4)
    assert [unpack(packed[:-1], 4), unpack(b"", 4), unpack(packed, 3), unpack(packed, 5)] == [None] * 4


# -- scans -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("states", [None, b"", b"no states"])
def test_without_states_all_rows_are_compared_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, states: bytes | None
) -> None:
    """Prints of an older casstore have none, and a damaged one can't be read: no edit is missed, and it is mended."""
    clock_ahead(monkeypatch)
    data = fill(tmp_path / "data", folders=("",))
    with casstore.open(tmp_path / "store", create=True, durability="off") as store:
        store.scan(data)
        change(tmp_path / "store", "UPDATE directory_prints SET states = ?", states)
        compared = spy(monkeypatch, ALL_READ)
        for turn in range(2):
            edit_in_place(data / "1.png", b" %d" % turn)
            (data / f"{turn + 2}.png").unlink()
            found = store.scan(data)
            assert (found.report.edited, found.report.hashed, found.report.missing) == (1, 1, 1)
            assert held(found)["1.png"] == file_digest(b" %d" % turn)
        assert len(compared) == 1


def test_beside_unsettled_and_failing_files_only_these_are_looked_up(
    store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that have to be looked at again keep no fingerprint, but the states of the others; an edit that leaves no
    trace in an unsettled file's state is found."""
    clock_ahead(monkeypatch)
    data = fill(tmp_path / "data", folders=("",))
    (data / "link.png").symlink_to(tmp_path / "nowhere")
    frozen = (data / "0.png").stat()
    young = True
    real = hashing.is_settled

    def is_settled(state: Stat, *arguments: Any, **options: Any) -> bool:
        return real(state, *arguments, **options) and not (young and state.inode == frozen.st_ino)

    monkeypatch.setattr(hashing, "is_settled", is_settled)
    store.scan(data)
    asked, compared = names_asked_for(monkeypatch), spy(monkeypatch, ALL_READ)
    opened = spy(monkeypatch, "casstore.sources.hashing.read_source")
    young = False
    store.scan(data)
    assert (asked, compared) == ([["0.png", "link.png"]], [])
    assert [Path(path).name for path in opened] == ["0.png"]
    store.scan(data)
    assert (asked[1:], compared, prints(store)) == ([["link.png"]], [], {("", FILTER): False})


def test_states_go_with_the_rows_that_another_filter_changed(
    store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that one scan noted as missing and that is back in its old state is a file with a row to be mended, also
    where another file of the folder has changed."""
    clock_ahead(monkeypatch)
    data = fill(tmp_path / "data", folders=("",))
    store.scan(data)
    (data / "0.png").rename(tmp_path / "kept")
    assert store.scan(data, extensions=[".png"]).report.missing == 1
    (tmp_path / "kept").rename(data / "0.png")
    (data / "1.png").write_bytes(b"edited")
    found = store.scan(data)
    assert (len(found), found.report.missing) == (4, 0)
    assert store.sql("SELECT count(*) FROM sources WHERE missing_since IS NOT NULL").rows == [(0,)]


def test_what_fails_in_a_thread_ends_the_scan(
    store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error that no file explains is raised to whoever scans, and what was hashed is kept."""
    data = tmp_path / "data"
    data.mkdir()
    for number in range(40):
        (data / f"{number:02}.bin").write_bytes(bytes(hashing.SMALL + 1 + number))
    real, calls = hashing.hash_source, itertools.count(1)

    def hash_source(path: str, probe: Any) -> Any:
        if next(calls) == 40:  # the last one, in whatever order the folder is listed
            raise RuntimeError("as planned")
        return real(path, probe)

    monkeypatch.setattr(hashing, "hash_source", hash_source)
    with pytest.raises(RuntimeError, match="as planned"):
        store.scan(data, extensions=[".bin"])
    kept = store.sql("SELECT count(*) FROM sources").rows[0][0]
    assert 24 <= kept < 40
