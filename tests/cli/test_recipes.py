"""casstore recipes: what tensors were made with, seen, compared and retired from the command line."""

from __future__ import annotations

import gc
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from kit import object_files

import casstore
from casstore.cli import run
from casstore.errors import UsageError
from casstore.index.recipes import newest_named, unretire_used

VAE = casstore.Recipe("vae", weights="ab" * 32, dtype="float16", code=1, namespace="team")
OTHER = casstore.Recipe("vae", weights="cd" * 32, dtype="float16", code=1)
CLIP = casstore.Recipe("clip", code=1, preprocess={"words": 77})
Plain = Callable[..., tuple[int, str]]


def put(store: casstore.Store, recipe: casstore.Recipe, *texts: str) -> None:
    with store.batch() as batch:
        for text in texts:
            batch.put(casstore.Key.text(text, recipe), {"t": np.frombuffer(text.encode().ljust(32), np.uint8)})


@pytest.fixture
def filled(store: casstore.Store) -> casstore.Store:
    """A store with three recipes: of "vae" there are two, one of them with two variants."""
    for recipe, texts in ((OTHER, "x"), (VAE, "ab"), (CLIP, "cde")):
        put(store, recipe, *texts)
    return store


@pytest.fixture
def cli(filled: casstore.Store, capsys: pytest.CaptureFixture[str]) -> Iterator[Plain]:
    """Runs `casstore recipes ...`: (exit code, what it printed, errors last)."""

    def plain(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        code = run(["recipes", *arguments, "--store", filled.path])
        out, err = capsys.readouterr()
        return code, out + err

    yield plain
    gc.enable()


def records(answer: tuple[int, str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in answer[1].splitlines()]


# -- ls and show -----------------------------------------------------------------------------------------------------


def test_ls_lists_recipes_with_counts_and_bytes(cli: Plain, filled: casstore.Store) -> None:
    """One record each, most variants first, with the sums of their objects; the last says how many there are."""
    *found, summary = records(cli("ls", "--json"))
    assert summary == {"recipes": 3}
    assert [(r["name"], r["namespace"], r["digest"], r["variants"]) for r in found] == [
        ("clip", None, CLIP.digest.hex(), 3),
        ("vae", "team", VAE.digest.hex(), 2),
        ("vae", None, OTHER.digest.hex(), 1),
    ]
    assert sum(r["stored_bytes"] for r in found) == sum(path.stat().st_size for path in object_files(filled.path))
    assert found[0]["spec"] == json.loads(CLIP.spec) and found[0]["retired_at"] is None


def test_people_see_names_before_digests(cli: Plain) -> None:
    """The verdict first, then a line for each recipe, with its namespace and a short digest."""
    code, out = cli("ls")
    lines = out.splitlines()
    assert (code, lines[0]) == (0, "3 recipes")
    assert lines[4].startswith("team/vae  ") and VAE.digest.hex() not in out


def test_ls_of_a_store_without_recipes_says_what_makes_one(store: casstore.Store, capsys: Any) -> None:
    """It is fine, and names the next command."""
    assert run(["recipes", "ls", "-s", store.path]) == 0
    assert "casstore build" in capsys.readouterr().out
    gc.enable()


@pytest.mark.parametrize("name", ["clip", CLIP.digest.hex()[:6], CLIP.digest.hex().upper()])
def test_a_recipe_is_named_by_name_or_digest(cli: Plain, name: str) -> None:
    """The first hex digits of a digest are enough."""
    (found,) = records(cli("show", name, "--json"))
    assert found["digest"] == CLIP.digest.hex()


def test_a_namespace_tells_recipes_of_one_name_apart(cli: Plain) -> None:
    """As the list shows it, team/vae names just one."""
    (found,) = records(cli("show", "team/vae", "--json"))
    assert found["digest"] == VAE.digest.hex()


def test_a_damaged_row_does_not_hide_the_others(cli: Plain, filled: casstore.Store) -> None:
    """Of a spec in which a bit has flipped, the text is shown."""
    with filled._handle.index.write() as connection:
        connection.exec_driver_sql("UPDATE recipes SET spec = '{' WHERE name = 'clip'")
    *found, _ = records(cli("ls", "--json"))
    assert [record["spec"] for record in found if record["name"] == "clip"] == [{"unreadable": "{"}]
    assert cli("show", "clip")[0] == 0
    with filled._handle.index.read() as connection:
        assert newest_named(connection, "clip") is None


def test_show_tells_the_fields_for_people(cli: Plain) -> None:
    """Its verdict, its whole digest, its binding fields, and how to retire it."""
    out = cli("show", VAE.digest.hex()[:8])[1]
    assert out.startswith("team/vae: 2 variants, ") and f"digest   {VAE.digest.hex()}\n" in out
    assert "weights  abab..ab" in out and "casstore recipes retire" in out


@pytest.mark.parametrize("verb", ["show", "retire"])
def test_an_ambiguous_name_lists_the_candidates(cli: Plain, verb: str) -> None:
    """Exit code 2, and the digests to choose from."""
    code, out = cli(verb, "vae")
    assert code == 2
    assert all(recipe.digest.hex()[:12] in out for recipe in (VAE, OTHER)) and CLIP.digest.hex()[:12] not in out


def test_a_name_that_looks_like_another_ones_digest_is_ambiguous(cli: Plain, filled: casstore.Store) -> None:
    """Better to ask than to retire the wrong one."""
    put(filled, casstore.Recipe(CLIP.digest.hex()[:5]), "x")
    assert cli("show", CLIP.digest.hex()[:5])[0] == 2


@pytest.mark.parametrize("name", ["va", "", "VAE", CLIP.digest.hex()[:3], "0" * 64])
def test_a_name_that_does_not_exist_exits_with_2(cli: Plain, name: str) -> None:
    """Parts of names, other cases and less than four digits name nothing; the message says how to see what there is."""
    code, out = cli("show", name)
    assert code == 2 and "casstore recipes ls" in out


# -- diff ------------------------------------------------------------------------------------------------------------


def test_diff_names_only_the_fields_that_differ(cli: Plain) -> None:
    """A record for each, exit code 1; the last record has both digests."""
    code, out = cli("diff", VAE.digest.hex()[:8], OTHER.digest.hex()[:8], "--json")
    field, summary = records((code, out))
    assert (code, field) == (1, {"field": "weights", "a": "ab" * 32, "b": "cd" * 32})
    assert summary == {"a": VAE.digest.hex(), "b": OTHER.digest.hex(), "differences": 1}


def test_people_see_both_sides_of_a_difference(cli: Plain) -> None:
    """A line for each field with both values, short enough for a terminal."""
    out = cli("diff", "clip", OTHER.digest.hex()[:8])[1]
    assert out.startswith("4 fields differ\n")
    assert 'preprocess  {"words":77}' in out and "cdcd..cd" in out


def test_a_recipe_does_not_differ_from_itself(cli: Plain) -> None:
    """Exit code 0."""
    assert cli("diff", "clip", CLIP.digest.hex()) == (
        0,
        f"clip {CLIP.digest.hex()[:4]}..{CLIP.digest.hex()[-2:]} is one recipe, not two\n",
    )


# -- retire ----------------------------------------------------------------------------------------------------------


def test_a_retired_recipe_still_serves(cli: Plain, filled: casstore.Store) -> None:
    """Retiring removes nothing, is seen in the list, and can be taken back."""
    (record,) = records(cli("retire", "clip", "--json"))
    assert record["retired_at"] is not None
    assert "1 of them retired" in cli("ls")[1]
    assert filled.get(casstore.Key.text("c", CLIP), as_numpy=True)["t"][0] == ord("c")
    assert cli("retire", "clip", "--undo")[0] == 0
    assert all(recipe.retired_at is None for recipe in filled.recipes())


def test_retiring_twice_keeps_the_first_time(filled: casstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store's method takes the recipe itself, and says since when it is retired."""
    first = filled.retire(CLIP).retired_at
    monkeypatch.setattr("casstore.index.recipes.now_ms", lambda: (first or 0) + 5000)
    assert filled.retire("clip").retired_at == first
    assert filled.retire("clip", undo=True).retired_at is None


def test_a_recipe_that_was_never_used_cannot_be_retired(filled: casstore.Store) -> None:
    """The message names it."""
    with pytest.raises(UsageError, match="no recipe new"):
        filled.retire(casstore.Recipe("new"))


def test_storing_with_a_retired_recipe_brings_it_back(filled: casstore.Store, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever works with it wants it, and the log says so; other recipes stay retired."""
    filled.retire(CLIP)
    filled.retire(OTHER)
    with caplog.at_level(logging.WARNING, "casstore.index"):
        put(filled, CLIP, "f")
    retired = {recipe.digest: recipe.retired_at is not None for recipe in filled.recipes()}
    assert retired == {CLIP.digest.hex(): False, OTHER.digest.hex(): True, VAE.digest.hex(): False}
    assert [record.getMessage() for record in caplog.records if "clip" in record.getMessage()]


def test_a_build_can_bring_recipes_back_that_only_serve(filled: casstore.Store) -> None:
    """`unretire_used` says which of those that are worked with were retired."""
    filled.retire(CLIP)
    with filled._handle.index.write() as connection:
        assert unretire_used(connection, [CLIP.digest, VAE.digest]) == ["clip"]
        assert unretire_used(connection, [CLIP.digest]) == []


# -- the newest of a name --------------------------------------------------------------------------------------------


def test_the_newest_recipe_of_a_name_is_the_one_first_used_last(filled: casstore.Store) -> None:
    """Of two with one name the later; none of a name that isn't there."""
    with filled._handle.index.read() as connection:
        assert newest_named(connection, "vae") == (VAE.digest, VAE.spec)
        assert newest_named(connection, "nothing") is None


def test_a_namespace_is_kept_as_first_given(filled: casstore.Store) -> None:
    """It is informative: the same recipe under another namespace is the same row."""
    put(filled, casstore.Recipe("vae", weights="ab" * 32, dtype="float16", code=1, namespace="others"), "g")
    (found,) = [recipe for recipe in filled.recipes() if recipe.digest == VAE.digest.hex()]
    assert (found.namespace, found.variants) == ("team", 3)
