"""Independent oracles: definitions in mpmath at 60 digits and quadrature, never our own code."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import mpmath as mp
import torch
from torch import distributions

from fcal.distributions import AsymmetricLaplace, Logistic, TruncatedNormal

mp.mp.dps = 60

Tails = tuple[mp.mpf, mp.mpf]


@dataclass(frozen=True)
class Reference:
    """A family: its torch class, parameters to test with, both tail probabilities and the quantile of a tail."""

    kind: Callable[..., distributions.Distribution]  # of scalars or rows, also where the law itself has vectors
    parameters: tuple[float, ...]
    tails: Callable[..., Tails]
    quantile: Callable[..., mp.mpf]  # (lower, upper, *parameters)
    density: Callable[..., mp.mpf] | None = None  # (y, *parameters), where differences of the tails would not do
    digits: int = 60  # of the central differences; their step is a third of them

    def law(self, dtype: torch.dtype) -> distributions.Distribution:
        return self.kind(*(torch.tensor(p, dtype=dtype) for p in self.parameters))

    def exact_parameters(self, dtype: torch.dtype) -> list[mp.mpf]:
        """The parameters as they are after rounding to ``dtype``."""
        return [mp.mpf(torch.tensor(p, dtype=dtype).item()) for p in self.parameters]

    def target(self, z: float, dtype: torch.dtype) -> float | None:
        """A float whose residual is close to z; None where no float of ``dtype`` is in the support there."""
        rounded = torch.tensor(float(_target(self, z, dtype)), dtype=dtype)
        if not torch.isfinite(rounded):
            return None
        lower, upper = self.tails(mp.mpf(rounded.item()), *self.exact_parameters(dtype))
        return rounded.item() if lower > 0 and upper > 0 else None

    def residual(self, y: float, dtype: torch.dtype) -> mp.mpf:
        return normal_quantile(*self.tails(mp.mpf(y), *self.exact_parameters(dtype)))

    def residual_gradient(self, y: float, dtype: torch.dtype) -> list[float]:
        """Derivatives of the residual by y and each parameter: those of the nearer tail over the normal density."""
        exact = self.exact(y, self.exact_parameters(dtype))
        density = mp.npdf(exact.residual)
        return [float(slope / density) for slope in exact.slopes]

    def exact(self, y: float, parameters: list[mp.mpf]) -> "Exact":
        """Both tails at a float and the derivatives of the CDF by it and by every parameter."""
        arguments = [mp.mpf(y), *parameters]
        lower, upper = self.tails(*arguments)
        side, sign = (0, 1) if lower <= upper else (1, -1)
        with mp.workdps(700 if abs(y) > 1e20 else self.digits):  # steps of a small location are lost beside a huge y
            by = [_slope(lambda *a: self.tails(*a)[side], arguments, k) for k in range(1, len(arguments))]
            density = self.density or (lambda *a: sign * _slope(lambda *b: self.tails(*b)[side], list(a), 0))
            return Exact(lower, upper, (density(*arguments), *(sign * slope for slope in by)))


@dataclass(frozen=True)
class Exact:
    """Both tails of a law at a value, and the derivatives of the lower one by value and parameters."""

    lower: mp.mpf
    upper: mp.mpf
    slopes: tuple[mp.mpf, ...]

    @property
    def residual(self) -> mp.mpf:
        return normal_quantile(self.lower, self.upper)

    @property
    def log_cdf(self) -> mp.mpf:
        return mp.log(self.lower) if self.lower <= self.upper else mp.log1p(-self.upper)

    @property
    def log_survival(self) -> mp.mpf:
        return mp.log(self.upper) if self.upper <= self.lower else mp.log1p(-self.lower)


@cache
def _target(reference: Reference, z: float, dtype: torch.dtype) -> mp.mpf:
    z = mp.mpf(z)
    return reference.quantile(mp.ncdf(z), mp.ncdf(-z), *reference.exact_parameters(dtype))


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


# Laws without a closed-form CDF: power series of positive terms in integer arithmetic, so that nothing but the
# complement cancels, and that with as many digits as the smaller tail is small.

FARTHEST = 600  # decimal digits of an upper tail that is called 0; no float64 probability is that small


def _series(x: mp.mpf, above: mp.mpf | None, below: mp.mpf) -> mp.mpf:
    """1 + x above / below + x^2 above (above + 1) / (below (below + 1)) + ...; without ``above`` it is left out."""
    bits = mp.mp.prec + 20
    one = 1 << bits
    step, denominator = int(mp.ldexp(x, bits)), int(mp.ldexp(below, bits))
    numerator = None if above is None else int(mp.ldexp(above, bits))
    term = total = one
    while term > total >> (bits + 5):
        if numerator is None:
            term = term * step // denominator
        else:
            term = (term * step >> bits) * numerator // denominator
            numerator += one
        denominator += one
        total += term
    return mp.ldexp(mp.mpf(total), -bits)


def gamma_tails(x: mp.mpf, a: mp.mpf) -> Tails:
    """Regularized incomplete gamma functions, P(a, x) and Q(a, x)."""
    if x <= 0:
        return mp.mpf(0), mp.mpf(1)
    with mp.workdps(20):
        small = max(0, int(-(a * mp.log(x) - x - mp.loggamma(a)) / mp.log(10)))
    if x > a and small > FARTHEST:
        return mp.mpf(1), mp.mpf(0)
    with mp.workdps(mp.mp.dps + 20 + (small if x > a else 0)):
        lower = mp.exp(a * mp.log(x) - x - mp.loggamma(a + 1)) * _series(x, None, a + 1)
        return lower, 1 - lower


def beta_tails(x: mp.mpf, rest: mp.mpf, a: mp.mpf, b: mp.mpf) -> Tails:
    """Regularized incomplete beta functions, I_x(a, b) and I_rest(b, a) with rest = 1 - x."""
    if x <= 0 or rest <= 0:
        return (mp.mpf(0), mp.mpf(1)) if x <= 0 else (mp.mpf(1), mp.mpf(0))
    if x > rest:
        return beta_tails(rest, x, b, a)[::-1]
    with mp.workdps(20):
        density = a * mp.log(x) + b * mp.log(rest) + mp.loggamma(a + b) - mp.loggamma(a) - mp.loggamma(b)
        small = max(0, int(-density / mp.log(10)))
    if x * b > rest * a and small > FARTHEST:
        return mp.mpf(1), mp.mpf(0)
    with mp.workdps(mp.mp.dps + 20 + (small if x * b > rest * a else 0)):
        log_beta = mp.loggamma(a + 1) + mp.loggamma(b) - mp.loggamma(a + b)
        lower = mp.exp(a * mp.log(x) + b * mp.log(rest) - log_beta) * _series(x, a + b, a + 1)
        return lower, 1 - lower


def _beta(y: mp.mpf, a: mp.mpf, b: mp.mpf) -> Tails:
    with mp.workdps(mp.mp.dps + 330):
        rest = 1 - y
    return beta_tails(y, rest, a, b)


def _fisher(y: mp.mpf, df1: mp.mpf, df2: mp.mpf) -> Tails:
    with mp.workdps(mp.mp.dps + 340):  # a complement needs the ratio with all its digits
        x, rest = df1 * y / (df1 * y + df2), df2 / (df1 * y + df2)
    return beta_tails(x, rest, df1 / 2, df2 / 2)


def _student(y: mp.mpf, df: mp.mpf, loc: mp.mpf, scale: mp.mpf) -> Tails:
    with mp.workdps(mp.mp.dps + 340):
        square = ((y - loc) / scale) ** 2
        x, rest = df / (df + square), square / (df + square)
    outer = beta_tails(x, rest, df / 2, mp.mpf(1) / 2)[0] / 2
    return (outer, 1 - outer) if y < loc else (1 - outer, outer)


def _beta_density(y: mp.mpf, a: mp.mpf, b: mp.mpf) -> mp.mpf:
    with mp.workdps(mp.mp.dps + 20):
        return mp.exp((a - 1) * mp.log(y) + (b - 1) * mp.log1p(-y) - _log_beta(a, b))


def _log_beta(a: mp.mpf, b: mp.mpf) -> mp.mpf:
    return mp.loggamma(a) + mp.loggamma(b) - mp.loggamma(a + b)


def _fisher_density(y: mp.mpf, df1: mp.mpf, df2: mp.mpf) -> mp.mpf:
    a, b = df1 / 2, df2 / 2
    return mp.exp(a * mp.log(df1 * y / df2) - (a + b) * mp.log1p(df1 * y / df2) - _log_beta(a, b)) / y


def _student_density(y: mp.mpf, df: mp.mpf, loc: mp.mpf, scale: mp.mpf) -> mp.mpf:
    t = (y - loc) / scale
    norm = mp.loggamma((df + 1) / 2) - mp.loggamma(df / 2) - mp.log(df * mp.pi) / 2
    return mp.exp(norm - (df + 1) / 2 * mp.log1p(t * t / df)) / scale


def _gamma_density(y: mp.mpf, a: mp.mpf, rate: mp.mpf) -> mp.mpf:
    return mp.exp(a * mp.log(y * rate) - y * rate - mp.loggamma(a)) / y


def _pareto_hazard(y: mp.mpf, loc: mp.mpf, scale: mp.mpf, k: mp.mpf) -> mp.mpf:
    with mp.workdps(mp.mp.dps + 330):
        t = (y - loc) / scale
        if k * t <= -1:
            return mp.inf
        return mp.log1p(k * t) / k if k else t


def _pareto_quantile(lower: mp.mpf, upper: mp.mpf, loc: mp.mpf, scale: mp.mpf, k: mp.mpf) -> mp.mpf:
    hazard = _hazard(lower, upper)
    return loc + scale * (mp.expm1(k * hazard) / k if k else hazard)


def _asymmetric(y: mp.mpf, loc: mp.mpf, scale: mp.mpf, k: mp.mpf) -> Tails:
    t = (y - loc) / scale
    if t < 0:
        lower = k * k / (1 + k * k) * mp.exp(t / k)
        return lower, 1 - lower
    upper = mp.exp(-t * k) / (1 + k * k)
    return 1 - upper, upper


def _asymmetric_quantile(lower: mp.mpf, upper: mp.mpf, loc: mp.mpf, scale: mp.mpf, k: mp.mpf) -> mp.mpf:
    if lower < k * k / (1 + k * k):
        return loc + scale * k * mp.log(lower * (1 + k * k) / (k * k))
    return loc - scale / k * mp.log(upper * (1 + k * k))


def _normal_mass(a: mp.mpf, b: mp.mpf) -> mp.mpf:
    """Phi(b) - Phi(a) as a difference of erfc on the side where it is small; the caller has the digits it loses."""
    a, b = (a, b) if a + b > 0 else (-b, -a)
    return (mp.erfc(a / mp.sqrt(2)) - (0 if b == mp.inf else mp.erfc(b / mp.sqrt(2)))) / 2


def _truncated(y: mp.mpf, loc: mp.mpf, scale: mp.mpf, low: mp.mpf, high: mp.mpf) -> Tails:
    with mp.workdps(mp.mp.dps + 340):
        t, a, b = ((v - loc) / scale for v in (y, low, high))
        below, above = _normal_mass(a, t), _normal_mass(t, b)
        return below / (below + above), above / (below + above)


def _truncated_density(y: mp.mpf, loc: mp.mpf, scale: mp.mpf, low: mp.mpf, high: mp.mpf) -> mp.mpf:
    with mp.workdps(mp.mp.dps + 340):
        mass = _normal_mass((low - loc) / scale, (high - loc) / scale)
        return mp.npdf((y - loc) / scale) / scale / mass


def mixture_of(count: int, tails: Callable[..., Tails]) -> Callable[..., Tails]:
    """Tails of a mixture: its parameters are the logits, then those of the components, parameter by parameter."""

    def mixed(y: mp.mpf, *parameters: mp.mpf) -> Tails:
        logits, rest = parameters[:count], parameters[count:]
        top = max(logits)
        weights = [mp.exp(v - top) for v in logits]
        parts = [tails(y, *rest[k::count]) for k in range(count)]
        below, above = (sum(w * part[side] for w, part in zip(weights, parts, strict=True)) for side in (0, 1))
        return below / sum(weights), above / sum(weights)

    return mixed


def mixture_kind(
    count: int, kind: Callable[..., distributions.Distribution]
) -> Callable[..., distributions.MixtureSameFamily]:
    """A mixture from the same flat parameters, each a tensor of the batch's shape."""

    def build(*parameters: torch.Tensor) -> distributions.MixtureSameFamily:
        stacked = [torch.stack(parameters[k : k + count], -1) for k in range(0, len(parameters), count)]
        weights = distributions.Categorical(logits=stacked[0])
        weights.logits = stacked[0]  # torch normalizes them in their own precision, which moves the weights
        return distributions.MixtureSameFamily(weights, kind(*stacked[1:]))

    return build


@dataclass(frozen=True)
class Line:
    """A map of the whole line onto a law's support, on which its log-odds are tame."""

    value: Callable[[mp.mpf], mp.mpf]
    extra_digits: int = 0


REAL = Line(mp.sinh)
POSITIVE = Line(mp.exp)
UNIT = Line(lambda u: 1 / (1 + mp.exp(-u)), 330)


def by_root(tails: Callable[..., Tails], line: Line) -> Callable[..., mp.mpf]:
    """A quantile by bracketing and regula falsi on the log-odds (Illinois), to 15 digits."""

    def quantile(lower: mp.mpf, upper: mp.mpf, *parameters: mp.mpf) -> mp.mpf:
        goal = mp.log(lower) - mp.log(upper)

        def gap(u: mp.mpf) -> mp.mpf:
            with mp.workdps(mp.mp.dps + line.extra_digits):
                y = line.value(u)
            below, above = tails(y, *parameters)
            return mp.log(below) - mp.log(above) - goal if min(below, above) > 0 else mp.inf * (1 if below > 0 else -1)

        return line.value(_illinois(gap))

    return quantile


def _illinois(gap: Callable[[mp.mpf], mp.mpf]) -> mp.mpf:
    """Root of a rising function."""
    low = high = mp.mpf(0)
    at_low = at_high = gap(low)
    reach = mp.mpf(1)
    while at_low > 0:
        low, high, at_high, reach = low - reach, low, at_low, 2 * reach
        at_low = gap(low)
    while at_high < 0:
        high, low, at_low, reach = high + reach, high, at_high, 2 * reach
        at_high = gap(high)
    for _ in range(300):
        middle = (low + high) / 2
        if not (mp.isinf(at_low) or mp.isinf(at_high)):
            middle = high - at_high * (high - low) / (at_high - at_low)
        value = gap(middle)
        if value > 0:
            high, at_high, at_low = middle, value, at_low / 2
        else:
            low, at_low, at_high = middle, value, at_high / 2
        if abs(value) < mp.mpf(10) ** -16:
            return middle
    raise AssertionError(f"no root between {low} and {high}")


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
    "StudentT": Reference(distributions.StudentT, (4.2, 0.3, 1.7), _student, by_root(_student, REAL), _student_density),
    "Gamma": Reference(
        distributions.Gamma,
        (2.3, 1.3),
        lambda y, a, rate: gamma_tails(y * rate, a),
        by_root(lambda y, a, rate: gamma_tails(y * rate, a), POSITIVE),
        _gamma_density,
    ),
    "Chi2": Reference(
        distributions.Chi2,
        (3.1,),
        lambda y, df: gamma_tails(y / 2, df / 2),
        by_root(lambda y, df: gamma_tails(y / 2, df / 2), POSITIVE),
        lambda y, df: _gamma_density(y, df / 2, mp.mpf(1) / 2),
    ),
    "InverseGamma": Reference(
        distributions.InverseGamma,
        (2.3, 1.3),
        lambda y, a, rate: gamma_tails(rate / y, a)[::-1],
        by_root(lambda y, a, rate: gamma_tails(rate / y, a)[::-1], POSITIVE),
        lambda y, a, rate: _gamma_density(1 / y, a, rate) / y**2,
    ),
    "Beta": Reference(distributions.Beta, (1.7, 3.2), _beta, by_root(_beta, UNIT), _beta_density),
    "FisherSnedecor": Reference(
        distributions.FisherSnedecor, (3.5, 6.2), _fisher, by_root(_fisher, POSITIVE), _fisher_density
    ),
    "GeneralizedPareto": Reference(
        distributions.GeneralizedPareto,
        (0.0, 1.7, 0.2),
        lambda y, *a: _from_hazard(_pareto_hazard(y, *a)),
        _pareto_quantile,
        lambda y, loc, scale, k: mp.exp(-(1 + k) * _pareto_hazard(y, loc, scale, k)) / scale,
        digits=120,
    ),
    "AsymmetricLaplace": Reference(AsymmetricLaplace, (0.3, 1.7, 1.4), _asymmetric, _asymmetric_quantile),
    "TruncatedNormal": Reference(
        TruncatedNormal,
        (0.3, 1.7, 0.0, 2.5),
        _truncated,
        by_root(_truncated, Line(lambda u: mp.mpf(2.5) / (1 + mp.exp(-u)), 330)),
        _truncated_density,
    ),
    "mixture of Normal": Reference(
        mixture_kind(2, distributions.Normal),
        (0.2, -0.5, -1.0, 2.0, 0.7, 1.6),
        mixture_of(2, lambda y, m, s: (mp.ncdf((y - m) / s), mp.ncdf((m - y) / s))),
        by_root(mixture_of(2, lambda y, m, s: (mp.ncdf((y - m) / s), mp.ncdf((m - y) / s))), REAL),
    ),
    "mixture of Gamma": Reference(
        mixture_kind(2, distributions.Gamma),
        (0.2, -0.5, 2.3, 14.0, 1.3, 0.8),
        mixture_of(2, lambda y, a, rate: gamma_tails(y * rate, a)),
        by_root(mixture_of(2, lambda y, a, rate: gamma_tails(y * rate, a)), POSITIVE),
    ),
    "mixture of StudentT": Reference(
        mixture_kind(2, distributions.StudentT),
        (0.2, -0.5, 3.0, 30.0, -1.0, 2.0, 0.7, 1.6),
        mixture_of(2, _student),
        by_root(mixture_of(2, _student), REAL),
    ),
    "mixture of Beta": Reference(
        mixture_kind(2, distributions.Beta),
        (0.2, -0.5, 2.0, 8.0, 8.0, 2.0),
        mixture_of(2, _beta),
        by_root(mixture_of(2, _beta), UNIT),
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
