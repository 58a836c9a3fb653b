"""Divergences by a power of the density ratio: Rényi's and Pearson's chi-squared, finite also where they are not."""

import math

from fcal._checks import check_number
from fcal.divergences.arithmetic import Scalar, at_least, at_most, excess_variance, expm1, log, log1p, standardized
from fcal.divergences.registry import Parameter, built_in

_ALPHA = Parameter("alpha", 0.01, 100.0)
_REMAINDER = 0.05  # of the way from v = 1 to the singularity; there the tangent takes over
_LARGEST_LOG = 20.0  # log(1 + chi^2) from which on it is continued by its tangent


@built_in(numbers=True, parameter=_ALPHA)
def renyi(mean: Scalar, variance: Scalar, df: int | None = None, *, alpha: float = 0.5) -> Scalar:
    r"""Rényi divergence of order alpha from the fitted law to the target.

    .. math:: \frac{1}{\alpha - 1} \log \int p^\alpha q^{1 - \alpha}
        = \frac12 \left( \frac{\log w}{1 - \alpha} - \log v + \frac{\alpha m^2}{w} \right),
        \qquad w = \alpha + (1 - \alpha) v

    with p the fitted law, q the target, and m and v as in :func:`kl`. Order 1 is :func:`kl` as its limit; order 1/2 is
    symmetric, and -2 log of the overlap that :func:`hellinger` takes from 1.

    Args:
        mean: Mean of the fitted law. Shape ``()``.
        variance: Its variance, positive. Shape ``()``.
        df: Degrees of freedom of the target; None for N(0, 1).
        alpha: Order, within [0.01, 100]. In a name: ``"renyi(2)"``.

    Returns:
        A non-negative scalar, zero exactly when the laws agree; unbounded as the variance goes to 0.

    Note:
        For alpha > 1 the divergence is infinite from :math:`v = \alpha / (\alpha - 1)` on. From 95 % of the way between
        1 and there, :math:`v_0 = 1 + 0.95 / (\alpha - 1)`, it is continued by its tangent in :math:`\log v`,
        :math:`D(m, v_0) + v_0 \, \partial_v D(m, v_0) \log(v / v_0)`, which grows with v and m at any distance. Below
        :math:`v_0` values are the true ones.

    Example:
        >>> fcal.divergences.renyi(torch.tensor(1.0), torch.tensor(1.0), alpha=3.0)  # alpha m^2 / 2
        tensor(1.5000)
    """
    alpha = check_number("alpha", alpha, low=_ALPHA.low, high=_ALPHA.high)
    offset, ratio = standardized(mean, variance, df)
    excess = excess_variance(variance, df)
    if alpha <= 1:
        return _renyi(offset, ratio, excess, alpha)
    tangent_at = (1 - _REMAINDER) / (alpha - 1)
    inside = _renyi(offset, ratio, at_most(excess, tangent_at), alpha)  # -log v goes on by itself, without a tangent
    slope = 0.5 * (1 + tangent_at) * (1 / _REMAINDER + alpha * (alpha - 1) / _REMAINDER**2 * offset)
    return inside + slope * log1p((at_least(excess, tangent_at) - tangent_at) / (1 + tangent_at))


@built_in(numbers=True)
def chi_square(mean: Scalar, variance: Scalar, df: int | None = None) -> Scalar:
    r"""Pearson's chi-squared divergence of the fitted law from the target.

    .. math:: \int \frac{p^2}{q} - 1 = \frac{1}{\sqrt{v (2 - v)}} \exp\left( \frac{m^2}{2 - v} \right) - 1
        = e^{D_2} - 1

    with p the fitted law, q the target, m and v as in :func:`kl`, and :math:`D_2` the Rényi divergence of order 2.

    Args:
        mean: Mean of the fitted law. Shape ``()``.
        variance: Its variance, positive. Shape ``()``.
        df: Degrees of freedom of the target; None for N(0, 1).

    Returns:
        A non-negative scalar, zero exactly when the laws agree; unbounded as the variance goes to 0.

    Note:
        It is infinite from v = 2 on. From v = 1.95 on :math:`D_2` is continued as in :func:`renyi`, and from
        :math:`D_2 = 20` on, a value of 4.9e8, :math:`e^{D_2}` by its tangent :math:`e^{20} (D_2 - 19)`. Before both,
        values are the true ones.

    Example:
        >>> fcal.divergences.chi_square(torch.tensor(0.0), torch.tensor(1.0))
        tensor(0.)
    """
    exponent = renyi(mean, variance, df, alpha=2.0)
    beyond = at_least(exponent, _LARGEST_LOG) - _LARGEST_LOG
    return expm1(at_most(exponent, _LARGEST_LOG)) + math.exp(_LARGEST_LOG) * beyond


def _renyi(offset: Scalar, ratio: Scalar, excess: Scalar, alpha: float) -> Scalar:
    """The closed form; at order 1, its limit."""
    rest = 1 - alpha
    spread = log1p(rest * excess) / rest if rest else excess
    return 0.5 * (spread - log(ratio) + alpha * offset / (1 + rest * excess))
