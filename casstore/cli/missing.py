"""casstore missing"""

from __future__ import annotations

import dataclasses
import os

import click

from casstore.cli.common import open_store, with_store
from casstore.cli.output import ago, counted, cut, emit, number, say, table
from casstore.errors import UsageError
from casstore.upkeep.missing import FailedKey, MissingFiles

ROWS = 18  # that people see; --json has all


@click.command("missing")
@click.argument("folder", required=False, type=click.Path())
@with_store
@click.option("--failed", is_flag=True, help="What couldn't be encoded, as long as that is remembered.")
@click.option("--recipe", "-r", metavar="NAME|DIGEST", help="Only of this recipe.")
def missing_command(folder: str | None, place: str | None, as_json: bool, failed: bool, recipe: str | None) -> int:
    """Tell which files of FOLDER lack what its other files have, and why. Nothing is scanned: the index tells.

    With --failed: what has failed, in FOLDER or anywhere. Exit code 1 if there is anything.
    """
    if folder is None and not failed:
        raise UsageError("missing in which folder? casstore missing FOLDER, or casstore missing --failed")
    with open_store(place) as store:
        if failed:
            failures = store.failures(folder, recipe)
            _show_failures(failures, as_json=as_json)
            return int(bool(failures))
        assert folder is not None
        found = store.missing(folder, recipe)
    _show(folder, found, as_json=as_json)
    return int(bool(found.missing))


def _show(folder: str, found: MissingFiles, *, as_json: bool) -> None:
    if as_json:
        for file in found.missing:
            emit(dataclasses.asdict(file))
        summary = dataclasses.asdict(found) | {"missing": len(found.missing)}
        emit(summary)
        return
    seen = f"last scanned {ago(found.scanned_at)}"
    if not found.recipes:
        say(f"{folder}: nothing is stored of its {counted(found.files, 'file')}; {seen}")
    elif not found.missing:
        say(f"{folder}: nothing is missing in {counted(found.files, 'file')}; {seen}")
    else:
        lack = len({file.path for file in found.missing})
        verb = "lacks" if lack == 1 else "lack"
        say(f"{folder}: {number(lack)} of {counted(found.files, 'file')} {verb} something; {seen}")
        say()
        rows = [
            (cut(os.path.relpath(file.path, found.folder)), file.recipe, file.reason, cut(file.detail, 60))
            for file in found.missing[:ROWS]
        ]
        for line in table(rows):
            say(line)
        if len(found.missing) > ROWS:
            say(f"... and {number(len(found.missing) - ROWS)} more (--json lists all)")
    if found.missing or not found.recipes:
        from casstore.build.plan import spoken

        say()
        about = f", about {spoken(found.seconds)}" if found.seconds else ""
        say(f"  {'encode it' + about:<46} casstore build {folder} --encoder E")
    if found.missing:
        say(f"  {'all about one of them':<46} casstore explain FILE -r NAME")


def _show_failures(found: list[FailedKey], *, as_json: bool) -> None:
    if as_json:
        for failure in found:
            emit(dataclasses.asdict(failure))
        emit({"failures": len(found)})
        return
    if not found:
        say("no failure is remembered")
        return
    say(f"{counted(len(found), 'failure')} {'is' if len(found) == 1 else 'are'} remembered")
    say()
    rows = [("what", "recipe", "at", "tried", "last", "why")]
    for failure in found[:ROWS]:
        what = failure.path or (repr(failure.text) if failure.text is not None else failure.content[:12])
        tried = f"{number(failure.attempts)}x"
        why = cut(f"{failure.error_type}: {failure.message}".partition("\n")[0], 70)
        rows.append((cut(what), failure.recipe, failure.resolution, tried, ago(failure.last_at), why))
    for line in table(rows):
        say(line)
    if len(found) > ROWS:
        say(f"... and {number(len(found) - ROWS)} more (--json lists all)")
    say()
    say("  try all of them again                          casstore build FOLDER --encoder E --retry")
