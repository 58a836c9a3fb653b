"""Independent oracles: definitions in mpmath at 60 digits and quadrature, never our own code."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import mpmath as mp
import torch
from torch import distributions

from fcal.distributions import Logistic

mp.mp.dps = 60

Tails = tuple[mp.mpf, mp.mpf]


@dataclass(frozen=True)
class Reference:
    """A family: its torch class, parameters to test with, both tail probabilities and the quantile of a tail."""

    kind: type[distributions.Distribution]
    parameters: tuple[float, ...]
    tails: Callable[..., Tails]
    quantile: Callable[..., mp.mpf]  # (lower, upper, *parameters)

    def law(self, dtype: torch.dtype) -> distributions.Distribution:
        return self.kind(*(torch.tensor(p, dtype=dtype) for p in self.parameters))

    def exact_parameters(self, dtype: torch.dtype) -> list[mp.mpf]:
        """The parameters as they are after rounding to ``dtype``."""
        return [mp.mpf(torch.tensor(p, dtype=dtype).item()) for p in self.parameters]

    def target(self, z: float, dtype: torch.dtype) -> float | None:
        """A float whose residual is close to z; None where no float of ``dtype`` is in the support there."""
        z = mp.mpf(z)
        y = self.quantile(mp.ncdf(z), mp.ncdf(-z), *self.exact_parameters(dtype))
        rounded = torch.tensor(float(y), dtype=dtype)
        if not torch.isfinite(rounded):
            return None
        lower, upper = self.tails(mp.mpf(rounded.item()), *self.exact_parameters(dtype))
        return rounded.item() if lower > 0 and upper > 0 else None

    def residual(self, y: float, dtype: torch.dtype) -> mp.mpf:
        return normal_quantile(*self.tails(mp.mpf(y), *self.exact_parameters(dtype)))

    def residual_gradient(self, y: float, dtype: torch.dtype) -> list[float]:
        """Derivatives of the residual by y and each parameter: those of the nearer tail over the normal density."""
        arguments = [mp.mpf(y), *self.exact_parameters(dtype)]
        lower, upper = self.tails(*arguments)
        side, sign = (0, 1) if lower <= upper else (1, -1)
        with mp.workdps(700 if abs(y) > 1e20 else 60):  # steps of a small location are lost beside a huge y
            density = mp.npdf(normal_quantile(lower, upper))
            tail = [_slope(lambda *a: self.tails(*a)[side], arguments, k) for k in range(len(arguments))]
            return [float(sign * slope / density) for slope in tail]


def _slope(function: Callable[..., mp.mpf], arguments: list[mp.mpf], index: int) -> mp.mpf:
    """Partial derivative by central differences with a relative step of a third of the digits."""
    step = (abs(arguments[index]) or 1) * mp.mpf(10) ** (-mp.mp.dps // 3)
    above, below = arguments.copy(), arguments.copy()
    above[index] += step
    below[index] -= step
    return (function(*above) - function(*below)) / (2 * step)


def normal_quantile(lower: mp.mpf, upper: mp.mpf) -> mp.mpf:
    """Standard normal quantile by Newton's method on the logarithm of the nearer tail."""
    p = min(lower, upper)
    z = -mp.sqrt(-2 * mp.log(p)) if p < mp.mpf("0.3") else mp.mpf(0)
    for _ in range(80):
        step = (mp.log(mp.ncdf(z)) - mp.log(p)) * mp.ncdf(z) / mp.npdf(z)
        z -= step
        if abs(step) < mp.mpf(10) ** -45:
            break
    return z if lower <= upper else -z


def _laplace(y: mp.mpf, loc: mp.mpf, scale: mp.mpf) -> Tails:
    tail = mp.exp(-abs(y - loc) / scale) / 2
    return (tail, 1 - tail) if y < loc else (1 - tail, tail)


def _from_hazard(t: mp.mpf) -> Tails:
    return -mp.expm1(-t), mp.exp(-t)


def _hazard(lower: mp.mpf, upper: mp.mpf) -> mp.mpf:
    return -mp.log(upper) if upper < lower else -mp.log1p(-lower)


def _halfnormal_quantile(lower: mp.mpf, upper: mp.mpf, scale: mp.mpf) -> mp.mpf:
    return -scale * normal_quantile(upper / 2, 1 - upper / 2) if upper < lower else scale * mp.sqrt(2) * _erfinv(lower)


def _erfinv(p: mp.mpf) -> mp.mpf:
    x = p * mp.sqrt(mp.pi) / 2
    for _ in range(80):
        x -= (mp.erf(x) - p) * mp.sqrt(mp.pi) / 2 * mp.exp(x * x)
    return x


def _signed(lower: mp.mpf, upper: mp.mpf, tail: Callable[[mp.mpf], mp.mpf]) -> mp.mpf:
    """A symmetric quantile from that of the lower tail."""
    return tail(lower) if lower <= upper else -tail(upper)


REFERENCES: dict[str, Reference] = {
    "Normal": Reference(
        distributions.Normal,
        (0.3, 1.7),
        lambda y, m, s: (mp.ncdf((y - m) / s), mp.ncdf((m - y) / s)),
        lambda lo, up, m, s: m + s * normal_quantile(lo, up),
    ),
    "Laplace": Reference(
        distributions.Laplace,
        (0.3, 1.7),
        _laplace,
        lambda lo, up, m, s: m + s * _signed(lo, up, lambda p: mp.log(2 * p)),
    ),
    "Logistic": Reference(
        Logistic,
        (0.3, 1.7),
        lambda y, m, s: (1 / (1 + mp.exp((m - y) / s)), 1 / (1 + mp.exp((y - m) / s))),
        lambda lo, up, m, s: m + s * (mp.log(lo) - mp.log(up)),
    ),
    "Cauchy": Reference(
        distributions.Cauchy,
        (0.3, 1.7),
        lambda y, m, s: (mp.atan2(s, m - y) / mp.pi, mp.atan2(s, y - m) / mp.pi),
        lambda lo, up, m, s: m + s * _signed(lo, up, lambda p: -mp.cot(mp.pi * p)),
    ),
    "Gumbel": Reference(
        distributions.Gumbel,
        (0.3, 1.7),
        lambda y, m, s: _from_hazard(mp.exp((m - y) / s))[::-1],
        lambda lo, up, m, s: m - s * mp.log(_hazard(up, lo)),
    ),
    "LogNormal": Reference(
        distributions.LogNormal,
        (0.3, 0.7),
        lambda y, m, s: (
            (mp.ncdf((mp.log(y) - m) / s), mp.ncdf((m - mp.log(y)) / s)) if y > 0 else (mp.mpf(0), mp.mpf(1))
        ),
        lambda lo, up, m, s: mp.exp(m + s * normal_quantile(lo, up)),
    ),
    "Weibull": Reference(
        distributions.Weibull,
        (1.3, 1.7),
        lambda y, scale, k: _from_hazard((y / scale) ** k),
        lambda lo, up, scale, k: scale * _hazard(lo, up) ** (1 / k),
    ),
    "Exponential": Reference(
        distributions.Exponential,
        (1.3,),
        lambda y, rate: _from_hazard(rate * y),
        lambda lo, up, rate: _hazard(lo, up) / rate,
    ),
    "HalfNormal": Reference(
        distributions.HalfNormal,
        (1.3,),
        lambda y, s: (mp.erf(y / s / mp.sqrt(2)), mp.erfc(y / s / mp.sqrt(2))),
        _halfnormal_quantile,
    ),
    "Uniform": Reference(
        distributions.Uniform,
        (0.0, 1.7),
        lambda y, low, high: ((y - low) / (high - low), (high - y) / (high - low)),
        lambda lo, up, low, high: low + lo * (high - low) if lo < up else high - up * (high - low),
    ),
}


def crps_by_quadrature(cdf: Callable[[float], float], y: float, low: float, high: float) -> float:
    """The definition: the squared distance of the CDF from the step at y, integrated."""
    with mp.workdps(20):
        inside = [p for p in (low, y, high) if low <= p <= high]
        cuts = sorted({low, high, *inside, *([0.0] if low < 0 < high else [])})
        total = mp.mpf(0)
        for a, b in itertools.pairwise(cuts):
            total += mp.quad(lambda x: (cdf(x) - (1 if x >= y else 0)) ** 2, mp.linspace(a, b, 20))
        return float(total) + max(low - y, 0.0) + max(y - high, 0.0)


def gaussian_loss_by_definition(
    z: torch.Tensor, df: int, divergence: Callable[..., torch.Tensor], *, finite_batch: bool = True
) -> torch.Tensor:
    """The q-loss from torch's own mean and variance of z^2."""
    q = z.square()
    factor = 1.0 if finite_batch else 1 - df / z.numel()
    return divergence(df * q.mean(), df * q.var() * factor, df)


LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
