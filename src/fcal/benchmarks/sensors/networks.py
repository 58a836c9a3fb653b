"""The network of the sensor benchmark, from the state to the distribution of an error, and how it is trained."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.nn.functional import softplus

from fcal.benchmarks.problem import Options
from fcal.benchmarks.trainings import seeded
from fcal.crossfitting import recentred
from fcal.models import predict
from fcal.selection.candidates import CANDIDATES
from fcal.training import ObjectiveConfig, objective

Loss = Callable[[Distribution, Tensor], Tensor]

AT_ONCE = 16_384  # rows predicted in one batch
_SMALLEST = 1e-3  # smallest scale, in units of the scale of all errors
_LEAST_DF = 2.05  # Student-t distributions of fewer degrees of freedom have no variance
_FIRST_DF = 3.0  # initial degrees of freedom above the least


class StateNetwork(nn.Module):
    """Two hidden layers from the state to the distribution of a sensor's error.

    Args:
        inputs: Inputs of the training rows, by which the network standardizes. Shape ``(n, features)``.
        errors: Errors of the training rows; their spread is the unit of predictions. Shape ``(n,)``.
        hidden: Units of a hidden layer.
        family: Family of the distribution.
        corrects: Whether the network corrects the known model; otherwise distributions are centred on it.

    Example:
        >>> network = StateNetwork(torch.randn(50, 3), torch.randn(50), hidden=8, family="laplace")
        >>> network(torch.zeros(4, 3)).scale.shape
        torch.Size([4])
    """

    centre: Tensor
    spread: Tensor
    unit: Tensor

    def __init__(self, inputs: Tensor, errors: Tensor, *, hidden: int, family: str, corrects: bool = True) -> None:
        super().__init__()
        self.family = family
        self.corrects = corrects
        self.register_buffer("centre", inputs.mean(0))
        self.register_buffer("spread", inputs.std(0).clamp(min=1e-6))
        self.register_buffer("unit", (errors.abs().median() / 0.6745).clamp(min=1e-9))
        self.trunk = nn.Sequential(
            nn.Linear(inputs.shape[1], hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, 2)
        )
        self.shape = nn.Parameter(torch.zeros(()))

    def forward(self, inputs: Tensor) -> Distribution:
        """Distributions of errors. Shapes ``(n, features)`` to ``(n,)``."""
        loc, scale = self.trunk((inputs - self.centre) / self.spread).unbind(-1)
        loc = loc if self.corrects else torch.zeros_like(loc)
        df = (_LEAST_DF + _FIRST_DF * self.shape.exp()).expand(loc.shape)
        return CANDIDATES[self.family].law(self.unit * loc, self.unit * (softplus(scale) + _SMALLEST), df)


class StateRows:
    """States and errors as a dataset that is indexed by batches.

    Example:
        >>> StateRows(torch.zeros(3, 2), torch.arange(3.0)).__getitems__([2, 0])["target"]
        tensor([2., 0.])
    """

    def __init__(self, inputs: Tensor, errors: Tensor) -> None:
        self.inputs = inputs
        self.errors = errors

    def __len__(self) -> int:
        return len(self.errors)

    def __getitem__(self, index: int | slice | Tensor) -> Mapping[str, Tensor]:
        return {"input": self.inputs[index], "target": self.errors[index]}

    def __getitems__(self, indices: Sequence[int]) -> Mapping[str, Tensor]:
        """Several rows at once."""
        return self[torch.as_tensor(indices)]

    def where(self, mask: Tensor) -> "StateRows":
        """The rows of a mask."""
        return StateRows(self.inputs[mask], self.errors[mask])


def predicted(model: Any, rows: StateRows) -> Distribution:
    """Predictions for rows."""
    pred = predict(model, rows, batch_size=AT_ONCE).pred
    assert isinstance(pred, Distribution)
    return pred


def likelihood(pred: Distribution, target: Tensor) -> Tensor:
    """Mean negative log-likelihood, by torch's ``log_prob``: errors are not so large that it underflows."""
    return -pred.log_prob(target).mean()


def loss_of(options: Options) -> Loss:
    """The loss of an objective, by its options."""
    config = ObjectiveConfig(**options)
    if config.name == "nll":
        return likelihood
    convex = config.name == "fcal" and config.form == "convex"
    criterion = objective(replace(config, lam=1.0) if convex else config)

    def loss(pred: Distribution, target: Tensor) -> Tensor:
        terms = criterion(nn.Identity(), {"input": pred, "target": target})
        total = torch.stack(list(terms.values())).sum()
        return (1 - config.lam) * likelihood(pred, target) + config.lam * total if convex else total

    return loss


def optimize(
    network: nn.Module, batch: Mapping[str, Tensor], loss: Loss, *, steps: int, rate: float, size: int, seed: int
) -> None:
    """Train with Adam and a cosine schedule of the learning rate."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(network.parameters(), lr=rate, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    rows = len(batch["target"])
    with seeded(seed):  # MMD draws from the predictions
        for _ in range(steps):
            indices = torch.randint(rows, (min(size, rows),), generator=generator)
            pred = network(batch["input"][indices])
            if "center" in batch:
                pred = recentred(pred, batch["center"][indices])
            optimizer.zero_grad()
            value = loss(pred, batch["target"][indices])
            value.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 10.0)
            optimizer.step()
            schedule.step()
