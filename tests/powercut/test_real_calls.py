"""The marks that the recording relies on stand where the real calls are, on a real disk."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from itertools import groupby
from pathlib import Path

import pytest
from kit import ROOT

from casstore import fsio

SCRIPT = """
import sys
from core.helpers import put
from powercut.recording import Told
import casstore

told = Told(sys.argv[1])
told.watch_syncfs()
with casstore.open(sys.argv[1] + "/store", create=True) as store:
    put(store, "a")  # the WAL is made, and its name flushed
    told.going("b")
    put(store, "b")
    told.stored("b")
"""

STEPS = {  # a line of the trace, and what it is called here
    r"write\(.*/store/tmp/": "write temp",
    r".*\.mark\|syncfs\|[^|]*\|begins": "mark: syncfs begins",
    r"syncfs\(": "syncfs",
    r".*\.mark\|syncfs\|[^|]*\|ends": "mark: syncfs ends",
    r"link(at)?\(.*/store/tmp/.*/store/objects/": "link",
    r"pwrite64\(.*index.sqlite-wal": "write WAL",
    r"fdatasync\(.*index.sqlite-wal": "flush WAL",
    r"unlink(at)?\(.*/store/tmp/": "unlink temp",
    r"(fsync|fdatasync|sync|rename\w*)\(": "something else that is flushed or renamed",
}


def traced(folder: Path) -> list[str]:
    """The steps of the second put of the script, by strace; the same step in a row counts once."""
    command = ["strace", "-f", "-y", "-s", "300", "-o", str(folder / "trace")]
    command += ["-e", "trace=%file,write,pwrite64,syncfs,fsync,fdatasync,sync", sys.executable]
    path = f"{ROOT}:{ROOT / 'tests'}"
    subprocess.run(
        [*command, "-c", SCRIPT, str(folder)],
        check=True,
        env={"PATH": "/usr/bin", "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    lines = [line.split(None, 1)[1] for line in (folder / "trace").read_text().splitlines()]
    (begin,) = (number for number, line in enumerate(lines) if ".mark|going|" in line)
    (end,) = (number for number, line in enumerate(lines) if ".mark|stored|" in line)
    found = [next((name for step, name in STEPS.items() if re.match(step, line)), None) for line in lines[begin:end]]
    return [name for name, _ in groupby(name for name in found if name)]


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace isn't installed")
def test_a_put_on_a_real_disk_makes_the_calls_that_the_marks_claim(tmp_path: Path) -> None:
    """Data flushed, then linked, then names flushed, then the WAL written and flushed, then the temp removed."""
    if not fsio.has_syncfs(str(tmp_path)):
        pytest.skip("there is no reliable syncfs here")
    flush = ["mark: syncfs begins", "syncfs", "mark: syncfs ends"]
    steps = ["write temp", *flush, "link", *flush, "write WAL", "flush WAL", "unlink temp"]
    assert traced(tmp_path) == steps
