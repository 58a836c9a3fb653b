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
        Inputs ``(members, n, features)``, predictions ``(members, n)``; all parameters are one matrix ``theta``, a row
        for each network, so that an optimiser has one tensor to go through.

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
        shapes = list(zip(self.sizes, [*self.sizes[1:], 2], strict=True))
        self._parts = [count for into, out in shapes for count in (into * out, out)]
        reach = torch.cat([torch.full(((into + 1) * out,), into**-0.5) for into, out in shapes])
        start = (2 * torch.rand(members, len(reach), generator=generator) - 1) * reach
        start[:, -1] = math.log(math.expm1(1 - self.floor))  # the sigma of standardised targets
        self.theta = nn.Parameter(start)

    @property
    def members(self) -> int:
        """Number of networks."""
        return len(self.theta)

    def layers(self) -> list[tuple[Tensor, Tensor]]:
        """Weights ``(members, in, out)`` and biases ``(members, 1, out)`` of every layer, as views."""
        parts = self.theta.split(self._parts, 1)
        return [
            (weight.unflatten(1, (-1, bias.shape[1])), bias.unsqueeze(1))
            for weight, bias in zip(parts[::2], parts[1::2], strict=True)
        ]

    def forward(self, x: Tensor) -> Normal:
        """What every network predicts of its own rows."""
        *hidden, last = self.layers()
        for weight, bias in hidden:
            x = torch.baddbmm(bias, x, weight).relu_()
        mean, spread = torch.baddbmm(last[1], x, last[0]).unbind(-1)
        # Softplus and the floor keep sigma positive; torch's own check would read every value once more.
        return Normal(mean, nn.functional.softplus(spread) + self.floor, validate_args=False)

    def with_theta(self, theta: Tensor) -> "StackedMLP":
        """Networks of the same shape with other parameters, a copy of ``theta``. Shape ``(members, parameters)``."""
        copy = StackedMLP(len(theta), self.sizes[0], self.sizes[1:], floor=self.floor)
        with torch.no_grad():
            copy.theta.copy_(theta)
        return copy

    def taken(self, members: Tensor) -> "StackedMLP":
        """A copy of some of the networks, in this order; one may be taken several times.

        Example:
            >>> StackedMLP(3, 8, (50,)).taken(torch.tensor([2, 2])).members
            2
        """
        return self.with_theta(self.theta.detach()[members])

    def alone(self, member: int) -> nn.Sequential:
        """One of the networks as a plain module, whose two outputs are the mean and what sigma is made of.

        Example:
            >>> StackedMLP(3, 8, (50,)).alone(1)(torch.zeros(5, 8)).shape
            torch.Size([5, 2])
        """
        layers: list[nn.Module] = []
        for weight, bias in self.layers():
            linear = nn.Linear(*weight.shape[1:])
            with torch.no_grad():
                linear.weight.copy_(weight[member].T)
                linear.bias.copy_(bias[member, 0])
            layers += [linear, nn.ReLU()]
        return nn.Sequential(*layers[:-1])
