"""Progress bar for long runs."""

from typing import Any


class ProgressBar:
    """A progress bar on stderr, removed when the run ends; without rich or without a terminal nothing is drawn.

    Args:
        description: What is running, such as ``"training"``.
        total: Number of steps, or None if it is unknown.
        completed: Steps that are already done.
        unit: What the steps are called, such as ``"rows"``.
        estimate: Show how much time is left, judged from the speed so far.
        show: False for no bar at all.

    Example:
        >>> with ProgressBar("reading", total=3, unit="rows", show=False) as bar:
        ...     bar.advance(3)
    """

    def __init__(
        self,
        description: str,
        *,
        total: int | None,
        completed: int = 0,
        unit: str = "",
        estimate: bool = True,
        show: bool = True,
    ) -> None:
        self._bar = _terminal_bar(unit, estimate) if show else None
        if self._bar is not None:
            self._task = self._bar.add_task(description, total=total, completed=completed, note="")

    def __enter__(self) -> "ProgressBar":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Draw the bar."""
        if self._bar is not None:
            self._bar.start()

    def stop(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()

    def advance(self, steps: int = 1) -> None:
        """Count steps as done."""
        if self._bar is not None:
            self._bar.advance(self._task, steps)

    def update(self, **fields: Any) -> None:
        """Change ``completed``, ``description`` or ``note``, the text at the end of the line."""
        if self._bar is not None:
            self._bar.update(self._task, **fields)


def is_watched() -> bool:
    """Whether stderr is a terminal and rich is there to draw on it."""
    try:
        from rich.console import Console
    except ModuleNotFoundError:
        return False
    return Console(stderr=True).is_terminal


def _terminal_bar(unit: str, estimate: bool) -> Any:
    """A bar of rich, or None if it would not be seen."""
    if not is_watched():
        return None
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        *([TextColumn(unit)] if unit else []),
        TimeElapsedColumn(),
        *([TimeRemainingColumn()] if estimate else []),
        TextColumn("{task.fields[note]}", markup=False),
    )
    return Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=4)
