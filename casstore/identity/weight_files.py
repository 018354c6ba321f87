"""Safetensors files, read strictly and in pieces, for the digest of the weights in them. Nothing is ever executed."""

from __future__ import annotations

import io
import json
import math
import mmap
import os
import stat
import time
from typing import Any, NamedTuple

from blake3 import blake3

from casstore.errors import SourceNotFoundError, UsageError
from casstore.identity.canonical import canonical
from casstore.identity.digests import WEIGHTS_CONTEXT
from casstore.identity.dtypes import ELEMENT_SIZE

HEADER_LIMIT = 100_000_000  # bytes, as in the reference implementation
CHUNK = 1 << 20
SETTLED_AFTER_NS = 2_000_000_000
"""A file that isn't older may change again within a tick of its clock (FAT's is 2 s), so its state tells nothing."""

State = tuple[int, int, int, int, int]
"""(size, mtime, ctime, inode, device): a file in which these stay the same is unchanged."""

_known: dict[str, tuple[State, str]] = {}


class _Span(NamedTuple):
    """A tensor in a file: where its bytes are, counted from the end of the header."""

    begin: int
    end: int
    name: str
    dtype: str
    shape: list[int]


def file_weights_digest(path: str, *, fresh: bool = False) -> str:
    """The digest of the tensors in a safetensors file; remembered while the file stays as it is.

    Args:
        path: of the file.
        fresh: read it again, whatever its state says.

    Raises:
        SourceNotFoundError: it can't be read.
        UsageError: it is no safetensors file, or is being written.
    """
    place = os.path.abspath(path)
    try:
        known = _known.get(place)
        if known is not None and not fresh and known[0] == _state(os.stat(place)):
            return known[1]
        with os.fdopen(os.open(place, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb", buffering=0) as stream:
            found = os.fstat(stream.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise UsageError(f"weights_digest: {place} isn't a regular file; give a .safetensors file")
            began = _now_ns()
            digest = hash_file(stream, place)
            after = os.fstat(stream.fileno())
    except (OSError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        raise SourceNotFoundError(f"weights_digest: can't read {place!r}: {error}") from error
    if _state(found) != _state(after):
        raise UsageError(f"weights_digest: {place} changed while it was read; try again when it is complete")
    _known.pop(place, None)
    if max(found.st_mtime_ns, found.st_ctime_ns) + SETTLED_AFTER_NS < began:
        _known[place] = _state(found), digest
    return digest


def hash_file(stream: io.FileIO, path: str) -> str:
    """The digest of the tensors in an open safetensors file; the same as of a state dict with these tensors."""
    start, spans = _read_header(stream, path)
    hasher = new_weights_hasher()
    with mmap.mmap(-1, CHUNK) as memory, memoryview(memory) as buffer:
        for span in sorted(spans, key=lambda span: span.name):
            hasher.update(tensor_head(span.name, span.dtype, span.shape))
            stream.seek(start + span.begin)
            left = span.end - span.begin
            while left:
                count = stream.readinto(buffer[: min(left, CHUNK)])
                if not count:
                    raise UsageError(f"weights_digest: {path} changed while it was read; try again when it is complete")
                hasher.update(buffer[:count])
                left -= count
    return hasher.hexdigest()


def new_weights_hasher() -> blake3:
    """What takes, for each tensor in the order of their names, its head and its bytes."""
    return blake3(derive_key_context=WEIGHTS_CONTEXT)


def tensor_head(name: str, dtype: str, shape: list[int]) -> bytes:
    """What is hashed before a tensor's bytes; the length in front keeps a name's end from being taken for bytes."""
    head = canonical([name, dtype, shape], f"weights_digest: {name!r:.80}").encode()
    return len(head).to_bytes(8, "little") + head


def _state(found: os.stat_result) -> State:
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev


def _now_ns() -> int:
    return time.time_ns()


def _read_header(stream: io.FileIO, path: str) -> tuple[int, list[_Span]]:
    """(where the bytes of the tensors begin, the tensors)

    Raises:
        UsageError: it isn't a safetensors file without holes, doubles or anything besides.
    """
    size = os.fstat(stream.fileno()).st_size
    first = stream.read(8)
    length = int.from_bytes(first, "little")
    if len(first) < 8 or not 2 <= length <= min(HEADER_LIMIT, size - 8):
        raise UsageError(_not_one(path, first))
    text = b""
    while len(text) < length and (more := stream.read(length - len(text))):
        text += more
    try:
        members = json.loads(text, object_pairs_hook=_no_doubles)
        spans = [_span(name, member) for name, member in members.items() if name != "__metadata__"]
    except UsageError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UsageError(_not_one(path, first, f" (its header is broken: {error})")) from None
    position = 0
    for span in sorted(spans):
        if span.begin != position:
            raise UsageError(_not_one(path, first, f" (the bytes of {span.name!r} don't begin where others end)"))
        position = span.end
    if position != size - 8 - length:
        raise UsageError(_not_one(path, first, f" (its tensors end at {position}, its data at {size - 8 - length})"))
    if not spans:
        raise UsageError(f"weights_digest: {path} holds no tensors")
    return 8 + length, spans


def _span(name: str, member: Any) -> _Span:
    dtype, shape, (begin, end) = member["dtype"], member["shape"], member["data_offsets"]
    if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in (*shape, begin, end)):
        raise ValueError(f"sizes of {name!r}")
    if dtype not in ELEMENT_SIZE:
        raise UsageError(f"weights_digest: {name!r} has dtype {dtype!r}; known are {', '.join(ELEMENT_SIZE)}")
    if end - begin != math.prod(shape) * ELEMENT_SIZE[dtype]:
        raise ValueError(f"{name!r} has {end - begin} bytes, which its shape and dtype don't need")
    return _Span(begin, end, name, dtype, shape)


def _no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands there twice")
    return found


def _not_one(path: str, first: bytes, why: str = "") -> str:
    if first[:2] == b"PK" or first[:1] == b"\x80":
        return (
            f"weights_digest: {path} is a pickle, which can run code when it is opened, so casstore never does; "
            "save it with safetensors.torch.save_file, or give the state dict that you have loaded"
        )
    return f"weights_digest: {path} isn't a safetensors file{why}; give one, or a module, or a state dict"
