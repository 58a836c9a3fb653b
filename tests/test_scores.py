"""Scores against SciPy and quadrature."""

import math

import pytest
import torch
from references import REFERENCES, crps_by_quadrature
from scipy import stats
from torch.distributions import Independent, Laplace, MultivariateNormal, Normal

import fcal

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
}
# A window outside of which the CDF is 0 or 1 to 1e-12, or which ends with the support.
WINDOWS = {
    "Normal": (-13.0, 14.0),
    "Laplace": (-50.0, 50.0),
    "Logistic": (-50.0, 50.0),
    "LogNormal": (0.0, 400.0),
    "Exponential": (0.0, 25.0),
    "HalfNormal": (0.0, 12.0),
    "Uniform": (0.0, 1.7),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_nll_is_scipys_negative_log_density(name):
    reference = REFERENCES[name]
    law = reference.law(torch.float64)
    torch.manual_seed(0)
    y = law.sample((30,))
    expected = -SCIPY[name](*reference.parameters).logpdf(y.numpy())
    torch.testing.assert_close(fcal.nll(law, y), torch.from_numpy(expected), rtol=1e-9, atol=1e-12)


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


@pytest.mark.parametrize("name", WINDOWS)
def test_crps_is_the_integral_that_defines_it(name):
    reference = REFERENCES[name]
    law, scipy_law = reference.law(torch.float64), SCIPY[name](*reference.parameters)
    inside = scipy_law.ppf([0.001, 0.3, 0.9, 0.999]).tolist()
    beyond = [] if name == "LogNormal" else [-2.0, 6.0]
    y = torch.tensor(inside + beyond, dtype=torch.float64)
    law._validate_args = False
    found = fcal.crps(law, y)
    expected = [crps_by_quadrature(lambda x: scipy_law.cdf(float(x)), v, *WINDOWS[name]) for v in y.tolist()]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", WINDOWS)
def test_crps_passes_gradcheck(name):
    reference = REFERENCES[name]
    y = torch.tensor([0.41, 0.83], dtype=torch.float64, requires_grad=True)
    parameters = [torch.full((2,), p, dtype=torch.float64, requires_grad=True) for p in reference.parameters]
    assert torch.autograd.gradcheck(lambda v, *a: fcal.crps(reference.kind(*a), v), (y, *parameters))


def test_crps_without_a_closed_form_is_refused():
    with pytest.raises(TypeError, match="closed-form CRPS, got MultivariateNormal"):
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
