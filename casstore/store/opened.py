"""Opening a store, and what is done with one: thin methods over the layers below."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from casstore.errors import StoreOutdatedError
from casstore.identity.keys import Key
from casstore.identity.recipes import Recipe
from casstore.store.asking import Asking
from casstore.store.building import Building
from casstore.store.reading import Path, Reading
from casstore.store.recipes import Recipes
from casstore.store.training import Training

if TYPE_CHECKING:
    from casstore.core.batch import Batch
    from casstore.core.put import OnConflict
    from casstore.index.query import Table
    from casstore.model import Codec, GcReport, RepackReport, Status, VerifyReport
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


class Store(Building, Reading, Recipes, Asking, Training):
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

    def status(self) -> Status:
        """What the store holds, in numbers."""
        from casstore.index.readonly import retried
        from casstore.upkeep.status import status

        return retried(lambda: status(self._handle))

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

    def sql(
        self, query: str, parameters: Sequence[Any] = (), *, limit: int | None = None, seconds: float | None = None
    ) -> Table:
        """The rows of one SELECT over the index; docs/sql.md has the views. Nothing can be changed by it.

        Args:
            query: the statement.
            parameters: for its question marks.
            limit: the most rows to return (`more` says that there are others); None: a million.
            seconds: how long it may take; None: a minute.

        Raises:
            UsageError: it isn't a SELECT, can't be understood, or took too long.
        """
        from casstore.index.query import ROW_LIMIT, SECONDS, run_query
        from casstore.index.readonly import retried

        self._handle.check_open()
        limits = (ROW_LIMIT if limit is None else limit, SECONDS if seconds is None else seconds)
        index = self._handle.index
        return retried(lambda: run_query(index, query, parameters, limit=limits[0], seconds=limits[1]))

    def copy_index(self, path: Path) -> None:
        """Write a copy of the index, in one state, to a file that doesn't exist yet: for DuckDB, datasette, pandas.

        Raises:
            UsageError: the file exists.
            NoSpaceError, StorePermissionError, StoreIOError
        """
        from casstore.index.copy import copy_index
        from casstore.index.readonly import retried

        self._handle.check_open()
        retried(lambda: copy_index(self._handle.index, os.path.abspath(os.fspath(path))))
