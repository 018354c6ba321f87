"""The recipes of a store, and retiring those that aren't wanted any more."""

from __future__ import annotations

import dataclasses

from casstore.core.handle import Handle
from casstore.identity.recipes import Recipe
from casstore.index.recipes import list_recipes, set_retired, the_recipe
from casstore.model import RecipeInfo


def recipes(handle: Handle) -> list[RecipeInfo]:
    """All of them; reads the index only."""
    handle.check_open()
    with handle.index.read() as connection:
        return list_recipes(connection)


def retire(handle: Handle, named: Recipe | str, *, undo: bool = False) -> RecipeInfo:
    """Retire a recipe, or take that back; what it is afterwards.

    Raises:
        UsageError: none, or several, are meant.
    """
    handle.check_writable()
    found = the_recipe(recipes(handle), named)  # before the write lock: counting takes its time
    with handle.index.write() as connection:
        return dataclasses.replace(found, retired_at=set_retired(connection, found, retired=not undo))
