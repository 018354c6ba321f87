"""Rows of contents: what a source, a text, an array or several of them together hold."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import and_, bindparam, select, update
from sqlalchemy.dialects.sqlite import insert

from casstore.identity.keys import Together
from casstore.index.bulk import AnyConnection, ByDigest, Statement, last_id
from casstore.index.tables import hash_members, hashes, texts
from casstore.model import Content

_MEASURES = ("width", "height", "orientation", "note", "frames", "rate")
_CONTENT = ("id", "kind", "digest", "nbytes", *_MEASURES)
_insert_content = Statement(insert(hashes), _CONTENT)
_complete_content = Statement(
    update(hashes).where(hashes.c.id == bindparam("known")).values({name: bindparam(name) for name in _MEASURES})
)
_contents = ByDigest(
    lambda digests: select(
        hashes.c.kind,
        hashes.c.digest,
        hashes.c.id,
        hashes.c.width.is_(None),
        and_(hashes.c.frames.is_(None), hashes.c.rate.is_(None)),
        hashes.c.note.is_(None),
    ).where(hashes.c.digest.in_(digests))
)
_save_text = Statement(insert(texts).on_conflict_do_nothing(), ("hash_id", "text"))
_save_member = Statement(
    insert(hash_members).on_conflict_do_nothing(), tuple(column.name for column in hash_members.columns)
)


def measures(content: Content) -> tuple[Any, ...]:
    """What is known of a content besides its bytes, as columns of `hashes`."""
    return content.width, content.height, content.orientation, content.note, content.frames, content.rate


def save_contents(connection: AnyConnection, contents: Iterable[Content]) -> dict[tuple[str, bytes], int]:
    """The ids of contents, inserted or completed with what is newly known of them.

    Returns:
        {(kind, digest): id}
    """
    wanted = {(content.kind, content.digest): content for content in contents}
    found: dict[tuple[str, bytes], int] = {}
    incomplete = []
    for kind, digest, id_, unmeasured, untimed, silent in _contents.rows(connection, [digest for _, digest in wanted]):
        content = wanted.get((kind, digest))
        if content is None:
            continue  # another kind of the same digest
        found[kind, digest] = id_
        timed = content.frames is not None or content.rate is not None
        news = untimed and (timed or (silent and content.note is not None))
        if unmeasured and (content.width is not None or news):
            incomplete.append((*measures(content), id_))
    # In the order of the digests, which is that of their index: neighbours share pages.
    new = sorted((c for key, c in wanted.items() if key not in found), key=lambda c: c.digest)
    ids = {(c.kind, c.digest): id_ for id_, c in enumerate(new, start=last_id(connection, hashes) + 1)} if new else {}
    _insert_content.many(
        connection,
        [(ids[c.kind, c.digest], c.kind, c.digest, c.nbytes, *measures(c)) for c in new],
    )
    _complete_content.many(connection, incomplete)
    found |= ids
    _save_text.many(connection, [(found[key], c.text) for key, c in wanted.items() if c.text is not None])
    return found


def save_inputs(connection: AnyConnection, encoded: Iterable[Together]) -> dict[tuple[str, bytes], int]:
    """The ids of all contents that are encoded: primaries, members and what they are together.

    Returns:
        {(kind, digest): id}
    """
    known = {(one.primary, one.inputs): one.members for one in encoded}
    contents = [content for pair in known for content in pair]
    contents += [member.content for members in known.values() for member in members]
    ids = save_contents(connection, contents)
    rows = [
        (ids[inputs.kind, inputs.digest], role, ordinal, ids[content.kind, content.digest])
        for (_, inputs), members in known.items()
        for role, ordinal, content in members
    ]
    _save_member.many(connection, rows)
    return ids
