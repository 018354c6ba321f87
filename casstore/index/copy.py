"""A copy of the index that other programs may open while the store is used."""

from __future__ import annotations

import os

from casstore import fsio
from casstore.errors import UsageError
from casstore.index.engine import Index


def copy_index(index: Index, path: str) -> None:
    """Write the index, as it is in one read transaction, to a new file without a WAL, made durable before it is named.

    Args:
        index: of the store.
        path: absolute; must not exist.

    Raises:
        UsageError: something is there already.
    """
    try:
        path.encode()
    except UnicodeEncodeError:
        raise UsageError(f"SQLite can't write to {path!r}, whose name isn't valid UTF-8; choose another") from None
    if os.path.lexists(path):
        raise UsageError(f"{path} exists; choose another name for the copy")
    if not fsio.is_directory(os.path.dirname(path)):
        raise UsageError(f"{os.path.dirname(path)} isn't a folder; make it first")
    temp = f"{path}.{os.getpid()}.part"
    try:
        index.vacuum_into(temp)
        fsio.flush_file(temp)
        if not fsio.link(temp, path):
            fsio.rename(temp, path)
        fsio.flush_file(os.path.dirname(path))
    finally:
        fsio.unlink(temp)
