"""Accuracy and likelihood weighed against each other: the likelihood's own trade-off, as an objective by name."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from fcal.training import Objective, ObjectiveConfig, objective
from fcal.training.objectives import Terms, register

NAME = "smooth-l1-nll"


class WeightedLikelihood(nn.Module):
    r"""Smooth L1 of the mean and the likelihood, :math:`(1 - \lambda) L_1 + \lambda L_{nll}`, as an objective.

    Args:
        lam: Weight :math:`\lambda` of the likelihood.
    """

    def __init__(self, lam: float) -> None:
        super().__init__()
        self.weights = {"smooth-l1": 1 - lam, "nll": lam}
        self._parts: dict[str, Objective] = {name: objective(ObjectiveConfig(name=name)) for name in self.weights}

    def forward(self, model: nn.Module, batch: Mapping[str, Any]) -> Terms:
        """Both terms of a batch; the network is asked once."""
        said = _Said(model(batch["input"]))
        return {name: weight * self._parts[name](said, batch)[name] for name, weight in self.weights.items()}


class _Said(nn.Module):
    """What a network has said, in place of the network."""

    def __init__(self, pred: Any) -> None:
        super().__init__()
        self.pred = pred

    def forward(self, _: Any) -> Any:
        return self.pred


register(NAME, lambda config: WeightedLikelihood(config.lam))
