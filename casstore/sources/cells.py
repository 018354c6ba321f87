"""Cells: what a value under a role is, and the files among such values, looked up all at once."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import xxhash

from casstore.core.handle import Handle
from casstore.errors import UsageError
from casstore.identity.digests import json_digest
from casstore.model import Content
from casstore.objects.tensors import is_tensor, to_payload
from casstore.sources.captions import TEXT_ROLES, caption_cells, is_text_file, text_content
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
    if is_tensor(value):
        try:
            return Cell(_array_content(value))
        except UsageError as error:
            raise UsageError(f"{where} can't be taken: {error}") from None
    if isinstance(value, (bytes, bytearray)):
        try:
            return text_cell(value.decode("utf-8"))
        except UnicodeDecodeError as error:
            return Cell(None, error=f"{where}: the text isn't UTF-8 (at byte {error.start}); encode it as UTF-8")
    if isinstance(value, str) and (role in TEXT_ROLES or type(value).__name__ == "Text"):
        return text_cell(str(value))
    if isinstance(value, (str, os.PathLike)):
        path = os.fsdecode(value)
        if not path:
            raise UsageError(f"{where} is an empty path; write None where there is nothing")
        return FileCell(os.path.abspath(os.path.join(folder, path)))
    if isinstance(value, Mapping):
        raise UsageError(f"{where} is a dict; what is no content belongs into 'values'")
    raise UsageError(
        f"{where} is {value!r:.80}, of type {type(value).__name__}; it may be a path, a text, an array, "
        "or a list of these, one for each variation"
    )


def _array_content(value: Any) -> Content:
    payload = to_payload({"array": value})
    info = payload.layout.tensors["array"]
    data = payload.data[len(payload.layout.header) :]
    told = [info.dtype, list(info.shape), xxhash.xxh3_128_hexdigest(data.data)]
    return Content("array", json_digest("casstore array 1", told), len(data), array=value)
