r"""The f-Cal loss: residuals of a batch, their moments, and the divergence from the moments of calibrated residuals.

.. code-block:: text

    z = standardize(pred, target)                         fcal.residuals      N(0, 1) if the predictions are right
    mean, variance = moments_of_q(residual_sums(z), K)    fcal.constraints    q: sums of K squared residuals
    loss = kl(mean, variance, K)                          fcal.divergences    from N(K, 2K)

:meth:`FCalLoss.plain_loss` is the definition; :func:`fcal.losses._fused.fused_loss` computes the same in one fast pass.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from fcal import divergences
from fcal._checks import check_count, check_flag, check_integer, is_tracing
from fcal._ranks import gather_rows, sum_over_ranks, world_size
from fcal._registry import Registry
from fcal.constraints import (
    SIZE,
    BatchSums,
    Moments,
    Scalar,
    moments_of_q,
    moments_of_z,
    residual_sums,
    sampled_moments_of_q,
)
from fcal.losses._fused import SumsObjective, fused_loss
from fcal.losses.batch import (
    Batch,
    BatchLoss,
    check_effective_count,
    check_generator,
    valid_residuals,
    weighted_residuals,
)

_LARGEST_RESIDUAL = 1e70  # its square is still far from overflow


class FCalLoss(BatchLoss):
    r"""Divergence between the distribution of the residuals of a batch and the one that calibrated residuals follow.

    If the predictions are right, residuals :math:`z` are standard normal and sums :math:`q` of K of their squares are
    chi-squared. The loss fits a normal distribution to q (or z) and returns its divergence from the target N(K, 2K) (or
    N(0, 1)). With :math:`m` the mean and :math:`s^2` the unbiased variance of :math:`z^2` over the batch (with weights,
    see ``fcal.constraints.moments_of_q``), the default is

    .. math:: \frac{W_2^2}{2K} = \frac K2 (m - 1)^2 + \left( \frac{s}{\sqrt 2} - 1 \right)^2

    Args:
        divergence: A name from :func:`fcal.divergences.names`; ``"renyi(2)"`` for one with a parameter. Divergences
            that are infinite for some moments are continued there, so the loss is finite in float64.
            ``"sorted_wasserstein"`` takes the residuals themselves: it needs ``on="z"``, gathers them from all ranks
            and ignores ``estimator``.
        df: Degrees of freedom :math:`K`. The exact loss needs no draws of K residuals: between normal distributions,
            K only weighs "the mean of z^2 is 1" against "the variance of z^2 is 2".
        on: ``"q"`` for the hyper-constraints, ``"z"`` for the residuals, which tell a bias from a spread that is too
            small (q does not), ``"both"`` for the sum of the two divergences.
        estimator: ``"exact"``, the closed form, or ``"sampled"``, the paper's random draws (of q; z never needs any).
        finite_batch: Remove the factor 1 - K/N that drawing from a finite batch puts on the variance of q. If it is
            kept, the loss asks for a variance of z^2 of 2 / (1 - K/N), which calibrated residuals do not have.
        draws: Number of draws of the sampled estimator.
        generator: Source of randomness of the sampled estimator; torch's default if None.
        detach_mean: Let no gradient of this loss reach the predicted location, only the spread (layers that both come
            from still move the location; :class:`fcal.models.FixedMean` keeps it). Of a mixture, the
            locations of all components are detached; its weights still move the mean. A family without a location is
            refused.
        sync: Under ``torch.distributed``, compute the loss of the batch of all ranks. Every rank must then call the
            loss, also with an empty batch. If False, each rank uses its own batch, for example to validate on one rank.

    Shape:
        ``pred`` and ``target`` of the same shape; scalar result of the dtype of the inputs, float32 at least.

    Note:
        The loss may trade accuracy of the mean for calibration, also with ``detach_mean=True`` where mean and sigma
        share layers. Train a network by the likelihood first, then the error bars of :class:`fcal.models.FixedMean` of
        it, on other rows, by :class:`fcal.losses.CombinedLoss` with a warm-up. A perfectly calibrated batch scores
        about K/N on q by ``"wasserstein"`` and half of that by ``"kl"``, not 0, so batches should be large compared
        with ``df``.
        Residuals are assumed independent, which pixels of one image are not.

        The loss couples the elements of a batch, so accumulating gradients over micro-batches is not the same as one
        large batch. It can be differentiated only once. Under ``torch.compile`` values are not checked, and only the
        exact estimator of a divergence of moments can be traced.

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
        self._divergence_name = divergence
        self._divergence = divergences.by_name(divergence)
        self.df = check_integer("df", df, at_least=1)
        self._on = on
        sums = _SUMS[on]
        self._complex_steps = sums if divergences.takes_numbers(self._divergence) else None
        self._estimator = estimator
        self._estimate = _ESTIMATORS[estimator]
        if divergences.takes_residuals(self._divergence):
            self._estimate = _of_residuals
            if on != "z":
                raise ValueError(f"expected `on` 'z' with {divergence!r}, a divergence of the residuals, got {on!r}")
        self.finite_batch = check_flag("finite_batch", finite_batch)
        self.draws = check_integer("draws", draws, at_least=2)
        self.generator = check_generator(generator)
        self.detach_mean = check_flag("detach_mean", detach_mean)
        self.sync = check_flag("sync", sync)

    @property
    def divergence(self) -> str:
        """Name of the divergence."""
        return self._divergence_name

    @property
    def on(self) -> str:
        """``"q"``, ``"z"`` or ``"both"``, whichever is compared with its target."""
        return self._on

    @property
    def estimator(self) -> str:
        """``"exact"`` or ``"sampled"``."""
        return self._estimator

    def of_batch(self, batch: Batch) -> Tensor:
        """The loss of a batch, non-negative; zero when its moments are those of the target distribution."""
        return self._estimate(self, batch)

    def plain_loss(self, batch: Batch) -> Tensor:
        """The exact loss by its definition: residuals, their sums, then moments and a divergence."""

        def local() -> Tensor:
            z, weight = weighted_residuals(batch.observe(), detach_mean=self.detach_mean)
            return residual_sums(z, weight)

        sums = self.over_ranks(local, SIZE, batch)
        return self.of_sums(BatchSums(*sums.unbind())).to(batch.dtype())

    def is_exact(self) -> bool:
        """Whether the loss is a function of the sums of a batch, without random draws."""
        return self._estimate is _exact

    def of_sums(self, sums: BatchSums[Scalar]) -> Scalar:
        """The exact loss as a function of the sums: moments of q and of z, then their divergence."""
        terms = []
        if self.on != "z":
            of_q = moments_of_q(sums, self.df, finite_batch=self.finite_batch)
            terms.append(self._divergence_from_target(of_q, self.df))
        if self.on != "q":
            terms.append(self._divergence_from_target(moments_of_z(sums), None))
        return terms[0] if len(terms) == 1 else terms[0] + terms[1]

    def sums_objective(self) -> SumsObjective:
        """The exact loss as ``fcal.losses._fused.fused_loss`` needs it.

        Raises:
            ValueError: The divergence takes the residuals themselves, which the sums do not determine.
        """
        if self._estimate is _of_residuals:
            raise ValueError(f"expected `divergence` of moments, got {self.divergence!r}, which takes the residuals")
        return SumsObjective(
            of_sums=self.of_sums,
            by=self._complex_steps,
            detach_mean=self.detach_mean,
            with_nll=False,
            sync=self.sync,
            least_count=self._least_count(),
        )

    def _least_count(self) -> int:
        return 0 if self.finite_batch or self.on == "z" else self.df

    def _divergence_from_target(self, fitted: Moments[Scalar], df: int | None) -> Scalar:
        distance: Scalar = self._divergence(fitted.mean, fitted.variance, df)
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
    """One fused pass; under ``torch.compile``, which fuses by itself, the plain operations."""
    return loss.plain_loss(batch) if is_tracing() else fused_loss(batch, loss.sums_objective())


def _sampled(loss: FCalLoss, batch: Batch) -> Tensor:
    """Residuals, moments of q over random draws of K of them, a divergence."""
    if loss.sync and world_size() > 1:
        raise ValueError("expected `estimator` 'exact' (or sync=False) under torch.distributed, got 'sampled'")
    z, own_weight = valid_residuals(batch.observe(widest=True), detach_mean=loss.detach_mean)
    check_count(z.numel(), at_least=max(loss.df, 2) if loss.on != "z" else 2)
    weight = None if batch.weight is None else own_weight
    if weight is not None:
        check_effective_count(_effective_count(weight), loss._least_count())
    terms = []
    if loss.on != "z":
        moments = sampled_moments_of_q(
            z, loss.df, loss.draws, weight=weight, finite_batch=loss.finite_batch, generator=loss.generator
        )
        terms.append(loss._divergence_from_target(moments, loss.df))
    if loss.on != "q":
        terms.append(loss._divergence_from_target(moments_of_z(BatchSums(*residual_sums(z, weight).unbind())), None))
    return sum(terms[1:], terms[0]).to(batch.dtype())


def _of_residuals(loss: FCalLoss, batch: Batch) -> Tensor:
    """Residuals of all ranks, and the divergence of their empirical distribution."""
    own: list[Tensor] = []

    def local() -> Tensor:
        z, weight = valid_residuals(batch.observe(widest=True), detach_mean=loss.detach_mean)
        own.append(z.clamp(-_LARGEST_RESIDUAL, _LARGEST_RESIDUAL))
        return torch.stack([own[0].detach(), weight], 1)

    rows, start = gather_rows(local, columns=2, device=batch.device(), sync=loss.sync)
    z, weight = rows.unbind(1)
    check_effective_count(_effective_count(weight), 0)
    distance: Tensor = loss._divergence(torch.cat([z[:start], own[0], z[start + len(own[0]) :]]), weight)
    if not loss.sync:
        return distance.to(batch.dtype())
    # Every rank has the value but only the gradient of its own rows; a sum of zeros adds the gradients of the others.
    zero = sum_over_ranks(lambda: (distance - distance.detach()).reshape(1), size=1, device=batch.device())
    return (distance.detach() + zero[0]).to(batch.dtype())


def _effective_count(weight: Tensor) -> float:
    return (weight.sum().square() / weight.square().sum()).nan_to_num().item()


_SUMS: Registry[tuple[str, ...]] = Registry("on")  # the sums that the loss depends on
_SUMS.add("q", ("square", "fourth"))
_SUMS.add("z", ("z", "square"))
_SUMS.add("both", ("z", "square", "fourth"))

_ESTIMATORS: Registry[Callable[[FCalLoss, Batch], Tensor]] = Registry("estimator")
_ESTIMATORS.add("exact", _exact)
_ESTIMATORS.add("sampled", _sampled)
