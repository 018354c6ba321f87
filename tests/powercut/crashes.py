"""What may be left on the disk when the power fails: crash states of a recorded log.

For each prefix of the log, what isn't durable may be there or not. Deliberately less is assumed than any file system
promises:

- a file's content is durable once the file was fsynced, or everything (syncfs) was; its name by that is not;
- a folder's names are durable once the folder was fsynced, or everything was; each end of a rename belongs to its own
  folder;
- without that, names: model A, all are there; model B, none are; each folder for itself, alone there or alone lost; and
  only the last change of each folder, for file systems that don't keep their order;
- and content: all there; all lost; the last write torn; the size without the bytes; every second write lost; only the
  last write there; and each of the last files for itself, alone there or alone lost.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import xxhash
from powercut.nodes import LAST, ZEROS, Change, Content, File, Folder, Node

RECENT = 4  # so many files, and folders, that were changed last are also lost, and kept, alone
BEGINS = ["mark", "begins|"]
Operation = list[Any]
Promises = Mapping[str, str | None]
"""{content: object, or None if it must be gone}, of what was acknowledged."""


Tree = Mapping[str, Content | None]
"""{path: content, None for a folder}; paths are relative to the top."""


@dataclass(frozen=True, slots=True)
class Crash:
    """One thing that may be left.

    Attributes:
        after: how many operations of the log had been done.
        how: what became of what wasn't durable, in words.
        tree: what is on the disk.
        promises: what had been acknowledged.
        is_new: no earlier crash left the same tree (with fewer promises).
    """

    after: int
    how: str
    tree: Tree
    promises: Promises
    is_new: bool


# -- the log ---------------------------------------------------------------------------------------------------------


def read_log(path: Path) -> list[Operation]:
    """The operations that the recorder wrote down; a write has its bytes in the place of their number."""
    data, position, operations = Path(f"{path}.data").read_bytes(), 0, []
    for line in path.read_text(encoding="utf-8").splitlines():
        operation = json.loads(line)
        if operation[0] == "write":
            length = operation[3]
            operation[3] = data[position : position + length]
            position += length
        operations.append(operation)
    return operations


class Disk:
    """A disk as the operations of a log leave it, with what of it is durable."""

    def __init__(self, top: Path) -> None:
        """Take over what is in a folder; all of it is durable."""
        self._nodes: dict[int, Node] = {}
        self.top = self._take(str(top))
        assert isinstance(self.top, Folder)
        self.promises: Promises = {}
        self.promised = 0  # how often the promises have changed
        self._dirty: dict[Node, None] = {}  # in the order of their last change
        self._flushing: dict[str, int] = {}
        self._paths: dict[frozenset[tuple[Folder, str]], _Paths] = {}
        self._when = 0

    def _take(self, path: str) -> Node:
        if os.path.isdir(path):
            entries = {name: self._take(os.path.join(path, name)) for name in sorted(os.listdir(path))}
            node: Node = Folder(entries, dict(entries))
        else:
            with open(path, "rb") as stream:
                node = File(stream.read())
        return self._nodes.setdefault(os.stat(path).st_ino, node)  # a file may have two names

    def tree(self) -> Tree:
        """All that is there now."""
        return _Paths(self.top, {}).tree({})

    def apply(self, operation: Operation) -> bool:
        """Do one operation; whether something else may be left now than before."""
        self._when += 1
        what, *rest = operation
        if what == "mark":
            return self._note(rest[0])
        if what == "write":
            self._change(rest[0], (rest[1], rest[2]))
        elif what == "truncate":
            self._change(rest[0], rest[1])
        elif what == "fsync":
            self._flush([self._nodes[rest[0]]], self._when)
        elif what == "rename":
            node = self._folder(rest[0]).now[rest[1]]
            self._name(rest[2], rest[3], node)
            self._name(rest[0], rest[1], None)
        elif what == "unlink":
            self._name(rest[0], rest[1], None)
        else:
            if what != "link":
                self._nodes[rest[2]] = File(b"") if what == "create" else Folder()
            self._name(rest[0], rest[1], self._nodes[rest[2]])
        return True

    def _note(self, text: str) -> bool:
        kind, first, *more = text.split("|")
        if kind == "begins":
            return False
        if kind == "syncfs":  # what was done before it began is durable when it has ended
            if more == ["begins"]:
                self._flushing[first] = self._when
                return False
            self._flush(list(self._dirty), self._flushing.pop(first))
        elif kind == "stored":
            self._promise({**self.promises, first: more[0]})
        elif kind == "gone":
            self._promise({**self.promises, first: None})
        elif kind == "going":
            self._promise({name: kept for name, kept in self.promises.items() if name != first})
        else:
            raise ValueError(f"an unknown mark: {text}")
        return True

    def _promise(self, promises: Promises) -> None:
        self.promises = promises
        self.promised += 1

    def _change(self, file: int, change: Change) -> None:
        node = self._nodes[file]
        assert isinstance(node, File)
        node.change(self._when, change)
        self._touch(node)

    def _name(self, folder: int, name: str, node: Node | None) -> None:
        found = self._folder(folder)
        found.change(self._when, name, node)
        self._touch(found)
        self._paths.clear()

    def _folder(self, inode: int) -> Folder:
        node = self._nodes[inode]
        assert isinstance(node, Folder)
        return node

    def _touch(self, node: Node) -> None:
        self._dirty.pop(node, None)
        self._dirty[node] = None

    def _flush(self, nodes: list[Node], before: int) -> None:
        for node in nodes:
            node.flush(before)
            if not node.pending:
                self._dirty.pop(node, None)
            if isinstance(node, Folder):
                self._paths.clear()

    # -- what may be left ------------------------------------------------------------------------------------------

    def left(self) -> Iterator[tuple[str, bytes, Callable[[], Tree]]]:
        """(in words, digest, the tree) of what may be left now; the same may come more than once."""
        files = [node for node in self._dirty if isinstance(node, File)]
        folders = [node for node in self._dirty if isinstance(node, Folder)]
        some = _fates(files, ("kept", "lost"))
        all_ = some + _fates(files, ("torn", ZEROS, "holes", LAST)) + _one_by_one(files)
        for how, of_folders in _fates(folders, ("kept", "lost", LAST)) + _one_by_one(folders):
            known = frozenset(of_folders.items())
            paths = self._paths.get(known)
            if paths is None:
                paths = self._paths[known] = _Paths(self.top, of_folders)
            for what, of_files in all_ if how in ("kept", "lost") else some:
                digest = paths.digest(of_files)
                yield f"names {how}, content {what}", digest, functools.partial(paths.tree, of_files)


_N = TypeVar("_N", File, Folder)
Choices = list[tuple[str, dict[_N, str]]]
"""[(in words, the fate of each)]"""


def _fates(nodes: list[_N], fates: tuple[str, ...]) -> Choices[_N]:
    """All meet the same fate."""
    return [(fate, dict.fromkeys(nodes, fate)) for fate in (fates if nodes else fates[:1])]


def _one_by_one(nodes: list[_N]) -> Choices[_N]:
    """One of the last loses its changes, or all others do."""
    found: Choices[_N] = []
    for node in nodes[-RECENT:] if len(nodes) > 1 else []:
        number = nodes.index(node)
        found.append((f"of number {number} lost", {**dict.fromkeys(nodes, "kept"), node: "lost"}))
        found.append((f"of all but number {number} lost", {**dict.fromkeys(nodes, "lost"), node: "kept"}))
    return found


class _Paths:
    """All paths, if the changes of folders meet these fates."""

    def __init__(self, top: Node, fates: dict[Folder, str]) -> None:
        self._files: list[tuple[str, File]] = []
        self._folders: list[str] = []
        self._walk("", top, fates)
        self._names = xxhash.xxh3_128_digest(json.dumps([self._folders, [path for path, _ in self._files]]).encode())

    def _walk(self, path: str, node: Node, fates: dict[Folder, str]) -> None:
        if isinstance(node, File):
            self._files.append((path, node))
            return
        if path:
            self._folders.append(path)
        names = node.names(fates.get(node, "kept"))
        for name in sorted(names):
            self._walk(f"{path}/{name}" if path else name, names[name], fates)

    def digest(self, fates: dict[File, str]) -> bytes:
        digests = [file.content(fates.get(file, "kept")).digest for _, file in self._files]
        return xxhash.xxh3_128_digest(self._names + b"".join(digests))

    def tree(self, fates: dict[File, str]) -> Tree:
        found: dict[str, Content | None] = dict.fromkeys(self._folders)
        return found | {path: file.content(fates.get(file, "kept")) for path, file in self._files}


def crashes(disk: Disk, log: list[Operation]) -> Iterator[Crash]:
    """Everything that may be left at any moment of a log: each tree once for each set of promises.

    Where the log has a mark "begins", only what may be left from the last one on.
    """
    trees: set[bytes] = set()
    seen: set[tuple[bytes, int]] = set()
    begin = max((number for number, operation in enumerate(log) if operation == BEGINS), default=0)
    for after in range(len(log) + 1):
        changed = disk.apply(log[after - 1]) if after else True
        if after < begin or not (changed or after == begin):
            continue
        for how, digest, tree in disk.left():
            known = digest, disk.promised
            if known not in seen:
                seen.add(known)
                is_new = digest not in trees
                trees.add(digest)
                yield Crash(after, how, tree(), disk.promises, is_new)
