"""The energy score against loops over its definition, and its limit for scalars, the CRPS."""

import itertools

import numpy as np
import pytest
import torch
from fixed_draws import FixedDraws, learn
from torch.distributions import Independent, Laplace, MultivariateNormal, Normal

import fcal
from fcal.losses import EnergyLoss, baselines


@pytest.fixture(autouse=True)
def _family():
    learn()


def batch(*shape):
    generator = torch.Generator().manual_seed(0)
    loc, noise, y = torch.randn(3, *shape, dtype=torch.float64, generator=generator)
    scale = torch.rand(shape, dtype=torch.float64, generator=generator) + 0.5
    return loc.requires_grad_(), scale.requires_grad_(), noise, y


def by_loops(drawn, y):
    """Score of every row from its draws. Shapes ``(m, n, d)`` and ``(n, d)``."""
    scores = []
    for i in range(len(y)):
        x = drawn[:, i]
        pairs = [np.linalg.norm(a - b) for a, b in itertools.permutations(x, 2)]
        scores.append(np.mean([np.linalg.norm(a - y[i]) for a in x]) - 0.5 * np.mean(pairs))
    return np.array(scores)


def test_vectors_score_by_the_definition(monkeypatch):
    monkeypatch.setattr(baselines, "_LARGEST_TABLE", 100)  # several chunks
    loc, scale, noise, y = batch(20, 3)
    pred = Independent(FixedDraws(loc, scale, noise), 1)
    drawn = pred.base_dist.rsample((4,)).detach().numpy()
    weight = torch.rand(20, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected = by_loops(drawn, y.numpy())
    assert EnergyLoss(draws=4)(pred, y).item() == pytest.approx(expected.mean(), rel=1e-12)
    weighted = np.average(expected, weights=weight)
    assert EnergyLoss(draws=4)(pred, y, weight=weight).item() == pytest.approx(weighted, rel=1e-12)
    wide = weight.unsqueeze(-1).expand(20, 3)
    assert EnergyLoss(draws=4)(pred, y, weight=wide).item() == pytest.approx(weighted, rel=1e-12)


def test_scalars_are_vectors_of_length_one():
    loc, scale, noise, y = batch(5, 4)
    drawn = FixedDraws(loc, scale, noise).rsample((3,)).detach().reshape(3, 20, 1).numpy()
    found = EnergyLoss(draws=3)(FixedDraws(loc, scale, noise), y).item()
    assert found == pytest.approx(by_loops(drawn, y.reshape(20, 1).numpy()).mean(), rel=1e-12)


def test_missing_coordinates_are_left_out_of_independent_rows():
    loc, scale, noise, y = batch(20, 3)
    drawn = FixedDraws(loc, scale, noise).rsample((4,)).detach().numpy()
    y[:5, 1] = torch.nan
    y[5] = torch.nan
    rows = [by_loops(drawn[:, i : i + 1, [0, 2]], y[i : i + 1, [0, 2]].numpy()) for i in range(5)]
    rows += [by_loops(drawn[:, 6:], y[6:].numpy())]
    found = EnergyLoss(draws=4)(Independent(FixedDraws(loc, scale, noise), 1), y)
    assert found.item() == pytest.approx(np.concatenate(rows).mean(), rel=1e-12)


def test_gradient_is_that_of_differences():
    loc, scale, noise, y = batch(6, 2)
    y.requires_grad_()
    weight = torch.linspace(0.5, 2.0, 6, dtype=torch.float64)

    def loss(a, b, target):
        return EnergyLoss(draws=3)(Independent(FixedDraws(a, b, noise), 1), target, weight=weight)

    assert torch.autograd.gradcheck(loss, (loc, scale, y))


def test_certain_prediction_has_a_gradient_without_nan():
    scale = torch.full((3,), 1e-300, dtype=torch.float64, requires_grad=True)
    noise = torch.zeros(3, dtype=torch.float64)
    EnergyLoss()(FixedDraws(noise, scale, noise), torch.zeros(3).double()).backward()
    assert not scale.grad.any()


@pytest.mark.parametrize("family", [Normal, Laplace])
def test_scalar_scores_converge_to_the_crps(family):
    # Over 20 seeds the standard deviation is 0.001, so 0.006 is 6 of them, a false-alarm rate of 2e-9.
    n = 40_000
    y = torch.randn(n, generator=torch.Generator().manual_seed(0))
    pred = family(torch.full((n,), 0.3), torch.full((n,), 1.5))
    found = EnergyLoss(draws=16, generator=torch.Generator().manual_seed(1))(pred, y)
    exact = fcal.crps(pred, y).mean()
    assert (found - exact).abs() < 0.006


def test_energy_score_of_vectors_depends_on_correlation():
    # Over 20 seeds the gap is 0.142 with a standard deviation of 0.003, so 0.12 is 7 of them below.
    n = 20_000
    generator = torch.Generator().manual_seed(0)
    right = torch.tensor([[1.0, 0.95], [0.95, 1.0]])
    wrong = torch.tensor([[1.0, -0.95], [-0.95, 1.0]])
    y = torch.randn(n, 2, generator=generator) @ torch.linalg.cholesky(right).mT
    scores = [
        EnergyLoss(draws=4, generator=generator)(MultivariateNormal(torch.zeros(n, 2), covariance), y)
        for covariance in (right, wrong)
    ]
    assert scores[0] + 0.12 < scores[1]


def test_one_prediction_for_many_targets_is_drawn_for_each():
    y = torch.randn(50, 2, generator=torch.Generator().manual_seed(0))
    shared = MultivariateNormal(torch.zeros(2), torch.eye(2))
    each = MultivariateNormal(torch.zeros(50, 2), torch.eye(2))
    found = [EnergyLoss(generator=torch.Generator().manual_seed(3))(pred, y) for pred in (shared, each)]
    torch.testing.assert_close(*found)


def test_weight_that_differs_within_a_row_is_refused():
    pred = Independent(Normal(torch.zeros(2, 2), torch.ones(2, 2)), 1)
    weight = torch.tensor([[1.0, 2.0], [1.0, 1.0]])
    with pytest.raises(ValueError, match="expected `weight` the same for all coordinates of a row, got 2"):
        EnergyLoss()(pred, torch.zeros(2, 2), weight=weight)


def test_bad_options_are_refused():
    with pytest.raises(ValueError, match="expected `draws` >= 2, got 1"):
        EnergyLoss(draws=1)
    with pytest.raises(TypeError, match="expected `generator` a torch.Generator, got int"):
        EnergyLoss(generator=3)
