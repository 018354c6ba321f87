"""What is stored of plans, read in bulk: the only time that a dataset asks the index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from casstore.build.plan import LOOKUP_CHUNK, Plan
from casstore.core.handle import Handle
from casstore.core.read import lookup
from casstore.data.manifest import NONE, ZEROS, Entries, Texts
from casstore.identity.contents import text_content
from casstore.identity.keys import Key
from casstore.identity.resolutions import FULL
from casstore.index.states import State, States
from casstore.index.variants import Identity, identity
from casstore.model import CODECS, Miss


class Gathered:
    """Entries as they come; see `Entries`."""

    def __init__(self) -> None:
        self._digests = bytearray()
        self._nbytes: list[int] = []
        self._checksums: list[int] = []
        self._layouts: list[int] = []
        self._values: list[int] = []
        self._codecs: list[int] = []
        self._more: list[bool] = []
        self._layout_numbers: dict[str, int] = {}
        self._value_numbers: dict[str, int] = {}

    def add(self, state: State, states: States) -> int:
        """A variant; returns its entry."""
        entry = len(self._nbytes)
        text = states.values(state.values_id)
        values = NONE if text is None else self._value_numbers.setdefault(text, len(self._value_numbers))
        for part in state.parts:
            self._digests += part.object_digest
            self._nbytes.append(part.stored_bytes)
            self._checksums.append(part.stored_xxh3)
            self._layouts.append(self._layout(states.layout(part.layout_id)))
            self._values.append(values)
            self._codecs.append(CODECS.index(part.codec))
            self._more.append(True)
        self._more[-1] = False
        return entry

    def add_zeros(self, like: int) -> int:
        """An entry with tensors like those of another one, of zeros."""
        entry = len(self._nbytes)
        while True:
            self._digests += bytes(32)
            self._nbytes.append(0)
            self._checksums.append(0)
            self._layouts.append(self._layouts[like])
            self._values.append(NONE)
            self._codecs.append(ZEROS)
            self._more.append(self._more[like])
            if not self._more[like]:
                return entry
            like += 1

    def shapes(self, entry: int) -> tuple[int, ...]:
        """The layouts of a variant, by number."""
        end = entry
        while self._more[end]:
            end += 1
        return tuple(self._layouts[entry : end + 1])

    def _layout(self, text: str) -> int:
        return self._layout_numbers.setdefault(text, len(self._layout_numbers))

    def entries(self) -> Entries:
        """All of them."""
        return Entries(
            np.frombuffer(bytes(self._digests), np.uint8).reshape(-1, 32),
            np.array(self._nbytes, np.int64),
            np.array(self._checksums, np.int64),
            np.array(self._layouts, np.int32),
            np.array(self._values, np.int32),
            np.array(self._codecs, np.uint8),
            np.array(self._more, np.bool_),
            tuple(self._layout_numbers),
            Texts(self._value_numbers),
        )


@dataclass
class Found:
    """What is stored of one plan.

    Attributes:
        entries: of each triple; NONE: it can't be served, or is the empty text.
        misses: {number of a triple: why not}.
        names: of all tensors and values.
        empty: the entry of the empty text; NONE: it isn't stored.
    """

    entries: list[int]
    misses: dict[int, Miss] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    empty: int = NONE


def gather(handle: Handle, plan: Plan, wanted: Sequence[str], into: Gathered) -> Found:
    """Look up all triples of a plan.

    Args:
        handle: the open store.
        plan: what is asked for; what it missed may be stored by now.
        wanted: names without which a variant doesn't serve.
        into: gets the entries.
    """
    asked = plan.asked
    states = States(plan.recipe.digest, files=True)
    found = Found([NONE] * len(asked))
    needed, seen = frozenset(wanted), set()
    for start in range(0, len(asked), LOOKUP_CHUNK):
        keys = {number: asked.identity(number) for number in range(start, min(start + LOOKUP_CHUNK, len(asked)))}
        stored = _states(handle, states, [key for key in keys.values() if key is not None])
        absent = []
        for number, key in keys.items():
            state = None if key is None else stored.get(key)
            if state is None or not state.whole or not state.parts:
                absent.append(number)
            elif not needed <= state.names:
                found.misses[number] = Miss("output missing", ", ".join(sorted(needed - state.names)))
            else:
                entry = into.add(state, states)
                seen.add(state.names)
                if asked.row_number(number) == asked.empty_row:
                    found.empty = entry
                else:
                    found.entries[number] = entry
        _explain(handle, plan, absent, found)
    found.names.update(*seen)
    if found.empty == NONE and len(plan.roles) == 1 and len(asked):  # it may be stored though it wasn't asked for
        content = next(iter(asked.cells(0).values())).content if asked.cells(0) else None
        if content is not None and content.kind == "text":
            key = identity(Key(text_content(""), plan.recipe, FULL, 0, asked.params(0)))
            state = _states(handle, states, [key]).get(key)
            if state is not None and state.whole and needed <= state.names:
                found.empty = into.add(state, states)
    return found


def _states(handle: Handle, states: States, keys: Sequence[Identity]) -> dict[Identity, State]:
    if not keys:
        return {}
    with handle.index.glance() as connection:
        return states.find(connection, list({key[1]: None for key in keys}))


def _explain(handle: Handle, plan: Plan, absent: Sequence[int], found: Found) -> None:
    """Why these triples can't be served."""
    keys = {number: plan.asked.key(number) for number in absent if plan.asked.resolution(number) is not None}
    told = iter(lookup(handle, [key for key in keys.values() if key is not None])) if keys else iter(())
    for number in absent:
        miss = next(told) if keys.get(number) is not None else None
        found.misses[number] = (
            miss
            if isinstance(miss, Miss)
            else plan.missing.get(number) or Miss("changed while building", "it was stored just now; try again")
        )
