"""Ctrl-C and SIGTERM: the first one ends the build after the present batch, a second Ctrl-C interrupts at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any


class Signals:
    """Catches the signals that end a program, in a `with` block, so that they never fall into a commit.

    Only on the main thread, where Python delivers them.

    Args:
        catching: False: leave them to whoever has them.

    Attributes:
        came: the number of the first one; None: none came.
    """

    def __init__(self, *, catching: bool = True) -> None:
        self._catching = catching
        self.came: int | None = None
        self._before: dict[int, Callable[..., Any] | int | None] = {}

    def __enter__(self) -> Signals:
        if self._catching and threading.current_thread() is threading.main_thread():
            interrupt, terminate = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
            # Whoever ignores a signal, or has their own way to end, keeps that.
            if interrupt is not signal.SIG_IGN:
                self._before[signal.SIGINT] = interrupt
            if terminate is signal.SIG_DFL:
                self._before[signal.SIGTERM] = terminate
            for number in self._before:
                signal.signal(number, self._stop)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, signal.SIG_DFL if before is None else before)
        self._before = {}

    def _stop(self, number: int, frame: FrameType | None) -> None:
        before = self._before.get(number)
        if self.came is not None and callable(before):
            before(number, frame)
        self.came = number
