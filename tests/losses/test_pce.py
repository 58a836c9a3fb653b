"""PCE-KDE and PCE-Sort against loops over their definitions."""

import math

import numpy as np
import pytest
import torch
from scipy import special, stats
from torch.distributions import Independent, Laplace, MultivariateNormal, Normal, Uniform

from fcal.losses import PCELoss


def batch(n=40):
    generator = torch.Generator().manual_seed(0)
    loc, y = torch.randn(2, n, dtype=torch.float64, generator=generator)
    scale = torch.rand(n, dtype=torch.float64, generator=generator) + 0.5
    return loc.requires_grad_(), scale.requires_grad_(), y


def kde(z, weight, levels, sharpness, p):
    terms = []
    for j in range(1, levels + 1):
        alpha = j / (levels + 1)
        below = sum(w * special.expit(sharpness * (alpha - value)) for w, value in zip(weight, z, strict=True))
        terms.append(abs(alpha - below / sum(weight)) ** p)
    return np.mean(terms)


def sort(z, p):
    return np.mean([abs(value - (i + 1) / (len(z) + 1)) ** p for i, value in enumerate(sorted(z))])


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize(("family", "law"), [(Normal, stats.norm), (Laplace, stats.laplace)])
def test_losses_are_their_definitions(family, law, p):
    loc, scale, y = batch()
    z = law.cdf(y, loc.detach(), scale.detach())
    found = PCELoss(levels=13, sharpness=30.0, p=p)(family(loc, scale), y).item()
    assert found == pytest.approx(kde(z, np.ones(40), 13, 30.0, p), rel=1e-10)
    assert PCELoss("sort", p=p)(family(loc, scale), y).item() == pytest.approx(sort(z, p), rel=1e-10)


def test_defaults_are_a_hundred_levels_and_a_sharpness_of_a_hundred():
    loc, scale, y = batch()
    z = stats.norm.cdf(y, loc.detach(), scale.detach())
    assert PCELoss()(Normal(loc, scale), y).item() == pytest.approx(kde(z, np.ones(40), 100, 100.0, 1), rel=1e-10)


def test_weighted_kde_is_its_definition_and_whole_weights_are_repeated_rows():
    loc, scale, y = batch()
    weight = torch.arange(40) % 4
    z = stats.norm.cdf(y, loc.detach(), scale.detach())
    found = PCELoss(levels=9, sharpness=20.0)(Normal(loc, scale), y, weight=weight)
    assert found.item() == pytest.approx(kde(z, weight.numpy(), 9, 20.0, 1), rel=1e-10)
    loc, scale, y = (part.repeat_interleave(weight) for part in (loc, scale, y))
    torch.testing.assert_close(found, PCELoss(levels=9, sharpness=20.0)(Normal(loc, scale), y))


def test_weighted_sort_has_the_levels_it_documents():
    _, _, y = batch()
    pred = Uniform(torch.full((40,), -10.0).double(), torch.full((40,), 10.0).double())
    weight = torch.rand(40, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    z = (y.numpy() + 10) / 20
    w = weight.numpy()
    v = w * w.sum() / (w**2).sum()
    total, before = 0.0, 0.0
    for i in np.argsort(z):
        total += w[i] * abs(z[i] - (before + v[i] / 2 + 0.5) / (v.sum() + 1))
        before += v[i]
    found = PCELoss("sort")(pred, y, weight=weight)
    assert found.item() == pytest.approx(total / w.sum(), rel=1e-10)
    torch.testing.assert_close(PCELoss("sort")(pred, y, weight=1e6 * weight), found)
    torch.testing.assert_close(PCELoss("sort")(pred, y, weight=torch.full((40,), 3.0)), PCELoss("sort")(pred, y))


@pytest.mark.parametrize(("kind", "p"), [("kde", 1), ("kde", 2), ("sort", 1), ("sort", 2)])
def test_gradient_is_that_of_differences(kind, p):
    loc, scale, y = batch(12)
    criterion = PCELoss(kind, levels=7, sharpness=10.0, p=p)
    weight = torch.linspace(0.5, 2.0, 12, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda a, b: criterion(Normal(a, b), y, weight=weight), (loc, scale))


@pytest.mark.parametrize("kind", ["kde", "sort"])
def test_vectors_count_by_their_coordinates(kind):
    y = torch.randn(30, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    scale = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    scalars = Normal(torch.zeros(30, 3).double(), scale.expand(30, 3))
    vector = MultivariateNormal(torch.zeros(30, 3).double(), torch.diag(scale**2))
    weight = torch.rand(30, generator=torch.Generator().manual_seed(1))
    expected = PCELoss(kind)(scalars, y, weight=weight.unsqueeze(-1).expand(30, 3))
    torch.testing.assert_close(PCELoss(kind)(vector, y, weight=weight), expected)
    torch.testing.assert_close(PCELoss(kind)(Independent(scalars, 1), y, weight=weight), expected)


@pytest.mark.parametrize("kind", ["kde", "sort"])
def test_calibrated_predictions_score_within_the_bound_of_massart_and_wrong_ones_above(kind):
    # DKW: the distribution function of n uniform values is off by more than eps with probability 2 exp(-2 n eps^2)
    # (Massart 1990), here 1e-6; smoothing with sharpness 100 moves it by at most 0.01 on average.
    n = 4000
    y = torch.randn(n, generator=torch.Generator().manual_seed(0))
    eps = math.sqrt(math.log(2e6) / (2 * n)) + 0.01
    scores = [PCELoss(kind)(Normal(torch.zeros(n), factor * torch.ones(n)), y).item() for factor in (1.0, 1 / 3, 3.0)]
    assert scores[0] < eps < min(scores[1:])


def test_mean_score_of_calibrated_predictions_is_the_documented_one():
    # 300 batches: over 20 seeds their mean varies by 2.3 %, so 12 % is 5 of that, a false-alarm rate of 2e-7.
    z = torch.rand(300, 500, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    pred = Uniform(torch.zeros(500).double(), torch.ones(500).double())
    mean = torch.stack([PCELoss("sort")(pred, row) for row in z]).mean().item()
    assert mean == pytest.approx(0.313 / math.sqrt(500), rel=0.12)


def test_bad_options_are_refused():
    with pytest.raises(ValueError, match="expected `kind` one of 'kde', 'sort', got 'sorted'"):
        PCELoss("sorted")
    with pytest.raises(ValueError, match="expected `levels` >= 1, got 0"):
        PCELoss(levels=0)
    with pytest.raises(ValueError, match="expected `sharpness` within"):
        PCELoss(sharpness=0.0)
    with pytest.raises(ValueError, match="expected `p` <= 2, got 3"):
        PCELoss(p=3)
