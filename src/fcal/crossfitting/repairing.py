"""Models whose predictions are recalibrated, by a repair that is fitted to predictions of rows they have not seen."""

import copy
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.distributions import Distribution

from fcal import recalibration
from fcal.distributions.family import law_of
from fcal.recalibration import Recalibrator


class Calibrated(nn.Module):
    """A model whose predictions are recalibrated.

    Args:
        model: Returns a distribution.
        repair: Recalibrator fitted to predictions of the same family.

    Example:
        >>> from torch.distributions import Normal
        >>> pred = Normal(torch.zeros(2), torch.ones(2))
        >>> repair = fcal.recalibration.Temperature().fit(pred, torch.tensor([3.0, -3.0]))
        >>> Calibrated(lambda x: Normal(x, 1.0), repair)(torch.zeros(1)).scale
        tensor([3.])
    """

    def __init__(self, model: Callable[[Any], Distribution], repair: Recalibrator) -> None:
        super().__init__()
        self.model = model
        self.repair = repair

    def forward(self, inputs: Any) -> Distribution:
        """The recalibrated prediction."""
        return self.repair.transform(self.model(inputs))


def calibrated(
    model: Callable[[Any], Distribution],
    repair: str | Recalibrator,
    held_out: Distribution,
    target: Tensor,
    valid_mask: Tensor | None,
) -> Calibrated:
    """A model with a repair fitted to held-out predictions.

    Args:
        model: Returns a distribution of the same family.
        repair: Name of a method of :mod:`fcal.recalibration`, a recalibrator that is not fitted yet (and stays so), or
            ``"auto"``.
        held_out: Predictions for rows that the networks behind them have not seen.
        target: Their targets.
        valid_mask: True where a target counts.
    """
    method: object = copy.deepcopy(repair)
    if repair == "auto":
        method = usual_repair(held_out)
    elif isinstance(repair, str):
        method = recalibration.by_name(repair)()
    if not isinstance(method, Recalibrator):
        raise TypeError(f"expected `repair` a name or a Recalibrator, got {type(repair).__name__}")
    method.fit(held_out, target, valid_mask=valid_mask)
    return Calibrated(model, method)


def usual_repair(held_out: Distribution) -> Recalibrator:
    """The default repair: of scale and shape around the median, or of the scale alone for vectors.

    It moves no median, and wild rows do not move it: see :class:`fcal.recalibration.ScaleAndShape`.

    Args:
        held_out: Predictions for rows that the networks behind them have not seen.

    Returns:
        The recalibrator, not yet fitted.

    Example:
        >>> from torch.distributions import MultivariateNormal, Normal
        >>> type(usual_repair(Normal(torch.zeros(999), 1.0))).__name__
        'ScaleAndShape'
        >>> type(usual_repair(MultivariateNormal(torch.zeros(999, 2), torch.eye(2)))).__name__
        'Temperature'
    """
    return recalibration.Temperature() if law_of(held_out).family.event_dim else recalibration.ScaleAndShape()
