"""What many known paths hold now: one stat each, in the order asked for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from kit import clock_ahead, edit_in_place, spy

import casstore
from casstore.identity.digests import file_digest
from casstore.model import Content
from casstore.sources.fresh import contents_of

HASHED = "casstore.sources.hashing.hash_source"


def digests(store: casstore.Store, paths: list[str]) -> list[bytes | None]:
    return [cell.content and cell.content.digest for cell in contents_of(store._handle, paths)]


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Files in two folders, one of which has no name in UTF-8."""
    names = [os.fsencode(tmp_path) + name for name in (b"/data/a.bin", b"/data/x/b.bin", b"/data/x/c-\xff.bin")]
    for name in names:
        os.makedirs(os.path.dirname(name), exist_ok=True)
        with open(name, "wb") as stream:
            stream.write(b"bytes of " + name)
    return [os.fsdecode(name) for name in names]


def test_unchanged_files_are_not_read(
    store: casstore.Store, tmp_path: Path, files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once known and settled, no file is opened; a path may be asked for twice, and in another spelling."""
    clock_ahead(monkeypatch)
    store.scan(tmp_path / "data", extensions=[".bin"])
    read = spy(monkeypatch, HASHED)
    asked = [files[2], files[0], f"{tmp_path}/data/./x//../a.bin", files[1], files[0]]
    wanted = [file_digest(Path(path).read_bytes()) for path in asked]
    assert digests(store, asked) == wanted
    assert not read


def test_an_edit_and_a_loss_are_seen(
    store: casstore.Store, tmp_path: Path, files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An edited file is read again, one that has gone is a cell with an error, and the others are as they were."""
    clock_ahead(monkeypatch)
    store.scan(tmp_path / "data", extensions=[".bin"])
    edit_in_place(Path(files[0]), b"B" + Path(files[0]).read_bytes()[1:])
    os.unlink(files[1])
    read = spy(monkeypatch, HASHED)
    cells = contents_of(store._handle, [*files, str(tmp_path / "nowhere" / "d.bin")])
    assert len(read) == 1
    assert cells[0].content == Content("file", file_digest(Path(files[0]).read_bytes()), 0)
    assert cells[2].content is not None
    for cell in (cells[1], cells[3]):
        assert cell.content is None and "can't read" in (cell.error or "")


def test_cells_can_be_sliced(store: casstore.Store, files: list[str]) -> None:
    """They behave like a list."""
    cells = contents_of(store._handle, files)
    assert cells[1:] == [cells[1], cells[2]] and cells[-1] == cells[2] and len(cells) == 3
