"""What became of the rows of a build: counted, so that planned = hits + encoded + by_others + failed + left."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from casstore.build.cells import kind_of
from casstore.build.plan import Plan, PlanRow
from casstore.build.progress import Progress
from casstore.model import BuildReport, Failure
from casstore.sources.images import note_under


class Tally:
    """The counts of a build.

    Args:
        plan: what is built.
        progress: is told of each row that is done.

    Attributes:
        error: that the progress raised; it isn't told any more.
    """

    def __init__(self, plan: Plan, progress: Progress) -> None:
        self._plan, self._progress = plan, progress
        self._total = len(plan.missing)
        self._done = 0
        self.encoded = 0
        self.by_others = 0
        self.repeated = 0  # rows whose key was made earlier in this build, or needed no encode
        self.conflicts = 0
        self.error: Exception | None = None
        self.failures: list[Failure] = []
        self.failed_keys: dict[bytes, Failure] = {}
        self._notes: list[tuple[str, str]] = []

    def advance(self, rows: int = 1) -> None:
        """So many rows more are done."""
        self._done += rows
        if self.error is None:
            try:
                self._progress.advanced(self._done, self._total)
            except Exception as error:  # it may have come from a commit, which has to be counted whole
                self.error = error

    def fail(self, planned: PlanRow, name: str, message: str, key: bytes | None) -> Failure:
        """A row failed."""
        failure = Failure(planned.row.sample, planned.path, name, message)
        self.failures.append(failure)
        if key is not None:
            self.failed_keys[key] = failure
        self.advance()
        return failure

    def repeat(self, planned: PlanRow, key: bytes) -> None:
        """A row whose key another row has: a hit, or failed with that one."""
        first = self.failed_keys.get(key)
        if first is not None:
            self.failures.append(Failure(planned.row.sample, planned.path, first.error, first.message))
        else:
            self.repeated += 1
        self.advance()

    def note(self, planned: PlanRow) -> None:
        """What is done to the pictures of a row on the way in."""
        for cell in planned.cells.values() if planned.key is not None else ():
            if cell.content is not None and cell.content.note and kind_of(cell.content, cell.path) == "picture":
                told = note_under(cell.content.note, self._plan.recipe.decode)
                self._notes.append((planned.row.sample, told or cell.content.note))

    def report(self, seconds: float, stored_bytes: int) -> BuildReport:
        """The outcome."""
        hits = self._plan.hits + self.repeated
        failed = len(self.failures)
        refused = {failure.sample for failure in self.failures}
        return BuildReport(
            planned=self._plan.planned,
            hits=hits,
            encoded=self.encoded,
            by_others=self.by_others,
            failed=failed,
            left=self._plan.planned - hits - self.encoded - self.by_others - failed,
            reasons=self._plan.reasons,
            seconds=seconds,
            stored_bytes=stored_bytes,
            failures=tuple(self.failures),
            notes=tuple(note for note in self._notes if note[0] not in refused),
            conflicts=self.conflicts,
        )


def counts_of(report: BuildReport) -> dict[str, Any]:
    """What the index keeps of a report."""
    names = ("planned", "hits", "encoded", "by_others", "failed", "left")
    counts: dict[str, Any] = {name: getattr(report, name) for name in names}
    reasons: Mapping[str, int] = report.reasons
    counts["reasons"] = dict(reasons)
    return counts | ({"conflicts": report.conflicts} if report.conflicts else {})
