"""The methods of a store that are about training."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from casstore.build.plan import Plan
    from casstore.core.handle import Handle
    from casstore.data.dataset import Dataset
    from casstore.data.join import Missing, Names
    from casstore.data.sources import Source
    from casstore.identity.recipes import Encode


class Training:
    """What is read of an open store for training."""

    _handle: Handle

    def dataset(
        self,
        *,
        names: Names | None = None,
        missing: Missing = "error",
        source: Source | None = None,
        encoders: Mapping[str, Encode] | None = None,
        **plans: Plan,
    ) -> Dataset:
        """What is stored of some plans, row by row, for torch's DataLoader or a loop of your own (docs/training.md).

        Args:
            names: what is wanted of the plans, under which names: {"text": ["hidden"]}, or {"text": {"hidden":
                "clip_hidden"}} to rename it. None, and labels that aren't in it: all, as it was stored.
            missing: what becomes of a row that isn't in all plans, or of which not all is stored: "error"; "skip": it
                is left out; "zeros": zeros like the most items of that resolution. Left out and zeros are counted
                (`dataset.skipped`, `dataset.zeros`) and told to the log.
            source: what an item has of the file of its row: "path", or "image": the picture, PIL RGB, upright; both
                under that name. A file that isn't any more what was planned is a `SourceChangedError` when its picture
                is read.
            encoders: {label: encoder as for `build`}: an object that turns out damaged or missing is made again on the
                spot, once, by whichever process or thread reads it, and told to the log. The encoder and the rows of
                the plan travel to workers, so they have to be picklable where these aren't forked.
            **plans: {label: plan}; labels are names of your own. Plans are joined by the group and sample of their
                rows, in the order of the first.

        Raises:
            UsageError: the plans have different rows (with "error"), two have a name in common, or an argument can't be
                meant.
            MissError: something isn't stored (with "error"); it names the first samples and why.
        """
        from casstore.data.dataset import Dataset
        from casstore.index.readonly import retried

        self._handle.check_open()
        return retried(
            lambda: Dataset(self._handle, plans, names=names, missing=missing, source=source, encoders=encoders)
        )
