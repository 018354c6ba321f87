"""casstore recipes ls, show, diff, retire"""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from casstore.cli.common import open_store, with_store
from casstore.cli.output import ago, counted, emit, number, say, size, table
from casstore.errors import UsageError
from casstore.identity.keys import short
from casstore.identity.recipes import difference, shown, spec_fields
from casstore.index.recipes import the_recipe
from casstore.model import RecipeInfo

ROWS = 20  # that people see; --json has all


@click.group("recipes")
def recipes_command() -> None:
    """What the store's tensors were made with."""


@recipes_command.command("ls")
@with_store
def ls_command(place: str | None, as_json: bool) -> None:
    """List the recipes, and what each takes."""
    with open_store(place) as store:
        found = store.recipes()
    if as_json:
        for recipe in found:
            emit(_record(recipe))
        emit({"recipes": len(found)})
        return
    retired = sum(recipe.retired_at is not None for recipe in found)
    say(counted(len(found), "recipe") + (f", {number(retired)} of them retired" if retired else ""))
    say()
    if not found:
        say("  casstore build FOLDER --encoder E              stores the first tensors")
        return
    rows = [("recipe", "digest", "variants", "stored", "plain", "encoded", "")]
    for recipe in found[:ROWS]:
        sizes = number(recipe.variants), size(recipe.stored_bytes), size(recipe.payload_bytes)
        last = ago(recipe.encoded_at) if recipe.encoded_at is not None else ""
        rows.append((recipe.title, _short(recipe), *sizes, last, "retired" if recipe.retired_at is not None else ""))
    for line in table(rows, right=(2, 3, 4)):
        say(line)
    if len(found) > ROWS:
        say(f"... and {number(len(found) - ROWS)} more (--json lists all)")


@recipes_command.command("show")
@click.argument("name", metavar="NAME|DIGEST")
@with_store
def show_command(name: str, place: str | None, as_json: bool) -> None:
    """Tell all about one recipe. Four hex digits of its digest will do, if no other begins with them."""
    with open_store(place) as store:
        recipe = the_recipe(store.recipes(), name)
    if as_json:
        emit(_record(recipe))
        return
    retired = f", retired {ago(recipe.retired_at)}" if recipe.retired_at is not None else ""
    say(f"{recipe.title}: {counted(recipe.variants, 'variant')}, {size(recipe.stored_bytes)}{retired}")
    say()
    encoded = f"; last build {ago(recipe.encoded_at)}" if recipe.encoded_at is not None else ""
    say(f"digest   {recipe.digest}")
    say(f"used     first {ago(recipe.created_at)}{encoded}")
    say(f"takes    {size(recipe.stored_bytes)}, plain {size(recipe.payload_bytes)}")
    say()
    for line in table([(field, shown(value)) for field, value in _fields(recipe).items()]):
        say(line)
    say()
    undo = " --undo" if recipe.retired_at is not None else ""
    wish = "it is wanted after all" if undo else "it isn't wanted any more"
    say(f"  {wish:<46} casstore recipes retire {recipe.digest[:12]}{undo}")


@recipes_command.command("diff")
@click.argument("one", metavar="A")
@click.argument("other", metavar="B")
@with_store
def diff_command(one: str, other: str, place: str | None, as_json: bool) -> int:
    """Tell the fields in which the recipes A and B differ (names or digests); exit code 1 if there are any."""
    with open_store(place) as store:
        known = store.recipes()
    a, b = the_recipe(known, one), the_recipe(known, other)
    found = difference(a.spec, b.spec)
    if as_json:
        for field, its, others in found:
            emit({"field": field, "a": its, "b": others})
        emit({"a": a.digest, "b": b.digest, "differences": len(found)})
    elif not found:
        say(f"{a.title} {_short(a)} is one recipe, not two")
    else:
        say(f"{counted(len(found), 'field')} {'differs' if len(found) == 1 else 'differ'}")
        say()
        rows: list[tuple[str, ...]] = [("", f"{a.title} {_short(a)}", f"{b.title} {_short(b)}")]
        for line in table([*rows, *((field, shown(its), shown(others)) for field, its, others in found)]):
            say(line)
    return int(bool(found))


@recipes_command.command("retire")
@click.argument("name", metavar="NAME|DIGEST")
@with_store
@click.option("--undo", is_flag=True, help="It is wanted after all.")
def retire_command(name: str, undo: bool, place: str | None, as_json: bool) -> None:
    """Say that a recipe isn't wanted any more. Nothing is removed: it still serves hits.

    Whoever stores anything with it brings it back.
    """
    with open_store(place) as store:
        recipe = store.retire(name, undo=undo)
    if as_json:
        emit(_record(recipe))
        return
    what = f"{recipe.title} {_short(recipe)}"
    holds = f"{counted(recipe.variants, 'variant')}, {size(recipe.stored_bytes)}"
    say(f"{what} is {'wanted again' if undo else 'retired'}: {holds}")
    if not undo:
        say()
        say(f"  take it back                                   casstore recipes retire {recipe.digest[:12]} --undo")


def _record(recipe: RecipeInfo) -> dict[str, Any]:
    return dataclasses.asdict(recipe) | {"spec": _fields(recipe)}


def _fields(recipe: RecipeInfo) -> dict[str, Any]:
    try:
        return spec_fields(recipe.spec)
    except UsageError:  # a flipped bit in one must not hide the others
        return {"unreadable": recipe.spec}


def _short(recipe: RecipeInfo) -> str:
    return short(bytes.fromhex(recipe.digest))
