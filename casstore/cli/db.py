"""casstore db upgrade, current, history, restore, copy"""

from __future__ import annotations

import os

import click

from casstore.cli.common import open_store, store_path, unsafe_filesystem, with_store
from casstore.cli.output import counted, emit, say, size
from casstore.core.directory import check_is_store


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


@db_command.command("upgrade")
@with_store
def upgrade_command(place: str | None, as_json: bool) -> None:
    """Bring the index to the schema of this casstore.

    Nobody else may have the store open. The index is copied to backups/ first; an interrupted upgrade leaves it as it
    was.
    """
    from casstore.index.migrate import upgrade

    path = _path(place)
    report = upgrade(path, unsafe_filesystem=unsafe_filesystem())
    if as_json:
        emit({"path": path, "before": report.before, "after": report.after, "backup": report.backup})
    elif report.backup is None:
        say(f"{path} has the newest schema, {report.after}; nothing was changed")
    else:
        say(f"upgraded {path} from schema {report.before} to {report.after}")
        say(f"backup   {report.backup}")


@db_command.command("current")
@with_store
def current_command(place: str | None, as_json: bool) -> None:
    """Tell the schema of the index, and the one that this casstore has."""
    from casstore.index.migrate import schema_of
    from casstore.index.tables import SCHEMA

    path = _path(place)
    schema = schema_of(path)
    if as_json:
        emit({"path": path, "schema": schema, "newest": SCHEMA})
    else:
        say(f"{path} has schema {schema}" + (", the newest" if schema == SCHEMA else f"; the newest is {SCHEMA}"))
        if schema != SCHEMA:
            say()
            say(f"  upgrade it                                     casstore db upgrade --store {path}")


@db_command.command("history")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line; the last is the summary.")
def history_command(as_json: bool) -> None:
    """List the revisions that this casstore knows, oldest first."""
    from casstore.index.migrate import history

    found = history()
    for revision, doc in found:
        if as_json:
            emit({"revision": revision, "does": doc})
        else:
            say(f"{revision}  {doc}")
    if as_json:
        emit({"revisions": len(found)})


@db_command.command("restore")
@click.argument("backup", type=click.Path())
@with_store
@click.option("--yes", is_flag=True, help="Do it; otherwise only say what would happen.")
def restore_command(backup: str, place: str | None, as_json: bool, yes: bool) -> int:
    """Write BACKUP (a file of backups/) into the index; what came after it is forgotten.

    The index as it is now is copied to backups/ first, if it can still be read. Objects whose files are gone by now are
    marked as damaged, so that the next build makes them again.
    """
    from casstore.upkeep.restore import restore

    path = _path(place, index=False)
    report = restore(path, backup, yes=yes, unsafe_filesystem=unsafe_filesystem())
    if as_json:
        emit({"path": path, "done": yes, "variants": report.variants, "damaged": report.damaged, "backup": report.kept})
    elif not yes:
        say(f"dry run: {backup} holds {counted(report.variants, 'variant')}; nothing is changed yet")
        say()
        say(f"  do it                                          casstore db restore {backup} --yes")
    else:
        say(f"restored {path} from {backup}: {counted(report.variants, 'variant')}")
        if report.kept:
            say(f"backup   the index as it was is {report.kept}")
        if report.damaged:
            say(f"damaged  {counted(report.damaged, 'object')} without a file; the next build makes them again")
    return 0


def _path(place: str | None, *, index: bool = True) -> str:
    path = os.path.abspath(store_path(place))
    check_is_store(path, index=index)
    return path
