"""Logs of a training: a progress bar, a CSV file of its history, and TensorBoard."""
# ruff: noqa: ARG002 - Lightning dictates the signatures of hooks

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from fcal._files import atomic_path
from fcal._progress import ProgressBar


class Progress(Callback):  # type: ignore[misc]
    """A progress bar of steps, with the monitored value of the last epoch."""

    _bar: ProgressBar | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the bar."""
        self._bar = ProgressBar("training", total=pl_module.steps, completed=pl_module.record.step, unit="steps")
        self._bar.start()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Advance the bar."""
        if self._bar is not None:
            record, name = pl_module.record, f"validation/{pl_module.config.monitor}"
            value = record.history[-1].get(name) if record.history else None
            self._bar.update(completed=record.step, note="" if value is None else f"{name} {value:.4g}")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Remove the bar, if training had begun."""
        self.on_train_end(trainer, pl_module)


class Logs(Checkpoint):  # type: ignore[misc]
    """Writes after every epoch; counts as a checkpoint so that Lightning calls it after the module has closed it.

    Args:
        folder: Where ``history.csv`` and the folder ``tensorboard`` go.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._table = HistoryFile(folder / "history.csv")
        self._writer: Any = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Open TensorBoard's file; what an interrupted attempt wrote beyond its checkpoint is hidden."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:  # a log of its own remains
            return
        self._writer = SummaryWriter(str(self._folder / "tensorboard"), purge_step=pl_module.record.epoch)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the line of the epoch."""
        self._table.append(pl_module.record.history)
        if self._writer is not None:
            line = pl_module.record.history[-1]
            for name in line.keys() - {"epoch"}:
                self._writer.add_scalar(name, line[name], global_step=line["epoch"])
            self._writer.flush()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Close TensorBoard's file."""
        self._close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Close TensorBoard's file, whatever happened."""
        self._close()

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class HistoryFile:
    """A history as CSV, one line per epoch.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._names: list[str] = []

    def write(self, history: Sequence[dict[str, float]]) -> None:
        """The whole history, in place of what is there."""
        self._names = list(dict.fromkeys(name for line in history for name in line))
        with atomic_path(self._path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, self._names)
            writer.writeheader()
            writer.writerows(history)

    def append(self, history: Sequence[dict[str, float]]) -> None:
        """The last line of a history, below those of this attempt; all of it at first, or where a column is new."""
        if not set(history[-1]) <= set(self._names):
            self.write(history)
            return
        with self._path.open("a", encoding="utf-8", newline="") as file:
            csv.DictWriter(file, self._names).writerow(history[-1])
