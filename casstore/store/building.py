"""The methods of a store that lead from sources to tensors: scan, inputs, plan, build."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from casstore.errors import UsageError
from casstore.identity import resolutions
from casstore.identity.recipes import Encode, Recipe
from casstore.store.reading import Path

if TYPE_CHECKING:
    from concurrent.futures import Executor
    from threading import Event

    from casstore.build.asked import Params, Variations
    from casstore.build.plan import Absent, Augment, Plan
    from casstore.build.progress import Progress
    from casstore.core.handle import Handle
    from casstore.model import BuildReport, ConfirmReport, Root
    from casstore.sources.found import Scan
    from casstore.sources.inputs import Inputs
    from casstore.sources.links import Link
    from casstore.sources.read import Probe
    from casstore.sources.tables import Given


class Building:
    """What is done with the sources of an open store."""

    _handle: Handle

    def scan(
        self,
        *folders: Path,
        links: Mapping[str, Link] | None = None,
        extensions: Sequence[str] | None = None,
        reader: str = "caption-1",
        probe: Probe | None = None,
        trust: bool | None = None,
        rehash: bool = False,
        ctime: bool | None = None,
        inode: bool | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Scan:
        """Find the files below folders; hash what is new or changed, note what has gone.

        A file is unchanged if its size, mtime, ctime and inode are; one that isn't clearly older than the scan is
        hashed again by the next. Nothing is noted as missing where a folder isn't the one it was, or where more than
        max(100, 10 %) would be: `.report.warnings` says so.

        Args:
            folders: searched with their sub-folders, except hidden ones and stores; links are followed.
            links: {role: rule}: what else belongs to a picture. A rule is the name of its file, such as ".txt",
                "masks/{stem}.png" or "-masklabel.png?" (optional), or a function of the row (docs/inputs.md).
            extensions: endings of the files to take; None: the usual pictures. Files with other endings than these are
                only hashed.
            reader: what makes texts of text files: "caption-1", the file is one; "lines-1": each line is one.
            probe: probe(path) -> any of width, height, frames, rate of a file that isn't a picture.
            trust: a quick check: take known files as unchanged, without looking; new ones are still found. None: if the
                environment says CASSTORE_TRUST=1, and `rehash` doesn't ask for the opposite.
            rehash: read every file, whatever its state says.
            ctime, inode: whether these count, as some network disks make them up; None: as casstore.toml says (yes).
            progress: called with (files hashed, files to hash); both grow.

        Returns:
            One row per file, in order of paths; a file that can't be read is a row with an error. `.report` has counts.

        Raises:
            UsageError: a folder doesn't exist, two rows have the same name, a link can't be meant, or `trust` is given
                with `rehash`.
        """
        from casstore.sources.fresh import what_counts
        from casstore.sources.images import EXTENSIONS
        from casstore.sources.options import Options
        from casstore.sources.scan import scan

        places = [os.fspath(folder) for folder in folders]
        if not places:
            raise UsageError("scan needs at least one folder")
        given = EXTENSIONS if extensions is None else extensions
        if isinstance(given, str) or not all(isinstance(e, str) and e.startswith(".") and len(e) > 1 for e in given):
            raise UsageError(
                f"extensions={extensions!r}: give a list of endings with their dot, such as ('.mp4', '.mov')"
            )
        endings = tuple(ending.lower() for ending in given)
        if trust and rehash:
            raise UsageError("a scan can't trust the known files and rehash them; give one of the two")
        trusting = os.environ.get("CASSTORE_TRUST", "") not in ("", "0") and not rehash if trust is None else trust
        counted = what_counts(self._handle)
        ctime, inode = (counted[0] if ctime is None else ctime), (counted[1] if inode is None else inode)
        options = Options(endings, links or {}, reader, probe, trusting, rehash, ctime, inode, progress)
        return scan(self._handle, places, options)

    def inputs(self, rows: Given, *, reader: str = "caption-1") -> Inputs:
        """Rows of your own, or of a table.

        Args:
            rows: dicts with any of "sample" (its name), "group", "weight" and "values" (facts of the row); every other
                key is a role. Under it a Path is a file; an array or tensor is itself; bytes are a text; a str is a
                text under the roles caption, text and prompt, and elsewhere a path; a list has one content for each
                variation; None is nothing. Or the path of a .jsonl, .csv or .tsv file of such rows (docs/inputs.md).
            reader: what makes texts of text files; a text that is given stays exactly what it is.

        Raises:
            UsageError: a row that can't be meant; the message names it. A file that can't be read is a failure of its
                row only.
            SourceNotFoundError: the table can't be read.
        """
        from casstore.index.readonly import retried
        from casstore.sources.tables import make_inputs

        self._handle.check_open()
        given = rows if isinstance(rows, (str, os.PathLike, Mapping)) or not isinstance(rows, Iterable) else list(rows)
        return retried(lambda: make_inputs(self._handle, given, reader=reader))

    def roots(self) -> list[Root]:
        """The dataset folders that the store knows: each scanned folder, unless it lies in another one."""
        from casstore.index.readonly import retried
        from casstore.sources.roots import list_roots

        self._handle.check_open()
        return retried(lambda: list_roots(self._handle))

    def move_root(self, name: str, path: Path) -> Root:
        """Say that a root is at another place now. Nothing is read; moved files cost no encode anyway.

        Raises:
            UsageError: there is no such root or folder, or its files aren't there.
        """
        from casstore.sources.roots import move

        return move(self._handle, name, os.path.abspath(os.fspath(path)))

    def confirm_root(self, name: str, *, yes: bool = False) -> ConfirmReport:
        """Say that what is gone from a root is really gone, however much it is, and that its folder is the right one.

        Args:
            name: of the root, or its path.
            yes: note it; otherwise only count.

        Raises:
            UsageError: there is no such root.
            StorePermissionError: a folder of it can't be listed.
        """
        from casstore.sources.roots import confirm

        return confirm(self._handle, name, yes=yes)

    def plan(
        self,
        inputs: Inputs,
        recipe: Recipe,
        *,
        role: str | Sequence[str] | None = None,
        resolution: resolutions.Resolutions = None,
        params: Params = None,
        absent: Absent = "skip",
        variations: Variations = None,
        names: Sequence[str] | None = None,
        augment: Augment = "add",
        empty_text: bool = False,
    ) -> Plan:
        """What is stored of these inputs, and what is to be encoded and why. Opens no file.

        Args:
            inputs: rows from `scan` or `inputs`.
            recipe: what is wanted of them.
            role: what is encoded: "caption"; or several, ("image", "mask"): the first is the primary, the others are
                its members, which an encoder gets beside it and which count for its identity. Other roles of the rows
                don't matter. None: the rows' first role. A row with several contents under a role is planned once for
                each of them; those of several roles go side by side.
            resolution: N: of the sizes with about N * N pixels, in steps of 64, the one whose shape is nearest to the
                picture's; `casstore.Buckets`: the same by other rules; "HxW": this one; None: the full size; a list:
                each of these; or a function of the row's facts and the variation that returns any of them
                (docs/resolutions.md). Texts and arrays have none.
            params: further JSON that tells variants apart and that the encoder gets, {"frames": 16}; or a function of
                the row that returns it.
            absent: what becomes of a row without the primary: "skip": left out and counted; "error"; "empty": the empty
                text in its place. A row without a member is encoded without it.
            variations: how many of each row, or a function of the row; None: one, or as many as a role has contents. A
                variation has its own random draws; of a role with several contents each is a variation of its own.
            names: tensors and values that must be there; None: whatever is stored. A variant without one of them is a
                miss ("output missing").
            augment: what becomes of a variant that lacks a name, or one of whose members was edited: "add": only what
                is lacking is encoded, if that places the picture as what is stored was; "rebuild": all of it.
            empty_text: of a role with texts: plan the empty text along, once, for a dataset's `EMPTY`. It counts as one
                more, unless a row has it.

        Raises:
            UsageError: an argument that can't be meant, or rows without the primary (with "error"); it names them.
        """
        from casstore.build.plan import make_plan
        from casstore.index.readonly import retried

        return retried(
            lambda: make_plan(
                self._handle,
                inputs,
                recipe,
                resolution,
                role=role,
                params=params,
                absent=absent,
                variations=variations,
                names=names,
                augment=augment,
                empty_text=empty_text,
            )
        )

    def build(
        self,
        plan: Plan,
        encode: Encode,
        *,
        batch_size: int = 8,
        workers: int | None = None,
        on_error: Literal["skip", "raise"] = "skip",
        retry_failed: bool = False,
        allow_nonfinite: bool = False,
        progress: bool | Callable[[int, int], None] | Progress | None = None,
        stop: Callable[[], bool] | Event | None = None,
        batch_pixels: int | None = None,
        before_encode: Callable[[], object] | None = None,
        executor: Executor | None = None,
        encode_threads: int = 1,
        item_timeout: float = 900.0,
    ) -> BuildReport:
        """Encode what the plan misses, and store it as it comes.

        Each file is read once; it is hashed and decoded from the same bytes, so a file that changed since the plan is
        reported and never stored under its old content. Results are committed in groups (64, 32 MiB or one second).

        Args:
            plan: from `plan`.
            encode: encode(items) -> one dict of tensors and JSON values per item; called on this thread.
            batch_size: the most items per call; all items of a call have the same resolution and shape.
            workers: decode threads; None: one per core, at most 8.
            on_error: "skip": report a failure and go on; "raise": commit what is done and raise.
            retry_failed: also try pictures again whose decoding failed before.
            allow_nonfinite: store NaN and infinity; otherwise such an item fails.
            progress: called with (done, to do); True: a bar on stderr; None: a bar if stderr is a terminal.
            stop: a function or a threading.Event that says when to stop: within a second, or after the present call.
            batch_pixels: the most pixels per call, of all its pictures together.
            before_encode: called once before the first call, and not at all if nothing is to be encoded.
            executor: encode item by item in this pool, `encode_threads` at a time, instead of on this thread. It stays
                open.
            encode_threads: see `executor`.
            item_timeout: seconds after which a file that can't be read, or an encode in the executor, is given up and
                reported; a call on this thread is only told.

        Any number of builders, in other threads, processes and containers, may build the same: each item is encoded
        once, and what others do is counted under `by_others`.

        Raises:
            BuildStopped: `stop` said so, or SIGTERM came; what was encoded is stored, the report is in it.
            BuildInterrupted: likewise, by Ctrl-C.
            NoSpaceError: what is to come has no room on the disk or in the budget; what was encoded is stored.
        """
        from casstore.build.builder import build
        from casstore.build.options import Options, stop_of
        from casstore.build.plan import Plan
        from casstore.build.progress import progress_of

        given: tuple[object, object] = plan, encode
        if not isinstance(given[0], Plan) or not callable(given[1]):
            names = " and ".join(type(argument).__name__ for argument in given)
            raise UsageError(f"a build needs what store.plan returns, and a function; not {names}")
        options = Options(
            batch_size=batch_size,
            batch_pixels=batch_pixels,
            workers=workers,
            on_error=on_error,
            retry_failed=retry_failed,
            allow_nonfinite=allow_nonfinite,
            progress=progress_of(progress),
            stop=stop_of(stop),
            before_encode=before_encode,
            executor=executor,
            encode_threads=encode_threads,
            item_timeout=item_timeout,
        )
        return build(self._handle, plan, encode, options)
