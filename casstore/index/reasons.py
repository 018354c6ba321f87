"""Why a key isn't stored, from what is stored beside it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from sqlalchemy import Connection, select

from casstore.identity.keys import Key
from casstore.index.bulk import chunks
from casstore.index.tables import failures, hashes, recipes, source_contents, sources, variants
from casstore.model import Miss

PICTURE_FAILURE = "PictureError"
"""`failures.error_type` of pictures that can't be decoded: they aren't tried again until their bytes change."""


def explain_misses(connection: Connection, keys: Sequence[Key]) -> dict[bytes, Miss]:
    """{key digest: why it isn't stored}, for keys that have no row.

    In this order: it failed before ("failed" if it isn't to be tried again by itself, else "retry"); another resolution
    or variation of the same content is stored; the file held other content before; another recipe of the same name is
    stored; it is new.
    """
    failed = _failures(connection, keys)
    siblings = _variants_of_contents(connection, keys)
    before = _variants_of_earlier_contents(connection, keys)
    found = {}
    for key in keys:
        if key.digest in failed:
            kind, message = failed[key.digest]
            found[key.digest] = Miss("failed" if kind == PICTURE_FAILURE else "retry", message)
        else:
            found[key.digest] = _from_relatives(key, siblings[key.primary.digest], before[key.primary.digest])
    return found


def _from_relatives(key: Key, siblings: list[tuple[bytes, str, str]], before: set[tuple[bytes, str]]) -> Miss:
    same = sorted({resolution for recipe, _, resolution in siblings if recipe == key.recipe.digest})
    if key.resolution in same:
        return Miss("variation", "another variation is stored")
    if same:
        return Miss("resolution", "stored at " + ", ".join(resolution or "full size" for resolution in same))
    if any(recipe == key.recipe.digest for recipe, _ in before):
        return Miss("edited", "the file was edited since its last encoding")
    names = {name for _, name, _ in siblings} | {name for _, name in before}
    if key.recipe.name in names:
        return Miss("recipe", f"stored with another recipe named {key.recipe.name!r}")
    return Miss("new")


def _failures(connection: Connection, keys: Sequence[Key]) -> dict[bytes, tuple[str, str]]:
    found = {}
    for part in chunks([key.digest for key in keys]):
        query = select(failures.c.key, failures.c.error_type, failures.c.message).where(failures.c.key.in_(part))
        found.update({digest: (kind, message) for digest, kind, message in connection.execute(query)})
    return found


def _variants_of_contents(connection: Connection, keys: Sequence[Key]) -> dict[bytes, list[tuple[bytes, str, str]]]:
    """{content digest: [(recipe digest, recipe name, resolution)]}"""
    found: dict[bytes, list[tuple[bytes, str, str]]] = defaultdict(list)
    for part in chunks(list({key.primary.digest for key in keys})):
        query = (
            select(hashes.c.digest, recipes.c.digest, recipes.c.name, variants.c.resolution)
            .join_from(variants, hashes, hashes.c.id == variants.c.hash_id)
            .join(recipes, recipes.c.id == variants.c.recipe_id)
            .where(hashes.c.digest.in_(part))
        )
        for digest, recipe, name, resolution in connection.execute(query):
            found[digest].append((recipe, name, resolution))
    return found


def _variants_of_earlier_contents(connection: Connection, keys: Sequence[Key]) -> dict[bytes, set[tuple[bytes, str]]]:
    """{present content digest: {(recipe digest, recipe name) of what its files held before}}"""
    found: dict[bytes, set[tuple[bytes, str]]] = defaultdict(set)
    for part in chunks(list({key.primary.digest for key in keys})):
        query = (
            select(hashes.c.digest, recipes.c.digest, recipes.c.name)
            .join_from(sources, hashes, hashes.c.id == sources.c.hash_id)
            .join(source_contents, source_contents.c.source_id == sources.c.id)
            .join(variants, variants.c.hash_id == source_contents.c.hash_id)
            .join(recipes, recipes.c.id == variants.c.recipe_id)
            .where(hashes.c.digest.in_(part))
            .distinct()
        )
        for digest, recipe, name in connection.execute(query):
            found[digest].add((recipe, name))
    return found
