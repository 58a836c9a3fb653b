"""A progress bar on stderr while a person watches; without rich, or without a terminal, there is none."""

import importlib.util
from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from types import TracebackType
from typing import Any

from fcal.sweeps.cells import Cell, Outcome

_LONGEST = 60


class Bar:
    """Cells done, cells at work, and how long the rest may take, by kind and by what such cells took."""

    def __init__(self, *, show: bool) -> None:
        self._show = show
        self._bar: Any = None
        self._task: Any = None
        self._left: Counter[str] = Counter()
        self._seconds: dict[str, list[float]] = {}
        self._failed, self._workers = 0, 1

    def __enter__(self) -> "Bar":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def begin(self, stored: Sequence[Outcome], left: Sequence[Cell], workers: int) -> None:
        """Show the bar, with what is stored as done."""
        self._left, self._workers = Counter(cell.kind for cell in left), workers
        for outcome in stored:
            self._learn(outcome)
        if left and self._show and importlib.util.find_spec("rich") is not None:
            self._bar = _terminal_bar()
        if self._bar is not None:
            total = len(stored) + len(left)
            self._task = self._bar.add_task("cells", total=total, completed=len(stored), running="", left="")
            self._bar.start()

    def count(self, outcome: Outcome) -> None:
        """One cell is finished or has failed."""
        self._left[outcome.cell.kind] -= 1
        self._failed += outcome.status == "failed"
        self._learn(outcome)
        if self._bar is not None:
            failed = f" ({self._failed} failed)" if self._failed else ""
            self._bar.update(self._task, advance=1, description=f"cells{failed}", left=self.remaining())

    def _learn(self, outcome: Outcome) -> None:
        if outcome.seconds is not None:
            self._seconds.setdefault(outcome.cell.kind, []).append(outcome.seconds)

    def show(self, running: Sequence[Cell]) -> None:
        """Name the cells at work."""
        if self._bar is not None:
            names = ", ".join("".join(c for c in cell.name if c.isprintable()) for cell in running)
            self._bar.update(self._task, running=names[:_LONGEST])

    def remaining(self) -> str:
        """How long the rest may take, in words; nothing while no cell says how long it took.

        Example:
            >>> bar, cells = Bar(show=False), [Cell("train", {"seed": seed}) for seed in range(5)]
            >>> bar.begin([], cells, workers=2)
            >>> bar.count(Outcome(cell=cells[0], status="done", seconds=100.0))
            >>> bar.remaining()
            '3 min 20 s left'
        """
        if not self._seconds:
            return ""
        usual = fmean(fmean(took) for took in self._seconds.values())
        expected = sum(n * fmean(self._seconds.get(kind, [usual])) for kind, n in self._left.items())
        seconds = round(expected / self._workers)
        minutes, hours = seconds // 60, seconds // 3600
        return f"{hours} h {minutes % 60:02d} min left" if hours else f"{minutes} min {seconds % 60:02d} s left"


def _terminal_bar() -> Any:
    """A bar of rich, or None where stderr is not a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        return None
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
        TextColumn("{task.fields[running]}", markup=False),
    )
    return Progress(*columns, console=console, transient=True)
