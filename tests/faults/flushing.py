"""What a recorded run has flushed: the kernel tells a failed flush once and may drop the data, so a second flush of the
same data that succeeds says nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Literal

from faults.injection import Call

State = Literal["dirty", "durable", "lost"]


def repeated(calls: Sequence[Call]) -> list[Call]:
    """Flushes through a descriptor, or of a file, of which a flush had failed before."""
    failed: set[int | str] = set()
    found = []
    for call in calls:
        if call.name == "create" and not call.error:
            failed.discard(call.path)  # another file
        if call.name == "flush":
            marks = {call.opened} if call.whole or os.path.isdir(call.path) else {call.opened, call.path}
            if marks & failed:
                found.append(call)
            if call.error:
                failed |= marks
    return found


class Disk:
    """What of the files that a recorded run made would be there after a power cut.

    Data and names are dirty, then durable by a flush, or lost for good by a flush that fails: only writing them anew,
    as another file or another name, brings them back.
    """

    def __init__(self, calls: Sequence[Call]) -> None:
        self.data: dict[int, State] = {}  # file -> its bytes
        self.names: dict[str, tuple[int, State]] = {}
        for call in calls:
            if call.name == "flush":
                self._flush(call)
            elif not call.error:
                self._change(call)

    def missing(self, folder: str) -> list[str]:
        """The files below a folder that were made in this run, still have their name, and could be lost."""
        return [
            path
            for path, (file, state) in self.names.items()
            if path.startswith(folder + "/") and (state, self.data[file]) != ("durable", "durable")
        ]

    def _change(self, call: Call) -> None:
        if call.name == "create":
            file = len(self.data)
            self.data[file] = "dirty"
            self.names[call.path] = (file, "dirty")
        elif call.name in ("link", "rename") and call.path in self.names:
            self.names[call.other] = (self.names[call.path][0], "dirty")
        if call.name in ("unlink", "rename"):
            self.names.pop(call.path, None)

    def _flush(self, call: Call) -> None:
        now: State = "lost" if call.error else "durable"
        for path, (file, state) in list(self.names.items()):
            if self.data[file] == "dirty" and (call.whole or path == call.path):
                self.data[file] = now
            if state == "dirty" and (call.whole or os.path.dirname(path) == call.path):
                self.names[path] = (file, now)


def unsafe(calls: Sequence[Call], objects: str) -> Iterator[str]:
    """What is wrong with the flushes of a run: some were repeated, or an object that it left isn't durable.

    Args:
        calls: of a run that was told to have succeeded.
        objects: the folder of the objects.
    """
    for call in repeated(calls):
        yield f"flushed again after an error: {call.path}"
    for path in Disk(calls).missing(objects):
        yield f"acknowledged, but not durable: {path}"
