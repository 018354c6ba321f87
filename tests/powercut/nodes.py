"""Files and folders with what of them is durable, and the fates that the rest may meet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import xxhash

SECTOR = 512


class Content(NamedTuple):
    """The bytes of a file, and a digest to tell them by."""

    data: bytes
    digest: bytes

    @classmethod
    def of(cls, data: bytes) -> Content:
        return cls(data, xxhash.xxh3_128_digest(data))


Write = tuple[int, bytes]
Change = Write | int
"""(offset, bytes), or a size to cut or grow to."""


def _apply(data: bytes, changes: list[Change]) -> bytes:
    if not changes:
        return data
    found = bytearray(data)
    for change in changes:
        end = change if isinstance(change, int) else change[0] + len(change[1])
        if end > len(found):
            found.extend(bytes(end - len(found)))
        if isinstance(change, int):
            del found[change:]
        else:
            found[change[0] : end] = change[1]
    return bytes(found)


def _torn(changes: list[Change]) -> list[Change]:
    *before, last = changes
    if isinstance(last, int):
        return before
    half = max(len(last[1]) // 2 // SECTOR * SECTOR, min(len(last[1]) // 2, SECTOR))
    return [*before, (last[0], last[1][:half])]


FATES: dict[str, Callable[[list[Change]], list[Change]]] = {
    "kept": lambda changes: changes,
    "lost": lambda changes: [],
    "torn": _torn,
    "holes": lambda changes: changes[1::2],
    "only the last": lambda changes: changes[-1:],
}
ZEROS, LAST = "zeros", "only the last"


@dataclass(slots=True, eq=False)
class File:
    """What is durable of a file's bytes, and what was done to them since."""

    durable: bytes
    pending: list[tuple[int, Change]] = field(default_factory=list)  # (when, what)
    _known: dict[str, Content] = field(default_factory=dict)

    def change(self, when: int, change: Change) -> None:
        self.pending.append((when, change))
        self._known.clear()

    def flush(self, before: int) -> None:
        """Make durable what was done before a moment."""
        done = [change for when, change in self.pending if when < before]
        self.durable = _apply(self.durable, done)
        self.pending = self.pending[len(done) :]
        self._known.clear()

    def content(self, fate: str) -> Content:
        """Its bytes if the changes that aren't durable meet this fate."""
        found = self._known.get(fate)
        if found is None:
            changes = [change for _, change in self.pending]
            if fate == ZEROS:
                size = len(_apply(self.durable, changes))
                found = Content.of(self.durable[:size].ljust(size, b"\0"))
            else:
                found = Content.of(_apply(self.durable, FATES[fate](changes) if changes else []))
            self._known[fate] = found
        return found


@dataclass(slots=True, eq=False)
class Folder:
    """Which names of a folder are durable, and what was done to them since."""

    durable: dict[str, Node] = field(default_factory=dict)
    now: dict[str, Node] = field(default_factory=dict)
    pending: list[tuple[int, str, Node | None]] = field(default_factory=list)

    def change(self, when: int, name: str, node: Node | None) -> None:
        self.pending.append((when, name, node))
        _rename(self.now, name, node)

    def flush(self, before: int) -> None:
        """Make durable what was done before a moment."""
        while self.pending and self.pending[0][0] < before:
            _, name, node = self.pending.pop(0)
            _rename(self.durable, name, node)

    def names(self, fate: str) -> dict[str, Node]:
        """What is in it if its changes meet this fate."""
        if fate == "kept":
            return self.now
        found = dict(self.durable)
        if fate == LAST:
            for when, name, node in self.pending:
                if when == self.pending[-1][0]:  # a rename within a folder is one change
                    _rename(found, name, node)
        return found


Node = File | Folder


def _rename(names: dict[str, Node], name: str, node: Node | None) -> None:
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node
