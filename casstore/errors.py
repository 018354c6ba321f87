"""Every error that casstore raises on purpose, in one tree.

    CasstoreError                          exit code 1
    ├── UsageError (ValueError)                      2   a call, recipe or option that can't be meant
    │   ├── AmbiguousResolutionError                     several resolutions are stored and none was named
    │   └── AmbiguousMembersError                        it is stored with several members and none were named
    ├── NotAStoreError                               3   no store here, or a file that isn't our index
    ├── StoreOutdatedError                           4   made by an older casstore; says how to upgrade
    ├── StoreTooNewError                             4   made by a newer casstore
    ├── StoreBusyError                               5   another process holds the lock longer than we wait
    ├── NoSpaceError (OSError)                       6   the disk or the quota is full
    ├── UnsafePlaceError                             7   a place where a store can't be kept
    ├── CorruptStoreError                            8   the index can't be read
    ├── CorruptObjectError                           8   an object's bytes aren't what they were
    ├── StorePermissionError (PermissionError)       9   the system doesn't let us
    │   └── StoreReadOnlyError                               the store was opened where it can only be read
    ├── StoreChangedError                            5   a store that can only be read is being written by its owner
    ├── StoreIOError (OSError)                       1   any other failure of the file system
    ├── MissError (KeyError)                         1   nothing is stored under the key; carries the Miss
    ├── SourceNotFoundError (FileNotFoundError)      1   the file that was asked for isn't there
    ├── SourceChangedError                           1   the file doesn't hold any more what was planned
    ├── PictureError                                 1   the file is no picture that can be decoded
    ├── TextError                                    1   the file is no text that can be read
    ├── IdentityMismatchError                        1   it was made with another recipe than the expected one
    ├── EncoderError                                 1   an encoder returned something that can't be stored
    │   └── NonFiniteError                               ... NaN or infinity
    ├── BuildStopped                               130   it was told to stop; carries the report, nothing is lost
    │   └── BuildInterrupted (KeyboardInterrupt)   130   ... by Ctrl-C
    └── ConflictError                                1   another result is stored under the key already

Each class takes one string, so that an error keeps its class on its way out of a worker process. A message says what
happened, to what, and what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from casstore.model import BuildReport, Miss


class CasstoreError(Exception):
    """Base of all errors that casstore raises on purpose."""

    exit_code: ClassVar[int] = 1

    def __str__(self) -> str:
        # KeyError would print the repr of its message, OSError an empty string.
        return str(self.args[0]) if self.args else type(self).__name__


class UsageError(CasstoreError, ValueError):
    """A call, a recipe or an option that can't be meant."""

    exit_code = 2


class AmbiguousResolutionError(UsageError):
    """Several resolutions of a picture are stored, and none was named."""


class AmbiguousMembersError(UsageError):
    """A content is stored together with different others (or alone too), and none were named."""


class NotAStoreError(CasstoreError):
    """There is no store at this path, or something else is."""

    exit_code = 3


class StoreOutdatedError(CasstoreError):
    """The store was made by an older casstore and must be upgraded first."""

    exit_code = 4


class StoreTooNewError(CasstoreError):
    """The store was made by a newer casstore."""

    exit_code = 4


class StoreBusyError(CasstoreError):
    """Another process holds a lock of the store for longer than we wait."""

    exit_code = 5


class NoSpaceError(CasstoreError, OSError):
    """The disk or the quota is full."""

    exit_code = 6


class UnsafePlaceError(CasstoreError):
    """A store can't be kept at this place."""

    exit_code = 7


class CorruptStoreError(CasstoreError):
    """The index can't be read."""

    exit_code = 8


class CorruptObjectError(CasstoreError):
    """An object's bytes aren't what they were when it was written."""

    exit_code = 8


class StorePermissionError(CasstoreError, PermissionError):
    """The operating system refuses the access."""

    exit_code = 9


class StoreReadOnlyError(StorePermissionError):
    """The store can only be read here: a read-only mount, or a folder that this user can't write."""


class StoreChangedError(CasstoreError):
    """A store that can only be read here is being written by its owner, so that no state of it can be read."""

    exit_code = 5


class StoreIOError(CasstoreError, OSError):
    """A failure of the file system that none of the other classes names."""


class MissError(CasstoreError, KeyError):
    """Nothing that can be served is stored under a key. `miss` says why.

    Attributes:
        miss: the reason; of several keys, that of the first.
        misses: {position: reason} of all keys that can't be served, where many were asked for.
    """

    def __init__(self, message: str, miss: Miss | None = None, misses: Mapping[int, Miss] | None = None) -> None:
        super().__init__(message)
        self.miss = miss
        self.misses = misses if misses is not None else {} if miss is None else {0: miss}


class SourceNotFoundError(CasstoreError, FileNotFoundError):
    """The file that was asked for isn't there or can't be read."""


class SourceChangedError(CasstoreError):
    """A file doesn't hold any more what was planned."""


class PictureError(CasstoreError):
    """The file is no picture that can be decoded whole."""


class TextError(CasstoreError):
    """The file is no text that a reader can read."""


class ConflictError(CasstoreError):
    """Another result is stored under a key already, and was kept."""


class IdentityMismatchError(CasstoreError):
    """Something was made with another recipe than the one that is expected.

    Attributes:
        fields: {binding field: (expected, got)} of those that differ; None: not given.
    """

    def __init__(self, message: str, fields: Mapping[str, tuple[Any, Any]] | None = None) -> None:
        super().__init__(message)
        self.fields = dict(fields or {})


class EncoderError(CasstoreError):
    """An encoder returned something that can't be stored."""


class NonFiniteError(EncoderError):
    """An encoder returned NaN or infinite numbers."""


class BuildStopped(CasstoreError):
    """A build was stopped before its end. `report` says what is done; all of that is stored."""

    exit_code = 130

    def __init__(self, message: str, report: BuildReport | None = None) -> None:
        super().__init__(message)
        self.report = report


class BuildInterrupted(BuildStopped, KeyboardInterrupt):
    """A build was stopped by Ctrl-C."""
