"""The values that casstore hands out: frozen, printable, comparable."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

if TYPE_CHECKING:
    from casstore.identity.keys import Key

Reason = Literal[
    "new",
    "edited",
    "member edited",
    "recipe",
    "resolution",
    "variation",
    "output missing",
    "damaged",
    "failed",
    "retry",
    "replaced",
    "changed while building",
    "source unavailable",
]
"""Why something isn't served, or why it was encoded: one list for a Miss, for `reasons` and for `variants.reason`."""


@dataclass(frozen=True, slots=True)
class Content:
    """One distinct input content.

    Attributes:
        kind: "file", "text", "array", or "composite" (several contents under roles).
        digest: 32 bytes; for a file the BLAKE3 of its bytes.
        nbytes: its length in bytes.
        width, height: of the picture as it is stored, in pixels; None if nobody looked or the header was refused.
        orientation: the EXIF orientation, 1 to 8, or None.
        note: what is worth knowing about it ("CMYK"), or why its header was refused (then width is None).
        text: the string itself, for a text.
        frames, rate: how many pictures or samples, and how many per second; of files that a probe has looked at.
        array: the array itself, for an array.
    """

    kind: str
    digest: bytes
    nbytes: int = field(compare=False)
    width: int | None = field(default=None, compare=False)
    height: int | None = field(default=None, compare=False)
    orientation: int | None = field(default=None, compare=False)
    note: str | None = field(default=None, compare=False)
    text: str | None = field(default=None, compare=False, repr=False)
    frames: int | None = field(default=None, compare=False)
    rate: float | None = field(default=None, compare=False)
    array: Any = field(default=None, compare=False, repr=False)

    @property
    def refused(self) -> bool:
        """Whether somebody looked at the header of this picture and could make nothing of it."""
        return self.width is None and self.note is not None

    @property
    def upright(self) -> tuple[int, int] | None:
        """(height, width) in pixels after the orientation is applied."""
        if self.width is None or self.height is None:
            return None
        # EXIF 2.3, tag 0x0112: values 5 to 8 exchange rows and columns.
        return (self.width, self.height) if (self.orientation or 1) >= 5 else (self.height, self.width)


class Member(NamedTuple):
    """A content of several that are encoded together: its role, and its place among those of the same role."""

    role: str
    ordinal: int
    content: Content


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What is known of a stored tensor without reading it: safetensors dtype name ("BF16") and shape."""

    dtype: str
    shape: tuple[int, ...]


Codec = Literal["zstd", "raw"]
"""The stored forms of an object: compressed, or the payload itself, which can be mapped."""
CODECS: tuple[Codec, ...] = get_args(Codec)
SUFFIXES: Mapping[str, str] = {"zstd": ".cso", "raw": ".st"}


def suffix(codec: str) -> str:
    """The ending of an object's file; what a flipped bit made of the codec counts as the default."""
    return SUFFIXES.get(codec, SUFFIXES["zstd"])


class Stored(NamedTuple):
    """An object's file, as the index knows it.

    Attributes:
        digest: BLAKE3-256 of the payload.
        codec: "zstd" (a container) or "raw" (the payload itself).
        layout: names, dtypes and shapes, as JSON.
        nbytes: size of the file.
        xxh3: XXH3-64 of the file, as a signed integer.
    """

    digest: bytes
    codec: str
    layout: str
    nbytes: int
    xxh3: int


@dataclass(frozen=True, slots=True)
class Hit:
    """A key that can be served.

    Attributes:
        key: the key that was asked for.
        layout: {tensor name: dtype and shape}.
        values: {name: JSON value}.
        digests: hex digests of the objects, one per part.
    """

    key: Key
    layout: Mapping[str, TensorInfo]
    values: Mapping[str, Any]
    digests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Miss:
    """A key that can't be served, and why."""

    reason: Reason
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}" if self.detail else self.reason


@dataclass(frozen=True, slots=True)
class Item:
    """What an encoder gets for one key.

    Attributes:
        sample: the name of the row, for messages.
        key: what the result is stored under.
        path: the file, as it was found.
        data: the file's bytes; the very ones whose hash is in the key. None for a file that isn't a picture: open
            `path`, which is looked at again after the call.
        image: the upright PIL picture in RGB, or what the recipe's `preprocess` made of it.
        text: the text, for a text.
        array: the tensor or array, for an array.
        members: {role: item} of what is encoded together with it, of the same key; a role that the row doesn't have is
            left out. Pictures among them are preprocessed too, but only the primary's values are stored.
        width, height: of the upright picture, before preprocessing, in pixels; of another file, what a probe said.
        resolution: "HxW" in pixels, or "" for the full size.
        variation: counts from 0.
        names: of the tensors and values that are wanted; others may be returned too. None: all that there are.
    """

    sample: str
    key: Key
    path: str | None = None
    data: bytes | None = field(default=None, repr=False)
    image: Any = field(default=None, repr=False)
    text: str | None = None
    array: Any = field(default=None, repr=False)
    members: Mapping[str, Item] = field(default_factory=dict, repr=False, hash=False)
    width: int | None = None
    height: int | None = None
    resolution: str = ""
    variation: int = 0
    names: frozenset[str] | None = None

    def rng(self, name: str) -> random.Random:
        """The random numbers of a draw with this name; see `Key.rng`."""
        return self.key.rng(name)

    @property
    def params(self) -> dict[str, Any]:
        """The params of its key."""
        found: dict[str, Any] = json.loads(self.key.params)
        return found


@dataclass(frozen=True, slots=True)
class Failure:
    """One row that a build couldn't make ready."""

    sample: str
    path: str | None
    error: str
    message: str


@dataclass(frozen=True, slots=True)
class BuildReport:
    """The outcome of a build: planned = hits + encoded + by_others + failed + left.

    Attributes:
        planned: (row, resolution, variation) triples asked for.
        hits: served already, or made under the same key earlier in this build.
        encoded: made and stored by this build.
        by_others: stored by another process while this build made them too.
        failed: rows that can't be read, were refused, changed while building, or whose encoding failed.
        left: not reached because the build was stopped.
        reasons: {why: number of misses}.
        seconds: wall time.
        stored_bytes: bytes that the new objects take on disk.
        failures: one entry per failed row.
        notes: (sample, note) of pictures that were converted on the way in.
        conflicts: of `by_others`, those where this build made something else; what was stored first was kept.
    """

    planned: int
    hits: int
    encoded: int
    by_others: int
    failed: int
    left: int
    reasons: Mapping[str, int]
    seconds: float
    stored_bytes: int
    failures: tuple[Failure, ...] = ()
    notes: tuple[tuple[str, str], ...] = ()
    conflicts: int = 0


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that `verify` found wrong: what it is, its digest or key, and what is the matter with it."""

    what: str
    name: str
    problem: str


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The outcome of a verification.

    Attributes:
        checked: objects looked at (with deep: read, decoded and hashed).
        damaged: number of findings.
        findings: what was found, each once.
    """

    checked: int
    damaged: int
    findings: tuple[Finding, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class RepackReport:
    """What a repack did, or (a dry run) would do.

    Attributes:
        codec: the form that was asked for.
        objects: how many were in another form.
        done: how many of these have changed it.
        damaged: how many couldn't be read; noted, so that the next build heals them.
        bytes_before: on disk, of those that were done (a dry run: of all in another form).
        bytes_after: the same now (a dry run: 0, since only doing it tells).
        seconds: how long it took.
    """

    codec: Codec
    objects: int
    done: int
    damaged: int
    bytes_before: int
    bytes_after: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Root:
    """A dataset folder.

    Attributes:
        name: what it is called; that of its folder, unless there were two.
        path: where it is.
        state: "whole"; "unavailable": another folder is at its place; "suspicious": so much was gone that it has to be
            confirmed. In the latter two nothing was noted as missing.
        files: that were there at the last scan.
        missing: that weren't any more.
        last_seen_at: when that was, ms UTC.
    """

    name: str
    path: str
    state: Literal["whole", "unavailable", "suspicious"]
    files: int
    missing: int
    last_seen_at: int


@dataclass(frozen=True, slots=True)
class ConfirmReport:
    """What confirming a root did or, without `yes`, would do: files noted as missing, and files left."""

    name: str
    path: str
    missing: int
    files: int


@dataclass(frozen=True, slots=True)
class GcReport:
    """The outcome of a garbage collection, or of its dry run.

    Attributes:
        condemned: unreferenced objects that were marked (dry run: would be).
        swept: objects removed, row and file (dry run: always 0).
        freed_bytes: bytes given back to the disk, leftovers included.
        would_free_bytes: what this very call frees with `yes` (dry run), else 0.
        waiting: condemned objects still within the grace period, or that an open dataset may read.
        leftovers: temporary and unreferenced files removed (dry run: found).
    """

    condemned: int
    swept: int
    freed_bytes: int
    would_free_bytes: int
    waiting: int
    leftovers: int
    seconds: float


@dataclass(frozen=True, slots=True)
class RecipeUsage:
    """What one recipe takes: its name, hex digest, number of variants, and bytes of their distinct objects on disk."""

    name: str
    digest: str
    variants: int
    payload_bytes: int
    stored_bytes: int


@dataclass(frozen=True, slots=True)
class RecipeInfo:
    """A recipe that a store knows.

    Attributes:
        name, namespace: as its Recipe said when it was first used.
        digest: 64 hex digits.
        spec: its binding fields, as canonical JSON.
        variants: how many are stored.
        payload_bytes, stored_bytes: of their distinct objects, before and after compression.
        created_at: when it was first used, ms UTC.
        encoded_at: when the last build that stored something with it began; None: no build has.
        retired_at: since when it is retired; None: it isn't.
    """

    name: str
    namespace: str | None
    digest: str
    spec: str
    variants: int
    payload_bytes: int
    stored_bytes: int
    created_at: int
    encoded_at: int | None
    retired_at: int | None

    @property
    def title(self) -> str:
        """How people see and may name it: its name, behind its namespace if it has one ("team/sdxl-vae")."""
        return self.name if self.namespace is None else f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A past build or gc: kind, start (ms UTC), end (None: it never ended), its counts, and its error."""

    kind: str
    started_at: int
    finished_at: int | None
    counts: Mapping[str, Any]
    error: str | None


@dataclass(frozen=True, slots=True)
class Status:
    """What a store holds.

    Attributes:
        sources: files that were there at the last scan.
        missing: files that weren't any more.
        hashes, variants, objects: numbers of rows.
        damaged: objects marked as damaged.
        failures: remembered failures.
        payload_bytes, stored_bytes: sums over distinct objects, before and after compression.
        wal_bytes: of SQLite's write-ahead log; it only grows beyond 64 MiB while some program doesn't end its reading.
        recipes: most used first.
        runs: the last few, newest first.
    """

    path: str
    durability: str
    sources: int
    missing: int
    hashes: int
    variants: int
    objects: int
    damaged: int
    failures: int
    payload_bytes: int
    stored_bytes: int
    wal_bytes: int
    recipes: tuple[RecipeUsage, ...]
    runs: tuple[RunSummary, ...]
