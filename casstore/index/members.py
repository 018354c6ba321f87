"""What a content is stored together with."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import ColumnElement, literal_column, select

from casstore.index.bulk import AnyConnection, ByDigest
from casstore.index.tables import directories, hash_members, hashes, recipes, roots, sources, texts, variants
from casstore.model import Content


class Form(NamedTuple):
    """One way in which a content is stored with some recipe.

    Attributes:
        inputs: digest of the composite, or of the content itself where it is alone.
    """

    recipe: bytes
    name: str
    resolution: str
    variation: int
    params: str
    inputs: bytes


class StoredMember(NamedTuple):
    """A content that is part of a composite; the primary is one too."""

    role: str
    ordinal: int
    digest: bytes
    kind: str


TEXT: ColumnElement[str] = literal_column("'text'")
COMPOSITE: ColumnElement[str] = literal_column("'composite'")
"""Kinds as part of a statement's text, since the parameters of a `ByDigest` are its digests."""

_inputs = hashes.alias("inputs")
_member = hashes.alias("member")

# Only the content is asked for: a condition on the recipe would make SQLite walk all variants of that recipe.
_forms = ByDigest(
    lambda digests: (
        select(
            hashes.c.digest,
            hashes.c.kind,
            recipes.c.digest,
            recipes.c.name,
            variants.c.resolution,
            variants.c.variation,
            variants.c.params,
            _inputs.c.digest,
        )
        .join_from(variants, hashes, hashes.c.id == variants.c.hash_id)
        .join(recipes, recipes.c.id == variants.c.recipe_id)
        .join(_inputs, _inputs.c.id == variants.c.inputs_id)
        .where(hashes.c.digest.in_(digests))
    )
)
_members = ByDigest(
    lambda digests: (
        select(hashes.c.digest, hash_members.c.role, hash_members.c.ordinal, _member.c.digest, _member.c.kind)
        .join_from(hashes, hash_members, hash_members.c.hash_id == hashes.c.id)
        .join(_member, _member.c.id == hash_members.c.member_id)
        .where(hashes.c.digest.in_(digests), hashes.c.kind == COMPOSITE)
    )
)
_files = ByDigest(
    lambda digests: (
        select(hashes.c.digest, roots.c.path, directories.c.relpath, sources.c.name)
        .join_from(hashes, sources, sources.c.hash_id == hashes.c.id)
        .join(directories, directories.c.id == sources.c.directory_id)
        .join(roots, roots.c.id == directories.c.root_id)
        .where(hashes.c.digest.in_(digests))
    )
)
_texts = ByDigest(
    lambda digests: (
        select(hashes.c.digest, texts.c.text)
        .join_from(hashes, texts, texts.c.hash_id == hashes.c.id)
        .where(hashes.c.digest.in_(digests), hashes.c.kind == TEXT)
    )
)


def forms_of(connection: AnyConnection, digests: Sequence[bytes]) -> dict[bytes, list[Form]]:
    """{content digest: how it is stored, with whatever recipe}."""
    found: dict[bytes, list[Form]] = defaultdict(list)
    for digest, _, *form in _forms.rows(connection, digests) if digests else ():
        found[digest].append(Form(*form))
    return found


def forms_with(connection: AnyConnection, content: Content, recipe: bytes) -> list[Form]:
    """How one content is stored with the recipe of this digest."""
    rows = _forms.rows(connection, [content.digest])
    return sorted(form for _, kind, *rest in rows if kind == content.kind and (form := Form(*rest)).recipe == recipe)


def composites(connection: AnyConnection, digests: Sequence[bytes]) -> dict[bytes, list[StoredMember]]:
    """{digest: what it consists of, by role and ordinal} of those of the digests that are composites."""
    found: dict[bytes, list[StoredMember]] = defaultdict(list)
    for digest, *member in _members.rows(connection, digests) if digests else ():
        found[digest].append(StoredMember(*member))
    return {digest: sorted(members) for digest, members in found.items()}


def find_texts(connection: AnyConnection, digests: Sequence[bytes]) -> dict[bytes, str]:
    """{digest: text} of those that the index has."""
    return dict(_texts.rows(connection, digests)) if digests else {}


def described(connection: AnyConnection, digests: Sequence[bytes]) -> dict[bytes, str]:
    """{content digest: the first of its files, or its text}, for people; what has neither is left out."""
    found = {digest: repr(text) for digest, text in find_texts(connection, digests).items()}
    for digest, root, relpath, name in (
        sorted(_files.rows(connection, digests), key=repr, reverse=True) if digests else ()
    ):
        found[digest] = os.path.join(*(os.fsdecode(part) for part in (root, relpath, name)))
    return found
