"""Reading items: files in the order of their shards, decoded straight into one tensor per name where shapes agree."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from casstore import fsio
from casstore.core.directory import Directory
from casstore.core.many import MEMORY_SPEED, PATIENCE
from casstore.core.read import read_part
from casstore.data.again import Again
from casstore.data.making import Maker
from casstore.data.manifest import ZEROS, Label, Manifest
from casstore.data.picks import Pick
from casstore.data.rows import Row
from casstore.errors import CorruptObjectError, MissError
from casstore.index.variants import VariantRow
from casstore.model import CODECS, Miss, Stored, TensorInfo
from casstore.objects.files import read_into
from casstore.objects.planes import Bytes
from casstore.objects.tensors import batch_tensor, slots_of

Job = tuple[bytes, int, int, dict[str, Bytes]]
"""An object to read: its digest, the number of the item it is for, its entry, and what goes where."""


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
        self._again = Again(path)
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
        jobs.sort(key=lambda job: job[0])
        return Prepared([Row(item, batch=batch, place=number) for number, item in enumerate(items)], jobs, found)

    def read(self, prepared: Prepared) -> list[Row]:
        """Read what was prepared, in any thread; returns its items.

        Raises:
            MissError: an object is gone or damaged; names the sample, and the key of what is missing.
        """
        rows, jobs, _ = prepared
        began = time.perf_counter()
        if self._cold and len(jobs) > 1:
            self._read_ahead(jobs)
        for job in jobs:
            self._read(job, prepared)
        nbytes = sum(len(memory) for job in jobs for memory in job[3].values())
        self._cold = time.perf_counter() - began > len(jobs) * PATIENCE + nbytes / MEMORY_SPEED
        return rows

    def _read_ahead(self, jobs: Sequence[Job]) -> None:
        """Let the disk begin with all files, in the order in which they are read."""
        entries = self._manifest.entries
        for digest, _, entry, _ in jobs:
            if entries.codecs[entry] != ZEROS:
                stored = self._moved.get(entry)
                codec = stored.codec if stored is not None else CODECS[entries.codecs[entry]]
                digest = digest if stored is None else stored.digest
                fsio.will_read(self._directory.object(digest, codec))

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
        tensors = [list(self._manifest.tensors(label, entry)) for entry in entries]
        infos: dict[str, list[TensorInfo]] = {}
        for found in tensors:
            for _, _, name, info in found:
                infos.setdefault(name, []).append(info)
        slots: dict[str, tuple[Any, list[Bytes]]] = {}
        for name, each in infos.items():
            if len(each) == len(entries) and all(info == each[0] for info in each):
                batch[name], memory = batch_tensor(name, each[0], len(entries), shared=shared)
                slots[name] = slots_of(batch[name]), list(memory)
        for number, (entry, found) in enumerate(zip(entries, tensors, strict=True)):
            parts: dict[int, dict[str, Bytes]] = {}
            for part, stored, name, info in found:
                if name in slots:
                    items[number][name], memory = slots[name][0][number], slots[name][1][number]
                else:
                    whole, one = batch_tensor(name, info, 1, shared=False)
                    items[number][name], memory = whole[0], one[0]
                parts.setdefault(part, {})[stored] = memory
            for part, out in parts.items():
                jobs.append((known.digests[part].tobytes(), number, part, out))
            if known.values[entry] >= 0:
                items[number].update(self._values_of(label, int(known.values[entry])))

    def _values_of(self, label: Label, number: int) -> dict[str, Any]:
        return _selected(label, self._manifest.entries.value_texts[number])

    def _read(self, job: Job, prepared: Prepared) -> None:
        _, _, entry, out = job
        entries = self._manifest.entries
        if entries.codecs[entry] == ZEROS:
            for memory in out.values():
                memory.fill(0)
            return
        stored = self._moved.get(entry) or entries.stored(entry)
        try:
            read_into(self._directory.object(stored.digest, stored.codec), stored, entries.layout(entry), out)
        except CorruptObjectError:
            self._reread(job, stored, prepared)

    def _reread(self, job: Job, stored: Stored, prepared: Prepared) -> None:
        """Read once more what the index knows better by now, or what is made again."""
        _, number, entry, out = job
        try:
            self._moved[entry] = self._again.read(stored, self._manifest.entries.layout(entry), out)
        except CorruptObjectError as error:
            row, begins = prepared.found[number]
            pairs = zip(self._manifest.labels, begins, strict=True)
            label, begin = next(pair for pair in pairs if entry in self._manifest.entries.parts(pair[1]))
            told = self._manifest.told(row) + (", the empty text" if begin == label.empty else "")
            maker = self._makers.get(label.name)
            if maker is None or self._again.opened().read_only:
                keys = self._again.keys(stored.digest, label.recipe_digest)
                advice = f"{error}. Build the plan again, and make the dataset anew"
                raise _miss(told, label, keys, stored, advice) from error
            plan = maker.planned(label, row, begin)
            try:
                made = maker.make(self._again.opened(), plan, told)
                self._take(made, label, begin, [each for each in prepared.jobs if each[1] == number])
            except CorruptObjectError as why:
                raise _miss(told, label, [maker.key(plan).digest.hex()], stored, f"{error}; {why}") from why

    def _take(self, made: VariantRow, label: Label, begin: int, jobs: Sequence[Job]) -> None:
        """Read all that an item has of a variant that was made again, so that nothing of what it was before stays.

        Raises:
            CorruptObjectError: it isn't like the one that the dataset knows.
        """
        known = self._manifest.entries
        values = known.values[begin]
        before = self._values_of(label, int(values)) if values >= 0 else {}
        parts = {part.layout: part for part in made.parts}
        for _, _, entry, out in jobs:
            if entry not in known.parts(begin):
                continue
            part = parts.get(known.stored(entry).layout)
            if part is None or _selected(label, made.values or "{}") != before:
                raise CorruptObjectError(
                    "it was made again, with other shapes, names or values than before; make the dataset anew"
                )
            read_part(self._again.opened(), part, known.layout(entry), out)
            self._moved[entry] = part.stored

    def close(self) -> None:
        """Give back what was opened."""
        self._again.close()


def _miss(told: str, label: Label, keys: Sequence[str], stored: Stored, why: str) -> MissError:
    where = f"{label.recipe}, key {' or '.join(keys) or 'not in the index any more'}, object {stored.digest.hex()}"
    return MissError(f"{told}: nothing to serve for its {label.name} ({where}): {why}", Miss("damaged", why))


def _selected(label: Label, text: str) -> dict[str, Any]:
    """The values that a label has in its items, of those in a JSON text."""
    values: dict[str, Any] = json.loads(text)
    return {name: value for stored, value in values.items() if (name := label.renamed(stored)) is not None}
