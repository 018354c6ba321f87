"""Why a key isn't stored, from what is stored beside it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Select, select

from casstore.identity.keys import NO_PARAMS, Key
from casstore.index.bulk import ByDigest, chunks
from casstore.index.members import TEXT, Form, StoredMember, composites, forms_of
from casstore.index.tables import failures, hash_members, hashes, recipes, source_contents, sources, variants
from casstore.model import Miss

PICTURE_FAILURE = "PictureError"
"""`failures.error_type` of pictures that can't be decoded: they aren't tried again until their bytes change."""

# A text is no file, but the members of a caption file are the texts that were read from it.
_earlier = hashes.alias("earlier")
_file_members = hash_members.alias("file_members")
_earlier_members = hash_members.alias("earlier_members")


def explain_misses(connection: Connection, keys: Sequence[Key]) -> dict[bytes, Miss]:
    """{key digest: why it isn't stored}, for keys that have no row.

    In this order: it failed before ("failed" if it isn't to be tried again by itself, else "retry"); the same contents
    are stored in another variation, with other params or at another resolution; a member's file held other content
    before; the primary's file did; another recipe of the same name is stored; it is new.
    """
    failed = _failures(connection, keys)
    forms = forms_of(connection, list({key.primary.digest for key in keys}))
    edits = _member_edits(connection, keys, forms)
    before = _variants_of_earlier_contents(connection, keys)
    found = {}
    for key in keys:
        if key.digest in failed:
            kind, message = failed[key.digest]
            found[key.digest] = Miss("failed" if kind == PICTURE_FAILURE else "retry", message)
        else:
            primary = key.primary.digest
            found[key.digest] = _from_relatives(key, forms[primary], edits.get(key.digest), before[primary])
    return found


def _from_relatives(key: Key, forms: list[Form], edited: str | None, before: set[tuple[bytes, str]]) -> Miss:
    same = [form for form in forms if form.recipe == key.recipe.digest and form.inputs == key.inputs.digest]
    here = [form for form in same if form.resolution == key.resolution]
    if any(form.params == key.params for form in here):
        return Miss("variation", "another variation is stored")
    if here:
        told = sorted({form.params for form in here})
        return Miss("variation", "stored with " + " and ".join("no params" if p == NO_PARAMS else p for p in told))
    if same:
        resolutions = sorted({form.resolution for form in same})
        return Miss("resolution", "stored at " + ", ".join(resolution or "full size" for resolution in resolutions))
    if edited is not None:
        return Miss("member edited", edited)
    if any(recipe == key.recipe.digest for recipe, _ in before):
        return Miss("edited", "the file was edited since its last encoding")
    others = {form.name for form in forms if form.recipe != key.recipe.digest} | {name for _, name in before}
    if key.recipe.name in others:
        return Miss("recipe", f"stored with another recipe named {key.recipe.name!r}")
    return Miss("new")


def _failures(connection: Connection, keys: Sequence[Key]) -> dict[bytes, tuple[str, str]]:
    found = {}
    for part in chunks([key.digest for key in keys]):
        query = select(failures.c.key, failures.c.error_type, failures.c.message).where(failures.c.key.in_(part))
        found.update({digest: (kind, message) for digest, kind, message in connection.execute(query)})
    return found


def _member_edits(connection: Connection, keys: Sequence[Key], forms: Mapping[bytes, list[Form]]) -> dict[bytes, str]:
    """{key digest: which of its members were edited}: the same primary is stored with what their files held before."""
    beside: dict[bytes, tuple[Key, list[Form]]] = {}
    for key in keys:
        asked = (key.recipe.digest, key.resolution, key.variation, key.params)
        alike = [f for f in forms[key.primary.digest] if (f.recipe, f.resolution, f.variation, f.params) == asked]
        if key.members and alike:
            beside[key.digest] = key, alike
    if not beside:
        return {}
    stored = composites(connection, list({form.inputs for _, alike in beside.values() for form in alike}))
    before = _earlier_contents(connection, {m.content.digest for key, _ in beside.values() for m in key.members})
    found = {}
    for key, alike in beside.values():
        roles = {role for form in alike for role in _edited(key, stored.get(form.inputs, ()), before)}
        if roles:
            found[key.digest] = f"edited since its last encoding: {', '.join(sorted(roles))}"
    return found


def _edited(key: Key, stored: Iterable[StoredMember], before: Mapping[bytes, set[bytes]]) -> set[str]:
    now = {member[:2]: member.content.digest for member in key.members}
    return {
        member.role
        for member in stored
        if member.digest != now.get(member[:2]) and member.digest in before.get(now.get(member[:2], b""), ())
    }


def _of_files(*columns: Any) -> Select[Any]:
    """Earlier contents of the files that hold a content now, as `source_contents.hash_id`."""
    return (
        select(*columns)
        .join_from(hashes, sources, sources.c.hash_id == hashes.c.id)
        .join(source_contents, source_contents.c.source_id == sources.c.id)
    )


def _of_texts(*columns: Any) -> Select[Any]:
    """Texts that the caption files with a text held earlier, as `_earlier_members.member_id`."""
    return (
        select(*columns)
        .join_from(hashes, _file_members, _file_members.c.member_id == hashes.c.id)
        .join(sources, sources.c.hash_id == _file_members.c.hash_id)
        .join(source_contents, source_contents.c.source_id == sources.c.id)
        .join(
            _earlier_members,
            (_earlier_members.c.hash_id == source_contents.c.hash_id)
            & (_earlier_members.c.role == _file_members.c.role),
        )
    )


_encoded_before = [
    ByDigest(
        lambda digests: (
            _of_files(hashes.c.digest, recipes.c.digest, recipes.c.name)
            .join(variants, variants.c.hash_id == source_contents.c.hash_id)
            .join(recipes, recipes.c.id == variants.c.recipe_id)
            .where(hashes.c.digest.in_(digests))
            .distinct()
        )
    ),
    ByDigest(
        lambda digests: (
            _of_texts(hashes.c.digest, recipes.c.digest, recipes.c.name)
            .join(variants, variants.c.hash_id == _earlier_members.c.member_id)
            .join(recipes, recipes.c.id == variants.c.recipe_id)
            .where(hashes.c.digest.in_(digests), hashes.c.kind == TEXT)
            .distinct()
        )
    ),
]
_held_before = [
    ByDigest(
        lambda digests: (
            _of_files(hashes.c.digest, _earlier.c.digest)
            .join(_earlier, _earlier.c.id == source_contents.c.hash_id)
            .where(hashes.c.digest.in_(digests))
        )
    ),
    ByDigest(
        lambda digests: (
            _of_texts(hashes.c.digest, _earlier.c.digest)
            .join(_earlier, _earlier.c.id == _earlier_members.c.member_id)
            .where(hashes.c.digest.in_(digests), hashes.c.kind == TEXT)
            .distinct()
        )
    ),
]


def _variants_of_earlier_contents(connection: Connection, keys: Sequence[Key]) -> dict[bytes, set[tuple[bytes, str]]]:
    """{present content digest: {(recipe digest, recipe name) of what its files held before}}"""
    found: dict[bytes, set[tuple[bytes, str]]] = defaultdict(set)
    files, texts = _encoded_before
    wanted = {key.primary.digest: key.primary.kind for key in keys}
    for query, digests in ((files, list(wanted)), (texts, [d for d, kind in wanted.items() if kind == "text"])):
        for digest, recipe, name in query.rows(connection, digests) if digests else ():
            found[digest].add((recipe, name))
    return found


def _earlier_contents(connection: Connection, digests: set[bytes]) -> dict[bytes, set[bytes]]:
    """{present content digest: digests of what its files held before}"""
    found: dict[bytes, set[bytes]] = defaultdict(set)
    for query in _held_before:
        for digest, earlier in query.rows(connection, list(digests)) if digests else ():
            found[digest].add(earlier)
    return found
