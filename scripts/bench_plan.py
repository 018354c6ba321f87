"""Planning of what is all stored, against one SQL join that fetches the same rows."""

from __future__ import annotations

import contextlib
import os
import resource
import sqlite3
import time
from pathlib import Path

import synthetic
from timing import ratios, spread

import casstore
from casstore.sources.found import Folder, Scan, ScanReport
from casstore.sources.images import EXTENSIONS
from casstore.sources.walk import Filter

COUNT = 100_000
RUNS = 7
JOIN = """
SELECT d.relpath, s.name, s.error, h.kind, h.digest, h.nbytes, h.width, h.height, h.orientation, h.note,
       v.id, i.digest, r.digest, v.resolution, v.variation, v.params, v.checksum, w.digest, p.ordinal,
       o.digest, t.digest, l.digest, o.damaged_at
  FROM sources s JOIN directories d ON d.id = s.directory_id JOIN hashes h ON h.id = s.hash_id
  JOIN variants v ON v.hash_id = h.id JOIN hashes i ON i.id = v.inputs_id JOIN recipes r ON r.id = v.recipe_id
  LEFT JOIN value_sets w ON w.id = v.values_id JOIN variant_parts p ON p.variant_id = v.id
  JOIN objects o ON o.id = p.object_id JOIN schema_stamps t ON t.id = p.stamp_id JOIN layouts l ON l.id = o.layout_id
 WHERE d.root_id = 1 AND s.missing_since IS NULL
"""


def bench_plan(folder: Path) -> None:
    """100,000 variants."""
    path = folder / "store"
    with casstore.open(path, create=True, durability="off") as store:
        synthetic.fill(store, COUNT)
    inside = frozenset(["", *(f"d{number:05}" for number in range(COUNT // synthetic.FOLDER + 1))])
    report = ScanReport(COUNT, COUNT, 0, 0, 0, 0, 0, False, 0.0)
    found = Folder(1, "/synthetic/photos", "", "", Filter(EXTENSIONS), inside, frozenset(), {}, report)

    with casstore.open(path) as store:

        def planned(_: int) -> float:
            began = time.perf_counter()
            scan = Scan(store._handle, [found], EXTENSIONS, {}, "caption-1")
            plan = store.plan(scan, synthetic.RECIPE, resolution="768x1024")
            assert (plan.planned, plan.hits) == (COUNT, COUNT), plan
            return time.perf_counter() - began

        def joined(_: int) -> float:
            began = time.perf_counter()
            with contextlib.closing(sqlite3.connect(path / "index.sqlite")) as index:
                assert len(index.execute(JOIN).fetchall()) == COUNT
            return time.perf_counter() - began

        print(f"plan: {COUNT:,} variants, all stored, {RUNS} pairs (goal: 2)")
        print(f"  planning / one join of the same rows       {spread(ratios(planned, joined, RUNS))}")
        print(f"  us per row                                 {spread([planned(0) / COUNT * 1e6 for _ in range(3)])}")
    child = os.fork()
    if child == 0:  # a process of its own, whose memory nothing else has grown
        with casstore.open(path) as store:
            store.plan(store.inputs([]), synthetic.RECIPE)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            scan = Scan(store._handle, [found], EXTENSIONS, {}, "caption-1")
            plan = store.plan(scan, synthetic.RECIPE, resolution="768x1024")
            after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            print(
                f"  MiB above what it was before (goal: 60)    {(after - before) / 1024:6.1f}  {plan.hits:,}",
                flush=True,
            )
        os._exit(0)
    os.waitpid(child, 0)
