"""What must hold of everything that a crash may leave: invariants 1, 2 and 7 of docs/design.md, and each promise.

Nothing of casstore looks at the states here: the index is read with sqlite3, which recovers its WAL, and an object with
the reader of docs/format.md. (What casstore itself makes of a state, and with it invariant 3, is for reopening.py.)
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import blake3
from kit import ROOT
from powercut.crashes import Promises, Tree
from powercut.nodes import Content

from casstore.model import suffix

STORE = "caches/store"  # where the store is below the top folder; not in it, so that a new store needs a new folder
APPLICATION_ID = 0x63617373
_OBJECT = re.compile(rf"{STORE}/objects/([0-9a-f]{{2}})/([0-9a-f]{{64}})\.(cso|st)")
_BACKUP = re.compile(rf"{STORE}/backups/index-\d+-[^/]*\.sqlite")


class Part(NamedTuple):
    """An object as a variant refers to it."""

    object: str
    codec: str
    nbytes: int
    damaged: bool
    condemned: bool


class Facts(NamedTuple):
    """What an index says, or what is wrong with it."""

    problems: tuple[str, ...]
    variants: Mapping[str, tuple[Part, ...]]  # {content: its parts}, of all variants of that content


_PARTS = """
SELECT lower(hex(h.digest)), lower(hex(o.digest)), o.codec, o.stored_bytes,
       o.damaged_at IS NOT NULL, o.condemned_at IS NOT NULL
  FROM variants v JOIN hashes h ON h.id = v.hash_id
  LEFT JOIN variant_parts p ON p.variant_id = v.id LEFT JOIN objects o ON o.id = p.object_id
 ORDER BY 1, 2
"""


def _reader() -> Any:
    """The function `read` of docs/format.md; instead of a path it gets the bytes."""
    (script,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "format.md").read_text(), re.DOTALL)
    names: dict[str, Any] = {"open": lambda data, mode: io.BytesIO(data)}
    exec(compile(script.partition("\nfor path in sys.argv")[0], "docs/format.md", "exec"), names)
    return names["read"]


class Checker:
    """Checks states; what was found of the bytes of a file is kept, since most states share most files.

    Args:
        scratch: a folder to read things in.
        start: the state before the first operation. What a bad disk had spoilt there already is nobody's fault.
    """

    def __init__(self, scratch: Path, start: Tree) -> None:
        self._scratch = scratch
        self._read = _reader()
        self._objects: dict[bytes, str | None] = {}
        self._backups: dict[bytes, bool] = {}
        self._indexes: dict[tuple[bytes, ...], Facts] = {}
        facts = self.facts(start)
        self._spoilt = frozenset([*self._wrong_objects(start), *self._broken_references(start, facts)])
        self._index_is_spoilt = bool(facts.problems)
        spoilt = self._objects_of(self._spoilt)
        held = {content: parts[0].object for content, parts in facts.variants.items()}
        self.promised: Promises = {content: name for content, name in held.items() if name not in spoilt}
        """What the first state holds counts as acknowledged, but for what the disk had spoilt."""

    def problems(self, tree: Tree, promises: Promises) -> list[str]:
        """What is wrong with a state."""
        if not any(path == STORE for path in tree):
            return ["the store is gone"] if promises else []
        facts = self.facts(tree)
        excused = self._index_is_spoilt and not promises
        found = [
            *([] if excused else facts.problems),
            *self._wrong_objects(tree),
            *self._broken_references(tree, facts),
        ]
        promised = set(promises.values())
        found = [problem for problem in found
                 if problem not in self._spoilt or not promised.isdisjoint(self._objects_of([problem]))]  # fmt: skip
        for content, name in promises.items():
            held = [part.object for part in facts.variants.get(content, ())]
            if name is None and held:
                found.append(f"what was forgotten is there again: {content}")
            elif name is not None and name not in held:
                found.append(f"acknowledged, but the index has no row: {content}")
        found += [f"a backup isn't sound: {path}" for path, content in tree.items()
                  if content and _BACKUP.fullmatch(path) and not self._is_sound(content)]  # fmt: skip
        return found

    def is_readable(self, tree: Tree) -> bool:
        """Whether the index is a database."""
        return not self.facts(tree).problems

    def excused(self, tree: Tree, promises: Promises) -> set[str]:
        """Objects that may be damaged: those that are marked so, and those that the disk had spoilt at the start."""
        return self.marked(tree) | (self._objects_of(self._spoilt) - set(promises.values()))

    def marked(self, tree: Tree) -> set[str]:
        """Objects that are marked as damaged."""
        return {part.object for parts in self.facts(tree).variants.values() for part in parts if part.damaged}

    @staticmethod
    def _objects_of(problems: Iterable[str]) -> set[str]:
        """The objects that problems name."""
        return {name for problem in problems for name in re.findall("[0-9a-f]{64}", problem)}

    # -- objects ---------------------------------------------------------------------------------------------------

    def _wrong_objects(self, tree: Tree) -> Iterator[str]:
        """Invariant 2: what can be seen under objects/ is complete, and its name is the digest of its payload."""
        for path, content in tree.items():
            if content is not None and path.startswith(f"{STORE}/objects/"):
                name = _OBJECT.fullmatch(path)
                if not name or name[1] != name[2][:2]:
                    yield f"there is something else among the objects: {path}"
                elif (payload := self._payload(content, name[3])) != name[2]:
                    what = "broken" if payload is None else "another"
                    yield f"an object isn't what its name says: {path} ({what}, {len(content.data)} bytes)"

    def _payload(self, content: Content, form: str) -> str | None:
        """The digest of an object's payload; None if it can't be read."""
        if form == "st":
            return blake3.blake3(content.data).hexdigest()
        if content.digest not in self._objects:
            payload = b""
            try:
                reading = self._read(content.data)
                for _ in reading:
                    payload = bytes(reading.gi_frame.f_locals["payload"])  # all of it, of which it yields parts
                self._objects[content.digest] = blake3.blake3(payload).hexdigest()
            except Exception:  # whatever a script without checks stumbles over in a broken file
                self._objects[content.digest] = None
        return self._objects[content.digest]

    def _broken_references(self, tree: Tree, facts: Facts) -> Iterator[str]:
        """Invariant 1: a committed variant's objects are there, whole, or marked as damaged."""
        for content, parts in facts.variants.items():
            for name, codec, nbytes, damaged, condemned in parts:
                if name is None:
                    yield f"a variant has no object: {content}"
                    continue
                file = tree.get(f"{STORE}/objects/{name[:2]}/{name}{suffix(codec)}")
                if condemned:
                    yield f"a variant has a condemned object: {name}"
                if not damaged and file is None:
                    yield f"a variant's object is gone, and isn't marked: {name}"
                elif not damaged and file is not None and len(file.data) != nbytes:
                    yield f"a variant's object has another size than its row: {name}"

    # -- databases -------------------------------------------------------------------------------------------------

    def facts(self, tree: Tree) -> Facts:
        """Invariant 7, and what the index of a state says."""
        found = {suffix: tree.get(f"{STORE}/index.sqlite{suffix}") for suffix in ("", "-wal", "-journal")}
        if found[""] is None:
            return Facts((() if STORE not in tree else ("the store has no index",)), {})
        known = tuple(content.digest if content else b"" for content in found.values())
        if known not in self._indexes:
            for suffix in ("", "-wal", "-journal", "-shm"):
                place = self._scratch / f"index.sqlite{suffix}"
                place.unlink(missing_ok=True)
                if content := found.get(suffix):
                    place.write_bytes(content.data)
            self._indexes[known] = _facts(self._scratch / "index.sqlite")
        return self._indexes[known]

    def _is_sound(self, content: Content) -> bool:
        if content.digest not in self._backups:
            place = self._scratch / "backup.sqlite"
            place.write_bytes(content.data)
            self._backups[content.digest] = not _facts(place).problems
        return self._backups[content.digest]


def _facts(path: Path) -> Facts:
    problems: list[str] = []
    variants: dict[str, tuple[Part, ...]] = {}
    try:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as index:
            index.execute("PRAGMA synchronous = OFF")  # it is a copy
            check = index.execute("PRAGMA quick_check").fetchall()
            if check != [("ok",)]:
                return Facts((f"the index isn't sound: {check[0][0]}",), {})
            if index.execute("PRAGMA foreign_key_check").fetchall():
                problems.append("rows of the index have lost their parents")
            schema = index.execute("PRAGMA user_version").fetchone()[0]
            settings = dict(index.execute("SELECT key, value FROM settings"))
            versions = [
                str(schema),
                settings["schema"],
                str(int(*index.execute("SELECT * FROM alembic_version").fetchone())),
            ]
            if len(set(versions)) != 1 or index.execute("PRAGMA application_id").fetchone() != (APPLICATION_ID,):
                problems.append(f"schema, stamp and revision differ: {versions}")
            for content, *part in index.execute(_PARTS):
                variants[content] = (*variants.get(content, ()), Part(*part))
    except (sqlite3.Error, KeyError, TypeError) as error:
        return Facts((f"the index can't be read: {error!r}",), {})
    return Facts(tuple(problems), variants)


def write_tree(tree: Tree, place: Path) -> None:
    """Put a state on a disk."""
    for path, content in tree.items():
        if content is None:
            os.makedirs(place / path, exist_ok=True)
    for path, content in tree.items():
        if content is not None:
            (place / path).write_bytes(content.data)
