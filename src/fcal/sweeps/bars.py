"""Progress of a run: cells done, cells being computed, and the time left."""

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from fcal._progress import ProgressBar
from fcal.sweeps.cells import Cell, Outcome

_LONGEST = 60


class Progress:
    """Cells done, cells being computed, and the time left, estimated from how long cells of each kind took."""

    def __init__(self, stored: Sequence[Outcome], left: Sequence[Cell], *, workers: int, show: bool) -> None:
        self._left, self._workers = Counter(cell.kind for cell in left), workers
        self._seconds: dict[str, list[float]] = {}
        self._failed, self._names = 0, ""
        for outcome in stored:
            self._learn(outcome)
        self.bar = ProgressBar(
            "cells", total=len(stored) + len(left), completed=len(stored), estimate=False, show=show and bool(left)
        )

    def count(self, outcome: Outcome) -> None:
        """Count a cell that is finished or has failed."""
        self._left[outcome.cell.kind] -= 1
        self._failed += outcome.status == "failed"
        self._learn(outcome)
        self.bar.advance()
        self._write()

    def show(self, running: Sequence[Cell]) -> None:
        """Name the cells that are being computed."""
        names = ", ".join("".join(c for c in cell.name if c.isprintable()) for cell in running)[:_LONGEST]
        if names != self._names:
            self._names = names
            self._write()

    def _learn(self, outcome: Outcome) -> None:
        if outcome.seconds is not None:
            self._seconds.setdefault(outcome.cell.kind, []).append(outcome.seconds)

    def _write(self) -> None:
        failed = f" ({self._failed} failed)" if self._failed else ""
        self.bar.update(description=f"cells{failed}", note=f"{self.remaining()} {self._names}".strip())

    def remaining(self) -> str:
        """The time left as text; empty as long as no cell has a known duration.

        Example:
            >>> cells = [Cell("train", {"seed": seed}) for seed in range(5)]
            >>> progress = Progress([], cells, workers=2, show=False)
            >>> progress.count(Outcome(cell=cells[0], status="done", seconds=100.0))
            >>> progress.remaining()
            '3 min 20 s left'
        """
        if not self._seconds:
            return ""
        usual = fmean(fmean(took) for took in self._seconds.values())
        expected = sum(n * fmean(self._seconds.get(kind, [usual])) for kind, n in self._left.items())
        seconds = round(expected / self._workers)
        minutes, hours = seconds // 60, seconds // 3600
        return f"{hours} h {minutes % 60:02d} min left" if hours else f"{minutes} min {seconds % 60:02d} s left"
