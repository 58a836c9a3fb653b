"""The scale-invariant logarithmic error, the task loss of monocular depth."""

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

from fcal._checks import check_flag, check_number, check_values, is_tracing
from fcal.distributions.functional import quantile_of
from fcal.distributions.observation import Observation
from fcal.losses.batch import Batch, BatchLoss, check_total, no_values


class SiLogLoss(BatchLoss):
    r"""Scale-invariant error of the logarithm of positive targets, such as depth.

    .. math:: \alpha \sqrt{\frac 1n \sum_i d_i^2 - \lambda \Bigl( \frac 1n \sum_i d_i \Bigr)^2}, \qquad
        d_i = \log m_i - \log y_i

    :math:`m_i` is the median of the prediction, which for a normal or Laplace distribution is its mean and for a
    log-normal one :math:`e^{\mu}`. With :math:`\lambda = 1` a common factor on all predictions costs nothing; with
    :math:`\lambda = 0` the loss is the root mean squared error of the logarithm.

    Args:
        variance_focus: :math:`\lambda`, within [0, 1].
        factor: :math:`\alpha`, a constant that brings the loss to the size of other losses.
        sync: Under ``torch.distributed``, compute the loss of the batch of all ranks; every rank must then call it.

    Shape:
        ``pred``, a distribution of a family with quantiles or a tensor of positive values, and ``target`` of the same
        shape; scalar result of the dtype of the inputs, float32 at least.

    Note:
        The loss couples the elements of a batch, so accumulating gradients over micro-batches is not the same as one
        large batch. Where the root is 0, so is the gradient. The spread of a prediction has a gradient of zero rather
        than none, so that all parameters of a network take part in data-parallel training.

    Reference:
        Eigen et al., "Depth map prediction from a single image using a multi-scale deep network", NeurIPS 2014; root
        and factor as in Lee et al., "From big to small: multi-scale local planar guidance for monocular depth
        estimation", 2019.

    Example:
        >>> depth = torch.tensor([1.0, 2.0, 4.0, torch.nan])
        >>> fcal.losses.SiLogLoss(variance_focus=1.0)(2 * torch.tensor([1.0, 2.0, 4.0, 8.0]), depth)
        tensor(0.)
        >>> fcal.losses.SiLogLoss(variance_focus=0.0, factor=1.0)(torch.full((2,), 1.0), torch.full((2,), torch.e))
        tensor(1.0000)
    """

    def __init__(self, *, variance_focus: float = 0.85, factor: float = 10.0, sync: bool = True) -> None:
        super().__init__()
        self.variance_focus = check_number("variance_focus", variance_focus, low=0.0, high=1.0)
        self.factor = check_number("factor", factor, low=1e-6, high=1e6)
        self.sync = check_flag("sync", sync)

    def forward(
        self,
        pred: Distribution | Tensor,
        target: Tensor,
        *,
        valid_mask: Tensor | None = None,
        weight: Tensor | None = None,
    ) -> Tensor:
        """The loss of a batch.

        Args:
            pred: Prediction, or predicted values as a tensor.
            target: Positive targets; NaN where missing.
            valid_mask: True where a target counts; shaped like ``target`` or its rows.
            weight: Non-negative weights, shaped like ``target`` or its rows; constants for autograd.

        Returns:
            A non-negative scalar; zero if prediction and target are the same.
        """
        if isinstance(pred, Tensor):  # as a distribution with this median, so that one path checks and masks both
            pred = Normal(pred, torch.ones_like(pred), validate_args=False)
        return super().forward(pred, target, valid_mask=valid_mask, weight=weight)

    def of_batch(self, batch: Batch) -> Tensor:
        """The loss of a batch."""

        def local() -> Tensor:
            return _local_sums(batch.observe(widest=True))

        first, second, total = self.over_ranks(local, 3, batch).unbind()
        if not is_tracing():
            check_total(total)
        radicand = second / total - self.variance_focus * (first / total).square()
        return (self.factor * _root(radicand)).to(batch.dtype())

    def extra_repr(self) -> str:
        """The options, for ``print``."""
        return f"variance_focus={self.variance_focus}, factor={self.factor}, sync={self.sync}"


def _local_sums(observation: Observation) -> Tensor:
    """Sums of the differences of logarithms, of their squares, and of the weights."""
    total = observation.total_weight()
    if not is_tracing() and not observation.count():
        nothing = no_values(observation).sum()
        return torch.stack([nothing, nothing, total])
    gap = observation.hide(_log_gap(observation), 0.0)
    weighted = gap if observation.weight is None else observation.weight * gap
    return torch.stack([weighted.sum(), (weighted * gap).sum(), total])


def _log_gap(observation: Observation) -> Tensor:
    """Logarithm of the median over the target, for every element."""
    target = observation.target
    half = torch.full_like(target, 0.5)
    median = quantile_of(observation.law, half, half)
    check_values("target", "> 0 (NaN where missing)", target.detach(), target > 0)
    check_values("pred", "with a median > 0", median.detach(), median > 0)
    return median.log() - target.log()


def _root(radicand: Tensor) -> Tensor:
    """Square root whose gradient at 0, or at what rounding leaves of it, is 0 instead of infinite."""
    positive = radicand > 0
    return torch.where(positive, torch.where(positive, radicand, 1.0).sqrt(), 0.0)
