"""Scores against SciPy and quadrature."""

import itertools
import math

import numpy as np
import pytest
import torch
from references import REFERENCES
from scipy import integrate, special, stats
from torch.distributions import (
    Categorical,
    Gamma,
    Independent,
    Laplace,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
)

import fcal
from fcal.distributions.crps_quadrature import crps_by_quadrature
from fcal.distributions.family import law_of

SCIPY = {
    "Normal": lambda m, s: stats.norm(m, s),
    "Laplace": lambda m, s: stats.laplace(m, s),
    "Logistic": lambda m, s: stats.logistic(m, s),
    "Cauchy": lambda m, s: stats.cauchy(m, s),
    "Gumbel": lambda m, s: stats.gumbel_r(m, s),
    "LogNormal": lambda m, s: stats.lognorm(s, scale=math.exp(m)),
    "Weibull": lambda scale, k: stats.weibull_min(k, scale=scale),
    "Exponential": lambda rate: stats.expon(scale=1 / rate),
    "HalfNormal": lambda s: stats.halfnorm(scale=s),
    "Uniform": lambda low, high: stats.uniform(low, high - low),
    "StudentT": lambda df, m, s: stats.t(df, m, s),
    "Gamma": lambda a, rate: stats.gamma(a, scale=1 / rate),
    "Chi2": lambda df: stats.chi2(df),
    "InverseGamma": lambda a, rate: stats.invgamma(a, scale=rate),
    "Beta": lambda a, b: stats.beta(a, b),
    "FisherSnedecor": lambda df1, df2: stats.f(df1, df2),
    "GeneralizedPareto": lambda m, s, k: stats.genpareto(k, m, s),
    "AsymmetricLaplace": lambda m, s, kappa: stats.laplace_asymmetric(kappa, m, s),
    "TruncatedNormal": lambda m, s, low, high: stats.truncnorm((low - m) / s, (high - m) / s, m, s),
}


def crps_by_definition(cdf, survival, ends, y):
    """The integral of F^2 below y and of (1 - F)^2 above, by SciPy's adaptive quadrature between given points."""
    inside = sorted({*ends, *([y] if ends[0] < y < ends[-1] else [])})
    inside = [a for a, b in itertools.pairwise(inside) if b - a > 1e-9] + inside[
        -1:
    ]  # not many at an end of the support
    total = max(ends[0] - y, 0.0) + max(y - ends[-1], 0.0)
    for low, high in itertools.pairwise(inside):
        integrand = (lambda x: cdf(x) ** 2) if high <= y else (lambda x: survival(x) ** 2)
        total += integrate.quad(integrand, low, high, epsabs=1e-13, epsrel=1e-11, limit=200)[0]
    return total


def points_of(scipy_law):
    """Quantiles from 8.5 normal deviations below to 8.5 above: panels for the quadrature."""
    scores = np.linspace(-8.5, 8.5, 35)
    return np.where(scores < 0, scipy_law.ppf(stats.norm.cdf(scores)), scipy_law.isf(stats.norm.sf(scores))).tolist()


@pytest.mark.parametrize("name", REFERENCES)
def test_nll_is_scipys_negative_log_density(name):
    reference = REFERENCES[name]
    law = reference.law(torch.float64)
    torch.manual_seed(0)
    y = law.sample((30,))
    if name in SCIPY:
        expected = torch.from_numpy(-SCIPY[name](*reference.parameters).logpdf(y.numpy()))
    else:
        expected = -law.log_prob(y)  # a mixture, whose density torch has
    torch.testing.assert_close(fcal.nll(law, y), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("y", [1e30, -1e30, 1e12])
def test_nll_is_exact_in_the_far_tails_of_float32(y):
    law = REFERENCES["Cauchy"].law(torch.float32)
    loc, scale = (float(torch.tensor(p)) for p in REFERENCES["Cauchy"].parameters)
    expected = math.log(math.pi * scale) + 2 * math.log(abs(y - loc) / scale)
    assert fcal.nll(law, torch.tensor(y)).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("sigma", [1e-30, 1e-20, 1e30])
def test_gaussian_nll_survives_a_variance_that_underflows(sigma):
    pred = Normal(torch.zeros(1), torch.tensor([sigma]))
    expected = 0.5 * 9 + math.log(sigma) + 0.5 * math.log(2 * math.pi)
    assert fcal.nll(pred, torch.tensor([3 * sigma])).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", SCIPY)
def test_crps_is_the_integral_that_defines_it(name):
    reference = REFERENCES[name]
    law, scipy_law = reference.law(torch.float64), SCIPY[name](*reference.parameters)
    y = torch.tensor([*scipy_law.ppf([0.001, 0.3, 0.9, 0.999]), -2.0, 60.0], dtype=torch.float64)
    law._validate_args = False
    found = fcal.crps(law, y)
    ends = points_of(scipy_law)
    expected = [crps_by_definition(scipy_law.cdf, scipy_law.sf, ends, v) for v in y.tolist()]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-7, atol=1e-9)


CLOSED = [name for name in SCIPY if law_of(REFERENCES[name].law(torch.float64)).family.crps is not None]


@pytest.mark.parametrize("name", CLOSED)
def test_crps_by_quadrature_equals_the_closed_form(name):
    law = REFERENCES[name].law(torch.float64)
    y = torch.tensor([-1.0, 0.2, 0.9, 4.0], dtype=torch.float64)
    # a kink of the density lies within a panel; a law without a mean has more of its score far out
    rtol = {"Laplace": 1e-5, "AsymmetricLaplace": 1e-5, "Cauchy": 1e-6}.get(name, 1e-8)
    torch.testing.assert_close(crps_by_quadrature(law_of(law), y), fcal.crps(law, y), rtol=rtol, atol=1e-9)


def test_crps_of_a_mixture_is_the_integral_of_its_parts():
    weight, shape, rate = [0.2, 0.5, 0.3], [0.7, 3.0, 40.0], [1.0, 2.0, 20.0]
    parameters = (torch.tensor(p, dtype=torch.float64) for p in (weight, shape, rate))
    law = MixtureSameFamily(Categorical(next(parameters)), Gamma(*parameters), validate_args=False)
    parts = [stats.gamma(a, scale=1 / b) for a, b in zip(shape, rate, strict=True)]
    ends = sorted({0.0, *(x for part in parts for x in points_of(part))})
    for y in (0.1, 1.5, 7.0, -1.0):
        expected = crps_by_definition(
            lambda x: sum(w * part.cdf(x) for w, part in zip(weight, parts, strict=True)),
            lambda x: sum(w * part.sf(x) for w, part in zip(weight, parts, strict=True)),
            ends,
            y,
        )
        assert fcal.crps(law, torch.tensor(y).double()).item() == pytest.approx(expected, rel=1e-6)


def test_crps_of_normal_components_in_closed_form_equals_quadrature():
    torch.manual_seed(0)
    logits, loc = torch.randn(6, 4, dtype=torch.float64), torch.randn(6, 4, dtype=torch.float64)
    law = MixtureSameFamily(Categorical(logits=logits), Normal(loc, 0.03 + torch.rand(6, 4, dtype=torch.float64)))
    y = torch.randn(6, dtype=torch.float64)
    torch.testing.assert_close(fcal.crps(law, y), crps_by_quadrature(law_of(law), y), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", REFERENCES)
def test_crps_passes_gradcheck(name):
    reference = REFERENCES[name]
    y = torch.tensor([0.41, 0.83], dtype=torch.float64, requires_grad=True)
    parameters = [torch.full((2,), p, dtype=torch.float64, requires_grad=True) for p in reference.parameters]
    assert torch.autograd.gradcheck(lambda v, *a: fcal.crps(reference.kind(*a), v), (y, *parameters))


def test_crps_of_few_degrees_of_freedom_is_finite_and_right():
    # E|X - y| is infinite for df <= 1, the score is not; the Cauchy law has a closed form of its own
    y = torch.tensor([-3.0, 0.1, 20.0], dtype=torch.float64)
    one = torch.ones(3, dtype=torch.float64)
    cauchy = fcal.crps(torch.distributions.Cauchy(0 * one, one), y)
    torch.testing.assert_close(fcal.crps(torch.distributions.StudentT(one, 0 * one, one), y), cauchy, rtol=1e-6, atol=0)


@pytest.mark.parametrize("df", [0.55, 0.7, 0.95, 1.0, 1.05])
def test_crps_without_a_mean_continues_the_closed_form(df):
    # the closed form of df > 1 holds down to 1/2 but for df = 1 itself, where it is 0/0: shift a little
    nu, y = df + 1e-9, 0.7
    spread = special.beta(0.5, nu - 0.5) / special.beta(0.5, nu / 2) ** 2
    law = stats.t(nu)
    expected = y * (2 * law.cdf(y) - 1) + 2 / (nu - 1) * (law.pdf(y) * (nu + y * y) - math.sqrt(nu) * spread)
    pred = torch.distributions.StudentT(torch.tensor([df], dtype=torch.float64))
    found = fcal.crps(pred, torch.tensor([y], dtype=torch.float64)).item()
    assert found == pytest.approx(expected, rel=1e-5 if df == 1 else 1e-7)


@pytest.mark.parametrize(("shape", "y"), [(0.05, 1e-6), (0.05, 0.3), (0.3, 0.1), (40.0, 35.0)])
def test_crps_of_equal_components_is_that_of_one(shape, y):
    # by quadrature and by the closed form; small shapes are powers of the distance from 0
    pair, target = torch.full((2,), shape, dtype=torch.float64), torch.tensor(y, dtype=torch.float64)
    mixture = MixtureSameFamily(Categorical(torch.ones(2).double()), Gamma(pair, torch.ones_like(pair)))
    torch.testing.assert_close(fcal.crps(mixture, target), fcal.crps(Gamma(pair[0], 1.0), target), rtol=1e-9, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_crps_that_is_infinite_is_a_large_number(dtype):
    df = torch.tensor([0.05, 3.0], dtype=dtype, requires_grad=True)
    loss = fcal.losses.CRPSLoss()(torch.distributions.StudentT(df), torch.ones(2, dtype=dtype))
    assert 1e30 < loss.item() < math.inf
    loss.backward()
    assert torch.isfinite(df.grad).all()


@pytest.mark.parametrize("law", [Gamma(torch.ones(0), 1.0), torch.distributions.Gumbel(torch.ones(0), torch.ones(0))])
def test_crps_of_nothing_is_nothing(law):
    assert fcal.crps(law, torch.zeros(0)).shape == (0,)


def test_crps_of_a_vector_is_refused():
    with pytest.raises(TypeError, match="expected `pred` of a scalar family with a quantile, got MultivariateNormal"):
        fcal.crps(MultivariateNormal(torch.zeros(2), torch.eye(2)), torch.zeros(2))


@pytest.mark.parametrize("score", [fcal.nll, fcal.crps])
def test_coordinates_of_an_independent_prediction_add_up(score):
    torch.manual_seed(0)
    base = Laplace(torch.randn(5, 3), torch.rand(5, 3) + 0.5)
    y = torch.randn(5, 3)
    torch.testing.assert_close(score(Independent(base, 1), y), score(base, y).sum(-1))


def test_reductions_follow_masks_and_weights():
    torch.manual_seed(0)
    pred, y = Normal(torch.randn(6), torch.ones(6)), torch.randn(6)
    y[2] = math.nan
    weight = torch.rand(6)
    keep = torch.arange(6) != 2
    scores = fcal.nll(pred, torch.nan_to_num(y))
    assert fcal.nll(pred, y)[2] == 0
    torch.testing.assert_close(fcal.nll(pred, y, weight=weight), torch.where(keep, weight * scores, 0.0))
    torch.testing.assert_close(fcal.nll(pred, y, reduction="sum"), scores[keep].sum())
    torch.testing.assert_close(fcal.nll(pred, y, reduction="mean"), scores[keep].mean())
    weighted = (weight * scores)[keep].sum() / weight[keep].sum()
    torch.testing.assert_close(fcal.nll(pred, y, weight=weight, reduction="mean"), weighted)


def test_bad_reduction_and_empty_mean_are_refused():
    pred = Normal(torch.zeros(3), torch.ones(3))
    with pytest.raises(ValueError, match="expected `reduction` one of 'none', 'sum', 'mean', got 'average'"):
        fcal.nll(pred, torch.zeros(3), reduction="average")
    with pytest.raises(ValueError, match="at least 1 value that counts, got 0"):
        fcal.nll(pred, torch.full((3,), math.nan), reduction="mean")
