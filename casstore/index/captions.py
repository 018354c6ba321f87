"""What a reader made of a caption file: the texts of a content, so that a known file needn't be opened."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import select
from sqlalchemy.dialects.sqlite import insert

from casstore.errors import UsageError
from casstore.identity.digests import text_digest
from casstore.index.bulk import AnyConnection, ByDigest, Statement
from casstore.index.contents import save_contents
from casstore.index.tables import hash_members, hashes, texts
from casstore.model import Content

_member = hashes.alias("member")
_texts = ByDigest(
    lambda digests: (
        select(
            hashes.c.digest,
            hashes.c.kind,
            hash_members.c.role,
            hash_members.c.ordinal,
            _member.c.kind,
            _member.c.digest,
            _member.c.nbytes,
            texts.c.text,
        )
        .join_from(hashes, hash_members, hash_members.c.hash_id == hashes.c.id)
        .join(_member, _member.c.id == hash_members.c.member_id)
        .outerjoin(texts, texts.c.hash_id == _member.c.id)
        .where(hashes.c.digest.in_(digests))
    )
)


def _upsert_member() -> Statement:
    statement = insert(hash_members)
    upsert = statement.on_conflict_do_update(
        index_elements=["hash_id", "role", "ordinal"], set_={"member_id": statement.excluded.member_id}
    )
    return Statement(upsert, tuple(column.name for column in hash_members.columns))


def _mend_text() -> Statement:
    statement = insert(texts)
    new = statement.excluded.text
    upsert = statement.on_conflict_do_update(index_elements=["hash_id"], set_={"text": new}, where=texts.c.text != new)
    return Statement(upsert, ("hash_id", "text"))


_save_member = _upsert_member()
_save_text = _mend_text()


def save_texts(connection: AnyConnection, found: Sequence[tuple[Content, str, Sequence[Content]]]) -> None:
    """Keep what readers made of files.

    A file without a text has itself as its only member: it consists of nothing else.

    Args:
        connection: in a write transaction.
        found: (content of the file, name of the reader, the texts in order).
    """
    everything = [content for file, _, members in found for content in (file, *members)]
    ids = save_contents(connection, everything)
    _save_text.many(
        connection,
        [(ids["text", c.digest], c.text) for c in {c.digest: c for c in everything if c.text is not None}.values()],
    )
    _save_member.many(
        connection,
        [
            (ids["file", file.digest], reader, ordinal, ids[member.kind, member.digest])
            for file, reader, members in found
            for ordinal, member in enumerate(members or (file,))
        ],
    )


def texts_of(connection: AnyConnection, files: Iterable[bytes], reader: str) -> dict[bytes, tuple[Content, ...]]:
    """What a reader has made of files.

    Args:
        connection: for reading.
        files: digests of their contents.
        reader: its name.

    Returns:
        {digest: the texts in order}; a file that this reader hasn't read, or whose text isn't what was saved any more
        (a flipped bit), isn't in it.
    """
    known: dict[bytes, Content | None] = {}  # equal texts are one object
    first: dict[bytes, Content | None] = {}
    further: dict[bytes, dict[int, Content | None]] = {}
    for digest, kind, role, ordinal, member_kind, member, nbytes, text in _texts.rows(connection, sorted(set(files))):
        if kind != "file" or role != reader:
            continue
        if member not in known:
            known[member] = _content(member_kind, member, nbytes, text)
        if ordinal == 0:
            first[digest] = known[member]
        else:
            further.setdefault(digest, {})[ordinal] = known[member]
    result: dict[bytes, tuple[Content, ...]] = {}
    for digest, content in first.items():
        others = further.get(digest)
        if content is None:
            continue
        if others is None:
            result[digest] = () if content.kind == "file" and content.digest == digest else (content,)
            continue
        rest = [others[ordinal] for ordinal in sorted(others)]
        whole = (content, *(one for one in rest if one is not None))
        if len(whole) == len(rest) + 1 == max(others) + 1:
            result[digest] = whole
    return {digest: found for digest, found in result.items() if all(content.kind == "text" for content in found)}


def _content(kind: str, digest: bytes, nbytes: int, text: str | None) -> Content | None:
    """A member; None if it isn't what its digest says."""
    if kind == "file":
        return Content(kind, digest, nbytes)
    try:
        if kind != "text" or text is None or text_digest(text) != digest:
            return None
    except (UsageError, AttributeError):  # a flipped bit made something else of it
        return None
    return Content(kind, digest, nbytes, text=text)
