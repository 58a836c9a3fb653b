"""The record of a training: progress and history, the result made from it, and the error of a diverged training."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from torch import Tensor

_LARGEST_HARM = 1.1  # RMSE over what it was, without a warning
REMEDY_OF_HARM = "train the error bars alone: fcal.models.FixedMean, or model.fixed_mean = true in a config"


def is_harmed(rmse: float, before: float) -> bool:
    """Whether a training has made the mean so much worse that users should know.

    Example:
        >>> is_harmed(0.54, 0.36), is_harmed(0.36, 0.35)
        (True, False)
    """
    return rmse > _LARGEST_HARM * before


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Result of a training.

    Attributes:
        history: One mapping per epoch: ``epoch``, ``step`` (steps done), ``learning_rate`` (of its last step), the mean
            of each term of the objective over the epoch as ``train/<term>``, their sum as ``train/loss``, and each
            metric of the validation set as ``validation/<name>``. ``train/skipped`` and ``validation/skipped`` are
            the numbers of batches that were skipped, in epochs with such batches.
        best_epoch: Index into ``history`` of the epoch whose weights the model has now.
        epochs_run: Number of epochs.
        stopped_early: Whether patience ran out.
        seconds: Duration, including earlier attempts.
        step_count: Number of optimizer steps.
        skipped_batches: Number of batches of training without a target that counts; they take no optimizer step.

    Example:
        >>> from fcal.training import Fit
        >>> lines = [{"epoch": 0, "validation/nll": 0.7}, {"epoch": 1, "validation/nll": 0.9}]
        >>> Fit(history=lines, best_epoch=0, epochs_run=2, stopped_early=False, seconds=1.0, step_count=8).best()
        {'epoch': 0, 'validation/nll': 0.7}
    """

    history: list[dict[str, float]]
    best_epoch: int
    epochs_run: int
    stopped_early: bool
    seconds: float
    step_count: int
    skipped_batches: int = 0

    def best(self) -> Mapping[str, float]:
        """The line of history of the epoch whose weights the model has."""
        return self.history[self.best_epoch]


class Diverged(RuntimeError):  # noqa: N818 - it is a result, too: tables show it
    """A term of the objective is not finite, or the predicted distribution has invalid parameters.

    Attributes:
        step: Number of optimizer steps that were done.
        term: The term of the objective that is not finite, or ``"prediction"``.
        value: Its value, or the first invalid value of the prediction.

    Args:
        step: As above.
        term: As above.
        value: As above.
        why: Message that replaces the default one.

    Example:
        >>> from fcal.training import Diverged
        >>> raise Diverged(step=12, term="mmd", value=float("nan"))
        Traceback (most recent call last):
        ...
        fcal.training.record.Diverged: training diverged: mmd = nan after 12 steps
    """

    def __init__(self, step: int, term: str, value: float, why: str = "") -> None:
        super().__init__(f"training diverged: {why or f'{term} = {value} after {step} steps'}")
        self.step = step
        self.term = term
        self.value = value


@dataclass(kw_only=True)
class Record:
    """Progress and history of a training: what a checkpoint needs beside weights and optimizer.

    Attributes:
        dataset_rows: Number of rows of the training set.
        epoch: Number of finished epochs.
        position: Number of finished batches of the current epoch.
        step: Number of optimizer steps done.
        skipped: Number of batches without a target that counts, of all epochs; they take no step.
        sums: Sum of each term over the rows of the current epoch.
        rows: Number of these rows.
        history: As in :class:`Fit`.
        best_value: Smallest value of the monitored metric.
        best_epoch: Its epoch.
        best_weights: The model's state dict at that epoch; None if the last epoch counts.
        waited: Epochs since then.
        stopped_early: Whether patience ran out.
        seconds: Duration of earlier attempts.
        generators: States of the generators that model and objective hold.
    """

    dataset_rows: int
    epoch: int = 0
    position: int = 0
    step: int = 0
    skipped: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    rows: int = 0
    history: list[dict[str, float]] = field(default_factory=list)
    best_value: float | None = None
    best_epoch: int = 0
    best_weights: dict[str, Tensor] | None = None
    waited: int = 0
    stopped_early: bool = False
    seconds: float = 0.0
    generators: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._started = time.monotonic()

    def elapsed(self) -> float:
        """Seconds, including earlier attempts."""
        return self.seconds + time.monotonic() - self._started

    def is_finished(self, epochs: int) -> bool:
        """Whether a training of this many epochs is finished."""
        return self.stopped_early or self.epoch >= epochs

    @property
    def batches(self) -> int:
        """Number of batches done, including those that were skipped: the position in the schedule."""
        return self.step + self.skipped

    @property
    def skipped_in_epoch(self) -> int:
        """Number of batches of the current epoch that were skipped."""
        return self.skipped - int(sum(line.get("train/skipped", 0) for line in self.history))

    def skip(self) -> None:
        """Count a batch that takes no step."""
        self.position += 1
        self.skipped += 1

    def count(self, terms: Mapping[str, float], rows: int) -> None:
        """Add the terms of a step."""
        for name, value in terms.items():
            self.sums[name] = self.sums.get(name, 0.0) + rows * value
        self.rows += rows
        self.position += 1
        self.step += 1

    def close_epoch(self, learning_rate: float, metrics: Mapping[str, float]) -> None:
        """Append the line of a finished epoch to the history."""
        line: dict[str, float] = {"epoch": self.epoch, "step": self.step, "learning_rate": learning_rate}
        means = {name: total / self.rows for name, total in self.sums.items()}
        if means:
            line |= {f"train/{name}": mean for name, mean in {"loss": sum(means.values()), **means}.items()}
        if self.skipped_in_epoch:
            line["train/skipped"] = self.skipped_in_epoch
        line |= {f"validation/{name}": value for name, value in metrics.items()}
        self.history.append(line)
        self.epoch, self.position = self.epoch + 1, 0
        self.sums, self.rows = {}, 0

    def state(self) -> dict[str, Any]:
        """Plain values and tensors for a checkpoint."""
        return {item.name: getattr(self, item.name) for item in fields(self)} | {"seconds": self.elapsed()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Record":
        """Restore a record from :meth:`state`.

        Raises:
            ValueError: A name is missing or unknown, or a value is impossible.
        """
        if state.keys() != {item.name for item in fields(cls)}:
            raise ValueError("other names than those of a record")
        record = cls(**state)
        for name, is_possible in _POSSIBLE.items():
            if not is_possible(getattr(record, name)):
                raise ValueError(f"the {name} of its record is impossible")
        if len(record.history) != record.epoch or record.best_epoch > max(record.epoch - 1, 0):
            raise ValueError("the history of its record does not fit its epoch")
        return record

    def as_fit(self) -> Fit:
        """The result for the user."""
        return Fit(
            history=self.history,
            best_epoch=self.best_epoch,
            epochs_run=self.epoch,
            stopped_early=self.stopped_early,
            seconds=self.elapsed(),
            step_count=self.step,
            skipped_batches=self.skipped,
        )


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(name, str) and type(number) in (int, float) for name, number in value.items()
    )


def _is_tensors(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(x, Tensor) for x in value.values())


_POSSIBLE: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(
        ("dataset_rows", "epoch", "position", "step", "skipped", "rows", "best_epoch", "waited"), _is_count
    ),
    "sums": _is_numbers,
    "history": lambda value: isinstance(value, list) and all(_is_numbers(line) for line in value),
    "best_value": lambda value: value is None or isinstance(value, float),
    "best_weights": lambda value: value is None or _is_tensors(value),
    "stopped_early": lambda value: isinstance(value, bool),
    "seconds": lambda value: isinstance(value, float) and 0 <= value < math.inf,
    "generators": lambda value: isinstance(value, list) and all(isinstance(x, Tensor) for x in value),
}
