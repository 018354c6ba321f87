"""The two stored forms of a payload: the container (`.cso`), and the payload itself (`.st`), which can be mapped.

Both stand for one identity: which of them is on disk never changes what is read.
"""

from __future__ import annotations

import numpy as np
import xxhash

from casstore.errors import CorruptObjectError
from casstore.identity.digests import signed
from casstore.model import Codec, Stored
from casstore.objects import container
from casstore.objects.payload import ALIGNMENT, HEADER_LIMIT, Layout, parse_header
from casstore.objects.planes import Bytes


def encode(codec: Codec, layout: Layout, payload: Bytes, digest: bytes) -> list[bytes | memoryview]:
    """The file of a payload, as chunks to be written one after the other."""
    return [payload.data] if codec == "raw" else container.encode(layout, payload, digest)


def decode(stored: Stored, data: bytes) -> tuple[Layout, Bytes]:
    """The layout and payload in a file; all checksums are compared, and the layout with that of the index.

    Args:
        stored: what the index says.
        data: the whole file.

    Raises:
        CorruptObjectError: they don't fit each other.
    """
    if len(data) != stored.nbytes:
        raise CorruptObjectError(f"it has {len(data)} bytes, not {stored.nbytes}")
    if stored.codec == "raw":
        if signed(xxhash.xxh3_64_intdigest(data)) != stored.xxh3:
            raise CorruptObjectError("the checksum of the file differs")
        payload = np.frombuffer(data, np.uint8)
        layout = _raw_layout(data)
    else:
        layout, payload, _ = container.decode(data, stored.digest, Layout.parse(stored.layout).payload_nbytes)
    if layout.text != stored.layout:
        raise CorruptObjectError("its layout isn't the one in the index")
    return layout, payload


def _raw_layout(data: bytes) -> Layout:
    head = 8 + int.from_bytes(data[:8], "little")
    if head > min(HEADER_LIMIT, len(data)) or head % ALIGNMENT:
        raise CorruptObjectError("it doesn't begin with a payload header")
    layout = parse_header(data[:head])
    if layout.payload_nbytes != len(data):
        raise CorruptObjectError("its length doesn't fit its header")
    return layout
