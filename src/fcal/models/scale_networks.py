"""The location of one network with the error bars of another, which can be trained without harm to the location."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from fcal.distributions.functional import location_of, recentred


class WithScales(nn.Module):
    """The location of one model with the error bars of another.

    Args:
        model: Returns a distribution; its location is used.
        scales: Returns a distribution of the same shape; all but its location is used.

    Example:
        >>> from torch.distributions import Normal
        >>> WithScales(lambda x: Normal(x, 1.0), lambda x: Normal(0 * x, 3.0))(torch.tensor([2.0]))
        Normal(loc: tensor([2.]), scale: tensor([3.]))
    """

    def __init__(self, model: Callable[[Any], Distribution], scales: Callable[[Any], Distribution]) -> None:
        super().__init__()
        self.model = model
        self.scales = scales

    def forward(self, inputs: Any) -> Distribution:
        """The prediction of ``scales`` around the location of ``model``."""
        return recentred(self.scales(inputs), location_of(self.model(inputs)))


class FixedMean(WithScales):
    """A trained network whose mean stays as it is while its error bars are trained.

    Where mean and sigma share layers, a loss of sigma moves the mean as well, whatever is detached. Here the mean comes
    from a frozen copy of the network and everything else (sigma, degrees of freedom) from a second copy, so no
    training can change the mean, not by a bit. Use it for the second stage of training, by
    ``fcal.losses.CombinedLoss()`` on rows that the network was not trained on.

    Args:
        network: The trained network. It returns a distribution with a location in the unit of the target (Normal,
            Laplace, StudentT, MultivariateNormal, ...), and is copied, not changed.
        scales: A network of the error bars, which returns the same family; a copy of ``network`` if None.

    Note:
        The frozen copy is always in evaluation mode: the mean has no dropout, and batch statistics do not move. A
        prediction costs two networks. Where sigma has a head of its own, training that head alone
        (``network.requires_grad_(False)``, then ``network.spread.requires_grad_(True)``, in evaluation mode) keeps the
        mean as well and costs one, but has less to learn sigma with.

    Example:
        >>> from fcal.models import FixedMean, NormalHead
        >>> network = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), NormalHead(8, 1))
        >>> x, y = torch.zeros(200, 1), 5 * torch.ones(200, 1)
        >>> tuned = FixedMean(network)
        >>> optimizer = torch.optim.Adam(tuned.parameters(), lr=0.1)
        >>> for _ in range(50):
        ...     optimizer.zero_grad()
        ...     fcal.nll(tuned(x), y).mean().backward()
        ...     optimizer.step()
        >>> torch.equal(tuned(x).mean, network(x).mean), bool(tuned(x).stddev[0] > 3 * network(x).stddev[0])
        (True, True)
    """

    model: nn.Module
    scales: nn.Module

    def __init__(self, network: nn.Module, scales: nn.Module | None = None) -> None:
        for name, module in (("network", network), ("scales", scales)):
            if not isinstance(module, nn.Module) and not (name == "scales" and module is None):
                raise TypeError(f"expected `{name}` a torch.nn.Module, got {type(module).__name__}")
        scales = copy.deepcopy(network) if scales is None else scales
        if not any(parameter.requires_grad for parameter in scales.parameters()):
            raise ValueError("expected `network` with weights to train, got none; call network.requires_grad_(True)")
        super().__init__(copy.deepcopy(network).requires_grad_(False), scales)
        self.train(network.training)

    def train(self, mode: bool = True) -> "FixedMean":
        """Set the mode of the network of error bars; the other one stays in evaluation mode."""
        super().train(mode)
        self.model.eval()
        return self

    def forward(self, inputs: Any) -> Distribution:
        """The error bars of ``scales`` around the location of the frozen network."""
        with torch.no_grad():
            location = location_of(self.model(inputs))
        pred = self.scales(inputs)
        return recentred(pred, _replaced(location_of(pred), location))


def _replaced(own: Tensor, location: Tensor) -> Tensor:
    """``location``, with a gradient of exactly 0 for ``own``.

    Every weight of the network of error bars then has a gradient, which data-parallel training waits for.
    """
    return torch.where(torch.ones((), dtype=torch.bool, device=own.device), location, own)
