"""The rows that a recalibrator is fitted to, and those that are so far out that no repair should follow them."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.distributions import Distribution, LogNormal

from fcal._checks import check_count
from fcal.distributions.family import Law
from fcal.distributions.observation import observe
from fcal.recalibration.location_and_scale import errors_in_scales, has_scale
from fcal.residuals import residuals_of

QUARTILES = 1.3489795003921634  # distance of the quartiles of the standard normal distribution
# In robust standard deviations: errors may be large where a heavy-tailed prediction expects them, and residuals where a
# light-tailed one does not, but not both. Families without a scale have residuals alone.
_WILD_ERROR, _WILD_RESIDUAL, _WILD_ALONE = 20.0, 8.0, 10.0
_LARGEST_SHARE = 0.01  # of rows that are wild,
_FEW, _FEW_SHARE = 3, 0.1  # or this many, of few rows
_SHARES = (0.25, 0.1, 0.05, 0.01)  # in either tail, whose quantiles tell the spread


@dataclass(frozen=True, kw_only=True)
class WildRows:
    """Calibration rows whose errors are far beyond all others: a repair does not follow them, and says so.

    Attributes:
        count: How many there are.
        rows: Of so many calibration rows.
        farthest: Distance of the farthest error from the median, in robust standard deviations of the errors.
    """

    count: int
    rows: int
    farthest: float

    def __str__(self) -> str:
        return f"{self.count} of {self.rows} rows left out, up to {self.farthest:.3g} sd away"


@dataclass(frozen=True)
class CalibrationData:
    """What a recalibrator is fitted on, in float64 and without gradient.

    Attributes:
        law: The valid predictions.
        target: Their targets. Shape ``(n,)``, or ``(n, D)`` for vectors.
        z: Their residuals. Shape of ``target``.
        output: Index of each row in the last dimension of the data; all 0 where it has one dimension. Shape ``(n,)``.
        outputs: Number of outputs.
        distance: Of each error from the median of its output, in robust standard deviations. Shape ``(n,)``.
        wild: Rows that are far beyond all others; see :class:`Recalibrator`. Shape ``(n,)``.
    """

    law: Law
    target: Tensor
    z: Tensor
    output: Tensor
    outputs: int
    distance: Tensor
    wild: Tensor

    def rows(self, where: Tensor) -> "CalibrationData":
        """The rows of a mask."""
        index = where.nonzero().squeeze(1)
        law = self.law.with_leaves([leaf[index] for leaf in self.law.leaves(self.target.shape[:1])])
        own = {name: getattr(self, name)[index] for name in ("target", "z", "output", "distance", "wild")}
        return replace(self, law=law, **own)

    def without_wild_rows(self) -> "CalibrationData":
        """The rows that a scale or a shift is fitted to."""
        return self.rows(~self.wild) if bool(self.wild.any()) else self

    def of_output(self, output: int) -> "CalibrationData":
        """The rows of one output, as the only one."""
        rows = self.rows(self.output == output)
        return replace(rows, output=torch.zeros_like(rows.output), outputs=1)

    def mean(self, values: Tensor, *, per_output: bool) -> Tensor:
        """Mean over all rows, of shape ``()``, or over the rows of each output, of shape ``(outputs,)``."""
        if not per_output:
            return values.mean()
        totals = values.new_zeros(self.outputs).index_add(0, self.output, values)
        return totals / torch.bincount(self.output, minlength=self.outputs)


@torch.no_grad()
def calibration_data(
    pred: Distribution, target: Tensor, valid_mask: Tensor | None, *, at_least: int
) -> CalibrationData:
    """The valid rows of a prediction and its targets, of which there must be enough."""
    observation = observe(pred, target, valid_mask=valid_mask, widest=True)
    check_count(observation.count(), at_least=at_least)
    law, elements = observation.law, observation.elements()
    event = observation.target.shape[len(elements) :]
    z = residuals_of(observation).reshape(-1, *event)
    y = observation.target.reshape(-1, *event)
    outputs = elements[-1] if len(elements) > 1 else 1
    output = torch.arange(elements.numel(), device=y.device) % outputs
    leaves = [leaf.detach() for leaf in law.leaves(elements)]
    if observation.valid is not None:
        where = observation.valid.reshape(-1).nonzero().squeeze(1)
        z, y, output, leaves = z[where], y[where], output[where], [leaf[where] for leaf in leaves]
    law = law.with_leaves(leaves)
    distance, wild = _wild_rows(law, y, z, output)
    return CalibrationData(law, y, z, output, outputs, distance, wild)


def _wild_rows(law: Law, target: Tensor, z: Tensor, output: Tensor) -> tuple[Tensor, Tensor]:
    """Distances of errors, and the rows that are wild both by their errors and by the predicted distribution."""
    residuals = _distances(z, output)
    if not has_scale(law) or law.kind is LogNormal:
        return residuals, residuals > _WILD_ALONE * _spread_of_tail(residuals)
    errors = _distances(errors_in_scales(law, target), output)
    is_far = errors > _WILD_ERROR * _spread_of_tail(errors)
    return errors, is_far & (residuals > _WILD_RESIDUAL * _spread_of_tail(residuals))


def _spread_of_tail(distance: Tensor) -> Tensor:
    """At least 1; more if even without the few rows that may be wild, distances are larger than normal ones.

    So rows are wild only beside all others: where many are far out, that is the shape of the errors.
    """
    count = len(distance)
    spared = max(math.ceil(_LARGEST_SHARE * count), min(_FEW, int(_FEW_SHARE * count)))
    tail = torch.tensor((spared + 1) / (2 * (count + 1)), dtype=torch.float64)
    return (distance.kthvalue(max(count - spared, 1)).values / -torch.special.ndtri(tail)).clamp(min=1.0)


def _distances(values: Tensor, output: Tensor) -> Tensor:
    """Distance of every row from the median of its output, in robust standard deviations. Shape ``(n,)``."""
    distance = values.new_zeros(len(values))
    for number in output.unique().tolist():
        rows = output == number
        own = values[rows]
        middle, spread = _middle_and_spread(own.flatten())
        if bool(spread > 0):
            distance[rows] = ((own - middle).abs() / spread).reshape(len(own), -1).amax(1)
    return distance


def _middle_and_spread(values: Tensor) -> tuple[Tensor, Tensor]:
    """Median, and the standard deviation of a normal distribution with the same quartiles.

    Where the quartiles are equal, as those of rounded numbers may be, quantiles farther out take their place; the
    spread is 0 if nearly all values are equal.
    """
    count = len(values)

    def quantile(share: float) -> Tensor:
        return values.kthvalue(1 + round(share * (count - 1))).values

    for share in _SHARES:
        spread = (quantile(1 - share) - quantile(share)) / (-2 * torch.special.ndtri(torch.tensor(share).double()))
        if bool(spread > 0):
            break
    return quantile(0.5), spread
