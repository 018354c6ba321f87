"""The dataset: what is stored of some plans, joined by row, as torch's DataLoader or a loop of your own reads it."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

from casstore.build.plan import Plan
from casstore.core.handle import Handle
from casstore.data.batches import batches
from casstore.data.join import Missing, Names, join
from casstore.data.lease import Lease
from casstore.data.loading import Prepared, Reader
from casstore.data.making import Maker
from casstore.data.manifest import Array, Manifest
from casstore.data.picks import Pick
from casstore.data.rows import Row, register
from casstore.data.sources import Source, source_of
from casstore.errors import UsageError
from casstore.identity.recipes import Encode
from casstore.identity.resolutions import FULL

if TYPE_CHECKING:
    from casstore.data.stream import Stream


class Dataset:
    """A map-style dataset: `len`, `dataset[i]`, and whole batches for torch's DataLoader. Made by `Store.dataset`.

    An item is a `Row`: its tensors (CPU) under their stored names, the values stored beside them, the values of the
    row, `sample`, and `group` if any row has one. Once it is made, no item costs a query. It may be pickled, forked and
    shared by threads; gc keeps all that it may read until every process has closed it or ended.

    Attributes:
        skipped: rows that were left out since not all of them is stored.
        zeros: variants that are zeros since they aren't stored.
    """

    def __init__(
        self,
        handle: Handle,
        plans: Mapping[str, Plan],
        *,
        names: Names | None = None,
        missing: Missing = "error",
        source: Source | None = None,
        encoders: Mapping[str, Encode] | None = None,
    ) -> None:
        """See `Store.dataset`."""
        _check_encoders(encoders or {}, plans)
        if source is not None and source not in get_args(Source):
            raise UsageError(f"source is one of {', '.join(map(repr, get_args(Source)))}, not {source!r}")
        self._path, self._shard_hex, self._source = handle.directory.path, handle.directory.shard_hex, source
        recipes = [plan.recipe.digest for plan in plans.values() if isinstance(plan, Plan)]
        self._lease = Lease(handle, recipes)  # before the first look, so that nothing of it can go
        try:
            reserved = ["sample", "group", *([source] if source else [])]
            found = join(handle, plans, names, missing, reserved, source=source)
        except BaseException:
            self._lease.close()
            raise
        self.skipped, self.zeros = found.skipped, found.zeros
        numbers = found.numbers
        self._makers = {name: Maker.of(plans[name], encode, numbers[name]) for name, encode in (encoders or {}).items()}
        self._open(found.manifest)

    def _open(self, manifest: Manifest) -> None:
        self._manifest, self._closed = manifest, False
        self._reader = Reader(self._path, self._shard_hex, manifest, self._makers)
        self._finalizer = weakref.finalize(self, _close, self._lease, self._reader)
        register()

    def __len__(self) -> int:
        return len(self._manifest)

    def __getitem__(self, pick: int | Pick) -> Row:
        """One item: variation 0 of each label at the row's only resolution, or what a `Pick` says.

        Raises:
            IndexError: there is no such row.
            UsageError: no such variant, or several resolutions and none was named.
            MissError: an object is damaged or gone; it names the sample and the key.
        """
        return self._items([pick], shared=False)[0]

    def __getitems__(self, picks: Sequence[int | Pick]) -> list[Row]:
        """A batch of items, read together: views of one tensor per name where their shapes agree.

        In a worker of a DataLoader that tensor is in shared memory. Raises as for one item.
        """
        from torch.utils.data import get_worker_info

        return self._items(picks, shared=get_worker_info() is not None)

    def _items(self, picks: Sequence[int | Pick], *, shared: bool) -> list[Row]:
        return self._read(self._prepare(picks, shared=shared))

    def _prepare(self, picks: Sequence[int | Pick], *, shared: bool) -> Prepared:
        if self._closed:
            raise UsageError("the dataset is closed; make it again")
        self._lease.ensure()
        return self._reader.prepare(picks, shared=shared)

    def _read(self, prepared: Prepared) -> list[Row]:
        rows = self._reader.read(prepared)
        if self._source is not None:
            for row, (number, _) in zip(rows, prepared.found, strict=True):
                row[self._source] = source_of(self._manifest, number, self._source)
        return rows

    @property
    def labels(self) -> tuple[str, ...]:
        """What the plans are called here."""
        return tuple(label.name for label in self._manifest.labels)

    @property
    def weights(self) -> Array:
        """How often each row counts, float64 [rows], for a sampler."""
        return self._manifest.weights.copy()

    def sample(self, index: int) -> str:
        """The name of a row."""
        found: str = self._manifest.samples[self._manifest.row(index)]
        return found

    def group(self, index: int) -> str:
        """The group of a row."""
        row, groups = self._manifest.row(index), self._manifest.groups
        return groups[row] if groups is not None else ""

    def resolutions(self, index: int) -> tuple[str, ...]:
        """The resolutions of a row, "HxW", over all labels; none if it has only texts or full sizes."""
        row = self._manifest.row(index)
        found = (each for label in self._manifest.labels for each in label.resolutions(row))
        return tuple(dict.fromkeys(each for each in found if each != FULL))

    def variations(self, index: int) -> dict[str, int]:
        """{label: how many variations there are of a row}"""
        row = self._manifest.row(index)
        return {label.name: label.variations(row) for label in self._manifest.labels}

    def shape(self, pick: int | Pick) -> dict[str, tuple[int, ...]]:
        """{name: shape} of the tensors of an item; opens no file. Raises as `dataset[pick]` does."""
        _, entries = self._manifest.find(pick)
        pairs = zip(self._manifest.labels, entries, strict=True)
        return {name: info.shape for label, entry in pairs for _, _, name, info in self._manifest.tensors(label, entry)}

    def batches(
        self, sampler: Iterable[Any], batch_size: int | None = None, *, threads: int = 2, prefetch: int = 2
    ) -> Iterator[dict[str, Any]]:
        """Batches as a DataLoader makes them, read by threads of this process: faster where its CPU is free.

        Args:
            sampler: batches of indices or Picks; with `batch_size`, indices or Picks.
            batch_size: how many of them make a batch; the last one may be smaller.
            threads: that read, a batch each.
            prefetch: batches that are read ahead.

        Raises:
            UsageError, MissError: as for an item.
        """
        return batches(self._prepare, self._read, sampler, batch_size, threads=threads, prefetch=prefetch)

    def stream(self, *, batch_size: int = 16) -> Stream:
        """The items in order, as a torch IterableDataset; each worker of a DataLoader yields its share.

        Args:
            batch_size: how many are read at a time.
        """
        from casstore.data.stream import Stream

        return Stream(self, batch_size)

    def close(self) -> None:
        """Let gc have what only this dataset kept. Closing twice is fine; nothing can be read any more."""
        self._closed = True
        self._finalizer()

    def __enter__(self) -> Dataset:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        if self._closed:
            raise UsageError("a closed dataset can't be sent to another process; make it again")
        kept = ("_path", "_shard_hex", "_source", "_lease", "_manifest", "_makers", "skipped", "zeros")
        return {name: self.__dict__[name] for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open(state["_manifest"])

    def __repr__(self) -> str:
        return f"<casstore.data.Dataset: {len(self)} rows of {', '.join(self.labels)} from {self._path}>"


def _check_encoders(encoders: Mapping[str, Encode], plans: Mapping[str, Plan]) -> None:
    for label, encode in encoders.items():
        if label not in plans:
            raise UsageError(f"encoders: there is no {label} here, only {', '.join(plans) or 'nothing'}")
        if not callable(encode):
            raise UsageError(f"encoders[{label!r}] is {type(encode).__name__}; give what store.build takes")


def _close(lease: Lease, reader: Reader) -> None:
    reader.close()
    lease.close()
