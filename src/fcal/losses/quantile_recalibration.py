"""Likelihood of a prediction after the recalibration that its own batch asks for."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from fcal._checks import check_flag, check_number
from fcal.losses.batch import Batch, BatchLoss
from fcal.losses.elements import PITValues, counting, element_weight, is_empty, pit_values
from fcal.losses.fourier import fourier_series, fourier_sums
from fcal.losses.one_pass import check_effective_count
from fcal.scores import element_nll

_FARTHEST = 36.0  # x / sinh(x) is below 2e-14 farther out


class QuantileRecalibrationLoss(BatchLoss):
    r"""Negative log-likelihood of the predictions, recalibrated by the batch's own transforms :math:`Z_i = F_i(y_i)`.

    .. math:: \frac 1n \sum_i -\log f_i(y_i) - \log r(Z_i), \qquad
        r(z) = \frac 1n \sum_j \sum_{k \in \mathbb Z} \kappa_h(z - 2k - Z_j) + \kappa_h(z - 2k + Z_j)

    :math:`r` is the density of the transforms, estimated with a logistic kernel of scale
    :math:`h = b \, n^{-1/5}` and reflected at 0 and 1, and :math:`f r(F)` the recalibrated density. The gradient passes
    through everything, and an element's own kernel is part of its density, as in the paper.

    Reflected at both ends, r is the cosine series :math:`1 + 2 \sum_m \frac{x_m}{\sinh x_m} C_m \cos(\pi m z)` with
    :math:`x_m = \pi^2 h m` and :math:`C_m` the mean of :math:`\cos(\pi m Z_j)`. It is cut where its terms are below
    2e-14, so time grows with n / h, not with n^2, and no n x n matrix exists.

    Args:
        bandwidth: Factor :math:`b` of the kernel's scale.
        sync: Under ``torch.distributed``, take the batch of all ranks together; every rank must then call the loss.

    Shape:
        As for :class:`fcal.FCalLoss`. A vector counts by the coordinates of its whitened residual, all recalibrated by
        one map.

    Note:
        A model trained with this loss must be recalibrated by the same map before it is used. The loss itself hardly
        sees what one map repairs, such as sigmas that are all too large by one factor (too small ones press the
        transforms against 0 and 1, closer than the kernel resolves). It couples the elements of a batch, so
        accumulating gradients over micro-batches is not the same as one large batch. With weights, n in the kernel's
        scale is :math:`(\sum w)^2 / \sum w^2`. The paper reflects the kernel once at each end, we without end: then r
        integrates to 1, and differs by less than :math:`2 e^{-1/h} / h`. The loss is once differentiable and cannot be
        traced by ``torch.compile``.

    Reference:
        Dheur and Ben Taieb, "Probabilistic calibration by design for neural network regression", AISTATS 2024.

    Example:
        Here a common factor on all sigmas changes little, while the likelihood alone would change by 0.65:

        >>> from torch.distributions import Normal
        >>> target = torch.special.ndtri(torch.arange(0.5, 1000) / 1000)
        >>> criterion = fcal.losses.QuantileRecalibrationLoss()
        >>> [round(criterion(Normal(torch.zeros(1000), s * torch.ones(1000)), target).item(), 2) for s in (1, 3)]
        [1.42, 1.42]
    """

    def __init__(self, *, bandwidth: float = 0.1, sync: bool = True) -> None:
        super().__init__()
        self.bandwidth = check_number("bandwidth", bandwidth, low=1e-3, high=1e3)
        self.sync = check_flag("sync", sync)

    def of_batch(self, batch: Batch) -> Tensor:
        """The loss of a batch."""
        terms: list[_Terms] = []

        def weights() -> Tensor:
            terms.append(_terms_of(batch))
            weight = terms[0].pit.weight
            return torch.stack([weight.sum(), weight.square().sum()])

        total, square = self.over_ranks(weights, 2, batch).tolist()
        effective = total * total / square if square else 0.0
        check_effective_count(effective, 0)
        scale = self.bandwidth * effective**-0.2
        damping = _damping(scale, batch.device())
        pit = terms[0].pit

        def cosines() -> Tensor:
            return fourier_sums(pit.values, pit.weight, math.pi, len(damping)).real

        coefficients = damping * self.over_ranks(cosines, len(damping), batch) / total

        def scores() -> Tensor:
            density = fourier_series(pit.values, coefficients.to(torch.complex128), math.pi)
            least = pit.weight / (4 * scale * total)  # the element's own kernel: no rounding may go below it
            recalibrated = terms[0].nll - (pit.weight * torch.maximum(density, least).log()).sum()
            return torch.stack([terms[0].event_size * recalibrated, terms[0].total])

        score, count = self.over_ranks(scores, 2, batch).unbind()
        return (score / count).to(batch.dtype())

    def extra_repr(self) -> str:
        """The options, for ``print``."""
        return f"bandwidth={self.bandwidth}, sync={self.sync}"


class _Terms(NamedTuple):
    """What this rank adds.

    Attributes:
        pit: Its transforms.
        nll: Weighted sum of its elements' negative log-likelihoods. Shape ``()``.
        total: Sum of its elements' weights. Shape ``()``.
        event_size: Number of elements that make one prediction.
    """

    pit: PITValues
    nll: Tensor
    total: Tensor
    event_size: int


def _terms_of(batch: Batch) -> _Terms:
    observation = batch.observe(widest=True)
    pit = pit_values(observation)
    if is_empty(observation):
        return _Terms(pit, pit.values.sum(), pit.weight.sum(), observation.event_size())
    weight = element_weight(observation)
    nll = weight @ counting(element_nll(observation).to(torch.float64), observation)
    return _Terms(pit, nll, weight.sum(), observation.event_size())


def _damping(scale: float, device: torch.device) -> Tensor:
    """Coefficients of the cosine series of one reflected kernel about 0."""
    count = math.ceil(_FARTHEST / (math.pi**2 * scale)) + 1
    x = math.pi**2 * scale * torch.arange(1, count, dtype=torch.float64, device=device)
    return torch.cat([x.new_ones(1), 2 * x / torch.sinh(x)])
