"""Options that every command has, and opening the store that they name."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from casstore.core.directory import is_store
from casstore.errors import NotAStoreError
from casstore.store import Store

F = TypeVar("F", bound=Callable[..., Any])

ENVIRONMENT = "CASSTORE_STORE"


_UNSAFE = "casstore.unsafe_filesystem"


def _remember_unsafe(context: click.Context, _: click.Parameter, value: bool) -> None:
    context.meta[_UNSAFE] = value


def unsafe_filesystem() -> bool:
    """Whether --unsafe-filesystem was given."""
    return bool(click.get_current_context().meta.get(_UNSAFE))


def with_store(command: F) -> F:
    """Add --store/-s, --json and --unsafe-filesystem."""
    command = click.option(
        "--unsafe-filesystem",
        is_flag=True,
        expose_value=False,
        callback=_remember_unsafe,
        help="Also write on a network file system, whose locks can't be trusted.",
    )(command)
    command = click.option(
        "--json", "as_json", is_flag=True, help="One JSON object per line; the last is the summary."
    )(command)
    return click.option("--store", "-s", "place", metavar="DIR", help=f"The store; else {ENVIRONMENT}, else a parent.")(
        command
    )


def store_path(place: str | None) -> str:
    """The path of the store that is meant.

    Raises:
        NotAStoreError: none is named, and no folder above is one.
    """
    named = place or os.environ.get(ENVIRONMENT)
    if named:
        return named
    here = os.getcwd()
    while not is_store(here):
        above = os.path.dirname(here)
        if above == here:
            raise NotAStoreError(
                f"which store? Give --store DIR, set {ENVIRONMENT}, or go into a store. Make one: casstore init -s DIR"
            )
        here = above
    return here


def open_store(place: str | None) -> Store:
    """Open the store that is meant."""
    try:
        return Store(store_path(place), unsafe_filesystem=unsafe_filesystem())
    finally:
        gc.enable()
