"""Reading many keys at once: one SELECT, files in the order of their shards, a few threads, results as asked for."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from casstore.core.handle import Handle
from casstore.core.pool import helped
from casstore.core.read import check_names, damaged, find_rows, load, miss_error, read_part, values_of
from casstore.errors import CorruptObjectError, MissError, UsageError
from casstore.identity.keys import Key
from casstore.index.variants import PartRow
from casstore.model import Miss, TensorInfo
from casstore.objects.payload import Layout
from casstore.objects.planes import Bytes
from casstore.objects.tensors import memory_of, new_tensor, slots_of

Result = dict[str, Any]

FEW = 4  # objects; so many are read sooner than other threads wake up
SMALL = 32 << 10  # bytes; a container of less is decoded sooner than another thread takes it
PATIENCE = 100e-6  # seconds per object, besides its bytes at MEMORY_SPEED; what takes longer comes from a slow disk
MEMORY_SPEED = 1 << 30  # bytes/s


@dataclass(slots=True)
class _Job:
    """One object to read: whose it is, and what of it goes where (None: new memory)."""

    number: int
    part: PartRow
    layout: Layout
    memory: dict[str, Bytes | None]


class _Slots:
    """The caller's memory: {name: [N, ...]}, one slot for each key.

    Raises:
        UsageError: it has no room for `count` keys, or isn't plain memory.
    """

    def __init__(self, out: Mapping[str, Any], count: int) -> None:
        self._tensors: dict[str, Sequence[Any]] = {}
        self._infos: dict[str, TensorInfo] = {}
        self._memory: dict[str, Bytes] = {}
        for name, value in out.items():
            info, memory = memory_of(name, value)
            if not info.shape or info.shape[0] != count:
                raise UsageError(f"out[{name!r}] has shape {list(info.shape)}; its first size must be {count}")
            self._tensors[name] = slots_of(value)
            self._infos[name] = TensorInfo(info.dtype, info.shape[1:])
            self._memory[name] = memory.reshape(count, -1) if count else memory

    def __contains__(self, name: str) -> bool:
        return name in self._infos

    def tensor(self, name: str, number: int) -> Any:
        """The slot of a key, as a view."""
        return self._tensors[name][number]

    def memory(self, key: Key, name: str, number: int, info: TensorInfo) -> Bytes:
        """The bytes of that slot.

        Raises:
            UsageError: what is stored has another dtype or shape.
        """
        slot = self._infos[name]
        if slot != info:
            raise UsageError(
                f"out[{name!r}] has room for {slot.dtype} {list(slot.shape)}, "
                f"but {info.dtype} {list(info.shape)} is stored for {key}"
            )
        found: Bytes = self._memory[name][number]
        return found


def load_many(
    handle: Handle,
    keys: Sequence[Key],
    *,
    names: Sequence[str] | None = None,
    out: Mapping[str, Any] | None = None,
    as_numpy: bool = False,
    return_misses: bool = False,
) -> list[Result | Miss]:
    """The tensors and values under many keys.

    Args:
        handle: the open store.
        keys: may repeat.
        names: of the tensors and values that are wanted, besides those in `out`; None: all, or with `out` the tensors
            in it and all values.
        out: {name: tensor or array [len(keys), ...]} to read into.
        as_numpy: arrays instead of CPU torch tensors.
        return_misses: put a Miss in the place of what can't be served.

    Raises:
        MissError: some can't be served; it names all of them.
        UsageError: a name that a variant doesn't have, or an `out` that doesn't fit; nothing was read.
    """
    slots = None if out is None else _Slots(out, len(keys))
    results: list[Result | Miss] = []
    jobs: list[_Job] = []
    for number, (key, row) in enumerate(zip(keys, find_rows(handle, keys), strict=True)):
        if isinstance(row, Miss):
            results.append(row)
            continue
        values = values_of(row)
        check_names(key, row, values, names or (), out or ())
        results.append({name: value for name, value in values.items() if names is None or name in names})
        for part in row.parts:
            layout = Layout.parse(part.layout)
            memory: dict[str, Bytes | None] = {}
            for name, info in layout.tensors.items():
                if slots is not None and name in slots:
                    memory[name] = slots.memory(key, name, number, info)
                elif name in names if names is not None else slots is None:
                    memory[name] = None
            if memory:
                jobs.append(_Job(number, part, layout, memory))
    for job, error in _run(handle, jobs, results, slots, as_numpy=as_numpy):
        known = results[job.number]
        if not isinstance(known, Miss):
            results[job.number] = _again(
                handle, keys[job.number], job, error, known, names=names, out=out, as_numpy=as_numpy
            )
    misses = {number: result for number, result in enumerate(results) if isinstance(result, Miss)}
    if misses and not return_misses:
        raise _all_missing(keys, misses)
    return results


def _run(
    handle: Handle, jobs: list[_Job], results: list[Result | Miss], slots: _Slots | None, *, as_numpy: bool
) -> list[tuple[_Job, CorruptObjectError]]:
    """Do the jobs in the order of the shards; returns those that failed.

    Threads take them one by one. There are helpers only where they don't just wait for each other in Python: if much
    has to be decoded, or once the disk turns out to be slow.
    """
    failed: list[tuple[_Job, CorruptObjectError]] = []
    jobs.sort(key=lambda job: job.part.object_digest)
    left = deque(jobs)

    def work(count: int = len(jobs)) -> None:
        for _ in range(count):
            try:
                job = left.popleft()
            except IndexError:
                return
            found: Result = {}
            memory: dict[str, Bytes] = {}
            for name, given in job.memory.items():
                if given is None or slots is None:
                    found[name], memory[name] = new_tensor(name, job.layout.tensors[name], as_numpy=as_numpy)
                else:
                    found[name], memory[name] = slots.tensor(name, job.number), given
            try:
                read_part(handle, job.part, job.layout, memory)
            except CorruptObjectError as error:
                failed.append((job, error))
            else:
                results[job.number] |= found  # type: ignore[operator]

    try:
        helpful = sum(job.part.codec != "raw" and job.part.stored_bytes > SMALL for job in jobs) > FEW
        if not helpful:
            began = time.perf_counter()
            work(FEW)
            took = time.perf_counter() - began
            helpful = took > FEW * PATIENCE + sum(job.part.stored_bytes for job in jobs[:FEW]) / MEMORY_SPEED
        with helped(work) if helpful and left else contextlib.nullcontext():
            work()
    finally:
        left.clear()  # after an error the helpers stop, too
    return failed


def _again(
    handle: Handle, key: Key, job: _Job, error: CorruptObjectError, known: Result, **options: Any
) -> Result | Miss:
    """What failed, noted as damaged; or read by itself, if it was healed meanwhile."""
    miss = damaged(handle, job.part.object_digest, error)
    if miss is not None:
        return miss
    names, out = options.pop("names"), options.pop("out")
    if out is not None:
        out = {name: value[job.number : job.number + 1].reshape(value.shape[1:]) for name, value in out.items()}
    wanted = None if names is None and out is None else {*(names or ()), *(out or ()), *known}
    try:
        return load(handle, key, names=None if wanted is None else list(wanted), out=out, **options)
    except MissError as late:
        return late.miss or Miss("damaged", str(late))


def _all_missing(keys: Sequence[Key], misses: Mapping[int, Miss]) -> MissError:
    first = next(iter(misses))
    if len(misses) == 1:
        return MissError(str(miss_error(keys[first], misses[first])), misses[first], misses)
    told = "; ".join(f"{keys[number]}: {miss}" for number, miss in list(misses.items())[:10])
    more = f"; and {len(misses) - 10} more" if len(misses) > 10 else ""
    return MissError(f"nothing to serve for {len(misses)} of {len(keys)} keys: {told}{more}", misses[first], misses)
