"""Warped distributions against quadrature, closed forms of special maps, and SciPy."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch.distributions import (
    Categorical,
    Distribution,
    Gamma,
    Gumbel,
    Independent,
    Laplace,
    LogNormal,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    StudentT,
    TransformedDistribution,
)
from torch.distributions.transforms import AffineTransform, ExpTransform

import fcal
from fcal.distributions import AffineMap, BetaMap, MonotoneMap, PiecewiseLinear, QuantileLaw, Warped
from fcal.distributions.observation import observe
from fcal.distributions.warped_integrals import fast_moments_and_crps


def f64(*values: float) -> torch.Tensor:
    return torch.tensor(values if len(values) > 1 else values[0], dtype=torch.float64)


def bent(below: float = 0.9, above: float = 1.1) -> PiecewiseLinear:
    return PiecewiseLinear(f64(-2.0, -1.0, 0.0, 0.5, 1.5), f64(-1.9, -0.9, 0.2, 0.6, 1.7), below=below, above=above)


MAPS: dict[str, MonotoneMap] = {
    "piecewise": bent(),
    "affine": AffineMap(f64(0.3), f64(1.1)),
    "beta": BetaMap(f64(0.7), f64(1.4), f64(0.3)),
}
BASES: dict[str, tuple[Distribution, float, float]] = {
    "normal": (Normal(f64(1.0), f64(2.0)), -60.0, 60.0),
    "laplace": (Laplace(f64(1.0), f64(2.0)), -200.0, 200.0),
    "gumbel": (Gumbel(f64(0.0), f64(1.0)), -8.0, 100.0),
    "student": (StudentT(f64(9.0), f64(0.0), f64(1.0)), -3000.0, 3000.0),
    "gamma": (Gamma(f64(3.0), f64(2.0)), 1e-12, 80.0),
    "log-normal": (LogNormal(f64(0.0), f64(0.4)), 1e-12, 300.0),
    "mixture": (MixtureSameFamily(Categorical(f64(0.3, 0.7)), Normal(f64(-1.0, 2.0), f64(0.5, 1.0))), -40.0, 40.0),
    "transformed": (
        TransformedDistribution(Gamma(f64(3.0), f64(2.0)), [AffineTransform(f64(1.0), f64(2.0))]),
        1 + 1e-12,
        160.0,
    ),
    "quantiles": (QuantileLaw([0.1, 0.4, 0.5, 0.9], f64(-1.0, 0.0, 0.5, 3.0)), -60.0, 60.0),
    "warped": (Warped(Normal(f64(1.0), f64(2.0)), bent()), -80.0, 80.0),
}
CASES = [pytest.param(base, name, id=f"{base}-{name}") for base in BASES for name in MAPS]


def warped(base: str, name: str) -> tuple[Warped, list[float]]:
    """A distribution, and points that split the line into intervals in which it is smooth."""
    law, low, high = BASES[base]
    own = Warped(law, MAPS[name])
    scores = torch.special.ndtr(f64(-7.0, -5.5, *(0.125 * k for k in range(-32, 33)), 5.5, 7.0))
    edges = [*own.icdf(scores).tolist(), float(fcal.distributions.quantile(law, f64(0.5)))]
    edges += bends(law)
    if name == "piecewise":
        edges += fcal.distributions.quantile(law.expand((5,)), normal_probability(MAPS[name].segments.x)).tolist()
    return own, sorted({low, high, *(e for e in edges if low < e < high)})


def bends(law: Distribution) -> list[float]:
    """Points where the base is not smooth."""
    if isinstance(law, QuantileLaw):
        return law.values.tolist()
    return (1 + 2 * law.warp.segments.x).tolist() if isinstance(law, Warped) else []


def normal_probability(z: torch.Tensor) -> torch.Tensor:
    return 0.5 * torch.erfc(-z * math.sqrt(0.5))


def integral(function, edges: list[float]) -> float:
    """By 20-point Gauss-Legendre rules in each interval, all at once."""
    nodes, weights = (torch.from_numpy(v) for v in np.polynomial.legendre.leggauss(20))
    low, high = f64(*edges[:-1]).unsqueeze(-1), f64(*edges[1:]).unsqueeze(-1)
    x = low + (high - low) * (nodes + 1) / 2
    return float((function(x.reshape(-1)).reshape(x.shape) * weights * (high - low) / 2).sum())


@pytest.mark.parametrize(("base", "name"), CASES)
def test_warped_density_integrates_to_one_and_gives_mean_and_variance(base: str, name: str):
    law, edges = warped(base, name)
    assert integral(lambda y: law.log_prob(y).exp(), edges) == pytest.approx(1, abs=1e-6)
    mean = integral(lambda y: y * law.log_prob(y).exp(), edges)
    variance = integral(lambda y: (y - mean) ** 2 * law.log_prob(y).exp(), edges)
    # our panels do not end at kinks of an inner distribution, nor where a mixture changes between components
    tolerance = 3e-4 if bends(BASES[base][0]) else 1e-4 if base == "mixture" else 1e-5
    assert law.mean.item() == pytest.approx(mean, abs=tolerance * math.sqrt(variance))
    assert law.variance.item() == pytest.approx(variance, rel=3 * tolerance)
    assert law.stddev.item() == pytest.approx(math.sqrt(variance), rel=3 * tolerance)


@pytest.mark.parametrize(("base", "name"), CASES)
def test_warped_log_prob_is_the_slope_of_its_cdf(base: str, name: str):
    law, _ = warped(base, name)
    y = law.icdf(f64(0.003, 0.04, 0.2, 0.55, 0.8, 0.98)).requires_grad_()
    (slope,) = torch.autograd.grad(law.cdf(y).sum(), y)
    torch.testing.assert_close(law.log_prob(y.detach()), slope.log(), rtol=1e-8, atol=1e-8)
    assert bool((slope > 0).all())


@pytest.mark.parametrize(("base", "name"), CASES)
def test_warped_quantile_undoes_its_cdf(base: str, name: str):
    law, _ = warped(base, name)
    p = f64(1e-12, 1e-4, 0.1, 0.5, 0.77, 1 - 1e-6)
    torch.testing.assert_close(law.cdf(law.icdf(p)), p, rtol=1e-9, atol=0)
    assert bool((law.icdf(p).diff() > 0).all())


@pytest.mark.parametrize("base", BASES)
def test_warped_residual_is_the_map_of_the_base_residual(base: str):
    own, y = BASES[base][0], BASES[base][0].sample() if base != "transformed" else f64(3.0)
    z = fcal.standardize(own, y)
    shift, spread = MAPS["affine"].tensors
    torch.testing.assert_close(fcal.standardize(Warped(own, MAPS["affine"]), y), (z - shift) / spread)


@pytest.mark.parametrize(
    ("base", "name"), [("normal", n) for n in MAPS] + [("gamma", "piecewise"), ("mixture", "beta")]
)
def test_warped_crps_is_the_integral_of_its_definition(base: str, name: str):
    law, edges = warped(base, name)
    y = float(law.icdf(f64(0.37)))
    cuts = sorted({*edges, y})
    expected = integral(lambda x: (law.cdf(x) - (x >= y).double()).square(), cuts)
    # in closed form for a normal base; else by a quadrature whose panels do not end where the density jumps
    tolerance = 1e-8 if (base, name) == ("normal", "piecewise") else 5e-4 if name == "piecewise" else 1e-6
    assert fcal.crps(law, f64(y)).item() == pytest.approx(expected, rel=tolerance)


def test_warped_by_an_affine_map_is_the_moved_normal_law():
    law = Warped(Normal(f64(1.0), f64(2.0)), AffineMap(f64(0.5), f64(3.0)))
    same, y = Normal(f64(2.0), f64(6.0)), f64(-1e6, -3.0, 0.0, 2.0, 7.5, 1e6)
    torch.testing.assert_close(law.log_prob(y), same.log_prob(y), rtol=1e-14, atol=1e-13)
    torch.testing.assert_close(fcal.crps(law.expand((6,)), y), fcal.crps(same.expand((6,)), y), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(law.mean, same.mean)
    torch.testing.assert_close(law.stddev, same.stddev)


def test_warped_by_a_beta_map_follows_its_definition():
    law, y = Warped(Normal(f64(0.0), f64(1.0)), MAPS["beta"]), f64(-3.0, -0.4, 0.0, 1.0, 2.5)
    u = torch.from_numpy(stats.norm.cdf(y.numpy()))
    expected = torch.sigmoid(0.7 * u.log() - 1.4 * torch.log1p(-u) + 0.3)
    torch.testing.assert_close(law.cdf(y), expected, rtol=1e-12, atol=0)


def test_warped_outlier_a_million_sigmas_away_costs_what_its_tail_says():
    # normal tails of slope g: log p = log g - z'^2 / 2 - log sqrt(2 pi), z' = g (z - x) + y at the last knot
    law = Warped(Normal(f64(0.0), f64(1.0)), bent(below=0.5, above=0.25))
    above, below = 0.25 * (1e6 - 1.5) + 1.7, 0.5 * (-1e6 + 2.0) - 1.9
    for y, z, slope in ((1e6, above, 0.25), (-1e6, below, 0.5)):
        expected = math.log(slope) - z * z / 2 - 0.5 * math.log(2 * math.pi)
        assert law.log_prob(f64(y)).item() == pytest.approx(expected, rel=1e-15)
        assert fcal.nll(law, f64(y)).item() == pytest.approx(-expected, rel=1e-15)
        assert fcal.standardize(law, f64(y)).item() == pytest.approx(z, rel=1e-15)
    beta = Warped(Normal(f64(0.0), f64(1.0)), MAPS["beta"])
    assert fcal.standardize(beta, f64(1e6)).item() == pytest.approx(math.sqrt(1.4) * 1e6, rel=1e-10)
    assert math.isfinite(beta.log_prob(f64(-1e6)).item())


def test_warped_density_does_not_cancel_where_the_base_is_absurdly_sure():
    # sigma a million times too small, repaired by the map: the digits of log p survive
    law = Warped(Normal(f64(0.0), f64(1e-6)), AffineMap(f64(0.0), f64(1e6)))
    assert law.log_prob(f64(1.0)).item() == pytest.approx(stats.norm.logpdf(1.0), abs=1e-12)


def test_warped_far_tails_of_other_bases_stay_finite():
    law = Warped(Laplace(f64(0.0), f64(1.0)), bent())
    assert fcal.distributions.log_survival(law, f64(600.0)).item() == pytest.approx(-1.21 * 600, rel=0.03)
    assert math.isfinite(fcal.nll(law, f64(-600.0)).item())


def test_warped_draws_follow_its_law():
    # Kolmogorov-Smirnov on 5000 seeded draws each; false-alarm rate 1e-4 per distribution
    torch.manual_seed(0)
    for name, warp in MAPS.items():
        law = Warped(Gamma(f64(3.0), f64(2.0)), warp)
        draws = law.sample((5000,))
        found = stats.kstest(draws.numpy(), lambda y, law=law: law.cdf(torch.from_numpy(y)).numpy())
        assert found.pvalue > 1e-4, name


def test_warped_works_inside_independent_with_missing_targets():
    base = Normal(torch.zeros(4, 3), torch.ones(4, 3))
    law = Independent(Warped(base, bent()), 1)
    y = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    y[1, 2] = torch.nan
    mask = torch.tensor([True, True, True, False])
    z = fcal.standardize(law, y, valid_mask=mask)
    assert z.dtype == torch.float32
    assert z.isnan().sum() == 4
    score = fcal.nll(law, y, valid_mask=mask)
    assert score.shape == (4,)
    assert score[3] == 0
    single = Warped(Normal(torch.zeros(3), torch.ones(3)), bent())
    torch.testing.assert_close(score[0], fcal.nll(single, y[0]).sum())


@pytest.mark.parametrize("name", MAPS)
def test_warped_float32_base_gives_float32_results_of_float64_quality(name: str):
    narrow_map = MAPS[name].rebuilt(tuple(t.float() for t in MAPS[name].tensors))
    law, wide = (
        Warped(Laplace(torch.tensor(1.0), torch.tensor(2.0)), narrow_map),
        Warped(BASES["laplace"][0], MAPS[name]),
    )
    y = torch.tensor([-40.0, 0.0, 3.0, 60.0])
    for found, expected in (
        (law.log_prob(y), wide.log_prob(y.double())),
        (law.cdf(y), wide.cdf(y.double())),
        (law.icdf(torch.tensor([0.1, 0.9])), wide.icdf(torch.tensor([0.1, 0.9]).double())),
        (law.mean, wide.mean),
        (law.stddev, wide.stddev),
    ):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), expected, rtol=2e-6, atol=1e-6)


def test_warped_expands_and_samples_like_a_torch_distribution():
    law = Warped(Normal(torch.zeros(2), torch.ones(2)), BetaMap(*(torch.full((2,), v) for v in (0.7, 1.4, 0.3))))
    larger = law.expand((5, 2))
    assert larger.batch_shape == (5, 2)
    assert larger.sample((3,)).shape == (3, 5, 2)
    assert larger.mean.shape == larger.variance.shape == (5, 2)
    torch.testing.assert_close(larger.mean[3], law.mean)


def test_warped_gradients_reach_the_base():
    y = f64(-1.0, 0.5, 4.0)

    def score(loc: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        law = Warped(Normal(loc, scale), bent())
        return torch.stack([fcal.nll(law, y), fcal.crps(law, y), fcal.standardize(law, y)])

    torch.autograd.gradcheck(score, (f64(0.1, 0.2, 0.3).requires_grad_(), f64(1.0, 2.0, 0.5).requires_grad_()))


def test_warped_gradients_reach_a_beta_map_through_quantiles_too():
    def values(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        law = Warped(Normal(f64(0.0), f64(2.0)), BetaMap(a, b, c))
        return torch.stack([law.icdf(f64(0.2)), law.log_prob(f64(1.0)), law.cdf(f64(-3.0))])

    torch.autograd.gradcheck(values, tuple(f64(v).requires_grad_() for v in (0.7, 1.4, 0.3)))


def test_warped_has_no_variance_where_the_map_makes_tails_too_heavy():
    # residuals of a Student-t distribution with 6 degrees of freedom times 2: tail index 6 / 4
    law = Warped(StudentT(f64(6.0), f64(0.0), f64(1.0)), AffineMap(f64(0.0), f64(2.0)))
    assert law.variance.item() == math.inf
    assert law.mean.item() == pytest.approx(0, abs=1e-3)
    nothing = Warped(StudentT(f64(6.0), f64(0.0), f64(1.0)), AffineMap(f64(0.0), f64(3.0)))
    assert math.isnan(nothing.mean.item())


def test_warped_accepts_increasing_transforms_and_refuses_decreasing_ones():
    increasing = TransformedDistribution(Normal(f64(0.0), f64(0.4)), [ExpTransform()])
    same = Warped(LogNormal(f64(0.0), f64(0.4)), bent())
    torch.testing.assert_close(Warped(increasing, bent()).log_prob(f64(0.5, 2.0)), same.log_prob(f64(0.5, 2.0)))
    decreasing = TransformedDistribution(Gamma(f64(2.0), f64(1.0)), [AffineTransform(f64(0.0), f64(-1.0))])
    with pytest.raises(
        ValueError, match="expected `base` under increasing transforms, got a decreasing AffineTransform"
    ):
        Warped(decreasing, bent())


def test_warped_refuses_vectors_and_what_is_no_distribution_or_map():
    with pytest.raises(ValueError, match=r"expected `base` of scalars, got MultivariateNormal of \(2,\)"):
        Warped(MultivariateNormal(torch.zeros(2), torch.eye(2)), bent())
    with pytest.raises(TypeError, match="expected `base` a torch.distributions.Distribution, got float"):
        Warped(1.0, bent())
    with pytest.raises(TypeError, match="expected `warp` a fcal.distributions.MonotoneMap, got function"):
        Warped(Normal(0.0, 1.0), lambda z: z)


def test_piecewise_map_refuses_knots_that_do_not_rise():
    for x, y in (((0.0, 0.0), (0.0, 1.0)), ((0.0, 1.0), (1.0, 0.0)), ((0.0, math.inf), (0.0, 1.0))):
        with pytest.raises(ValueError, match="finite and strictly increasing"):
            PiecewiseLinear(f64(*x), f64(*y), below=1.0, above=1.0)
    with pytest.raises(ValueError, match="expected `below` and `above` > 0, got 0 and 1"):
        PiecewiseLinear(f64(0.0, 1.0), f64(0.0, 1.0), below=0.0, above=1.0)


@pytest.mark.parametrize("spread", [0.3, 3.0, 20.0])
@pytest.mark.parametrize("slopes", [(1.0, 1.0), (0.3, 2.0), (20.0, 20.0)])
def test_moments_of_a_warped_normal_mixture_are_those_of_its_quantiles(spread, slopes):
    """Against 50,000 quantiles, evenly spaced, which leave out 1e-5 of either tail; the map has kinks."""
    generator = torch.Generator().manual_seed(0)
    locs = spread * torch.randn(2, 4, generator=generator, dtype=torch.float64)
    scales, weights = 0.2 + torch.rand(2, 2, 4, generator=generator, dtype=torch.float64)
    base = MixtureSameFamily(Categorical(weights), Normal(locs, scales))
    knots = f64(-1.5, -0.2, 0.4, 2.0)
    values = f64(-1.0, -0.5, 0.6, 1.4) if slopes[0] < 20 else 20 * knots  # the second: far narrower than the mixture
    law = Warped(base, PiecewiseLinear(knots, values, below=slopes[0], above=slopes[1]))
    quantiles = law.icdf(((torch.arange(50_000, dtype=torch.float64) + 0.5) / 50_000).unsqueeze(1))
    sd = quantiles.std(0)
    torch.testing.assert_close(law.mean / sd, quantiles.mean(0) / sd, rtol=0, atol=5e-4)
    torch.testing.assert_close(law.stddev, sd, rtol=2e-3, atol=0)


def test_moments_of_a_warped_normal_mixture_have_gradients():
    bent = PiecewiseLinear(f64(-1.0, 0.0, 1.0), f64(-0.5, 0.0, 2.0), below=1.0, above=1.0)

    def moments(locs, scales):
        law = Warped(MixtureSameFamily(Categorical(torch.ones(3, 2)), Normal(locs, scales)), bent)
        return law.mean, law.variance

    locs, scales = torch.tensor([[0.0, 1.1], [2.0, -1.0], [0.3, 0.2]]).double(), torch.full((3, 2), 0.7).double()
    assert torch.autograd.gradcheck(moments, (locs.requires_grad_(), scales.requires_grad_()), atol=1e-4, rtol=1e-3)


def _bent_at_many_knots():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(60, generator=generator, dtype=torch.float64).sort().values
    y = (0.05 + torch.rand(60, generator=generator, dtype=torch.float64)).cumsum(0)
    return PiecewiseLinear(x, 0.8 * (y - y.mean()) / y.std(), below=0.7, above=1.3)


def _many(kind):
    """Forty laws; those of mixtures have one to five modes."""
    generator = torch.Generator().manual_seed(2)

    def drawn(*shape):
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    loc, scale, spread = drawn(40, 5), 0.2 + 2 * drawn(40, 5), 10 ** (2 * drawn(40, 1) - 1)
    return {
        "mixture": lambda: MixtureSameFamily(Categorical(drawn(40, 5)), Normal(spread * loc, scale)),
        "student": lambda: StudentT(10 + 20 * drawn(40), loc[:, 0], scale[:, 0]),
        "student of one shape": lambda: StudentT(torch.full((40,), 9.0).double(), loc[:, 0], scale[:, 0]),
        "laplace": lambda: Laplace(loc[:, 0], scale[:, 0]),
    }[kind]()


@pytest.mark.parametrize("kind", ["mixture", "student", "student of one shape", "laplace"])
def test_integrals_of_warped_laws_in_one_pass_are_those_of_their_quantiles(kind):
    """Against sums over 20,001 residuals of the warped law, evenly spaced within eight standard deviations."""
    law = Warped(_many(kind), _bent_at_many_knots())
    residuals = torch.linspace(-8, 8, 20_001, dtype=torch.float64).unsqueeze(1)
    below, weight = torch.special.ndtr(residuals), torch.exp(-0.5 * residuals.square())
    weight = weight / weight.sum()
    quantiles = law.icdf(below)
    target = quantiles[8_000 + 100 * torch.arange(40), torch.arange(40)]
    mean = (weight * quantiles).sum(0)
    sd = (weight * (quantiles - mean).square()).sum(0).sqrt()
    score = (2 * weight * (quantiles - target) * ((quantiles >= target).double() - below)).sum(0)
    fast = fast_moments_and_crps(observe(law, target, widest=True, anywhere=True).law, target)
    assert fast is not None
    torch.testing.assert_close(fast[0] / sd, mean / sd, rtol=0, atol=4e-4)
    torch.testing.assert_close(fast[1].sqrt() / sd, torch.ones_like(sd), rtol=0, atol=1e-3)
    torch.testing.assert_close(fast[2] / sd, score / sd, rtol=0, atol=4e-4)


def test_laws_too_heavy_or_too_narrow_for_few_points_take_the_other_way():
    heavy = StudentT(f64(3.0), f64(0.0), f64(1.0))
    target = f64(0.5)
    for base, warp in (
        (heavy, _bent_at_many_knots()),
        (Laplace(f64(0.0), f64(1.0)), PiecewiseLinear(f64(0.0, 1.0), f64(0.0, 9.0), below=9.0, above=9.0)),
    ):
        assert (
            fast_moments_and_crps(observe(Warped(base, warp), target, widest=True, anywhere=True).law, target) is None
        )


def test_moments_of_a_warped_law_are_computed_once_unless_they_have_gradients():
    law = Warped(_many("mixture"), _bent_at_many_knots())
    assert law.mean is law.mean
    loc = f64(0.0, 1.0).requires_grad_()
    law = Warped(Laplace(loc, torch.ones_like(loc)), _bent_at_many_knots())
    for _ in range(2):  # a second graph
        law.mean.sum().backward()
    torch.testing.assert_close(loc.grad, f64(2.0, 2.0))


def test_crps_of_a_warped_mixture_with_distant_modes_is_the_integral_of_its_definition():
    """Against the trapezoidal rule on 80,000 points, close together at every mode."""
    locs, scales = f64(-59.5, -42.2, 1.5, 96.6), f64(0.32, 0.25, 0.3, 0.11)
    base = MixtureSameFamily(Categorical(f64(0.4, 0.2, 0.1, 0.3)), StudentT(f64(6.0, 6.0, 6.0, 6.0), locs, scales))
    law = Warped(base.expand((1,)), _bent_at_many_knots())
    steps = torch.sinh(torch.linspace(-12, 12, 20_001, dtype=torch.float64)) / 20
    for y in (-59.7, -50.0, 97.0):
        points = torch.cat([(locs[:, None] + scales[:, None] * steps).flatten(), f64(y).reshape(1)]).sort().values
        below = Warped(base.expand(points.shape), law.warp).cdf(points)
        lower, upper = below.square(), (1 - below).square()
        terms = torch.where(points[1:] <= y, lower[1:] + lower[:-1], upper[1:] + upper[:-1])
        expected = (points.diff() * terms / 2).sum()
        torch.testing.assert_close(fcal.crps(law, f64(y).reshape(1)).squeeze(), expected, rtol=1e-5, atol=0)
