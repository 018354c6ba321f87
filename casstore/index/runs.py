"""Rows of runs: what was done when, by which machine, and how it ended."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, select, update
from sqlalchemy.dialects.sqlite import insert

from casstore.index.bulk import now_ms, storable
from casstore.index.tables import runs
from casstore.model import RunSummary


def start_run(connection: Connection, kind: str) -> int:
    """Note that something has begun; returns the id of the run."""
    row = {"kind": kind, "started_at": now_ms(), "counts": "{}", "bytes": 0, "host": socket.gethostname()}
    return int(connection.execute(insert(runs).values(row).returning(runs.c.id)).scalar_one())


def finish_run(
    connection: Connection, run_id: int, counts: Mapping[str, Any], nbytes: int, error: str | None = None
) -> None:
    """Note how it ended."""
    values = {"finished_at": now_ms(), "counts": json.dumps(counts), "bytes": nbytes, "error": storable(error)}
    connection.execute(update(runs).where(runs.c.id == run_id).values(values))


def last_runs(connection: Connection, limit: int) -> list[RunSummary]:
    """The newest runs, newest first."""
    query = select(runs.c.kind, runs.c.started_at, runs.c.finished_at, runs.c.counts, runs.c.error)
    rows = connection.execute(query.order_by(runs.c.id.desc()).limit(limit))
    return [RunSummary(kind, start, end, json.loads(counts), error) for kind, start, end, counts, error in rows]
