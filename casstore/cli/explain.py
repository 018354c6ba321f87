"""casstore explain"""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from casstore.cli.build_options import resolutions_from
from casstore.cli.common import open_store, with_store
from casstore.cli.output import clock, counted, cut, emit, number, say, size, table
from casstore.explain.explanation import Compared, Event, Explanation, Relative
from casstore.identity.recipes import shown
from casstore.store import THE_ONLY_ONE

FIELDS = 10  # lines of each that people see; --json has all
EVENTS = 5
OUTSIDE = ("content", "text", "file", "recipe", "resolution", "variation", "params")  # are no fields of a recipe
WIDTH = 32  # characters of a value
CASES = 18


@click.command("explain")
@click.argument("file", type=click.Path(), metavar="FILE")
@with_store
@click.option("--recipe", "-r", metavar="NAME|DIGEST", help="Of which recipe; else of each that has something.")
@click.option("--encoder", metavar="E", help="The recipe of this encoder, which needn't have been used yet.")
@click.option("--resolution", multiple=True, metavar="R", help="As in build; else all that are stored.")
@click.option("--name", "names", multiple=True, help="Of a tensor or value that must be there; may be given again.")
def explain_command(
    file: str,
    place: str | None,
    as_json: bool,
    recipe: str | None,
    encoder: str | None,
    resolution: tuple[str, ...],
    names: tuple[str, ...],
) -> int:
    """Tell why FILE, as it is now, is served or isn't: beside what is stored, or the nearest relative of it.

    Also how many others share its fate, how to undo it, what happened, and what the next build would do. Nothing is
    changed. Exit code 1: a miss.
    """
    if recipe is not None and encoder is not None:
        raise click.UsageError("--recipe and --encoder both say which recipe is meant; give one of them")
    wanted = resolutions_from(resolution, None, upscale=True) if resolution else THE_ONLY_ONE
    with open_store(place) as store:
        meant: Any = recipe
        if encoder is not None:
            from casstore.encoders.load import load_encoder

            meant = load_encoder(encoder).recipe
        found = store.explain(file, meant, resolution=wanted, names=names)
    hits = sum(each.hit for each in found)
    if as_json:
        for each in found:
            emit(dataclasses.asdict(each) | {"hit": each.hit, "others_seconds": each.others_seconds})
        emit({"path": file, "explanations": len(found), "hits": hits, "misses": len(found) - hits})
    elif not found:
        say(f"{file}: nothing is stored for it, with any recipe")
        say()
        say("  encode it                                      casstore build FOLDER --encoder E")
    elif len(found) == 1:
        _show(file, found[0])
    else:
        _list(file, found)
    return int(not found or hits < len(found))


def _list(file: str, found: tuple[Explanation, ...]) -> None:
    for each in found[:CASES]:
        say(_verdict(file, each))
    if len(found) > CASES:
        say(f"... and {number(len(found) - CASES)} more (--json lists all)")
    say()
    miss = next((each for each in found if not each.hit), found[0])
    several = sum(each.digest == miss.digest for each in found) > 1
    at = f" --resolution {miss.resolution or '...'}" if several else ""
    say(f"  all about one of them                          casstore explain {file} -r {miss.recipe}{at}")


def _verdict(file: str, each: Explanation) -> str:
    parts = [file]
    if each.resolution is not None and each.kind != "text":
        parts.append(each.resolution or "full size")
    told = "HIT" if each.hit else f"MISS, {_why(each)}"
    if not each.hit and each.hits:
        told += f" ({number(each.variants - each.hits)} of {number(each.variants)} variants)"
    return f"{', '.join([*parts, each.recipe])}: {told}"


def _why(each: Explanation) -> str:
    thing = "caption" if each.kind == "text" else each.kind
    words = {
        "new": "nothing like it was ever made",
        "edited": f"the {thing} was edited",
        "member edited": "a member was edited",
        "recipe": "never made with this recipe",
        "resolution": f"not stored at this resolution ({each.detail})",
        "variation": each.detail,
        "output missing": f"{each.detail} is lacking",
        "damaged": "what is stored of it is damaged",
        "failed": f"the {thing} can't be used: {each.detail}",
        "retry": f"the encoder failed on it: {each.detail}",
    }
    return words.get(str(each.reason), f"{each.reason}: {each.detail}").partition("\n")[0]


def _show(file: str, each: Explanation) -> None:
    say(_verdict(file, each))
    say()
    if each.relative is not None and not each.relative.same_recipe:
        say(_nearest(each.relative, each))
    for line in _fields(each):
        say(line)
    if each.fields:
        say()
    for event in each.history[-EVENTS:]:
        say(_event(event, each))
    say(f"{'next build':<12}  {_next(each)}")
    for line in _others(each):
        say(line)


# -- field by field ----------------------------------------------------------------------------------------------------


def _fields(each: Explanation) -> list[str]:
    chosen = sorted(each.fields, key=lambda field: not field.differs)[:FIELDS]
    kept = [field for field in each.fields if field in chosen]
    rows: list[tuple[str, ...]] = []
    if each.hit or each.relative is None:
        rows += [(field.field, _value(field, field.now)) for field in kept]
    else:
        rows.append(("", _beside(each), "now", ""))
        for field in kept:
            mark = "<- differs" if field.differs else ""
            rows.append((field.field, _value(field, field.then), _value(field, field.now), mark))
    lines = table([(row[0].ljust(12), *row[1:]) for row in rows])
    if len(each.fields) > len(kept):
        lines.append(f"... and {len(each.fields) - len(kept)} more (--json lists all)")
    return lines


def _nearest(relative: Relative, each: Explanation) -> str:
    when = "" if relative.at is None else f" of {clock(relative.at)}"
    noun = "caption" if each.kind == "text" else each.kind
    same = f" (same {noun})" if relative.same_content else ""
    fields = [name for name in each.differing if name not in OUTSIDE]
    count = f", {counted(len(fields), 'field')} {'differs' if len(fields) == 1 else 'differ'}" if fields else ""
    return f"nearest relative: {relative.recipe} {shown(relative.digest)}{when}{same}{count}"


def _beside(each: Explanation) -> str:
    relative = each.relative
    assert relative is not None
    if each.reason in ("damaged", "output missing", "retry", "failed") and relative.same_content:
        return "as stored"
    if not relative.same_content:
        return "when it was encoded"
    return "nearest relative" if relative.same_recipe else "as stored"


def _value(field: Compared, value: Any) -> str:
    if value is None:
        return "none" if field.differs else ""
    if field.field == "file":
        when = f", {clock(value['modified_at'])}" if "modified_at" in value else ""
        return f"{size(value['bytes'])}{when}"
    if field.field == "resolution":
        return str(value or "full size")
    return cut(shown(value), WIDTH)


# -- what happened, what happens next, and to whom else ----------------------------------------------------------------


def _event(event: Event, each: Explanation) -> str:
    if event.what == "encoded" or event.what == "stored":
        told = event.what + ("" if event.encode_us is None else f" in {_spoken(event.encode_us / 1e6)}")
        told += ", first seen" if event.reason == "new" else f", {event.reason}"
        if event.recipe != each.digest:
            told += f", with {shown(event.recipe)}"
    elif event.what == "failed":
        times = "" if event.attempts in (None, 1) else f" {number(event.attempts or 0)} times"
        told = f"failed{times}: {event.detail}".partition("\n")[0]
        told = cut(told, 64)
    else:
        told = f"edited; it held {shown(event.content)} before"
    run = "" if event.run is None else f"run {event.run}"
    return f"{'' if event.at is None else clock(event.at):<12}  {told:<56}  {run}".rstrip()


def _spoken(seconds: float) -> str:
    from casstore.build.plan import spoken

    return spoken(seconds)


def _next(each: Explanation) -> str:
    if each.hit:
        return "nothing to encode: it is reused"
    if not each.to_encode:
        return "nothing: it isn't tried until its bytes change, or with --retry"
    about = "" if each.encode_us is None else f", about {_spoken(each.to_encode * each.encode_us / 1e6)}"
    return f"{counted(each.to_encode, 'encode')}{about}"


def _others(each: Explanation) -> list[str]:
    lines = []
    noun = "caption" if each.kind == "text" else each.kind
    if each.others:
        takes = "" if each.others_seconds is None else f": {_spoken(each.others_seconds)} of encoding"
        verb = "misses" if each.others == 1 else "miss"
        lines.append(f"{counted(each.others, f'other {noun}')} {verb} for the same reason{takes}.")
    if each.undo is not None:
        again = ""
        if each.undone is not None and each.others is not None:
            everyone = each.others + 1
            back = f"{number(each.undone)} of {number(everyone)} hit" if each.undone < everyone else "all of them hit"
            again = f", and {back if each.others else 'it hits'} again"
        elif each.reason == "resolution":
            again = ", at which it is stored"
        lines.append(f"{'Not meant?':<12}  {each.undo}{again}.")
    return ["", *lines] if lines else []
