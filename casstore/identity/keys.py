"""The key: what a variant is stored under."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from casstore.errors import SourceNotFoundError, UsageError
from casstore.identity import resolutions
from casstore.identity.canonical import canonical
from casstore.identity.digests import COMPOSITE_CONTEXT, KEY_CONTEXT, file_digest, json_digest, text_digest
from casstore.identity.recipes import Recipe
from casstore.model import Content, Member

NO_PARAMS = "{}"


@dataclass(frozen=True, slots=True)
class Key:
    """(content, inputs, recipe, resolution, variation, params); made by `Key.file`, `Key.text` or `Key.content`.

    Attributes:
        primary: the input content.
        recipe: everything else that determines the tensors.
        resolution: "HxW" in pixels, or "" for the full size.
        variation: counts from 0.
        params: canonical JSON of anything else that tells variants of one content apart.
        members: if other contents are encoded together with it: all of them, the primary included, by role and ordinal.
        inputs: the content that stands for all of these: a composite, or the primary itself when it is alone.
        digest: 32 bytes that stand for all of it.
    """

    primary: Content
    recipe: Recipe
    resolution: str = resolutions.FULL
    variation: int = 0
    params: str = NO_PARAMS
    members: tuple[Member, ...] = ()
    inputs: Content = field(init=False, compare=False, repr=False)
    digest: bytes = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        resolutions.parse(self.resolution)
        if isinstance(self.variation, bool) or not isinstance(self.variation, int) or self.variation < 0:
            raise UsageError(f"a variation counts from 0; {self.variation!r} doesn't")
        members = tuple(sorted(self.members, key=lambda member: member[:2]))
        object.__setattr__(self, "members", members)
        object.__setattr__(self, "inputs", composite(members) if members else self.primary)
        parts = [
            self.primary.kind,
            self.primary.digest.hex(),
            self.inputs.digest.hex(),
            self.recipe.digest.hex(),
            self.resolution,
            self.variation,
            self.params,
        ]
        object.__setattr__(self, "digest", json_digest(KEY_CONTEXT, parts))

    @classmethod
    def content(
        cls,
        primary: Content,
        recipe: Recipe,
        *,
        resolution: str | None = None,
        variation: int = 0,
        params: Mapping[str, Any] | None = None,
        members: Sequence[Member] = (),
    ) -> Key:
        """The key of a content that is known already; `members` as above."""
        if resolution is not None and not isinstance(resolution, str):
            raise UsageError(
                f"{resolution!r} isn't the resolution of a key; write 'HEIGHTxWIDTH', or None for full size"
            )
        told = canonical(dict(params or {}), "params")
        return cls(primary, recipe, resolution or resolutions.FULL, variation, told, tuple(members))

    @classmethod
    def file(
        cls,
        path: str | os.PathLike[str],
        recipe: Recipe,
        *,
        resolution: str | None = None,
        variation: int = 0,
        params: dict[str, Any] | None = None,
    ) -> Key:
        """The key of a file's present content. Reads and hashes the file now.

        Args:
            path: the file.
            recipe: what its tensors are made with.
            resolution: "HxW" in pixels, or None for the full size.
            variation: counts from 0.
            params: further JSON that tells variants apart.

        Raises:
            SourceNotFoundError: the file isn't there or can't be read.
        """
        place = os.fspath(path)
        try:
            with open(place, "rb") as stream:
                data = stream.read()
        except (OSError, ValueError) as error:  # ValueError: a name with a NUL
            raise SourceNotFoundError(f"can't read {place!r}: {error}") from error
        primary = Content("file", file_digest(data), len(data))
        return cls.content(primary, recipe, resolution=resolution, variation=variation, params=params)

    @classmethod
    def text(cls, text: str, recipe: Recipe, *, variation: int = 0, params: dict[str, Any] | None = None) -> Key:
        """The key of a text: of exactly this string, blanks and all."""
        if not isinstance(text, str):
            raise UsageError(f"a text key needs a str, not {type(text).__name__}; decode bytes first")
        primary = Content("text", text_digest(text), len(text.encode()), text=text)
        return cls.content(primary, recipe, variation=variation, params=params)

    def __str__(self) -> str:
        size = self.resolution or "full size"
        return f"{self.primary.kind} {short(self.primary.digest)}, {self.recipe.name}, {size}"


def composite(members: Sequence[Member]) -> Content:
    """The content that several contents are together.

    Raises:
        UsageError: there are less than two, or two have the same role and ordinal.
    """
    places = [member[:2] for member in members]
    if len(places) < 2 or len(set(places)) < len(places):
        raise UsageError(f"contents that are encoded together are two or more, each with its own role, not {places}")
    parts = [[role, ordinal, content.digest.hex()] for role, ordinal, content in members]
    return Content("composite", json_digest(COMPOSITE_CONTEXT, parts), 0)


def short(digest: bytes) -> str:
    """How a digest is shown to people: its first four and last two hex digits."""
    text = digest.hex()
    return f"{text[:4]}..{text[-2:]}"
