"""Comparing a directory with what the index knows of it: by packed states, by the rows, or by names alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from casstore.core.handle import Handle
from casstore.index.directories import DirectoryRow, states_in
from casstore.index.sources import SourceName, named_in, names_in, usable_in
from casstore.sources.states import differences, unpack
from casstore.sources.walk import Filter, Listing


@dataclass(frozen=True, slots=True)
class Differences:
    """Between a listing and the index.

    Attributes:
        todo: {name: place in the listing} of the files to hash.
        before: {name: row id of what it held} of those of them that should be there.
        lost: (name, row id) of the files that should be there and aren't.
        known: how many should be there.
    """

    todo: dict[str, int]
    before: dict[str, int | None]
    lost: list[tuple[str, int]]
    known: int


def by_states(handle: Handle, listing: Listing, known: DirectoryRow, wanted: Filter) -> Differences | None:
    """The differences from the states that were kept with the fingerprint: only rows of what differs are read.

    Returns:
        None: there are none, or none that can be read.
    """
    with handle.index.glance() as connection:
        found = states_in(connection, known.id, str(wanted))
    before = None if found is None else unpack(found[1], found[0])
    if before is None:
        return None
    known_files = len(before)
    todo, there = differences(before, listing.names, listing.states)
    rows: list[SourceName] = []
    if asked := [*before, *there]:
        with handle.index.glance() as connection:
            rows = [row for row in named_in(connection, known.id, asked) if not row.missing]
    return Differences(
        todo,
        {row.name: row.hash_id for row in rows if row.name in todo},
        [(row.name, row.id) for row in rows if row.name not in todo],
        known_files,
    )


def by_rows(
    handle: Handle, listing: Listing, known: DirectoryRow | None, wanted: Filter, *, rehash: bool
) -> Differences:
    """The differences from all rows; `rehash`: any file differs."""
    usable, others = {}, []
    if known is not None:
        with handle.index.glance() as connection:
            usable = usable_in(connection, known.id)
            others = names_in(connection, known.id, unusable=True)
    count = len(usable)
    ctime, inode, states = wanted.ctime, wanted.inode, listing.states
    todo: dict[str, int] = {}
    before: dict[str, int | None] = {}
    for place, (name, state) in enumerate(
        zip(listing.names, zip(*(states[i::4] for i in range(4)), strict=True), strict=True)
    ):
        row = usable.pop(name, None)
        if row is not None:
            noted = row[1:5] if ctime and inode else (row[1], row[2], row[3] * ctime, row[4] * inode)
            if noted == state and not rehash:
                continue
            before[name] = row[5]
        todo[name] = place
    return _differences(todo, before, [(name, row[6]) for name, row in usable.items()], count, others, wanted)


def by_names(handle: Handle, listing: Listing, known: DirectoryRow | None, wanted: Filter) -> Differences:
    """The differences where known files aren't looked at."""
    rows: list[SourceName] = []
    if known is not None:
        with handle.index.glance() as connection:
            rows = names_in(connection, known.id)
    served = {row.name: row.id for row in rows if row.served}
    count = len(served)
    todo = {name: place for place, name in enumerate(listing.names) if served.pop(name, None) is None}
    others = [row for row in rows if not row.served]
    return _differences(todo, {}, list(served.items()), count, others, wanted)


def _differences(
    todo: dict[str, int],
    before: dict[str, int | None],
    lost: list[tuple[str, int]],
    known: int,
    others: Iterable[SourceName],
    wanted: Filter,
) -> Differences:
    """With the rows that have to be hashed again in any case, and without what isn't looked for."""
    for row in others:
        if not row.missing:
            known += 1
            if row.name in todo:
                before[row.name] = row.hash_id
            else:
                lost.append((row.name, row.id))
    missed = [(name, id_) for name, id_ in lost if wanted.matches(name)]
    return Differences(todo, before, missed, known + len(missed) - len(lost))
