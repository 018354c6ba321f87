"""Cells: what a value under a role is, and the files among such values, looked up all at once."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from casstore.core.handle import Handle
from casstore.errors import UsageError
from casstore.identity.contents import content_of_value, text_content
from casstore.model import Content
from casstore.sources.captions import caption_cells, is_text_file
from casstore.sources.fresh import contents_of
from casstore.sources.inputs import Cell


class FileCell(NamedTuple):
    """A cell that will be what a file holds."""

    path: str


Asked = tuple[Cell | FileCell, ...]
"""What one role of a row was given: one or more contents, files among them not looked at yet."""


def ask(role: str, value: Any, folder: str) -> Asked:
    """What a value under a role is.

    Args:
        role: the role; under some of them a str is a text.
        value: a path, text, array or tensor; a list of these, one for each variation; None: nothing.
        folder: what relative paths are relative to.

    Raises:
        UsageError: it is nothing of the kind; the message names the role, not the row.
    """
    if value is None:
        return ()
    if isinstance(value, (list, tuple)):
        return tuple(_one(f"{role}[{number}]", role, one, folder) for number, one in enumerate(value))
    return (_one(role, role, value, folder),)


def settle(handle: Handle, asked: Sequence[tuple[str, Asked]], reader: str) -> list[tuple[Cell, ...]]:
    """The cells that were asked for: files are looked up together, and read as texts under the roles of texts.

    Args:
        handle: the open store.
        asked: (role, what it was given).
        reader: the name of the reader of text files.
    """
    paths = list(dict.fromkeys(one.path for _, cells in asked for one in cells if isinstance(one, FileCell)))
    files = dict(zip(paths, contents_of(handle, paths) if paths else [], strict=True))
    texts = {
        one.path: content
        for role, cells in asked
        for one in cells
        if isinstance(one, FileCell)
        and is_text_file(role, one.path)
        and (content := files[one.path].content) is not None
    }
    read = dict(zip(texts, caption_cells(handle, list(texts.items()), reader) if texts else [], strict=True))

    def found(role: str, one: Cell | FileCell) -> tuple[Cell, ...]:
        if isinstance(one, Cell):
            return (one,)
        if one.path in read and is_text_file(role, one.path):
            return read[one.path]
        return (files[one.path],)

    return [tuple(cell for one in cells for cell in found(role, one)) for role, cells in asked]


def text_cell(text: str) -> Cell:
    """The cell of exactly this text."""
    try:
        return Cell(text_content(text))
    except UsageError as error:
        return Cell(None, error=str(error))


def _one(where: str, role: str, value: Any, folder: str) -> Cell | FileCell:
    if isinstance(value, Mapping):
        raise UsageError(f"{where} is a dict; what is no content belongs into 'values'")
    try:
        found = content_of_value(role, value)
    except UsageError as error:
        if isinstance(value, (str, bytes, bytearray)):  # a text that is none: a failure of this row, like a bad file
            return Cell(None, error=f"{where}: {error}")
        raise UsageError(f"{where} can't be taken: {error}") from None
    if isinstance(found, Content):
        return Cell(found)
    if found is None or not found.path:
        raise UsageError(f"{where} is empty; write None instead of it, or of the list, where there is nothing")
    return FileCell(os.path.abspath(os.path.join(folder, found.path)))
