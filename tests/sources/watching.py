"""What tests of scans share: which system calls and which SQL a scan costs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from faults.stracing import refusal

STATS = ("stat", "lstat", "fstat", "newfstatat", "statx")
OPENS = ("open", "openat")
LISTS = ("getdents64",)

SCAN = """
import json, sys
import casstore
with casstore.open(sys.argv[1]) as store:
    report = store.scan(sys.argv[2], **json.loads(sys.argv[3])).report
print(json.dumps([report.files, report.hashed, report.missing, report.trusted]))
"""
_LINE = re.compile(r'^(\d+) +(\w+)\((?:(?:AT_FDCWD|\d+)(?:<([^>]*)>)?)?(?:, )?(?:"([^"]*)")?')


@dataclass(frozen=True, slots=True)
class Traced:
    """A scan in a child: what its report says, (call, path) of all calls on the data, and by how many threads."""

    files: int
    hashed: int
    missing: int
    trusted: bool
    calls: list[tuple[str, str]]
    threads: int

    def count(self, names: tuple[str, ...], ending: str = "") -> int:
        """How many calls of these kinds there were, on paths that end like this."""
        return sum(call in names and path.endswith(ending) for call, path in self.calls)


def traced_scan(store: Path, data: Path, env: Mapping[str, str] | None = None, **options: Any) -> Traced:
    """Scan in a child under strace, or skip the test where nothing can be traced."""
    if why := refusal():
        pytest.skip(why)
    log = data.parent / "strace.log"
    trace = ["strace", "-f", "--seccomp-bpf", "-y", "-qq", "-s", "4096", "-o", str(log)]
    trace += ["-e", f"trace=?{',?'.join(STATS + OPENS + LISTS)}"]
    command = [*trace, sys.executable, "-c", SCAN, str(store), str(data), json.dumps(options)]
    environment = os.environ | dict(env or {})
    done = subprocess.run(command, env=environment, capture_output=True, timeout=120, check=False, cwd=data.parent)
    assert done.returncode == 0, done.stderr.decode()
    calls, threads = [], set()
    for line in log.read_text(errors="surrogateescape").splitlines():
        if found := _LINE.match(line):
            path = os.path.join(found[3] or "", found[4] or "").rstrip("/")
            if path == str(data) or path.startswith(f"{data}/"):
                calls.append((found[2], path))
                threads.add(found[1])
    return Traced(*json.loads(done.stdout), calls, len(threads))


def trace_sql(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements of all connections that are made from now on, as they run."""
    from casstore.index import engine

    real, statements = engine.connect, list[str]()

    def connect(*arguments: Any, **options: Any) -> Any:
        raw = real(*arguments, **options)
        raw.set_trace_callback(statements.append)
        return raw

    monkeypatch.setattr(engine, "connect", connect)
    return statements
