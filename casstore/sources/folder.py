"""Scanning one folder.

The way of a file: a listing and one stat (walk.py); its directory's fingerprint, or else its row, says whether it is
unchanged; what isn't is hashed in threads (hashing.py) while the walk goes on, and written in groups.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from casstore import fsio
from casstore.core.handle import Handle
from casstore.identity.digests import signed
from casstore.index.directories import (
    DirectoryRow,
    Print,
    known_directories,
    place_directories,
    save_directories,
    save_prints,
)
from casstore.index.roots import RootRow, is_root, known_roots, note_root, root_above, root_for
from casstore.index.sources import (
    SeenSource,
    digests_of,
    mark_missing,
    names_in,
    save_sources,
)
from casstore.model import Content
from casstore.sources import clock
from casstore.sources.captions import caption_cells
from casstore.sources.compare import Differences, by_names, by_rows, by_states
from casstore.sources.found import Folder, ScanReport
from casstore.sources.hashing import Found, Hasher
from casstore.sources.losses import elsewhere, is_file, is_there, suspicious, too_many, unavailable
from casstore.sources.options import Options
from casstore.sources.states import NUMBERS, pack
from casstore.sources.trust import Trusting
from casstore.sources.walk import Filter, Listing, Walk

if TYPE_CHECKING:
    from sqlalchemy import Connection

COMMIT_FILES = 4096  # what was hashed is committed at least this often, so that a stop keeps it
BESIDE_FILES = 512  # the same while threads are hashing
COMMIT_SECONDS = 2.0
SLICE = 512  # files


class Adopted(Exception):
    """Somebody scanned a folder above meanwhile, whose root has taken this one in."""


@dataclass(slots=True)
class _Work:
    """A directory some of whose files are being hashed.

    Attributes:
        listing: of it.
        places: {name: place in the listing} of these files.
        left: how many of them aren't hashed yet.
        doubtful: the places of those whose rows won't vouch for the states that were listed.
    """

    listing: Listing
    places: dict[str, int]
    left: int
    doubtful: list[int] = field(default_factory=list)


@dataclass
class FolderScan:
    """One scan of one folder.

    Args:
        handle: the open store.
        folder: absolute path.
        wanted: what to look for.
        texts: endings of files that a reader makes texts of.
        options: how to look.
    """

    handle: Handle
    folder: str
    wanted: Filter
    texts: tuple[str, ...]  # endings of files that a reader makes texts of
    options: Options
    seen: list[SeenSource] = field(default_factory=list)  # hashed, not written yet
    before: dict[tuple[str, str], int | None] = field(default_factory=dict)  # row id of what a file held, if known
    working: dict[str, _Work] = field(default_factory=dict)
    prints: dict[str, Print] = field(default_factory=dict)  # to be written
    places: dict[str, str] = field(default_factory=dict)  # file system ids to be written
    gone: dict[str, list[tuple[str, int]]] = field(default_factory=dict)  # (name, id)s that a listing lacks
    written: Counter[str] = field(default_factory=Counter)  # how often rows of a directory were changed by this scan
    held: dict[str, Print] = field(default_factory=dict)  # prints that are true once what has gone is marked
    absent: set[tuple[str, str]] = field(default_factory=set)  # what has gone, by name
    captions: list[tuple[str, Content]] = field(default_factory=list)  # that were hashed, and are to be read
    fresh: Counter[bytes] = field(default_factory=Counter)  # digests of what is new where it is
    foreign: list[str] = field(default_factory=list)  # directories on another file system than they were
    fs_ids: dict[int, str] = field(default_factory=dict)  # by device
    files: int = 0
    hashed: int = 0
    failed: int = 0
    new: int = 0
    edited: int = 0
    known: int = 0  # files that should be here

    def run(self, *, several: bool) -> Folder:
        """Scan one folder."""
        began = self.saved_at = time.monotonic()
        options = self.options
        with fsio.errors_typed("look at", self.folder):
            state = os.stat(self.folder)
        self.now = clock.now_ns(self.handle, state.st_dev)
        self.root, self.inside = self._root(state)
        with self.handle.index.glance() as connection:
            self.directories = known_directories(connection, self.root.id, self.inside, str(self.wanted))
        self._look_at_root()
        trusting = Trusting(self.handle, self.directories) if options.trust else None
        self.walk = Walk(self.root.path, self.inside, self.wanted, trusting)
        with Hasher(
            self.root.path, self.now, ctime=options.ctime, probe=options.probe, probed=options.extensions
        ) as self.hasher:
            try:
                for listing in self.walk:
                    if listing.skipped:
                        continue
                    self._compare(listing)
                    self._collect(self.hasher.collect())
                while found := self.hasher.wait():
                    self._collect(found)
                caption_cells(self.handle, self.captions, options.reader)  # so that nobody has to open these again
            except BaseException:
                # Whatever ended it: what was hashed by now is kept.
                self._take_in(self.hasher.stop())
                with contextlib.suppress(Adopted):
                    self._save()
                raise
        if trusting is not None:
            self.files += trusting.files
            self.known += trusting.files
        missing, warning = self._end()
        report = ScanReport(
            files=self.files,
            unchanged=self.files - self.hashed - self.failed,
            hashed=self.hashed,
            new=self.new,
            edited=self.edited,
            missing=missing,
            failed=self.failed + len(self.walk.failed),
            trusted=options.trust,
            seconds=time.monotonic() - began,
            warnings=(warning,) if warning else (),
        )
        return Folder(
            self.root.id,
            self.root.path,
            self.inside,
            os.path.basename(self.folder) + "/" if several else "",
            self.wanted,
            frozenset(self.walk.listed),
            frozenset(self.absent),
            self.walk.failed,
            report,
        )

    # -- the root --------------------------------------------------------------------------------------------------

    def _root(self, state: os.stat_result) -> tuple[RootRow, str]:
        with self.handle.index.read() as connection:
            above = root_above(known_roots(connection), self.folder)
        if above is not None:
            return above
        fs_id = self._fs_id(state.st_dev, self.folder)
        with self.handle.index.write() as connection:
            return root_for(connection, self.folder, fs_id, signed(state.st_ino))

    def _look_at_root(self) -> None:
        """Whether the root is the folder it was, or another one under its name."""
        with fsio.errors_typed("look at", self.root.path):
            state = os.stat(self.root.path)
        self.found_at = self._fs_id(state.st_dev, self.root.path), signed(state.st_ino)
        noted = self.root.fs_id, self.root.inode
        self.available = noted[0] is None or noted == self.found_at or is_there(self.handle, self.root, "")

    def _fs_id(self, device: int, path: str) -> str:
        found = self.fs_ids.get(device)
        if found is None:
            found = self.fs_ids[device] = fsio.filesystem_id(path)
        return found

    # -- comparing -------------------------------------------------------------------------------------------------

    def _compare(self, listing: Listing) -> None:
        """Submit what is new or changed in a directory, and note what has gone."""
        self.files += len(listing.names)
        known, rehash = self._known(listing), self.options.rehash
        if listing.trusted:
            self._submit(listing, by_names(self.handle, listing, known, self.wanted))
            return
        found = None
        if known is not None and known.print is not None and not rehash:
            if known.print.fingerprint == listing.fingerprint:
                self.known += len(listing.names)
                if (known.print.mtime_ns, known.print.inode) != self._state_of(listing):
                    self._finish(listing, ())
                return
            found = by_states(self.handle, listing, known, self.wanted)
        self._submit(listing, found or by_rows(self.handle, listing, known, self.wanted, rehash=rehash))

    def _submit(self, listing: Listing, found: Differences) -> None:
        relpath = listing.relpath
        self.known += found.known
        for name, hash_id in found.before.items():
            self.before[relpath, name] = hash_id
        if found.lost:
            self.gone[relpath] = found.lost
            self.absent |= {(relpath, name) for name, _ in found.lost}
        if not found.todo:
            self._finish(listing, ())
            return
        self.working[relpath] = _Work(listing, found.todo, len(found.todo))
        states, odd = listing.states, listing.odd
        files = [Found(relpath, name, states[NUMBERS * place], odd.get(name)) for name, place in found.todo.items()]
        for start in range(0, len(files), SLICE):  # of a folder of very many files, too, some is told and kept early
            self.hasher.submit(files[start : start + SLICE])
            self._collect(self.hasher.collect())

    def _known(self, listing: Listing) -> DirectoryRow | None:
        """The row of a directory; whether it is on the file system where it was is noted on the way."""
        relpath = listing.relpath
        row = self.directories.get(relpath)
        fs_id = self._fs_id(listing.device, os.path.join(self.root.path, relpath))
        if row is None or row.fs_id is None:
            self.places[relpath] = fs_id
        elif row.fs_id != fs_id and self.available:
            if is_there(self.handle, self.root, relpath):
                self.places[relpath] = fs_id
            else:
                self.foreign.append(relpath)
        return row

    def _counted(self, size: int, mtime_ns: int, ctime_ns: int, inode: int) -> tuple[int, ...]:
        """A state with 0 for what doesn't count."""
        return size, mtime_ns, ctime_ns * self.wanted.ctime, inode * self.wanted.inode

    def _state_of(self, listing: Listing) -> tuple[int | None, int | None]:
        """mtime and inode of a directory, unless another name may come within the same tick."""
        settled = listing.mtime_ns + clock.SETTLED_AFTER_NS < self.now
        return (listing.mtime_ns, listing.inode) if settled else (None, None)

    def _finish(self, listing: Listing, doubtful: Collection[int]) -> None:
        """All of a directory is known: its fingerprint and states go with the next rows that are written."""
        if listing.trusted:
            found = Print(None, len(listing.names), *self._state_of(listing))
        else:
            fingerprint = None if doubtful else listing.fingerprint
            states = pack(listing.names, listing.states, doubtful)
            found = Print(fingerprint, len(listing.names), *self._state_of(listing), states)
        (self.held if listing.relpath in self.gone else self.prints)[listing.relpath] = found

    # -- writing ---------------------------------------------------------------------------------------------------

    def _collect(self, found: Sequence[SeenSource]) -> None:
        self._take_in(found)
        if found and self.options.progress is not None:
            self.options.progress(self.hashed + self.failed, self.hasher.submitted)
        late = time.monotonic() - self.saved_at > COMMIT_SECONDS
        # While threads hash, this one has nothing better to do than to write.
        enough = BESIDE_FILES if self.hasher.busy else COMMIT_FILES
        if len(self.seen) >= enough or (late and self.seen):
            self._save()

    def _take_in(self, found: Sequence[SeenSource]) -> None:
        self.seen += found  # first: whatever stops this, no fingerprint is saved without its rows
        for seen in found:
            work = self.working[seen.relpath]
            work.left -= 1
            if seen.content is None:
                self.failed += 1
            else:
                self.hashed += 1
                if self.texts and seen.name.lower().endswith(self.texts):
                    self.captions.append((os.path.join(self.root.path, seen.relpath, seen.name), seen.content))
            kept = self._counted(seen.stat.size, seen.stat.mtime_ns, seen.stat.ctime_ns, seen.stat.inode)
            place = work.places[seen.name]
            listed = tuple(work.listing.states[NUMBERS * place : NUMBERS * (place + 1)])
            if not seen.settled or seen.content is None or kept != listed:
                work.doubtful.append(place)
            if not work.left:
                self._finish(work.listing, work.doubtful)
                del self.working[seen.relpath]

    def _save(self) -> None:
        if self.seen or self.prints or self.places:
            with self.handle.index.write() as connection:
                self._write(connection)

    def _write(self, connection: Connection) -> None:
        """Write what was found so far, and count it."""
        if not is_root(connection, self.root.id):
            raise Adopted
        seen, prints, places = self.seen, self.prints, self.places
        contents = save_sources(connection, self.root.id, seen)
        self.written.update({each.relpath for each in seen})
        if prints or places:
            ids = save_directories(connection, self.root.id, {*prints, *places})
            place_directories(connection, [(ids[relpath], fs_id) for relpath, fs_id in places.items()])
            self._save_prints(connection, ids, prints)
        for each in seen:
            if each.content is None:
                continue
            before = self.before.pop((each.relpath, each.name), None)
            other = before != contents[each.content.kind, each.content.digest]
            self.new += before is None
            self.edited += before is not None and other
            self.fresh[each.content.digest] += other
        self.seen, self.prints, self.places = [], {}, {}
        self.saved_at = time.monotonic()

    def _end(self) -> tuple[int, str | None]:
        """Write the rest, and mark what has gone, unless that is doubtful; (number of files, why it wasn't done)."""
        self._find_vanished()
        gone = [id_ for relpath, some in self.gone.items() if not self._is_foreign(relpath) for _, id_ in some]
        state = self.root.state if self.inside else "whole"
        found_at: tuple[str | None, int | None] = self.found_at
        warning = None
        with self.handle.index.write() as connection:
            self._write(connection)
            # What has moved isn't lost.
            lost = len(gone) - (Counter(digests_of(connection, gone).values()) & self.fresh).total()
            if not self.available:
                state, found_at = "unavailable", (self.root.fs_id, self.root.inode)
                warning = unavailable(self.root)
            elif too_many(lost, self.known):
                state, warning = "suspicious", suspicious(self.root, lost, self.known)
            elif self.foreign:
                warning = elsewhere(self.root, self.foreign)
            marking = self.available and state != "suspicious"
            if marking and gone:
                gone = self._mark(connection)
            note_root(connection, self.root.id, state, *found_at)
        return len(gone) if marking else 0, warning

    def _mark(self, connection: Connection) -> list[int]:
        """Mark what has gone, except what has come back since its folder was listed; its row ids."""
        marked: list[int] = []
        whole: dict[str, Print] = {}
        for relpath, sources in self.gone.items():
            if self._is_foreign(relpath):
                continue
            still = [id_ for name, id_ in sources if not is_file(os.path.join(self.root.path, relpath, name))]
            marked += still
            self.written[relpath] += bool(still)
            if len(still) == len(sources) and relpath in self.held:
                whole[relpath] = self.held[relpath]
        mark_missing(connection, marked)
        self._save_prints(connection, save_directories(connection, self.root.id, whole), whole)
        return marked

    def _save_prints(self, connection: Connection, ids: Mapping[str, int], prints: Mapping[str, Print]) -> None:
        """Write prints, but none of a directory whose rows another process has changed since they were compared."""
        counted = []
        for relpath, each in prints.items():
            row = self.directories.get(relpath)
            counted.append((ids[relpath], (row.changes if row else 0) + self.written[relpath], each))
        save_prints(connection, str(self.wanted), counted)

    def _find_vanished(self) -> None:
        """The files of directories that aren't there any more. Only a listing can say so: that of the folder above from
        which the way down has vanished. A folder that can't be listed says nothing about what is in it."""
        walk = self.walk
        for relpath, row in self.directories.items():
            place = vanished = relpath
            while place not in walk.listed and place not in walk.failed and place not in walk.passed and place:
                place, vanished = os.path.dirname(place), place
            if relpath in walk.listed or place not in walk.listed:
                continue
            with self.handle.index.glance() as connection:
                rows = names_in(connection, row.id)
            gone = [(each.name, each.id) for each in rows if not each.missing and self.wanted.matches(each.name)]
            if gone:
                self.gone[relpath] = gone
                self.known += len(gone)
                if vanished not in self.foreign and os.path.islink(os.path.join(self.root.path, vanished)):
                    self.foreign.append(vanished)

    def _is_foreign(self, relpath: str) -> bool:
        return any(not place or relpath == place or relpath.startswith(place + "/") for place in self.foreign)
