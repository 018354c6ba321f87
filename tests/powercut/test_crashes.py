"""What the replayer lets a crash leave: everything that the weakest file system might."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from powercut.crashes import BEGINS, Disk, Operation, crashes

FILE, OTHER, FOLDER = -1, -2, -3
WRITE = ["write", FILE, 0, b"12345678"]
Left = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def top(tmp_path: Path) -> int:
    """The number of the top folder, which is empty."""
    return os.stat(tmp_path).st_ino


@pytest.fixture
def left(tmp_path: Path) -> Left:
    """What a crash right after a log may leave: each {path: bytes, None for a folder} once."""

    def found(*log: Operation) -> list[dict[str, Any]]:
        disk = Disk(tmp_path)
        for operation in log:
            disk.apply(operation)
        trees = {digest: tree() for _, digest, tree in disk.left()}
        return [{path: content and content.data for path, content in tree.items()} for tree in trees.values()]

    return found


def contents(trees: list[dict[str, Any]], path: str = "a") -> set[bytes | str]:
    return {tree.get(path, "gone") for tree in trees}


def test_what_was_not_flushed_may_be_there_or_not_or_in_part(top: int, left: Left) -> None:
    """A written file may be gone, empty, half there, of the right size without its bytes, or whole."""
    assert contents(left(["create", top, "a", FILE], WRITE)) == {"gone", b"", b"1234", bytes(8), b"12345678"}


def test_a_flushed_file_is_whole_and_may_have_no_name(top: int, left: Left) -> None:
    """fsync of a file says nothing of the folder it is in; fsync of the folder says nothing of the file."""
    create = ["create", top, "a", FILE]
    assert contents(left(create, WRITE, ["fsync", FILE])) == {"gone", b"12345678"}
    assert contents(left(create, WRITE, ["fsync", top])) == {b"", b"1234", bytes(8), b"12345678"}
    assert contents(left(create, WRITE, ["fsync", top], ["fsync", FILE])) == {b"12345678"}


def test_what_was_durable_stays_when_what_came_later_is_lost(top: int, left: Left) -> None:
    """Old content, an old size and an old name come back; of several writes some may be there."""
    durable = [["create", top, "a", FILE], WRITE, ["fsync", FILE], ["fsync", top]]
    assert contents(left(*durable, ["truncate", FILE, 2])) == {b"12345678", b"12"}
    writes = [["write", FILE, 0, b"AAAA"], ["write", FILE, 4, b"BBBB"]]
    # all, none, the last torn, every second (here: the last); zeros appear only where a file grew
    assert contents(left(*durable, *writes)) == {b"AAAABBBB", b"12345678", b"AAAABB78", b"1234BBBB"}
    assert contents(left(*durable, ["unlink", top, "a"])) == {"gone", b"12345678"}


def test_a_syncfs_covers_what_was_done_before_it_began(top: int, left: Left) -> None:
    """What another process wrote while it ran isn't durable by it; two may run at once."""
    log = [
        ["create", top, "a", FILE],
        ["mark", "syncfs|1|begins"],
        ["write", FILE, 0, b"12"],
        ["mark", "syncfs|2|begins"],
        ["write", FILE, 2, b"34"],
        ["mark", "syncfs|1|ends"],
    ]
    assert contents(left(*log)) == {b"", b"123", b"1234", b"\0\0\0\0", b"\0\0" + b"34"}
    assert contents(left(*log, ["mark", "syncfs|2|ends"])) == {b"12", b"123", b"1234", b"12\0\0"}


def test_each_end_of_a_rename_belongs_to_its_folder(top: int, left: Left) -> None:
    """Between folders both names, or neither, may be there; within a folder exactly one is."""
    start = [["mkdir", top, "f", FOLDER], ["create", top, "a", FILE], ["fsync", top]]
    states = left(*start, ["rename", top, "a", FOLDER, "b"])
    assert {tuple(sorted(tree)) for tree in states} == {("f", "f/b"), ("a", "f"), ("a", "f", "f/b"), ("f",)}
    states = left(*start, ["create", top, "b", OTHER], ["fsync", top], ["rename", top, "a", top, "b"])
    assert {tuple(sorted(tree)) for tree in states} == {("b", "f"), ("a", "b", "f")}


def test_a_folder_may_keep_a_later_change_and_lose_an_earlier_one(top: int, left: Left) -> None:
    """Not every file system keeps their order."""
    start = [["create", top, "old", OTHER], ["fsync", top]]
    states = left(*start, ["unlink", top, "old"], ["create", top, "new", FILE])
    assert {tuple(sorted(tree)) for tree in states} == {("old",), ("new",), ("new", "old")}


def test_a_folder_that_is_lost_takes_along_what_is_in_it(top: int, left: Left) -> None:
    """Flushing a new folder isn't enough: its name stands in the one above."""
    states = left(["mkdir", top, "f", FOLDER], ["create", FOLDER, "a", FILE], ["fsync", FOLDER], ["fsync", FILE])
    assert {tuple(sorted(tree)) for tree in states} == {(), ("f", "f/a")}


def test_promises_are_those_made_before_the_crash(top: int, tmp_path: Path) -> None:
    """The same tree comes again when more has been promised; it counts once."""
    log = [["mark", "stored|x|1"], ["mark", "stored|y|2"], ["mark", "going|x"], ["mark", "gone|x"]]
    found = list(crashes(Disk(tmp_path), log))  # type: ignore[arg-type]
    assert [crash.promises for crash in found] == [
        {},
        {"x": "1"},
        {"x": "1", "y": "2"},
        {"y": "2"},
        {"y": "2", "x": None},
    ]
    assert [crash.is_new for crash in found] == [True, False, False, False, False]


def test_only_what_comes_after_the_last_beginning_is_asked_for(top: int, tmp_path: Path) -> None:
    """What was done before it is there, and may still be lost."""
    log = [["create", top, "a", FILE], BEGINS, ["fsync", top]]
    trees = [set(crash.tree) for crash in crashes(Disk(tmp_path), log)]
    assert trees == [{"a"}, set()]
