"""What is stored of a file: of what it holds now, of what it held before, and with which recipes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from casstore.build.cells import kind_of, resolutions_of
from casstore.core.handle import Handle
from casstore.errors import CasstoreError
from casstore.identity import resolutions
from casstore.identity.keys import Key
from casstore.identity.recipes import Recipe, difference
from casstore.index.members import StoredMember, composites, find_texts
from casstore.index.past import (
    Earlier,
    FailureRow,
    Story,
    TextIn,
    earlier_of,
    failures_of,
    held_now,
    stories,
    texts_in,
)
from casstore.index.recipes import RecipeRow, known_recipes
from casstore.index.sources import SourceRow, find_source
from casstore.index.variants import Identity, VariantRow, identity, variants_of
from casstore.model import Content, Member, Miss
from casstore.sources.captions import texts_now
from casstore.sources.fresh import content_of


class Stored(NamedTuple):
    """A variant of what the file holds or held."""

    key: Identity
    row: VariantRow
    story: Story


@dataclass(frozen=True, slots=True)
class Family:
    """A file as it is now, and everything that is stored of it.

    Attributes:
        path: absolute.
        kind: "picture", "file", or "text" if texts in it are what something is stored of.
        content: what it holds.
        nbytes, modified_at: as the file system says now; ms UTC.
        now: what something can be stored of: its content, and the texts in it.
        become: {digest of what it held, or of a text in that: what is there in its place now}.
        noted: what the last scan saw of it; None: no scan has seen it.
        earlier: what it held before, newest first.
        stored, failed: of all of these.
        recipes: all that the store knows, newest first.
        members: {digest of a composite: what it consists of}.
        replaced: {digest of a member that is nowhere any more: of what is in its place now}.
        texts: {digest: text} of those that are known.
    """

    path: str
    kind: str
    content: Content
    nbytes: int
    modified_at: int
    now: tuple[Content, ...]
    become: Mapping[bytes, Content]
    noted: SourceRow | None
    earlier: Sequence[Earlier]
    stored: Sequence[Stored]
    failed: Sequence[FailureRow]
    recipes: Sequence[RecipeRow]
    members: Mapping[bytes, Sequence[StoredMember]]
    replaced: Mapping[bytes, bytes]
    texts: Mapping[bytes, str]

    def namesakes(self, recipe: Recipe) -> list[RecipeRow]:
        """The other recipes of its name, newest first."""
        return [row for row in self.recipes if row.name == recipe.name and row.digest != recipe.digest.hex()]

    def related(self, recipe: Recipe) -> list[Identity]:
        """The keys that something is stored under, or failed on, with a recipe; if there are none, with namesakes."""
        keys = [*(each.key for each in self.stored), *(_failed_key(each) for each in self.failed)]
        own = [key for key in keys if key[3] == recipe.digest]
        others = {bytes.fromhex(row.digest) for row in self.namesakes(recipe)}
        return own or [key for key in keys if key[3] in others]

    def wanted(
        self, recipe: Recipe, resolution: resolutions.Resolutions, *, given: bool
    ) -> list[tuple[Key | None, Identity | None]]:
        """What may be wanted of the file as it is now, with what is stored as the pattern.

        Args:
            recipe: that is wanted.
            resolution: that was asked for.
            given: whether one was; otherwise those that are stored count.

        Returns:
            (key, one that it was made after); the key is None if no resolution can be chosen.
        """
        found: dict[bytes | None, tuple[Key | None, Identity | None]] = {}
        patterns: list[Identity | None] = [*self.related(recipe)]
        if not patterns and given:
            patterns = [None]
        for pattern in patterns:
            primary = self._primary(pattern)
            if primary is None:
                continue
            sizes: Sequence[str] | None = [pattern[4] if pattern is not None else resolutions.FULL]
            if given:
                sizes = resolutions_of(primary, self.path, resolution, recipe)
            variation, params = (0, "{}") if pattern is None else pattern[5:]
            for size in sizes or ():
                key = Key(primary, recipe, size, variation, params, members=self._members(pattern, primary))
                found.setdefault(key.digest, (key, pattern))
            if sizes is None:
                found.setdefault(None, (None, pattern))
        return list(found.values())

    def nearest(self, key: Key) -> Stored | None:
        """The stored thing that differs least from a key: the one under it, if there is."""
        asked = identity(key)
        specs = {bytes.fromhex(row.digest): row.spec for row in self.recipes}
        others = {bytes.fromhex(row.digest) for row in self.namesakes(key.recipe)} | {key.recipe.digest}

        def distance(each: Stored) -> tuple[int, bool, int, int]:
            content, recipe = each.key[1] != asked[1], each.key[3] != asked[3]
            rest = (each.key[4] != asked[4], each.key[5:] != asked[5:], not content and each.key[2] != asked[2])
            fields = len(difference(specs[each.key[3]], key.recipe.spec)) if recipe and each.key[3] in specs else 0
            return sum((content, recipe, *rest)), recipe, fields, -each.row.id

        return min((each for each in self.stored if each.key[3] in others), key=distance, default=None)

    def miss_unscanned(self, key: Key, miss: Miss) -> Miss:
        """Why a key isn't stored, as the index will say when it has seen the file as it is now.

        Args:
            key: that is wanted.
            miss: what the index says.
        """
        noted = self.noted.content if self.noted is not None else None
        if noted is None or noted.digest == self.content.digest or miss.reason not in ("new", "recipe"):
            return miss
        before = {each.key[3] for each in self.stored if each.key[1] in self.become}
        if key.recipe.digest in before:
            return Miss("edited", "the file was edited since its last encoding")
        if any(bytes.fromhex(row.digest) in before for row in self.namesakes(key.recipe)):
            return Miss("recipe", f"stored with another recipe named {key.recipe.name!r}")
        return miss

    def _primary(self, pattern: Identity | None) -> Content | None:
        if pattern is None:
            return self.now[-1] if self.kind == "text" else self.content
        kind, digest = pattern[:2]
        same = next((content for content in self.now if (content.kind, content.digest) == (kind, digest)), None)
        return same or self.become.get(digest)

    def _members(self, pattern: Identity | None, primary: Content) -> tuple[Member, ...]:
        if pattern is None or pattern[1] == pattern[2]:
            return ()
        found = []
        for role, ordinal, digest, kind in self.members.get(pattern[2], ()):
            if digest == pattern[1]:
                found.append(Member(role, ordinal, primary))
            else:
                found.append(Member(role, ordinal, Content(kind, self.replaced.get(digest, digest), 0)))
        return tuple(found)


def _failed_key(row: FailureRow) -> Identity:
    return (row.kind, row.content, row.inputs, row.recipe, row.resolution, row.variation, row.params)


def family_of(handle: Handle, path: str | os.PathLike[str]) -> Family:
    """Everything that is known of a file; it is read if it isn't as the last scan saw it. Nothing is noted.

    Raises:
        SourceNotFoundError: it isn't there or can't be read.
    """
    place = os.path.abspath(os.fspath(path))
    content = content_of(handle, place)
    state = os.stat(place)
    modified_at = state.st_mtime_ns // 1_000_000
    with handle.index.read() as connection:
        noted = find_source(connection, place)
        earlier = [each for each in earlier_of(connection, place) if each.digest != content.digest]
        if noted is not None and noted.content is not None and noted.content.digest != content.digest:
            last = noted.content
            rest = [each for each in earlier if each.digest != last.digest]
            earlier = [Earlier(last.digest, last.nbytes, modified_at), *rest]
        recipes = known_recipes(connection)
        said = texts_in(connection, [content.digest, *(each.digest for each in earlier)])
    spoken = said.get(content.digest) or _said_now(
        place, [text for each in earlier for text in said.get(each.digest, ())]
    )
    by_place = {(text.reader, text.ordinal): Content("text", text.digest, 0) for text in spoken}
    become = {each.digest: content for each in earlier}
    for each in earlier:
        for text in said.get(each.digest, ()):
            if (text.reader, text.ordinal) in by_place:
                become.setdefault(text.digest, by_place[text.reader, text.ordinal])
    now = (content, *dict.fromkeys(by_place.values()))
    digests = list(dict.fromkeys([*(each.digest for each in now), *become]))
    with handle.index.read() as connection:
        rows = variants_of(connection, digests)
        told = stories(connection, [row.id for _, row in rows])
        failed = failures_of(connection, digests)
        together = {key[2] for key, _ in rows if key[2] != key[1]} | {f.inputs for f in failed if f.inputs != f.content}
        members = composites(connection, sorted(together))
        beside = sorted({member.digest for each in members.values() for member in each} - set(digests))
        replaced = held_now(connection, beside)
        texts = find_texts(connection, [*digests, *beside, *replaced.values()])
    stored = [Stored(key, row, told[row.id]) for key, row in rows if None not in key and row.id in told]
    is_text = any(each.key[0] == "text" for each in stored) or any(each.kind == "text" for each in failed)
    return Family(
        place,
        "text" if is_text else kind_of(content, place),
        content,
        state.st_size,
        modified_at,
        now,
        become,
        noted,
        earlier,
        stored,
        failed,
        recipes,
        members,
        replaced,
        texts,
    )


def _said_now(path: str, before: Sequence[TextIn]) -> list[TextIn]:
    """The texts of a caption file that was edited since the last scan, by the reader that read it before."""
    if not before:
        return []
    reader = before[0].reader
    try:
        found = texts_now(path, reader)
    except CasstoreError:
        return []
    return [TextIn(reader, ordinal, text.digest) for ordinal, text in enumerate(found)]
