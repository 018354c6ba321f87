"""casstore roots ls, move, confirm"""

from __future__ import annotations

import dataclasses
import os

import click

from casstore.cli.common import open_store, with_store
from casstore.cli.output import ago, counted, emit, number, say, table


@click.group("roots")
def roots_command() -> None:
    """The dataset folders that the store knows."""


@roots_command.command("ls")
@with_store
def ls_command(place: str | None, as_json: bool) -> int:
    """List them: whole, unavailable (another folder is at their place), or suspicious (very much is gone)."""
    with open_store(place) as store:
        roots = store.roots()
    if as_json:
        for root in roots:
            emit(dataclasses.asdict(root))
        emit({"roots": len(roots)})
    elif not roots:
        say("no roots: casstore build FOLDER makes the first")
    else:
        rows = [("root", "state", "files", "missing", "last scan", "path")]
        for root in roots:
            counts = number(root.files), number(root.missing)
            rows.append((root.name, root.state, *counts, ago(root.last_seen_at), root.path))
        for line in table(rows, right=(2, 3)):
            say(line)
    return int(any(root.state != "whole" for root in roots))


@roots_command.command("move")
@click.argument("name")
@click.argument("path", type=click.Path())
@with_store
def move_command(name: str, path: str, place: str | None, as_json: bool) -> None:
    """Say that root NAME is at PATH now. Nothing is encoded again, wherever a dataset goes; this keeps its rows."""
    with open_store(place) as store:
        root = store.move_root(name, path)
    if as_json:
        emit(dataclasses.asdict(root))
    else:
        say(f"{root.name} is at {root.path} now, with {counted(root.files, 'file')}")


@roots_command.command("confirm")
@click.argument("name")
@with_store
@click.option("--yes", is_flag=True, help="Note it; otherwise only say what would be noted.")
def confirm_command(name: str, yes: bool, place: str | None, as_json: bool) -> None:
    """Say that what is gone from root NAME is really gone, and that the folder there is the right one."""
    with open_store(place) as store:
        report = store.confirm_root(name, yes=yes)
    if as_json:
        emit(dataclasses.asdict(report) | {"done": yes})
        return
    verb = "noted as missing" if yes else "would be noted as missing"
    say(f"{report.path}: {counted(report.missing, 'file')} {verb}, {number(report.files)} left")
    if not yes and report.missing:
        say(f"next     casstore roots confirm {os.path.basename(report.name)} --yes")
