"""With not a byte free: reading works, and gc frees."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from core.helpers import expect, fill, flipped, get, object_file, on_a_small_disk, outcome, overwrite, put

import casstore
from casstore.core import directory

ROOM = 12 << 20  # bytes; what a put of these tests can never need


def test_a_put_without_room_says_what_it_needs_and_what_is_free(tmp_path: Path) -> None:
    """The error has both numbers; nothing of the put is stored, no temp stays, and what was there is there."""

    def work(place: Path) -> Any:
        with casstore.open(place / "s", create=True, durability="off") as store:
            put(store, "a")
            fill(place)
            message = ""
            try:
                put(store, b={"t": np.random.default_rng(0).standard_normal(1 << 16)})
            except casstore.errors.NoSpaceError as error:
                message = str(error)
            temps = os.listdir(place / "s" / "tmp")
            return [message, temps, get(store, "a"), get(store, "b"), store.verify(deep=True).damaged]

    message, temps, a, b, damaged = on_a_small_disk(tmp_path, work)
    assert "bytes are needed" in message and "0 bytes are free" in message
    assert (temps, a, b, damaged) == ([], expect("a"), "new", 0)


def test_a_store_on_a_full_disk_is_read(tmp_path: Path) -> None:
    """Without a ballast, a store on a full disk opens for reading; writing says why not."""

    def work(place: Path) -> Any:
        with casstore.open(place / "s", create=True, durability="off") as store:
            put(store, "a")
        fill(place)
        with casstore.open(place / "s") as store:
            return [get(store, "a"), store.status().variants, store.read_only, outcome(lambda: put(store, "b"))]

    assert on_a_small_disk(tmp_path, work) == [expect("a"), 1, True, "NoSpaceError"]


def test_the_ballast_is_given_up_for_opening_and_gc_frees(tmp_path: Path) -> None:
    """With a ballast a full disk's store opens for writing, and gc gives back what nobody needs."""

    def work(place: Path) -> Any:
        directory_of, needs = directory.BALLAST_BYTES, directory.BALLAST_NEEDS_FREE
        assert directory_of < needs
        from casstore.core import initialize

        initialize.BALLAST_BYTES, initialize.BALLAST_NEEDS_FREE = 4 << 20, 1 << 20
        with casstore.open(place / "s", create=True) as store:
            put(store, b={"t": np.random.default_rng(0).standard_normal(1 << 18)}, a={"t": np.arange(3)})
            store.forget(casstore.Recipe("r")).execute()
        fill(place)
        had = os.path.exists(place / "s" / "ballast")
        with casstore.open(place / "s") as store:
            opened = [store.read_only, os.path.exists(place / "s" / "ballast")]
            freed = store.gc(yes=True, grace_hours=0).freed_bytes
            put(store, "c")
            return [had, *opened, freed > 1 << 20, get(store, "c")]

    assert on_a_small_disk(tmp_path, work) == [True, False, False, True, expect("c")]


def test_gc_removes_a_dead_processs_temps_from_a_full_disk(tmp_path: Path) -> None:
    """That needs no index: so the next command can open it again."""

    def work(place: Path) -> Any:
        with casstore.open(place / "s", create=True, durability="off") as store:
            put(store, "a")
        (place / "s" / "tmp" / ("0" * 16 + "-0")).write_bytes(bytes(1 << 20))
        fill(place)
        with casstore.open(place / "s") as store:
            freed = store.gc(yes=True).freed_bytes
        with casstore.open(place / "s") as store:
            put(store, "b")
            return [freed, get(store, "b")]

    assert on_a_small_disk(tmp_path, work) == [1 << 20, expect("b")]


def test_damage_on_a_full_disk_is_a_miss_and_a_finding(tmp_path: Path) -> None:
    """A store that can only be read because the disk is full tells damage like any other that can only be read."""

    def work(place: Path) -> Any:
        with casstore.open(place / "s", create=True, durability="off") as store:
            put(store, "a", "b")
            path = object_file(store, "a")
        overwrite(path, flipped(path.read_bytes(), -1))
        fill(place)
        with casstore.open(place / "s") as store:
            return [
                store.read_only,
                outcome(get, store, "a"),
                get(store, "b"),
                outcome(lambda: store.verify()),
                outcome(lambda: store.verify(deep=True)),
            ]

    assert on_a_small_disk(tmp_path, work) == [True, "fine", expect("b"), "fine", "fine"]
