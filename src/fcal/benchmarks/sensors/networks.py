"""A small network from the state of a robot to the law of a sensor's error."""

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.nn.functional import softplus

from fcal.selection.candidates import CANDIDATES

_SMALLEST = 1e-3  # of the scale, in that of all errors
_LEAST_DF = 2.05  # Student-t laws of fewer degrees of freedom have no variance
_FIRST_DF = 3.0  # above the least, before training


class StateNetwork(nn.Module):
    """Two hidden layers; a correction of the known model and the scale of what is left, both of any state.

    Args:
        inputs: Of the training rows; the network takes them by their mean and sd. Shape ``(n, features)``.
        errors: Of the training rows; the network predicts them in units of their spread. Shape ``(n,)``.
        hidden: Units of a hidden layer.
        family: Of the law.
        corrects: Whether the known model is corrected; else laws are around it.

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
        """The law of errors. Shapes ``(n, features)`` to ``(n,)``."""
        loc, scale = self.trunk((inputs - self.centre) / self.spread).unbind(-1)
        loc = loc if self.corrects else torch.zeros_like(loc)
        df = (_LEAST_DF + _FIRST_DF * self.shape.exp()).expand(loc.shape)
        return CANDIDATES[self.family].law(self.unit * loc, self.unit * (softplus(scale) + _SMALLEST), df)
