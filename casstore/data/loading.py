"""Reading items: files in the order of their shards, decoded straight into one tensor per name where shapes agree."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from casstore import fsio
from casstore.core.directory import Directory
from casstore.core.many import MEMORY_SPEED, PATIENCE
from casstore.core.read import read_part
from casstore.data.again import Again
from casstore.data.making import Maker
from casstore.data.manifest import NONE, Label, Manifest
from casstore.data.picks import Pick
from casstore.data.rows import Row
from casstore.errors import CorruptObjectError, MissError
from casstore.index.variants import VariantRow
from casstore.model import Miss, Stored, TensorInfo
from casstore.objects.files import read_into
from casstore.objects.payload import Layout, nbytes
from casstore.objects.planes import Bytes
from casstore.objects.scratch import ALIGNMENT, Recycled, Scratch, aligned
from casstore.objects.shared import Place, shared_tensor
from casstore.objects.tensors import batch_tensor, slots_of, tensor_over

_scratch = Scratch()
LARGE = 128 << 10  # bytes of a tensor; malloc asks the system for anew


class Job(NamedTuple):
    """An object to read.

    Attributes:
        digest: what it is called.
        number: of the item it is for.
        entry: of the manifest.
        stored: what the manifest says; None: there is no object, only zeros.
        out: {stored name: memory of that tensor}
        places: {stored name: where that tensor belongs in shared memory}
    """

    digest: bytes
    number: int
    entry: int
    stored: Stored | None
    out: dict[str, Bytes]
    places: dict[str, Place]

    @property
    def nbytes(self) -> int:
        """Of all its tensors."""
        return sum(map(len, self.out.values())) + sum(place.nbytes for place in self.places.values())


class Prepared(NamedTuple):
    """Items whose tensors are to be read.

    Attributes:
        rows: the items.
        jobs: in the order in which they are to be read.
        found: (row, where the variant of each label begins) of each item.
    """

    rows: list[Row]
    jobs: list[Job]
    found: list[tuple[int, list[int]]]


class Reader:
    """Reads the items of a manifest, in one process; threads may share it.

    Args:
        path: of the store.
        shard_hex: of the store.
        manifest: what may be read.
        makers: {label: what makes again what turns out damaged or gone}
    """

    def __init__(self, path: str, shard_hex: int, manifest: Manifest, makers: Mapping[str, Maker]) -> None:
        self._directory, self._manifest = Directory(path, shard_hex), manifest
        self._makers = makers
        self._moved: dict[int, Stored] = {}  # what is known better by now: objects that were repacked or made again
        self._wanted: dict[tuple[str, int], list[tuple[str, str, TensorInfo]]] = {}
        self._again = Again(path)
        self._memory = Recycled()
        self._cold = True  # whether the disk is worth a hint, which costs an open for each file; as the last batch was

    def prepare(self, picks: Sequence[Pick | int], *, shared: bool) -> Prepared:
        """The items, in the order they are asked for, without sources; their tensors hold anything before `read`.

        Args:
            picks: which.
            shared: put their tensors into memory that travels to another process without a copy.

        Raises:
            IndexError, UsageError: see `Manifest.find`.
        """
        manifest = self._manifest
        found = [manifest.find(pick) for pick in picks]
        batch: dict[str, Any] = {}
        items: list[dict[str, Any]] = []
        for row, _ in found:
            item: dict[str, Any] = {"sample": manifest.samples[row]}
            if manifest.groups is not None:
                item["group"] = manifest.groups[row]
            if row in manifest.facts:
                item |= manifest.facts[row]
            items.append(item)
        jobs: list[Job] = []
        for place, label in enumerate(manifest.labels):
            self._prepare(label, [entries[place] for _, entries in found], items, batch, jobs, shared=shared)
        jobs.sort(key=itemgetter(0))
        return Prepared([Row(item, batch=batch, place=number) for number, item in enumerate(items)], jobs, found)

    def read(self, prepared: Prepared) -> list[Row]:
        """Read what was prepared, in any thread; returns its items.

        Raises:
            MissError: an object is gone or damaged; names the sample, and the key of what is missing.
        """
        rows, jobs, _ = prepared
        began, spent = time.perf_counter(), time.thread_time()
        if self._cold and len(jobs) > 1:
            self._read_ahead(jobs)
        for job in jobs:
            if job.places:
                out = _laid_out(job, _scratch.take)
                self._read(job._replace(out=out), prepared)
                _write(job, out)
            else:
                self._read(job, prepared)
        waited = time.perf_counter() - began - (time.thread_time() - spent)  # decoding and copying isn't
        self._cold = waited > len(jobs) * PATIENCE + sum(job.nbytes for job in jobs) / MEMORY_SPEED
        return rows

    def _read_ahead(self, jobs: Sequence[Job]) -> None:
        """Let the disk begin with all files, in the order in which they are read."""
        for job in jobs:
            stored = self._moved.get(job.entry, job.stored)
            if stored is not None:
                fsio.will_read(self._directory.object(stored.digest, stored.codec))

    def _prepare(
        self,
        label: Label,
        entries: Sequence[int],
        items: list[dict[str, Any]],
        batch: dict[str, Any],
        jobs: list[Job],
        *,
        shared: bool,
    ) -> None:
        """Make the tensors of a label, and note what is to be read into them."""
        known = self._manifest.entries
        parts = [(number, part) for number, entry in enumerate(entries) for part in known.parts(entry)]
        all_parts = [part for _, part in parts]
        layouts: list[int] = known.layouts[all_parts].tolist()
        forms: list[tuple[int, ...]] = [()] * len(entries)
        for (number, _), layout in zip(parts, layouts, strict=True):
            forms[number] += (layout,)
        slots: dict[str, tuple[Sequence[Any], Sequence[Bytes | Place]]] = {}
        for name, info in self._alike(label, set(forms)).items():
            slots[name] = self._slots(name, info, len(entries), batch, shared=shared)
        for (number, part), layout, stored in zip(parts, layouts, known.stored(all_parts), strict=True):
            digest = stored.digest if stored is not None else b""
            job = Job(digest, number, part, stored, {}, {})
            for stored_name, name, info in self._tensors(label, layout):
                tensors, memories = slots.get(name) or self._slots(name, info, 1, {}, shared=False)
                place = number if name in slots else 0
                items[number][name], memory = tensors[place], memories[place]
                if isinstance(memory, Place):
                    job.places[stored_name] = memory
                else:
                    job.out[stored_name] = memory
            if job.out or job.places:
                jobs.append(job)
        for item, values in zip(items, known.values[entries].tolist(), strict=True):
            if values != NONE:
                item.update(self._values_of(label, values))

    def _tensors(self, label: Label, layout: int) -> list[tuple[str, str, TensorInfo]]:
        """(stored name, name in the items, dtype and shape) of what is wanted of a layout."""
        found = self._wanted.get((label.name, layout))
        if found is None:
            tensors = Layout.parse(self._manifest.entries.layout_texts[layout]).tensors
            named = ((stored, label.renamed(stored), info) for stored, info in tensors.items())
            found = [(stored, name, info) for stored, name, info in named if name is not None]
            self._wanted[label.name, layout] = found
        return found

    def _slots(
        self, name: str, info: TensorInfo, count: int, batch: dict[str, Any], *, shared: bool
    ) -> tuple[Sequence[Any], Sequence[Bytes | Place]]:
        """A new tensor in the batch: its items, and where their bytes go."""
        size = nbytes(info)
        made: tuple[Any, Sequence[Bytes | Place] | Bytes] | None = None
        if shared:
            made = shared_tensor(name, info, count)
        elif size * count >= LARGE:
            memory = self._memory.take(size * count)
            whole = TensorInfo(info.dtype, (count, *info.shape))
            made = tensor_over(name, whole, memory, as_numpy=False), memory.reshape(count, size)
        batch[name], places = made or batch_tensor(name, info, count, shared=shared)
        return slots_of(batch[name]), list(places)

    def _alike(self, label: Label, forms: Iterable[tuple[int, ...]]) -> dict[str, TensorInfo]:
        """The tensors that have the same dtype and shape in all of these forms; a form is the layouts of a variant."""
        first, *others = (
            {name: info for layout in form for _, name, info in self._tensors(label, layout)} for form in forms
        )
        return {name: info for name, info in first.items() if all(other.get(name) == info for other in others)}

    def _values_of(self, label: Label, number: int) -> dict[str, Any]:
        return _selected(label, self._manifest.entries.value_texts[number])

    def _read(self, job: Job, prepared: Prepared) -> None:
        stored = self._moved.get(job.entry, job.stored)
        if stored is None:
            for memory in job.out.values():
                memory.fill(0)
            return
        layout = Layout.parse(stored.layout)
        try:
            read_into(self._directory.object(stored.digest, stored.codec), stored, layout, job.out)
        except CorruptObjectError:
            self._reread(job, stored, layout, prepared)

    def _reread(self, job: Job, stored: Stored, layout: Layout, prepared: Prepared) -> None:
        """Read once more what the index knows better by now, or what is made again."""
        try:
            self._moved[job.entry] = self._again.read(stored, layout, job.out)
        except CorruptObjectError as error:
            row, begins = prepared.found[job.number]
            pairs = zip(self._manifest.labels, begins, strict=True)
            label, begin = next(pair for pair in pairs if job.entry in self._manifest.entries.parts(pair[1]))
            told = self._manifest.told(row) + (", the empty text" if begin == label.empty else "")
            maker = self._makers.get(label.name)
            if maker is None or self._again.opened().read_only:
                keys = self._again.keys(stored.digest, label.recipe_digest)
                advice = f"{error}. Build the plan again, and make the dataset anew"
                raise _miss(told, label, keys, stored, advice) from error
            plan = maker.planned(label, row, begin)
            try:
                made = maker.make(self._again.opened(), plan, told)
                others = [each for each in prepared.jobs if each.number == job.number and each.entry != job.entry]
                self._take(made, label, begin, job, others)
            except CorruptObjectError as why:
                raise _miss(told, label, [maker.key(plan).digest.hex()], stored, f"{error}; {why}") from why

    def _take(self, made: VariantRow, label: Label, begin: int, job: Job, others: Sequence[Job]) -> None:
        """Read all that an item has of a variant that was made again, so that nothing of what it was before stays.

        Raises:
            CorruptObjectError: it isn't like the one that the dataset knows.
        """
        known = self._manifest.entries
        values = int(known.values[begin])
        before = self._values_of(label, values) if values != NONE else {}
        parts = {part.layout: part for part in made.parts}
        for each in (job, *others):
            if each.entry not in known.parts(begin):
                continue
            part = parts.get(each.stored.layout) if each.stored is not None else None
            if part is None or _selected(label, made.values or "{}") != before:
                raise CorruptObjectError(
                    "it was made again, with other shapes, names or values than before; make the dataset anew"
                )
            out = job.out if each is job else _laid_out(each, aligned)
            read_part(self._again.opened(), part, Layout.parse(part.layout), out)
            if each is not job:
                _write(each, out)
            self._moved[each.entry] = part.stored

    def close(self) -> None:
        """Give back what was opened."""
        self._again.close()
        self._memory = Recycled()  # what is still in use goes back to the old one, and with it


def _laid_out(job: Job, take: Callable[[int], Bytes]) -> dict[str, Bytes]:
    """Memory for all tensors of an object: its own, and some of `take` for what belongs in shared memory."""
    memory = take(sum(place.nbytes + -place.nbytes % ALIGNMENT for place in job.places.values()))
    out, start = dict(job.out), 0
    for name, place in job.places.items():
        out[name] = memory[start : start + place.nbytes]
        start += place.nbytes + -place.nbytes % ALIGNMENT
    return out


def _write(job: Job, out: Mapping[str, Bytes]) -> None:
    """Bring what was read for shared memory there."""
    for name, place in job.places.items():
        place.write(out[name])


def _miss(told: str, label: Label, keys: Sequence[str], stored: Stored, why: str) -> MissError:
    where = f"{label.recipe}, key {' or '.join(keys) or 'not in the index any more'}, object {stored.digest.hex()}"
    return MissError(f"{told}: nothing to serve for its {label.name} ({where}): {why}", Miss("damaged", why))


def _selected(label: Label, text: str) -> dict[str, Any]:
    """The values that a label has in its items, of those in a JSON text."""
    values: dict[str, Any] = json.loads(text)
    return {name: value for stored, value in values.items() if (name := label.renamed(stored)) is not None}
