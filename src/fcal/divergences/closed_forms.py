"""Divergences of two normal laws that are short formulas: Kullback-Leibler and Wasserstein."""

from fcal.divergences.arithmetic import Scalar, excess_variance, log, sqrt, standardized, target_moments
from fcal.divergences.registry import built_in


@built_in(numbers=True)
def kl(mean: Scalar, variance: Scalar, df: int | None = None) -> Scalar:
    r"""Kullback-Leibler divergence from the fitted law to the target, KL(fitted || target); the paper's loss.

    .. math:: \tfrac12 \left( v - 1 - \log v + m^2 \right)

    with :math:`m = (mean - K) / \sqrt{2K}` and :math:`v = variance / 2K`.

    Args:
        mean: Mean of the fitted law. Shape ``()``.
        variance: Its variance, positive. Shape ``()``.
        df: Degrees of freedom :math:`K` of the target N(K, 2K); None for N(0, 1).

    Returns:
        A non-negative scalar, zero exactly when the laws agree; unbounded as the variance goes to 0.

    Example:
        >>> fcal.divergences.kl(torch.tensor(100.0), torch.tensor(200.0), df=100)
        tensor(0.)
    """
    offset, ratio = standardized(mean, variance, df)
    return 0.5 * (ratio - 1 - log(ratio) + offset)


@built_in(numbers=True)
def reverse_kl(mean: Scalar, variance: Scalar, df: int | None = None) -> Scalar:
    r"""Kullback-Leibler divergence from the target to the fitted law, KL(target || fitted); the paper's metric.

    .. math:: \tfrac12 \left( \frac{1 + m^2}{v} - 1 + \log v \right)

    with m and v as in :func:`kl`.

    Args:
        mean: Mean of the fitted law. Shape ``()``.
        variance: Its variance, positive. Shape ``()``.
        df: Degrees of freedom of the target; None for N(0, 1).

    Returns:
        A non-negative scalar, zero exactly when the laws agree; unbounded as the variance goes to 0.

    Example:
        >>> fcal.divergences.reverse_kl(torch.tensor(100.0), torch.tensor(200.0), df=100)
        tensor(0.)
    """
    offset, ratio = standardized(mean, variance, df)
    return 0.5 * ((1 + offset) / ratio - 1 + log(ratio))


@built_in(numbers=True)
def wasserstein(mean: Scalar, variance: Scalar, df: int | None = None) -> Scalar:
    r"""Squared 2-Wasserstein distance in units of the target's variance, :math:`W_2^2 / 2K`.

    .. math:: m^2 + (\sqrt v - 1)^2

    with m and v as in :func:`kl`. Unlike the printed form it does not grow with K, so a weight ``lam`` means the same
    for every K.

    Args:
        mean: Mean of the fitted law. Shape ``()``.
        variance: Its variance, non-negative. Shape ``()``.
        df: Degrees of freedom :math:`K` of the target; None for N(0, 1), where it is :math:`W_2^2` itself.

    Returns:
        A non-negative scalar, zero exactly when the laws agree.

    Example:
        >>> fcal.divergences.wasserstein(torch.tensor(0.0), torch.tensor(4.0))
        tensor(1.)
    """
    offset, ratio = standardized(mean, variance, df)
    gap = sqrt(ratio) - 1
    return offset + gap * gap


@built_in(numbers=True)
def wasserstein_printed(mean: Scalar, variance: Scalar, df: int | None = None) -> Scalar:
    r"""Squared 2-Wasserstein distance :math:`W_2^2` as the paper prints it.

    .. math:: (mean - K)^2 + (\sqrt{variance} - \sqrt{2K})^2

    Args:
        mean: Mean of the fitted law. Shape ``()``.
        variance: Its variance, non-negative. Shape ``()``.
        df: Degrees of freedom :math:`K` of the target; None for N(0, 1).

    Returns:
        A non-negative scalar, zero exactly when the laws agree.

    Example:
        >>> fcal.divergences.wasserstein_printed(torch.tensor(101.0), torch.tensor(200.0), df=100)
        tensor(1.)
    """
    return wasserstein(mean, variance, df) * target_moments(df)[1]


@built_in(numbers=True)
def jeffreys(mean: Scalar, variance: Scalar, df: int | None = None) -> Scalar:
    r"""Jeffreys divergence, both Kullback-Leibler divergences added: KL(fitted || target) + KL(target || fitted).

    .. math:: \tfrac12 \left( \frac{(v - 1)^2}{v} + m^2 \left( 1 + \frac1v \right) \right)

    with m and v as in :func:`kl`; the logarithms cancel, so it keeps its relative accuracy down to zero.

    Args:
        mean: Mean of the fitted law. Shape ``()``.
        variance: Its variance, positive. Shape ``()``.
        df: Degrees of freedom of the target; None for N(0, 1).

    Returns:
        A non-negative scalar, zero exactly when the laws agree; unbounded as the variance goes to 0.

    Example:
        >>> fcal.divergences.jeffreys(torch.tensor(1.0), torch.tensor(2.0))
        tensor(1.)
    """
    offset, ratio = standardized(mean, variance, df)
    excess = excess_variance(variance, df)
    return 0.5 * (excess * (excess / ratio) + offset + offset / ratio)  # in this order no square overflows
