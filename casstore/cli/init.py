"""casstore init"""

from __future__ import annotations

import gc
import os

import click

from casstore.cli.common import ENVIRONMENT, unsafe_filesystem, with_store
from casstore.cli.output import emit, say
from casstore.core.directory import is_store
from casstore.store import Store


@click.command("init")
@with_store
@click.option("--durability", type=click.Choice(["full", "off"]), help="full (default): survives a power cut.")
def init_command(place: str | None, as_json: bool, durability: str | None) -> None:
    """Make a store at --store DIR, which is missing or an empty folder. An existing store is left as it is."""
    named = place or os.environ.get(ENVIRONMENT)
    if not named:
        raise click.UsageError("where? casstore init --store DIR")
    existed = is_store(named)
    gc.enable()
    with Store(named, create=True, durability=durability, unsafe_filesystem=unsafe_filesystem()) as store:
        if as_json:
            emit({"path": store.path, "created": not existed, "durability": store.durability})
        elif existed:
            say(f"{store.path} is a store already, durability {store.durability}; nothing was changed")
        else:
            say(f"made {store.path}, durability {store.durability}")
            say()
            say(f"  casstore build FOLDER --encoder pixels --resolution 256 --store {named}")
