"""Trainings: by likelihood on rows, and of error bars alone on held-out errors."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from fcal._datasets import get_batch
from fcal.benchmarks.sensors.networks import StateNetwork
from fcal.benchmarks.sensors.settings import Settings
from fcal.crossfitting import recentred
from fcal.losses import FCalLoss

Loss = Callable[[Distribution, Tensor], Tensor]


class Rows:
    """States and errors as a dataset whose batches come stacked.

    Example:
        >>> Rows(torch.zeros(3, 2), torch.arange(3.0)).__getitems__([2, 0])["target"]
        tensor([2., 0.])
    """

    def __init__(self, inputs: Tensor, errors: Tensor) -> None:
        self.inputs = inputs
        self.errors = errors

    def __len__(self) -> int:
        return len(self.errors)

    def __getitem__(self, index: int) -> Mapping[str, Tensor]:
        return {"input": self.inputs[index], "target": self.errors[index]}

    def __getitems__(self, indices: Sequence[int]) -> Mapping[str, Tensor]:
        """Several rows at once."""
        return self[torch.as_tensor(indices)]  # type: ignore[index]


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Trains a network on some rows by likelihood: what :func:`fcal.crossfit` calls.

    Attributes:
        settings: Network and budget.
        family: Of the law that it predicts.
        corrects: Whether it corrects the known model.
    """

    settings: Settings
    family: str
    corrects: bool = True

    def __call__(self, rows: Any) -> StateNetwork:
        """A new network."""
        batch = _all_of(rows)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.settings.seed)
            network = StateNetwork(
                batch["input"],
                batch["target"],
                hidden=self.settings.hidden,
                family=self.family,
                corrects=self.corrects,
            )
        one = self.settings
        _train(network, batch, likelihood, steps=one.steps, rate=one.rate, size=one.batch, seed=one.seed)
        return network


@dataclass(frozen=True, kw_only=True)
class FitScales:
    """Trains the error bars of a network on the errors of held-out rows, from the weights it has.

    Attributes:
        settings: Budget.
        lam: Weight of f-Cal beside the likelihood.
    """

    settings: Settings
    lam: float

    def __call__(self, rows: Any, start: StateNetwork) -> StateNetwork:
        """The network that was given."""
        one = self.settings
        criterion = FCalLoss(divergence="kl", df=one.df)

        def loss(pred: Distribution, target: Tensor) -> Tensor:
            plain = likelihood(pred, target)
            return (1 - self.lam) * plain + self.lam * criterion(pred, target) if self.lam else plain

        _train(start, _all_of(rows), loss, steps=one.tune_steps, rate=one.tune_rate, size=one.tune_batch, seed=one.seed)
        return start


def likelihood(pred: Distribution, target: Tensor) -> Tensor:
    """Mean negative log-likelihood; errors are far from where float32 would end, so torch's own density will do."""
    return -pred.log_prob(target).mean()


def _all_of(rows: Any) -> Mapping[str, Tensor]:
    return get_batch(rows, list(range(len(rows))))


def _train(
    network: nn.Module, batch: Mapping[str, Tensor], loss: Loss, *, steps: int, rate: float, size: int, seed: int
) -> None:
    """Adam with a rate that falls to 0 along a cosine."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(network.parameters(), lr=rate, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    rows = len(batch["target"])
    for _ in range(steps):
        some = torch.randint(rows, (min(size, rows),), generator=generator)
        pred = network(batch["input"][some])
        if "center" in batch:
            pred = recentred(pred, batch["center"][some])
        optimizer.zero_grad()
        value = loss(pred, batch["target"][some])
        value.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 10.0)
        optimizer.step()
        schedule.step()
