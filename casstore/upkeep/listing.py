"""What is stored, as a list."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from casstore.core.handle import Handle
from casstore.core.read import values_of
from casstore.identity.recipes import Recipe
from casstore.index.bulk import chunks
from casstore.index.engine import Index
from casstore.index.fates import Contents, present_files
from casstore.index.listing import listed_variants, paths_by_id, texts_by_id
from casstore.index.recipes import RecipeRow, all_meant, known_recipes
from casstore.index.roots import known_roots
from casstore.index.variants import variants_by_id
from casstore.model import TensorInfo
from casstore.objects.payload import Layout


@dataclass(frozen=True, slots=True)
class ListedVariant:
    """Something stored under a key.

    Attributes:
        path: one of the files with this content, one that is there if there is any; None: a text, or no file is known.
        text: the text itself.
        content, recipe_digest: in hex.
        recipe: its name.
        tensors, values: by name; values as JSON.
        stored_bytes: of its objects.
        sound: as far as the index knows; otherwise the next build makes it again.
    """

    path: str | None
    text: str | None
    content: str
    recipe: str
    recipe_digest: str
    resolution: str
    variation: int
    params: str
    tensors: Mapping[str, TensorInfo]
    values: Mapping[str, Any]
    stored_bytes: int
    sound: bool


@dataclass(frozen=True, slots=True)
class Listing:
    """Variants, and how many there are: more than these if there was a limit."""

    total: int
    variants: tuple[ListedVariant, ...]


def list_variants(handle: Handle, prefix: str | None, recipe: Recipe | str | None, limit: int | None) -> Listing:
    """See `Store.variants`; `prefix`: absolute."""
    handle.check_open()
    with handle.index.read() as connection:
        known = known_recipes(connection)
        wanted = None if recipe is None else [row.id for row in all_meant(known, recipe)]
        contents: set[int] | None = None
        if prefix is not None:
            inside = Contents(connection)
            contents = set()
            for root in known_roots(connection).values():
                top = root.path.rstrip("/") + "/"
                if top.startswith(prefix) or prefix.startswith(top):
                    for file in present_files(connection, root.id, ""):
                        if file.content is not None and (top + file.place).startswith(prefix):
                            contents.update(inside.inside(file.content))
        total, found = listed_variants(connection, wanted, contents, limit)
    recipes = {row.id: row for row in known}
    listed: list[ListedVariant] = []
    for part in chunks(found):
        listed += _described(handle.index, part, recipes)
    return Listing(total, tuple(listed))


def _described(index: Index, found: Iterable[Any], recipes: Mapping[int, RecipeRow]) -> list[ListedVariant]:
    of = {each.id: each for each in found}
    ids = sorted({each.content for each in of.values()})
    with index.read() as connection:
        rows = variants_by_id(connection, list(of))
        paths, texts = paths_by_id(connection, ids), texts_by_id(connection, ids)
    listed = []
    for key, row in sorted(rows, key=lambda pair: pair[1].id):
        content, recipe = of[row.id].content, recipes.get(of[row.id].recipe)
        kind, digest, _, recipe_digest, resolution, variation, params = key
        tensors: dict[str, TensorInfo] = {}
        for part in row.parts if row.sound else ():
            tensors.update(Layout.parse(part.layout).tensors)
        listed.append(
            ListedVariant(
                path=None if kind == "text" else paths.get(content),
                text=texts.get(content),
                content="" if digest is None else digest.hex(),
                recipe="?" if recipe is None else recipe.title,
                recipe_digest=recipe_digest.hex() if recipe_digest is not None else "",
                resolution=resolution,
                variation=variation,
                params=params,
                tensors=tensors,
                values=values_of(row) if row.sound else {},
                stored_bytes=sum(part.stored_bytes for part in row.parts),
                sound=not row.damaged,
            )
        )
    return listed
