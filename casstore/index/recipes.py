"""Rows of recipes: what each takes, the one that a person means, and retiring."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, func, null, select, update

from casstore.errors import UsageError
from casstore.identity.digests import RECIPE_CONTEXT, canonical_digest
from casstore.identity.keys import short
from casstore.identity.recipes import Recipe
from casstore.index.bulk import AnyConnection, ByDigest, Statement, now_ms
from casstore.index.tables import layouts, objects, recipes, runs, variant_parts, variants
from casstore.model import RecipeInfo

PREFIX = 4  # hex digits that a digest may be shortened to
CANDIDATES = 10  # that an error names

_log = logging.getLogger("casstore.index")

_retired = ByDigest(
    lambda digests: select(recipes.c.digest, recipes.c.name).where(
        recipes.c.digest.in_(digests), recipes.c.retired_at.is_not(None)
    )
)
_unretire = Statement(update(recipes).where(recipes.c.digest == bindparam("wanted")).values(retired_at=null()))


def list_recipes(connection: Connection) -> list[RecipeInfo]:
    """What there is of each recipe, most variants first; an object that two recipes share counts for both."""
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
    counts = (
        select(variants.c.recipe_id, func.count().label("n"), func.max(variants.c.run_id).label("run"))
        .group_by(variants.c.recipe_id)
        .subquery()
    )
    query = (
        select(
            recipes.c.name,
            recipes.c.namespace,
            recipes.c.digest,
            recipes.c.spec,
            func.coalesce(counts.c.n, 0),
            func.coalesce(sums.c.payload, 0),
            func.coalesce(sums.c.stored, 0),
            recipes.c.created_at,
            runs.c.started_at,
            recipes.c.retired_at,
        )
        .join_from(recipes, counts, counts.c.recipe_id == recipes.c.id, isouter=True)
        .outerjoin(sums, sums.c.recipe_id == recipes.c.id)
        .outerjoin(runs, runs.c.id == counts.c.run)
        .order_by(func.coalesce(counts.c.n, 0).desc(), recipes.c.id)
    )
    return [
        RecipeInfo(name, namespace, digest.hex(), *rest) for name, namespace, digest, *rest in connection.execute(query)
    ]


class RecipeRow(NamedTuple):
    """A recipe as the index has it, without what it takes; `digest` in hex."""

    id: int
    name: str
    namespace: str | None
    digest: str
    spec: str
    retired: bool

    @property
    def title(self) -> str:
        """How people see and may name it."""
        return self.name if self.namespace is None else f"{self.namespace}/{self.name}"


def known_recipes(connection: Connection) -> list[RecipeRow]:
    """All recipes that are what their digest says, the one that was first used last first."""
    columns = (recipes.c.id, recipes.c.name, recipes.c.namespace, recipes.c.digest, recipes.c.spec)
    query = select(*columns, recipes.c.retired_at.is_not(None)).order_by(
        recipes.c.created_at.desc(), recipes.c.id.desc()
    )
    return [
        RecipeRow(id_, name, namespace, digest.hex(), spec, retired)
        for id_, name, namespace, digest, spec, retired in connection.execute(query)
        if canonical_digest(RECIPE_CONTEXT, spec) == digest  # else a bit of it has flipped
    ]


def is_named(recipe: RecipeRow | RecipeInfo, named: str) -> bool:
    """Whether a person can mean this recipe: by its name, alone or behind its namespace, or by its digest's start."""
    if named in (recipe.name, recipe.title):
        return True
    given = named.lower()
    return re.fullmatch(f"[0-9a-f]{{{PREFIX},64}}", given) is not None and recipe.digest.startswith(given)


def all_meant(found: Sequence[RecipeRow], named: str | Recipe | None) -> list[RecipeRow]:
    """All recipes that are meant: those of a name or digest, or the recipe itself; None: all that there are.

    Raises:
        UsageError: there is none.
    """
    if named is None:
        return list(found)
    if isinstance(named, Recipe):
        meant = [recipe for recipe in found if recipe.digest == named.digest.hex()]
    else:
        meant = [recipe for recipe in found if is_named(recipe, named)]
    if not meant:
        raise UsageError(no_recipe(named))
    return meant


def no_recipe(named: str | Recipe) -> str:
    """What to say where there is no such recipe."""
    told = f"{named.name} ({short(named.digest)})" if isinstance(named, Recipe) else repr(named)
    return f"there is no recipe {told} in this store; casstore recipes ls lists those that there are"


def newest_meant(found: Sequence[RecipeRow], named: str) -> RecipeRow:
    """The newest of the recipes of a name that isn't retired (or the newest, if all are), or the only one of a digest.

    Args:
        found: from `known_recipes`.
        named: its name (alone or behind its namespace), or four or more hex digits of its digest.

    Raises:
        UsageError: there is none, or several digests begin like that.
    """
    meant = all_meant(found, named)
    by_name = [recipe for recipe in meant if named in (recipe.name, recipe.title)]
    if not by_name and len(meant) > 1:
        told = ", ".join(f"{recipe.digest[:12]} ({recipe.title})" for recipe in meant[:CANDIDATES])
        raise UsageError(f"{named!r} could be any of {len(meant)} recipes; give more of the digest: {told}")
    return next((recipe for recipe in by_name or meant if not recipe.retired), meant[0])


def newest_each(found: Sequence[RecipeRow]) -> list[RecipeRow]:
    """The newest of each name that isn't retired; the newest, if all of its name are."""
    newest: dict[str, RecipeRow] = {}
    for recipe in found:
        if recipe.name not in newest or (newest[recipe.name].retired and not recipe.retired):
            newest[recipe.name] = recipe
    return list(newest.values())


def the_recipe(found: Sequence[RecipeInfo], named: str | Recipe) -> RecipeInfo:
    """The one of these recipes that is meant.

    Args:
        found: from `list_recipes`.
        named: the recipe itself, its name (alone or behind its namespace), its digest, or the first hex digits of that,
            four or more.

    Raises:
        UsageError: there is none, or several; it lists them.
    """
    if isinstance(named, Recipe):
        meant = [recipe for recipe in found if recipe.digest == named.digest.hex()]
    else:
        meant = [recipe for recipe in found if is_named(recipe, named)]
    if len(meant) == 1:
        return meant[0]
    if not meant:
        raise UsageError(no_recipe(named))
    lines = [f"{recipe.digest[:12]} ({recipe.title}, {recipe.variants:,} variants)" for recipe in meant[:CANDIDATES]]
    more = f", and {len(meant) - CANDIDATES} more" if len(meant) > CANDIDATES else ""
    raise UsageError(
        f"{named!r} could be any of {len(meant)} recipes; name one by its digest: {', '.join(lines)}{more}"
    )


def set_retired(connection: Connection, recipe: RecipeInfo, *, retired: bool) -> int | None:
    """Note that a recipe is retired, or that it isn't; since when it is now.

    Raises:
        UsageError: it has gone meanwhile.
    """
    since = func.coalesce(recipes.c.retired_at, now_ms()) if retired else None
    query = update(recipes).where(recipes.c.digest == bytes.fromhex(recipe.digest)).values(retired_at=since)
    row = connection.execute(query.returning(recipes.c.retired_at)).one_or_none()
    if row is None:
        raise UsageError(f"the recipe {recipe.name} has been removed meanwhile; casstore recipes ls")
    found: int | None = row[0]
    return found


def unretire_used(connection: AnyConnection, digests: Sequence[bytes]) -> list[str]:
    """Recipes that are worked with aren't retired: note that, and tell the log.

    Args:
        connection: in a write transaction.
        digests: of the recipes.

    Returns:
        The names of those that were retired.
    """
    found = _retired.rows(connection, digests) if digests else []
    for digest, name in found:
        _log.warning("recipe %s (%s) was retired; it is in use again, so it isn't any more", name, short(digest))
    _unretire.many(connection, [(digest,) for digest, _ in found])
    return [name for _, name in found]


def newest_named(connection: Connection, name: str) -> tuple[bytes, str] | None:
    """(digest, spec) of the recipe of this name that was first used last; None: there is none."""
    query = select(recipes.c.digest, recipes.c.spec).where(recipes.c.name == name)
    for digest, spec in connection.execute(query.order_by(recipes.c.created_at.desc(), recipes.c.id.desc())):
        if canonical_digest(RECIPE_CONTEXT, spec) == digest:  # else a bit of it has flipped
            return digest, spec
    return None
