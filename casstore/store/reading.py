"""The methods of a store that read by key or path."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from casstore.errors import MissError, UsageError
from casstore.identity import resolutions
from casstore.identity.keys import Key
from casstore.identity.recipes import Recipe

if TYPE_CHECKING:
    from casstore.core.handle import Handle
    from casstore.model import Hit, Miss, TensorInfo

Path = str | os.PathLike[str]


class _TheOnlyOne:
    def __repr__(self) -> str:
        return "THE_ONLY_ONE"


THE_ONLY_ONE: Final = _TheOnlyOne()
"""The resolution that is stored, if there is just one."""

Wanted = resolutions.Resolutions | _TheOnlyOne


class Reading:
    """What can be read from an open store."""

    _handle: Handle

    def key(
        self,
        path: Path,
        recipe: Recipe,
        *,
        resolution: Wanted = THE_ONLY_ONE,
        variation: int = 0,
        members: Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> Key:
        """The key of a file as it is now. A known file costs one stat, any other is read and hashed.

        Args:
            path: the file.
            recipe: what its tensors are made with.
            resolution: N, "HxW", or None (the full size); if it isn't given: the only one that is stored.
            variation: counts from 0.
            members: {role: path, text, tensor or array} of what it was encoded together with, see `Key.of`; {}: alone;
                if it isn't given: the only ones that are stored.
            params: what it was encoded with besides.

        Raises:
            SourceNotFoundError: the file isn't there.
            AmbiguousResolutionError: none was given and several are stored; it lists them.
            AmbiguousMembersError: none were given and it is stored with different ones; it lists them.
            PictureError: N was given and the picture's size can't be told.
        """
        from casstore.store.forms import key_of_file

        only = isinstance(resolution, _TheOnlyOne)
        wanted = None if isinstance(resolution, _TheOnlyOne) else resolutions.check(resolution)
        return key_of_file(
            self._handle, path, recipe, wanted, only_one=only, variation=variation, members=members, params=params
        )

    def lookup(self, key: Key) -> Hit | Miss:
        """What is known of a key; opens no object."""
        from casstore.core.read import lookup
        from casstore.index.readonly import retried

        if not isinstance(key, Key):
            raise UsageError(
                f"lookup needs a casstore.Key, not {type(key).__name__}; store.key(path, recipe) makes one"
            )
        return retried(lambda: lookup(self._handle, [key])[0])

    def layout(self, digest: str) -> Mapping[str, TensorInfo] | None:
        """{tensor name: dtype and shape} of an object (hex digest, as in `Hit.digests`); opens no object.

        Returns:
            None if the store has no such object.

        Raises:
            UsageError: that is no digest.
            CorruptObjectError: the layout in the index is damaged.
        """
        from casstore.core.read import layout_of
        from casstore.index.readonly import retried

        try:
            raw = bytes.fromhex(digest)
        except (TypeError, ValueError):
            raw = b""
        if len(raw) != 32 or len(digest) != 64:  # fromhex steps over blanks
            raise UsageError(f"{digest!r} isn't the digest of an object: 64 hex digits")
        return retried(lambda: layout_of(self._handle, raw))

    def get(
        self,
        what: Key | Path,
        recipe: Recipe | None = None,
        *,
        resolution: Wanted = THE_ONLY_ONE,
        variation: int = 0,
        members: Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
        names: Sequence[str] | None = None,
        out: Mapping[str, Any] | None = None,
        as_numpy: bool = False,
        mmap: bool = False,
    ) -> dict[str, Any]:
        """The tensors and values of a key or file, as the encoder returned them.

        Args:
            what: a key, or the path of a file (as it is now: an edited file is a miss).
            recipe: with a path: what the tensors were made with.
            resolution, variation, members, params: with a path, see `key`.
            names: of the tensors and values that are wanted, besides those in `out`; None: all. Other tensors aren't
                read.
            out: {name: tensor or array of the stored dtype and shape} to read into instead of new memory.
            as_numpy: NumPy arrays instead of CPU torch tensors; torch isn't imported then.
            mmap: tensors over a private mapping of the file, which is checked the first time; the object has to be
                stored with codec "raw". Writing to such a tensor never reaches the file.

        Raises:
            MissError: nothing is stored for it; `.miss` says why.
            UsageError: no such name, an `out` that doesn't fit, or an object that can't be mapped.
            SourceNotFoundError: the file isn't there.
            AmbiguousResolutionError, AmbiguousMembersError: several are stored and none was given.
        """
        from casstore.core.read import load
        from casstore.index.readonly import retried

        return retried(
            lambda: load(
                self._handle,
                self._key(what, recipe, resolution, variation, members, params),
                names=names,
                out=out,
                as_numpy=as_numpy,
                mmap=mmap,
            )
        )

    def get_many(
        self,
        keys: Sequence[Key],
        *,
        names: Sequence[str] | None = None,
        out: Mapping[str, Any] | None = None,
        as_numpy: bool = False,
        on_miss: Literal["raise", "return"] = "raise",
    ) -> list[dict[str, Any] | Miss]:
        """The tensors and values of many keys, by a few threads; one query for all of them.

        Args:
            keys: in the order of the results.
            names: of the tensors and values that are wanted, besides those in `out`; None: all, or with `out` the
                tensors in it and all values.
            out: {name: tensor or array [len(keys), ...]}, such as a pinned batch: each result is read into its slot,
                and holds a view of it.
            as_numpy: NumPy arrays instead of CPU torch tensors.
            on_miss: "raise": a MissError that names all keys that can't be served; "return": the Miss in its place; its
                slot stays as it was, or holds anything if the object was found damaged while it was read.

        Raises:
            MissError: see `on_miss`; `.misses` has the reason at each position.
            UsageError: a name that isn't stored, or an `out` that doesn't fit; nothing was read.
        """
        from casstore.core.many import load_many
        from casstore.index.readonly import retried

        for key in keys:
            if not isinstance(key, Key):
                raise UsageError(f"get_many needs casstore.Keys, not {type(key).__name__}; store.key makes one")
        if on_miss not in ("raise", "return"):
            raise UsageError(f"on_miss is 'raise' or 'return', not {on_miss!r}")
        return retried(
            lambda: load_many(
                self._handle, keys, names=names, out=out, as_numpy=as_numpy, return_misses=on_miss == "return"
            )
        )

    def get_or_encode(
        self,
        key: Key,
        fn: Callable[[], Mapping[str, Any]],
        *,
        as_numpy: bool = False,
        allow_nonfinite: bool = False,
    ) -> dict[str, Any]:
        """What is stored under a key; if nothing is, `fn()` makes it and it is stored.

        Returns:
            What a later `get` returns: if another writer was first, its result.

        Raises:
            EncoderError: what `fn` returned can't be stored.
        """
        from casstore.core.put import PutItem, put_group
        from casstore.core.read import load
        from casstore.core.results import check_result

        try:
            return self.get(key, as_numpy=as_numpy)
        except MissError as error:
            self._handle.check_writable()
            reason = error.miss.reason if error.miss is not None else "new"
        started = time.perf_counter()
        made = fn()
        encode_us = round((time.perf_counter() - started) * 1e6)
        result = check_result(key, made, allow_nonfinite=allow_nonfinite)
        put_group(self._handle, [PutItem(key, result, reason, encode_us)])
        return load(self._handle, key, as_numpy=as_numpy)

    def _key(
        self,
        what: Key | Path,
        recipe: Recipe | None,
        resolution: Wanted,
        variation: int,
        members: Mapping[str, Any] | None,
        params: Mapping[str, Any] | None,
    ) -> Key:
        if isinstance(what, Key):
            only = isinstance(resolution, _TheOnlyOne)
            if recipe is not None or not only or variation or (members, params) != (None, None):
                raise UsageError(
                    "a key has its recipe, resolution, variation, members and params already; leave them out"
                )
            return what
        if recipe is None:
            raise UsageError(f"which recipe? store.get({os.fspath(what)!r}, recipe)")
        return self.key(what, recipe, resolution=resolution, variation=variation, members=members, params=params)
