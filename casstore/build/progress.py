"""Progress: one protocol, and what can be done with it: a bar on stderr, JSON lines, a function of the caller's."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO

Callback = Callable[[int, int], None]
"""callback(done, to do)"""
EVERY = 0.1  # seconds between two lines of JSON that only count


class Progress:
    """What a piece of work tells while it runs; this one is silent.

    A phase is started with a total, advanced to numbers that never decrease, and finished; where nobody stops the work,
    the last number is the total.
    """

    def started(self, phase: str, total: int) -> None:
        """A phase begins, such as "encode"; `total` is how much there is to do in it."""

    def advanced(self, done: int, total: int) -> None:
        """So much of it is done."""

    def note(self, text: str) -> None:
        """Something worth knowing has happened."""

    def finished(self) -> None:
        """The phase has ended."""


class Calls(Progress):
    """Calls a function with (done, total)."""

    def __init__(self, callback: Callback) -> None:
        self._callback = callback

    def advanced(self, done: int, total: int) -> None:
        """So much is done."""
        self._callback(done, total)


class Bar(Progress):
    """A bar of tqdm's on a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._bar: Any = None

    def started(self, phase: str, total: int) -> None:
        """A phase begins."""
        from tqdm import tqdm

        self._bar = tqdm(total=total, desc=phase, file=self._stream, unit="", leave=False, dynamic_ncols=True)

    def advanced(self, done: int, total: int) -> None:
        """So much is done."""
        if self._bar is not None:
            self._bar.total = total
            self._bar.update(done - self._bar.n)

    def note(self, text: str) -> None:
        """Something has happened."""
        if self._bar is not None:
            self._bar.write(text, file=self._stream)

    def finished(self) -> None:
        """The phase has ended."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


class JsonLines(Progress):
    """One JSON object per line: {"event": "started" | "advanced" | "note" | "finished", "phase": ..., ...}."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._phase = ""
        self._done = self._total = self._told = 0
        self._last = 0.0

    def started(self, phase: str, total: int) -> None:
        """A phase begins."""
        self._phase, self._done, self._told, self._total = phase, 0, -1, total
        self._tell("started", total=total)

    def advanced(self, done: int, total: int) -> None:
        """So much is done."""
        self._done, self._total = done, total
        now = time.monotonic()
        if done >= total or now - self._last >= EVERY:
            self._last = now
            self._count()

    def note(self, text: str) -> None:
        """Something has happened."""
        self._tell("note", text=text)

    def finished(self) -> None:
        """The phase has ended."""
        self._count()
        self._tell("finished", done=self._done, total=self._total)

    def _count(self) -> None:
        if self._done != self._told:
            self._told = self._done
            self._tell("advanced", done=self._done, total=self._total)

    def _tell(self, event: str, **facts: Any) -> None:
        line = json.dumps({"event": event, "phase": self._phase, **facts}, separators=(",", ":"))
        with contextlib.suppress(OSError, ValueError):  # whoever reads it may be gone
            self._stream.write(line + "\n")
            self._stream.flush()


def progress_of(given: bool | Callback | Progress | None) -> Progress:
    """What is to be done with progress.

    Args:
        given: the caller's own; True: a bar on stderr; None: a bar if stderr is a terminal; False: nothing.
    """
    if isinstance(given, Progress):
        return given
    if callable(given):
        return Calls(given)
    return Bar(sys.stderr) if given or (given is None and sys.stderr.isatty()) else Progress()


@contextlib.contextmanager
def phase(progress: Progress, name: str, total: int) -> Iterator[Progress]:
    """A phase, finished at the end of the block; nothing is told of one with nothing to do."""
    if not total:
        yield Progress()
        return
    progress.started(name, total)
    try:
        yield progress
    finally:
        progress.finished()
