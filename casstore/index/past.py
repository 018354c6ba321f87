"""What the index remembers of a file: what it held before, what was made of that, and what became of its members."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, Integer, literal_column, select

from casstore.index.bulk import AnyConnection, ByDigest
from casstore.index.members import TEXT
from casstore.index.roots import known_roots, root_above
from casstore.index.tables import (
    directories,
    failures,
    hash_members,
    hashes,
    objects,
    recipes,
    runs,
    source_contents,
    sources,
    variant_parts,
    variants,
)


class Earlier(NamedTuple):
    """A content that a file held before: its digest, its size, and when a scan found another one in its place."""

    digest: bytes
    nbytes: int
    until: int


class Story(NamedTuple):
    """How a variant came about: why, in which run, when (ms UTC), and how long it took."""

    reason: str
    encode_us: int | None
    run: int | None
    at: int | None


class FailureRow(NamedTuple):
    """What couldn't be encoded: its key as plain values, and how it failed."""

    kind: str
    content: bytes
    inputs: bytes
    recipe: bytes
    resolution: str
    variation: int
    params: str
    error_type: str
    message: str
    attempts: int
    last_at: int


class TextIn(NamedTuple):
    """A text that a reader found in a file."""

    reader: str
    ordinal: int
    digest: bytes


# Constants as part of the statements' text, since the parameters of a `ByDigest` are its digests.
_FILE: ColumnElement[str] = literal_column("'file'")
_inputs = hashes.alias("inputs")
_member = hashes.alias("member")
_earlier = hashes.alias("earlier")
_file_members = hash_members.alias("file_members")
_later_members = hash_members.alias("later_members")

_stories = ByDigest(
    lambda ids: (
        select(variants.c.id, variants.c.reason, variants.c.encode_us, runs.c.id, runs.c.started_at)
        .join_from(variants, runs, runs.c.id == variants.c.run_id, isouter=True)
        .where(variants.c.id.in_(ids))
    ),
    Integer,
)
_made = ByDigest(
    lambda ids: (
        select(variant_parts.c.variant_id, objects.c.created_at)
        .join_from(variant_parts, objects, objects.c.id == variant_parts.c.object_id)
        .where(variant_parts.c.variant_id.in_(ids))
    ),
    Integer,
)
_failures = ByDigest(
    lambda digests: (
        select(
            hashes.c.kind,
            hashes.c.digest,
            _inputs.c.digest,
            recipes.c.digest,
            failures.c.resolution,
            failures.c.variation,
            failures.c.params,
            failures.c.error_type,
            failures.c.message,
            failures.c.attempts,
            failures.c.last_at,
        )
        .join_from(failures, hashes, hashes.c.id == failures.c.hash_id)
        .join(_inputs, _inputs.c.id == failures.c.inputs_id)
        .join(recipes, recipes.c.id == failures.c.recipe_id)
        .where(hashes.c.digest.in_(digests))
    )
)
_texts_in = ByDigest(
    lambda digests: (
        select(hashes.c.digest, hash_members.c.role, hash_members.c.ordinal, _member.c.digest)
        .join_from(hashes, hash_members, hash_members.c.hash_id == hashes.c.id)
        .join(_member, _member.c.id == hash_members.c.member_id)
        .where(hashes.c.digest.in_(digests), hashes.c.kind == _FILE, _member.c.kind == TEXT)
    )
)
_there = sources.c.missing_since.is_(None)
_held_still = ByDigest(
    lambda digests: (
        select(hashes.c.digest)
        .join_from(hashes, sources, sources.c.hash_id == hashes.c.id)
        .where(hashes.c.digest.in_(digests), _there)
    )
)
_held_then = ByDigest(
    lambda digests: (
        select(_earlier.c.digest, hashes.c.digest)
        .join_from(_earlier, source_contents, source_contents.c.hash_id == _earlier.c.id)
        .join(sources, sources.c.id == source_contents.c.source_id)
        .join(hashes, hashes.c.id == sources.c.hash_id)
        .where(_earlier.c.digest.in_(digests), _there)
    )
)
_said_still = ByDigest(
    lambda digests: (
        select(hashes.c.digest)
        .join_from(hashes, _file_members, _file_members.c.member_id == hashes.c.id)
        .join(sources, sources.c.hash_id == _file_members.c.hash_id)
        .where(hashes.c.digest.in_(digests), hashes.c.kind == TEXT, _there)
    )
)
_said_then = ByDigest(
    lambda digests: (
        select(_earlier.c.digest, hashes.c.digest)
        .join_from(_earlier, _file_members, _file_members.c.member_id == _earlier.c.id)
        .join(source_contents, source_contents.c.hash_id == _file_members.c.hash_id)
        .join(sources, sources.c.id == source_contents.c.source_id)
        .join(
            _later_members,
            (_later_members.c.hash_id == sources.c.hash_id)
            & (_later_members.c.role == _file_members.c.role)
            & (_later_members.c.ordinal == _file_members.c.ordinal),
        )
        .join(hashes, hashes.c.id == _later_members.c.member_id)
        .where(_earlier.c.digest.in_(digests), _earlier.c.kind == TEXT, _there)
    )
)


def earlier_of(connection: Connection, path: str) -> list[Earlier]:
    """What the file at this absolute path held before what the last scan found in it, newest first."""
    above = root_above(known_roots(connection), os.path.dirname(path))
    if above is None:
        return []
    root, relpath = above
    query = (
        select(hashes.c.digest, hashes.c.nbytes, source_contents.c.last_seen)
        .join_from(sources, directories, directories.c.id == sources.c.directory_id)
        .join(source_contents, source_contents.c.source_id == sources.c.id)
        .join(hashes, hashes.c.id == source_contents.c.hash_id)
        .where(
            directories.c.root_id == root.id,
            directories.c.relpath == relpath,
            sources.c.name == os.path.basename(path),
        )
        .order_by(source_contents.c.last_seen.desc())
    )
    return [Earlier(*row) for row in connection.execute(query)]


def stories(connection: AnyConnection, ids: Sequence[int]) -> dict[int, Story]:
    """{variant id: how it came about}; what no run has made has the time of its first object."""
    made: dict[int, int] = {}
    for id_, at in _made.rows(connection, ids) if ids else ():
        made[id_] = min(at, made.get(id_, at))
    return {
        id_: Story(reason, encode_us, run, made.get(id_) if at is None else at)
        for id_, reason, encode_us, run, at in (_stories.rows(connection, ids) if ids else ())
    }


def failures_of(connection: AnyConnection, contents: Sequence[bytes]) -> list[FailureRow]:
    """What couldn't be encoded of these contents."""
    return [FailureRow(*row) for row in (_failures.rows(connection, contents) if contents else ())]


def texts_in(connection: AnyConnection, files: Sequence[bytes]) -> dict[bytes, list[TextIn]]:
    """{digest of a file's content: the texts that readers found in it}"""
    found: dict[bytes, list[TextIn]] = defaultdict(list)
    for digest, *rest in _texts_in.rows(connection, files) if files else ():
        found[digest].append(TextIn(*rest))
    return found


def held_now(connection: AnyConnection, contents: Sequence[bytes]) -> dict[bytes, bytes]:
    """{a content that no file holds any more: what the file that held it holds now}; others are left out.

    Of a text: what the caption file says now in its place.
    """
    if not contents:
        return {}
    still = {digest for query in (_held_still, _said_still) for (digest,) in query.rows(connection, contents)}
    gone = [digest for digest in contents if digest not in still]
    if not gone:
        return {}
    return {then: now for query in (_held_then, _said_then) for then, now in query.rows(connection, gone)}
