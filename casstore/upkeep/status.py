"""What a store holds, in numbers."""

from __future__ import annotations

from dataclasses import asdict

from casstore.core.handle import Handle
from casstore.index.runs import last_runs
from casstore.index.status import count_all, usage_by_recipe
from casstore.model import Status

RUNS = 3


def status(handle: Handle) -> Status:
    """Count everything; reads the index only."""
    handle.check_open()
    with handle.index.read() as connection:
        counts = count_all(connection)
        recipes = tuple(usage_by_recipe(connection))
        runs = tuple(last_runs(connection, RUNS))
    return Status(
        path=handle.directory.path,
        durability=handle.durability,
        wal_bytes=handle.index.wal_bytes,
        recipes=recipes,
        runs=runs,
        **asdict(counts),
    )
