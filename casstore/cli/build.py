"""casstore build"""

from __future__ import annotations

import dataclasses
import time
from typing import Any, Literal

import click

from casstore.build.progress import shown
from casstore.cli.common import open_store, with_store
from casstore.cli.output import SHOWN, counted, emit, note, number, say, seconds, size
from casstore.encoders.load import load_encoder
from casstore.errors import BuildInterrupted
from casstore.identity import resolutions
from casstore.model import BuildReport


@click.command("build")
@click.argument("folders", nargs=-1, required=True, metavar="FOLDER...")
@with_store
@click.option("--encoder", required=True, metavar="E", help="pixels, or package.module:attribute.")
@click.option("--resolution", metavar="R", help="N (about N x N pixels), HEIGHTxWIDTH, or nothing: the full size.")
@click.option(
    "--batch-size", type=click.IntRange(min=1), default=8, show_default=True, help="Pictures per encoder call."
)
@click.option("--workers", type=click.IntRange(min=1), help="Decode threads; else one per core.")
@click.option("--on-error", type=click.Choice(["skip", "raise"]), default="skip", show_default=True)
@click.option("--retry", is_flag=True, help="Also try pictures again that couldn't be decoded before.")
def build_command(
    folders: tuple[str, ...],
    place: str | None,
    as_json: bool,
    encoder: str,
    resolution: str | None,
    batch_size: int,
    workers: int | None,
    on_error: Literal["skip", "raise"],
    retry: bool,
) -> int:
    """Encode what is new or changed in FOLDERs of pictures, and store it.

    What is stored already, wherever the file is by now and whatever it is called, is reused. Run it again after a stop:
    it goes on where it was.
    """
    wanted = resolutions.check(resolution)
    with open_store(place) as store:
        loaded = load_encoder(encoder)
        started = time.monotonic()
        with shown(None, 1, what="scan") as progress:
            inputs = store.scan(*folders, progress=progress)
        plan = store.plan(inputs, loaded.recipe, resolution=wanted)
        if not as_json:
            note(f"scan     {counted(len(inputs), 'file')} in {seconds(time.monotonic() - started)}")
            note(f"plan     {_reasons(plan.hits, plan.reasons, retry=retry)}")
        try:
            report = store.build(
                plan, loaded, batch_size=batch_size, workers=workers, on_error=on_error, retry_failed=retry
            )
        except BuildInterrupted as error:
            if error.report is not None:
                _show(error.report, time.monotonic() - started, as_json=as_json)
            raise
        _show(report, time.monotonic() - started, as_json=as_json)
    return 1 if report.failed or not report.planned else 0


def _reasons(hits: int, reasons: Any, *, retry: bool) -> str:
    parts = [f"{number(hits)} reused"]
    for reason, count in reasons.items():
        hint = " (tried again only with --retry)" if reason == "failed" and not retry else ""
        parts.append(f"{number(count)} {reason}{hint}")
    return ", ".join(parts)


def _show(report: BuildReport, took: float, *, as_json: bool) -> None:
    if as_json:
        for sample, text in report.notes:
            emit({"sample": sample, "note": text})
        for failure in report.failures:
            emit(dataclasses.asdict(failure))
        names = ("planned", "hits", "encoded", "by_others", "failed", "left", "stored_bytes")
        emit({name: getattr(report, name) for name in names} | {"reasons": dict(report.reasons), "seconds": took})
        return
    ready = report.hits + report.encoded + report.by_others
    if not report.planned:
        say("nothing to do: no pictures were found")
        return
    say(
        f"done     {number(ready)} of {counted(report.planned, 'picture')} ready: {number(report.hits)} reused, "
        f"{number(report.encoded)} encoded; +{size(report.stored_bytes)} in {seconds(took)}"
    )
    for sample, text in report.notes[:SHOWN]:
        say(f"note     {sample}: {text}")
    if len(report.notes) > SHOWN:
        say(f"note     ... and {number(len(report.notes) - SHOWN)} more (--json lists all)")
    for failure in report.failures[:SHOWN]:
        say(f"failed   {failure.sample}: {failure.message}")
    if len(report.failures) > SHOWN:
        say(f"failed   ... and {number(len(report.failures) - SHOWN)} more (--json lists all)")
    if report.left:
        say(f"left     {number(report.left)}: run the same command again to go on")
