"""Forgetting: deleting variants on purpose. Their objects become garbage, which gc takes after the grace period."""

from __future__ import annotations

from dataclasses import dataclass, field

from casstore.core.handle import Handle
from casstore.identity.keys import Key
from casstore.identity.recipes import Recipe
from casstore.index.variants import delete_variants, select_for_forget
from casstore.model import Content


@dataclass(frozen=True, slots=True)
class ForgetPlan:
    """Which variants would go. Making it changes nothing; `execute` deletes what matches by then.

    Attributes:
        what: in words.
        variants: how many there are now.
    """

    what: str
    variants: int
    _handle: Handle = field(repr=False, compare=False)
    _key: Key | None = field(default=None, repr=False)
    _recipe: bytes | None = field(default=None, repr=False)
    _contents: tuple[bytes, ...] = field(default=(), repr=False)

    def execute(self) -> int:
        """Delete the variants; returns how many there were."""
        with self._handle.index.write() as connection:
            ids = select_for_forget(connection, key=self._key, recipe=self._recipe, contents=self._contents)
            return delete_variants(connection, ids)


def plan_forget(handle: Handle, what: Key | Recipe | Content, name: str) -> ForgetPlan:
    """The plan to forget one key, everything of a recipe, or everything of a content."""
    handle.check_open()
    key = what if isinstance(what, Key) else None
    recipe = what.digest if isinstance(what, Recipe) else None
    contents = (what.digest,) if isinstance(what, Content) else ()
    with handle.index.read() as connection:
        count = len(select_for_forget(connection, key=key, recipe=recipe, contents=contents))
    return ForgetPlan(name, count, handle, key, recipe, contents)
