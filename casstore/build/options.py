"""How to build."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, Literal

from casstore.build.progress import Progress
from casstore.errors import UsageError

OnError = Literal["skip", "raise"]
ITEM_TIMEOUT = 15 * 60.0  # seconds
Stop = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Options:
    """How to build; see `Store.build`."""

    batch_size: int = 8
    batch_pixels: int | None = None
    workers: int | None = None
    on_error: OnError = "skip"
    retry_failed: bool = False
    allow_nonfinite: bool = False
    progress: Progress = field(default_factory=Progress)
    stop: Stop = bool  # bool() is False: nobody stops it
    before_encode: Callable[[], object] | None = None
    executor: Executor | None = None
    encode_threads: int = 1
    item_timeout: float = ITEM_TIMEOUT
    catch_signals: bool = True

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise UsageError(f"batch_size counts items; {self.batch_size} is too few")
        if self.batch_pixels is not None and self.batch_pixels < 1:
            raise UsageError(f"batch_pixels counts pixels; {self.batch_pixels} is too few")
        if self.workers is not None and self.workers < 1:
            raise UsageError(f"workers counts decode threads; {self.workers} is too few")
        if self.encode_threads < 1:
            raise UsageError(f"encode_threads counts threads of the executor; {self.encode_threads} is too few")
        if self.item_timeout <= 0:
            raise UsageError(f"item_timeout is in seconds; {self.item_timeout} is too short")
        if self.on_error not in ("skip", "raise"):
            raise UsageError(f"on_error is 'skip' or 'raise', not {self.on_error!r}")

    @property
    def threads(self) -> int:
        """Number of decode threads."""
        return self.workers or min(8, os.cpu_count() or 1)


def stop_of(given: Any) -> Stop:
    """Whether to stop, as a function.

    Args:
        given: a function without arguments, something with `is_set()` such as a threading.Event, or None.

    Raises:
        UsageError: it is something else.
    """
    if given is None:
        return bool
    is_set = getattr(given, "is_set", given)
    if not callable(is_set):
        raise UsageError(f"stop is a function or a threading.Event, not {type(given).__name__}")
    return lambda: bool(is_set())
