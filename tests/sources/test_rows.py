"""Scanning with links: which files are rows, and what each row has."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import clock_ahead, edit_in_place

import casstore
from casstore.errors import UsageError
from casstore.identity.digests import file_digest, text_digest
from casstore.sources.inputs import Inputs, Row


def put(folder: Path, files: dict[str, bytes | str]) -> None:
    """Files by their paths below a folder."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)


def table(inputs: Inputs) -> dict[str, dict[str, Any]]:
    """{sample: {role: text or name of the file, or the error}}, of first contents."""
    return {row.sample: {role: told(cells[0]) for role, cells in row.roles.items()} for row in inputs}


def told(cell: Any) -> Any:
    if cell.content is None:
        return cell.error
    if cell.content.kind == "file":
        assert cell.content.digest == file_digest(Path(cell.path).read_bytes())
        return os.path.basename(cell.path)
    return cell.content.text


_watching: list[tuple[str, list[str]]] = []


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _watching and isinstance(arguments[0], (str, bytes)):
        folder, paths = _watching[-1]
        path = os.fsdecode(arguments[0])
        if path.startswith(folder):
            paths.append(path)


sys.addaudithook(_note)  # for good; it does nothing while nobody watches


@contextlib.contextmanager
def opened_below(folder: Path) -> Iterator[list[str]]:
    """The files below a folder that Python opens in the block, by whatever function."""
    paths: list[str] = []
    _watching.append((f"{folder}/", paths))
    try:
        yield paths
    finally:
        _watching.pop()


# -- which files are rows ----------------------------------------------------------------------------------------------


def test_a_picture_has_its_caption_and_its_mask(store: casstore.Store, tmp_path: Path) -> None:
    """Roles come in the order of the links behind the picture; an absent optional file is left out."""
    put(tmp_path / "d", {"a.jpg": "A", "a.txt": "red", "a-m.png": "M", "x/b.png": "B", "x/b.txt": "blue\n"})
    found = store.scan(tmp_path / "d", links={"caption": ".txt", "mask": "-m.png?"})
    assert table(found) == {
        "a.jpg": {"image": "a.jpg", "caption": "red", "mask": "a-m.png"},
        "x/b.png": {"image": "b.png", "caption": "blue"},
    }
    assert [list(row.roles) for row in found] == [["image", "caption", "mask"], ["image", "caption"]]


def test_claimed_files_are_no_rows_even_without_their_picture(store: casstore.Store, tmp_path: Path) -> None:
    """A mask whose picture is gone isn't taken for a picture."""
    put(tmp_path / "d", {"a.png": "A", "b-m.png": "M", "masks/c.png": "N", "d.txt": "t"})
    found = store.scan(tmp_path / "d", links={"mask": "-m.png?", "cond": "masks/{stem}.png?", "caption": ".txt?"})
    assert table(found) == {"a.png": {"image": "a.png"}}


def test_a_rule_that_matches_nothing_changes_nothing(store: casstore.Store, tmp_path: Path) -> None:
    """With optional rules that find nothing the rows are those without rules."""
    put(tmp_path / "d", {"a.png": "A", "x/b.png": "B"})
    assert list(store.scan(tmp_path / "d", links={"mask": "-m.png?"})) == list(store.scan(tmp_path / "d"))


def test_a_required_link_that_is_absent_is_a_failure_of_its_row(store: casstore.Store, tmp_path: Path) -> None:
    """The row says which file isn't there; the other rows have theirs."""
    put(tmp_path / "d", {"a.png": "A", "b.png": "B", "b.txt": "blue"})
    found = table(store.scan(tmp_path / "d", links={"caption": ".txt|.caption"}))
    assert found["a.png"] == {"image": "a.png", "caption": "no caption: none of a.txt, a.caption is there"}
    assert found["b.png"] == {"image": "b.png", "caption": "blue"}
    found = table(store.scan(tmp_path / "d", links={"mask": "masks/{stem}.png"}))
    assert found["a.png"]["mask"] == "no mask: masks/a.png isn't there"


def test_a_folder_of_texts_has_texts_as_rows(store: casstore.Store, tmp_path: Path) -> None:
    """Where there is no picture the files of the first rule are the rows."""
    put(tmp_path / "d", {"a.txt": "red", "x/b.txt": "blue", "c.json": "{}"})
    found = store.scan(tmp_path / "d", links={"caption": ".txt", "mask": "-m.png?"})
    assert table(found) == {"a.txt": {"caption": "red"}, "x/b.txt": {"caption": "blue"}}


def test_a_folder_below_a_root_finds_links_beside_and_above(store: casstore.Store, tmp_path: Path) -> None:
    """A scan of a folder inside a known root names rows from that folder, and finds what is in it."""
    put(tmp_path / "d", {"in/p/a.png": "A", "in/masks/a.png": "M", "in/p/a.txt": "red"})
    store.scan(tmp_path / "d")
    links = {"mask": "../masks/{stem}.png", "caption": ".txt"}
    assert table(store.scan(tmp_path / "d" / "in", links=links)) == {
        "p/a.png": {"image": "a.png", "mask": "a.png", "caption": "red"}
    }
    found = table(store.scan(tmp_path / "d" / "in" / "p", links=links))
    assert found == {"a.png": {"image": "a.png", "mask": "no mask: ../masks/a.png isn't there", "caption": "red"}}


def test_several_folders_have_their_names_in_front(store: casstore.Store, tmp_path: Path) -> None:
    """Links work in each of several scanned folders."""
    put(tmp_path, {"d/a.png": "A", "d/a.txt": "red", "e/a.png": "A", "e/a.txt": "blue"})
    found = table(store.scan(tmp_path / "d", tmp_path / "e", links={"caption": ".txt"}))
    assert {sample: roles["caption"] for sample, roles in found.items()} == {"d/a.png": "red", "e/a.png": "blue"}


def test_lines_are_the_variations_of_a_row(store: casstore.Store, tmp_path: Path) -> None:
    """With lines-1 a row has one text per line; a file without lines counts as absent."""
    put(tmp_path / "d", {"a.png": "A", "a.txt": "one\n\ntwo", "b.png": "B", "b.txt": "\n"})
    required = store.scan(tmp_path / "d", links={"caption": ".txt"}, reader="lines-1")
    assert [cell.content and cell.content.text for cell in required[0].roles["caption"]] == ["one", "two"]
    assert table(required)["b.png"]["caption"] == "no caption: b.txt holds no text"
    optional = store.scan(tmp_path / "d", links={"caption": ".txt?"}, reader="lines-1")
    assert table(optional)["b.png"] == {"image": "b.png"}


def test_text_roles_and_endings_are_read_as_texts(store: casstore.Store, tmp_path: Path) -> None:
    """A role named caption, text or prompt is a text from any file; a .txt or .caption is one under any role."""
    put(tmp_path / "d", {"a.png": "A", "a.md": "m", "a.txt": "t", "a.json": "{}"})
    (row,) = store.scan(tmp_path / "d", links={"prompt": ".md", "tags": ".txt", "meta": ".json"})
    assert {role: cells[0].content and cells[0].content.kind for role, cells in row.roles.items()} == {
        "image": "file",
        "prompt": "text",
        "tags": "text",
        "meta": "file",
    }


@pytest.mark.parametrize("links", [{"caption": "txt"}, {"image": ".txt"}, {"mask": ""}])
def test_bad_links_are_refused(store: casstore.Store, tmp_path: Path, links: Any) -> None:
    """A link that can't be meant stops the scan with a typed error."""
    put(tmp_path / "d", {"a.png": "A"})
    with pytest.raises(UsageError):
        store.scan(tmp_path / "d", links=links)


# -- functions and texts -----------------------------------------------------------------------------------------------


def test_a_function_makes_a_cell_of_the_row_so_far(store: casstore.Store, tmp_path: Path) -> None:
    """It gets the roles before it, and returns a path, a text, an array, a list of these, or None."""
    put(tmp_path / "d", {"x/a.png": "A", "x/a.txt": "red", "x/other.bin": "O"})

    def prompt(row: Row) -> str:
        (caption,) = row.roles["caption"]
        assert caption.content is not None
        return f"a {caption.content.text} cat"

    links = {
        "caption": ".txt",
        "prompt": prompt,
        "cond": lambda row: "other.bin",
        "embedding": lambda row: np.arange(3.0),
        "text": lambda row: ["one", "two"],
        "mask": lambda row: None,
    }
    (row,) = store.scan(tmp_path / "d", links=links)
    assert list(row.roles) == ["image", "caption", "prompt", "cond", "embedding", "text"]
    contents = {role: [cell.content for cell in cells] for role, cells in row.roles.items()}
    assert contents["prompt"][0] is not None and contents["prompt"][0].digest == text_digest("a red cat")
    assert contents["cond"][0] is not None and contents["cond"][0].digest == file_digest(b"O")
    assert contents["embedding"][0] is not None and contents["embedding"][0].kind == "array"
    assert [content and content.text for content in contents["text"]] == ["one", "two"]


def test_a_function_that_fails_is_a_failure_of_its_row(store: casstore.Store, tmp_path: Path) -> None:
    """An exception, a value of another type and a file that isn't there are errors of that cell."""
    put(tmp_path / "d", {"a.png": "A", "b.png": "B", "c.png": "C", "d.png": "D"})
    answers = {"a.png": "a.png", "b.png": "gone.png", "c.png": {}}
    found = table(store.scan(tmp_path / "d", links={"cond": lambda row: answers[row.sample]}))
    assert found["a.png"]["cond"] == "a.png"
    assert "gone.png" in found["b.png"]["cond"]
    assert "dict" in found["c.png"]["cond"]
    assert "KeyError" in found["d.png"]["cond"]


def test_a_text_can_come_from_names(store: casstore.Store, tmp_path: Path) -> None:
    """`=` makes a text of the names of picture and folder; a name that isn't UTF-8 is a failure of its row."""
    put(tmp_path / "d", {"red cats/{name}.png": "A", os.fsdecode(b"x\xff.png"): "B"})
    found = store.scan(tmp_path / "d", links={"caption": "={stem} of {folder} in {name}"})
    assert table(found)["red cats/{name}.png"]["caption"] == "{name} of red cats in {name}.png"
    (cell,) = found[1].roles["caption"]
    assert cell.content is None and cell.error is not None and "Unicode" in cell.error


# -- changes -----------------------------------------------------------------------------------------------------------


def test_an_edited_caption_is_another_text_and_the_same_picture(store: casstore.Store, tmp_path: Path) -> None:
    """Case T2: red, blue, red again: the text follows, back to the very same content; the picture stays."""
    put(tmp_path / "d", {"a.png": "A", "a.txt": "red"})
    seen = []
    for text in ("red", "blue", "red"):
        put(tmp_path / "d", {"a.txt": text})
        (row,) = store.scan(tmp_path / "d", links={"caption": ".txt"})
        seen.append({role: cells[0].content for role, cells in row.roles.items()})
    assert [found["caption"] and found["caption"].digest for found in seen] == [
        text_digest(text) for text in ("red", "blue", "red")
    ]
    assert seen[0] == seen[2] and seen[0]["image"] == seen[1]["image"]


def test_an_unchanged_folder_opens_no_file(
    store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second scan of 2,000 captions and masks opens none of them; after one edit it opens that one."""
    clock_ahead(monkeypatch)
    files: dict[str, bytes | str] = {
        f"{i:04}{ending}": f"{ending} {i}" for i in range(1000) for ending in (".png", ".txt", "-m.png")
    }
    put(tmp_path / "d", files)
    links = {"caption": ".txt", "mask": "-m.png?"}
    first = list(store.scan(tmp_path / "d", links=links))
    with opened_below(tmp_path / "d") as paths:
        assert list(store.scan(tmp_path / "d", links=links)) == first
    assert paths == []
    edit_in_place(tmp_path / "d" / "0500.txt", b".txt abc")
    with opened_below(tmp_path / "d") as paths:
        second = store.scan(tmp_path / "d", links=links)
    assert set(paths) == {str(tmp_path / "d" / "0500.txt")}
    assert [row.sample for row, old in zip(second, first, strict=True) if row != old] == ["0500.png"]


def test_a_file_that_can_not_be_read_is_a_failure_of_its_role(store: casstore.Store, tmp_path: Path) -> None:
    """A caption that isn't UTF-8 or leads nowhere is an error under its role; the picture is fine."""
    put(tmp_path / "d", {"a.png": "A", "a.txt": b"caf\xe9", "b.png": "B"})
    (tmp_path / "d" / "b.txt").symlink_to("nowhere")
    found = table(store.scan(tmp_path / "d", links={"caption": ".txt"}))
    assert found["a.png"]["image"] == "a.png" and "UTF-8" in found["a.png"]["caption"]
    assert found["b.png"]["image"] == "b.png" and "b.txt" in found["b.png"]["caption"]


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "new\nline \x07",
        "👩‍🎨 кошка 猫の写真 \u202eتصویر",
        "[set] a*b?{c} #|%41",
        "  two  ",
        "x" * 251,
        os.fsdecode(b"caf\xe9 \xff"),
        "{stem}",
        "a.b..c",
    ],
)
def test_any_name_finds_its_links(store: casstore.Store, tmp_path: Path, name: str) -> None:
    """Whatever picture and folder are called, caption and mask are found (cases T34, T37)."""
    folder = tmp_path / "d" / name
    put(folder, {f"{name}.png": "A", f"{name}.txt": "red", f"m/{name}.png": "M"})
    (row,) = store.scan(tmp_path / "d", links={"caption": ".txt", "mask": "m/{stem}.png"})
    assert row.sample == f"{name}/{name}.png"
    assert {role: cells[0].path for role, cells in row.roles.items()} == {
        "image": f"{folder}/{name}.png",
        "caption": f"{folder}/{name}.txt",
        "mask": f"{folder}/m/{name}.png",
    }
    assert all(cells[0].content is not None for cells in row.roles.values())


def test_endings_of_links_count_in_any_case(store: casstore.Store, tmp_path: Path) -> None:
    """A.TXT and A-m.PNG belong to A.JPG; case twins keep their own files (case T42)."""
    put(tmp_path / "d", {"A.JPG": "A", "A.TXT": "upper", "A-m.PNG": "M", "a.jpg": "a", "a.txt": "lower"})
    found = table(store.scan(tmp_path / "d", links={"caption": ".txt", "mask": "-m.png?"}))
    assert found == {
        "A.JPG": {"image": "A.JPG", "caption": "upper", "mask": "A-m.PNG"},
        "a.jpg": {"image": "a.jpg", "caption": "lower"},
    }
