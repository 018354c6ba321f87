"""What files of a folder lack that others of it have; and what is remembered of failures. From the index only."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from casstore.core.handle import Handle
from casstore.errors import UsageError
from casstore.identity.recipes import Recipe
from casstore.index.fates import Contents, Fates, FileRow, companions, failed_with, present_files, stored_with
from casstore.index.listing import listed_failures, paths_by_id, texts_by_id
from casstore.index.recipes import RecipeRow, all_meant, known_recipes, newest_each, newest_meant
from casstore.index.roots import RootRow, is_in, known_roots, root_above
from casstore.index.states import usual_encode_us
from casstore.model import Miss, Reason

if TYPE_CHECKING:
    from sqlalchemy import Connection

NOT_TRIED = ("failed", "source unavailable")  # by a build, unless it is told to


@dataclass(frozen=True, slots=True)
class MissingFile:
    """A file that lacks what others have, and why.

    Attributes:
        path: absolute.
        recipe, digest: name and hex digest of the recipe.
        reason, detail: why it isn't stored.
    """

    path: str
    recipe: str
    digest: str
    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class MissingFiles:
    """What is missing in a folder.

    Attributes:
        folder: absolute path.
        scanned_at: when a scan last saw its root (of several the one that waits longest), ms UTC.
        files: how many were there.
        recipes: names of those that were looked for.
        missing: in order of paths, for each recipe.
        seconds: how long encoding them takes; None: nothing is known.
    """

    folder: str
    scanned_at: int
    files: int
    recipes: tuple[str, ...]
    missing: tuple[MissingFile, ...]
    seconds: float | None


@dataclass(frozen=True, slots=True)
class FailedKey:
    """A failure that is remembered, under the key that couldn't be encoded.

    Attributes:
        path: one of the files with this content; None: a text, or no file is known.
        text: the text itself.
        content, recipe_digest: in hex.
        recipe: its name.
        error_type, message: of the last attempt.
        attempts: how often it was tried.
        last_at: when it was tried last, ms UTC.
    """

    path: str | None
    text: str | None
    content: str
    recipe: str
    recipe_digest: str
    resolution: str
    variation: int
    params: str
    error_type: str
    message: str
    attempts: int
    last_at: int


def missing(handle: Handle, folder: str, recipe: Recipe | str | None) -> MissingFiles:
    """See `Store.missing`; `folder`: absolute."""
    handle.check_open()
    with handle.index.read() as connection:
        places = _places(known_roots(connection), folder)
        files = _files(connection, places)
        if not files and not any(root.path == folder for root, _ in places):
            raise UsageError(_unseen(folder))
        contents, members = Contents(connection), companions(connection)
        known = known_recipes(connection)
        held = {id_ for file in files if file.content is not None for id_ in contents.inside(file.content)}
        had = {row.id: (stored_with(connection, row.id) | failed_with(connection, row.id)) & held for row in known}
        wanted = _wanted(known, recipe, had)
        found: list[MissingFile] = []
        times: list[float | None] = []
        for row in wanted:
            same_name = [each for each in known if each.name == row.name]
            others = [each.id for each in same_name if each.id != row.id]
            fates = Fates(connection, row.id, others, contents)
            lacking = _lacking(files, fates, contents, {id_ for each in same_name for id_ in had[each.id]}, members)
            for file, miss in lacking:
                found.append(MissingFile(file.place, row.title, row.digest, miss.reason, miss.detail))
            tried = {file.content for file, miss in lacking if miss.reason not in NOT_TRIED}
            if tried:
                usual = usual_encode_us(connection, bytes.fromhex(row.digest), row.name)
                times.append(None if usual is None else len(tried) * usual / 1e6)
    seconds = None if None in times else sum(each for each in times if each is not None)
    titles = tuple(row.title for row in wanted)
    scanned_at = min(root.last_seen_at for root, _ in places)
    return MissingFiles(folder, scanned_at, len(files), titles, tuple(found), seconds)


def _places(known: dict[str, RootRow], folder: str) -> list[tuple[RootRow, str]]:
    """The root that holds a folder, and where the folder is in it; or the roots that lie in the folder."""
    above = root_above(known, folder)
    found = [(row, "") for row in known.values() if is_in(row.path, folder)] if above is None else [above]
    if not found:
        raise UsageError(_unseen(folder))
    return found


def _files(connection: Connection, places: Sequence[tuple[RootRow, str]]) -> list[FileRow]:
    """The files that are there; their places are absolute."""
    return sorted(
        (
            file._replace(relpath=os.path.join(root.path, file.relpath) if file.relpath else root.path)
            for root, inside in places
            for file in present_files(connection, root.id, inside)
        ),
        key=lambda file: file.place,
    )


def _unseen(folder: str) -> str:
    return f"no scan has seen files in {folder}; casstore roots ls lists the folders that the store knows"


def _wanted(known: Sequence[RecipeRow], recipe: Recipe | str | None, had: dict[int, set[int]]) -> list[RecipeRow]:
    """The recipes that are looked for; unless one is named, the newest of each name that the folder has anything of."""
    if isinstance(recipe, Recipe):
        return all_meant(known, recipe)
    if recipe is not None:
        return [newest_meant(known, recipe)]
    return [row for row in newest_each([row for row in known if had[row.id]]) if not row.retired]


def _lacking(
    files: Sequence[FileRow], fates: Fates, contents: Contents, had: set[int], members: set[int]
) -> list[tuple[FileRow, Miss]]:
    """The files that should have something and don't: those whose endings files with something have.

    Args:
        files: of the folder.
        fates: of all contents.
        contents: what files hold.
        had: row ids of the contents of which there is something, with whatever recipe of the name.
        members: row ids of contents that only ever go with others.
    """
    as_file = {_ending(file) for file in files if file.content in had}
    as_text = {_ending(file) for file in files if not had.isdisjoint(contents.texts.get(file.content or 0, ()))}
    found = []
    for file in files:
        ending = _ending(file)
        if ending not in as_file | as_text:
            continue
        if file.error is not None or file.content is None:
            found.append((file, Miss("source unavailable", file.error or "")))
            continue
        meant = contents.texts.get(file.content, ()) if ending in as_text else ()
        if ending in as_file and file.content not in members:
            meant = (file.content, *meant)
        miss = next((miss for id_ in meant if (miss := fates.miss(id_)) is not None), None)
        if miss is not None:
            found.append((file, miss))
    return found


def _ending(file: FileRow) -> str:
    return os.path.splitext(file.name)[1].lower()


def failures(handle: Handle, folder: str | None, recipe: Recipe | str | None) -> list[FailedKey]:
    """See `Store.failures`; `folder`: absolute."""
    handle.check_open()
    with handle.index.read() as connection:
        known = known_recipes(connection)
        recipes = {row.id: row for row in all_meant(known, recipe)}
        inside = None
        if folder is not None:
            contents = Contents(connection)
            files = _files(connection, _places(known_roots(connection), folder))
            inside = {id_ for file in files if file.content is not None for id_ in contents.inside(file.content)}
        rows = listed_failures(connection, recipes, inside)
        ids = sorted({row.content for row in rows})
        paths, texts = paths_by_id(connection, ids), texts_by_id(connection, ids)
    return [
        FailedKey(
            None if row.kind == "text" else paths.get(row.content),
            texts.get(row.content),
            row.digest.hex(),
            recipes[row.recipe].title,
            recipes[row.recipe].digest,
            *row[4:],
        )
        for row in rows
    ]
