"""casstore status"""

from __future__ import annotations

import dataclasses
import os

import click

from casstore.cli.common import open_store, with_store
from casstore.cli.output import SHOWN, ago, counted, emit, number, say, size, table
from casstore.model import RunSummary, Status

BAR = 12  # characters
WAL_NOTED = 64 << 20  # bytes


@click.command("status")
@with_store
def status_command(place: str | None, as_json: bool) -> None:
    """Tell what the store holds: recipes, sizes, failures, the last runs."""
    with open_store(place) as store:
        found = store.status()
    if as_json:
        emit(dataclasses.asdict(found))
    else:
        _show(found)


def _show(found: Status) -> None:
    health = "sound" if not found.damaged else f"{counted(found.damaged, 'damaged object')}"
    line = f"{os.path.basename(found.path)}: {health}; {counted(found.variants, 'variant')}, {size(found.stored_bytes)}"
    if found.failures:
        line += f"; {number(found.failures)} failed"
    say(line)
    if found.recipes:
        say()
        largest = max(recipe.stored_bytes for recipe in found.recipes) or 1
        rows = [("recipe", "variants", "stored", "", "plain")]
        for recipe in found.recipes[:SHOWN]:
            bar = "#" * max(1 if recipe.stored_bytes else 0, round(BAR * recipe.stored_bytes / largest))
            row = (recipe.name, number(recipe.variants), size(recipe.stored_bytes), bar, size(recipe.payload_bytes))
            rows.append(row)
        for text in table(rows, right=(1, 2, 4)):
            say(text)
        if len(found.recipes) > SHOWN:
            say(f"... and {number(len(found.recipes) - SHOWN)} more (--json lists all)")
    say()
    missing = f", {number(found.missing)} gone since" if found.missing else ""
    say(f"sources  {counted(found.sources, 'file')} at the last scan{missing}; {counted(found.hashes, 'content')}")
    say(f"objects  {number(found.objects)}; {size(found.payload_bytes)} take {size(found.stored_bytes)}")
    say(f"safety   durability {found.durability}")
    if found.wal_bytes > WAL_NOTED:
        say(f"index    {size(found.wal_bytes)} wait in its log: some program holds an old state; close it")
    for run in found.runs:
        say(f"{run.kind:<8} {_run(run)}")
    say()
    if found.damaged:
        say("  the next build heals what is damaged           casstore build FOLDER --encoder E")
    say("  check every byte                               casstore verify --deep")


def _run(run: RunSummary) -> str:
    if run.finished_at is None:
        return f"begun {ago(run.started_at)}, never ended"
    words = {"encoded": "encoded", "hits": "reused", "failed": "failed", "left": "left", "swept": "swept"}
    told = ", ".join(f"{number(run.counts[name])} {word}" for name, word in words.items() if run.counts.get(name))
    return f"{ago(run.finished_at)}: {told or 'nothing to do'}" + (f"; {run.error}" if run.error else "")
