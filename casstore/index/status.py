"""Counts and sums over the whole index."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, Table, func, select

from casstore.index.tables import failures, hashes, layouts, objects, recipes, sources, variant_parts, variants
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
    pairs = (
        select(variants.c.recipe_id, variant_parts.c.object_id)
        .join_from(variants, variant_parts, variant_parts.c.variant_id == variants.c.id)
        .distinct()
        .subquery()
    )
    sums = (
        select(
            pairs.c.recipe_id,
            func.sum(layouts.c.nbytes).label("payload"),
            func.sum(objects.c.stored_bytes).label("stored"),
        )
        .join_from(pairs, objects, objects.c.id == pairs.c.object_id)
        .join(layouts, layouts.c.id == objects.c.layout_id)
        .group_by(pairs.c.recipe_id)
        .subquery()
    )
    counts = select(variants.c.recipe_id, func.count().label("n")).group_by(variants.c.recipe_id).subquery()
    query = (
        select(
            recipes.c.name,
            recipes.c.digest,
            func.coalesce(counts.c.n, 0),
            func.coalesce(sums.c.payload, 0),
            func.coalesce(sums.c.stored, 0),
        )
        .join_from(recipes, counts, counts.c.recipe_id == recipes.c.id, isouter=True)
        .outerjoin(sums, sums.c.recipe_id == recipes.c.id)
        .order_by(func.coalesce(counts.c.n, 0).desc(), recipes.c.id)
    )
    return [
        RecipeUsage(name, digest.hex(), n, payload, stored)
        for name, digest, n, payload, stored in connection.execute(query)
    ]
