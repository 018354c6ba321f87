"""A dataset as a stream; its own module, since it needs torch to be defined at all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset, get_worker_info

from casstore.errors import UsageError

if TYPE_CHECKING:
    from casstore.data.dataset import Dataset


class Stream(IterableDataset[Any]):
    """The items of a dataset in order.

    Args:
        dataset: what is streamed.
        batch_size: how many items are read at a time.
    """

    def __init__(self, dataset: Dataset, batch_size: int) -> None:
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise UsageError(f"batch_size is a number from 1 on, not {batch_size!r}")
        self._dataset, self._batch_size = dataset, batch_size

    def __iter__(self) -> Iterator[Any]:
        """The items; of several workers each has every n-th run of `batch_size`, so that none comes twice."""
        worker = get_worker_info()
        number, count = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        size, total = self._batch_size, len(self._dataset)
        for start in range(number * size, total, count * size):
            yield from self._dataset.__getitems__(range(start, min(start + size, total)))

    def __len__(self) -> int:
        return len(self._dataset)
