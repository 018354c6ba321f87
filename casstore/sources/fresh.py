"""The freshness rule: what a file holds now, for the price of one stat if it is known and unchanged."""

from __future__ import annotations

import os
from collections.abc import Sequence

from casstore import fsio
from casstore.core.handle import Handle
from casstore.errors import SourceNotFoundError
from casstore.index.sources import Stat, find_source
from casstore.model import Content
from casstore.sources.inputs import Cell
from casstore.sources.read import read_source


def content_of(handle: Handle, path: str | os.PathLike[str]) -> Content:
    """The present content of a file.

    A known file whose size, times and inode are those of the last scan isn't opened; any other is read and hashed.

    Raises:
        SourceNotFoundError: it isn't there or can't be read.
    """
    place = os.path.abspath(os.fspath(path))
    try:
        state = Stat.of(os.stat(place))
    except OSError as error:
        raise SourceNotFoundError(f"can't read {place}: {fsio.reason(error)}") from error
    except ValueError as error:  # a name with a NUL
        raise SourceNotFoundError(f"can't read {place!r}: {error}") from error
    with handle.index.read() as connection:
        row = find_source(connection, place)
    if row is not None and row.settled and row.content is not None and row.stat == state:
        return row.content
    return read_source(place).content


def known_content_of(handle: Handle, path: str | os.PathLike[str]) -> Content:
    """The content of a file that may be gone: what it holds now, else what it held at the last scan.

    Raises:
        SourceNotFoundError: it is neither there nor known.
    """
    try:
        return content_of(handle, path)
    except SourceNotFoundError:
        with handle.index.read() as connection:
            row = find_source(connection, os.path.abspath(os.fspath(path)))
        if row is None or row.content is None:
            raise
        return row.content


def contents_of(handle: Handle, paths: Sequence[str]) -> list[Cell]:
    """The present contents of files, in order; one that can't be read is a cell with the error."""
    cells = []
    for path in paths:
        place = os.path.abspath(path)
        try:
            cells.append(Cell(content_of(handle, place), place))
        except SourceNotFoundError as error:
            cells.append(Cell(None, place, str(error)))
    return cells
