"""How to train: optimizers, learning-rate schedules, trained parameters and monitored metrics by name."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from fcal._checks import check_flag, check_integer, check_number
from fcal._registry import Registry

OPTIMIZERS: Registry[Callable[..., torch.optim.Optimizer]] = Registry("optimizer")
OPTIMIZERS.add("adam", torch.optim.Adam)
OPTIMIZERS.add("adamw", torch.optim.AdamW)

_CYCLE_RISE = 0.3  # fraction of one cycle in which the rate grows
_CYCLE_START = 25.0  # the largest rate of one cycle over the first
_CYCLE_END = 1e4  # the first rate of one cycle over the last


def _cosine(first: float, last: float, fraction: float) -> float:
    return last + (first - last) * 0.5 * (1 + math.cos(math.pi * fraction))


def _one_cycle(fraction: float) -> float:
    if fraction < _CYCLE_RISE:
        return _cosine(1 / _CYCLE_START, 1.0, fraction / _CYCLE_RISE)
    return _cosine(1.0, 1 / _CYCLE_START / _CYCLE_END, (fraction - _CYCLE_RISE) / (1 - _CYCLE_RISE))


SCHEDULES: Registry[Callable[[float], float]] = Registry("schedule")
SCHEDULES.add("constant", lambda fraction: 1.0)  # noqa: ARG005
SCHEDULES.add("cosine", lambda fraction: _cosine(1.0, 0.0, fraction))
SCHEDULES.add("one-cycle", _one_cycle)


def rate_factor(schedule: str, step: int, steps: int) -> float:
    """Factor within [0, 1] on the learning rate, which depends on the step alone: resuming has nothing to restore.

    Example:
        >>> [round(rate_factor("cosine", step, 4), 3) for step in range(4)]
        [1.0, 0.854, 0.5, 0.146]
    """
    return SCHEDULES[schedule](step / steps)


def _head(model: nn.Module) -> nn.Module:
    """The head of the model that predicts the uncertainty, or its only head."""
    head = getattr(model, "uncertainty_head", None) or getattr(model, "head", None)
    if not isinstance(head, nn.Module):
        raise ValueError(f"expected `model` with a module `head` where trained is 'head', got {type(model).__name__}")
    return head


TRAINED: Registry[Callable[[nn.Module], nn.Module]] = Registry("trained")
TRAINED.add("full", lambda model: model)
TRAINED.add("head", _head)


@contextmanager
def frozen_except(trained: nn.Module, model: nn.Module) -> Iterator[None]:
    """Compute no gradients for the parameters of ``model`` that are not in ``trained``."""
    trained_ids = {id(parameter) for parameter in trained.parameters()}
    others = [p for p in model.parameters() if p.requires_grad and id(p) not in trained_ids]
    for parameter in others:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in others:
            parameter.requires_grad_(True)


MONITORS: Registry[str] = Registry("monitor")  # metrics of the validation set and their definitions
for _name, _definition in {
    "loss": "the objective",
    "nll": "negative log-likelihood per scalar",
    "nll_scaled": "the same after scaling all sigmas by the best common factor, for a normal distribution",
    "crps": "continuous ranked probability score per scalar",
    "l1": "smooth L1 (beta 1) of the mean",
    "mse": "mean squared error of the mean",
    "rmse": "its root",
    "ece_z": "expected calibration error of the residuals",
    "mce_z": "maximum calibration error of the residuals",
    "ece_q": "expected calibration error of sums of squared residuals",
    "mce_q": "maximum calibration error of sums of squared residuals",
    "kld_z": "divergence of the residuals from N(0, 1)",
    "wdist_z": "squared Wasserstein distance of the residuals from N(0, 1)",
    "kld_q": "divergence of the sums from N(K, 2K)",
    "wdist_q": "squared Wasserstein distance of the sums from N(K, 2K)",
    "ence": "expected normalized calibration error",
    "ause": "area under the sparsification error curve",
}.items():
    MONITORS.add(_name, _definition)


@dataclass(frozen=True, kw_only=True)
class FitConfig:
    """How to train; every value is checked on construction.

    Attributes:
        epochs: Maximum number of passes over the training set; the learning-rate schedule spans all of them.
        stop_after: Number of passes after which training ends before the schedule does; 0 to disable.
        batch_size: Maximum number of rows in a batch; all batches of an epoch have about the same size.
        learning_rate: Largest rate of the schedule.
        weight_decay: Passed to the optimizer.
        schedule: ``"constant"``, ``"cosine"`` (to 0) or ``"one-cycle"``.
        optimizer: ``"adam"`` or ``"adamw"``.
        clip_norm: Largest norm of the gradient; 0 for no clipping.
        patience: Number of epochs without a better ``monitor`` after which training stops; 0 to disable.
        monitor: Metric of the validation set to minimise; the weights of its best epoch are kept.
        trained: ``"full"``, or ``"head"`` for the model's ``uncertainty_head`` (or its ``head`` if it has none) alone;
            the rest stays in evaluation mode.
        channels_last: Use the channels-last memory format for images and convolutions; faster on most machines.
        checkpoint_every_steps: Number of steps between checkpoints; the end of training always has one.
        seed: Seed of the order of the rows, dropout and all other randomness.

    Example:
        >>> from fcal.training import FitConfig
        >>> FitConfig(epochs=3, schedule="cosin")
        Traceback (most recent call last):
        ...
        ValueError: expected `schedule` one of 'constant', 'cosine', 'one-cycle', got 'cosin' (did you mean 'cosine'?)
    """

    epochs: int = 30
    stop_after: int = 0
    batch_size: int = 64
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    schedule: str = "cosine"
    optimizer: str = "adam"
    clip_norm: float = 0.0
    patience: int = 0
    monitor: str = "loss"
    trained: str = "full"
    channels_last: bool = False
    checkpoint_every_steps: int = 200
    seed: int = 0

    @property
    def passes(self) -> int:
        """Maximum number of passes over the training set."""
        return self.stop_after or self.epochs

    def __post_init__(self) -> None:
        check_integer("epochs", self.epochs, at_least=1)
        check_integer("stop_after", self.stop_after, at_least=0, at_most=self.epochs)
        check_integer("batch_size", self.batch_size, at_least=1)
        check_number("learning_rate", self.learning_rate, low=1e-12, high=1e6)
        check_number("weight_decay", self.weight_decay, low=0.0, high=1e6)
        check_number("clip_norm", self.clip_norm, low=0.0, high=1e12)
        check_integer("patience", self.patience, at_least=0)
        check_flag("channels_last", self.channels_last)
        check_integer("checkpoint_every_steps", self.checkpoint_every_steps, at_least=1)
        check_integer("seed", self.seed, at_least=0, at_most=2**63 - 1)
        SCHEDULES[self.schedule]
        OPTIMIZERS[self.optimizer]
        MONITORS[self.monitor]
        TRAINED[self.trained]
