"""Several networks as one: deep ensembles, and small networks whose weights are stacked."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, MixtureSameFamily, Normal

from fcal._checks import check_flag, check_integer, check_number
from fcal.distributions.functional import stack
from fcal.models.shared_trunk import all_predictions

_SMALLEST_SIGMA = 1e-3


def mixture(preds: Sequence[Distribution]) -> MixtureSameFamily:
    """Mixture of predictions of the same targets, with equal weights.

    Unlike a normal distribution with the same moments, it can have several modes where the members disagree.

    Args:
        preds: Predictions of one scalar family and one shape.

    Example:
        >>> from torch.distributions import Normal
        >>> both = mixture([Normal(torch.zeros(3), 1.0), Normal(torch.full((3,), 2.0), 1.0)])
        >>> both.mean, both.variance  # the variance of the means adds 1
        (tensor([1., 1., 1.]), tensor([2., 2., 2.]))
    """
    components = stack(list(preds))
    weights = torch.ones(components.batch_shape, device=components.mean.device, dtype=components.mean.dtype)
    return MixtureSameFamily(Categorical(weights), components)


def normal_of_mixture(preds: Sequence[Distribution]) -> Normal:
    r"""Normal distribution with the moments of the mixture of predictions.

    Its variance is the mean of the predicted variances plus the (biased) variance of the predicted means.

    Args:
        preds: Predictions of scalars, of one shape.

    Example:
        >>> normal_of_mixture([Normal(torch.zeros(1), 1.0), Normal(torch.full((1,), 2.0), 1.0)]).scale
        tensor([1.4142])
    """
    if not preds:
        raise ValueError("expected `preds` at least one prediction, got none")
    means, sds = torch.stack([pred.mean for pred in preds]), torch.stack([pred.stddev for pred in preds])
    variance = sds.double().square().mean(0) + means.double().var(0, correction=0)  # squares may leave a small dtype
    return Normal(means.mean(0), variance.sqrt().to(means.dtype), validate_args=False)


class Ensemble(nn.Module):
    """A deep ensemble, which predicts the mixture of its members' predictions.

    Args:
        members: Networks, or anything callable, that return distributions of one scalar family; one with several heads
            (:class:`fcal.models.SharedTrunk`) counts as many.
        moments: Predict the normal distribution with the moments of the mixture.

    Example:
        >>> from fcal.models import ConvNet
        >>> images = torch.zeros(4, 3, 16, 16)
        >>> Ensemble([ConvNet(size=16), ConvNet(size=16)])(images).component_distribution.batch_shape
        torch.Size([4, 2, 2])
    """

    def __init__(self, members: Iterable[Callable[[Any], Distribution]], *, moments: bool = False) -> None:
        super().__init__()
        self._calls = list(members)
        self.members = nn.ModuleList(member for member in self._calls if isinstance(member, nn.Module))
        self.moments = check_flag("moments", moments)
        if not self._calls:
            raise ValueError("expected `members` at least one network, got none")

    def forward(self, inputs: Any) -> MixtureSameFamily | Normal:
        """Mixture of the members' predictions, or the normal distribution of its moments."""
        preds = all_predictions(self._calls, inputs)
        return normal_of_mixture(preds) if self.moments else mixture(preds)


class StackedMLP(nn.Module):
    r"""Independent ReLU networks of one architecture, evaluated together; each predicts a normal distribution.

    A network of 50 units is dominated by call overhead. Two hundred of them (splits, folds, members of an ensemble)
    cost a few times as much as one if they share the calls. The networks have separate weights and inputs, so the
    gradient of the sum of their losses is the gradient of each.

    Args:
        members: Number of networks.
        features: Inputs of each network.
        hidden: Units of each hidden layer.
        floor: Smallest standard deviation, which keeps the likelihood bounded.
        generator: Generator of the initial weights, which are uniform as in ``torch.nn.Linear``.

    Shape:
        Inputs ``(members, n, features)``, predictions ``(members, n)``. All parameters are one matrix ``theta`` with a
        row per network, so that an optimizer updates a single tensor.

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
        start[:, -1] = math.log(math.expm1(1 - self.floor))  # sigma of 1, that of standardized targets
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
        """Predict with each network from its own inputs."""
        *hidden, last = self.layers()
        for weight, bias in hidden:
            x = torch.baddbmm(bias, x, weight).relu_()
        mean, spread = torch.baddbmm(last[1], x, last[0]).unbind(-1)
        # Softplus and the floor keep sigma positive: torch's validation would only cost a pass over the values.
        return Normal(mean, nn.functional.softplus(spread) + self.floor, validate_args=False)

    def with_theta(self, theta: Tensor) -> "StackedMLP":
        """Networks of the same architecture with a copy of ``theta``. Shape ``(members, parameters)``."""
        copy = StackedMLP(len(theta), self.sizes[0], self.sizes[1:], floor=self.floor)
        with torch.no_grad():
            copy.theta.copy_(theta)
        return copy

    def select(self, members: Tensor) -> "StackedMLP":
        """Copy of the networks at these indices, which may repeat.

        Example:
            >>> StackedMLP(3, 8, (50,)).select(torch.tensor([2, 2])).members
            2
        """
        return self.with_theta(self.theta.detach()[members])

    def alone(self, member: int) -> nn.Sequential:
        """One network as a plain module, whose two outputs are the mean and sigma before softplus.

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
