"""Scanning folders: which files are there, and which of them are new or changed since the last scan."""

from __future__ import annotations

import os
from collections.abc import Sequence

from casstore import fsio
from casstore.core.directory import is_store
from casstore.core.handle import Handle
from casstore.errors import UsageError
from casstore.sources.captions import check_reader, text_endings
from casstore.sources.folder import Adopted, FolderScan
from casstore.sources.found import Folder, Scan
from casstore.sources.links import endings
from casstore.sources.options import Options
from casstore.sources.walk import Filter


def scan(handle: Handle, folders: Sequence[str], options: Options) -> Scan:
    """Find the files below folders, hash what is new or changed, and note what has gone; see `Store.scan`."""
    handle.check_writable()
    places = [fsio.spelling(os.path.abspath(folder)) for folder in folders]
    for place in places:
        if not fsio.is_directory(place):
            raise UsageError(f"{place} isn't a folder; give the folder that holds the files")
        if is_store(place):
            raise UsageError(f"{place} is a casstore store; give the folder that holds the files")
    check_reader(options.reader)
    beside = endings(options.links)  # and with them, whether they can be meant
    wanted = Filter((*options.extensions, *sorted(beside)), options.ctime, options.inode)
    texts = text_endings(options.links)
    found = [_scan_folder(handle, place, wanted, texts, options, several=len(places) > 1) for place in places]
    return Scan(handle, found, options.extensions, options.links, options.reader)


def _scan_folder(
    handle: Handle, place: str, wanted: Filter, texts: tuple[str, ...], options: Options, *, several: bool
) -> Folder:
    while True:
        try:
            return FolderScan(handle, place, wanted, texts, options).run(several=several)
        except Adopted:
            continue  # roots only grow, so this ends; what was written is known to the new root
