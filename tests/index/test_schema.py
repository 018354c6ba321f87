"""schema.sql, the revisions and tables.py say the same; alembic as a person would run it."""

from __future__ import annotations

import contextlib
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from core.helpers import expect, get, put, tree
from kit import ROOT, object_files
from sqlalchemy import create_engine

import casstore
from casstore.index import migrate
from casstore.index.tables import APPLICATION_ID, SCHEMA, metadata
from casstore.index.views import VIEWS

SCHEMA_SQL = files("casstore.index").joinpath("schema.sql").read_text(encoding="utf-8")
TABLES = sorted(metadata.tables)


@pytest.fixture(scope="module")
def from_file() -> Iterator[sqlite3.Connection]:
    """A database made by schema.sql."""
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(SCHEMA_SQL)
        yield connection


@pytest.fixture(scope="module")
def from_tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    """A database made by tables.py."""
    path = tmp_path_factory.mktemp("tables") / "x.sqlite"
    engine = create_engine(f"sqlite:///{path}")
    metadata.create_all(engine)
    engine.dispose()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        yield connection


def described(connection: sqlite3.Connection, table: str) -> dict[str, Any]:
    """All that SQLite tells about a table, and the names and checks that only its SQL tells."""

    def rows(pragma: str) -> list[tuple[Any, ...]]:
        return connection.execute(pragma).fetchall()

    indexes = []
    for _, name, unique, origin, partial in rows(f"PRAGMA index_list({table})"):
        text = dict(rows("SELECT name, sql FROM sqlite_master")).get(name)
        columns = [row[1:] for row in rows(f"PRAGMA index_xinfo({name})")]
        condition = text.partition(" WHERE ")[2] if text else ""
        indexes.append((name if origin == "c" else "", unique, origin, partial, columns, condition))
    (text,) = connection.execute("SELECT sql FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    return {
        "columns": rows(f"PRAGMA table_xinfo({table})"),
        "indexes": sorted(indexes, key=repr),
        "foreign keys": sorted(row[2:] for row in rows(f"PRAGMA foreign_key_list({table})")),
        "flags": rows(f"PRAGMA table_list({table})")[0][2:],
        "constraints": sorted(
            " ".join(found.split()) for found in re.findall(r"CONSTRAINT (\w+ \w+ ?\([^\n]*\))", text)
        ),
        "autoincrement": "AUTOINCREMENT" in text,
    }


def test_schema_and_tables_have_the_same_tables(from_file: sqlite3.Connection) -> None:
    """Besides alembic's own, every table of schema.sql is in tables.py and the other way round."""
    found = {row[0] for row in from_file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert found - {"sqlite_sequence", "alembic_version"} == set(TABLES)


@pytest.mark.parametrize("table", TABLES)
def test_a_table_is_the_same_in_schema_sql_and_in_python(
    table: str, from_file: sqlite3.Connection, from_tables: sqlite3.Connection
) -> None:
    """Columns, types, defaults, keys, indexes, checks, names and flags agree."""
    assert described(from_file, table) == described(from_tables, table)


@pytest.mark.parametrize("table", TABLES)
def test_every_table_is_strict_and_its_ids_are_never_used_again(table: str, from_file: sqlite3.Connection) -> None:
    """STRICT everywhere; a table with an id counts it by AUTOINCREMENT."""
    found = described(from_file, table)
    assert found["flags"][-1] == 1
    assert found["autoincrement"] == ("id" in metadata.tables[table].c)


@pytest.mark.parametrize("table", TABLES)
def test_every_foreign_key_restricts_and_is_found_by_an_index(table: str, from_file: sqlite3.Connection) -> None:
    """The child column leads a unique constraint or an index that covers all of its values but NULL."""
    found = described(from_file, table)
    primary = [name for _, name, *_, pk, _ in sorted(found["columns"], key=lambda c: c[5]) if pk][:1]
    leading = {columns[0][1]: condition for *_, columns, condition in found["indexes"]} | dict.fromkeys(primary, "")
    optional = {name for _, name, _, notnull, *_ in found["columns"] if not notnull}
    for _, column, target, update, delete, _ in found["foreign keys"]:
        assert (target, update, delete) == ("id", "NO ACTION", "RESTRICT")
        assert leading[column] in ("", f"{column} IS NOT NULL" if column in optional else "")


def test_schema_sql_is_what_the_revisions_make(tmp_path: Path) -> None:
    """An upgrade of an empty index dumps to exactly the file that fresh stores are made of."""
    migrate.make_empty(str(tmp_path))
    assert migrate.schema_sql(str(tmp_path)) == SCHEMA_SQL


def test_a_new_store_is_at_the_newest_revision(store: casstore.Store) -> None:
    """user_version, application_id, settings and alembic's stamp agree with code and revision files."""
    newest = max(path.name.partition("_")[0] for path in (ROOT / "migrations" / "versions").glob("[0-9]*.py"))
    with contextlib.closing(sqlite3.connect(Path(store.path, "index.sqlite"))) as connection:
        pragmas = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")]
        stamp = connection.execute("SELECT version_num FROM alembic_version").fetchone()[0]
        settings = dict(connection.execute("SELECT key, value FROM settings"))
    assert pragmas == [APPLICATION_ID, SCHEMA]
    assert stamp == newest
    assert int(newest) == SCHEMA == int(settings["schema"])


def test_the_views_of_a_new_store_are_those_of_the_list(from_file: sqlite3.Connection) -> None:
    """schema.sql makes each view of views.py, with its text, and no other."""
    found = dict(from_file.execute("SELECT name, sql FROM sqlite_master WHERE type = 'view'"))
    assert found == {name: f"CREATE VIEW {name} AS {body.strip()}" for name, body in VIEWS.items()}


# -- alembic as a process ----------------------------------------------------------------------------------------------


def alembic(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "alembic", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={"PATH": ""}, check=False)


def dump(path: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(path / "index.sqlite")) as connection:
        version = connection.execute("PRAGMA user_version").fetchall()
        return [*connection.iterdump(), repr(version)]


def test_upgrading_a_store_that_is_new_enough_changes_nothing(tmp_path: Path) -> None:
    """`alembic -x store=DIR upgrade head` on a current store succeeds and leaves schema, rows and stamp alone."""
    path = tmp_path / "s"
    with casstore.open(path, create=True, durability="off") as store:
        put(store, "a")
    before = dump(path)
    done = alembic("-x", f"store={path}", "upgrade", "head")
    assert done.returncode == 0, done.stderr
    assert dump(path) == before
    with casstore.open(path) as store:
        assert get(store, "a") == expect("a")


def test_upgrading_without_a_store_asks_for_one() -> None:
    """Without `-x store=DIR` alembic stops with one line that says how to name the store."""
    done = alembic("upgrade", "head")
    assert done.returncode != 0
    assert "alembic -x store=DIR upgrade head" in done.stderr
    assert "Traceback" not in done.stderr


def test_sql_scripts_are_refused() -> None:
    """A revision must see the store that it changes, so alembic's offline mode is no way."""
    done = alembic("-x", "store=x", "upgrade", "head", "--sql")
    assert done.returncode != 0
    assert "offline" in done.stderr


@pytest.mark.parametrize("disaster", ["missing", "empty", "foreign", "newer"])
def test_an_upgrade_never_makes_a_store_of_something_else(tmp_path: Path, disaster: str) -> None:
    """T19: alembic refuses a store whose index is gone, empty, foreign or too new, and changes nothing."""
    path = tmp_path / "s"
    with casstore.open(path, create=True, durability="off") as store:
        put(store, "a")
    index = path / "index.sqlite"
    if disaster != "newer":
        index.unlink()
    if disaster == "empty":
        index.touch()
    script = {
        "foreign": "CREATE TABLE theirs (x);",
        "newer": f"PRAGMA user_version = {SCHEMA + 1}; UPDATE alembic_version SET version_num = '9999';",
    }
    if disaster in script:
        with contextlib.closing(sqlite3.connect(index)) as connection:
            connection.executescript(script[disaster])
    before = tree(path)
    done = alembic("-x", f"store={path}", "upgrade", "head")
    assert done.returncode != 0, "it said that all was well"
    assert tree(path) == before
    assert len(object_files(path)) == 1


def test_opening_and_creating_never_import_alembic(tmp_path: Path) -> None:
    """A process that creates, opens, puts, gets and closes has loaded SQLAlchemy but not alembic, nor torch."""
    script = f"""
import sys, casstore, numpy
assert "sqlalchemy" not in sys.modules
key = casstore.Key.text("a", casstore.Recipe("r"))
for _ in range(2):
    with casstore.open({str(tmp_path / "s")!r}, create=True) as store:
        with store.batch() as batch:
            batch.put(key, {{"t": numpy.zeros(3)}})
        store.get(key, as_numpy=True)
assert "sqlalchemy" in sys.modules
print([name for name in ("alembic", "mako", "torch", "PIL") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")
