"""Files are announced to the system before they are read, where that may help."""

from __future__ import annotations

import os
from typing import Any

import pytest

from casstore.data import loading


def test_a_slow_disk_is_told_all_files_of_a_batch_before_the_first_is_read(
    training: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order in which they are read, each once; not any more once batches come fast."""
    calls: list[tuple[str, str]] = []
    advise, read = loading.fsio.will_read, loading.read_into

    def advised(path: str) -> None:
        calls.append(("advise", path))
        advise(path)

    def reading(path: str, *arguments: Any) -> None:
        calls.append(("read", path))
        read(path, *arguments)

    monkeypatch.setattr(loading.fsio, "will_read", advised)
    monkeypatch.setattr(loading, "read_into", reading)
    with training.dataset() as dataset:
        for patience, told in ((1e9, True), (1e9, False), (-1e9, False), (1e9, True)):
            monkeypatch.setattr(loading, "PATIENCE", patience)
            calls.clear()
            dataset.__getitems__([7, 3, 4, 0])
            files = [path for what, path in calls if what == "read"]
            assert files == sorted(files) and len(files) == 8
            assert calls == [("advise", path) for path in files if told] + [("read", path) for path in files]


@pytest.mark.parametrize("error", [None, OSError("no such advice")])
def test_the_hint_is_a_hint(training: Any, monkeypatch: pytest.MonkeyPatch, error: OSError | None) -> None:
    """It is for whole files; a system that refuses it, or doesn't know it, is read all the same."""
    asked: list[tuple[int, int, int]] = []

    def advise(descriptor: int, *arguments: int) -> None:
        asked.append(arguments)  # type: ignore[arg-type]
        if error is not None:
            raise error

    with training.dataset() as dataset:
        monkeypatch.setattr(os, "posix_fadvise", advise)
        assert dataset.__getitems__([1, 0])[0]["sample"] == "s01"
        assert asked == [(0, 0, os.POSIX_FADV_WILLNEED)] * 4
        monkeypatch.delattr(os, "posix_fadvise")
        dataset._reader._cold = True
        assert dataset.__getitems__([1, 0])[0]["sample"] == "s01"
