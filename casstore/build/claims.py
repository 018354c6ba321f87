"""Who encodes what, where many builders work on one store: a builder claims keys before it encodes them.

A claim counts while its owner lives, which the lock on its file tells: no clock, no time-out. Others skip claimed keys,
and take them over when their owner has died. So every item is encoded once, unless its owner died on it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from casstore import fsio
from casstore.core.handle import Handle
from casstore.core.put import can_be_served, names_of
from casstore.errors import CasstoreError, UsageError
from casstore.identity.keys import Key
from casstore.index.failures import save_failures
from casstore.index.owners import (
    drop_claims,
    failed_since,
    owners_of,
    remove_dead,
    remove_owner,
    save_claims,
    save_owner,
)
from casstore.index.variants import VariantRow, find_variants
from casstore.locks import FileLock

_running = threading.local()  # .names: the builds of this thread, one inside the other


@dataclass(frozen=True, slots=True)
class Claimed:
    """What became of keys that were to be claimed, by their digests.

    Attributes:
        mine: ours to encode now.
        stored: stored since they were planned.
        failed: {key: (class, message)}: another builder has failed on it since this build began.
        theirs: living owners are at them.
    """

    mine: frozenset[bytes]
    stored: dict[bytes, VariantRow] = field(default_factory=dict)
    failed: dict[bytes, tuple[str, str]] = field(default_factory=dict)
    theirs: frozenset[bytes] = frozenset()


class Owner:
    """A running build, as others see it: alive while its lock file is locked.

    Args:
        handle: the open store.
        kind: what it does.
        since: when it began, ms UTC.
    """

    def __init__(self, handle: Handle, kind: str, since: int) -> None:
        self._handle, self._kind, self._since = handle, kind, since
        self._name = secrets.token_hex(8)
        self._lock = FileLock(os.path.join(handle.directory.owners, self._name))
        self._lock.acquire(0)  # before the row, so that nobody takes us for dead
        self._outer = _running.names = (*getattr(_running, "names", ()), self._name)
        self._id: int | None = None
        self._free: list[bytes] = []
        self._failures: list[tuple[Key, str, str]] = []

    def release(self, key: bytes) -> None:
        """Give a key free with the next claim."""
        self._free.append(key)

    def remember(self, key: Key, error_type: str, message: str) -> None:
        """Store a failure, and give its key free, with the next claim."""
        self._failures.append((key, error_type, message))
        self._free.append(key.digest)

    def claim(self, keys: Sequence[Key], names: frozenset[str]) -> Claimed:
        """Claim those of the keys that nobody living is at, in one short transaction.

        Args:
            keys: whose variants aren't served, by the plan.
            names: that have to be there; a variant without one of them isn't enough, whoever stored it.
        """
        digests = [key.digest for key in keys]
        with self._handle.index.write(durable=False) as connection:
            if self._id is None:
                self._id = save_owner(connection, self._name, self._kind)
            save_failures(connection, self._failures)
            drop_claims(connection, self._free)
            self._failures, self._free = [], []
            rows = find_variants(connection, keys) if keys else {}
            stored = {
                digest: row
                for digest, row in rows.items()
                if names <= names_of(row) and can_be_served(self._handle, row)
            }
            failed = failed_since(connection, digests, self._since)
            owners = owners_of(connection, digests)
            dead = {name for name in set(owners.values()) - {self._name} if not self._lives(name)}
            theirs = {digest for digest, name in owners.items() if name != self._name and name not in dead}
            remove_dead(connection, dead)
            mine = frozenset(digests) - stored.keys() - failed.keys() - theirs
            save_claims(connection, self._id, mine)
        return Claimed(mine, stored, failed, frozenset(theirs - stored.keys() - failed.keys()))

    def waits_for(self, keys: Sequence[bytes]) -> bool:
        """Whether living owners are at all of these keys still; reads only."""
        with self._handle.index.glance() as connection:
            owners = owners_of(connection, keys)
        if not set(self._outer[:-1]).isdisjoint(owners.values()):
            raise UsageError("a build inside an encoder waits for the build that called it; end that one first")
        return len(owners) == len(keys) and all(map(self._lives, set(owners.values())))

    def _lives(self, name: str) -> bool:
        lock = FileLock(os.path.join(self._handle.directory.owners, name))
        try:
            dead = lock.try_acquire(create=False)
        except FileNotFoundError:
            return False
        if dead:
            with contextlib.suppress(CasstoreError):  # what stays is gc's
                fsio.unlink(lock.path)
            lock.release()
        return not dead

    def close(self) -> None:
        """Give everything free."""
        try:
            if self._id is not None or self._failures:
                with self._handle.index.write(durable=bool(self._failures)) as connection:
                    save_failures(connection, self._failures)
                    if self._id is not None:
                        remove_owner(connection, self._id)
        finally:
            _running.names = tuple(name for name in getattr(_running, "names", ()) if name != self._name)
            if self._lock.held:
                with contextlib.suppress(CasstoreError):
                    fsio.unlink(self._lock.path)
            self._lock.release()
