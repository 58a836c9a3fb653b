"""The f-Cal loss: how far a batch's residuals are from the law they must follow."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from fcal import divergences
from fcal._checks import check_count, check_flag, check_integer
from fcal._ranks import gathered, sum_over_ranks, world_size
from fcal._registry import Registry
from fcal.constraints import (
    BatchSums,
    Moments,
    Scalar,
    moments_of_q,
    moments_of_z,
    sampled_moments_of_q,
    traced_sums,
)
from fcal.losses.batch import Batch, BatchLoss
from fcal.losses.draws import check_generator
from fcal.losses.elements import counting_residuals
from fcal.losses.one_pass import Plan, check_effective_count, evaluate


class FCalLoss(BatchLoss):
    r"""Divergence between the law of a batch's standardised residuals and the law they must follow.

    If the predictions are right, residuals :math:`z` are standard normal and sums :math:`q` of K of their squares are
    chi-squared. The loss fits a normal law to q (or z) and returns its divergence from the target N(K, 2K) (or
    N(0, 1)). With :math:`m` the mean and :math:`s^2` the variance of :math:`z^2` over the batch, the default is

    .. math:: \frac{W_2^2}{2K} = \frac K2 (m - 1)^2 + \left( \frac{s}{\sqrt 2} - 1 \right)^2

    Args:
        divergence: A name from :func:`fcal.divergences.names`, ``"renyi(2)"`` for one with a parameter. Where one is
            infinite, it is continued, and the loss stays finite. ``"sorted_wasserstein"`` takes the residuals
            themselves, so ``on="z"``, and gathers them from all ranks; ``estimator`` does not matter to it.
        df: Degrees of freedom :math:`K`. The exact loss needs no draws of K residuals: there K only weighs "the mean of
            z^2 is 1" against "the variance of z^2 is 2".
        on: ``"q"`` for the hyper-constraints, ``"z"`` for the residuals themselves (which sees a bias that q
            cannot), ``"both"`` for the sum of the two divergences.
        estimator: ``"exact"``, the closed form, or ``"sampled"``, the paper's random draws (of q; z never needs any).
        finite_batch: Remove the factor 1 - K/N that drawing from a finite batch puts on the variance of q. Without
            removing it, the loss is minimal for predictions that are wrong by that factor.
        draws: Number of draws of the sampled estimator.
        generator: Source of randomness of the sampled estimator; torch's default where None.
        detach_mean: Let no gradient of this loss reach the predicted location, only the spread (of a mixture: the
            locations of all components; its weights still move the mean). A family without a location is refused.
        sync: Under ``torch.distributed``, take the batch of all ranks together. Every rank must then call the loss,
            also with an empty batch. False: each rank its own batch, for instance to validate on one rank.

    Shape:
        ``pred`` and ``target`` of the same shape; scalar result of the inputs' dtype, float32 at least.

    Note:
        Set ``detach_mean=True`` unless you know why not: otherwise the loss may buy calibration with a worse mean.
        Start from weights trained by the likelihood, at a lower rate. A batch that is perfectly calibrated scores
        about K / n on q, not 0, so batches should be large beside ``df``. Residuals count as independent, which pixels
        of one image are not.

        The loss couples the elements of a batch, so accumulating gradients over micro-batches is not the same as one
        large batch. It is once differentiable. Under ``torch.compile`` values are not checked, and only the exact
        estimator of a divergence of moments can be traced.

    Example:
        >>> from torch.distributions import Normal
        >>> target = torch.tensor([-1.0, 1.0, -2.0, 2.0])
        >>> criterion = fcal.FCalLoss(divergence="wasserstein", df=2)
        >>> criterion(Normal(torch.zeros(4), torch.ones(4)), target)  # mean of z^2 is 2.5, its variance 3
        tensor(2.3005)
    """

    def __init__(
        self,
        divergence: str = "wasserstein",
        df: int = 75,
        *,
        on: str = "q",
        estimator: str = "exact",
        finite_batch: bool = True,
        draws: int = 100,
        generator: torch.Generator | None = None,
        detach_mean: bool = False,
        sync: bool = True,
    ) -> None:
        super().__init__()
        takes_residuals = divergences.takes_residuals(divergences.by_name(divergence))  # unknown names are refused here
        self.divergence = divergence
        self.df = check_integer("df", df, at_least=1)
        _CONSTRAINTS[on]
        if takes_residuals and on != "z":
            raise ValueError(f"expected `on` 'z' with {divergence!r}, a divergence of the residuals, got {on!r}")
        self.on = on
        _ESTIMATORS[estimator]
        self.estimator = estimator
        self.finite_batch = check_flag("finite_batch", finite_batch)
        self.draws = check_integer("draws", draws, at_least=2)
        self.generator = check_generator(generator)
        self.detach_mean = check_flag("detach_mean", detach_mean)
        self.sync = check_flag("sync", sync)

    def of_batch(self, batch: Batch) -> Tensor:
        """The loss of a batch, non-negative; zero when its moments are those of the target law."""
        estimate = _ESTIMATORS[self.estimator] if self.is_of_moments() else _of_samples
        return estimate(self, batch)

    def is_of_moments(self) -> bool:
        """Whether the divergence depends on the residuals through their moments alone."""
        return not divergences.takes_residuals(divergences.by_name(self.divergence))

    def plan(self) -> Plan:
        """How the exact loss is computed.

        Raises:
            ValueError: The divergence takes the residuals themselves, so sums of the batch do not determine it.
        """
        if not self.is_of_moments():
            raise ValueError(f"expected `divergence` of moments, got {self.divergence!r}, which takes the residuals")
        return Plan(
            objective=self.of_sums,
            by=_DEPENDS_ON[self.on] if divergences.takes_numbers(divergences.by_name(self.divergence)) else None,
            detach_mean=self.detach_mean,
            with_nll=False,
            sync=self.sync,
            least_count=0 if self.finite_batch or self.on == "z" else self.df,
        )

    def of_sums(self, sums: BatchSums[Scalar]) -> Scalar:
        """The loss in closed form."""
        parts = []
        if "q" in _CONSTRAINTS[self.on]:
            parts.append(self._distance(moments_of_q(sums, self.df, finite_batch=self.finite_batch), self.df))
        if "z" in _CONSTRAINTS[self.on]:
            parts.append(self._distance(moments_of_z(sums), None))
        return parts[0] if len(parts) == 1 else parts[0] + parts[1]

    def of_samples(self, z: Tensor, weight: Tensor) -> Tensor:
        """The loss of residuals and their weights, shapes ``(N,)``."""
        distance: Tensor = divergences.by_name(self.divergence)(z, weight)
        return distance

    def _distance(self, fitted: Moments[Scalar], df: int | None) -> Scalar:
        distance: Scalar = divergences.by_name(self.divergence)(fitted.mean, fitted.variance, df)
        if isinstance(fitted.mean, Tensor) and not _is_scalar(distance):
            shown = tuple(distance.shape) if isinstance(distance, Tensor) else type(distance).__name__
            raise ValueError(f"expected `divergence` {self.divergence!r} to return a real scalar tensor, got {shown}")
        return distance

    def extra_repr(self) -> str:
        """The options, for ``print``."""
        flags = f"finite_batch={self.finite_batch}, detach_mean={self.detach_mean}, sync={self.sync}"
        return f"{self.divergence!r}, df={self.df}, on={self.on!r}, estimator={self.estimator!r}, {flags}"


def _is_scalar(value: object) -> bool:
    return isinstance(value, Tensor) and not value.dim() and value.is_floating_point()


def _exact(loss: FCalLoss, batch: Batch) -> Tensor:
    return evaluate(batch, loss.plan())


def _sampled(loss: FCalLoss, batch: Batch) -> Tensor:
    if loss.sync and world_size() > 1:
        raise ValueError("expected `estimator` 'exact' (or sync=False) under torch.distributed, got 'sampled'")
    z, weight = _valid_residuals(batch, detach_mean=loss.detach_mean)
    check_count(z.numel(), at_least=max(loss.df, 2) if "q" in _CONSTRAINTS[loss.on] else 2)
    if weight is not None:
        effective = (weight.sum().square() / weight.square().sum()).item()
        check_effective_count(effective, loss.plan().least_count)
    parts = []
    if "q" in _CONSTRAINTS[loss.on]:
        moments = sampled_moments_of_q(
            z, loss.df, loss.draws, weight=weight, finite_batch=loss.finite_batch, generator=loss.generator
        )
        parts.append(loss._distance(moments, loss.df))
    if "z" in _CONSTRAINTS[loss.on]:
        parts.append(loss._distance(moments_of_z(BatchSums(*traced_sums(z, weight).unbind())), None))
    return sum(parts[1:], parts[0]).to(batch.dtype())


def _of_samples(loss: FCalLoss, batch: Batch) -> Tensor:
    own: list[Tensor] = []

    def rows() -> Tensor:
        z, weight = _valid_residuals(batch, detach_mean=loss.detach_mean)
        own.append(z.clamp(-_LARGEST_RESIDUAL, _LARGEST_RESIDUAL))
        return torch.stack([own[0].detach(), torch.ones_like(z) if weight is None else weight], 1)

    everyone, start = gathered(rows, columns=2, device=batch.device(), sync=loss.sync)
    z, weight = everyone.unbind(1)
    check_effective_count((weight.sum().square() / weight.square().sum()).nan_to_num().item(), 0)
    value = loss.of_samples(torch.cat([z[:start], own[0], z[start + len(own[0]) :]]), weight)
    if not loss.sync:
        return value.to(batch.dtype())
    # Every rank knows the value, but only the slopes of its own rows; the sum, zero itself, adds those of the others.
    slopes = sum_over_ranks(lambda: (value - value.detach()).reshape(1), size=1, device=batch.device())
    return (value.detach() + slopes[0]).to(batch.dtype())


def _valid_residuals(batch: Batch, *, detach_mean: bool) -> tuple[Tensor, Tensor | None]:
    """Residuals that count, in one row, and their weights."""
    observation = batch.observe(widest=True)
    if detach_mean:
        observation = replace(observation, law=observation.law.detach_location())
    z, weight = counting_residuals(observation)
    return z, None if observation.weight is None else weight


_LARGEST_RESIDUAL = 1e70  # whose square is still far from overflow

_CONSTRAINTS: Registry[tuple[str, ...]] = Registry("on")
_CONSTRAINTS.add("q", ("q",))
_CONSTRAINTS.add("z", ("z",))
_CONSTRAINTS.add("both", ("q", "z"))

_DEPENDS_ON = {"q": ("square", "fourth"), "z": ("z", "square"), "both": ("z", "square", "fourth")}

Estimator = Callable[[FCalLoss, Batch], Tensor]
_ESTIMATORS: Registry[Estimator] = Registry("estimator")
_ESTIMATORS.add("exact", _exact)
_ESTIMATORS.add("sampled", _sampled)
