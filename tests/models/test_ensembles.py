"""Mixtures of several networks: likelihood, moments and CRPS by brute force."""

import numpy as np
import pytest
import scipy.stats
import torch
from torch.distributions import Laplace, MultivariateNormal, Normal

import fcal
from fcal.models import ConvNet, Ensemble, mixture

LOC = torch.tensor([[0.0, 1.0], [2.0, -1.0], [0.5, 0.0]], dtype=torch.float64)  # member, target
SCALE = torch.tensor([[1.0, 0.5], [0.3, 2.0], [1.5, 1.0]], dtype=torch.float64)
TARGET = torch.tensor([0.7, -2.0], dtype=torch.float64)


def members():
    return [Normal(loc, scale) for loc, scale in zip(LOC, SCALE, strict=True)]


def test_density_is_the_mean_of_the_members():
    expected = np.log(scipy.stats.norm.pdf(TARGET, LOC, SCALE).mean(0))
    np.testing.assert_allclose(mixture(members()).log_prob(TARGET), expected, rtol=1e-12)


def test_residual_is_the_normal_quantile_of_the_mean_cdf():
    expected = scipy.stats.norm.ppf(scipy.stats.norm.cdf(TARGET, LOC, SCALE).mean(0))
    np.testing.assert_allclose(fcal.standardize(mixture(members()), TARGET), expected, rtol=1e-9)


def test_crps_is_the_integral():
    grid = np.linspace(-15, 15, 300_001)
    for i, y in enumerate(TARGET.tolist()):
        cdf = scipy.stats.norm.cdf(grid[:, None], LOC[:, i], SCALE[:, i]).mean(1)
        expected = np.trapezoid((cdf - (grid >= y)) ** 2, grid)
        found = fcal.crps(mixture([Normal(m[i], s[i]) for m, s in zip(LOC, SCALE, strict=True)]), TARGET[i])
        assert found.item() == pytest.approx(expected, rel=1e-4)


def test_ensemble_is_the_mixture_of_what_its_members_say():
    torch.manual_seed(0)
    images = torch.rand(4, 3, 16, 16)
    networks = [ConvNet(size=16, width=4) for _ in range(3)]
    found = Ensemble(networks)(images)
    means = torch.stack([network(images).mean for network in networks])
    torch.testing.assert_close(found.mean, means.mean(0))
    spread = torch.stack([network(images).variance for network in networks]).mean(0) + means.var(0, correction=0)
    torch.testing.assert_close(found.variance, spread)


def test_ensemble_trains_and_is_evaluated():
    pred = mixture([Laplace(torch.zeros(50), 1.0), Laplace(torch.ones(50), 2.0)])
    report = fcal.evaluate(pred, pred.sample())
    assert report.n == 50


@pytest.mark.parametrize(
    ("preds", "message"),
    [
        ([Normal(torch.zeros(2), 1.0), Laplace(torch.zeros(2), 1.0)], "expected `preds` of one family and shape"),
        ([Normal(torch.zeros(2), 1.0), Normal(torch.zeros(3), 1.0)], "expected `preds` of one family and shape"),
        ([MultivariateNormal(torch.zeros(2), torch.eye(2))], "expected `preds` of a scalar family"),
    ],
)
def test_refuses(preds, message):
    with pytest.raises(ValueError, match=message):
        mixture(preds)


def test_refuses_no_members():
    with pytest.raises(ValueError, match="expected `members` at least one network, got none"):
        Ensemble([])
