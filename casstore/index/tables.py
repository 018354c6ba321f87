"""The tables of the index, for building statements.

The tables themselves are made by `schema.sql`, which is generated from the alembic revisions; a test holds it against
this module. Digests are BLOB(32); 64-bit hashes and inodes are stored as signed integers; times are integer
milliseconds UTC; file names and paths are TEXT if they are valid UTF-8 and else the raw bytes.
"""

from __future__ import annotations

import os
from typing import Any

from sqlalchemy import (
    REAL,
    CheckConstraint,
    Column,
    Dialect,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.types import UserDefinedType

SCHEMA = 9
"""`user_version` of the index that this code reads and writes; the number of the newest revision."""
MIN_READER = 4
MIN_WRITER = 9
"""The oldest schemas whose code can read, or write, an index of schema SCHEMA; each revision considers them."""
APPLICATION_ID = 0x63617373  # "cass"

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)


class FileName(UserDefinedType[str]):
    """A file name or path: TEXT if it is valid UTF-8, else its raw bytes (surrogateescape on the Python side)."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "ANY"

    def bind_processor(self, dialect: Dialect) -> Any:
        return to_sql

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        return lambda value: os.fsdecode(value) if isinstance(value, bytes) else value


def to_sql(name: str | None) -> str | bytes | None:
    """How a file name or path is stored: itself if it is valid Unicode, else its raw bytes."""
    if name is None:
        return None
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return os.fsencode(name)
    return name


def _table(name: str, *parts: Any, rowid: bool = True) -> Table:
    numbered = any(isinstance(part, Column) and part.name == "id" for part in parts)
    return Table(name, metadata, *parts, sqlite_strict=True, sqlite_autoincrement=numbered, sqlite_with_rowid=rowid)


def _id() -> Column[int]:
    # AUTOINCREMENT: a row id that is used again could name other content.
    return Column("id", Integer, primary_key=True)


def _digest(*, unique: bool = True) -> list[Any]:
    parts: list[Any] = [Column("digest", LargeBinary, nullable=False), CheckConstraint("length(digest) = 32", "digest")]
    return [*parts, UniqueConstraint("digest")] if unique else parts


def _reference(column: str, table: str, *, nullable: bool = False) -> Column[Any]:
    return Column(column, Integer, ForeignKey(f"{table}.id", ondelete="RESTRICT"), nullable=nullable)


def _index(table: Table, column: str) -> None:
    where = table.c[column].is_not(None) if table.c[column].nullable else None
    Index(None, table.c[column], sqlite_where=where)


settings = _table("settings", Column("key", Text, primary_key=True), Column("value", Text, nullable=False), rowid=False)

roots = _table(
    "roots",
    _id(),
    Column("name", Text, nullable=False, unique=True),
    Column("path", FileName, nullable=False),
    Column("last_seen_at", Integer, nullable=False),
    Column("fs_id", Text),
    Column("inode", Integer),
    Column("state", Text, nullable=False, server_default="whole"),
    UniqueConstraint("path", name="uq_roots_path"),
    CheckConstraint("state IN ('whole', 'unavailable', 'suspicious')", "state"),
)
directories = _table(
    "directories",
    _id(),
    _reference("root_id", "roots"),
    Column("relpath", FileName, nullable=False),
    Column("fs_id", Text),
    Column("listed_at", Integer),
    Column("changes", Integer, nullable=False, server_default=text("0")),
    UniqueConstraint("root_id", "relpath"),
)
directory_prints = _table(
    "directory_prints",
    _reference("directory_id", "directories"),
    Column("filter", Text, nullable=False),
    Column("fingerprint", LargeBinary),
    Column("files", Integer, nullable=False),
    Column("st_mtime_ns", Integer),
    Column("st_ino", Integer),
    Column("states", LargeBinary),
    PrimaryKeyConstraint("directory_id", "filter"),
    rowid=False,
)
hashes = _table(
    "hashes",
    _id(),
    Column("kind", Text, nullable=False),
    *_digest(unique=False),
    Column("nbytes", Integer, nullable=False),
    Column("width", Integer),
    Column("height", Integer),
    Column("orientation", Integer),
    Column("note", Text),
    Column("frames", Integer),
    Column("rate", REAL),
    UniqueConstraint("digest", "kind"),
    CheckConstraint("kind IN ('file', 'text', 'array', 'composite')", "kind"),
)
hash_members = _table(
    "hash_members",
    _reference("hash_id", "hashes"),
    Column("role", Text, nullable=False),
    Column("ordinal", Integer, nullable=False),
    _reference("member_id", "hashes"),
    PrimaryKeyConstraint("hash_id", "role", "ordinal"),
    rowid=False,
)
texts = _table(
    "texts",
    Column("hash_id", Integer, ForeignKey("hashes.id", ondelete="RESTRICT"), primary_key=True, autoincrement=False),
    Column("text", Text, nullable=False),
)
sources = _table(
    "sources",
    _id(),
    _reference("directory_id", "directories"),
    Column("name", FileName, nullable=False),
    _reference("hash_id", "hashes", nullable=True),
    Column("st_size", Integer, nullable=False),
    Column("st_mtime_ns", Integer, nullable=False),
    Column("st_ctime_ns", Integer, nullable=False),
    Column("st_ino", Integer, nullable=False),
    Column("settled", Integer, nullable=False),
    Column("missing_since", Integer),
    Column("error", Text),
    UniqueConstraint("directory_id", "name"),
    CheckConstraint("settled IN (0, 1)", "settled"),
)
source_contents = _table(
    "source_contents",
    _reference("source_id", "sources"),
    _reference("hash_id", "hashes"),
    Column("last_seen", Integer, nullable=False),
    PrimaryKeyConstraint("source_id", "hash_id"),
    rowid=False,
)
recipes = _table(
    "recipes",
    _id(),
    *_digest(),
    Column("name", Text, nullable=False),
    Column("spec", Text, nullable=False),
    Column("created_at", Integer, nullable=False),
    Column("codec", Text),
    Column("namespace", Text),
    Column("retired_at", Integer),
)
schema_stamps = _table(
    "schema_stamps",
    _id(),
    *_digest(),
    Column("names", Text, nullable=False),
    Column("method", Text),
    Column("bucket_method", Text),
    CheckConstraint("method IN ('added', 'taken over')", "method"),
)
layouts = _table(
    "layouts", _id(), *_digest(), Column("nbytes", Integer, nullable=False), Column("tensors", Text, nullable=False)
)
value_sets = _table("value_sets", _id(), *_digest(), Column("data", Text, nullable=False))
objects = _table(
    "objects",
    _id(),
    *_digest(),
    Column("codec", Text, nullable=False),
    _reference("layout_id", "layouts"),
    Column("stored_bytes", Integer, nullable=False),
    Column("stored_xxh3", Integer, nullable=False),
    Column("created_at", Integer, nullable=False),
    Column("verified_at", Integer),
    Column("condemned_at", Integer),
    Column("damaged_at", Integer),
    Column("condemned_epoch", Integer),  # None: it was condemned before there were epochs
)
runs = _table(
    "runs",
    _id(),
    Column("kind", Text, nullable=False),
    Column("started_at", Integer, nullable=False),
    Column("finished_at", Integer),
    Column("counts", Text, nullable=False),
    Column("bytes", Integer, nullable=False),
    Column("error", Text),
    Column("host", Text, nullable=False),
)
variants = _table(
    "variants",
    _id(),
    _reference("hash_id", "hashes"),
    _reference("inputs_id", "hashes"),
    _reference("recipe_id", "recipes"),
    Column("resolution", Text, nullable=False),
    Column("variation", Integer, nullable=False),
    Column("params", Text, nullable=False),
    _reference("values_id", "value_sets", nullable=True),
    _reference("run_id", "runs", nullable=True),
    Column("reason", Text, nullable=False),
    Column("encode_us", Integer),
    Column("checksum", Integer, nullable=False),
    UniqueConstraint("hash_id", "inputs_id", "recipe_id", "resolution", "variation", "params"),
)
variant_parts = _table(
    "variant_parts",
    _reference("variant_id", "variants"),
    Column("ordinal", Integer, nullable=False),
    _reference("object_id", "objects"),
    _reference("stamp_id", "schema_stamps"),
    _reference("inputs_id", "hashes", nullable=True),  # None: the variant's own
    PrimaryKeyConstraint("variant_id", "ordinal"),
    rowid=False,
)
failures = _table(
    "failures",
    Column("key", LargeBinary, primary_key=True, nullable=False),
    _reference("hash_id", "hashes"),
    _reference("inputs_id", "hashes"),
    _reference("recipe_id", "recipes"),
    Column("resolution", Text, nullable=False),
    Column("variation", Integer, nullable=False),
    Column("params", Text, nullable=False),
    Column("error_type", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("last_at", Integer, nullable=False),
    CheckConstraint("length(key) = 32", "key"),
)
owners = _table(
    "owners",
    _id(),
    Column("name", Text, nullable=False, unique=True),
    Column("kind", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("command", Text, nullable=False),
    Column("started_at", Integer, nullable=False),
    Column("epoch", Integer),  # of a reader: the last one of gc when it began; what is condemned later stays for it
    Column("recipes", Text),  # of a reader: JSON list of digests
)
claims = _table(
    "claims",
    Column("key", LargeBinary, primary_key=True, nullable=False),
    _reference("owner_id", "owners"),
    CheckConstraint("length(key) = 32", "key"),
    rowid=False,
)

# A foreign key is looked up from its parent when the parent goes; columns that lead a unique constraint need no index.
for _child, _column in (
    (sources, "hash_id"),
    (source_contents, "hash_id"),
    (hash_members, "member_id"),
    (objects, "layout_id"),
    (objects, "condemned_at"),  # not a foreign key: gc asks for the few that are condemned
    (variants, "inputs_id"),
    (variants, "recipe_id"),
    (variants, "values_id"),
    (variants, "run_id"),
    (variant_parts, "object_id"),
    (variant_parts, "stamp_id"),
    (variant_parts, "inputs_id"),
    (failures, "hash_id"),
    (failures, "inputs_id"),
    (failures, "recipe_id"),
    (claims, "owner_id"),
):
    _index(_child, _column)
