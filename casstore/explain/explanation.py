"""What `explain` answers: frozen, printable, comparable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from casstore.model import Reason

What = Literal["encoded", "stored", "failed", "edited"]


@dataclass(frozen=True, slots=True)
class Compared:
    """A field of what is stored (or of the nearest relative) beside the same field of what is wanted.

    Attributes:
        field: its name.
        then: as it is stored; None: nothing is known of it.
        now: as it is wanted; None: nothing is known of it yet.
        differs: whether that makes it another thing.
    """

    field: str
    then: Any
    now: Any
    differs: bool = False


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to the file, or to what is stored of it.

    Attributes:
        at: when, ms UTC: the begin of the run, or when it was noticed; None: nobody knows.
        what: "encoded" by a build, "stored" by a put, "failed", or "edited".
        reason: why it was encoded.
        detail: of a failure its message.
        run: the number of the run.
        encode_us: how long the encode took.
        attempts: of a failure: how often it was tried.
        content: the file's content (hex digest) that this was about.
        recipe: hex digest.
    """

    at: int | None
    what: What
    reason: str | None = None
    detail: str = ""
    run: int | None = None
    encode_us: int | None = None
    attempts: int | None = None
    content: str | None = None
    recipe: str | None = None


@dataclass(frozen=True, slots=True)
class Relative:
    """The stored thing that is most like the wanted one.

    Attributes:
        recipe, digest: name and hex digest of its recipe.
        at: when it was made, ms UTC.
        resolution: "HxW", or "".
        same_content, same_recipe: whether it has these in common with the wanted one.
    """

    recipe: str
    digest: str
    at: int | None
    resolution: str
    same_content: bool
    same_recipe: bool


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a file is served, or isn't, with one recipe at one resolution, as the index knows it.

    Attributes:
        path: of the file.
        kind: "picture", "file" or "text".
        recipe, digest: name and hex digest of the recipe that is wanted.
        resolution: "HxW"; "": the full size; None: not known, since none was given and nothing like it is stored.
        reason: why it is a miss; None: it is a hit.
        detail: what else is known of the reason.
        variants: how many variants are meant (variations, params, members, texts of one file).
        hits: how many of them are stored.
        fields: what is stored, or the nearest relative, beside what is wanted.
        relative: that; None: there is none, or it is a hit.
        others: how many other contents that files hold now miss for the same reason with this recipe (of "new": in the
            same root, with the same ending); None: not counted, or nobody can tell.
        undone: how many of them, and of this one, `undo` brings back.
        encode_us: the usual time of an encode with this recipe; None: nothing is known.
        undo: how the stored thing would be a hit again, if there is a way.
        to_encode: how many encodes the next build tries of this file.
        history: oldest first.
    """

    path: str
    kind: str
    recipe: str
    digest: str
    resolution: str | None
    reason: Reason | None
    detail: str = ""
    variants: int = 1
    hits: int = 0
    fields: tuple[Compared, ...] = ()
    relative: Relative | None = None
    others: int | None = None
    undone: int | None = None
    encode_us: float | None = None
    undo: str | None = None
    to_encode: int = 0
    history: tuple[Event, ...] = ()

    @property
    def hit(self) -> bool:
        """Whether it is served."""
        return self.reason is None

    @property
    def differing(self) -> Mapping[str, tuple[Any, Any]]:
        """{field: (as stored, as wanted)} of those that differ."""
        return {each.field: (each.then, each.now) for each in self.fields if each.differs}

    @property
    def others_seconds(self) -> float | None:
        """How long it takes to encode the others."""
        if not self.others or self.encode_us is None:
            return None
        return self.others * self.encode_us / 1e6

    def __str__(self) -> str:
        where = "" if self.resolution is None else f", {self.resolution or 'full size'}"
        told = "HIT" if self.reason is None else f"MISS, {self.reason}" + (f": {self.detail}" if self.detail else "")
        return f"{self.path}{where}, {self.recipe}: {told}"
