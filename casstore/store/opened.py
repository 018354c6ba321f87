"""Opening a store, and what is done with one: thin methods over the layers below."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from casstore.errors import StoreOutdatedError, UsageError
from casstore.identity import resolutions
from casstore.identity.keys import Key
from casstore.identity.recipes import Encode, Recipe
from casstore.store.asking import Asking
from casstore.store.reading import Path, Reading
from casstore.store.recipes import Recipes

if TYPE_CHECKING:
    from casstore.build.asked import Params, Variations
    from casstore.build.plan import Absent, Augment, Plan
    from casstore.core.batch import Batch
    from casstore.core.put import OnConflict
    from casstore.model import BuildReport, Codec, ConfirmReport, GcReport, RepackReport, Root, VerifyReport
    from casstore.sources.found import Scan
    from casstore.sources.inputs import Inputs
    from casstore.sources.links import Link
    from casstore.sources.read import Probe
    from casstore.sources.tables import Given
    from casstore.upkeep.forget import ForgetPlan


def open(
    path: Path,
    create: bool = False,
    durability: Literal["full", "off"] | None = None,
    unsafe_filesystem: bool = False,
    auto_upgrade: bool = False,
) -> Store:
    """Open a store.

    Args:
        path: the store directory.
        create: make it if there is none.
        durability: for a new store: "full" (the default): what was acknowledged survives a power cut; "off": it
            survives a crash of the process only. Fixed from then on; for an existing store None or the same.
        unsafe_filesystem: write on a network or unknown file system as well, where SQLite's locks can't be trusted.
        auto_upgrade: bring an older store to this casstore's schema first, as `casstore db upgrade` does (with a
            backup); nobody else may have it open meanwhile.

    A store that a newer casstore made may be readable for this one; then writing raises StoreTooNewError.
    A store that can't be written here (a read-only mount, another user's folder, an unsafe file system) is opened for
    reading; writing raises StoreReadOnlyError or UnsafePlaceError at once.

    Raises:
        NotAStoreError, StoreOutdatedError, StoreTooNewError, StoreBusyError, UnsafePlaceError, CorruptStoreError,
        StorePermissionError
    """
    return Store(
        path,
        create=create,
        durability=durability,
        unsafe_filesystem=unsafe_filesystem,
        auto_upgrade=auto_upgrade,
    )


class Store(Reading, Recipes, Asking):
    """An open store. Close it, or use it in a `with` statement; threads may share it."""

    def __init__(
        self,
        path: Path,
        *,
        create: bool = False,
        durability: str | None = None,
        unsafe_filesystem: bool = False,
        auto_upgrade: bool = False,
    ) -> None:
        """See `casstore.open`."""
        from casstore.core.handle import Handle  # brings SQLAlchemy, which nobody should pay for before a store opens

        def opened() -> Handle:
            return Handle(path, create=create, durability=durability, unsafe_filesystem=unsafe_filesystem)

        try:
            self._handle = opened()
        except StoreOutdatedError:
            if not auto_upgrade:
                raise
            from casstore.index.migrate import upgrade

            upgrade(os.path.abspath(os.fspath(path)), unsafe_filesystem=unsafe_filesystem)
            self._handle = opened()
        self._unsafe_filesystem = unsafe_filesystem
        self._batches: list[Batch] = []  # those that were begun; one without a `with` block ends with the store

    @property
    def path(self) -> str:
        """The absolute path of the store directory."""
        return self._handle.directory.path

    @property
    def durability(self) -> str:
        """ "full" or "off"; fixed when the store was made."""
        return self._handle.durability

    def close(self) -> None:
        """Commit what batches still hold, and give everything back. Closing twice is fine."""
        batches, self._batches = self._batches, []
        try:
            for batch in batches:
                if not batch.ended:  # one that has ended has told its errors already
                    batch.flush()
        finally:
            self._handle.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def read_only(self) -> bool:
        """Whether the store can only be read here."""
        return self._handle.read_only

    def __reduce__(self) -> tuple[Callable[..., Store], tuple[Any, ...]]:
        """A store travels to another process as its path and options, and is opened anew there."""
        return open, (self.path, False, None, self._unsafe_filesystem)

    def __repr__(self) -> str:
        return f"<casstore.Store {self.path}>"

    # -- sources, plan, build --------------------------------------------------------------------------------------

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
        progress: bool | Callable[[int, int], None] | None = None,
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

        Raises:
            BuildInterrupted: Ctrl-C; what was encoded is stored, the report is in it.
        """
        from casstore.build.builder import Options, build
        from casstore.build.plan import Plan
        from casstore.build.progress import shown

        given: tuple[object, object] = plan, encode
        if not isinstance(given[0], Plan) or not callable(given[1]):
            names = " and ".join(type(argument).__name__ for argument in given)
            raise UsageError(f"a build needs what store.plan returns, and a function; not {names}")
        with shown(progress, plan.planned - plan.hits) as callback:
            options = Options(batch_size, workers, on_error, retry_failed, allow_nonfinite, callback)
            return build(self._handle, plan, encode, options)

    # -- putting ---------------------------------------------------------------------------------------------------

    def batch(self, *, on_conflict: OnConflict = "keep") -> Batch:
        """Puts that share commits: `with store.batch() as b: b.put(key, {"latent": tensor})`.

        Args:
            on_conflict: what becomes of a result if another one is served under its key: "keep": the first stays, with
                a warning for each recipe; "replace"; "raise": the first stays, and ConflictError is raised when the
                rest of the group is stored.
        """
        from casstore.core.batch import Batch

        self._handle.check_open()
        batch = Batch(self._handle, on_conflict=on_conflict)
        self._batches = [*(b for b in self._batches if not b.ended), batch]
        return batch

    # -- upkeep ----------------------------------------------------------------------------------------------------

    def forget(self, what: Key | Recipe | Path) -> ForgetPlan:
        """What deleting one key, all of a recipe, or all of a file's content would take. `.execute()` does it.

        A content that several files share is forgotten for all of them. gc takes the objects after the grace period.
        """
        from casstore.sources.fresh import known_content_of
        from casstore.upkeep.forget import plan_forget

        if isinstance(what, Key):
            return plan_forget(self._handle, what, str(what))
        if isinstance(what, Recipe):
            return plan_forget(self._handle, what, f"recipe {what.name}")
        return plan_forget(self._handle, known_content_of(self._handle, what), os.fspath(what))

    def repack(self, codec: Codec, *, yes: bool = False, progress: Callable[[int], None] | None = None) -> RepackReport:
        """Change how objects are stored, while others use the store; what is read stays the same.

        Args:
            codec: "raw", so that they can be mapped; or "zstd", so that they take less room.
            yes: do it; otherwise only say what would be done.
            progress: called with the number of objects done so far.

        Raises:
            UsageError: there is no such codec.
            StoreBusyError: a gc or another repack is running.
            NoSpaceError: what was repacked so far stays repacked.
        """
        from casstore.upkeep.repack import repack

        return repack(self._handle, codec, yes=yes, progress=progress)

    def verify(self, *, deep: bool = False, progress: Callable[[int], None] | None = None) -> VerifyReport:
        """Check rows against files; with `deep` read, decode and hash everything. Damage is noted, nothing is moved."""
        from casstore.upkeep.verify import verify

        return verify(self._handle, deep=deep, progress=progress)

    def gc(self, *, yes: bool = False, grace_hours: float | None = None) -> GcReport:
        """Remove objects that nobody refers to, and leftovers; without `yes`, say what would go.

        Args:
            yes: do it.
            grace_hours: how long garbage is kept; None: what casstore.toml says (24).
        """
        from casstore.upkeep.gc import collect

        return collect(self._handle, yes=yes, grace_hours=grace_hours)
