"""Many small networks of one shape as one: their weights are stacked, and a batched product serves them all."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.distributions import Normal

from fcal._checks import check_integer, check_number

_SMALLEST_SIGMA = 1e-3


class StackedMLP(nn.Module):
    r"""Perceptrons with rectified hidden layers, a mean and a standard deviation; each has rows and weights of its own.

    A network of 50 units is too small to keep a processor busy: its time goes into calls. Two hundred of them (splits,
    folds, members of an ensemble) cost a few times as much as one when the calls are shared. No number of one network
    depends on another, so the gradient of the sum of their losses is each one's own.

    Args:
        members: Number of networks.
        features: Inputs of each.
        hidden: Units of the hidden layers.
        floor: Smallest standard deviation, which keeps the likelihood bounded.
        generator: Source of the initial weights, uniform as those of ``torch.nn.Linear``; torch's default where None.

    Shape:
        Inputs ``(members, n, features)``, predictions ``(members, n)``.

    Example:
        >>> networks = StackedMLP(3, 8, (50,))
        >>> networks(torch.zeros(3, 5, 8)).stddev.shape
        torch.Size([3, 5])
    """

    def __init__(
        self,
        members: int,
        features: int,
        hidden: Sequence[int],
        *,
        floor: float = _SMALLEST_SIGMA,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        check_integer("members", members, at_least=1)
        self.sizes = [check_integer("features", features, at_least=1)]
        self.sizes += [check_integer("hidden", units, at_least=1) for units in hidden]
        self.floor = check_number("floor", floor, low=0.0, high=0.5)
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for into, out in zip(self.sizes, [*self.sizes[1:], 2], strict=True):
            reach = 1 / math.sqrt(into)
            for parameters, shape in ((self.weights, (members, into, out)), (self.biases, (members, 1, out))):
                parameters.append(torch.empty(shape).uniform_(-reach, reach, generator=generator))
        with torch.no_grad():
            self.biases[-1][..., 1] = math.log(math.expm1(1 - self.floor))  # the sigma of standardised targets

    @property
    def members(self) -> int:
        """Number of networks."""
        return len(self.weights[0])

    def forward(self, x: Tensor) -> Normal:
        """What every network predicts of its own rows."""
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            x = torch.baddbmm(bias, x, weight).relu_()
        mean, spread = torch.baddbmm(self.biases[-1], x, self.weights[-1]).unbind(-1)
        # Softplus and the floor keep sigma positive; torch's own check would read every value once more.
        return Normal(mean, nn.functional.softplus(spread) + self.floor, validate_args=False)

    def taken(self, members: Tensor) -> "StackedMLP":
        """A copy of some of the networks, in this order; one may be taken several times.

        Example:
            >>> StackedMLP(3, 8, (50,)).taken(torch.tensor([2, 2])).members
            2
        """
        copy = StackedMLP(len(members), self.sizes[0], self.sizes[1:], floor=self.floor)
        with torch.no_grad():
            for mine, other in zip(copy.parameters(), self.parameters(), strict=True):
                mine.copy_(other[members])
        return copy

    def alone(self, member: int) -> nn.Sequential:
        """One of the networks as a plain module, whose two outputs are the mean and what sigma is made of.

        Example:
            >>> StackedMLP(3, 8, (50,)).alone(1)(torch.zeros(5, 8)).shape
            torch.Size([5, 2])
        """
        layers: list[nn.Module] = []
        for weight, bias in zip(self.weights, self.biases, strict=True):
            linear = nn.Linear(*weight.shape[1:])
            with torch.no_grad():
                linear.weight.copy_(weight[member].T)
                linear.bias.copy_(bias[member, 0])
            layers += [linear, nn.ReLU()]
        return nn.Sequential(*layers[:-1])
