"""What the documents say is what happens."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import ROOT, FakeEncoder, build, object_files, picture, pictures

import casstore
from casstore.cli import COMMANDS
from casstore.index.views import VIEWS

FORMAT = (ROOT / "docs" / "format.md").read_text()
SQL = (ROOT / "docs" / "sql.md").read_text()


def blocks(text: str, language: str) -> list[str]:
    """The code blocks of a Markdown text in one language."""
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_the_reader_in_the_documents_reads_an_object_without_casstore(store: casstore.Store, tmp_path: Path) -> None:
    """The script of docs/format.md prints the tensors of a stored object, planes and fills, where casstore isn't."""
    key = casstore.Key.text("x", casstore.Recipe("r", code=1))
    latent = np.arange(480, dtype=np.float32).reshape(30, 16) / 7
    padded = np.concatenate([latent, np.full((100, 16), 1.5, np.float32)])
    tensors = {"latent": latent, "mask": np.ones((4, 4), bool), "half": latent.astype(np.float16), "padded": padded}
    with store.batch() as batch:
        batch.put(key, tensors)
    script = tmp_path / "read.py"
    script.write_text(
        blocks(FORMAT, "python")[0]
        .replace("import json", "import sys; sys.modules['casstore'] = None; import json")
        .replace("[:4]", "[-1700:]")
    )
    (path,) = object_files(store.path)
    told = subprocess.run(
        [sys.executable, script, path], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert told == [
        f"latent F32 [30, 16] {latent.reshape(-1).tolist()}",
        f"padded F32 [130, 16] {padded.reshape(-1)[-1700:].tolist()}",
        f"half F16 [30, 16] {latent.astype(np.float16).reshape(-1).tolist()}",
        f"mask BOOL [4, 4] {[True] * 16}",
    ]


def test_every_store_carries_the_reader(store: casstore.Store) -> None:
    """CASSTORE.txt ends with the script of docs/format.md."""
    assert Path(store.path, "CASSTORE.txt").read_text().endswith(blocks(FORMAT, "python")[0])
    assert len(blocks(FORMAT, "python")[0].splitlines()) <= 32


def test_the_sql_of_the_documents_runs(store: casstore.Store, tmp_path: Path) -> None:
    """Every query in docs/sql.md and README.md is one that `casstore sql` takes."""
    pictures(tmp_path / "photos", 3)
    build(store, tmp_path / "photos", FakeEncoder())
    queries = [part for block in blocks(SQL, "sql") for part in block.split(";") if part.strip()]
    lines = [line for block in blocks((ROOT / "README.md").read_text(), "sh") for line in block.splitlines()]
    queries += [shlex.split(line)[2] for line in lines if line.startswith("casstore sql")]
    assert len(queries) >= 8
    for query in queries:
        store.sql(query)


@pytest.mark.parametrize("view", VIEWS)
def test_the_columns_of_a_view_are_documented(store: casstore.Store, view: str) -> None:
    """docs/sql.md lists each view's columns, in order."""
    row = next(line for line in SQL.splitlines() if line.startswith(f"| `{view}` |"))
    told = re.sub(r" \([^)]*\)", "", row.split("|")[3]).replace('"', "").strip().split(", ")
    assert told == list(store.sql(f"SELECT * FROM {view}").columns)


@pytest.mark.parametrize("verb", COMMANDS)
def test_every_verb_is_documented_with_its_options(verb: str) -> None:
    """docs/cli.md names every verb and each of its own options."""
    from importlib import import_module

    command = getattr(import_module(COMMANDS[verb][0]), f"{verb}_command")
    row = next(line for line in (ROOT / "docs" / "cli.md").read_text().splitlines() if line.startswith(f"| `{verb}"))
    for parameter in command.params:
        if parameter.param_type_name == "option" and parameter.name not in ("place", "as_json", "unsafe_filesystem"):
            assert parameter.opts[-1] in row


def test_the_demo_encodes_what_it_should(tmp_path: Path) -> None:
    """The demo checks its own counts on a folder with a duplicate and a broken file, and ends well."""
    paths = pictures(tmp_path / "photos", 4, size=(80, 64))
    (tmp_path / "photos" / "copy.png").write_bytes(paths[0].read_bytes())
    (tmp_path / "photos" / "broken.jpg").write_bytes(b"no picture")
    command = [sys.executable, ROOT / "scripts" / "demo.py", tmp_path / "photos"]
    done = subprocess.run(command, capture_output=True, text=True, env={"TMPDIR": str(tmp_path), "PATH": ""})
    assert done.returncode == 0, done.stdout + done.stderr
    encoded = re.findall(r"([0-9]+) encoded;", done.stdout)
    assert encoded == ["4", "0", "1", "0", "5", "1", "0"]
    assert "Try next" in done.stdout


def test_the_training_script_of_the_documents_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/training.md is a program that works, in a folder with photos and captions; every rank has its share."""
    (code,) = blocks((ROOT / "docs" / "training.md").read_text(), "python")
    for number in range(4):
        path = picture(tmp_path / "photos" / f"{number}.jpg", seed=number, size=(80, 64))
        path.with_suffix(".txt").write_text(f"photo {number}")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "training"}
    exec(compile(code, "docs/training.md", "exec"), names)
    assert 0 < names["main"]() < 10
    assert 0 < names["main"](rank=1, ranks=2) < 10
    with casstore.open(tmp_path / "cache") as store:
        assert store.status().variants == 4 + 4 + 1


def test_the_python_of_the_documents_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/python.md is a program that works, in a folder with photos/a.jpg."""
    (code,) = blocks((ROOT / "docs" / "python.md").read_text(), "python")
    picture(tmp_path / "photos" / "a.jpg", size=(300, 280))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(code, "docs/python.md", "exec"), names)
    assert (names["report"].encoded, names["plan"].planned) == (1, 1)
