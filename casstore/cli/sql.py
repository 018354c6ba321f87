"""casstore sql"""

from __future__ import annotations

import time

import click

from casstore.cli.common import open_store, with_store
from casstore.cli.output import counted, emit, note, say, table


@click.command("sql")
@click.argument("query")
@with_store
@click.option("--limit", type=click.IntRange(min=0), help="The most rows to print; else a million.")
@click.option("--seconds", type=click.FloatRange(min=0), help="How long it may take; else a minute.")
def sql_command(query: str, place: str | None, as_json: bool, limit: int | None, seconds: float | None) -> None:
    """Run one SELECT over the index.

    The views v_sources, v_variants, v_objects, v_tensors, v_usage, v_missing and v_runs keep their columns from version
    to version.
    """
    with open_store(place) as store:
        started = time.monotonic()
        found = store.sql(query, limit=limit, seconds=seconds)
        took = time.monotonic() - started
    if as_json:
        for row in found.rows:
            emit(dict(zip(found.columns, row, strict=True)))
        emit({"rows": len(found.rows), "more": found.more, "seconds": took})
        return
    cells = [["" if cell is None else str(cell) for cell in row] for row in found.rows]
    numeric = [
        i for i in range(len(found.columns)) if found.rows and all(isinstance(r[i], (int, float)) for r in found.rows)
    ]
    for line in table([list(found.columns), *cells], right=numeric):
        say(line)
    note(counted(len(found.rows), "row") + (", and there are more (--limit)" if found.more else ""))
