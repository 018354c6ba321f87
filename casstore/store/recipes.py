"""The methods of a store that are about its recipes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from casstore.identity.recipes import Recipe

if TYPE_CHECKING:
    from casstore.core.handle import Handle
    from casstore.model import RecipeInfo


class Recipes:
    """What can be asked and said about the recipes of an open store."""

    _handle: Handle

    def recipes(self) -> list[RecipeInfo]:
        """The recipes that something was stored with, or failed, and what each takes; most variants first."""
        from casstore.index.readonly import retried
        from casstore.upkeep.recipes import recipes

        return retried(lambda: recipes(self._handle))

    def retire(self, recipe: Recipe | str, *, undo: bool = False) -> RecipeInfo:
        """Say that a recipe isn't wanted any more. It still serves hits; whoever stores with it brings it back.

        Args:
            recipe: itself, its name (alone or behind its namespace: "team/sdxl-vae"), or the first hex digits, four or
                more, of its digest.
            undo: say that it is wanted after all.

        Returns:
            The recipe as it is now. One that was retired before keeps the time of that.

        Raises:
            UsageError: there is no such recipe, or several; it lists them.
        """
        from casstore.upkeep.recipes import retire

        return retire(self._handle, recipe, undo=undo)
