"""Several networks as one: the mixture of what they say."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributions import Categorical, Distribution, MixtureSameFamily

from fcal.distributions.batching import stack


def mixture(preds: Sequence[Distribution]) -> MixtureSameFamily:
    """Predictions of the same targets as one law: that of the target, where each is right equally often.

    Unlike a normal law of the mixture's moments, it is wide or has several peaks where the members disagree.

    Args:
        preds: Of one scalar family and one shape.

    Example:
        >>> from torch.distributions import Normal
        >>> both = mixture([Normal(torch.zeros(3), 1.0), Normal(torch.full((3,), 2.0), 1.0)])
        >>> both.mean, both.variance  # 1, and the variance of the means beside
        (tensor([1., 1., 1.]), tensor([2., 2., 2.]))
    """
    components = stack(list(preds))
    weights = torch.ones(components.batch_shape, device=components.mean.device, dtype=components.mean.dtype)
    return MixtureSameFamily(Categorical(weights), components)


class Ensemble(nn.Module):
    """A deep ensemble: its prediction is the mixture of its members'.

    Args:
        members: Networks that return distributions of one scalar family.

    Example:
        >>> from fcal.models import ConvNet
        >>> images = torch.zeros(4, 3, 16, 16)
        >>> Ensemble([ConvNet(size=16), ConvNet(size=16)])(images).component_distribution.batch_shape
        torch.Size([4, 2, 2])
    """

    def __init__(self, members: Iterable[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        if not len(self.members):
            raise ValueError("expected `members` at least one network, got none")

    def forward(self, given: Any) -> MixtureSameFamily:
        """The mixture of what the members say."""
        return mixture([member(given) for member in self.members])
