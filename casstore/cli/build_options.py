"""What the options of casstore build ask for: resolutions, and the rows of folders and tables."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from casstore.build.progress import JsonLines, Progress, phase, progress_of
from casstore.encoders.load import load_function
from casstore.errors import UsageError
from casstore.identity import resolutions
from casstore.identity.buckets import Buckets, Method
from casstore.sources.inputs import Inputs
from casstore.store import Store

if TYPE_CHECKING:
    from casstore.sources.found import ScanReport

TABLES = (".jsonl", ".csv", ".tsv")
"""Endings, in lower case, of FOLDERs that are tables of rows."""
CAPTIONS = {"caption": ".txt"}
"""The links that a role implies."""


def resolutions_from(given: Sequence[str], method: Method | None, *, upscale: bool) -> resolutions.Resolutions:
    """What was asked for.

    Args:
        given: of each --resolution: areas and sizes, several with commas between them; none: the full size.
        method: of picking a size for an area; None: casstore's.
        upscale: whether pictures are scaled up to reach an area.

    Raises:
        UsageError: something can't be meant, or there is no area that the method could be for.
    """
    wanted = [part.strip() for text in given for part in text.split(",")]
    if len(wanted) > 1 and "" in wanted:
        raise UsageError(f"--resolution {','.join(given)!r}: between two commas a resolution is missing")
    areas = [int(part) for part in wanted if re.fullmatch("[0-9]{1,7}", part)]
    if (method is not None or not upscale) and not areas:
        option = "--no-upscale" if method is None else f"--buckets {method}"
        raise UsageError(f"{option} is about picking a size for an area; give one: --resolution 1024")
    if not wanted:
        return None
    if method is None and upscale:
        return resolutions.check(wanted[0] if len(wanted) == 1 else wanted)
    buckets = Buckets(*areas, method=method or "casstore", upscale=upscale)
    fixed = [part for part in wanted if not part.isdecimal()]
    return resolutions.check([buckets, *fixed] if fixed else buckets)


def params_from(text: str | None) -> Mapping[str, Any] | None:
    """The facts in --params.

    Raises:
        UsageError: it is no JSON object.
    """
    if text is None:
        return None
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--params {text!r} isn't JSON: {error}") from None
    if not isinstance(found, dict):
        raise UsageError(f"--params {text!r} isn't a JSON object; write it as '{{\"frames\": 16}}'")
    return found


def scanning_from(
    roles: Sequence[str],
    links: Sequence[str],
    reader: str | None,
    extensions: str | None,
    probe: str | None,
    **flags: bool,
) -> dict[str, Any]:
    """The arguments of a scan, as far as they were given.

    Raises:
        UsageError: one can't be meant.
    """
    rules = {role: rule for role, rule in CAPTIONS.items() if role in roles}
    for link in links:
        role, equals, rule = link.partition("=")
        if not role or not equals or not rule:
            raise UsageError(f"--link {link!r}: write ROLE=RULE, for example caption=.txt or mask=-mask.png")
        rules[role] = rule
    found: dict[str, Any] = {"links": rules} if rules else {}
    if reader is not None:
        found["reader"] = reader
    if extensions is not None:
        endings = tuple(ending.strip().lower() for ending in extensions.split(","))
        if not all(len(ending) > 1 and ending.startswith(".") for ending in endings):
            raise UsageError(f"--extensions {extensions!r}: write endings with their dot, for example .mp4,.mov")
        found["extensions"] = endings
    if probe is not None:
        found["probe"] = load_function(probe, "probe")
    return found | {name: True for name, given in flags.items() if given}


def find_inputs(
    store: Store, places: Sequence[str], scanning: dict[str, Any], given: Mapping[str, Any]
) -> tuple[Inputs, ScanReport | None]:
    """The rows of all folders, which are scanned together, and of all tables; and what the scan did.

    Args:
        store: the open store.
        places: folders and tables.
        scanning: from `scanning_from`.
        given: {option: its value} of those that mean nothing to tables.

    Raises:
        UsageError: there are only tables, and one of these options was given.
    """
    tables = [place for place in places if place.lower().endswith(TABLES) and not os.path.isdir(place)]
    folders = [place for place in places if place not in tables]
    rows: list[Inputs] = []
    report = None
    named = ", ".join(option for option, value in given.items() if value)
    if folders:
        with phase(progress_of(None), "scan", 1) as progress:
            scan = store.scan(*folders, **scanning, progress=progress.advanced)
        rows, report = [scan], scan.report
    elif named:
        raise UsageError(f"a table says itself what belongs to a row; {named} is for folders only")
    reader = {"reader": scanning["reader"]} if "reader" in scanning else {}
    rows += [store.inputs(table, **reader) for table in tables]
    return rows[0] if len(rows) == 1 else Inputs([row for part in rows for row in part]), report


def devices_from(text: str | None, procs: int) -> list[str]:
    """The devices of --devices; each has a process of its own.

    Raises:
        UsageError: there are others than processes.
    """
    found = [] if text is None else [part.strip() for part in text.split(",")]
    if not all(found) or (found and procs not in (1, len(found))):
        raise UsageError(f"--devices {text!r}: name one for each process, such as cuda:0,cuda:1, and leave --procs out")
    return found


def progress_from(choice: str | None) -> Progress:
    """What --progress says."""
    if choice == "json":
        return JsonLines(sys.stderr)
    return progress_of({"bar": True, "none": False}.get(choice or ""))
