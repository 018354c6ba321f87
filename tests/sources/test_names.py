"""File names: whatever the file system allows goes through the whole cycle."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import FakeEncoder, build, check_counts, expected_of, picture

import casstore
from casstore.cli import run

NAMES = {
    "control": "new\nline \x07\x1b[31m",
    "unicode": "👩‍🎨 кошка 猫の写真 \u202eتصویر",
    "glob": '[set] a*b?{c} "it\'s" \\ %41 #?',
    "blanks": "  two  ",
    "not-utf8": os.fsdecode(b"caf\xe9 \xff\xfe"),
    "decomposed": "e\u0301",
    "longest": "x" * 251,
}


@pytest.fixture(params=NAMES.values(), ids=NAMES.keys())
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A picture whose folder and file have a difficult name."""
    drawn = picture(tmp_path / "drawn.png")
    path = tmp_path / request.param / f"{request.param}.png"
    path.parent.mkdir()
    drawn.rename(path)
    return path


def test_any_name_survives_scan_build_and_get(store: casstore.Store, source: Path) -> None:
    """A picture under any name is found, encoded under it, and got back by its path."""
    encoder = FakeEncoder()
    report = check_counts(build(store, source.parent, encoder))
    assert (report.encoded, encoder.seen) == (1, [source.name])
    got = store.get(source, encoder.recipe, as_numpy=True)["latent"]
    np.testing.assert_array_equal(got, expected_of(source, "64x64", encoder.recipe))


def test_any_name_is_recognised_by_the_next_scan(store: casstore.Store, source: Path) -> None:
    """A second scan finds the same row under the same name; a vanished file is found in the index by its name."""
    first = store.scan(source.parent)
    assert list(store.scan(source.parent)) == list(first)
    source.unlink()
    store.scan(source.parent)
    assert store.status().missing == 1


def test_any_name_can_be_read_with_sql(store: casstore.Store, source: Path) -> None:
    """The views of the SQL contract give a row for every file, whatever its name."""
    build(store, source.parent, FakeEncoder())
    for view in ("v_sources", "v_variants"):
        paths = [row[0] for row in store.sql(f"SELECT path FROM {view}").rows]
        assert len(paths) == 1
        if source.name.isascii() or os.fsencode(source).decode("utf-8", "ignore") == str(source):
            assert paths == [str(source)]


def test_any_name_survives_the_json_of_the_command_line(
    store: casstore.Store, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`build --json` names a failing file, and `status --json` a store, exactly, in ASCII."""
    source.write_bytes(b"no picture")
    place = source.parent / "store"
    casstore.open(place, create=True, durability="off").close()

    def records(*arguments: str) -> list[dict[str, Any]]:
        run([*arguments, "--json", "--store", str(place)])
        out = capsys.readouterr().out
        assert out.isascii()
        return [json.loads(line) for line in out.splitlines()]

    failure, summary = records("build", str(source.parent), "--encoder", "pixels")
    assert (failure["sample"], failure["path"], summary["failed"]) == (source.name, str(source), 1)
    assert records("status")[-1]["path"] == str(place)


def test_a_failure_message_may_quote_any_name(store: casstore.Store, source: Path) -> None:
    """An encoder's error that quotes the file name is a failure of that file, and is remembered as one."""

    def complain(items: list[casstore.Item]) -> None:
        raise ValueError(f"no luck with {items[0].sample}")

    encoder = FakeEncoder(before=complain)
    report = check_counts(build(store, source.parent, encoder))
    assert (report.failed, source.name in report.failures[0].message) == (1, True)
    assert store.status().failures == 1
