"""Progress for people."""
# ruff: noqa: ARG002 - Lightning dictates the signatures of hooks

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Bar(Callback):  # type: ignore[misc]
    """A bar on stderr: epochs, and what the last one reached."""

    @staticmethod
    def is_watched() -> bool:
        """Whether stderr is a terminal."""
        return Console(stderr=True).is_terminal

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show it."""
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("steps"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[reached]}"),
        )
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=4)
        self._task = self._progress.add_task(
            "training", total=pl_module.steps, completed=pl_module.record.step, reached=""
        )
        self._progress.start()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """One step more, and what the last epoch reached."""
        record, name = pl_module.record, f"validation/{pl_module.config.monitor}"
        value = record.history[-1].get(name) if record.history else None
        reached = "" if value is None else f"{name} {value:.4g}"
        self._progress.update(self._task, completed=record.step, reached=reached)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take it away."""
        self._progress.stop()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Take it away, whatever happened; before training there is none."""
        if hasattr(self, "_progress"):
            self._progress.stop()
