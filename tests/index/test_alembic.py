"""The revisions as alembic sees them: one line of them, each a step, and at its end what tables.py says.

These are three of the tests of pytest-alembic, run on our own connections; its fourth goes down again, which no
revision of ours can.
"""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from kit import ROOT, dump, old_store, python
from sqlalchemy import Column, Integer, MetaData

import casstore
from casstore.errors import StoreOutdatedError
from casstore.index import migrate
from casstore.index.tables import SCHEMA, FileName, metadata

REVISIONS = [revision for revision, _ in migrate.history()]


def differences(folder: Path, wanted: MetaData) -> set[str]:
    """What `alembic revision --autogenerate` would write into a new revision, in words."""
    with migrate.connect(str(folder)) as connection:
        context = MigrationContext.configure(connection, opts={"compare_server_default": True})
        found = set()
        for change in compare_metadata(context, wanted):
            # A change of a column comes as a list, with (what, schema, table, column ...) in it.
            what, *rest = change[0] if isinstance(change, list) else change
            found.add(" ".join([what, *(str(part) for part in rest[:3] if isinstance(part, str | Column))]))
        return found


def test_the_revisions_are_one_line() -> None:
    """From the first to the only head no revision has two successors or a name out of turn."""
    scripts = ScriptDirectory.from_config(migrate._config(None))
    assert scripts.get_heads() == [f"{SCHEMA:04}"]
    assert [found.down_revision for found in map(scripts.get_revision, REVISIONS) if found] == [None, *REVISIONS[:-1]]
    assert [f"{number:04}" for number in range(1, SCHEMA + 1)] == REVISIONS


def test_each_revision_is_a_step_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Upgraded one revision at a time, an index has each stamp in turn, and in the end the schema of one leap."""
    (tmp_path / "leap").mkdir()
    migrate.make_empty(str(tmp_path / "leap"))
    stamps, schemas = [], set()
    for revision in REVISIONS:
        monkeypatch.setattr(migrate, "SCHEMA", int(revision))  # as it was then
        with migrate.connect(str(tmp_path), create=True) as connection:
            command.upgrade(migrate._config(connection), revision)
        with contextlib.closing(sqlite3.connect(tmp_path / "index.sqlite")) as raw:
            stamps += raw.execute("SELECT version_num FROM alembic_version").fetchall()
        schemas.add(migrate.schema_sql(str(tmp_path)))
    assert stamps == [(revision,) for revision in REVISIONS]
    assert len(schemas) == len(REVISIONS), "a revision that changes nothing is none"
    assert migrate.schema_sql(str(tmp_path)) == migrate.schema_sql(str(tmp_path / "leap"))


def test_autogenerate_finds_nothing_to_do(tmp_path: Path) -> None:
    """The revisions make what tables.py describes, but for the columns of type ANY, which alembic can't name."""
    migrate.make_empty(str(tmp_path))
    names = [column for table in metadata.tables.values() for column in table.c if isinstance(column.type, FileName)]
    assert len(names) >= 3
    assert differences(tmp_path, metadata) == {f"modify_type {column.table.name} {column.name}" for column in names}


@pytest.mark.parametrize("change", ["column", "table", "nullable", "index"])
def test_autogenerate_would_find_what_has_no_revision(tmp_path: Path, change: str) -> None:
    """The comparison isn't blind: a change of tables.py alone is a difference."""
    migrate.make_empty(str(tmp_path))
    wanted = MetaData(naming_convention=metadata.naming_convention)
    for table in metadata.sorted_tables:
        table.to_metadata(wanted)
    if change == "column":
        wanted.tables["runs"].append_column(Column("new", Integer))
    elif change == "table":
        wanted.remove(wanted.tables["failures"])
    elif change == "nullable":
        wanted.tables["runs"].c.error.nullable = False
    else:
        wanted.tables["variants"].indexes.pop()
    assert len(differences(tmp_path, wanted) - differences(tmp_path, metadata)) >= 1


@pytest.mark.parametrize("verb", [("current",), ("upgrade", "0002"), ("stamp", "head"), ("downgrade", "-1")])
def test_only_an_upgrade_to_the_newest_revision_changes_a_store(tmp_path: Path, verb: tuple[str, ...]) -> None:
    """Looking, stamping, half an upgrade: whatever else alembic is told, an old index stays what it was."""
    path = old_store(tmp_path)
    before = dump(path)
    python("-m", "alembic", "-x", f"store={path}", *verb, cwd=ROOT)
    assert dump(path) == before
    with contextlib.closing(sqlite3.connect(path / "index.sqlite")) as index:
        assert index.execute("PRAGMA user_version").fetchone() == (1,)
    with pytest.raises(StoreOutdatedError):
        casstore.open(path)
