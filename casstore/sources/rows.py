"""The rows of a scanned folder: its pictures, each with the files that belong to it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from casstore.core.handle import Handle
from casstore.errors import UsageError
from casstore.model import Content
from casstore.sources.captions import caption_cells, check_reader, is_text_file
from casstore.sources.cells import Asked, ask, settle, text_cell
from casstore.sources.inputs import Cell, Row
from casstore.sources.links import File, Finder, Link, Rule, claims, join, parse_links

Cells = tuple[Cell, ...]


def make_rows(
    handle: Handle,
    root: str,
    inside: str,
    prefix: str,
    files: Sequence[File],
    *,
    extensions: Sequence[str],
    links: Mapping[str, Link] | None = None,
    reader: str = "caption-1",
    primary: str = "image",
) -> list[Row]:
    """One row per picture, with what its rules find.

    Files that could belong to a picture are none themselves, there or not. Where there are no pictures at all, the
    files of the first rule are the rows: a folder may hold nothing but texts.

    Args:
        handle: the open store.
        root: absolute path of the root.
        inside: path of the scanned folder below it; "" for the root itself.
        prefix: put in front of the names of the rows.
        files: what is at or below `inside`, with the endings of pictures and rules, in the order of paths' bytes.
        extensions: endings of pictures, in lower case.
        links: {role: template or function}.
        reader: what makes texts of text files.
        primary: the role of the pictures.

    Raises:
        UsageError: a rule or reader that can't be meant.
    """
    check_reader(reader)
    rules = parse_links(links, primary)
    taken = tuple(extensions)
    chosen = [
        file
        for file in files
        if file.is_folder or (file.name.lower().endswith(taken) and not claims(rules, file.relpath, file.name, taken))
    ]
    first = next((rule for rule in rules if rule.alternatives), None)
    if first is not None and all(file.is_folder for file in chosen):
        chosen = [file for file in files if file.is_folder or claims([first], file.relpath, file.name, taken)]
        primary, rules = first.role, tuple(rule for rule in rules if rule is not first)
    folder = _Folder(handle, root, reader, files, rules)
    roles: list[dict[str, Cells]] = [{primary: cells} for cells in folder.cells_of(primary, chosen)]
    skipped = len(inside) + 1 if inside else 0
    samples = [prefix + join(file.relpath, file.name)[skipped:] for file in chosen]

    def so_far(number: int) -> Row:
        return Row(samples[number], dict(roles[number]))

    linked = [number for number, file in enumerate(chosen) if not file.is_folder]
    for rule in rules:
        for number, cells in zip(linked, folder.linked(rule, chosen, linked, so_far), strict=True):
            if cells:
                roles[number][rule.role] = cells
    return [Row(sample, cells) for sample, cells in zip(samples, roles, strict=True)]


class _Folder:
    """The files of a scanned folder, and what rules find among them."""

    def __init__(self, handle: Handle, root: str, reader: str, files: Sequence[File], rules: Sequence[Rule]) -> None:
        self._handle = handle
        self._root = root
        self._start = root.rstrip("/") + "/"
        self._reader = reader
        wanted = {alternative.ending.lower() for rule in rules for alternative in rule.alternatives}
        suffixes = tuple(wanted)
        self._finder = Finder(
            file for file in files if not file.is_folder and wanted and file.name.lower().endswith(suffixes)
        )

    def cells_of(self, role: str, files: Sequence[File | None]) -> list[Cells]:
        """The cells of files under a role; none for a file that isn't there or holds no text."""
        found: list[Cells] = []
        texts: list[tuple[str, Content]] = []
        waiting: list[int] = []  # where in `found` the texts go
        for file in files:
            if file is None:
                found.append(())
            elif file.content is not None and file.error is None and is_text_file(role, file.name):
                waiting.append(len(found))
                texts.append((self._path(file), file.content))
                found.append(())
            else:
                found.append((Cell(None if file.error else file.content, self._path(file), file.error),))
        if texts:
            for number, cells in zip(waiting, caption_cells(self._handle, texts, self._reader), strict=True):
                found[number] = cells
        return found

    def linked(
        self, rule: Rule, pictures: Sequence[File], numbers: Sequence[int], so_far: Callable[[int], Row]
    ) -> list[Cells]:
        """What a rule finds for the pictures of these numbers."""
        if rule.function is not None:
            asked = [(rule.role, self._call(rule, rule.function, pictures[n], so_far(n))) for n in numbers]
            return settle(self._handle, asked, self._reader)
        if rule.text is not None:
            return [(text_cell(rule.text_of(self._place(pictures[n]), pictures[n].name)),) for n in numbers]
        found = [self._finder.find(rule, pictures[n].relpath, pictures[n].name) for n in numbers]
        cells = self.cells_of(rule.role, found)
        if rule.optional:
            return cells
        return [one or (_nothing(rule, pictures[n], file),) for one, n, file in zip(cells, numbers, found, strict=True)]

    def _call(self, rule: Rule, function: Callable[[Row], Any], picture: File, row: Row) -> Asked:
        try:
            return ask(rule.role, function(row), self._place(picture))
        except UsageError as error:
            return (Cell(None, error=f"what the link of {rule.role!r} returned can't be taken: {error}"),)
        except Exception as error:  # one picture's failure isn't that of the others
            return (Cell(None, error=f"the link of {rule.role!r} raised {type(error).__name__}: {error}"),)

    def _place(self, file: File) -> str:
        return os.path.join(self._root, file.relpath) if file.relpath else self._root

    def _path(self, file: File) -> str:
        return self._start + join(file.relpath, file.name)


def _nothing(rule: Rule, picture: File, found: File | None) -> Cell:
    if found is None:
        return Cell(None, error=rule.absent(picture.name))
    return Cell(None, error=f"no {rule.role}: {found.name} holds no text")
