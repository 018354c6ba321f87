"""Rows that are given: as dicts, or as a table in a file (.jsonl, .csv, .tsv)."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from casstore import fsio
from casstore.core.handle import Handle
from casstore.errors import SourceNotFoundError, UsageError
from casstore.identity.contents import TEXT_ROLES
from casstore.sources.captions import check_reader
from casstore.sources.cells import Asked, FileCell, ask, settle
from casstore.sources.inputs import Inputs, Row

Given = Iterable[Mapping[str, Any]] | str | os.PathLike[str]
"""Rows as dicts, or the path of a table."""

VALUE = "value."  # what the name of a row value begins with, as a column of a table


class _Parsed(NamedTuple):
    """A row whose files haven't been looked at yet; `where` names it in messages."""

    where: str
    sample: str | None
    group: str
    weight: float
    values: dict[str, Any]
    roles: dict[str, Asked]

    @property
    def first_path(self) -> str | None:
        return next((one.path for cells in self.roles.values() for one in cells if isinstance(one, FileCell)), None)


def make_inputs(handle: Handle, rows: Given, *, reader: str = "caption-1") -> Inputs:
    """Rows of what is given; files are looked up all at once.

    Args:
        handle: the open store.
        rows: dicts of "sample", "group", "weight", "values" and roles; or the path of a table of these.
        reader: what makes texts of text files.

    Raises:
        UsageError: a row that can't be meant; the message names it. A file that can't be read is a cell with an error.
        SourceNotFoundError: the table can't be read.
    """
    check_reader(reader)
    parsed = [_row(where, given) for where, given in _numbered(rows)]
    asked = [(role, cells) for row in parsed for role, cells in row.roles.items()]
    settled = iter(settle(handle, asked, reader))
    samples = _samples(parsed)
    made = [
        Row(sample, {role: cells for role in row.roles if (cells := next(settled))}, row.group, row.weight, row.values)
        for row, sample in zip(parsed, samples, strict=True)
    ]
    seen: dict[tuple[str, str], str] = {}
    for row, parsed_row in zip(made, parsed, strict=True):
        other = seen.setdefault((row.group, row.sample), parsed_row.where)
        if other != parsed_row.where:
            where = f" of group {row.group!r}" if row.group else ""
            raise UsageError(
                f"{other} and {parsed_row.where}{where} are both called {row.sample!r}; "
                "give one another 'sample' or 'group'"
            )
    return Inputs(made)


def read_table(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The rows of a table as dicts; paths in it, which are relative to the file, are absolute then.

    `.jsonl`: a JSON object per line. `.csv`, `.tsv`: the first line has the names; an empty cell is nothing there; a
    column `value.x` is the row value x. UTF-8, with or without a BOM.

    Raises:
        SourceNotFoundError: it can't be read.
        UsageError: it isn't such a table; the message names the line.
    """
    return [row for _, row in _table(os.fspath(path))]


# -- dicts -------------------------------------------------------------------------------------------------------------


def _numbered(rows: Given) -> Iterable[tuple[str, Any]]:
    if isinstance(rows, (str, os.PathLike)):
        return _table(os.fspath(rows))
    if isinstance(rows, Mapping) or not isinstance(rows, Iterable):
        raise UsageError(f"inputs are a list of dicts, one for each row, or a path; not {type(rows).__name__}")
    return ((f"rows[{number}]", row) for number, row in enumerate(rows))


def _row(where: str, given: object) -> _Parsed:
    if not isinstance(given, Mapping):
        raise UsageError(
            f"{where}: this is of type {type(given).__name__}; a row is a dict such as {{'image': 'a.jpg'}}"
        )
    roles: dict[str, Asked] = {}
    values = given.get("values")
    if values is not None and not isinstance(values, Mapping):
        raise UsageError(f"{where}: 'values' is of type {type(values).__name__}; it is a dict of what the row is")
    facts = dict(values or {})
    for key, value in given.items():
        if not isinstance(key, str) or not key:
            raise UsageError(f"{where}: the key {key!r} is no name")
        if key.startswith(VALUE):
            facts[key.removeprefix(VALUE)] = value
        elif key not in ("sample", "group", "weight", "values"):
            try:
                cells = ask(key, value, "")
            except UsageError as error:
                raise UsageError(f"{where}: {error}") from None
            if cells:
                roles[key] = cells
    sample = given.get("sample")
    return _Parsed(
        where,
        None if sample is None else _name(where, "sample", sample),
        _name(where, "group", given.get("group")),
        _weight(where, given.get("weight")),
        facts,
        roles,
    )


def _name(where: str, key: str, value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise UsageError(f"{where}: {key!r} is {value!r:.80}; it is a text")
    return str(value)


def _weight(where: str, value: object) -> float:
    if value is None:
        return 1.0
    try:
        number = math.nan if isinstance(value, (bool, str)) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 <= number < math.inf:
        raise UsageError(f"{where}: 'weight' is {value!r:.80}; it is a number from 0 on")
    return number


def _samples(rows: Sequence[_Parsed]) -> list[str]:
    """The names of rows: where none is given that of the first file, below the folder that all of these share."""
    nameless = {number: row.first_path for number, row in enumerate(rows) if row.sample is None}
    folders = {os.path.dirname(path) for path in nameless.values() if path is not None}
    shared = os.path.commonpath(folders).rstrip("/") + "/" if folders else ""
    found = []
    for number, row in enumerate(rows):
        path = nameless.get(number)
        found.append(row.sample if row.sample is not None else str(number) if path is None else path[len(shared) :])
    return found


# -- tables ------------------------------------------------------------------------------------------------------------


def _table(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(which row it is, the row) of each row of a table."""
    ending = os.path.splitext(path)[1].lower()
    if ending not in (".jsonl", ".csv", ".tsv"):
        raise UsageError(f"{path} is no table; give a .jsonl, .csv or .tsv file")
    try:
        with open(path, "rb") as stream:
            data = stream.read()
    except (OSError, ValueError) as error:
        told = fsio.reason(error) if isinstance(error, OSError) else str(error)
        raise SourceNotFoundError(f"can't read {path!r}: {told}") from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise UsageError(f"{path}, line {line}: this isn't UTF-8; save it as UTF-8") from None
    folder = os.path.dirname(os.path.abspath(path))
    rows = _json_lines(path, text) if ending == ".jsonl" else _separated(path, text, "\t" if ending == ".tsv" else ",")
    for where, row in rows:
        yield where, {key: _located(key, value, folder) for key, value in row.items()}


def _located(key: str, value: Any, folder: str) -> Any:
    """A cell of a table with its paths made absolute."""
    if key in ("sample", "group", "weight", "values") or key in TEXT_ROLES or key.startswith(VALUE):
        return value
    if isinstance(value, list):
        return [_located(key, one, folder) for one in value]
    return Path(folder, value) if isinstance(value, str) and value else value


def _json_lines(path: str, text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            row = json.loads(line, object_pairs_hook=_unique)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{where}: this isn't JSON: {error}") from None
        if not isinstance(row, dict):
            raise UsageError(f'{where}: this isn\'t a JSON object; each line is one, such as {{"image": "a.jpg"}}')
        yield where, row


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands there twice")
    return found


def _separated(path: str, text: str, delimiter: str) -> Iterator[tuple[str, dict[str, Any]]]:
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    names: list[str] | None = None
    while True:
        try:
            cells = next(lines, None)
        except csv.Error as error:
            raise UsageError(f"{path}, line {lines.line_num}: this can't be read: {error}") from None
        if cells is None:
            return
        where = f"{path}, line {lines.line_num}"
        if not cells:
            continue
        if names is None:
            names = cells
            if len(set(names)) < len(names) or "" in names or "values" in names:
                raise UsageError(
                    f"{where}: the first line has a name for each column, each its own, 'value.x' for a row value; "
                    f"not {names}"
                )
            continue
        if len(cells) > len(names):
            raise UsageError(f"{where}: there are {len(cells)} cells here, but {len(names)} names in the first line")
        row: dict[str, Any] = {name: cell for name, cell in zip(names, cells, strict=False) if cell}
        if "weight" in row:
            try:
                row["weight"] = float(row["weight"])
            except ValueError:
                raise UsageError(f"{where}: 'weight' is {row['weight']!r}; it is a number from 0 on") from None
        yield where, row
