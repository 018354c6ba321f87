"""The key: what a variant is stored under."""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from casstore.errors import SourceNotFoundError, UsageError
from casstore.identity import resolutions
from casstore.identity.canonical import canonical
from casstore.identity.contents import FilePath, content_of_value, text_content
from casstore.identity.digests import COMPOSITE_CONTEXT, KEY_CONTEXT, canonical_digest, file_digest, json_digest
from casstore.identity.draws import draw
from casstore.identity.recipes import Recipe
from casstore.model import Content, Member

NO_PARAMS = "{}"


class Together(NamedTuple):
    """What is encoded together.

    Attributes:
        primary: the content it is about.
        members: all of the contents, the primary included, by role and ordinal; nothing if it is alone.
        inputs: the content that stands for all of these: a composite, or the primary itself when it is alone.
    """

    primary: Content
    members: tuple[Member, ...]
    inputs: Content

    @classmethod
    def of(cls, primary: Content, members: Sequence[Member]) -> Together:
        """A primary with its members; one member is the primary alone."""
        if len(members) < 2:
            return cls(primary, (), primary)
        return cls(primary, tuple(members), composite(members))


@dataclass(frozen=True, slots=True)
class Key:
    """(content, inputs, recipe, resolution, variation, params); made by `Key.file`, `text`, `array`, `of` or `content`.

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
        primary, inputs, recipe = self.primary, self.inputs.digest, self.recipe.digest
        told = self.resolution, self.variation, self.params
        object.__setattr__(self, "digest", key_digest(primary.kind, primary.digest, inputs, recipe, *told))

    @property
    def together(self) -> Together:
        """What is encoded under this key."""
        return Together(self.primary, self.members, self.inputs)

    def rng(self, name: str) -> random.Random:
        """The random numbers of a named draw: of the recipe's seed, the primary and the variation alone, so that
        recipes that share a seed draw alike. Of its methods only `random()` is promised to stay the same."""
        return draw(name, self.recipe.seed, self.primary.digest, self.variation)

    def roles_of(self, name: str) -> tuple[str, ...] | None:
        """The roles that a tensor or value of this name depends on besides the primary; None: all of them."""
        placed = () if name in self.recipe.geometry else None  # how the primary was placed
        return self.recipe.depends.get(name, placed)

    def inputs_of(self, name: str) -> Together | None:
        """What a tensor or value of this name depends on, as the recipe says; None: on all that is encoded."""
        roles = self.roles_of(name)
        if roles is None or not self.members:
            return None
        # A member that holds what the primary holds can't be told from it, so it counts too.
        members = tuple(m for m in self.members if m.content == self.primary or m.role in roles)
        return None if len(members) == len(self.members) else Together.of(self.primary, members)

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
        primary = _read(os.fspath(path))
        return cls.content(primary, recipe, resolution=resolution, variation=variation, params=params)

    @classmethod
    def text(cls, text: str, recipe: Recipe, *, variation: int = 0, params: dict[str, Any] | None = None) -> Key:
        """The key of a text: of exactly this string, blanks and all."""
        if not isinstance(text, str):
            raise UsageError(f"a text key needs a str, not {type(text).__name__}; decode bytes first")
        return cls.content(text_content(text), recipe, variation=variation, params=params)

    @classmethod
    def array(cls, array: Any, recipe: Recipe, *, variation: int = 0, params: dict[str, Any] | None = None) -> Key:
        """The key of a tensor or array: of its dtype, shape and bytes, whatever its strides, device and library.

        Raises:
            UsageError: it is neither, or has no plain bytes (sparse, quantized).
        """
        from casstore.identity.arrays import array_content  # NumPy: only for those who come with arrays

        return cls.content(array_content(array), recipe, variation=variation, params=params)

    @classmethod
    def of(
        cls,
        contents: Mapping[str, Any],
        recipe: Recipe,
        *,
        resolution: str | None = None,
        variation: int = 0,
        params: dict[str, Any] | None = None,
    ) -> Key:
        """The key of several contents that are encoded together, such as a picture and its mask.

        Args:
            contents: {role: path, text, tensor or array, or None}. The first is the primary, the others its members, in
                any order; None: absent. A string is a text under the roles text, caption and prompt, else a path;
                `casstore.Text` and bytes in UTF-8 are texts. Files are read and hashed now.
            recipe: what the tensors are made with.
            resolution: "HxW" in pixels, or None for the full size.
            variation: counts from 0.
            params: further JSON that tells variants apart.

        Raises:
            UsageError: there is no primary, or a value that can't be meant.
            SourceNotFoundError: a file can't be read.
        """
        members = []
        for role, value in contents.items():
            found = content_of_value(role, value)
            if found is not None:
                members.append(Member(role, 0, _read(found.path) if isinstance(found, FilePath) else found))
        if not members or members[0].role != next(iter(contents)):
            raise UsageError(f"a key needs its primary, the first of {list(contents) or 'the contents'}; it is absent")
        return cls.content(
            members[0].content,
            recipe,
            resolution=resolution,
            variation=variation,
            params=params,
            members=members if len(members) > 1 else (),
        )

    def __str__(self) -> str:
        size = self.resolution or "full size"
        others = [member for member in self.members if member.content != self.primary]
        beside = " with " + ", ".join(f"{m.role} {short(m.content.digest)}" for m in others) if others else ""
        return f"{self.primary.kind} {short(self.primary.digest)}{beside}, {self.recipe.name}, {size}"


def _read(path: str) -> Content:
    try:
        with open(path, "rb") as stream:
            data = stream.read()
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL
        raise SourceNotFoundError(f"can't read {path!r}: {error}") from error
    return Content("file", file_digest(data), len(data))


def key_digest(
    kind: str, primary: bytes, inputs: bytes, recipe: bytes, resolution: str, variation: int, params: str
) -> bytes:
    """The digest (32 bytes) of a key, from its plain values: the contents and the recipe by their digests."""
    # The canonical JSON of these in a list. Put together by hand, since a plan makes very many keys.
    text = (
        f'[{_json(kind)},"{primary.hex()}","{inputs.hex()}",'
        f'"{recipe.hex()}",{_json(resolution)},{_json(variation)},{_json(params)}]'
    )
    return canonical_digest(KEY_CONTEXT, text)


@functools.lru_cache(maxsize=4096)
def _json(value: str | int) -> str:
    return canonical(value)


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
