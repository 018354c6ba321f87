"""Verification: rows against files; with `deep`, every byte against its checksums and digest.

Damage is noted (`damaged_at`), so that the next build heals it; nothing is moved or deleted.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator

import xxhash

from casstore import fsio
from casstore.core.forms import other_form
from casstore.core.handle import Handle
from casstore.errors import CorruptObjectError, NoSpaceError, StorePermissionError, StoreTooNewError, UnsafePlaceError
from casstore.identity.digests import signed
from casstore.index.objects import ObjectRow, mark_damaged, mark_verified, object_rows, objects_after, save_form
from casstore.index.variants import variants_after
from casstore.model import Finding, VerifyReport
from casstore.objects.stored import decode
from casstore.objects.tensors import payload_digest

CHUNK = 500


def verify(handle: Handle, *, deep: bool = False, progress: Callable[[int], None] | None = None) -> VerifyReport:
    """Check the store.

    Args:
        handle: the open store.
        deep: read, decode and hash every object, and check every variant's row against its checksum.
        progress: called with the number of objects checked so far.
    """
    handle.check_open()
    started = time.monotonic()
    findings: list[Finding] = []
    checked, after = 0, b""
    while True:
        with handle.index.read() as connection:
            rows = objects_after(connection, after, CHUNK)
        if not rows:
            break
        after = rows[-1].digest
        bad, good = [], []
        for row in rows:
            problem = _problem(handle, row, deep=deep)
            checked += 1
            if progress is not None:
                progress(checked)
            if problem is None:
                good.append(row.digest)
            else:
                bad.append((row, problem))
        findings += _note(handle, bad, good if deep else [], deep=deep)
    if deep:
        findings += _unsound_variants(handle)
    return VerifyReport(checked, len(findings), tuple(findings), time.monotonic() - started)


def _problem(handle: Handle, row: ObjectRow, *, deep: bool) -> str | None:
    path = handle.directory.object(row.digest, row.codec)
    size = fsio.size_of(path)
    if size is None:
        return "its file is gone"
    if size != row.stored_bytes:
        return f"its file has {size} bytes, not {row.stored_bytes}"
    if row.damaged:
        return "it was found damaged before"
    if not deep:
        return None
    problem = _content_problem(path, row)
    # A mismatch is read twice before it is believed.
    return problem and _content_problem(path, row)


def _content_problem(path: str, row: ObjectRow) -> str | None:
    try:
        with open(path, "rb") as stream:
            data = stream.read()
        if signed(xxhash.xxh3_64_intdigest(data)) != row.stored_xxh3:
            return "the checksum of its file differs"
        _, payload = decode(row.stored, data)
        if payload_digest(payload) != row.digest:
            return "its content isn't what its name says"
    except CorruptObjectError as error:
        return str(error)
    except OSError as error:
        if error.errno in (errno.EIO, errno.ENOENT, errno.ENODATA, errno.EUCLEAN):
            return f"it can't be read: {fsio.reason(error)}"
        raise fsio.typed(error, "read", path) from error  # no rights or no memory: that says nothing about the file
    return None


def _note(handle: Handle, bad: list[tuple[ObjectRow, str]], good: list[bytes], *, deep: bool) -> list[Finding]:
    """Mark what is still wrong under the write lock; an object that was healed or swept meanwhile is no finding."""
    if not bad and not good:
        return []
    try:
        handle.check_writable()
        with handle.index.write() as connection:
            now = object_rows(connection, [row.digest for row, _ in bad])
            still = [(row, problem) for row, problem in bad if _is_still_wrong(handle, now.get(row.digest), deep=deep)]
            found = [other for row, _ in still if (other := other_form(handle.directory, now[row.digest])) is not None]
            save_form(connection, found)
            moved = {other.stored.digest for other in found}
            still = [(row, problem) for row, problem in still if row.digest not in moved]
            mark_damaged(connection, [row.digest for row, _ in still])
            mark_verified(connection, good)
    except (NoSpaceError, StorePermissionError, StoreTooNewError, UnsafePlaceError):
        still = bad  # where nothing can be noted it can still be told
    return [Finding("object", row.digest.hex(), problem) for row, problem in still]


def _is_still_wrong(handle: Handle, row: ObjectRow | None, *, deep: bool) -> bool:
    # A condemned object is nobody's: a put of it brings its own copy.
    return row is not None and not row.condemned and _problem(handle, row, deep=deep) is not None


def _unsound_variants(handle: Handle) -> Iterator[Finding]:
    after = 0
    while True:
        with handle.index.read() as connection:
            rows = variants_after(connection, after, CHUNK)
        if not rows:
            return
        after = max(row.id for _, row in rows)
        for key, row in rows:
            if not row.sound or not row.parts:
                name = f"{key[0]} {(key[1] or b'').hex()} {key[4] or 'full size'}"
                yield Finding("variant", name, "its row doesn't match its checksum; the next build makes it again")
