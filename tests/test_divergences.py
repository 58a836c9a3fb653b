"""Divergences against quadrature of their definitions."""

import itertools
import math

import mpmath as mp
import pytest
import torch
from scipy import integrate, stats

from fcal import divergences

CASES = [
    pytest.param(75.0, 150.0, 75, id="target itself"),
    pytest.param(80.0, 90.0, 75, id="narrow"),
    pytest.param(60.0, 400.0, 75, id="wide"),
    pytest.param(3.0, 9.0, 2, id="K = 2"),
    pytest.param(0.3, 1.4, None, id="N(0, 1)"),
    pytest.param(-2.0, 0.2, None, id="N(0, 1), biased and narrow"),
]


OF_NUMBERS = ["kl", "reverse_kl", "wasserstein", "wasserstein_printed", "jeffreys", "hellinger", "chi_square", "renyi"]
OF_NUMBERS += ["renyi(2)", "renyi(1)", "chi2_moments"]
OF_TENSORS = ["total_variation", "jensen_shannon"]
OF_MOMENTS = [*OF_NUMBERS, *OF_TENSORS]


def laws(mean: float, variance: float, df: int | None):
    target = stats.norm(0, 1) if df is None else stats.norm(df, math.sqrt(2 * df))
    return stats.norm(mean, math.sqrt(variance)), target


def kl_by_quadrature(first, second) -> float:
    low, high = first.ppf(1e-14), first.ppf(1 - 1e-14)
    integrand = lambda x: first.pdf(x) * (first.logpdf(x) - second.logpdf(x))  # noqa: E731
    return integrate.quad(integrand, low, high, epsabs=1e-11, limit=200)[0]


def squared_wasserstein_by_quadrature(first, second) -> float:
    integrand = lambda t: (first.ppf(stats.norm.cdf(t)) - second.ppf(stats.norm.cdf(t))) ** 2 * stats.norm.pdf(t)  # noqa: E731
    return integrate.quad(integrand, -8, 8, epsabs=1e-11, limit=200)[0]


def value(name: str, mean: float, variance: float, df: int | None) -> float:
    as_tensor = [torch.tensor(v, dtype=torch.float64) for v in (mean, variance)]
    return divergences.by_name(name)(*as_tensor, df).item()


@pytest.mark.parametrize(("mean", "variance", "df"), CASES)
def test_kl_both_ways_match_quadrature(mean, variance, df):
    fitted, target = laws(mean, variance, df)
    assert value("kl", mean, variance, df) == pytest.approx(kl_by_quadrature(fitted, target), rel=1e-7, abs=1e-9)
    assert value("reverse_kl", mean, variance, df) == pytest.approx(
        kl_by_quadrature(target, fitted), rel=1e-7, abs=1e-9
    )


@pytest.mark.parametrize(("mean", "variance", "df"), CASES)
def test_wasserstein_matches_quadrature_in_both_units(mean, variance, df):
    fitted, target = laws(mean, variance, df)
    squared = squared_wasserstein_by_quadrature(fitted, target)
    assert value("wasserstein_printed", mean, variance, df) == pytest.approx(squared, rel=1e-6, abs=1e-9)
    assert value("wasserstein", mean, variance, df) == pytest.approx(squared / target.var(), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(("mean", "variance", "df"), [case for case in CASES if case.values[2]])
def test_printed_forms_are_the_papers(mean, variance, df):
    # The corrected right-hand sides of the paper's appendix, with m the mean and v the variance of q.
    kl = 0.5 * math.log(2 * df / variance) + (variance + (mean - df) ** 2) / (4 * df) - 0.5
    wasserstein = (mean - df) ** 2 + variance + 2 * df - 2 * math.sqrt(2 * df * variance)
    assert value("kl", mean, variance, df) == pytest.approx(kl, rel=1e-12, abs=1e-12)
    assert value("wasserstein_printed", mean, variance, df) == pytest.approx(wasserstein, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("name", OF_NUMBERS)
def test_divergence_of_numbers_is_that_of_tensors(name):
    function = divergences.by_name(name)
    expected = value(name, 80.0, 90.0, 75)
    assert function(80.0, 90.0, 75) == pytest.approx(expected, rel=1e-14)
    assert function(complex(80.0), complex(90.0), 75).real == pytest.approx(expected, rel=1e-14)


# In mpmath, by definition. Offsets are in target deviations, ratios in target variances.

ORDINARY = [(0.3, 1.4), (0.0, 1.0), (-0.7, 0.6), (2.0, 0.2), (1.0, 1.9)]
NEAR = [(1e-7, 1.0), (0.0, 1 + 1e-7), (1e-5, 1 - 1e-6), (-1e-9, 1 + 1e-10)]
FAR = [(5.0, 3.0), (0.0, 100.0), (0.1, 1e-4), (9.0, 1.0), (3.0, 1e-6), (1.0, 1e6)]


def density(x, mean, deviation):
    return mp.exp(-(((x - mean) / deviation) ** 2) / 2) / (deviation * mp.sqrt(2 * mp.pi))


def crossings(mean, deviation, target_mean, target_deviation) -> list:
    """Roots of log p - log q, a quadratic in the distance from the target's mean."""
    m, v = (mean - target_mean) / target_deviation, (deviation / target_deviation) ** 2
    a, b, c = v - 1, 2 * m, -m * m - v * mp.log(v)
    roots = [(-b + sign * mp.sqrt(b * b - 4 * a * c)) / (2 * a) for sign in (1, -1)] if a else [-c / b] if b else []
    return [target_mean + target_deviation * root for root in roots]


def by_definition(integrand, mean: float, variance: float, df: int | None):
    """Integral of a function of both densities, in pieces of two deviations of either and cut where they cross."""
    with mp.workdps(40):
        target = (mp.mpf(df or 0), mp.sqrt(mp.mpf(2 * df if df else 1)))
        fitted = (mp.mpf(mean), mp.sqrt(mp.mpf(variance)))
        cuts = sorted(
            {at + k * width for at, width in (fitted, target) for k in range(-14, 15, 2)}
            | set(crossings(*fitted, *target))
        )
        pieces = [(low, high) for low, high in itertools.pairwise(cuts) if high > low]
        return mp.fsum(
            mp.quad(lambda x: integrand(density(x, *fitted), density(x, *target)), piece) for piece in pieces
        )


def scaled(offset: float, ratio: float, df: int | None) -> tuple[float, float, int | None]:
    """Mean and variance at an offset and a ratio from the target's."""
    target_mean, target_variance = (df, 2.0 * df) if df else (0, 1.0)
    return target_mean + offset * math.sqrt(target_variance), ratio * target_variance, df


def jensen_shannon_density(p, q):
    middle = (p + q) / 2
    return (p * mp.log(p / middle) + q * mp.log(q / middle)) / 2


DEFINITIONS = {
    "jeffreys": lambda p, q: (p - q) * mp.log(p / q),
    "hellinger": lambda p, q: (mp.sqrt(p) - mp.sqrt(q)) ** 2 / 2,
    "jensen_shannon": jensen_shannon_density,
    "total_variation": lambda p, q: abs(p - q) / 2,
}


@pytest.mark.parametrize(
    ("offset", "ratio", "df"),
    [(*case, None) for case in ORDINARY + NEAR + FAR] + [(*cases[-1], 75) for cases in (ORDINARY, NEAR, FAR)],
)
@pytest.mark.parametrize("name", DEFINITIONS)
def test_divergence_is_the_integral_that_defines_it(name, offset, ratio, df):
    arguments = scaled(offset, ratio, df)
    expected = float(by_definition(DEFINITIONS[name], *arguments))
    # all but total variation keep their relative accuracy; that is right to 1e-15 and grows linearly
    rel, absolute = (0, 1e-15) if name == "total_variation" else (1e-13, 1e-30)
    assert value(name, *arguments) == pytest.approx(expected, rel=rel, abs=absolute)


@pytest.mark.parametrize("df", [None, 3])
@pytest.mark.parametrize(("offset", "ratio"), [*ORDINARY, (0.4, 1.94), (1e-4, 1 + 1e-4), (0.2, 1e-3)])
def test_chi_square_is_the_integral_that_defines_it(offset, ratio, df):
    arguments = scaled(offset, ratio, df)
    # of p^2 / q - 1, which has its mass far outside of both laws when v is close to 2
    with mp.workdps(40):
        mean, deviation = mp.mpf(arguments[0]), mp.sqrt(mp.mpf(arguments[1]))
        target = (mp.mpf(df or 0), mp.sqrt(mp.mpf(2 * df if df else 1)))
        center = [target[0] + target[1] * k for k in range(-90, 91, 3)]
        cuts = sorted({*center, *(mean + deviation * k for k in range(-12, 13, 3))})
        squared = lambda x: density(x, mean, deviation) ** 2 / density(x, *target)  # noqa: E731
        expected = float(mp.fsum(mp.quad(squared, piece) for piece in itertools.pairwise(cuts)) - 1)
    assert value("chi_square", *arguments) == pytest.approx(expected, rel=1e-10, abs=1e-15)


@pytest.mark.parametrize("alpha", [0.1, 0.9, 1.5])
@pytest.mark.parametrize(("offset", "ratio"), [*ORDINARY, (1e-4, 1 + 1e-4), (0.2, 1e-3)])
def test_renyi_is_the_integral_that_defines_it(offset, ratio, alpha):
    exponent = mp.mpf(alpha)
    with mp.workdps(40):
        deviation = mp.sqrt(mp.mpf(ratio))
        cuts = sorted({*map(mp.mpf, range(-90, 91, 3)), *(offset + deviation * k for k in range(-24, 25, 3))})
        integrand = lambda x: density(x, offset, deviation) ** exponent * density(x, 0, 1) ** (1 - exponent)  # noqa: E731
        integral = mp.fsum(mp.quad(integrand, piece) for piece in itertools.pairwise(cuts))
        expected = float(mp.log(integral) / (exponent - 1))
    assert value(f"renyi({alpha})", offset, ratio, None) == pytest.approx(expected, rel=1e-11, abs=1e-15)


def gamma_divergence_by_definition(mean: float, variance: float, df: int):
    """KL between gamma laws by quadrature in log x, where neither density is singular."""
    with mp.workdps(40):
        shape, scale = mp.mpf(mean) ** 2 / mp.mpf(variance), mp.mpf(variance) / mp.mpf(mean)

        def log_density(t, k, theta):
            return k * (t - mp.log(theta)) - mp.exp(t) / theta - mp.loggamma(k)

        def integrand(t):
            fitted = log_density(t, shape, scale)
            return mp.exp(fitted) * (fitted - log_density(t, mp.mpf(df) / 2, mp.mpf(2)))

        # log of a gamma draw is centred near log(mean), and its deviation is about 1 / sqrt(shape); its lower tail is
        # exponential at the rate of the shape
        width = 1 / mp.sqrt(shape)
        low, high = 16 * width + 50 / shape, 16 * width if shape > 1 else mp.log(200 / shape)
        steps = [mp.log(mean) - low + (low + high) * k / 48 for k in range(49)]
        return mp.fsum(mp.quad(integrand, piece) for piece in itertools.pairwise(steps))


@pytest.mark.parametrize("df", [1, 7, 100_000])
@pytest.mark.parametrize(
    ("level", "ratio"), [(1.0, 1.0), (1 + 1e-6, 1.0), (1.0, 1 - 1e-6), (1.01, 0.97), (1.3, 2.0), (0.5, 0.1), (0.8, 0.9)]
)
def test_chi2_moments_is_the_integral_that_defines_it(level, ratio, df):
    mean, variance = df * level, 2 * df * ratio
    expected = float(gamma_divergence_by_definition(mean, variance, df))
    assert value("chi2_moments", mean, variance, df) == pytest.approx(expected, rel=1e-9, abs=1e-20)


def gamma_divergence(mean: float, variance: float, df: int):
    shape, scale, half = mp.mpf(mean) ** 2 / mp.mpf(variance), mp.mpf(variance) / mp.mpf(mean), mp.mpf(df) / 2
    entropy = (shape - half) * mp.digamma(shape) - mp.loggamma(shape) + mp.loggamma(half)
    return entropy + half * mp.log(2 / scale) + shape * (scale - 2) / 2


@pytest.mark.parametrize("df", [1, 3, 75, 100_000])
@pytest.mark.parametrize("ratio", [1e-14, 1e-3, 0.79, 0.81, 1 - 1e-9, 1 + 1e-9, 1.19, 1.21, 1e4, 1e10])
@pytest.mark.parametrize("level", [1e-6, 0.9, 1 - 1e-8, 1.0, 1 + 1e-5, 1.1, 1e6])
def test_chi2_moments_keeps_its_digits_near_and_far(level, ratio, df):
    mean, variance = df * level, 2 * df * ratio
    with mp.workdps(60):
        expected = float(gamma_divergence(mean, variance, df))
    assert value("chi2_moments", mean, variance, df) == pytest.approx(expected, rel=1e-12)
    assert divergences.chi2_moments(mean, variance, df) == pytest.approx(expected, rel=1e-12)


def test_chi2_moments_without_df_is_kl():
    assert value("chi2_moments", 0.3, 1.4, None) == value("kl", 0.3, 1.4, None)


# What they have in common


@pytest.mark.parametrize("df", [None, 1, 75, 99_999])
@pytest.mark.parametrize("name", OF_MOMENTS)
def test_divergence_and_its_gradient_vanish_where_the_distributions_agree(name, df):
    inputs = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in scaled(0.0, 1.0, df)[:2]]
    found = divergences.by_name(name)(*inputs, df)
    assert abs(found.item()) <= 1e-15
    assert all(abs(slope) < 1e-13 for slope in torch.autograd.grad(found, inputs))


@pytest.mark.parametrize("df", [None, 3])
@pytest.mark.parametrize(
    ("offset", "ratio"), [(0.4, 1.7), (0.4, 0.3), (-0.3, 1.0), (0.2, 1.01), (1.5, 4.0), (0.1, 1.93), (0.1, 1.97)]
)
@pytest.mark.parametrize("name", OF_MOMENTS)
def test_divergence_passes_gradcheck(name, offset, ratio, df):
    inputs = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in scaled(offset, ratio, df)[:2]]
    assert torch.autograd.gradcheck(lambda m, v: divergences.by_name(name)(m, v, df), inputs)


@pytest.mark.parametrize("name", OF_NUMBERS)
@pytest.mark.parametrize(("offset", "ratio"), [*ORDINARY, *FAR, (0.0, 1.95), (0.4, 1.95), (0.0, 2.0), (40.0, 1.0)])
def test_complex_step_is_the_gradient_of_tensors(name, offset, ratio):
    mean, variance, df = scaled(offset, ratio, 75)
    function = divergences.by_name(name)
    inputs = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (mean, variance)]
    expected = torch.autograd.grad(function(*inputs, df), inputs)
    steps = (function(complex(mean, 1e-150), variance, df), function(mean, complex(variance, 1e-150), df))
    for step, slope in zip(steps, expected, strict=True):
        assert step.imag / 1e-150 == pytest.approx(slope.item(), rel=1e-9, abs=1e-14)


@pytest.mark.parametrize("name", OF_MOMENTS)
def test_divergence_returns_the_dtype_it_got(name):
    assert divergences.by_name(name)(torch.tensor(80.0), torch.tensor(90.0), 75).dtype == torch.float32


@pytest.mark.parametrize("name", ["jeffreys", "hellinger", "renyi(0.5)", "total_variation", "jensen_shannon"])
@pytest.mark.parametrize(("offset", "ratio"), [(0.3, 1.4), (2.0, 0.2), (1.0, 30.0)])
def test_symmetric_divergence_may_swap_its_arguments(name, offset, ratio):
    # seen from the fitted law, the target lies at -m / s and has the variance 1 / v
    swapped = value(name, -offset / math.sqrt(ratio), 1 / ratio, None)
    assert swapped == pytest.approx(value(name, offset, ratio, None), rel=1e-13)


def test_jeffreys_is_kl_both_ways():
    for case in CASES:
        both = value("kl", *case.values) + value("reverse_kl", *case.values)
        assert value("jeffreys", *case.values) == pytest.approx(both, rel=1e-12, abs=1e-14)


def test_renyi_converges_to_kl_and_at_order_one_half_is_the_log_of_the_overlap():
    for case in CASES:
        kl = value("kl", *case.values)
        assert value("renyi(1)", *case.values) == pytest.approx(kl, rel=1e-14, abs=1e-15)
        for alpha in (1 - 1e-9, 1 + 1e-9):
            assert value(f"renyi({alpha!r})", *case.values) == pytest.approx(kl, rel=1e-6, abs=1e-12)
        overlap = 1 - value("hellinger", *case.values)
        assert value("renyi", *case.values) == pytest.approx(-2 * math.log(overlap), rel=1e-12, abs=1e-14)


@pytest.mark.parametrize(("offset", "ratio"), ORDINARY + NEAR + FAR)
def test_bounded_divergences_keep_their_bounds_and_order(offset, ratio):
    hellinger, variation, shannon = (
        value(name, offset, ratio, None) for name in ("hellinger", "total_variation", "jensen_shannon")
    )
    slack = 1e-15
    assert 0 <= shannon <= math.log(2) + slack
    # Le Cam: H^2 <= TV <= sqrt(H^2 (2 - H^2)); Lin: JS <= log 2 TV; Pinsker: TV^2 / 2 <= JS
    assert hellinger - slack <= variation <= math.sqrt(hellinger * (2 - hellinger)) + slack
    assert variation**2 / 2 - slack <= shannon <= math.log(2) * variation + slack


def test_total_variation_is_smooth_through_equal_variances():
    slopes = []
    for ratio in (1 - 1e-9, 1 - 1e-15, 1.0, 1 + 1e-15, 1 + 1e-9):
        inputs = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (0.5, ratio)]
        found = divergences.total_variation(*inputs)
        assert found.item() == pytest.approx(math.erf(0.25 / math.sqrt(2)), abs=1e-9)
        slopes.append(torch.stack(torch.autograd.grad(found, inputs)))
    for slope in slopes[1:]:
        torch.testing.assert_close(slope, slopes[0], rtol=1e-7, atol=1e-8)


# Where they are infinite


@pytest.mark.parametrize("name", ["renyi(2)", "renyi(1.2)", "renyi(30)", "chi_square"])
def test_continuation_joins_value_and_slope(name):
    alpha = 2.0 if name == "chi_square" else float(name[6:-1])
    threshold = 1 + 0.95 / (alpha - 1)
    sides = []
    for ratio in (threshold * (1 - 1e-13), threshold * (1 + 1e-13)):
        inputs = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (0.3, ratio)]
        found = divergences.by_name(name)(*inputs, None)
        sides.append(torch.stack([found, *torch.autograd.grad(found, inputs)]))
    torch.testing.assert_close(sides[0], sides[1], rtol=1e-8, atol=1e-8)


def test_large_exponent_of_chi_square_is_continued_by_its_tangent():
    # v = 1: chi^2 = exp(m^2) - 1, from m^2 = 20 on exp(20) (m^2 - 19) - 1
    assert value("chi_square", math.sqrt(19.9), 1.0, None) == pytest.approx(math.expm1(19.9), rel=1e-13)
    assert value("chi_square", 6.0, 1.0, None) == pytest.approx(math.exp(20) * 17 - 1, rel=1e-13)


@pytest.mark.parametrize("name", ["chi_square", "renyi(2)", "renyi(1.01)", "renyi(100)"])
def test_divergence_beyond_infinity_points_back_to_the_target(name):
    for offset, ratio in itertools.product([-1e30, -3.0, 3.0, 1e30], [1.0, 1.9, 2.0, 5.0, 1e4, 1e30, 1e280]):
        inputs = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (offset, ratio)]
        found = divergences.by_name(name)(*inputs, None)
        by_mean, by_variance = torch.autograd.grad(found, inputs)
        assert torch.isfinite(found)
        assert found > 0
        assert torch.isfinite(by_mean)
        assert torch.sign(by_mean) == math.copysign(1, offset)
        assert torch.isfinite(by_variance)
        assert by_variance > 0


@pytest.mark.parametrize("df", [None, 75])
@pytest.mark.parametrize("name", OF_MOMENTS)
def test_divergence_of_extreme_moments_is_finite(name, df):
    for mean, variance in itertools.product([-1e30, -1.0, 0.0, 1e-30, 75.0, 1e30], [1e-30, 1e-4, 2.0, 1e4, 1e30]):
        inputs = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (mean, variance)]
        found = divergences.by_name(name)(*inputs, df)
        assert torch.isfinite(found), (mean, variance)
        assert found >= -1e-15
        assert all(torch.isfinite(slope) for slope in torch.autograd.grad(found, inputs)), (mean, variance)


# Of samples


def squared_wasserstein_of_samples(z: list[float], weight: list[float]) -> float:
    """The integral over probabilities of the squared distance of quantiles, in x = quantile(u) of the normal law."""
    total, below, result = sum(weight), 0.0, 0.0
    for place, mass in sorted(zip(z, weight, strict=True)):
        low, high = (stats.norm.ppf(min(max(c / total, 0), 1)) for c in (below, below + mass))
        low, high = max(low, -12), min(high, 12)
        integrand = lambda x, at=place: (at - x) ** 2 * stats.norm.pdf(x)  # noqa: E731
        result += integrate.quad(integrand, low, high, epsabs=1e-13, epsrel=1e-12)[0] if high > low else 0.0
        below += mass
    return result


SAMPLES = [
    pytest.param([0.7], [1.0], id="one"),
    pytest.param([-1.0, 1.0], [1.0, 1.0], id="two"),
    pytest.param([0.3, -2.0, 5.0, 0.31], [1.0, 2.0, 0.5, 3.0], id="weighted"),
    pytest.param([0.5, 0.5, -1.0, 0.5], [1.0, 2.0, 3.0, 4.0], id="tied"),
    pytest.param([100.0, -3.0, 0.0], [1e-6, 1.0, 1.0], id="light outlier"),
]


@pytest.mark.parametrize(("z", "weight"), SAMPLES)
def test_sorted_wasserstein_is_the_integral_that_defines_it(z, weight):
    tensors = [torch.tensor(values, dtype=torch.float64) for values in (z, weight)]
    expected = squared_wasserstein_of_samples(z, weight)
    assert divergences.sorted_wasserstein(*tensors).item() == pytest.approx(expected, rel=1e-10)
    assert divergences.sorted_wasserstein(tensors[0], 7 * tensors[1]).item() == pytest.approx(expected, rel=1e-10)
    if len(set(weight)) == 1:
        assert divergences.sorted_wasserstein(tensors[0]).item() == pytest.approx(expected, rel=1e-10)


def test_sorted_wasserstein_is_the_cost_of_the_best_matching():
    # n points against the m n midpoints of as many equal slices: the normal law by brute force, to its spacing
    torch.manual_seed(0)
    z = torch.randn(20, dtype=torch.float64) * 1.5 + 0.3
    fine = torch.special.ndtri((torch.arange(2_000_000, dtype=torch.float64) + 0.5) / 2_000_000)
    cost = (z.sort().values.repeat_interleave(100_000) - fine).square().mean()
    torch.testing.assert_close(divergences.sorted_wasserstein(z), cost, rtol=1e-5, atol=0)


def test_sorted_wasserstein_passes_gradcheck():
    torch.manual_seed(0)
    z = torch.randn(30, dtype=torch.float64, requires_grad=True)
    weight = torch.rand(30, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: divergences.sorted_wasserstein(x, weight), (z,))
    assert torch.autograd.gradcheck(divergences.sorted_wasserstein, (z,))


def test_sorted_wasserstein_does_not_depend_on_order_and_treats_ties_alike():
    torch.manual_seed(0)
    z = (2 * torch.randn(50, dtype=torch.float64)).round().requires_grad_()
    weight = torch.rand(50, dtype=torch.float64)
    found = divergences.sorted_wasserstein(z, weight)
    (slope,) = torch.autograd.grad(found, z)
    order = torch.randperm(50)
    again = z.detach()[order].requires_grad_()
    other = divergences.sorted_wasserstein(again, weight[order])
    torch.testing.assert_close(other, found)
    torch.testing.assert_close(torch.autograd.grad(other, again)[0], slope[order])
    for place in z.detach().unique():
        tied = (slope / weight)[z.detach() == place]
        torch.testing.assert_close(tied, tied[:1].expand_as(tied))


def test_sorted_wasserstein_is_symmetric_and_leaves_out_weight_zero():
    torch.manual_seed(0)
    z = torch.randn(40, dtype=torch.float64)
    weight = torch.rand(40, dtype=torch.float64) * (torch.rand(40) > 0.3)
    weight[z.argmin()] = weight[z.argmax()] = 0
    found = divergences.sorted_wasserstein(z, weight)
    torch.testing.assert_close(divergences.sorted_wasserstein(-z, weight), found, rtol=1e-13, atol=0)
    torch.testing.assert_close(divergences.sorted_wasserstein(z[weight > 0], weight[weight > 0]), found)


def test_sorted_wasserstein_of_normal_quantiles_is_small_and_sees_a_shape_that_moments_do_not():
    p = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    normal = torch.special.ndtri(p)
    assert divergences.sorted_wasserstein(normal).item() < 2e-3
    two = torch.where(p < 0.5, -1.0, 1.0).double()  # mean 0, variance 1; W^2 = 2 - 2 E|x|
    assert value("kl", 0.0, 1.0, None) == 0
    assert divergences.sorted_wasserstein(two).item() == pytest.approx(2 - 2 * math.sqrt(2 / math.pi), rel=1e-12)


@pytest.mark.parametrize("lightest", [1e-18, 1e-100])
def test_sorted_wasserstein_of_weights_beyond_rounding_is_finite(lightest):
    z = torch.linspace(-3, 3, 9, dtype=torch.float64, requires_grad=True)
    weight = torch.tensor([lightest] * 4 + [1.0] + [lightest] * 4, dtype=torch.float64)
    found = divergences.sorted_wasserstein(z, weight)
    assert found.item() == pytest.approx(1.0)
    assert torch.isfinite(torch.autograd.grad(found, z)[0]).all()


def test_sorted_wasserstein_refuses_other_shapes():
    with pytest.raises(ValueError, match=r"expected `z` of shape \(N,\) with N >= 1, got \(0,\)"):
        divergences.sorted_wasserstein(torch.zeros(0))
    with pytest.raises(ValueError, match=r"expected `weight` of shape \(3,\) like `z`, got \(2,\)"):
        divergences.sorted_wasserstein(torch.zeros(3), torch.ones(2))


# Names


def test_unknown_divergence_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"expected `divergence` one of 'kl', .*got 'wasserstien' \(did you mean"):
        divergences.by_name("wasserstien")


def test_name_that_is_taken_is_refused():
    with pytest.raises(ValueError, match="name that is not taken, got 'kl'"):
        divergences.register("kl", lambda mean, variance, df: mean)  # noqa: ARG005
    with pytest.raises(TypeError, match="a function of"):
        divergences.register("new", 3)
    with pytest.raises(TypeError, match="name a string, got None"):
        divergences.register(None, lambda mean, variance, df: mean)  # noqa: ARG005


def test_divergence_of_the_users_own_may_be_replaced():
    for factor in (1.0, 2.0):
        divergences.register("mine", lambda mean, variance, df, f=factor: f * mean)  # noqa: ARG005
    assert divergences.by_name("mine")(1.0, 1.0, None) == 2.0


@pytest.mark.parametrize("name", ["renyi", "renyi(2)", "renyi(nonsense)", "sorted_wasserstein", "total_variation"])
def test_our_names_are_protected_also_with_a_parameter(name):
    with pytest.raises(ValueError, match="name that is not taken"):
        divergences.register(name, lambda mean, variance, df: mean)  # noqa: ARG005


def test_name_with_brackets_is_the_users_if_the_word_is_not_ours():
    divergences.register("mine(3)", lambda mean, variance, df: 3 * mean)  # noqa: ARG005
    assert divergences.by_name("mine(3)")(1.0, 1.0, None) == 3.0


@pytest.mark.parametrize("text", ["-1", "0", "1e400", "abc", "", "nan", "2", "(2)", "2))"])
def test_bad_parameter_is_refused_in_one_line(text):
    name = f"renyi({text}" if text == "2" else f"renyi({text})"
    with pytest.raises(
        ValueError, match=r"^expected `divergence` 'renyi\(alpha\)' with alpha within \[0.01, 100\], got"
    ):
        divergences.by_name(name)


def test_bad_order_is_refused():
    with pytest.raises(ValueError, match=r"expected `alpha` within \[0.01, 100\], got -1"):
        divergences.renyi(0.3, 1.4, alpha=-1)
    with pytest.raises(ValueError, match="expected `divergence` one of 'kl', .*, got 'kl\\(2\\)'"):
        divergences.by_name("kl(2)")


def test_bad_df_is_refused():
    for name in OF_MOMENTS:
        with pytest.raises(ValueError, match="expected `df` None or an int >= 1, got 0"):
            divergences.by_name(name)(torch.tensor(1.0), torch.tensor(1.0), 0)
