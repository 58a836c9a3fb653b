"""What training knows of its own past: everything that a checkpoint needs beside weights and optimizer."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from torch import Tensor

from fcal.training.results import Fit


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(name, str) and type(number) in (int, float) for name, number in value.items()
    )


def _is_tensors(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(x, Tensor) for x in value.values())


_POSSIBLE: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("dataset_rows", "epoch", "position", "step", "rows", "best_epoch", "waited"), _is_count),
    "sums": _is_numbers,
    "history": lambda value: isinstance(value, list) and all(_is_numbers(line) for line in value),
    "best_value": lambda value: value is None or isinstance(value, float),
    "best_weights": lambda value: value is None or _is_tensors(value),
    "stopped_early": lambda value: isinstance(value, bool),
    "seconds": lambda value: isinstance(value, float) and 0 <= value < math.inf,
    "generators": lambda value: isinstance(value, list) and all(isinstance(x, Tensor) for x in value),
}


@dataclass(kw_only=True)
class Record:
    """Where training is, and what it has seen.

    Attributes:
        dataset_rows: Rows of the training set.
        epoch: Epochs that are done.
        position: Batches of this epoch that are done.
        step: Optimizer steps that are done.
        sums: Sum of each term over the rows of this epoch.
        rows: Their number.
        history: As in :class:`Fit`.
        best_value: Smallest value of what is monitored.
        best_epoch: Its epoch.
        best_weights: The model's state dict then; None where the last epoch counts.
        waited: Epochs since then.
        stopped_early: Whether patience ran out.
        seconds: Time of earlier attempts.
        generators: States of the generators that model and objective hold.
    """

    dataset_rows: int
    epoch: int = 0
    position: int = 0
    step: int = 0
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
        """Seconds, those of earlier attempts included."""
        return self.seconds + time.monotonic() - self._started

    def place(self) -> tuple[int, int]:
        """Epoch, and batches of it that are done."""
        return self.epoch, self.position

    def is_finished(self, epochs: int) -> bool:
        """Whether nothing is left to do of so many epochs."""
        return self.stopped_early or self.epoch >= epochs

    def count(self, terms: Mapping[str, float], rows: int) -> None:
        """Note the terms of a step."""
        for name, value in terms.items():
            self.sums[name] = self.sums.get(name, 0.0) + rows * value
        self.rows += rows
        self.position += 1
        self.step += 1

    def close_epoch(self, learning_rate: float, numbers: Mapping[str, float]) -> dict[str, float]:
        """Note the end of an epoch and its line of history."""
        line: dict[str, float] = {"epoch": self.epoch, "step": self.step, "learning_rate": learning_rate}
        means = {name: total / self.rows for name, total in self.sums.items()}
        line |= {f"train/{name}": mean for name, mean in {"loss": sum(means.values()), **means}.items()}
        line |= {f"validation/{name}": value for name, value in numbers.items()}
        self.history.append(line)
        self.epoch, self.position = self.epoch + 1, 0
        self.sums, self.rows = {}, 0
        return line

    def state(self) -> dict[str, Any]:
        """As plain values for a checkpoint."""
        return {**vars(self), "seconds": self.elapsed(), "_started": None}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Record":
        """The record that :meth:`state` told.

        Raises:
            ValueError: A name is missing or unknown, or a value is none that a training could have noted.
        """
        told = {name: value for name, value in state.items() if name != "_started"}
        if told.keys() != {item.name for item in fields(cls)}:
            raise ValueError("other names than those of a record")
        record = cls(**told)
        for name, is_possible in _POSSIBLE.items():
            if not is_possible(getattr(record, name)):
                raise ValueError(f"the {name} of its record is impossible")
        if len(record.history) != record.epoch or record.best_epoch > max(record.epoch - 1, 0):
            raise ValueError("the history of its record does not fit its epoch")
        return record

    def as_fit(self) -> Fit:
        """What the user gets of it."""
        return Fit(
            history=self.history,
            best_epoch=self.best_epoch,
            epochs_run=self.epoch,
            stopped_early=self.stopped_early,
            seconds=self.elapsed(),
            step_count=self.step,
        )
