"""The canonical payload: the bytes that are hashed, and so the identity of an object.

It is a safetensors file with one spelling only: u64 header length, JSON header without metadata, padded with spaces so
that 8 + its length is a multiple of 64, then the tensors by element size descending, then by name; contiguous,
row-major, little endian, no holes. Equal tensors give equal bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any

from casstore.errors import CorruptObjectError, UsageError
from casstore.identity.dtypes import ELEMENT_SIZE
from casstore.model import TensorInfo

ALIGNMENT = 64
HEADER_LIMIT = 4 << 20  # bytes
TENSOR_LIMIT = 4096
RANK_LIMIT = 16
PAYLOAD_LIMIT = 1 << 36  # bytes; far above any latent, and a bound for what a forged header can claim


@dataclass(frozen=True)
class Layout:
    """Names, dtypes and shapes of an object's tensors in payload order, and where their bytes are.

    It can't be changed, not even in its mappings: all who parse the same text share one.

    Attributes:
        tensors: {name: dtype and shape}, in payload order.
    """

    tensors: Mapping[str, TensorInfo]

    def __post_init__(self) -> None:
        object.__setattr__(self, "tensors", MappingProxyType(dict(self.tensors)))

    def __reduce__(self) -> tuple[Any, ...]:
        return Layout.parse, (self.text,)  # read-only mappings don't travel between processes by themselves

    @classmethod
    def of(cls, tensors: Iterable[tuple[str, TensorInfo]]) -> Layout:
        """The layout of these tensors, whatever order they come in.

        Raises:
            UsageError: a name, dtype, rank or size that can't be stored.
        """
        return _of(tuple(dict(tensors).items()))

    @classmethod
    def parse(cls, text: str) -> Layout:
        """The layout from its JSON text (`text` of the result is the same again).

        Raises:
            CorruptObjectError: it isn't exactly the canonical header of some layout.
        """
        return _parse(text)

    @cached_property
    def spans(self) -> Mapping[str, tuple[int, int]]:
        """{name: (begin, end)} in bytes, counted from the end of the header."""
        spans, position = {}, 0
        for name, info in self.tensors.items():
            end = position + nbytes(info)
            spans[name] = (position, end)
            position = end
        return MappingProxyType(spans)

    @cached_property
    def text(self) -> str:
        """The JSON header without its padding."""
        return json.dumps(
            {
                name: {"dtype": info.dtype, "shape": list(info.shape), "data_offsets": list(self.spans[name])}
                for name, info in self.tensors.items()
            },
            ensure_ascii=False,
            separators=(",", ":"),
        )

    @cached_property
    def header(self) -> bytes:
        """The payload up to the first tensor: length, JSON, padding."""
        body = self.text.encode()
        body += b" " * (-(8 + len(body)) % ALIGNMENT)
        return len(body).to_bytes(8, "little") + body

    @cached_property
    def data_nbytes(self) -> int:
        """Bytes of all tensors together."""
        return max((end for _, end in self.spans.values()), default=0)

    @cached_property
    def payload_nbytes(self) -> int:
        """Bytes of the whole payload."""
        return len(self.header) + self.data_nbytes


def nbytes(info: TensorInfo) -> int:
    """Bytes of one tensor."""
    return math.prod(info.shape) * ELEMENT_SIZE[info.dtype]


def parse_header(header: bytes) -> Layout:
    """The layout from the beginning of a payload; `header` must be exactly that.

    Raises:
        CorruptObjectError: it isn't the canonical header of some layout.
    """
    if not 8 < len(header) <= HEADER_LIMIT or int.from_bytes(header[:8], "little") != len(header) - 8:
        raise CorruptObjectError("the payload header's length doesn't fit")
    try:
        text = header[8:].decode().rstrip(" ")
    except UnicodeDecodeError:
        raise CorruptObjectError("the payload header isn't UTF-8") from None
    layout = Layout.parse(text)
    if layout.header != header:
        raise CorruptObjectError("the payload header's padding isn't canonical")
    return layout


@lru_cache(maxsize=1024)  # a store has few distinct layouts
def _of(tensors: tuple[tuple[str, TensorInfo], ...]) -> Layout:
    found = dict(tensors)
    problem = _problem(found)
    if problem:
        raise UsageError(problem)
    layout = Layout({name: found[name] for name in sorted(found, key=lambda name: _place(name, found[name]))})
    problem = _header_problem(layout)
    if problem:
        raise UsageError(problem)
    return layout


@lru_cache(maxsize=1024)
def _parse(text: str) -> Layout:
    if len(text) > HEADER_LIMIT:
        raise CorruptObjectError("the payload header is longer than any we write")
    try:
        members = json.loads(text)
        found = {name: TensorInfo(member["dtype"], tuple(member["shape"])) for name, member in members.items()}
        sound = all(
            isinstance(info.dtype, str) and all(type(size) is int and size >= 0 for size in info.shape)
            for info in found.values()
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        sound, found = False, {}
    if not sound or _problem(found) or list(found) != sorted(found, key=lambda name: _place(name, found[name])):
        raise CorruptObjectError("the payload header isn't one that casstore writes")
    layout = Layout(found)
    # Spelling it again and comparing checks spans, holes, metadata and white space in one step.
    if layout.text != text or _header_problem(layout):
        raise CorruptObjectError("the payload header isn't one that casstore writes")
    return layout


def _place(name: str, info: TensorInfo) -> tuple[int, str]:
    return -ELEMENT_SIZE[info.dtype], name


def _problem(tensors: Mapping[str, TensorInfo]) -> str | None:
    """Why these tensors can't be stored in one object, or None."""
    if not 0 < len(tensors) <= TENSOR_LIMIT:
        return f"an object holds 1 to {TENSOR_LIMIT} tensors, not {len(tensors)}"
    for name, info in tensors.items():
        if not isinstance(name, str) or not name or name == "__metadata__":
            return f"{name!r} can't be a tensor's name"
        try:
            name.encode()
        except UnicodeEncodeError:
            return f"the tensor name {name!r} isn't valid Unicode"
        if info.dtype not in ELEMENT_SIZE:
            known = ", ".join(ELEMENT_SIZE)
            return f"tensor {name!r} has dtype {info.dtype}, which can't be stored; use one of {known}"
        if len(info.shape) > RANK_LIMIT:
            return f"tensor {name!r} has {len(info.shape)} dimensions; {RANK_LIMIT} is the most"
        if math.prod(max(size, 1) for size in info.shape) > PAYLOAD_LIMIT:
            return f"tensor {name!r} has a shape beyond {PAYLOAD_LIMIT:,} elements"
    total = sum(nbytes(info) for info in tensors.values())
    if total > PAYLOAD_LIMIT:
        return f"the tensors take {total:,} bytes together; {PAYLOAD_LIMIT:,} is the most for one object"
    return None


def _header_problem(layout: Layout) -> str | None:
    if len(layout.header) > HEADER_LIMIT:
        return f"the tensor names are too long together; the header may take {HEADER_LIMIT:,} bytes"
    return None
