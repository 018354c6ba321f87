"""A fresh index, from the generated schema. Never imports alembic."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from importlib.resources import files

from casstore.index.driver import connect, typed_errors


def create_index(path: str, settings: Mapping[str, str]) -> None:
    """Make a new index file at `path` (which must not exist), in WAL mode, with these settings. Nothing is flushed."""
    script = files("casstore.index").joinpath("schema.sql").read_text(encoding="utf-8")
    with typed_errors(path), contextlib.closing(connect(path, "rwc")) as connection:
        # Only here is the mode ever switched: switching under other openers can fail in spite of a busy timeout.
        connection.execute("PRAGMA journal_mode = WAL").fetchone()
        connection.executescript(f"BEGIN IMMEDIATE;\n{script}\nCOMMIT;")
        connection.executemany("INSERT INTO settings (key, value) VALUES (?, ?)", sorted(settings.items()))
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
