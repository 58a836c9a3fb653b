"""Several heads on one trunk: an ensemble for networks that are too large to be trained several times."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn
from torch.distributions import Distribution


class SharedTrunk(nn.Module):
    """Heads that predict the same targets from the features of one trunk.

    Trained with :class:`fcal.training.EachHead`, every head learns from the rows that it does not leave out, while the
    trunk learns from all rows. One pass through the trunk serves all heads.

    Args:
        trunk: Maps inputs to features.
        heads: Each maps features to a distribution.

    Example:
        >>> import torch
        >>> from fcal.models import NormalHead, SharedTrunk
        >>> network = SharedTrunk(torch.nn.Linear(3, 8), [NormalHead(8, 1) for _ in range(4)])
        >>> len(network(torch.zeros(5, 3))), network.alone(2)(torch.zeros(5, 3)).mean.shape
        (4, torch.Size([5, 1]))
    """

    def __init__(self, trunk: nn.Module, heads: Sequence[nn.Module]) -> None:
        super().__init__()
        if len(heads) < 2:
            raise ValueError(f"expected `heads` at least two, got {len(heads)}")
        self.trunk, self.heads = trunk, nn.ModuleList(heads)

    def forward(self, inputs: Any) -> list[Distribution]:
        """Prediction of every head."""
        features = self.trunk(inputs)
        return [head(features) for head in self.heads]

    def alone(self, number: int) -> nn.Module:
        """The trunk with one of the heads, as a network of its own that shares the weights."""
        return _OneHead(self.trunk, self.heads[number])


class _OneHead(nn.Module):
    def __init__(self, trunk: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.trunk, self.head = trunk, head

    def forward(self, inputs: Any) -> Distribution:
        prediction: Distribution = self.head(self.trunk(inputs))
        return prediction


def all_predictions(members: Sequence[Callable[[Any], Any]], inputs: Any) -> list[Distribution]:
    """Predictions of networks; one with several heads has several."""
    preds: list[Distribution] = []
    for member in members:
        prediction = member(inputs)
        preds += prediction if isinstance(prediction, list) else [prediction]
    return preds
