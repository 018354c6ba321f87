"""Counts and sums over the whole index."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, Table, func, select

from casstore.index.recipes import list_recipes
from casstore.index.tables import failures, hashes, layouts, objects, sources, variants
from casstore.model import RecipeUsage


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of rows, and sums over distinct objects in bytes."""

    sources: int
    missing: int
    hashes: int
    variants: int
    objects: int
    damaged: int
    failures: int
    payload_bytes: int
    stored_bytes: int


def count_all(connection: Connection) -> Counts:
    """Count everything that `status` tells."""
    present, missing = connection.execute(
        select(func.count().filter(sources.c.missing_since.is_(None)), func.count(sources.c.missing_since))
    ).one()
    object_count, damaged, stored, payload = connection.execute(
        select(
            func.count(),
            func.count(objects.c.damaged_at),
            func.coalesce(func.sum(objects.c.stored_bytes), 0),
            func.coalesce(func.sum(layouts.c.nbytes), 0),
        ).join_from(objects, layouts)
    ).one()

    def rows(table: Table) -> int:
        return int(connection.execute(select(func.count()).select_from(table)).scalar_one())

    return Counts(
        present, missing, rows(hashes), rows(variants), object_count, damaged, rows(failures), payload, stored
    )


def usage_by_recipe(connection: Connection) -> list[RecipeUsage]:
    """What each recipe takes, most variants first; an object that two recipes share counts for both."""
    return [
        RecipeUsage(recipe.name, recipe.digest, recipe.variants, recipe.payload_bytes, recipe.stored_bytes)
        for recipe in list_recipes(connection)
    ]
