"""Repairs of mixtures, as ensembles predict them: by their parameters, against SciPy and by invariance."""

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import torch
from torch.distributions import Categorical, Gamma, Laplace, MixtureSameFamily, Normal, StudentT

import fcal
from fcal.recalibration import Affine, Power, ScaleAndShape, Temperature

ROWS = 400


def mixture(kind=Normal, rows=ROWS, seed=0, **options):
    """Three components with different locations and scales, and unequal weights."""
    generator = torch.Generator().manual_seed(seed)
    locs, scales, weights = torch.rand(3, rows, 3, generator=generator, dtype=torch.float64)
    spread = {"loc": 4 * locs, "scale": 0.2 + scales}
    component = kind(**spread, **{name: torch.full_like(locs, value) for name, value in options.items()})
    return MixtureSameFamily(Categorical(weights + 0.1), component)


def targets(pred, factor, shift=0.0, seed=1):
    """Draws whose distance from the mean is multiplied, and moved by standard deviations."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        drawn = pred.sample()
    return pred.mean + shift * pred.stddev + factor * (drawn - pred.mean)


def test_temperature_of_a_mixture_is_the_most_likely_factor():
    pred = mixture()
    y = targets(pred, 1.7)
    weights, locs, scales = (
        t.numpy()
        for t in (pred.mixture_distribution.probs, pred.component_distribution.loc, pred.component_distribution.scale)
    )
    middle = (weights * locs).sum(1, keepdims=True)

    def nll(log_factor):
        factor = np.exp(log_factor)
        density = weights * scipy.stats.norm.pdf(y.numpy()[:, None], middle + factor * (locs - middle), factor * scales)
        return -np.log(density.sum(1)).mean()

    best = scipy.optimize.minimize_scalar(nll, bounds=(-2, 2), method="bounded", options={"xatol": 1e-10})
    np.testing.assert_allclose(float(Temperature().fit(pred, y).factor.log()), best.x, atol=1e-6)


@pytest.mark.parametrize(("kind", "options"), [(Normal, {}), (Laplace, {}), (StudentT, {"df": 5.0})])
def test_repaired_mixture_keeps_its_mean_and_its_shape(kind, options):
    pred = mixture(kind, **options)
    repair = Temperature().fit(pred, targets(pred, 0.6))
    repaired = repair.transform(pred)
    factor = repair.factor.item()
    assert isinstance(repaired, MixtureSameFamily)
    torch.testing.assert_close(repaired.mean, pred.mean)
    torch.testing.assert_close(repaired.stddev, factor * pred.stddev)
    y = pred.mean + torch.linspace(-3, 3, ROWS, dtype=torch.float64)
    torch.testing.assert_close(
        fcal.standardize(repaired, pred.mean + factor * (y - pred.mean)), fcal.standardize(pred, y)
    )


def test_temperature_of_a_mixture_recovers_a_known_factor():
    """With 40,000 rows the standard error of the factor is below 0.005: a false alarm in 1e8."""
    pred = mixture(rows=40_000)
    assert abs(float(Temperature().fit(pred, targets(pred, 1.7)).factor) - 1.7) < 0.03


def test_affine_of_a_mixture_recovers_shift_and_factor():
    pred = mixture(rows=40_000)
    repair = Affine().fit(pred, targets(pred, 1.4, shift=0.5))
    assert abs(float(repair.factor) - 1.4) < 0.03
    assert abs(float(repair.shift) - 0.5) < 0.03
    torch.testing.assert_close(
        repair.transform(pred).mean, pred.mean + float(repair.shift) * pred.stddev, rtol=1e-6, atol=1e-6
    )


def test_power_of_a_mixture_acts_on_the_scale_of_all_components():
    pred = mixture(rows=40_000)
    repair = Power().fit(pred, targets(pred, pred.stddev))  # errors are as the square of the predicted scale
    tensors = repair._fitted_tensors()
    assert abs(float(tensors["exponent"]) - 2) < 0.1
    expected = tensors["factor"] * (pred.stddev / tensors["unit"]) ** (tensors["exponent"] - 1)
    torch.testing.assert_close(repair.transform(pred).stddev, expected * pred.stddev)


def test_equal_components_are_repaired_like_one():
    one = Normal(torch.zeros(ROWS, dtype=torch.float64), torch.ones(ROWS, dtype=torch.float64))
    y = 2 * torch.randn(ROWS, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    both = fcal.models.mixture([one, one])
    for kind in (Temperature, Affine, ScaleAndShape):
        single, mixed = (kind().fit(pred, y).transform(pred) for pred in (one, both))
        if kind is not ScaleAndShape:  # it cuts off large residuals of normal predictions alone
            torch.testing.assert_close(mixed.stddev, single.stddev, rtol=1e-5, atol=1e-5)
        assert bool(((mixed.stddev / single.stddev).log().abs() < 0.1).all())


def test_mixtures_of_positive_families_have_their_residuals_rescaled():
    pred = MixtureSameFamily(Categorical(torch.ones(ROWS, 2)), Gamma(torch.full((ROWS, 2), 3.0), torch.ones(ROWS, 2)))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        y = pred.sample() * 1.3
    repaired = Temperature().fit(pred, y).transform(pred)
    assert bool((repaired.icdf(torch.full((ROWS,), 0.001)) > 0).all())


def test_one_wild_row_does_not_move_the_factor_of_a_mixture():
    pred = mixture(rows=1000)
    y = targets(pred, 1.2)
    spoilt = y.clone()
    spoilt[3] += 1e5
    clean, wild = (Temperature().fit(pred, target) for target in (y, spoilt))
    assert wild.wild.count == 1
    assert abs(float(wild.factor / clean.factor) - 1) < 0.003
