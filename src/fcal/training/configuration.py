"""How to train."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from fcal._checks import check_flag, check_integer, check_number
from fcal._registry import Registry
from fcal.training.schedules import OPTIMIZERS, SCHEDULES

MONITORS: Registry[str] = Registry("monitor")
for _name, _meaning in {
    "loss": "the objective",
    "nll": "negative log-likelihood per scalar",
    "nll_scaled": "the same after the best factor on the error bars of a normal law",
    "crps": "continuous ranked probability score per scalar",
    "l1": "smooth L1 (beta 1) of the mean",
    "mse": "squared error of the mean",
    "rmse": "its root",
    "ece_z": "expected calibration error of the residuals",
    "mce_z": "the largest of its gaps",
    "ece_q": "expected calibration error of sums of squared residuals",
    "mce_q": "the largest of its gaps",
    "kld_z": "divergence of the residuals from N(0, 1)",
    "wdist_z": "their squared Wasserstein distance from it",
    "kld_q": "divergence of the sums from N(K, 2K)",
    "wdist_q": "their squared Wasserstein distance from it",
    "ence": "relative gap of sigma and error over bins of sigma",
    "ause": "area between the sparsification curves",
}.items():
    MONITORS.add(_name, _meaning)


def _head(model: nn.Module) -> nn.Module:
    """What predicts the uncertainty where the model says so, else its last layers."""
    head = getattr(model, "uncertainty_head", None) or getattr(model, "head", None)
    if not isinstance(head, nn.Module):
        raise ValueError(f"expected `model` with a module `head` where trained is 'head', got {type(model).__name__}")
    return head


TRAINED: Registry[Callable[[nn.Module], nn.Module]] = Registry("trained")
TRAINED.add("full", lambda model: model)
TRAINED.add("head", _head)


@dataclass(frozen=True, kw_only=True)
class FitConfig:
    """How to train; every value is checked when the config is made.

    Attributes:
        epochs: Passes over the training set, at most; the schedule of the learning rate is laid out over them.
        stop_after: Passes after which it ends although the schedule goes on; 0 for none.
        batch_size: Rows in a batch, at most; all batches of an epoch are about equally large.
        learning_rate: Largest rate of the schedule.
        weight_decay: As the optimizer understands it.
        schedule: ``"constant"``, ``"cosine"`` (to 0) or ``"one-cycle"``.
        optimizer: ``"adam"`` or ``"adamw"``.
        clip_norm: Largest norm of the gradient; 0 for any.
        patience: Epochs without a better ``monitor`` after which training stops; 0 for never.
        monitor: Number of the validation set that is to be small; the weights of its best epoch are kept.
        trained: ``"full"``, or ``"head"``: only what the model calls its ``uncertainty_head``, or where it has none its
            ``head``, the rest as in evaluation.
        channels_last: Memory format of images and convolutions; faster on most machines.
        checkpoint_every_steps: Steps between checkpoints; the end of training has one anyway.
        seed: Of the order of the rows, dropout and whatever else is drawn.

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
        """Passes over the training set that are made at most."""
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
