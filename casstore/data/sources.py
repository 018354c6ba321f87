"""The raw pictures beside what was encoded of them."""

from __future__ import annotations

from typing import Any, Literal

from casstore.data.manifest import Manifest
from casstore.errors import SourceChangedError
from casstore.identity.digests import file_digest
from casstore.sources.read import Opened

Source = Literal["path", "image"]
"""What an item has of the file it comes from: its path; or the picture, PIL RGB, upright."""


def source_of(manifest: Manifest, row: int, source: Source) -> Any:
    """The path of a row's file (None: it comes from none), or the picture in it, decoded by casstore's usual rules.

    Raises:
        SourceNotFoundError: the file can't be read.
        SourceChangedError: it isn't what was planned; beside the tensors of that it would be another picture.
        PictureError: it is no picture that can be decoded whole.
    """
    path = manifest.paths[row] if manifest.paths is not None else ""
    if not path or source == "path":
        return path or None
    from casstore.sources.images import decode

    with Opened(path) as file:
        data = file.read()
    # Hashed each time: that costs a hundredth of decoding it, and a state (size, times) may look unchanged.
    if manifest.contents is not None and file_digest(data) != manifest.contents[row].tobytes():
        raise SourceChangedError(
            f"{manifest.told(row)}: {path} changed since it was planned; scan and plan again, and make the dataset anew"
        )
    return decode(data)
