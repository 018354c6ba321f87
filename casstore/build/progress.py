"""Showing progress: a bar on stderr, or whatever the caller wants to do with the numbers."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

Callback = Callable[[int, int], None]
"""callback(done, to do)"""


@contextlib.contextmanager
def shown(progress: bool | Callback | None, total: int, *, what: str = "encode") -> Iterator[Callback | None]:
    """The callback for a piece of work.

    Args:
        progress: the caller's own callback; True: a bar on stderr; None: a bar if stderr is a terminal; False: none.
        total: how much there is to do.
        what: the name of the bar.
    """
    if callable(progress):
        yield progress
        return
    if progress is False or (progress is None and not sys.stderr.isatty()) or not total:
        yield None
        return
    from tqdm import tqdm

    with tqdm(total=total, desc=what, file=sys.stderr, unit="", leave=False, dynamic_ncols=True) as bar:

        def update(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield update
