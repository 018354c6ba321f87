"""What tests of several builders share: threads that may hang, encoders that wait, and a look at who waits for whom."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from kit import FakeEncoder

import casstore
from casstore.build.claims import Owner

LONG = 30.0  # seconds after which something has gone wrong


def run(work: Callable[..., Any], *arguments: Any, **options: Any) -> Future[Any]:
    """Call a function in a thread of its own, which keeps nobody from ending; a future."""
    job: Future[Any] = Future()

    def call() -> None:
        try:
            job.set_result(work(*arguments, **options))
        except BaseException as error:
            job.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return job


class Held(FakeEncoder):
    """Stays in its n-th batch, counted from 0, until it is let go."""

    def __init__(self, number: int = 0) -> None:
        super().__init__(before=self.hold)
        self.number = number
        self.there, self.go = threading.Event(), threading.Event()

    def hold(self, items: list[casstore.Item]) -> None:
        if len(self.batches) == self.number:
            self.there.set()
            assert self.go.wait(LONG)


def waiting(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set as soon as a builder has seen that it has to wait."""
    real, seen = Owner.waits_for, threading.Event()

    def watched(self: Owner, keys: Any) -> bool:
        waits = real(self, keys)
        if waits:
            seen.set()
        return waits

    monkeypatch.setattr(Owner, "waits_for", watched)
    return seen


def traces(store: casstore.Store) -> list[Any]:
    """What is left of builders: rows of claims and owners, and lock files beside that of the store's own handle."""
    rows = store.sql("SELECT name FROM owners UNION ALL SELECT hex(key) FROM claims").rows
    return [*rows, *(set(os.listdir(Path(store.path, "locks", "owners"))) - {store._handle.owner})]
