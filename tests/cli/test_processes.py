"""The command line as real processes: start-up, encodings, pipes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kit import picture, pictures, python

import casstore

NAMES = ["a\nb.png", "esc\x1b[31m.png", "猫😀.png", os.fsdecode(b"caf\xe9\xff.png"), "[x] *.png"]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A new store."""
    casstore.open(tmp_path / "store", create=True, durability="off").close()
    return tmp_path / "store"


IMPORTS = """
import sys
{work}
loaded = [name for name in sys.argv[1].split() if name in sys.modules]
print(loaded, file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("work", "forbidden"),
    [
        ("import casstore", "numpy sqlalchemy torch PIL click zstandard tqdm alembic blake3"),
        ("from casstore.cli import run; assert run(['--help']) == 0", "sqlalchemy numpy torch PIL zstandard alembic"),
        (
            "from casstore.cli import run; assert run(['status', '-s', 'store']) == 0",
            "numpy torch PIL tqdm zstandard alembic",
        ),
    ],
    ids=["import", "help", "status"],
)
def test_start_up_loads_only_what_it_needs(place: Path, work: str, forbidden: str) -> None:
    """`import casstore`, `casstore --help` and `casstore status` leave the slow packages alone."""
    done = python("-c", IMPORTS.format(work=work), forbidden, cwd=place.parent)
    assert (done.returncode, done.stderr) == (0, b"[]\n")


def test_python_m_casstore_is_the_command(place: Path) -> None:
    """`python -m casstore` runs verbs and passes their exit code on."""
    done = python("-m", "casstore", "status", "--store", place / "tmp")
    assert (done.returncode, done.stdout, b"casstore init" in done.stderr) == (3, b"", True)


@pytest.mark.parametrize("as_json", [False, True])
def test_t34_any_name_passes_through_an_ascii_terminal(place: Path, tmp_path: Path, as_json: bool) -> None:
    """T34: with PYTHONIOENCODING=ascii and LC_ALL=C, pictures of any name are built and named, in printable ASCII."""
    for number, name in enumerate(NAMES):
        picture(tmp_path / "data" / f"{number}.png", seed=number).rename(tmp_path / "data" / name)
        (tmp_path / "data" / f"bad-{name}").write_bytes(b"")
    environment = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    arguments = ["build", "data", "--encoder", "pixels", "--resolution", "64", "--store", "store"]
    done = python("-m", "casstore", *arguments, *["--json"] * as_json, cwd=tmp_path, env=environment)
    assert done.returncode == 1, done.stderr
    text = (done.stdout + done.stderr).decode("ascii")
    assert all(line.isprintable() for line in text.splitlines())
    if as_json:
        *failures, summary = (json.loads(line) for line in done.stdout.splitlines())
        assert (summary["encoded"], summary["failed"]) == (len(NAMES), len(NAMES))
        assert {failure["sample"] for failure in failures} == {f"bad-{name}" for name in NAMES}
        assert {os.fsencode(failure["path"]) for failure in failures} == {
            os.fsencode(tmp_path / "data" / f"bad-{name}") for name in NAMES
        }
    else:
        assert f"{len(NAMES)} of {2 * len(NAMES)} pictures ready" in text


def test_a_folder_can_be_named_by_bytes_that_are_no_utf8(place: Path, tmp_path: Path) -> None:
    """Folders and stores whose names aren't valid UTF-8 can be given on the command line."""
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    pictures(folder, 2)
    place.rename(folder / os.fsdecode(b"\xff"))
    arguments: list[Any] = ["build", folder, "--encoder", "pixels", "--json", "--store", folder / os.fsdecode(b"\xff")]
    done = python("-m", "casstore", *arguments)
    assert (done.returncode, json.loads(done.stdout)["encoded"]) == (0, 2), done.stderr


def test_a_reader_that_goes_away_is_no_crash(place: Path) -> None:
    """When the other end of a pipe is closed, the command ends without a traceback."""
    query = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000) SELECT i FROM n"
    child = subprocess.Popen(
        [sys.executable, "-m", "casstore", "sql", query, "--store", place],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdout is not None and child.stderr is not None
    child.stdout.close()
    err = child.stderr.read()
    child.stderr.close()
    assert (child.wait(60), b"Traceback" in err, b"Exception" in err) == (1, False, False)


def test_an_interrupted_build_says_what_is_done_and_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message of the report reaches the terminal, though click has a message of its own for Ctrl-C."""
    from kit import pictures

    from casstore.cli import run

    pictures(tmp_path / "p", 4)
    (tmp_path / "stopping.py").write_text(
        "import signal\nfrom kit import FakeEncoder\n"
        "def stopping():\n    return FakeEncoder(before=lambda items: signal.raise_signal(signal.SIGINT))\n"
    )
    monkeypatch.chdir(tmp_path)
    assert run(["init", "-s", "s"]) == 0
    assert run(["build", "p", "-s", "s", "--encoder", "stopping:stopping", "--batch-size", "2"]) == 130
    assert "interrupted: 2 encoded and stored, 2 left; run it again to go on" in capsys.readouterr().err
