"""Revisions: where they are, how they run, and what a fresh index is made of. The only module that knows alembic."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, create_engine, event

from casstore.errors import CorruptStoreError, NotAStoreError, StoreTooNewError, UsageError
from casstore.index import driver
from casstore.index.backup import exclusive, keep_newest, needs_space, save_backup
from casstore.index.driver import sqlite3, typed_errors
from casstore.index.tables import APPLICATION_ID, MIN_READER, MIN_WRITER, SCHEMA
from casstore.index.views import VIEWS

INDEX_NAME = "index.sqlite"


@dataclass(frozen=True, slots=True)
class UpgradeReport:
    """What an upgrade did: schema before and after, and the backup that was made (None: nothing was to be done)."""

    before: int
    after: int
    backup: str | None


def migrations_folder() -> Path:
    """Where the revisions are: inside the package (a wheel), else beside it (a checkout).

    Raises:
        NotAStoreError: nowhere; the installation is broken.
    """
    package = Path(__file__).parents[1]
    for folder in (package / "migrations", package.parent / "migrations"):
        if (folder / "env.py").is_file():
            return folder
    raise NotAStoreError(f"no migrations in or beside {package}; reinstall casstore")


def schema_of(store: str) -> int:
    """The schema of a store's index, whatever it is.

    Raises:
        NotAStoreError: it isn't an index of casstore's.
    """
    with typed_errors(os.path.join(store, INDEX_NAME)), connect(store) as connection:
        return _checked_schema(connection, store)


def upgrade(store: str, *, unsafe_filesystem: bool = False) -> UpgradeReport:
    """Bring a store's index to the newest revision; nothing happens if it is there already.

    The store is locked against everybody, its index is copied to backups/ and that copy checked; then all revisions run
    in one transaction, so a crash or an error at any point leaves the index as it was, or upgraded.

    Args:
        store: path of the store directory.
        unsafe_filesystem: also where locks can't be trusted.

    Raises:
        NotAStoreError, StoreTooNewError, StoreBusyError, UnsafePlaceError, NoSpaceError, CorruptStoreError
    """
    from alembic import command

    with prepared(store, unsafe_filesystem=unsafe_filesystem) as (connection, backup, before):
        if backup is not None:
            command.upgrade(_config(connection), "head")
    return UpgradeReport(before, SCHEMA, backup)


def upgrade_copy(folder: str) -> None:
    """Bring an index that nobody else knows of to the newest revision: no locks, no backup.

    Args:
        folder: that it is in.

    Raises:
        NotAStoreError, StoreTooNewError
    """
    from alembic import command

    with connect(folder) as connection:
        if _checked_schema(connection, folder) < SCHEMA:
            command.upgrade(_config(connection), "head")


def history() -> list[tuple[str, str]]:
    """(revision, what it does) of all revisions, oldest first."""
    from alembic.script import ScriptDirectory

    script = ScriptDirectory.from_config(_config(None))
    found = [(revision.revision, revision.doc.splitlines()[0]) for revision in script.walk_revisions()]
    return list(reversed(found))


@contextlib.contextmanager
def prepared(store: str, *, unsafe_filesystem: bool = False) -> Iterator[tuple[Connection, str | None, int]]:
    """An index that is locked, checked and backed up, ready for revisions; afterwards it is checked once more.

    Yields:
        A connection; the path of the backup, or None if there is nothing to be done; the schema it has now.
    """
    index = os.path.join(store, INDEX_NAME)
    locked = exclusive(store, unsafe_filesystem=unsafe_filesystem)
    with locked, typed_errors(index), connect(store) as connection:
        before = _checked_schema(connection, store)
        if before == SCHEMA:
            yield connection, None, before
            return
        needs_space(index)
        backup = save_backup(_raw(connection), store, before)
        keep_newest(store)  # also if the upgrade fails, again and again
        yield connection, backup, before
        if connection.exec_driver_sql("PRAGMA quick_check").scalar_one() != "ok":
            raise CorruptStoreError(f"{store}: the upgraded index isn't sound; casstore db restore {backup}")
        connection.rollback()


@contextlib.contextmanager
def connect(store: str, *, create: bool = False) -> Iterator[Connection]:
    """A connection for revisions to the index of a store; `create` makes an empty index where there is none."""

    def opened() -> sqlite3.Connection:
        raw = driver.connect(os.path.join(store, INDEX_NAME), "rwc" if create else "rw")
        # Revisions may rebuild tables that others point to; a pragma is a no-op once a transaction has begun.
        raw.execute("PRAGMA foreign_keys = OFF")
        raw.execute("PRAGMA synchronous = FULL")
        raw.execute("PRAGMA wal_autocheckpoint = 0")
        return raw

    engine = create_engine("sqlite://", module=sqlite3, creator=opened)
    event.listen(engine, "begin", lambda c: c.exec_driver_sql("BEGIN IMMEDIATE"))
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


def run_revisions(context: Any, connection: Connection) -> None:
    """Run alembic's pending revisions in one IMMEDIATE transaction: schema, revision and stamp change together.

    Args:
        context: alembic's environment context.
        connection: with no transaction begun.

    Raises:
        UsageError: it was told to do something else than to upgrade to the newest revision; nothing was changed.
    """
    applied: list[Any] = []
    with connection.begin() as transaction:
        # Our own BEGIN is what makes SQLite's DDL transactional; alembic only has to leave it alone.
        context.configure(
            connection=connection,
            transactional_ddl=True,
            transaction_per_migration=False,
            on_version_apply=lambda step, **_: applied.append(step),
        )
        for name in reversed(VIEWS):
            connection.exec_driver_sql(f"DROP VIEW IF EXISTS {name}")
        context.run_migrations()
        if not applied:
            transaction.rollback()  # it only looked, as `alembic current` does
            return
        newest = f"{SCHEMA:04}"
        if any(step.is_stamp or not step.is_upgrade for step in applied) or applied[-1].up_revision_id != newest:
            raise UsageError("an index is only upgraded, step by step, to the newest revision: alembic upgrade head")
        for name, body in VIEWS.items():
            connection.exec_driver_sql(f"CREATE VIEW {name} AS {body.strip()}")
        connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.exec_driver_sql(f"PRAGMA user_version = {SCHEMA}")
        for key, value in (("schema", SCHEMA), ("min_reader", MIN_READER), ("min_writer", MIN_WRITER)):
            connection.exec_driver_sql("UPDATE settings SET value = ? WHERE key = ?", (str(value), key))
        broken = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchall()
        if broken:
            raise CorruptStoreError(f"{len(broken)} rows of the index have lost their parent; nothing was changed")


def make_empty(store: str) -> None:
    """Make an index in a folder that has none, by running all revisions (what schema.sql is generated from)."""
    from alembic import command

    with connect(store, create=True) as connection:
        command.upgrade(_config(connection), "head")


def schema_sql(store: str) -> str:
    """The SQL that makes a fresh index, dumped from the upgraded index in this folder."""
    with connect(store) as connection:
        rows = connection.exec_driver_sql(
            "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' "
            "ORDER BY CASE type WHEN 'table' THEN 1 WHEN 'index' THEN 2 ELSE 3 END, rowid"
        ).fetchall()
        revision = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar_one()
    statements = [row[0].strip() + ";" for row in rows]
    statements.append(f"INSERT INTO alembic_version (version_num) VALUES ('{revision}');")
    statements.append(f"PRAGMA application_id = {APPLICATION_ID};")
    statements.append(f"PRAGMA user_version = {SCHEMA};")
    head = "-- Generated by scripts/make_schema from migrations/ and views.py; a test holds it against both."
    return head + "\n" + "\n".join(statements) + "\n"


def _config(connection: Connection | None) -> Any:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(migrations_folder()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    if connection is not None:
        config.attributes["connection"] = connection
    return config


def _checked_schema(connection: Connection, store: str) -> int:
    path = os.path.join(store, INDEX_NAME)
    application = connection.exec_driver_sql("PRAGMA application_id").scalar_one()
    schema = int(connection.exec_driver_sql("PRAGMA user_version").scalar_one())
    connection.rollback()
    if application != APPLICATION_ID:
        raise NotAStoreError(f"{path} isn't the index of a casstore store; nothing was changed")
    if schema > SCHEMA:
        raise StoreTooNewError(f"{path} has schema {schema}, this casstore knows {SCHEMA}; nothing was changed")
    return schema


def _raw(connection: Connection) -> sqlite3.Connection:
    raw = connection.connection.driver_connection
    assert isinstance(raw, sqlite3.Connection)
    return raw
