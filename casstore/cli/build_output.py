"""What casstore build tells: what was found, what is planned and how long that takes, and what became of it."""

from __future__ import annotations

import dataclasses
from itertools import islice
from typing import TYPE_CHECKING

from casstore.cli.output import SHOWN, counted, emit, number, say, seconds, size
from casstore.model import BuildReport

if TYPE_CHECKING:
    from casstore.build.plan import Plan
    from casstore.sources.found import ScanReport

LOOKED_AT = 100  # rows of a plan, to find a word for them
NOT_TRIED = ("failed", "source unavailable")  # reasons of misses that a build doesn't try to encode


def found_by(report: ScanReport | None) -> str:
    """What a scan found, behind the number of files."""
    if report is None:
        return ""
    counts = {"new": report.new, "edited": report.edited, "gone": report.missing}
    told = "".join(f", {number(count)} {what}" for what, count in counts.items() if count)
    return told + (" (a quick check: known files weren't looked at)" if report.trusted else "")


def planned_by(plan: Plan, *, retry: bool) -> str:
    """What a plan says: what is reused, what is to be encoded and why, how long that takes, and what isn't tried."""
    from casstore.build.plan import spoken

    reasons = dict(plan.reasons)
    left_out = {reason: reasons.pop(reason) for reason in NOT_TRIED if reason in reasons}
    if retry and "failed" in left_out:
        reasons["failed"] = left_out.pop("failed")
    parts = [f"{number(plan.hits)} reused"]
    if reasons:
        to_do = sum(reasons.values())
        why = ", ".join(f"{number(count)} {reason}" for reason, count in reasons.items())
        about = "" if plan.encode_us is None else f", about {spoken(to_do * plan.encode_us / 1e6)}"
        parts.append(f"{number(to_do)} to encode ({why}){about}")
    for reason, count in left_out.items():
        hint = " (tried again only with --retry)" if reason == "failed" else ""
        parts.append(f"{number(count)} {reason}{hint}")
    if plan.absent:
        parts.append(f"{number(plan.absent)} without {plan.roles[0]}")
    return ", ".join(parts)


def noun(plan: Plan) -> str:
    """What people call the rows of a plan; the first hundred tell."""
    from casstore.build.cells import kind_of

    rows = list(islice(plan.rows, LOOKED_AT))
    known = [row for row in rows if row.primary.content is not None] or rows
    kinds = {kind_of(row.primary.content, row.path) for row in known}
    if kinds <= {"text"} and plan.roles[:1] in (("caption",), ("prompt",)):
        return plan.roles[0]
    if not kinds:
        return "picture"
    return kinds.pop() if len(kinds) == 1 else "row"


def show(plan: Plan, report: BuildReport, took: float, *, as_json: bool) -> None:
    """Tell what became of a plan; `took`: seconds since the command began."""
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
        say(f"nothing to do: no {noun(plan)}s were found")
        return
    say(
        f"done     {number(ready)} of {counted(report.planned, noun(plan))} ready: {number(report.hits)} reused, "
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
