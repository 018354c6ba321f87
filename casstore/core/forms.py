"""Objects in another form than the index knows of: a copy of the index from before a repack was put back."""

from __future__ import annotations

import xxhash

from casstore.core.directory import Directory
from casstore.errors import CorruptObjectError
from casstore.identity.digests import signed
from casstore.index.objects import NewObject, ObjectRow
from casstore.model import CODECS, Stored
from casstore.objects.files import read_file
from casstore.objects.stored import decode
from casstore.objects.tensors import payload_digest


def other_form(directory: Directory, row: ObjectRow) -> NewObject | None:
    """What an object's row has to say if its file is there in another form; None if it isn't, or isn't sound.

    Nothing vouches for such a file but its name, so it is read whole and hashed.
    """
    for codec in CODECS:
        if codec == row.codec:
            continue
        try:
            data = read_file(directory.object(row.digest, codec))
            stored = Stored(row.digest, codec, row.layout, len(data), signed(xxhash.xxh3_64_intdigest(data)))
            _, payload = decode(stored, data)
        except CorruptObjectError:
            continue
        if payload_digest(payload) == row.digest:
            return NewObject(stored, len(payload))
    return None
