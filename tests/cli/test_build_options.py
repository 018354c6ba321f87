"""casstore build: which resolutions, variations and names are asked for, and what is told before anything runs."""

from __future__ import annotations

import gc
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kit import pictures, spy

import casstore
from casstore.cli import run
from casstore.cli.build_options import resolutions_from
from casstore.cli.build_output import LOOKED_AT, noun
from casstore.errors import UsageError

_numbers = itertools.count()
ENCODER = """
import casstore, kit
def one(): return kit.FakeEncoder(casstore.Recipe("vae", weights="ab" * 32, dtype="float16", code=1, stride=8))
def two(): return kit.FakeEncoder(casstore.Recipe("vae", weights="ab" * 32, dtype="bfloat16", code=1, stride=8))
def bare(): return kit.FakeEncoder(casstore.Recipe("bare", stride=8))
class Names:
    recipe = casstore.Recipe("names", weights=False, code=1)
    asked = []
    def __call__(self, items):
        self.asked += [item.names for item in items]
        made = [kit.FakeEncoder(self.recipe)([item])[0]["latent"] for item in items]
        return [{"latent": tensor, "mask": tensor, "crop_offset": (0, 0)} for tensor in made]
"""
Cli = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture
def cli(
    store: casstore.Store, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cli]:
    """Builds a folder of three pictures with an encoder of the module above: (exit code, summary, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    pictures(tmp_path / "photos", 3, size=(160, 96))
    module = f"build_encoder_{next(_numbers)}"
    (tmp_path / f"{module}.py").write_text(ENCODER)

    def built(encoder: str, *options: str) -> tuple[int, dict[str, Any], str]:
        capsys.readouterr()
        code = run(["build", "photos", "--encoder", f"{module}:{encoder}", *options, "-s", store.path])
        out, err = capsys.readouterr()
        return code, json.loads(out.splitlines()[-1]) if "--json" in options and out else {}, err

    built.module = module  # type: ignore[attr-defined]
    yield built
    gc.enable()


def stored(store: casstore.Store) -> set[str]:
    return {row[0] for row in store.sql("SELECT resolution FROM v_variants").rows}


# -- resolutions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [["--resolution", "64,128x64"], ["--resolution", "64", "--resolution", "128x64"]])
def test_several_resolutions(cli: Cli, store: casstore.Store, options: list[str]) -> None:
    """A list with commas, or the option given again: each is built."""
    code, summary, _ = cli("one", *options, "--json")
    assert (code, summary["encoded"], stored(store)) == (0, 6, {"64x64", "128x64"})


def test_what_the_options_ask_for() -> None:
    """Areas, sizes, the methods, and nothing for the full size."""
    assert resolutions_from([], None, upscale=True) is None
    assert resolutions_from(["512"], None, upscale=True) == 512
    assert resolutions_from(["512, 768", "64x64"], None, upscale=True) == (512, 768, "64x64")
    kohya = casstore.Buckets(512, 768, method="kohya")
    assert resolutions_from(["512,768"], "kohya", upscale=True) == kohya
    small = casstore.Buckets(512, upscale=False)
    assert resolutions_from(["512,64x64"], None, upscale=False) == (small, "64x64")


@pytest.mark.parametrize("given", [[], ["64x64"], ["large"], ["512,,768"], [""]])
def test_a_method_without_an_area_is_refused(given: list[str]) -> None:
    """It would mean nothing; and what is no resolution is refused, too."""
    with pytest.raises(UsageError):
        resolutions_from(given, "onetrainer", upscale=True)
    if given == []:
        with pytest.raises(UsageError, match="--no-upscale"):
            resolutions_from(given, None, upscale=False)


def test_a_method_and_no_upscale_choose_other_sizes(cli: Cli, store: casstore.Store) -> None:
    """The pictures have 160 x 96 pixels: without upscaling they keep that, in steps of 64."""
    assert cli("one", "--resolution", "512", "--no-upscale", "--json")[1]["encoded"] == 3
    assert stored(store) == {"64x128"}
    assert cli("one", "--resolution", "256", "--buckets", "onetrainer", "--json")[1]["encoded"] == 3
    assert stored(store) == {"64x128", casstore.Buckets(256, method="onetrainer").choose(96, 160)[0]}


# -- variations and names ----------------------------------------------------------------------------------------------


def test_variations(cli: Cli) -> None:
    """As many of each; more are added to what is there."""
    assert cli("one", "--resolution", "64", "--variations", "2", "--json")[1]["encoded"] == 6
    summary = cli("one", "--resolution", "64", "--variations", "3", "--json")[1]
    assert (summary["hits"], summary["encoded"], summary["reasons"]) == (6, 3, {"variation": 3})
    assert cli("one", "--variations", "0")[0] == 2


@pytest.mark.parametrize("rebuild", [False, True])
def test_names_that_must_be_there(cli: Cli, store: casstore.Store, rebuild: bool) -> None:
    """Only what is lacking is asked for; with --rebuild all of it."""
    module = cli.module  # type: ignore[attr-defined]
    assert cli("Names", "--name", "latent", "--json")[1]["encoded"] == 3
    sys.modules[module].Names.asked.clear()
    code, summary, _ = cli("Names", "--name", "latent", "--name", "other", *["--rebuild"] * rebuild, "--json")
    assert (code, summary["reasons"]) == (1, {"output missing": 3})
    asked = sys.modules[module].Names.asked
    assert all("other" in names for names in asked) and any("latent" in names for names in asked) == rebuild


# -- what is told before -----------------------------------------------------------------------------------------------


def test_the_estimated_time_is_told_before_anything_runs(cli: Cli, store: casstore.Store) -> None:
    """By the usual time of an encode, as soon as there is one."""
    err = cli("one", "--resolution", "64")[2]
    assert "plan     0 reused, 3 to encode (3 new)\n" in err
    with store._handle.index.write() as connection:
        connection.exec_driver_sql("UPDATE variants SET encode_us = 40000000")
    err = cli("one", "--resolution", "64,128")[2]
    assert "plan     3 reused, 3 to encode (3 resolution), about 2 min\n" in err
    assert "plan     6 reused\n" in cli("one", "--resolution", "64,128")[2]


def test_the_notes_of_a_plan_are_told(cli: Cli) -> None:
    """What a recipe leaves open, and in what a new one differs; with --json, too."""
    assert not re.search("^note ", cli("one", "--resolution", "64")[2], re.MULTILINE)
    assert "note     new recipe; differs from the newest 'vae' in: dtype\n" in cli("two", "--resolution", "64")[2]
    err = cli("bare", "--resolution", "64", "--json")[2]
    assert all(f"note     recipe 'bare' has no {what}" in err for what in ("weights digest", "dtype", "code version"))


def test_the_word_for_rows_is_found_in_the_first_hundred(cli: Cli, store: casstore.Store, monkeypatch: Any) -> None:
    """A plan of a million rows isn't walked for it."""
    plan = store.plan(store.scan("photos"), casstore.Recipe("r", code=1), resolution="64x64", variations=100)
    calls = spy(monkeypatch, "casstore.build.cells.kind_of")
    assert (noun(plan), len(calls), plan.planned) == ("picture", LOOKED_AT, 300)
