"""casstore explain, missing, ls: what people and programs see of the answers."""

from __future__ import annotations

import gc
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kit import FakeEncoder, build, object_files, picture, pictures

import casstore
from casstore.cli import run

HALF = casstore.Recipe("vae", weights="ab" * 32, dtype="float16", code=1, stride=8)
BRAIN = casstore.Recipe("vae", weights="ab" * 32, dtype="bfloat16", code=1, stride=8)
Cli = Callable[..., tuple[int, str]]
_numbers = itertools.count()


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder of five pictures, below the current one."""
    pictures(tmp_path / "photos", 5)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return "photos"


@pytest.fixture
def cli(store: casstore.Store, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    """Runs a command: (exit code, what it printed, errors last)."""

    def plain(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        code = run([*arguments, "--store", store.path])
        out, err = capsys.readouterr()
        return code, out + err

    yield plain
    gc.enable()


def records(answer: tuple[int, str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in answer[1].splitlines()]


def failing(items: list[Any]) -> None:
    raise RuntimeError(f"no memory for {items[0].sample}")


# -- explain -----------------------------------------------------------------------------------------------------------


def test_the_verdict_comes_first(cli: Cli, store: casstore.Store, photos: str) -> None:
    """A hit is exit code 0, a miss 1; the file is named as it was given."""
    build(store, Path(photos), FakeEncoder(HALF))
    code, out = cli("explain", "photos/p000.png")
    assert (code, out.splitlines()[0]) == (0, "photos/p000.png, 64x64, vae: HIT")
    assert out.splitlines()[-1] == "next build    nothing to encode: it is reused"
    picture(Path("photos/p000.png"), seed=50)
    code, out = cli("explain", "photos/p000.png")
    assert (code, out.splitlines()[0]) == (1, "photos/p000.png, 64x64, vae: MISS, the picture was edited")


def test_people_see_both_sides_in_24_lines(cli: Cli, store: casstore.Store, photos: str) -> None:
    """What it was and what it is, what differs marked, what happened, and what the next build does."""
    values = {f"value_{number:02}": number for number in range(30)}
    change = {"p000.png": lambda result: {**result, **values}}
    build(store, Path(photos), FakeEncoder(HALF, change=change))
    picture(Path("photos/p000.png"), seed=50)
    out = cli("explain", "photos/p000.png", "-r", "vae")[1]
    lines = out.splitlines()
    assert len(lines) <= 24 and all(len(line) <= 80 for line in lines)
    assert lines[2].split("  ")[-1].strip() == "now" and "when it was encoded" in lines[2]
    (content,) = [line for line in lines if line.startswith("content")]
    assert content.endswith("<- differs") and ".." in content
    assert "first seen" in out and "run 1" in out and "edited; it held" in out
    assert any(line.startswith("next build    1 encode, about ") for line in lines)
    assert "more (--json lists all)" in out


def test_a_recipe_miss_says_how_to_undo_it(
    cli: Cli, store: casstore.Store, photos: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The relative, the field that differs, how many others there are, how long they take, and what brings all back."""
    build(store, Path(photos), FakeEncoder(HALF))
    name = f"explain_encoder_{next(_numbers)}"
    source = "import casstore, kit\nrecipe = casstore.Recipe('vae', weights='ab' * 32, dtype='bfloat16', code=1)\n"
    (tmp_path / f"{name}.py").write_text(source + "def make(): return kit.FakeEncoder(recipe)\n")
    code, out = cli("explain", "photos/p000.png", "--encoder", f"{name}:make")
    lines = out.splitlines()
    assert (code, lines[0]) == (1, "photos/p000.png, 64x64, vae: MISS, never made with this recipe")
    assert lines[2].startswith("nearest relative: vae ") and lines[2].endswith(" (same picture), 1 field differs")
    assert any(line.split() == ["dtype", "F16", "BF16", "<-", "differs"] for line in lines)
    assert lines[-2].startswith("4 other pictures miss for the same reason: ")
    assert lines[-1] == 'Not meant?    dtype="F16" in the recipe, and all of them hit again.'


def test_several_recipes_are_a_line_each(cli: Cli, store: casstore.Store, photos: str) -> None:
    """With advice how to ask for one."""
    build(store, Path(photos), FakeEncoder(HALF))
    build(store, Path(photos), FakeEncoder(casstore.Recipe("clip", code=1)))
    picture(Path("photos/p000.png"), seed=50)
    build(store, Path(photos), FakeEncoder(HALF))
    code, out = cli("explain", "photos/p000.png")
    lines = out.splitlines()
    assert (code, sorted(lines[:2])) == (
        1,
        [
            "photos/p000.png, 64x64, clip: MISS, the picture was edited",
            "photos/p000.png, 64x64, vae: HIT",
        ],
    )
    assert lines[-1].endswith("casstore explain photos/p000.png -r clip")
    assert cli("explain", "photos/p000.png", "-r", "vae")[0] == 0


def test_a_file_that_nothing_is_stored_of(cli: Cli, photos: str) -> None:
    """It is said, with what to do; exit code 1."""
    code, out = cli("explain", "photos/p000.png")
    assert (code, out.splitlines()[0]) == (1, "photos/p000.png: nothing is stored for it, with any recipe")
    assert "casstore build" in out


def test_explain_json_ends_with_the_summary(cli: Cli, store: casstore.Store, photos: str) -> None:
    """A record for each explanation, with every field; the last line has the counts."""
    build(store, Path(photos), FakeEncoder(HALF))
    one, two, summary = records(cli("explain", "photos/p000.png", "--resolution", "64,128", "--json"))
    assert (one["hit"], two["hit"], two["reason"], two["undo"]) == (True, False, "resolution", 'resolution="64x64"')
    assert {"field": "resolution", "then": "64x64", "now": "128x128", "differs": True} in two["fields"]
    assert one["history"][0]["run"] == 1
    assert summary == {"path": "photos/p000.png", "explanations": 2, "hits": 1, "misses": 1}


def test_a_name_that_must_be_there(cli: Cli, store: casstore.Store, photos: str) -> None:
    """--name asks for it."""
    build(store, Path(photos), FakeEncoder(HALF))
    code, out = cli("explain", "photos/p000.png", "--name", "mask")
    assert code == 1 and out.splitlines()[0].endswith("MISS, mask is lacking")


@pytest.mark.parametrize(
    "arguments",
    [["photos/nothing.png"], ["photos/p000.png", "-r", "no"], ["photos/p000.png", "-r", "a", "--encoder", "pixels"]],
    ids=" ".join,
)
def test_what_cannot_be_explained(cli: Cli, photos: str, arguments: list[str]) -> None:
    """A file that isn't there, an unknown recipe and two recipes at once are errors with a message."""
    code, out = cli("explain", *arguments)
    assert code > 0 and len(out.splitlines()) >= 1


# -- missing -----------------------------------------------------------------------------------------------------------


def test_missing_lists_files_and_reasons(cli: Cli, store: casstore.Store, photos: str) -> None:
    """The verdict with the time of the scan, a line for each, the next commands; exit code 1."""
    build(store, Path(photos), FakeEncoder(HALF))
    code, out = cli("missing", "photos")
    assert code == 0 and out.startswith("photos: nothing is missing in 5 files; last scanned ")
    picture(Path("photos/p000.png"), seed=50)
    store.scan("photos")
    code, out = cli("missing", "photos", "-r", "vae")
    lines = out.splitlines()
    assert code == 1 and lines[0].startswith("photos: 1 of 5 files lacks something; last scanned ")
    assert lines[2].split()[:3] == ["p000.png", "vae", "edited"]
    assert "casstore build photos --encoder E" in out
    file, summary = records(cli("missing", "photos", "--json"))
    assert (file["path"], file["reason"]) == (str(Path("photos/p000.png").resolve()), "edited")
    assert summary.items() >= {"missing": 1, "files": 5, "recipes": ["vae"]}.items()


def test_missing_is_at_most_24_lines(cli: Cli, store: casstore.Store, photos: str) -> None:
    """The rest is counted."""
    build(store, Path(photos), FakeEncoder(HALF))
    pictures(Path("photos/more"), 40)
    for number, path in enumerate(sorted(Path("photos/more").iterdir())):
        picture(path, seed=100 + number, size=(8, 8))
    store.scan("photos")
    out = cli("missing", "photos")[1]
    assert len(out.splitlines()) <= 24 and "and 22 more (--json lists all)" in out


def test_missing_failed_tells_message_and_attempts(cli: Cli, store: casstore.Store, photos: str) -> None:
    """With a folder or without; the last record of --json is the count."""
    assert cli("missing", "--failed") == (0, "no failure is remembered\n")
    build(store, Path(photos), FakeEncoder(HALF, before=failing), batch_size=1)
    code, out = cli("missing", "--failed")
    assert code == 1 and out.splitlines()[0] == "5 failures are remembered"
    assert "RuntimeError: no memory for p003.png" in out and "--retry" in out
    *failures, summary = records(cli("missing", "photos", "--failed", "-r", "vae", "--json"))
    assert summary == {"failures": 5} and {failure["attempts"] for failure in failures} == {1}


def test_missing_of_nothing_is_a_wrong_use(cli: Cli, photos: str) -> None:
    """Neither a folder nor --failed, and a folder that no scan has seen."""
    assert cli("missing")[0] == 2
    assert cli("missing", "photos")[0] == 2


# -- ls ----------------------------------------------------------------------------------------------------------------


def test_ls_lists_variants_and_says_that_there_are_more(cli: Cli, store: casstore.Store, photos: str) -> None:
    """At most 24 lines, with paths as from here; --json has all, and the count last."""
    assert cli("ls") == (0, "0 variants\n")
    pictures(Path("photos"), 30)
    build(store, Path(photos), FakeEncoder(HALF))
    code, out = cli("ls")
    lines = out.splitlines()
    assert (code, lines[0], lines[3].split()[:4]) == (0, "30 variants", ["photos/p000.png", "vae", "64x64", "latent"])
    assert len(lines) <= 24 and "and 10 more (--limit, or --json lists all)" in lines[-1]
    *found, summary = records(cli("ls", "--json"))
    assert summary == {"variants": 30} and len(found) == 30
    assert found[0]["tensors"] == {"latent": {"dtype": "F32", "shape": [4, 8, 8]}}
    counts = {place: records(cli("ls", place, "--json"))[-1]["variants"] for place in ("photos/p01", "photos/", "pho2")}
    assert counts == {"photos/p01": 10, "photos/": 30, "pho2": 0}
    assert cli("ls", "-r", "vae", "--limit", "1")[1].splitlines()[0] == "30 variants"


def test_ls_marks_what_is_damaged(cli: Cli, store: casstore.Store, photos: str) -> None:
    """As the index knows it."""
    build(store, Path(photos), FakeEncoder(HALF))
    object_files(store.path)[0].unlink()
    store.verify()
    assert cli("ls")[1].count("damaged") == 1


def test_ls_shows_texts_as_texts(cli: Cli, store: casstore.Store) -> None:
    """Quoted, without a resolution, and with their variations if there are any."""
    import numpy as np

    with store.batch() as batch:
        for variation in (0, 1):
            batch.put(casstore.Key.text("a red cat", HALF, variation=variation), {"t": np.zeros(2, np.uint8)})
    assert [line.split()[:8] for line in cli("ls")[1].splitlines()[3:]] == [
        ["'a", "red", "cat'", "vae", str(variation), "t", "U8", "[2]"] for variation in (0, 1)
    ]
