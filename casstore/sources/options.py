"""How to scan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from casstore.sources.images import EXTENSIONS
from casstore.sources.links import Link
from casstore.sources.read import Probe

Progress = Callable[[int, int], None]
"""progress(files hashed, files to hash); both grow while the folders are searched"""


@dataclass(frozen=True, slots=True)
class Options:
    """What to look for, and how closely; see `Store.scan`."""

    extensions: tuple[str, ...] = EXTENSIONS
    links: Mapping[str, Link] = field(default_factory=dict)
    reader: str = "caption-1"
    probe: Probe | None = None
    trust: bool = False
    rehash: bool = False
    ctime: bool = True
    inode: bool = True
    progress: Progress | None = None
