"""casstore build"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import click

from casstore.build.progress import phase, progress_of
from casstore.cli.common import open_store, with_store
from casstore.cli.output import SHOWN, counted, emit, note, number, say, seconds, size
from casstore.encoders.load import load_encoder, load_function
from casstore.errors import BuildInterrupted, UsageError
from casstore.identity import resolutions
from casstore.model import BuildReport
from casstore.sources.inputs import Inputs
from casstore.store import Store

if TYPE_CHECKING:
    from casstore.build.plan import Plan
    from casstore.sources.found import ScanReport

TABLES = (".jsonl", ".csv", ".tsv")
"""Endings, in lower case, of FOLDERs that are tables of rows."""
CAPTIONS = {"caption": ".txt"}
"""The links that a role implies."""


@click.command("build")
@click.argument("folders", nargs=-1, required=True, metavar="FOLDER...")
@with_store
@click.option("--encoder", required=True, metavar="E", help="pixels, or package.module:attribute.")
@click.option("--resolution", metavar="R", help="N (about N x N pixels), HEIGHTxWIDTH, or nothing: the full size.")
@click.option("--role", "roles", multiple=True, help="What is encoded; repeated: the first, with the others.")
@click.option("--link", "links", multiple=True, metavar="ROLE=RULE", help="Which files go with each: caption=.txt")
@click.option("--reader", help="How caption files are read.")
@click.option(
    "--params", metavar="JSON", help="Further facts for the encoder, which tell results apart: '{\"frames\":16}'"
)
@click.option("--extensions", metavar=".A,.B", help="Endings of the files to take, instead of pictures.")
@click.option("--probe", metavar="P", help="package.module:function that tells the size and frames of a file.")
@click.option("--trust", is_flag=True, help="A quick check: known files aren't looked at, so edits may be missed.")
@click.option("--rehash", is_flag=True, help="Read every file again, whatever its size and times say.")
@click.option("--batch-size", type=click.IntRange(min=1), default=8, show_default=True, help="Items per encoder call.")
@click.option("--workers", type=click.IntRange(min=1), help="Decode threads; else one per core.")
@click.option("--on-error", type=click.Choice(["skip", "raise"]), default="skip", show_default=True)
@click.option("--retry", is_flag=True, help="Also try pictures again that couldn't be decoded before.")
def build_command(
    folders: tuple[str, ...],
    place: str | None,
    as_json: bool,
    encoder: str,
    resolution: str | None,
    roles: tuple[str, ...],
    links: tuple[str, ...],
    reader: str | None,
    params: str | None,
    extensions: str | None,
    probe: str | None,
    trust: bool,
    rehash: bool,
    batch_size: int,
    workers: int | None,
    on_error: Literal["skip", "raise"],
    retry: bool,
) -> int:
    """Encode what is new or changed in FOLDERs of files, or in tables of rows, and store it.

    What is stored already, wherever the file is by now and whatever it is called, is reused. Run it again after a stop:
    it goes on where it was. A FOLDER may be a .jsonl, .csv or .tsv file with a row per line.
    """
    wanted = resolutions.check(resolution)
    told = _params(params)
    scanning = _scanning(roles, links, reader, extensions, probe)
    scanning |= {name: True for name, given in (("trust", trust), ("rehash", rehash)) if given}
    with open_store(place) as store:
        loaded = load_encoder(encoder)
        started = time.monotonic()
        options = {"--link": links, "--extensions": extensions, "--probe": probe, "--trust": trust, "--rehash": rehash}
        inputs, scanned = _inputs(store, folders, scanning, [name for name, given in options.items() if given])
        plan = store.plan(inputs, loaded.recipe, role=roles or None, resolution=wanted, params=told)
        for warning in scanned.warnings if scanned is not None else ():
            note(f"warning  {warning}")
        if not as_json:
            what = counted(len(inputs), "row" if roles else "file")
            note(f"scan     {what}{_found(scanned)} in {seconds(time.monotonic() - started)}")
            note(f"plan     {_planned(plan, retry=retry)}")
        try:
            report = store.build(
                plan, loaded, batch_size=batch_size, workers=workers, on_error=on_error, retry_failed=retry
            )
        except BuildInterrupted as error:
            if error.report is not None:
                _show(plan, error.report, time.monotonic() - started, as_json=as_json)
            raise
        _show(plan, report, time.monotonic() - started, as_json=as_json)
    return 1 if report.failed or not report.planned else 0


def _params(text: str | None) -> Mapping[str, Any] | None:
    if text is None:
        return None
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--params {text!r} isn't JSON: {error}") from None
    if not isinstance(found, dict):
        raise UsageError(f"--params {text!r} isn't a JSON object; write it as '{{\"frames\": 16}}'")
    return found


def _scanning(
    roles: Sequence[str], links: Sequence[str], reader: str | None, extensions: str | None, probe: str | None
) -> dict[str, Any]:
    """The arguments of a scan, as far as they were given."""
    rules = {role: rule for role, rule in CAPTIONS.items() if role in roles}
    for link in links:
        role, equals, rule = link.partition("=")
        if not role or not equals or not rule:
            raise UsageError(f"--link {link!r}: write ROLE=RULE, for example caption=.txt or mask=-mask.png")
        rules[role] = rule
    found: dict[str, Any] = {"links": rules} if rules else {}
    if reader is not None:
        found["reader"] = reader
    if extensions is not None:
        endings = tuple(ending.strip().lower() for ending in extensions.split(","))
        if not all(len(ending) > 1 and ending.startswith(".") for ending in endings):
            raise UsageError(f"--extensions {extensions!r}: write endings with their dot, for example .mp4,.mov")
        found["extensions"] = endings
    if probe is not None:
        found["probe"] = load_function(probe, "probe")
    return found


def _inputs(
    store: Store, places: Sequence[str], scanning: dict[str, Any], given: Sequence[str]
) -> tuple[Inputs, ScanReport | None]:
    """The rows of all folders, which are scanned together, and of all tables; and what the scan did.

    `given` are options for folders, which mean nothing to tables.
    """
    tables = [place for place in places if place.lower().endswith(TABLES) and not os.path.isdir(place)]
    folders = [place for place in places if place not in tables]
    rows: list[Inputs] = []
    report = None
    if folders:
        with phase(progress_of(None), "scan", 1) as progress:
            scan = store.scan(*folders, **scanning, progress=progress.advanced)
        rows, report = [scan], scan.report
    elif given:
        raise UsageError(f"a table says itself what belongs to a row; {', '.join(given)} is for folders only")
    reader = {"reader": scanning["reader"]} if "reader" in scanning else {}
    rows += [store.inputs(table, **reader) for table in tables]
    return rows[0] if len(rows) == 1 else Inputs([row for part in rows for row in part]), report


def _found(report: ScanReport | None) -> str:
    if report is None:
        return ""
    counts = {"new": report.new, "edited": report.edited, "gone": report.missing}
    told = "".join(f", {number(count)} {what}" for what, count in counts.items() if count)
    return told + (" (a quick check: known files weren't looked at)" if report.trusted else "")


def _planned(plan: Plan, *, retry: bool) -> str:
    parts = [f"{number(plan.hits)} reused"]
    for reason, count in plan.reasons.items():
        hint = " (tried again only with --retry)" if reason == "failed" and not retry else ""
        parts.append(f"{number(count)} {reason}{hint}")
    if plan.absent:
        parts.append(f"{number(plan.absent)} without {plan.roles[0]}")
    return ", ".join(parts)


def _noun(plan: Plan) -> str:
    """What people call the rows of a plan."""
    from casstore.build.cells import kind_of

    known = [row for row in plan.rows if row.primary.content is not None] or plan.rows
    kinds = {kind_of(row.primary.content, row.path) for row in known}
    if kinds <= {"text"} and plan.roles[:1] in (("caption",), ("prompt",)):
        return plan.roles[0]
    if not kinds:
        return "picture"
    return kinds.pop() if len(kinds) == 1 else "row"


def _show(plan: Plan, report: BuildReport, took: float, *, as_json: bool) -> None:
    if as_json:
        for sample, text in report.notes:
            emit({"sample": sample, "note": text})
        for failure in report.failures:
            emit(dataclasses.asdict(failure))
        names = ("planned", "hits", "encoded", "by_others", "failed", "left", "stored_bytes")
        counts = {name: getattr(report, name) for name in names} | {"absent": plan.absent}
        emit(counts | {"reasons": dict(report.reasons), "seconds": took})
        return
    ready = report.hits + report.encoded + report.by_others
    if not report.planned:
        say(f"nothing to do: no {_noun(plan)}s were found")
        return
    say(
        f"done     {number(ready)} of {counted(report.planned, _noun(plan))} ready: {number(report.hits)} reused, "
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
