"""Captions: the texts that a reader makes of a file. They are the identity of what is encoded; the file isn't."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from casstore.core.handle import Handle
from casstore.errors import CasstoreError, TextError, UsageError
from casstore.identity.contents import TEXT_ROLES, text_content
from casstore.identity.digests import file_digest
from casstore.index.bulk import chunks
from casstore.index.captions import save_texts, texts_of
from casstore.model import Content
from casstore.sources.inputs import Cell
from casstore.sources.links import Link, parse_links
from casstore.sources.read import Opened

READ_THREADS = 4
COMMIT_FILES = 4096  # what was read is committed this often, so that a stop keeps it

TEXT_ENDINGS = (".txt", ".caption")
"""Files with these endings are read as texts under any role but "image"."""


def is_text_file(role: str, path: str) -> bool:
    """Whether a reader makes texts of a file under a role."""
    return role in TEXT_ROLES or (role != "image" and path.lower().endswith(TEXT_ENDINGS))


def text_endings(links: Mapping[str, Link]) -> tuple[str, ...]:
    """Endings, in lower case, of the files of which rules make texts."""
    found = {
        alternative.ending.lower()
        for rule in parse_links(links)
        for alternative in rule.alternatives
        if is_text_file(rule.role, alternative.ending)
    }
    return tuple(sorted(found))


# -- readers -----------------------------------------------------------------------------------------------------------
# What a reader makes of the same bytes never changes: another rule is another reader with another name.


def _decoded(data: bytes) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TextError(f"isn't UTF-8 (at byte {error.start}); save it as UTF-8") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _trimmed(text: str) -> str:
    """Without byte order marks and blanks around it, in whatever order they stand."""
    while True:
        shorter = text.strip().removeprefix("\ufeff")
        if shorter == text:
            return text
        text = shorter


def _caption_1(data: bytes) -> tuple[str, ...]:
    return (_trimmed(_decoded(data)),)


def _lines_1(data: bytes) -> tuple[str, ...]:
    return tuple(line for line in map(_trimmed, _decoded(data).split("\n")) if line)


READERS: dict[str, Callable[[bytes], tuple[str, ...]]] = {"caption-1": _caption_1, "lines-1": _lines_1}
"""{name: the texts that it makes of a file's bytes}.

caption-1: the file is one text: UTF-8, line ends become \\n, BOM and outer blanks go. An empty file is the empty text.
lines-1: each line that isn't blank is a text, one for each variation; blanks around each go.
"""


def check_reader(reader: object) -> str:
    """The name of a reader.

    Raises:
        UsageError: there is none of that name.
    """
    if not isinstance(reader, str) or reader not in READERS:
        raise UsageError(f"there is no reader {reader!r}; take one of {', '.join(READERS)}")
    return reader


# -- files -------------------------------------------------------------------------------------------------------------


class _Read(NamedTuple):
    """A file as it was just read: its content and texts, or why there are none."""

    content: Content | None
    texts: tuple[Content, ...] = ()
    error: str | None = None


def caption_cells(handle: Handle, files: Sequence[tuple[str, Content]], reader: str) -> list[tuple[Cell, ...]]:
    """The texts of files. Only files whose content this reader hasn't read yet are opened.

    A file that has changed meanwhile gives its new text, which is kept under its new content.

    Args:
        handle: the open store.
        files: (path, content when it was last looked at).
        reader: its name.

    Returns:
        For each file its texts; nothing if it holds none; one cell with an error if it can't be read.

    Raises:
        UsageError: there is no such reader.
    """
    check_reader(reader)
    with handle.index.read() as connection:
        known = texts_of(connection, (content.digest for _, content in files), reader)
    alone: dict[int, _Read] = {}  # what can't be said of all files of the same content
    waiting = [place for place, (_, content) in enumerate(files) if content.digest not in known]
    with ThreadPoolExecutor(READ_THREADS, thread_name_prefix="casstore-text") as pool:
        # One file of each content first; of the others only those whose first one is no longer what it was.
        for only_first in (True, False):
            places = waiting
            if only_first:
                places = sorted({files[place][1].digest: place for place in reversed(waiting)}.values())
            for part in chunks(places, COMMIT_FILES):
                read = list(pool.map(lambda place: _read(files[place][0], reader), part))
                _save(handle, read, reader)
                for place, result in zip(part, read, strict=True):
                    if result.error is None and result.content == files[place][1]:
                        known[files[place][1].digest] = result.texts
                    else:
                        alone[place] = result
            waiting = [place for place in waiting if place not in alone and files[place][1].digest not in known]
    return [
        _cells(path, alone[place]) if place in alone else tuple([Cell(text, path) for text in known[content.digest]])
        for place, (path, content) in enumerate(files)
    ]


def _cells(path: str, read: _Read) -> tuple[Cell, ...]:
    if read.error is not None:
        return (Cell(None, path, read.error),)
    return tuple(Cell(text, path) for text in read.texts)


def _read(path: str, reader: str) -> _Read:
    try:
        data = _bytes(path)
    except CasstoreError as error:
        return _Read(None, error=str(error))
    content = Content("file", file_digest(data), len(data))
    try:
        return _Read(content, tuple(text_content(text) for text in READERS[reader](data)))
    except TextError as error:
        return _Read(content, error=f"{path} {error}")


def texts_now(path: str, reader: str) -> tuple[Content, ...]:
    """What a reader makes of a file as it is now; nothing is noted.

    Raises:
        CasstoreError: it can't be read.
    """
    read = _read(path, check_reader(reader))
    if read.error is not None:
        raise TextError(read.error)
    return read.texts


def _bytes(path: str) -> bytes:
    with Opened(path) as file:
        return file.read()


def _save(handle: Handle, read: Sequence[_Read], reader: str) -> None:
    found = [(r.content, reader, r.texts) for r in read if r.content is not None and r.error is None]
    if found and not handle.read_only:
        with handle.index.write() as connection:
            save_texts(connection, found)
