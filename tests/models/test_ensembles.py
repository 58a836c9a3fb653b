"""Mixtures of networks against brute force, and stacked networks against a loop of plain ones."""

import numpy as np
import pytest
import scipy.stats
import torch
from torch import nn
from torch.distributions import Laplace, MultivariateNormal, Normal
from torch.testing import assert_close

import fcal
from fcal.models import ConvNet, Ensemble, mixture
from fcal.models.ensembles import StackedMLP

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


# -- stacked networks

MEMBERS, ROWS, FEATURES = 4, 7, 3


def stacked(hidden=(5, 6)):
    return StackedMLP(MEMBERS, FEATURES, hidden, generator=torch.Generator().manual_seed(0)).double()


def rows():
    return torch.randn(MEMBERS, ROWS, FEATURES, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def loss_of(mean, sigma, target):
    return (sigma.log() + 0.5 * ((target - mean) / sigma).square()).mean()


@pytest.mark.parametrize("hidden", [(50,), (5, 6), ()])
def test_stacked_predicts_as_plain_networks_do(hidden):
    networks, x = stacked(hidden), rows()
    pred = networks(x)
    for member in range(MEMBERS):
        mean, spread = networks.alone(member).double()(x[member]).unbind(-1)
        assert_close(pred.loc[member], mean)
        assert_close(pred.scale[member], nn.functional.softplus(spread) + networks.floor)


def test_stacked_has_the_gradients_of_plain_networks():
    networks, x = stacked(), rows()
    target = x.sum(-1)
    pred = networks(x)
    sum(loss_of(pred.loc[i], pred.scale[i], target[i]) for i in range(MEMBERS)).backward()
    gradients = networks.theta.grad
    for member in range(MEMBERS):
        plain = networks.alone(member).double()
        mean, spread = plain(x[member]).unbind(-1)
        loss_of(mean, nn.functional.softplus(spread) + networks.floor, target[member]).backward()
        linear = [layer for layer in plain if isinstance(layer, nn.Linear)]
        expected = torch.cat([part.flatten() for layer in linear for part in (layer.weight.grad.T, layer.bias.grad)])
        assert_close(gradients[member], expected)


def test_stacked_starts_as_linear_layers_do_and_with_sigma_one():
    networks = StackedMLP(200, 16, (50,))
    weight, bias = networks.layers()[0]
    for part in (weight, bias):  # uniform within 1 / sqrt(16); its sd 0.25 / sqrt(3), here to 5 standard errors
        assert float(part.detach().abs().max()) <= 0.25
        assert_close(float(part.detach().std()), 0.25 / 3**0.5, rtol=0.05, atol=0.0)
    with torch.no_grad():
        assert_close(nn.functional.softplus(networks.theta[:, -1]) + networks.floor, torch.ones(200))


def test_stacked_is_repeatable_by_its_generator():
    one, two = (StackedMLP(2, 3, (4,), generator=torch.Generator().manual_seed(5)).theta for _ in range(2))
    assert_close(one, two, rtol=0, atol=0)


def test_selected_networks_are_copies():
    networks = stacked()
    copy = networks.select(torch.tensor([2]))
    with torch.no_grad():
        copy.theta.zero_()
    assert float(networks.theta[2].detach().abs().sum()) > 0


def test_stacked_refuses_no_members():
    with pytest.raises(ValueError, match="expected `members` >= 1, got 0"):
        StackedMLP(0, 3, (4,))
