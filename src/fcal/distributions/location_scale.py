"""Location-scale families: Normal, Laplace, Logistic, Cauchy, Gumbel and the multivariate normal."""

import math
from typing import Any

import torch
from torch import Tensor, distributions
from torch.distributions import Distribution, constraints
from torch.distributions.utils import broadcast_all
from torch.nn.functional import logsigmoid

from fcal.distributions.family import Family, register
from fcal.distributions.tails import LOG_SQRT_2PI, finite_exp, log1mexp_of_log, log_normal_cdf, normal_quantile

_LOG_HALF = math.log(0.5)


class _Unit(torch.autograd.Function):
    @staticmethod
    def forward(value: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
        return (value - loc) / scale

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        value, loc, scale = inputs
        ctx.shapes = value.shape, loc.shape, scale.shape
        ctx.save_for_backward(scale, output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        scale, t = ctx.saved_tensors
        slope = grads[0] / scale
        by_scale = (grads[0] * t) / scale  # t / scale may overflow where this does not
        by_value, by_loc, by_scale = (
            g.sum_to_size(shape) for g, shape in zip((slope, -slope, -by_scale), ctx.shapes, strict=True)
        )
        return by_value, by_loc, by_scale


def unit(value: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    r"""Standardized value :math:`(y - \mu) / s`, whose gradient does not overflow in the far tails.

    Example:
        >>> unit(torch.tensor(5.0), torch.tensor(1.0), torch.tensor(2.0))
        tensor(2.)
    """
    result: Tensor = _Unit.apply(value, loc, scale)
    return result


def _normal_log_prob(value: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    return -0.5 * unit(value, loc, scale).square() - scale.log() - LOG_SQRT_2PI


def _normal_crps(value: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    z = unit(value, loc, scale)
    density = torch.exp(-0.5 * z.square() - LOG_SQRT_2PI)
    return scale * (z * torch.erf(z * math.sqrt(0.5)) + 2 * density - 1 / math.sqrt(math.pi))


NORMAL = Family(
    parameters=("loc", "scale"),
    log_cdf=lambda value, loc, scale: log_normal_cdf(unit(value, loc, scale)),
    log_survival=lambda value, loc, scale: log_normal_cdf(-unit(value, loc, scale)),
    quantile=lambda lower, upper, loc, scale: loc + scale * normal_quantile(lower, upper),
    log_prob=_normal_log_prob,
    residual=unit,
    crps=_normal_crps,
    location="loc",
    native=True,
)


def _laplace_log_cdf(t: Tensor) -> Tensor:
    # torch.where has a gradient at t = 0; that of abs() and clamp() is 0
    below = t < 0
    return torch.where(below, _LOG_HALF + t, torch.log1p(-0.5 * torch.exp(-torch.where(below, 0.0, t))))


def _laplace_central(t: Tensor) -> Tensor:
    below = t < 0
    return torch.where(below, torch.expm1(torch.where(below, t, 0.0)), -torch.expm1(-torch.where(below, 0.0, t))) / 2


def _laplace_quantile(lower: Tensor, upper: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    tail = torch.log(2 * torch.minimum(lower, upper))
    return loc + scale * torch.where(lower < upper, tail, -tail)


def _laplace_crps(value: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    t = unit(value, loc, scale).abs()
    return scale * (t + torch.exp(-t) - 0.75)


LAPLACE = Family(
    parameters=("loc", "scale"),
    log_cdf=lambda value, loc, scale: _laplace_log_cdf(unit(value, loc, scale)),
    log_survival=lambda value, loc, scale: _laplace_log_cdf(-unit(value, loc, scale)),
    quantile=_laplace_quantile,
    log_prob=lambda value, loc, scale: -unit(value, loc, scale).abs() - torch.log(2 * scale),
    central=lambda value, loc, scale: _laplace_central(unit(value, loc, scale)),
    crps=_laplace_crps,
    location="loc",
    curve=True,
)


class Logistic(Distribution):
    r"""Logistic distribution with density :math:`e^{-t} / (s (1 + e^{-t})^2)`, :math:`t = (y - \mu) / s`.

    Args:
        loc: Mean and median :math:`\mu`.
        scale: Scale :math:`s`; the standard deviation is :math:`s \pi / \sqrt 3`.
        validate_args: As in every torch distribution.

    Example:
        >>> pred = Logistic(torch.tensor(1.0), torch.tensor(2.0))
        >>> pred.cdf(torch.tensor(1.0))
        tensor(0.5000)
        >>> pred.icdf(torch.tensor(0.5))
        tensor(1.)
    """

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.real
    has_rsample = True

    def __init__(self, loc: Tensor | float, scale: Tensor | float, validate_args: bool | None = None) -> None:
        self.loc, self.scale = broadcast_all(loc, scale)
        super().__init__(self.loc.shape, validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> "Logistic":
        """Expand to a larger batch shape."""
        new = self._get_checked_instance(Logistic, _instance)  # type: ignore[no-untyped-call]
        new.loc, new.scale = self.loc.expand(batch_shape), self.scale.expand(batch_shape)
        super(Logistic, new).__init__(torch.Size(batch_shape), validate_args=False)
        new._validate_args = self._validate_args
        return new

    @property
    def mean(self) -> Tensor:
        """The location."""
        return self.loc

    @property
    def mode(self) -> Tensor:
        """The location."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        r""":math:`s^2 \pi^2 / 3`."""
        return (self.scale * (math.pi / math.sqrt(3))).square()

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Differentiable samples, by the inverse CDF."""
        shape = self._extended_shape(torch.Size(sample_shape))
        tiny = torch.finfo(self.loc.dtype).tiny
        uniform = torch.rand(shape, dtype=self.loc.dtype, device=self.loc.device).clamp(min=tiny)
        return self.icdf(uniform)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density."""
        if self._validate_args:
            self._validate_sample(value)
        t = (value - self.loc) / self.scale
        return logsigmoid(t) + logsigmoid(-t) - self.scale.log()

    def cdf(self, value: Tensor) -> Tensor:
        """Probability below ``value``."""
        if self._validate_args:
            self._validate_sample(value)
        return torch.sigmoid((value - self.loc) / self.scale)

    def icdf(self, value: Tensor | float) -> Tensor:
        """Quantile of a probability."""
        return self.loc + self.scale * torch.logit(value if isinstance(value, Tensor) else self.loc.new_tensor(value))

    def entropy(self) -> Tensor:
        r""":math:`\log s + 2`."""
        return self.scale.log() + 2


def _logistic_log_prob(value: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    t = unit(value, loc, scale)
    return logsigmoid(t) + logsigmoid(-t) - scale.log()


def _logistic_crps(value: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    t = unit(value, loc, scale)
    return scale * (t - 2 * logsigmoid(t) - 1)


LOGISTIC = Family(
    parameters=("loc", "scale"),
    log_cdf=lambda value, loc, scale: logsigmoid(unit(value, loc, scale)),
    log_survival=lambda value, loc, scale: logsigmoid(-unit(value, loc, scale)),
    quantile=lambda lower, upper, loc, scale: loc + scale * (lower.log() - upper.log()),
    log_prob=_logistic_log_prob,
    central=lambda value, loc, scale: torch.tanh(unit(value, loc, scale) / 2) / 2,
    crps=_logistic_crps,
    location="loc",
)


def _cauchy_log_lower(t: Tensor) -> Tensor:
    r"""Log-CDF for :math:`t \le -1`: the angle :math:`\arctan(u)` with u = -1/t, as u times a factor near 1."""
    u = -1 / t
    small = u < 1e-4
    wide = torch.where(small, 1.0, u)
    factor = torch.where(small, 1 - u.square() / 3, torch.atan(wide) / wide)
    # The gradient of log u = log(-1/t) would underflow where that of log(-t) does not.
    return factor.log() - torch.log(-t) - math.log(math.pi)


def _cauchy_log_cdf(t: Tensor) -> Tensor:
    low, high = t < -1, t > 1
    lower = _cauchy_log_lower(torch.where(low, t, -1.0))
    middle = torch.log(0.5 + torch.atan(torch.where(low | high, 0.0, t)) / math.pi)
    upper = torch.log1p(-torch.exp(_cauchy_log_lower(-torch.where(high, t, 1.0))))
    return torch.where(low, lower, torch.where(high, upper, middle))


def _cauchy_log_prob(value: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    t = unit(value, loc, scale).abs()
    near = t < 1
    inner = torch.log1p(torch.where(near, t, 1.0).square())
    far = torch.where(near, 1.0, t)
    outer = 2 * far.log() + torch.log1p(far.pow(-2))
    return -torch.where(near, inner, outer) - scale.log() - math.log(math.pi)


def _cauchy_quantile(lower: Tensor, upper: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    tail = -1 / torch.tan(math.pi * torch.minimum(lower, upper))
    return loc + scale * torch.where(lower < upper, tail, -tail)


def _cauchy_crps(value: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    t = unit(value, loc, scale)
    log_hyp = torch.log(torch.hypot(torch.ones_like(t), t))
    return scale * (2 / math.pi) * (t * torch.atan(t) - log_hyp + math.log(2))


CAUCHY = Family(
    parameters=("loc", "scale"),
    log_cdf=lambda value, loc, scale: _cauchy_log_cdf(unit(value, loc, scale)),
    log_survival=lambda value, loc, scale: _cauchy_log_cdf(-unit(value, loc, scale)),
    quantile=_cauchy_quantile,
    log_prob=_cauchy_log_prob,
    central=lambda value, loc, scale: torch.atan(unit(value, loc, scale)) / math.pi,
    crps=_cauchy_crps,
    location="loc",
)


def _gumbel_log_prob(value: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    t = unit(value, loc, scale)
    return -t - finite_exp(-t) - scale.log()


def _gumbel_quantile(lower: Tensor, upper: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    minus_log = torch.where(lower < upper, -lower.log(), -torch.log1p(-upper))
    return loc - scale * minus_log.log()


GUMBEL = Family(
    parameters=("loc", "scale"),
    log_cdf=lambda value, loc, scale: -finite_exp(-unit(value, loc, scale)),
    log_survival=lambda value, loc, scale: log1mexp_of_log(-unit(value, loc, scale)),
    quantile=_gumbel_quantile,
    log_prob=_gumbel_log_prob,
    location="loc",
)


def _whiten(value: Tensor, loc: Tensor, scale_tril: Tensor) -> Tensor:
    error = (value - loc).unsqueeze(-1)
    return torch.linalg.solve_triangular(scale_tril, error, upper=False).squeeze(-1)


def _multivariate_log_prob(value: Tensor, loc: Tensor, scale_tril: Tensor) -> Tensor:
    z = _whiten(value, loc, scale_tril)
    log_det = scale_tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return -0.5 * z.square().sum(-1) - log_det - value.shape[-1] * LOG_SQRT_2PI


MULTIVARIATE_NORMAL = Family(
    parameters=("loc", "scale_tril"),
    residual=_whiten,
    log_prob=_multivariate_log_prob,
    location="loc",
    event_dim=1,
    parameter_dims=(1, 2),
)


def _low_rank_tril(cov_factor: Tensor, cov_diag: Tensor) -> Tensor:
    """Cholesky factor of W W' + D, by QR of [W, sqrt D]': the sum itself would lose a small D."""
    root = torch.cat([cov_factor, torch.diag_embed(cov_diag.sqrt())], dim=-1)
    _, upper = torch.linalg.qr(root.mT)
    return (upper * upper.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-1)).mT


def _low_rank_whiten(value: Tensor, loc: Tensor, cov_factor: Tensor, cov_diag: Tensor) -> Tensor:
    return _whiten(value, loc, _low_rank_tril(cov_factor, cov_diag))


def _low_rank_log_prob(value: Tensor, loc: Tensor, cov_factor: Tensor, cov_diag: Tensor) -> Tensor:
    return _multivariate_log_prob(value, loc, _low_rank_tril(cov_factor, cov_diag))


LOW_RANK_MULTIVARIATE_NORMAL = Family(
    parameters=("loc", "cov_factor", "cov_diag"),
    residual=_low_rank_whiten,
    log_prob=_low_rank_log_prob,
    location="loc",
    event_dim=1,
    parameter_dims=(1, 2, 1),
)

register(distributions.Normal, NORMAL)
register(distributions.Laplace, LAPLACE)
register(Logistic, LOGISTIC)
register(distributions.Cauchy, CAUCHY)
register(distributions.Gumbel, GUMBEL)
register(distributions.MultivariateNormal, MULTIVARIATE_NORMAL)
register(distributions.LowRankMultivariateNormal, LOW_RANK_MULTIVARIATE_NORMAL)
