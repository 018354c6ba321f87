"""How results look: JSON lines for programs, plain text for people."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")  # whatever the locale
SHOWN = 10  # findings that people see; --json has all


def printable(text: str) -> str:
    """A text that is safe to show on one line: control characters and undecodable bytes become escapes."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape", "replace").decode() for c in text)
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    return shown.encode(encoding, "backslashreplace").decode(encoding)


def say(text: str = "") -> None:
    """A line of the result, for people."""
    click.echo(printable(text))


def note(text: str) -> None:
    """A line about what is going on, on stderr."""
    click.echo(printable(text), err=True)


def emit(record: Mapping[str, Any]) -> None:
    """A line of the result, for programs: compact JSON in ASCII."""
    click.echo(json.dumps(record, separators=(",", ":"), default=str))


def size(nbytes: int) -> str:
    """Bytes for people: 3.1 MiB."""
    amount = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(amount) < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def number(value: int) -> str:
    """A count for people: 12 024."""
    return f"{value:,}".replace(",", " ")


def counted(value: int, one: str, many: str | None = None) -> str:
    """A count with its noun: 1 picture, 2 pictures."""
    return f"{number(value)} {one if value == 1 else many or one + 's'}"


def ago(milliseconds: int) -> str:
    """How long ago a time (ms UTC) was, as spoken."""
    seconds = max(0.0, time.time() - milliseconds / 1000)
    for limit, unit, length in (
        (90, "second", 1),
        (5400, "minute", 60),
        (129600, "hour", 3600),
        (1209600, "day", 86400),
    ):
        if seconds < limit:
            return counted(round(seconds / length), unit) + " ago"
    return counted(round(seconds / 604800), "week") + " ago"


def clock(milliseconds: int) -> str:
    """A time (ms UTC) as a clock and a calendar here show it: 3 Nov 10:02."""
    then, now = time.localtime(milliseconds / 1000), time.localtime()
    day = f"{then.tm_mday} {MONTHS[then.tm_mon - 1]}"
    return f"{day} {then.tm_hour:02}:{then.tm_min:02}" if then.tm_year == now.tm_year else f"{day} {then.tm_year}"


def cut(text: str, length: int = 48) -> str:
    """A text that is no longer than this many characters; what is left out is marked."""
    return text if len(text) <= length else text[: length - 3] + "..."


def seconds(value: float) -> str:
    """A duration for people."""
    if value < 120:
        return f"{value:.1f} s"
    minutes = round(value / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def table(rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> list[str]:
    """Lines of aligned columns; those in `right` are right-aligned."""
    cells = [[printable(cell) for cell in row] for row in rows]
    if not cells:
        return []
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    flush_right = set(right)
    return [
        "  ".join(
            cell.rjust(width) if i in flush_right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
