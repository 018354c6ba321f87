"""Making again what turns out damaged or missing, with the encoder that a dataset was given for it."""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import dataclass, replace

from casstore.build.builder import build
from casstore.build.decode import SOURCE_CHANGED
from casstore.build.options import Options
from casstore.build.plan import Plan
from casstore.core.handle import Handle
from casstore.core.read import find_rows
from casstore.data.manifest import Array, Label
from casstore.errors import BuildStopped, CasstoreError, CorruptObjectError
from casstore.identity.keys import Key
from casstore.identity.recipes import Encode
from casstore.index.variants import VariantRow
from casstore.model import Miss

_log = logging.getLogger("casstore.data")
_making = threading.RLock()  # an encoder is called by one thread at a time


@dataclass(frozen=True)
class Maker:
    """An encoder, and what it is to encode. It travels with the dataset, and so do the rows of the plan.

    Attributes:
        plan: of a label.
        encode: as for `Store.build`.
        numbers: int32 [variants], beside `Label.entries`: the triple of each.
    """

    plan: Plan
    encode: Encode
    numbers: Array

    @classmethod
    def of(cls, plan: Plan, encode: Encode, numbers: Array) -> Maker:
        """A maker for what a dataset has of a plan."""
        # Each triple has its resolution by now: a function that chose it needn't travel.
        resolution = None if callable(plan.resolution) else plan.resolution
        kept = replace(plan, resolution=resolution, missing={}, lacking={}, notes=())
        return cls(kept, encode, numbers)

    def planned(self, label: Label, row: int, entry: int) -> Plan:
        """The plan of one variant, as a miss.

        Args:
            label: it is of this one.
            row: and of this one, unless it is that of the empty text.
            entry: where it begins.
        """
        miss = Miss("damaged", "found by a dataset")
        if entry == label.empty:
            asked = self.plan.asked.only_empty_text()
            return replace(self.plan, asked=asked, missing={0: miss})
        place = int(label.first[row])
        while label.entries[place] != entry:
            place += 1
        return self.plan.only(int(self.numbers[place]), miss)

    def make(self, handle: Handle, plan: Plan, told: str) -> VariantRow:
        """Encode one variant and store it, unless somebody else did so meanwhile; what the index has of it then.

        Args:
            handle: the open store.
            plan: of it alone.
            told: the row, for the log.

        Raises:
            CorruptObjectError: it can't be made; says why.
        """
        with _making:
            try:
                # Signals stay whose they are: a worker of a DataLoader has its own way to end.
                report = build(handle, plan, self.encode, Options(catch_signals=False))
            except BuildStopped:
                raise
            except CasstoreError as error:
                raise CorruptObjectError(f"it couldn't be made again: {error}") from error
        if report.encoded:
            _log.warning("%s: what was stored with %s was damaged or gone; made again", told, plan.recipe.name)
        for failure in report.failures:
            if failure.error == SOURCE_CHANGED:
                raise CorruptObjectError(
                    f"it can't be made again: {failure.path or 'its content'} was edited since it was planned; "
                    "scan and plan again"
                )
            raise CorruptObjectError(f"it couldn't be made again: {failure.error}: {failure.message}")
        row = find_rows(handle, [self.key(plan)])[0]
        if isinstance(row, Miss):
            raise CorruptObjectError(f"it couldn't be made again: {row}")
        return row

    @staticmethod
    def key(plan: Plan) -> Key:
        """What the only triple of a plan is stored under."""
        key = plan.asked.key(0)
        assert key is not None
        return key


def _forget_parent() -> None:
    global _making
    _making = threading.RLock()  # a thread of the parent may have held it


os.register_at_fork(after_in_child=_forget_parent)
