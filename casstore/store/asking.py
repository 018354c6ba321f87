"""The methods of a store that answer questions about files: why, what is missing, what there is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from casstore.identity import resolutions
from casstore.identity.recipes import Recipe
from casstore.store.reading import THE_ONLY_ONE, Path, Wanted

if TYPE_CHECKING:
    from casstore.core.handle import Handle
    from casstore.explain.explanation import Explanation
    from casstore.upkeep.listing import Listing
    from casstore.upkeep.missing import FailedKey, MissingFiles


class Asking:
    """What can be asked of an open store; nothing is changed by it."""

    _handle: Handle

    def explain(
        self,
        path: Path,
        recipe: Recipe | str | None = None,
        *,
        resolution: Wanted = THE_ONLY_ONE,
        names: Sequence[str] = (),
    ) -> tuple[Explanation, ...]:
        """Why a file, as it is now, is served or isn't: beside what is stored, or beside the nearest relative of it.

        Args:
            path: of the file; it is read if it isn't as the last scan saw it.
            recipe: itself (the store needn't know it yet); its name, for the newest of this name; or the first hex
                digits, four or more, of its digest. None: each recipe that has something for the file.
            resolution: N, "HxW" and so on, as in `plan`; if none is given: all that are stored.
            names: tensors and values that must be there.

        Returns:
            One explanation for each recipe and resolution. If there is only one, it also has how many others share the
            fate. None at all if no recipe was given and nothing is stored.

        Raises:
            SourceNotFoundError: the file isn't there.
            UsageError: there is no such recipe, or the resolution can't be meant.
        """
        from casstore.explain.cases import explain
        from casstore.index.readonly import retried
        from casstore.store.reading import _TheOnlyOne

        given = not isinstance(resolution, _TheOnlyOne)
        wanted = None if isinstance(resolution, _TheOnlyOne) else resolutions.check(resolution)
        return retried(lambda: explain(self._handle, path, recipe, wanted, given=given, names=names))

    def missing(self, folder: Path, recipe: Recipe | str | None = None) -> MissingFiles:
        """Which files of a folder lack what its others have, and why. From the index only: nothing is looked at.

        Args:
            folder: a root, a folder in one, or one with roots in it.
            recipe: that they should have, as in `explain`; None: each that some file of the folder has, the newest of
                each name.

        Raises:
            UsageError: no scan has seen the folder, or there is no such recipe.
        """
        from casstore.index.readonly import retried
        from casstore.upkeep.missing import missing

        place = os.path.abspath(os.fspath(folder))
        return retried(lambda: missing(self._handle, place, recipe))

    def failures(self, folder: Path | None = None, recipe: Recipe | str | None = None) -> list[FailedKey]:
        """The failures that are remembered, the newest first.

        Args:
            folder: only of files in it that were there at its last scan; None: all.
            recipe: only with it; a name means all recipes of this name.

        Raises:
            UsageError: no scan has seen the folder, or there is no such recipe.
        """
        from casstore.index.readonly import retried
        from casstore.upkeep.missing import failures

        place = None if folder is None else os.path.abspath(os.fspath(folder))
        return retried(lambda: failures(self._handle, place, recipe))

    def variants(
        self, prefix: Path | None = None, recipe: Recipe | str | None = None, *, limit: int | None = None
    ) -> Listing:
        """What is stored, in the order in which it came.

        Args:
            prefix: only of files whose path begins so (a relative one counts from the current folder), and of the texts
                in them; None: everything.
            recipe: only with it; a name means all recipes of this name.
            limit: the most to return; `total` says how many there are. None: all.

        Raises:
            UsageError: there is no such recipe.
        """
        from casstore.index.readonly import retried
        from casstore.upkeep.listing import list_variants

        begin = None if prefix is None else _beginning(os.fspath(prefix))
        return retried(lambda: list_variants(self._handle, begin, recipe, limit))


def _beginning(prefix: str) -> str:
    """A path that is to begin others; a slash behind it stays, so that photos/ isn't the begin of photos2/a.jpg."""
    return os.path.abspath(prefix) + ("/" if prefix.endswith("/") and prefix != "/" else "")
