"""T50: a data folder that can't be written, with a file in it that can't be read."""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit import as_nobody, check_counts, picture, pictures

import casstore
from casstore.cli import run
from casstore.encoders.pixels import Pixels

ENCODER = Pixels()


def prepare(folder: Path) -> None:
    """A data folder in which nobody (who runs the test) can write, and whose file b/secret.png he can't read."""
    pictures(folder / "data", 3)
    picture(folder / "data" / "b" / "open.png", seed=10)
    picture(folder / "data" / "b" / "secret.png", seed=11)
    for path in (folder / "data").rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    (folder / "data" / "b" / "secret.png").chmod(0)
    (folder / "data").chmod(0o555)


def beside(folder: Path) -> dict[str, Any]:
    """All that is in the data folder: modes, sizes, times."""
    found = {}
    for place in sorted((folder / "data").rglob("*")):
        state = place.lstat()
        found[str(place)] = [state.st_mode, state.st_size, state.st_mtime_ns, state.st_ctime_ns]
    return found


def checked(work: Callable[[Path], Any]) -> Any:
    """What work(folder) returns as a user without rights, if the data folder is as it was afterwards."""

    def inside(folder: Path) -> Any:
        with pytest.raises(PermissionError):  # or the test would prove nothing
            (folder / "data" / "b" / "mine").touch()
        before = beside(folder)
        found = [work(folder), beside(folder) == before, sorted(os.listdir(folder))]
        with contextlib.suppress(PermissionError):  # who isn't root has made the folder himself, and must remove it
            for place in (folder / "data", folder / "data" / "b"):
                place.chmod(0o700)
        return found

    found, same, names = as_nobody(inside, prepare)
    assert same, "something was written beside the data"
    assert names == ["data", "store"]
    return found


def test_a_data_folder_that_cannot_be_written_is_built_from() -> None:
    """Scan, plan and build leave the folder alone; the unreadable file fails with its path, the rest is served."""

    def work(folder: Path) -> Any:
        with casstore.open(folder / "store", create=True) as store:
            plan = store.plan(store.scan(folder / "data"), ENCODER.recipe, resolution="64x64")
            report = check_counts(store.build(plan, ENCODER))
            told = [[f.sample, f.path == str(folder / "data" / f.sample), f.message] for f in report.failures]
            paths = store.sql("SELECT path FROM v_variants ORDER BY path").rows
            served = [store.get(row[0], ENCODER.recipe, as_numpy=True)["pixels"].shape == (3, 64, 64) for row in paths]
            return [report.encoded, told, [os.path.relpath(row[0], folder / "data") for row in paths], served]

    encoded, told, paths, served = checked(work)
    assert paths == ["b/open.png", "p000.png", "p001.png", "p002.png"]
    assert (encoded, served) == (4, [True] * 4)
    ((sample, has_path, message),) = told
    assert (sample, has_path) == ("b/secret.png", True)
    assert "b/secret.png" in message and "Permission denied" in message


@pytest.mark.parametrize("as_json", [False, True])
def test_the_command_line_names_what_it_could_not_read_and_exits_with_1(as_json: bool) -> None:
    """`casstore build` of such a folder stores the rest, lists the file, and ends with 1, as often as it is run."""

    def work(folder: Path) -> Any:
        casstore.open(folder / "store", create=True, durability="off").close()
        arguments = ["build", str(folder / "data"), "--encoder", "pixels", "--store", str(folder / "store")]
        told = []
        for _ in range(2):
            with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()):
                code = run([*arguments, *(["--json"] if as_json else [])])
            told.append([code, out.getvalue()])
        return told

    for number, (code, out) in enumerate(checked(work)):
        assert code == 1
        assert "b/secret.png" in out and "Permission denied" in out
        if as_json:
            summary = json.loads(out.splitlines()[-1])
            counts = [summary[name] for name in ("planned", "hits", "encoded", "failed")]
            assert counts == [5, *([0, 4] if number == 0 else [4, 0]), 1]
