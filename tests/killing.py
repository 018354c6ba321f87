"""A harness that kills: fork from the warm parent, let the child work, SIGKILL it at a random moment.

    def work(report):               # runs in the child; report(x) tells the parent x (JSON) at once
        ...
        report({"committed": 7})

    told = kill_once(work, rng, spread=0.05)

`told` has everything that the child reported before it died. The child is killed at a random moment after its first
report, so report nothing before the first commit. What must hold afterwards is the caller's business.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import time
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

Report = Callable[[Any], None]
FIRST_REPORT_SECONDS = 60.0


def kill_once(work: Callable[[Report], None], rng: random.Random, *, spread: float) -> list[Any]:
    """Run `work` in a forked child and kill it.

    Args:
        work: work(report); may also come to its end before it is killed.
        rng: chooses the moment.
        spread: the moment lies up to this many seconds after the first report.

    Returns:
        What the child reported, in order.

    Raises:
        AssertionError: the child failed by itself; has its traceback.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _be_the_child(work, writing)
    os.close(writing)
    try:
        data = _read_until(reading, b"", time.monotonic() + FIRST_REPORT_SECONDS, first=True)
        data = _read_until(reading, data, time.monotonic() + rng.random() * spread)
        os.kill(child, signal.SIGKILL)
        data = _read_until(reading, data, time.monotonic() + FIRST_REPORT_SECONDS)
    finally:
        os.close(reading)
        os.waitpid(child, 0)
    # The last line may be torn: it was being written when the child died.
    told = [json.loads(line) for line in data.split(b"\n")[:-1]]
    for report in told:
        if isinstance(report, dict) and "traceback" in report:
            raise AssertionError("the child failed:\n" + report["traceback"])
    return told


def _read_until(descriptor: int, data: bytes, end: float, *, first: bool = False) -> bytes:
    """Read until `end`, the end of the stream, or (`first`) the end of the first line."""
    while (left := end - time.monotonic()) > 0 and not (first and b"\n" in data):
        if select.select([descriptor], [], [], left)[0]:
            chunk = os.read(descriptor, 1 << 16)
            if not chunk:
                break
            data += chunk
    return data


def _be_the_child(work: Callable[[Report], None], writing: int) -> NoReturn:
    def report(value: Any) -> None:
        os.write(writing, json.dumps(value).encode() + b"\n")

    try:
        work(report)
    except BaseException:
        report({"traceback": traceback.format_exc()})
    finally:
        os._exit(0)  # nothing of the parent's (buffers, atexit, fixtures) may run here
