"""casstore verify, casstore gc, casstore repack"""

from __future__ import annotations

import dataclasses

import click

from casstore.cli.common import open_store, with_store
from casstore.cli.output import SHOWN, counted, emit, number, say, seconds, size
from casstore.model import CODECS, Codec


@click.command("verify")
@with_store
@click.option("--deep", is_flag=True, help="Read, decode and hash every object.")
def verify_command(place: str | None, as_json: bool, deep: bool) -> int:
    """Check the objects against the index: names and sizes, with --deep every byte.

    What is damaged is noted, so that the next build makes it again; nothing is moved or deleted.
    """
    with open_store(place) as store:
        report = store.verify(deep=deep)
    if as_json:
        for finding in report.findings:
            emit(dataclasses.asdict(finding))
        emit({"checked": report.checked, "damaged": report.damaged, "deep": deep, "seconds": report.seconds})
        return 1 if report.damaged else 0
    how = "every byte" if deep else "names and sizes"
    checked = f"{counted(report.checked, 'object')} checked ({how}) in {seconds(report.seconds)}"
    if not report.damaged:
        say(f"sound: {checked}")
        if not deep:
            say()
            say("  check every byte                               casstore verify --deep")
        return 0
    say(f"damaged: {counted(report.damaged, 'finding')}; {checked}")
    for finding in report.findings[:SHOWN]:
        say(f"{finding.what:<8} {finding.name}: {finding.problem}")
    if report.damaged > SHOWN:
        say(f"... and {number(report.damaged - SHOWN)} more (--json lists all)")
    say()
    say("  the next build makes them again                casstore build FOLDER --encoder E")
    return 1


@click.command("gc")
@with_store
@click.option("--yes", is_flag=True, help="Do it; otherwise only say what would go.")
@click.option("--grace", type=click.FloatRange(min=0), metavar="HOURS", help="How long garbage is kept; else 24.")
def gc_command(place: str | None, as_json: bool, yes: bool, grace: float | None) -> None:
    """Remove objects that nobody refers to, and what killed processes left behind.

    An object is condemned first, and swept by a later gc when the grace period is over.
    """
    with open_store(place) as store:
        report = store.gc(yes=yes, grace_hours=grace)
    if as_json:
        emit(dataclasses.asdict(report))
    elif yes:
        removed = f"{counted(report.swept, 'object')}, {counted(report.leftovers, 'leftover')}"
        say(f"freed {size(report.freed_bytes)}: {removed}")
        if report.waiting:
            say(
                f"waiting for the grace period or an open dataset to end: {counted(report.waiting, 'condemned object')}"
            )
    else:
        say(f"dry run: would free {size(report.would_free_bytes)}; nothing is removed yet")
        if report.condemned:
            say(f"would condemn {counted(report.condemned, 'object')} that nobody refers to")
        if report.waiting:
            say(
                f"waiting for the grace period or an open dataset to end: {counted(report.waiting, 'condemned object')}"
            )
        if report.leftovers:
            say(f"{counted(report.leftovers, 'leftover')} of killed processes would go")
        if report.condemned or report.would_free_bytes:
            say()
            say("  do it                                          casstore gc --yes")


@click.command("repack")
@with_store
@click.option("--codec", type=click.Choice(CODECS), required=True, help="raw: can be mapped; zstd: takes less room.")
@click.option("--yes", is_flag=True, help="Do it; otherwise only say what would change.")
def repack_command(place: str | None, as_json: bool, codec: Codec, yes: bool) -> int:
    """Change how objects are stored, while others use the store. What is read from it stays the same.

    Interrupted, it goes on where it was when it is run again.
    """
    with open_store(place) as store:
        report = store.repack(codec, yes=yes)
    if as_json:
        emit({**dataclasses.asdict(report), "yes": yes})
    elif not yes:
        say(f"dry run: {counted(report.objects, 'object')} would be stored {codec}, now {size(report.bytes_before)}")
        if report.objects:
            say()
            say(f"  do it                                          casstore repack --codec {codec} --yes")
    else:
        say(
            f"repacked {counted(report.done, 'object')}: {size(report.bytes_before)} -> {size(report.bytes_after)} "
            f"in {seconds(report.seconds)}"
        )
        if report.damaged:
            say(f"damaged  {counted(report.damaged, 'object')}; the next build makes them again")
    return 1 if report.damaged else 0
