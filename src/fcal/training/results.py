"""What training returns, and how it fails."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Fit:
    """How a training went.

    Attributes:
        history: One mapping per epoch: ``epoch``, ``step`` (steps done), ``learning_rate`` (of its last step), the mean
            of each term of the objective over the epoch as ``train/<term>`` and their sum as ``train/loss``, and each
            number of the validation set as ``validation/<name>``.
        best_epoch: Index into ``history`` of the epoch whose weights the model has now.
        epochs_run: Number of epochs.
        stopped_early: Whether patience ran out.
        seconds: Time, that of earlier attempts included.
        step_count: Number of optimizer steps.

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

    def best(self) -> Mapping[str, float]:
        """The line of history that belongs to the model's weights."""
        return self.history[self.best_epoch]


class Diverged(RuntimeError):  # noqa: N818 - it is a result, too: tables show it
    """Training left the finite numbers, or the model no longer makes a law that torch accepts.

    Attributes:
        step: Number of optimizer steps that were done.
        term: Which term of the objective is not finite, or ``"prediction"`` where there was none to compute.
        value: What it is; of a law that torch refused, the first number at fault.

    Args:
        step: Likewise.
        term: Likewise.
        value: Likewise.
        why: What the message says in place of these three.

    Example:
        >>> from fcal.training import Diverged
        >>> raise Diverged(step=12, term="mmd", value=float("nan"))
        Traceback (most recent call last):
        ...
        fcal.training.results.Diverged: training diverged: mmd = nan after 12 steps
    """

    def __init__(self, step: int, term: str, value: float, why: str = "") -> None:
        super().__init__(f"training diverged: {why or f'{term} = {value} after {step} steps'}")
        self.step = step
        self.term = term
        self.value = value
