"""Divergences against quadrature of their definitions."""

import math

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


@pytest.mark.parametrize("name", ["kl", "reverse_kl", "wasserstein", "wasserstein_printed"])
def test_divergence_of_numbers_is_that_of_tensors(name):
    function = divergences.by_name(name)
    expected = value(name, 80.0, 90.0, 75)
    assert function(80.0, 90.0, 75) == pytest.approx(expected, rel=1e-15)
    assert function(complex(80.0), complex(90.0), 75).real == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize("name", ["kl", "reverse_kl", "wasserstein", "wasserstein_printed"])
def test_divergence_passes_gradcheck(name):
    inputs = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (0.4, 1.7)]
    assert torch.autograd.gradcheck(lambda m, v: divergences.by_name(name)(m, v, None), inputs)


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
