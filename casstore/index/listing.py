"""Variants and failures in lists: which there are, of which files."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, Integer, func, select

from casstore.index.bulk import AnyConnection, ByDigest, chunks
from casstore.index.tables import directories, failures, hashes, recipes, roots, sources, texts, variants

_paths = ByDigest(
    lambda ids: (
        select(
            sources.c.hash_id,
            sources.c.missing_since.is_not(None),
            roots.c.path,
            directories.c.relpath,
            sources.c.name,
        )
        .join_from(sources, directories, directories.c.id == sources.c.directory_id)
        .join(roots, roots.c.id == directories.c.root_id)
        .where(sources.c.hash_id.in_(ids))
    ),
    Integer,
)
_texts = ByDigest(lambda ids: select(texts.c.hash_id, texts.c.text).where(texts.c.hash_id.in_(ids)), Integer)


class Listed(NamedTuple):
    """A variant in a list: its row id, those of its content and its recipe."""

    id: int
    content: int
    recipe: int


class ListedFailure(NamedTuple):
    """A remembered failure: row ids of its content and recipe, and what there is to say."""

    content: int
    kind: str
    digest: bytes
    recipe: int
    resolution: str
    variation: int
    params: str
    error_type: str
    message: str
    attempts: int
    last_at: int


def listed_variants(
    connection: Connection, recipe_ids: Collection[int] | None, contents: Collection[int] | None, limit: int | None
) -> tuple[int, list[Listed]]:
    """(how many there are, the first of them in order of their ids).

    Args:
        connection: for reading.
        recipe_ids: of the recipes; None: of all.
        contents: row ids of the contents; None: of all.
        limit: the most to return; None: all.
    """
    columns = select(variants.c.id, variants.c.hash_id, variants.c.recipe_id)
    if recipe_ids is not None:
        columns = columns.where(variants.c.recipe_id.in_(sorted(recipe_ids)))
    if contents is None:
        total = connection.execute(select(func.count()).select_from(columns.subquery())).scalar_one()
        return total, [Listed(*row) for row in connection.execute(columns.order_by(variants.c.id).limit(limit))]
    found = sorted(
        Listed(*row)
        for part in chunks(sorted(contents))
        for row in connection.execute(columns.where(variants.c.hash_id.in_(part)))
    )
    return len(found), found[:limit]


def listed_failures(
    connection: Connection, recipe_ids: Iterable[int], contents: Collection[int] | None
) -> list[ListedFailure]:
    """The failures with these recipes, newest first; `contents`: only of these row ids."""
    query = (
        select(
            failures.c.hash_id,
            hashes.c.kind,
            hashes.c.digest,
            failures.c.recipe_id,
            failures.c.resolution,
            failures.c.variation,
            failures.c.params,
            failures.c.error_type,
            failures.c.message,
            failures.c.attempts,
            failures.c.last_at,
        )
        .join_from(failures, hashes, hashes.c.id == failures.c.hash_id)
        .where(failures.c.recipe_id.in_(select(recipes.c.id).where(recipes.c.id.in_(sorted(recipe_ids)))))
        .order_by(failures.c.last_at.desc(), failures.c.key)
    )
    rows = [ListedFailure(*row) for row in connection.execute(query)]
    return rows if contents is None else [row for row in rows if row.content in contents]


def paths_by_id(connection: AnyConnection, contents: Sequence[int]) -> dict[int, str]:
    """{row id of a content: the first of its files, of those that are there if there are any}"""
    found: dict[int, tuple[bool, str]] = {}
    for id_, missing, *parts in _paths.rows(connection, contents) if contents else ():
        path = bool(missing), os.path.join(*(os.fsdecode(part) for part in parts if part))
        found[id_] = min(path, found.get(id_, path))
    return {id_: path for id_, (_, path) in found.items()}


def texts_by_id(connection: AnyConnection, contents: Sequence[int]) -> dict[int, str]:
    """{row id of a content: the text that it is}"""
    return dict(_texts.rows(connection, contents)) if contents else {}
