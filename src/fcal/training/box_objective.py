"""The objective of a detector: its own losses, and a calibration loss of the boxes of positive proposals."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from fcal._datasets import Batch
from fcal._ranks import all_reduce
from fcal.training.objectives import (
    MEAN_ONLY,
    ObjectiveConfig,
    Terms,
    WeightedObjective,
    register_task,
)

_OF_BOXES = "smooth-l1"  # the detector's own loss of boxes, which is always part of the objective


class BoxObjective(WeightedObjective):
    r"""Losses of a detector, and a loss of the distributions of its boxes, weighted by :math:`\lambda`.

    .. math:: L_{objectness} + L_{proposals} + L_{classes} + L_{smooth L1} + \lambda L_{cal}

    The calibration loss is of all positive sampled proposals of the batch, on all ranks, in pixels of the resized
    images, but not of the true boxes that are added to the proposals for the other losses: a network is right about
    those if it leaves them as they are, and sigmas would become too small for its own proposals. Proposals of one
    object are near copies, so each has the weight 1 / number of proposals of its object. A batch without any has a
    calibration loss of 0.

    Validation is at one proposal of each proposed object, the one with the highest score. An epoch in which the network
    proposes none is not the best one.

    Args:
        name: Name of the calibration term in logs; ``"smooth-l1"`` for none.
        calibration: ``(pred, target, *, weight) -> scalar``.
        config: Weight, form and warm-up.

    Raises:
        ValueError: A loss of the mean other than ``"smooth-l1"``.

    Example:
        >>> from fcal.training import BoxObjective, ObjectiveConfig, objective
        >>> config = ObjectiveConfig(name="fcal", task="detection", form="additive", lam=0.1)
        >>> isinstance(objective(config), BoxObjective)
        True
    """

    def __init__(self, name: str, calibration: Callable[..., Tensor], config: ObjectiveConfig) -> None:
        super().__init__(name, calibration, config)
        if name in MEAN_ONLY and name != _OF_BOXES:
            raise ValueError(f"expected `name` {_OF_BOXES!r} or an objective of error bars with boxes, got {name!r}")

    def forward(self, model: nn.Module, batch: Batch) -> Terms:
        """The terms of a batch; in training mode the call counts as a step of the warm-up."""
        return self._observed(model, batch)[0]

    def judged(self, model: nn.Module, batch: Batch) -> tuple[Terms, Distribution, Batch]:
        """The terms of a batch, and the distribution of one box of each proposed object with its true box."""
        terms, proposed = self._observed(model, batch)
        best = proposed.take(proposed.best_of_objects())
        return terms, _law(model, best), {"target": best.target}

    def _observed(self, model: nn.Module, batch: Batch) -> tuple[Terms, Any]:
        """The terms, and the positive proposals of the network itself."""
        if not hasattr(model, "proposal_samples"):
            raise TypeError(f"expected `model` a detector for the task 'detection', got {type(model).__name__}")
        detector: Any = model
        samples = detector.proposal_samples(batch["input"], batch["target"])
        proposed = samples.proposed()
        task_weight, calibration_weight = self.current_weights()
        own = {**samples.losses, "loss_box_reg": detector.box_loss(samples, _law(model, samples))}
        terms = {name.removeprefix("loss_"): task_weight * loss for name, loss in own.items()}
        if calibration_weight and self.name != _OF_BOXES:
            terms[self.name] = calibration_weight * self._calibration(_law(model, proposed), proposed)
        return terms, proposed

    def _calibration(self, law: Distribution, proposed: Any) -> Tensor:
        count = torch.tensor([len(proposed)], dtype=torch.float64, device=proposed.target.device)
        if not all_reduce(count).item():  # on no rank
            return 0.0 * (law.mean.sum() + law.stddev.sum())  # has a gradient, of 0
        weight = proposed.weight.reshape(-1, *[1] * (len(law.batch_shape) - 1)).expand(law.batch_shape)
        return self.calibration(law, proposed.target, weight=weight)


def _law(model: Any, samples: Any) -> Distribution:
    law: Distribution = model.box_law(samples.features, samples.proposals, samples.labels)
    return law


register_task("detection", BoxObjective)
