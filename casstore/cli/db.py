"""casstore db ..."""

from __future__ import annotations

import os

import click

from casstore.cli.common import open_store, with_store
from casstore.cli.output import emit, say, size


@click.group("db")
def db_command() -> None:
    """Look after the index itself."""


@db_command.command("copy")
@click.argument("out", type=click.Path())
@with_store
def copy_command(out: str, place: str | None, as_json: bool) -> None:
    """Write a copy of the index to OUT, for DuckDB, datasette or pandas.

    Other programs must not open index.sqlite itself in the process that uses the store; a copy harms nobody.
    """
    with open_store(place) as store:
        store.copy_index(out)
    nbytes = os.stat(out).st_size
    if as_json:
        emit({"path": os.path.abspath(out), "bytes": nbytes})
    else:
        say(f"wrote {out}, {size(nbytes)}")
