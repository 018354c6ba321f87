"""Tensors that travel to another process of this machine without a copy."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from casstore.model import TensorInfo
from casstore.objects.payload import nbytes
from casstore.objects.planes import Bytes
from casstore.objects.tensors import new_tensor


class Place(NamedTuple):
    """Where the bytes of a tensor belong in a file that is its memory."""

    descriptor: int
    offset: int
    nbytes: int

    def write(self, data: Bytes) -> None:
        """Put all of them there."""
        left, offset = data.data, self.offset
        while left:
            count = os.pwrite(self.descriptor, left, offset)
            left, offset = left[count:], offset + count


def shared_tensor(name: str, info: TensorInfo, count: int) -> tuple[Any, list[Place]] | None:
    """A new torch tensor of zeros for `count` tensors of the same dtype and shape, in shared memory; and its places.

    The places are to be written to: pages that only the kernel touches cost no page faults, which are most of what new
    shared memory costs (docs/performance.md). They are valid as long as the tensor is there.

    Args:
        name: for the error.
        info: dtype and shape of each.
        count: how many.

    Returns:
        None: this system, or torch as it is set, has no such memory.

    Raises:
        UsageError: a dtype that this torch doesn't have.
    """
    import torch
    from torch.multiprocessing import get_sharing_strategy

    size = nbytes(info)
    new_shared = getattr(torch.UntypedStorage, "_new_shared_fd_cpu", None)
    strategy: str = get_sharing_strategy()  # type: ignore[no-untyped-call]
    if new_shared is None or not size * count or strategy != "file_descriptor":
        return None
    try:
        descriptor = os.memfd_create("casstore", os.MFD_CLOEXEC)
    except (AttributeError, OSError):
        return None
    try:
        os.ftruncate(descriptor, size * count)
        storage = new_shared(descriptor, size * count)
    finally:
        os.close(descriptor)  # torch has one of its own
    own, _ = storage._share_fd_cpu_()
    whole = new_tensor(name, TensorInfo(info.dtype, (0,)), as_numpy=False)[0].set_(storage)
    return whole.view(count, *info.shape), [Place(own, size * number, size) for number in range(count)]
