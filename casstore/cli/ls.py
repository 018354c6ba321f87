"""casstore ls"""

from __future__ import annotations

import dataclasses
import os

import click

from casstore.cli.common import open_store, with_store
from casstore.cli.output import counted, cut, emit, number, say, size, table
from casstore.upkeep.listing import ListedVariant

ROWS = 20


@click.command("ls")
@click.argument("prefix", required=False, type=click.Path(), metavar="[PATH-PREFIX]")
@with_store
@click.option("--recipe", "-r", metavar="NAME|DIGEST", help="Only of this recipe.")
@click.option("--limit", type=click.IntRange(min=0), help=f"The most to list; else {ROWS}, with --json all.")
def ls_command(prefix: str | None, place: str | None, as_json: bool, recipe: str | None, limit: int | None) -> None:
    """List what is stored, of files whose paths begin with PATH-PREFIX or of everything, oldest first."""
    most = limit if limit is not None else None if as_json else ROWS
    with open_store(place) as store:
        found = store.variants(prefix, recipe, limit=most)
    if as_json:
        for variant in found.variants:
            emit(dataclasses.asdict(variant))
        emit({"variants": found.total})
        return
    say(counted(found.total, "variant"))
    if not found.variants:
        return
    say()
    drawn = any(variant.variation for variant in found.variants)
    rows = [("what", "recipe", "resolution", *(["variation"] if drawn else []), "tensors", "stored", "")]
    for variant in found.variants:
        told = ", ".join(f"{name} {_tensor(variant, name)}" for name in variant.tensors)
        where = variant.resolution or "full size"
        row = [_what(variant), variant.recipe, "" if variant.text is not None else where]
        row += [str(variant.variation)] if drawn else []
        rows.append((*row, cut(told), size(variant.stored_bytes), "" if variant.sound else "damaged"))
    for line in table(rows, right=(len(rows[0]) - 2,)):
        say(line)
    if found.total > len(found.variants):
        say(f"... and {number(found.total - len(found.variants))} more (--limit, or --json lists all)")


def _what(variant: ListedVariant) -> str:
    if variant.text is not None:
        return cut(repr(variant.text))
    if variant.path is None:
        return f"{variant.content[:12]} (no file)"
    here = os.getcwd().rstrip("/") + "/"
    return variant.path.removeprefix(here)


def _tensor(variant: ListedVariant, name: str) -> str:
    info = variant.tensors[name]
    return f"{info.dtype} [{','.join(map(str, info.shape))}]"
