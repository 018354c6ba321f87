"""Captions: what readers make of a file's bytes, and that known files aren't opened."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import spy

import casstore
from casstore.errors import TextError, UsageError
from casstore.identity.digests import file_digest
from casstore.model import Content
from casstore.sources.captions import READERS, caption_cells
from casstore.sources.inputs import Cell

READ = "casstore.sources.captions._bytes"
BOM = b"\xef\xbb\xbf"
TEXTS = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("\r\n \t\ufeff\u3000a"), max_size=40)


def caption(data: bytes) -> str:
    (text,) = READERS["caption-1"](data)
    return text


def lines(data: bytes) -> tuple[str, ...]:
    return READERS["lines-1"](data)


def file(path: Path, data: bytes) -> tuple[str, Content]:
    """A file with these bytes, as a scan knows it."""
    path.write_bytes(data)
    return str(path), Content("file", file_digest(data), len(data))


def cells(store: casstore.Store, *files: tuple[str, Content], reader: str = "caption-1") -> list[tuple[Cell, ...]]:
    return caption_cells(store._handle, files, reader)


def texts(found: list[tuple[Cell, ...]]) -> list[list[str | None]]:
    return [[cell.content and cell.content.text for cell in row] for row in found]


# -- readers -----------------------------------------------------------------------------------------------------------


@given(TEXTS)
def test_readers_are_idempotent(text: str) -> None:
    """What a reader made of a file gives itself when it is written and read again."""
    once = caption(text.encode())
    assert caption(once.encode()) == once
    many = lines(text.encode())
    assert lines("\n".join(many).encode()) == many


@given(TEXTS)
def test_bom_line_ends_and_outer_blanks_make_no_difference(text: str) -> None:
    """A caption saved by another editor is the same text (case T66)."""
    plain = text.replace("\r", "")
    variants = [plain.replace("\n", "\r\n"), plain.replace("\n", "\r"), f"  \n{plain}\t\n", plain + "\u3000"]
    data = [variant.encode() for variant in variants] + [BOM + plain.encode(), BOM + f" {plain}\r\n".encode()]
    assert {caption(one) for one in data} == {caption(plain.encode())}
    assert {lines(one) for one in data} == {lines(plain.encode())}


def test_everything_inside_a_caption_counts() -> None:
    """Inner blanks, case and normal form are part of the text."""
    different = ["a b", "a  b", "a\nb", "A b", "a b.", "e\u0301", "é", "a\0b"]
    assert len({caption(text.encode()) for text in different}) == len(different)


def test_lines_are_variations() -> None:
    """With lines-1 each line that isn't blank is a text, in order; with caption-1 they are one."""
    assert lines(b"one\r\n\r\n  two \n\t\nthree") == ("one", "two", "three")
    assert caption(b"one\r\ntwo\n") == "one\ntwo"


def test_an_empty_file_is_the_empty_text() -> None:
    """caption-1 makes the empty text of no bytes and of blanks; lines-1 makes no text."""
    assert [caption(data) for data in (b"", BOM, b" \r\n")] == ["", "", ""]
    assert lines(b" \n\n") == ()


@pytest.mark.parametrize("data", [b"caf\xe9", b"\xff\xfea\0", b"a\xed\xa0\x80"])
@pytest.mark.parametrize("reader", READERS)
def test_what_is_not_utf8_is_refused(data: bytes, reader: str) -> None:
    """Latin-1, UTF-16 and lone surrogates are a typed error that says what to do."""
    with pytest.raises(TextError, match="save it as UTF-8"):
        READERS[reader](data)


def test_an_unknown_reader_is_refused(store: casstore.Store) -> None:
    """A reader that isn't there is a UsageError that lists those that are."""
    with pytest.raises(UsageError, match="caption-1, lines-1"):
        cells(store, reader="caption-9")


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_known_file_is_not_opened(store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The texts of a content are kept: the second time no file is opened, by any reader that has seen it."""
    files = [file(tmp_path / f"{i}.txt", f"one {i}\ntwo".encode()) for i in range(20)]
    files.append(file(tmp_path / "empty.txt", b""))
    opened = spy(monkeypatch, READ)
    for reader in READERS:
        first = cells(store, *files, reader=reader)
        assert len(opened) == 21
        opened.clear()
        assert cells(store, *files, reader=reader) == first
        assert texts(cells(store, *files, reader=reader)) == texts(first)
        assert opened == []


def test_equal_files_are_read_once(store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of many files with the same content is opened, and all have its text."""
    files = [file(tmp_path / f"{i}.txt", b"the same") for i in range(10)]
    opened = spy(monkeypatch, READ)
    found = cells(store, *files)
    assert (len(opened), texts(found)) == (1, [["the same"]] * 10)
    assert [cell.path for (cell,) in found] == [path for path, _ in files]


def test_equal_captions_share_a_row(store: casstore.Store, tmp_path: Path) -> None:
    """Files that differ in BOM and blanks only have one text in the index."""
    files = [file(tmp_path / f"{i}.txt", data) for i, data in enumerate([b"red", b"red\n", BOM + b" red\r\n"])]
    cells(store, *files)
    assert store.sql("SELECT text FROM texts").rows == [("red",)]


def test_a_changed_file_gives_its_new_text(store: casstore.Store, tmp_path: Path) -> None:
    """A file that changed after it was hashed gives its present text, and the old content gets none of it."""
    old = file(tmp_path / "a.txt", b"old")
    new = file(tmp_path / "a.txt", b"new")
    twin = file(tmp_path / "b.txt", b"old")
    assert texts(cells(store, old, twin)) == [["new"], ["old"]]
    (tmp_path / "a.txt").unlink()
    assert texts(cells(store, new, old)) == [["new"], ["old"]]


def test_a_file_that_can_not_be_read_is_a_failure_of_its_own(store: casstore.Store, tmp_path: Path) -> None:
    """Not UTF-8, vanished, no file: each cell has its error with the path, the others their texts."""
    good, latin = file(tmp_path / "good.txt", b"good"), file(tmp_path / "latin.txt", b"caf\xe9")
    gone, folder = file(tmp_path / "gone.txt", b"gone"), file(tmp_path / "folder.txt", b"folder")
    os.unlink(gone[0])
    os.unlink(folder[0])
    os.mkdir(folder[0])
    found = cells(store, latin, gone, good, folder)
    assert texts(found)[2] == ["good"]
    for (cell,), (path, _) in zip(found, (latin, gone, good, folder), strict=True):
        assert cell.path == path
        assert path == good[0] or (cell.content is None and cell.error is not None and path in cell.error)


def test_a_flipped_bit_in_a_text_is_noticed(store: casstore.Store, tmp_path: Path) -> None:
    """A text that isn't what its digest says is read from the file again, and mended."""
    one = file(tmp_path / "a.txt", b"red\nblue")
    cells(store, one, reader="lines-1")
    with closing(sqlite3.connect(Path(store.path) / "index.sqlite")) as index:
        index.execute("UPDATE texts SET text = 'rad' WHERE text = 'red'")
        index.commit()
    assert texts(cells(store, one, reader="lines-1")) == [["red", "blue"]]
    assert sorted(store.sql("SELECT text FROM texts").rows) == [("blue",), ("red",)]
