"""Rows that are given: what each value is, how rows are named, and tables."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import spy

import casstore
from casstore.errors import SourceNotFoundError, UsageError
from casstore.identity.digests import file_digest, text_digest
from casstore.sources.tables import read_table


def write(path: Path, data: bytes | str = b"any bytes") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def digest(row: Any, role: str) -> bytes:
    found: bytes = row.roles[role][0].content.digest
    return found


# -- cells -------------------------------------------------------------------------------------------------------------


def test_what_a_value_is(store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Path is a file, an array itself, bytes a text, a str a text under text roles and else a path, None nothing."""
    write(tmp_path / "a.jpg", "A")
    monkeypatch.chdir(tmp_path)
    (row,) = store.inputs(
        [
            {
                "image": Path("a.jpg"),
                "cond": "a.jpg",
                "caption": " red ",
                "style": b" blue ",
                "latent": np.zeros((2, 3), np.float16),
                "mask": None,
            }
        ]
    )
    assert {role: cells[0].content and cells[0].content.kind for role, cells in row.roles.items()} == {
        "image": "file",
        "cond": "file",
        "caption": "text",
        "style": "text",
        "latent": "array",
    }
    assert digest(row, "image") == digest(row, "cond") == file_digest(b"A")
    assert row.path == str(tmp_path / "a.jpg")


def test_str_and_bytes_are_the_same_text_and_nothing_is_stripped(store: casstore.Store) -> None:
    """The exact string is the identity, however it comes (case T66)."""
    told = ["red", "red ", "\ufeffred", "r\r\ned", "e\u0301", "é", ""]
    given = [{"sample": f"{kind}{i}", "caption": value} for i, t in enumerate(told) for kind, value in forms(t)]
    rows = store.inputs(given)
    digests = [digest(row, "caption") for row in rows]
    assert digests == [text_digest(text) for text in told for _ in range(3)]
    assert len(set(digests)) == len(told)


def forms(text: str) -> list[tuple[str, Any]]:
    return [("str", text), ("bytes", text.encode()), ("array", bytearray(text.encode()))]


def test_a_list_has_a_content_for_each_variation(store: casstore.Store) -> None:
    """The contents of a list come in its order; an empty list is nothing."""
    (row,) = store.inputs([{"caption": ["one", b"two"], "prompt": []}])
    assert [cell.content and cell.content.text for cell in row.roles["caption"]] == ["one", "two"]
    assert "prompt" not in row.roles


def test_equal_arrays_are_one_content(store: casstore.Store) -> None:
    """Dtype, shape and elements count; strides, byte order and NumPy or torch don't."""
    import torch

    base = np.arange(6, dtype=np.float32).reshape(2, 3)
    same = [base, np.asfortranarray(base), base.astype(">f4"), torch.from_numpy(base)]
    other = [base.T, base.astype(np.float64), base + 1, base.reshape(6), base.view(np.int32)]
    rows = store.inputs([{"latent": value} for value in same + other])
    digests = [digest(row, "latent") for row in rows]
    assert (len(set(digests[:4])), len(set(digests))) == (1, 6)


def test_a_text_file_goes_through_the_reader(store: casstore.Store, tmp_path: Path) -> None:
    """A Path under a text role is read as a text by the reader that was named."""
    write(tmp_path / "a.md", "\ufeffone\r\ntwo\n")
    row = {"caption": tmp_path / "a.md"}
    assert [cell.content and cell.content.text for cell in store.inputs([row])[0].roles["caption"]] == ["one\ntwo"]
    lines = store.inputs([row], reader="lines-1")[0].roles["caption"]
    assert [cell.content and cell.content.text for cell in lines] == ["one", "two"]


def test_files_are_looked_up_together(store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All paths of all rows go through one call, each once."""
    paths = [write(tmp_path / f"{i}.jpg", str(i)) for i in range(3)]
    calls: list[list[str]] = []
    from casstore.sources import cells

    real = cells.contents_of
    monkeypatch.setattr(cells, "contents_of", lambda handle, found: calls.append(list(found)) or real(handle, found))
    store.inputs([{"image": path, "mask": paths[0], "sample": str(i)} for i, path in enumerate(paths)])
    assert calls == [[str(path) for path in paths]]


def test_what_can_not_be_read_is_a_failure_of_its_cell(store: casstore.Store, tmp_path: Path) -> None:
    """A file that isn't there, bytes that aren't UTF-8 and a lone surrogate are errors of their cells."""
    given = [{"image": tmp_path / "gone.jpg"}, {"caption": b"caf\xe9"}, {"caption": "\ud800"}, {"caption": "fine"}]
    rows = store.inputs(given)
    assert [row.error is None for row in rows] == [False, False, False, True]
    assert "gone.jpg" in (rows[0].error or "") and rows[0].path == str(tmp_path / "gone.jpg")


def test_a_store_that_can_only_be_read_takes_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the right to write, texts are read and nothing is kept."""
    casstore.open(tmp_path / "store", create=True, durability="off").close()
    path = write(tmp_path / "a.txt", "red")
    with casstore.open(tmp_path / "store") as store:
        monkeypatch.setattr(type(store._handle), "read_only", True)
        (row,) = store.inputs([{"caption": path}])
        assert row.content is not None and row.content.text == "red"
        assert store.sql("SELECT count(*) FROM texts").rows == [(0,)]


# -- rows --------------------------------------------------------------------------------------------------------------


def test_facts_of_a_row(store: casstore.Store) -> None:
    """Sample, group, weight and values are taken as they are, with their defaults."""
    rows = store.inputs(
        [
            {"sample": "a", "group": "cats", "weight": np.float32(0.5), "values": {"x": [1]}, "caption": "red"},
            {"sample": 7, "caption": "red", "value.y": "z"},
        ]
    )
    assert [(row.sample, row.group, row.weight, row.values) for row in rows] == [
        ("a", "cats", 0.5, {"x": [1]}),
        ("7", "", 1.0, {"y": "z"}),
    ]


def test_rows_without_a_name_have_that_of_their_first_file(store: casstore.Store, tmp_path: Path) -> None:
    """It is relative to the folder that these files share; a row without a file has its number."""
    for name in ("p/a.jpg", "p/x/b.jpg"):
        write(tmp_path / name)
    given = [{"image": tmp_path / "p/a.jpg"}, {"caption": "c", "image": tmp_path / "p/x/b.jpg"}, {"caption": "d"}]
    assert [row.sample for row in store.inputs(given)] == ["a.jpg", "x/b.jpg", "2"]
    assert [row.sample for row in store.inputs(given[:1])] == ["a.jpg"]
    assert list(store.inputs([])) == []


@pytest.mark.parametrize(
    "row",
    [
        *({"image": value} for value in (3, 1.5, True, 1j, {}, {"a": 1}, [None], [["a"]], "", [3])),
        *({"caption": "c", "weight": value} for value in ("1", True, float("nan"), -1, float("inf"), [], "x")),
        *({"caption": "c", "sample": value} for value in (1.5, True, ["a"])),
        *({"caption": "c", "group": value} for value in (1.5, {})),
        *({"caption": "c", "values": value} for value in ([], "x", 3)),
        *({3: "a"}, {"": "a"}, "a.jpg", None, ["a.jpg"]),
    ],
    ids=repr,
)
def test_a_row_that_can_not_be_meant_is_refused(store: casstore.Store, row: Any) -> None:
    """The error names the row by its place."""
    with pytest.raises(UsageError, match=r"rows\[1\]"):
        store.inputs([{"caption": "fine"}, row])


def test_two_rows_of_a_group_and_name_are_refused(store: casstore.Store) -> None:
    """Both are named; in another group the name is free."""
    twice = [{"sample": "a", "caption": "x"}, {"caption": "y"}, {"sample": "a", "caption": "z"}]
    with pytest.raises(UsageError, match=r"rows\[0\] and rows\[2\]"):
        store.inputs(twice)
    assert len(store.inputs([*twice[:2], twice[2] | {"group": "g"}])) == 3


@pytest.mark.parametrize("rows", [{"image": "a.jpg"}, 3, None])
def test_rows_are_a_list(store: casstore.Store, rows: Any) -> None:
    """One dict instead of a list of them, or anything else, is refused."""
    with pytest.raises(UsageError):
        store.inputs(rows)


def test_rows_may_come_from_a_generator(store: casstore.Store) -> None:
    """Any iterable of dicts will do."""
    assert len(store.inputs({"caption": str(i)} for i in range(3))) == 3


# -- tables ------------------------------------------------------------------------------------------------------------

SAME = {
    "t.jsonl": '\ufeff{"sample": "s", "image": "x/a.jpg", "caption": "red, \\"very\\"", "weight": 2, "group": "g", '
    '"values": {"note": "n"}}\n\n{"image": "x/b.jpg", "mask": null}\n',
    "t.csv": '\ufeffsample,image,caption,weight,group,value.note,mask\r\ns,x/a.jpg,"red, ""very""",2,g,n,\r\n'
    ",x/b.jpg,,,,,\r\n",
    "T.TSV": 'sample\timage\tcaption\tweight\tgroup\tvalue.note\ns\tx/a.jpg\t"red, ""very"""\t2\tg\tn\n\tx/b.jpg\n',
}


@pytest.mark.parametrize("name", SAME)
def test_tables_give_rows(store: casstore.Store, tmp_path: Path, name: str) -> None:
    """JSON lines, CSV and TSV give the same rows; paths are relative to the file, wherever one stands."""
    for picture in ("a", "b"):
        write(tmp_path / "t" / "x" / f"{picture}.jpg", picture)
    rows = store.inputs(write(tmp_path / "t" / name, SAME[name]))
    assert [(row.sample, row.group, row.weight, row.values) for row in rows] == [
        ("s", "g", 2.0, {"note": "n"}),
        ("b.jpg", "", 1.0, {}),
    ]
    assert [digest(row, "image") for row in rows] == [file_digest(b"a"), file_digest(b"b")]
    assert digest(rows[0], "caption") == text_digest('red, "very"')
    assert list(rows[1].roles) == ["image"]


def test_a_caption_of_several_lines_in_a_csv(tmp_path: Path) -> None:
    """Line ends inside quotes are kept as they are."""
    assert read_table(write(tmp_path / "t.csv", 'caption\r\n"one\r\ntwo\n"\r\n')) == [{"caption": "one\r\ntwo\n"}]


@pytest.mark.parametrize(
    ("name", "data", "line"),
    [
        ("t.jsonl", '{"a": "b"}\n{"a":', 2),
        ("t.jsonl", '\n["a"]\n', 2),
        ("t.jsonl", '{"a": "b", "a": "c"}', 1),
        ("t.jsonl", b'{"a": "b"}\n{"a": "caf\xe9"}', 2),
        ("t.jsonl", '{"caption": "b"}\n\n{"image": 3}', 3),
        ("t.jsonl", '{"caption": "b", "weight": NaN}', 1),
        ("t.jsonl", "[" * 100_000, 1),
        ("t.csv", "caption,caption\n", 1),
        ("t.csv", "caption,\n", 1),
        ("t.csv", "caption,weight\nx,1\ny,z\n", 3),
        ("t.csv", "caption,weight\nx,-1\n", 2),
        ("t.csv", "caption\nx,y\n", 2),
        ("t.csv", 'caption\n"x" y\n', 2),
        ("t.csv", b"caption\nx\ncaf\xe9\n", 3),
    ],
)
def test_errors_in_tables_name_file_and_line(
    store: casstore.Store, tmp_path: Path, name: str, data: bytes | str, line: int
) -> None:
    """What can't be meant is a UsageError with the path and the line."""
    path = write(tmp_path / name, data)
    with pytest.raises(UsageError) as caught:
        store.inputs(path)
    assert f"{path}, line {line}:" in str(caught.value)


def test_a_table_that_is_none(store: casstore.Store, tmp_path: Path) -> None:
    """A file that isn't there and one of another kind are typed errors that name it."""
    with pytest.raises(SourceNotFoundError, match=r"gone\.csv"):
        store.inputs(tmp_path / "gone.csv")
    with pytest.raises(UsageError, match=r"rows\.parquet"):
        store.inputs(str(write(tmp_path / "rows.parquet")))


def test_tables_hold_any_name(store: casstore.Store, tmp_path: Path) -> None:
    """Line breaks, brackets and emoji in file names survive a table (case T34)."""
    names = ["new\nline.jpg", "[set] a*b?.jpg", "👩‍🎨 кошка.jpg", "  two  .jpg", "x" * 251 + ".jpg"]
    for name in names:
        write(tmp_path / name, name)
    path = write(tmp_path / "t.jsonl", "\n".join(json.dumps({"image": name}) for name in names))
    rows = store.inputs(path)
    assert [row.sample for row in rows] == names
    assert [digest(row, "image") for row in rows] == [file_digest(os.fsencode(name)) for name in names]


def test_known_text_files_are_not_opened(
    store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a scan has read is known to inputs."""
    write(tmp_path / "d" / "a.png")
    caption = write(tmp_path / "d" / "a.txt", "red")
    store.scan(tmp_path / "d", links={"caption": ".txt"})
    opened = spy(monkeypatch, "casstore.sources.captions._bytes")
    assert store.inputs([{"caption": caption}])[0].content is not None
    assert opened == []
