"""Losses that f-Cal is compared with and that are means: NLL, CRPS, beta-NLL and the loss of Feng et al."""

from collections.abc import Callable

from torch import Tensor

from fcal._checks import check_flag, check_integer, check_number, check_values
from fcal._registry import Registry
from fcal.distributions.observation import Observation
from fcal.losses.mean_loss import MeanLoss
from fcal.scores import element_crps, element_nll


class NLLLoss(MeanLoss):
    r"""Mean negative log-likelihood, the task's loss where nothing else is said.

    The same number as ``fcal.nll(..., reduction="mean")``, over all ranks together.

    Args:
        sync: Under ``torch.distributed``, average over all ranks.

    Example:
        >>> from torch.distributions import Normal
        >>> fcal.losses.NLLLoss()(Normal(torch.zeros(2), torch.ones(2)), torch.tensor([0.0, torch.nan]))
        tensor(0.9189)
    """

    widest = False

    def element_loss(self, observation: Observation) -> Tensor:
        """Negative log-likelihood of every element."""
        return element_nll(observation)


class CRPSLoss(MeanLoss):
    r"""Mean continuous ranked probability score, in the target's unit.

    .. math:: \frac 1n \sum_i \int (F_i(x) - 1\{x \ge y_i\})^2 \, dx

    The same number as ``fcal.crps(..., reduction="mean")``, over all ranks together. An outlier costs its
    distance, where the likelihood of a normal law charges the square of it; a target may lie outside of the support.
    Families without a closed form (see :func:`fcal.crps`) are integrated, which is a thousand times slower.

    Args:
        sync: Under ``torch.distributed``, average over all ranks.

    Reference:
        Gneiting et al., "Calibrated probabilistic forecasting using ensemble model output statistics and minimum CRPS
        estimation", Monthly Weather Review 2005.

    Example:
        >>> from torch.distributions import Uniform
        >>> fcal.losses.CRPSLoss()(Uniform(torch.zeros(2), torch.ones(2)), torch.tensor([0.5, torch.nan]))
        tensor(0.0833)
    """

    anywhere = True

    def element_loss(self, observation: Observation) -> Tensor:
        """Score of every element."""
        return element_crps(observation)


class BetaNLLLoss(MeanLoss):
    r"""Negative log-likelihood weighted by the predicted variance, which autograd sees as a constant.

    .. math:: \frac 1n \sum_i \lfloor \sigma_i^{2 \beta} \rfloor \, (-\log p(y_i))

    Plain NLL (:math:`\beta = 0`) learns least where sigma is large; :math:`\beta = 1` weighs errors as the mean squared
    error does.

    Args:
        beta: Within [0, 1].
        sync: Under ``torch.distributed``, average over all ranks.

    Reference:
        Seitzer et al., "On the pitfalls of heteroscedastic uncertainty estimation with probabilistic neural
        networks", ICLR 2022.

    Example:
        >>> from torch.distributions import Normal
        >>> pred = Normal(torch.zeros(1), 2 * torch.ones(1))
        >>> fcal.losses.BetaNLLLoss(beta=1.0)(pred, torch.zeros(1)) / fcal.nll(pred, torch.zeros(1)).mean()
        tensor(4.)
    """

    def __init__(self, beta: float = 0.5, *, sync: bool = True) -> None:
        super().__init__(sync=sync)
        self.beta = check_number("beta", beta, low=0.0, high=1.0)

    def element_loss(self, observation: Observation) -> Tensor:
        """Weighted negative log-likelihood of every element."""
        _, spread = _mean_and_spread(observation)
        weight = spread.detach().pow(2 * self.beta)
        weight = weight.mean(-1) if observation.law.family.event_dim else weight
        return weight * element_nll(observation)


class CalibrationLoss(MeanLoss):
    r"""Pulls the predicted spread of every element to its actual error.

    .. math:: \frac 1n \sum_i \left| \sigma_i^2 - (y_i - \mu_i)^2 \right|^p
        \quad\text{or}\quad \frac 1n \sum_i \bigl| \sigma_i - |y_i - \mu_i| \bigr|^p

    Add it to the likelihood by :class:`CombinedLoss`. The paper that proposed it does not state norm and power, so a
    table should name its choice.

    Args:
        on: ``"variance"`` or ``"std"``.
        p: 1 or 2.
        detach_mean: Let no gradient of this loss reach the predicted mean.
        sync: Under ``torch.distributed``, average over all ranks.

    Reference:
        Feng et al., "Can we trust you? On calibration of a probabilistic object detector for autonomous driving",
        IROS workshop 2019.

    Example:
        >>> from torch.distributions import Normal
        >>> fcal.losses.CalibrationLoss(on="std")(Normal(torch.zeros(1), torch.ones(1)), torch.tensor([3.0]))
        tensor(2.)
    """

    def __init__(self, on: str = "variance", p: int = 1, *, detach_mean: bool = False, sync: bool = True) -> None:
        super().__init__(sync=sync)
        _SPREADS[on]  # unknown names are refused here, not in the first step
        self.on = on
        self.p = check_integer("p", p, at_least=1, at_most=2)
        self.detach_mean = check_flag("detach_mean", detach_mean)

    def element_loss(self, observation: Observation) -> Tensor:
        """Distance of every element's spread from its error, to the power p; the mean over a vector's coordinates."""
        mean, spread = _mean_and_spread(observation)
        error = observation.target - (mean.detach() if self.detach_mean else mean)
        gap = _SPREADS[self.on](spread, error).abs().pow(self.p)
        return gap.mean(-1) if observation.law.family.event_dim else gap


def _mean_and_spread(observation: Observation) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of every element."""
    try:
        pred = observation.law.distribution()
        mean, spread = pred.mean, pred.stddev
    except (NotImplementedError, TypeError):
        raise TypeError(f"expected `pred` with a mean and a variance, got {observation.law.name}") from None
    check_values("pred.stddev", "finite", spread.detach(), spread.isfinite())
    return mean, spread


_SPREADS: Registry[Callable[[Tensor, Tensor], Tensor]] = Registry("on")
_SPREADS.add("variance", lambda spread, error: spread.square() - error.square())
_SPREADS.add("std", lambda spread, error: spread - error.abs())
