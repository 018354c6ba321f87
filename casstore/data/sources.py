"""The raw pictures beside what was encoded of them."""

from __future__ import annotations

from typing import Any, Literal

from casstore.data.manifest import Manifest
from casstore.sources.read import Opened

Source = Literal["path", "image"]
"""What an item has of the file it comes from: its path; or the picture, PIL RGB, upright."""


def source_of(manifest: Manifest, row: int, source: Source) -> Any:
    """The path of a row's file (None: it comes from none), or the picture in it, decoded by casstore's usual rules.

    Raises:
        SourceNotFoundError: the file can't be read.
        PictureError: it is no picture that can be decoded whole.
    """
    path = manifest.paths[row] if manifest.paths is not None else ""
    if not path or source == "path":
        return path or None
    from casstore.sources.images import decode

    with Opened(path) as file:
        data = file.read()
    return decode(data)
