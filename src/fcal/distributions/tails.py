r"""Normal tails and :math:`\log(1 - e^{-t})` in log space, with accurate values and gradients.

torch's ``ndtr`` is zero below -8.3 and ``ndtri`` has infinite gradients at 0 and 1, so nothing here passes through a
probability that could round to 0 or 1.
"""

import math
from typing import Any

import torch
from torch import Tensor

from fcal._checks import is_tracing

_SQRT_HALF = math.sqrt(0.5)
LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
_EXP_UNDERFLOWS_BELOW = -700.0


def mills_ratio(z: Tensor) -> Tensor:
    r"""Mills ratio of the lower tail, :math:`\Phi(z) / \varphi(z)`."""
    return math.sqrt(math.pi / 2) * torch.special.erfcx(-_SQRT_HALF * z)


def normal_cdf(t: Tensor) -> Tensor:
    """Standard normal CDF, also where ``torch.special.ndtr`` rounds to 0."""
    return 0.5 * torch.erfc(-_SQRT_HALF * t)


def log_normal_density(t: Tensor) -> Tensor:
    """Log-density of the standard normal distribution."""
    return -0.5 * t.square() - LOG_SQRT_2PI


class _LogNormalCDF(torch.autograd.Function):
    @staticmethod
    def forward(z: Tensor) -> Tensor:
        return torch.special.log_ndtr(z)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (z,) = ctx.saved_tensors
        return grads[0] / mills_ratio(z)


class _NormalQuantileOfLog(torch.autograd.Function):
    @staticmethod
    def forward(log_p: Tensor) -> Tensor:
        z = torch.special.ndtri(log_p.clamp(min=_EXP_UNDERFLOWS_BELOW).exp())
        beyond = log_p < _EXP_UNDERFLOWS_BELOW
        if is_tracing() or bool(beyond.any()):
            z = torch.where(beyond, _far_quantile(log_p.clamp(max=_EXP_UNDERFLOWS_BELOW)), z)
        return z

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        log_p, z = ctx.saved_tensors
        if is_tracing() or bool((log_p < _EXP_UNDERFLOWS_BELOW).any()):
            return grads[0] * mills_ratio(z)
        return grads[0] * torch.addcmul(log_p, z, z, value=0.5).add_(LOG_SQRT_2PI).exp_()  # faster than erfcx


def _far_quantile(log_p: Tensor) -> Tensor:
    """Normal quantile where ``exp(log_p)`` underflows: one asymptotic term, then Newton's method in log space."""
    z = -(-2 * (log_p + LOG_SQRT_2PI) - torch.log(-2 * log_p)).sqrt()
    for _ in range(2):  # the error starts below 1e-5 and is squared in each step
        z = z - (torch.special.log_ndtr(z) - log_p) * mills_ratio(z)
    return torch.where(torch.isinf(log_p), log_p, z)


class _Log1mExpOfLog(torch.autograd.Function):
    @staticmethod
    def forward(log_t: Tensor) -> Tensor:
        t = log_t.exp()
        near_zero = log_t - t / 2
        middle = torch.log(-torch.expm1(-t))
        far = torch.log1p(-torch.exp(-t))
        return torch.where(log_t < -18, near_zero, torch.where(log_t < -0.5, middle, far))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (log_t,) = ctx.saved_tensors
        t = log_t.clamp(max=10.0).exp()  # beyond, the derivative is 0 in any float
        slope = torch.where(log_t < -18, 1 - t / 2, t * torch.exp(-t) / -torch.expm1(-t))
        return grads[0] * slope


class _FiniteExp(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.exp().clamp(max=torch.finfo(x.dtype).max / 4)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (output,) = ctx.saved_tensors
        return grads[0] * output


def finite_exp(x: Tensor) -> Tensor:
    r"""Exponential, clamped to a quarter of the largest number but with a gradient that stays positive.

    The log-tails of some families (Gumbel, Weibull) are exponentials and overflow for targets that are extremely
    improbable; with this function their residuals stay finite.

    Example:
        >>> finite_exp(torch.tensor([0.0, 1000.0])).isfinite()
        tensor([True, True])
    """
    result: Tensor = _FiniteExp.apply(x)
    return result


def log_normal_cdf(z: Tensor) -> Tensor:
    r"""Log of the standard normal CDF, :math:`\log \Phi(z)`, whose gradient is the exact hazard.

    Args:
        z: Any real numbers, float32 or float64.

    Returns:
        The log-probabilities, shaped like ``z``; 0 at infinity.

    Example:
        >>> log_normal_cdf(torch.tensor([-40.0, -30.0], dtype=torch.float64))
        tensor([-804.6084, -454.3212], dtype=torch.float64)
    """
    result: Tensor = _LogNormalCDF.apply(z)
    return result


def normal_quantile_of_log(log_p: Tensor) -> Tensor:
    r"""Standard normal quantile of a log-probability, :math:`\Phi^{-1}(e^{\ell})`, for :math:`\ell \le \log 1/2`.

    Args:
        log_p: Log-probabilities of the lower tail, float64, of any size.

    Returns:
        The quantiles, shaped like ``log_p``; minus infinity at minus infinity.

    Example:
        >>> normal_quantile_of_log(torch.tensor([-804.6084, math.log(0.5)], dtype=torch.float64))
        tensor([-40.0000,   0.0000], dtype=torch.float64)
    """
    result: Tensor = _NormalQuantileOfLog.apply(log_p)
    return result


def log1mexp_of_log(log_t: Tensor) -> Tensor:
    r"""Stable :math:`\log(1 - e^{-t})` given :math:`\log t`, also where t itself underflows.

    It is the log-CDF of a distribution whose log-survival is :math:`-t`.

    Example:
        >>> log1mexp_of_log(torch.tensor([-1000.0, -50.0], dtype=torch.float64))
        tensor([-1000.,   -50.], dtype=torch.float64)
    """
    result: Tensor = _Log1mExpOfLog.apply(log_t)
    return result


def normal_quantile(lower: Tensor, upper: Tensor) -> Tensor:
    """Standard normal quantile from both tail probabilities; only the smaller one is used.

    Example:
        >>> p = torch.tensor([1e-20, 0.5], dtype=torch.float64)
        >>> normal_quantile(p, 1 - p)
        tensor([-9.2623, 0.0000], dtype=torch.float64)
    """
    z = torch.special.ndtri(torch.minimum(lower, upper))
    return torch.where(lower <= upper, z, -z)
