"""Revisions: where they are, how they run, and what a fresh index is made of. The only module that knows alembic."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, create_engine, event

from casstore.errors import NotAStoreError, StoreTooNewError
from casstore.index.tables import APPLICATION_ID, SCHEMA
from casstore.index.views import VIEWS

INDEX_NAME = "index.sqlite"


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


@contextlib.contextmanager
def connect(store: str, *, create: bool = False) -> Iterator[Connection]:
    """A connection for revisions to the index of a store; `create` makes an empty index where there is none."""
    uri = f"file:{quote(os.fsencode(os.path.join(store, INDEX_NAME)))}?mode={'rwc' if create else 'rw'}"
    engine = create_engine(
        "sqlite://", creator=lambda: sqlite3.connect(uri, uri=True, timeout=30, isolation_level=None)
    )
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
    """
    # A no-op inside a transaction, hence before it: revisions may rebuild tables that others point to.
    connection.exec_driver_sql("PRAGMA foreign_keys = OFF")
    if connection.in_transaction():
        connection.rollback()
    with connection.begin():
        # Our own BEGIN is what makes SQLite's DDL transactional; alembic only has to leave it alone.
        context.configure(connection=connection, transactional_ddl=True, transaction_per_migration=False)
        for name in reversed(VIEWS):
            connection.exec_driver_sql(f"DROP VIEW IF EXISTS {name}")
        context.run_migrations()
        for name, body in VIEWS.items():
            connection.exec_driver_sql(f"CREATE VIEW {name} AS {body.strip()}")
        connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.exec_driver_sql(f"PRAGMA user_version = {SCHEMA}")
        broken = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchall()
        if broken:
            raise RuntimeError(f"the upgrade would leave {len(broken)} rows without their parent; nothing was changed")


def check_is_index(connection: Connection, store: str) -> None:
    """Refuse an index that isn't casstore's, or is newer than we know; nothing is changed then.

    Raises:
        NotAStoreError, StoreTooNewError
    """
    path = os.path.join(store, INDEX_NAME)
    application = connection.exec_driver_sql("PRAGMA application_id").scalar_one()
    schema = connection.exec_driver_sql("PRAGMA user_version").scalar_one()
    connection.rollback()
    if application != APPLICATION_ID:
        raise NotAStoreError(f"{path} isn't the index of a casstore store; nothing was changed")
    if schema > SCHEMA:
        raise StoreTooNewError(f"{path} has schema {schema}, this casstore knows {SCHEMA}; nothing was changed")


def upgrade(store: str, *, create: bool = False) -> None:
    """Bring the index in this folder to the newest revision; `create` makes an empty one first."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(migrations_folder()))
    config.set_main_option("path_separator", "os")
    with connect(store, create=create) as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


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
