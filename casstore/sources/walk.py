"""Walking a folder: one listing per directory, one stat per file, and a fingerprint of what both say.

The fingerprint stands for the rows of a directory: where it is the one that the index knows, no row is read.
"""

from __future__ import annotations

import array
import contextlib
import functools
import itertools
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

import xxhash

from casstore import fsio
from casstore.core.directory import MARKER
from casstore.identity.digests import signed

SLOW_STAT = 0.3e-3
"""Seconds; where a stat takes longer, a network answers it, and many are asked for at once."""
SAMPLE = 100  # stats that are timed
STAT_THREADS = 24
FILE_TYPE = 0o170000  # of st_mode


@dataclass(frozen=True, slots=True)
class Filter:
    """What a scan looks for, and what of a file's state it goes by.

    Attributes:
        endings: of names, in lower case.
        ctime, inode: whether these count; network disks make them up.
    """

    endings: tuple[str, ...]
    ctime: bool = True
    inode: bool = True

    def __str__(self) -> str:
        ignored = [name for name, counts in (("ctime", self.ctime), ("inode", self.inode)) if not counts]
        return " ".join([*sorted(set(self.endings)), *(f"-{name}" for name in ignored)])

    def matches(self, name: str) -> bool:
        """Whether a file of this name is looked for."""
        return name.lower().endswith(self.endings) and not name.startswith(".")


@dataclass(slots=True)
class Listing:
    """What a directory holds.

    Attributes:
        relpath: of the directory below the root; "" for the root itself.
        names: of the files that are looked for.
        states: size, mtime, ctime and inode of each, one after the other; what doesn't count is 0.
        odd: {name: why a file can't be looked at}; these are in `names`, too.
        fingerprint: of all that.
        mtime_ns, inode, device: of the directory.
        skipped: nothing was listed, since nothing has changed.
        trusted: files that are known weren't looked at; there is no fingerprint.
    """

    relpath: str
    mtime_ns: int = 0
    inode: int = 0
    device: int = 0
    names: list[str] = field(default_factory=list)
    states: array.array[int] = field(default_factory=functools.partial(array.array, "q"))
    odd: dict[str, str] = field(default_factory=dict)
    fingerprint: bytes = b""
    skipped: bool = False
    trusted: bool = False


class Trust(Protocol):
    """Whoever believes that known files are unchanged."""

    def children(self, relpath: str, state: os.stat_result) -> list[str] | None:
        """The sub-directories of a directory in which no name has changed; None: it has to be listed."""
        ...

    def names(self, relpath: str) -> frozenset[str]:
        """The files of a directory that needn't be looked at."""
        ...


class Walk:
    """All directories at and below one, each real one once; those that are reached by their own name come first.

    Args:
        root: absolute path.
        inside: where to begin, below the root; "": at it.
        wanted: what to look for.
        trust: who says what needn't be looked at; None: everything is.

    Attributes:
        listed: relpaths of the directories that were listed or skipped.
        failed: {relpath: why it can't be listed}.
        passed: relpaths of stores, and of links to directories that were seen already.
    """

    def __init__(
        self,
        root: str,
        inside: str,
        wanted: Filter,
        trust: Trust | None = None,
    ) -> None:
        self.listed: set[str] = set()
        self.failed: dict[str, str] = {}
        self.passed: set[str] = set()
        self._root, self._top, self._wanted, self._trust = root, inside, wanted, trust
        self._pending, self._links = [inside], list[str]()
        self._visited: set[tuple[int, int]] = set()
        self._match = _matcher(wanted.endings)
        # A quick way for most names; a name without a dot that looks like an ending is taken out again.
        self._usual = frozenset(each[1:] for e in wanted.endings for each in (e, e.upper()) if e.rfind(".") == 0)
        self._timed = 0
        self._seconds = 0.0
        self._pool: ThreadPoolExecutor | None = None

    def __iter__(self) -> Iterator[Listing]:
        try:
            while self._pending or self._links:
                relpath = self._pending.pop() if self._pending else self._links.pop()
                try:
                    found = self._visit(relpath, os.path.join(self._root, relpath) if relpath else self._root)
                except OSError as error:
                    gone = isinstance(error, FileNotFoundError | NotADirectoryError)
                    # Whoever trusts names all sub-folders that were there once; that one is gone is no failure.
                    if not gone or self._trust is None or relpath == self._top:
                        self.failed[relpath] = fsio.reason(error)
                    continue
                if found is None:
                    self.passed.add(relpath)
                    continue
                self.listed.add(relpath)
                yield found
        finally:
            if self._pool is not None:
                self._pool.shutdown()

    def _visit(self, relpath: str, place: str) -> Listing | None:
        known: frozenset[str] | None = None
        if self._trust is not None:
            state = os.stat(place)
            below = self._trust.children(relpath, state)
            if below is not None:
                if not self._is_new(state):
                    return None
                for each in below:
                    (self._links if os.path.islink(os.path.join(self._root, each)) else self._pending).append(each)
                return Listing(relpath, skipped=True)
            known = self._trust.names(relpath)
        descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            state = os.fstat(descriptor)
            if not self._is_new(state):
                return None
            found = Listing(relpath, state.st_mtime_ns, signed(state.st_ino), state.st_dev, trusted=known is not None)
            return self._list(found, descriptor, known)
        finally:
            os.close(descriptor)

    def _is_new(self, state: os.stat_result) -> bool:
        identity = state.st_dev, state.st_ino
        if identity in self._visited:
            return False
        self._visited.add(identity)
        return True

    def _list(self, found: Listing, descriptor: int, known: frozenset[str] | None) -> Listing | None:
        """Names and states of the files; sub-directories are put on the list. None: it is a store."""
        below: list[str] = []
        links: list[str] = []
        numbers: list[int] = []
        with os.scandir(descriptor) as entries:  # of a descriptor, so that each stat walks one name, not a path
            if known is not None:
                entries_left = self._without(known, found, numbers, entries)
                if not self._look(found, entries_left, numbers, below, links):
                    return None
            else:
                for part in self._paced(entries):
                    if not self._look(found, part, numbers, below, links):
                        return None
        if found.relpath and self._match(MARKER) and MARKER in found.names:
            return None
        for name in self._usual.intersection(found.names):
            i = found.names.index(name)
            del found.names[i], numbers[4 * i : 4 * i + 4]
        for counts, place in ((self._wanted.ctime, 2), (self._wanted.inode, 3)):
            if not counts:
                numbers[place::4] = [0] * len(found.names)
        found.states = states = _states(numbers)
        hasher = xxhash.xxh3_128(states)
        hasher.update("\0".join(found.names).encode("utf-8", "surrogateescape"))
        found.fingerprint = hasher.digest()  # in the order of the listing: another order only costs comparing rows
        above = found.relpath + "/" if found.relpath else ""
        # In reverse, as the last one is taken first.
        self._pending += [above + name for name in sorted(below, key=os.fsencode, reverse=True)]
        self._links += [above + name for name in sorted(links, key=os.fsencode, reverse=True)]
        return found

    def _look(
        self,
        found: Listing,
        entries: Iterable[os.DirEntry[str]],
        numbers: list[int],
        below: list[str],
        links: list[str],
    ) -> bool:
        """Sort entries into files with their states, and directories; False: this is a store, which isn't entered."""
        usual, match, add, extend = self._usual, self._match, found.names.append, numbers.extend
        for entry in entries:
            name = entry.name
            if name.rpartition(".")[2] in usual or match(name):
                if name[0] == ".":
                    continue
                try:
                    state = entry.stat()
                except OSError as error:
                    found.odd[name] = fsio.reason(error)
                    add(name)
                    extend((0, 0, 0, 0))
                    continue
                if state.st_mode & FILE_TYPE != stat.S_IFDIR:
                    add(name)
                    extend((state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino))
                    continue
            elif name == MARKER and found.relpath:
                return False
            if name[0] != "." and _is_directory(entry):
                (links if entry.is_symlink() else below).append(name)
        return True

    @staticmethod
    def _without(
        known: frozenset[str], found: Listing, numbers: list[int], entries: Iterable[os.DirEntry[str]]
    ) -> Iterator[os.DirEntry[str]]:
        """The entries that aren't known; of the others only the names are taken."""
        for entry in entries:
            if entry.name in known:
                found.names.append(entry.name)
                numbers += (0, 0, 0, 0)
            else:
                yield entry

    def _paced(self, entries: Iterator[os.DirEntry[str]]) -> Iterator[Iterable[os.DirEntry[str]]]:
        """The entries of a listing; on a slow disk after all their states have been asked for at once."""
        if self._timed < SAMPLE:
            began = time.perf_counter()
            part = list(itertools.islice(entries, SAMPLE - self._timed))
            yield part
            self._seconds += time.perf_counter() - began
            self._timed += len(part)
        if self._seconds > SLOW_STAT * self._timed:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(STAT_THREADS, thread_name_prefix="casstore-stat")
            wanted = list(entries)
            for _ in self._pool.map(_ask, [entry for entry in wanted if self._match(entry.name)]):
                pass
            yield wanted
        else:
            yield entries


def _matcher(endings: tuple[str, ...]) -> Callable[[str], bool]:
    """A test whether a name ends in one of these, whatever its case."""
    return lambda name: name.lower().endswith(endings)


def _ask(entry: os.DirEntry[str]) -> None:
    """Have the entry remember its state."""
    with contextlib.suppress(OSError):
        entry.stat()


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _states(numbers: list[int]) -> array.array[int]:
    try:
        return array.array("q", numbers)
    except OverflowError:  # inodes beyond 2^63, which the index holds as signed numbers
        return array.array("q", map(signed, numbers))
