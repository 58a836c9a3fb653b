"""Tests of fcal.metrics.detection.energy_scores."""

import math

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from fcal.metrics.detection import energy_score


def covariance(seed, smallest=0.1, largest=30.0):
    generator = np.random.default_rng(seed)
    axes = np.linalg.qr(generator.standard_normal((4, 4)))[0]
    return axes @ np.diag(np.geomspace(smallest, largest, 4)) @ axes.T


def scores(box, spread, target):
    rows = (torch.as_tensor(np.array(value, dtype=np.float64))[None] for value in (box, spread, target))
    return float(energy_score(*rows)[0])


@pytest.mark.parametrize("seed", [0, 1])
def test_energy_score_is_that_of_a_million_antithetic_draws(seed):
    """Within 5 standard errors of the simulation: a false alarm in 1 of a million runs."""
    spread, error = covariance(seed), np.array([3.0, -1.0, 0.5, 2.0])
    generator = np.random.default_rng(10 + seed)
    root, draws = np.linalg.cholesky(spread), generator.standard_normal((500_000, 4))
    other = generator.standard_normal((500_000, 4))
    to_target = 0.5 * sum(np.linalg.norm(sign * draws @ root.T - error, axis=1) for sign in (1, -1))
    values = to_target - 0.5 * np.linalg.norm((draws - other) @ root.T, axis=1)
    standard_error = values.std() / math.sqrt(len(values))
    assert standard_error < 4e-3
    assert abs(scores(np.zeros(4), spread, error) - values.mean()) < 5 * standard_error


def test_energy_score_of_an_isotropic_box_at_the_truth_has_a_closed_form():
    """The mean length of a standard normal vector in 4 dimensions is sqrt(2) Gamma(5/2) / Gamma(2)."""
    length = math.sqrt(2) * math.gamma(2.5) / math.gamma(2)
    assert_allclose(scores(np.zeros(4), 9 * np.eye(4), np.zeros(4)), 3 * length * (1 - math.sqrt(0.5)), rtol=1e-9)


@pytest.mark.parametrize("error", [0.0, 0.3, 2.0, 50.0])
def test_energy_score_of_one_uncertain_corner_is_the_crps_of_a_normal_distribution(error):
    """Gneiting and Raftery (2007), equation 21, with sigma 2."""
    z = error / 2
    crps = 2 * (
        z * math.erf(z / math.sqrt(2)) + 2 * math.exp(-z * z / 2) / math.sqrt(2 * math.pi) - 1 / math.sqrt(math.pi)
    )
    spread, target = np.zeros((4, 4)), np.zeros(4)
    spread[2, 2], target[2] = 4.0, error
    assert_allclose(scores(np.zeros(4), spread, target), crps, rtol=1e-8, atol=1e-9)


def test_energy_score_without_error_bars_is_the_distance():
    assert_allclose(scores([1.0, 2.0, 3.0, 4.0], np.zeros((4, 4)), [1.0, 5.0, 7.0, 4.0]), 5.0, rtol=1e-9)
    assert scores(np.ones(4), np.zeros((4, 4)), np.ones(4)) == 0.0


@pytest.mark.parametrize("factor", [1e-6, 1e6])
def test_energy_score_scales_with_the_unit(factor):
    spread, error = covariance(2, 1e-6, 1e4), np.array([3.0, -1.0, 0.5, 2.0])
    expected = factor * scores(np.zeros(4), spread, error)
    assert_allclose(scores(np.zeros(4), factor**2 * spread, factor * error), expected, rtol=1e-9)


def test_energy_score_of_the_true_covariance_is_the_best_on_average():
    generator = torch.Generator().manual_seed(0)
    spread = torch.from_numpy(covariance(5))
    errors = torch.randn(4000, 4, generator=generator, dtype=torch.float64) @ torch.linalg.cholesky(spread).T
    means = {
        factor: float(energy_score(torch.zeros(4000, 4), factor * spread.expand(4000, 4, 4), errors).mean())
        for factor in (0.25, 1.0, 4.0)
    }
    assert means[1.0] < min(means[0.25], means[4.0]) - 0.05


def test_energy_score_of_no_boxes_is_empty():
    assert energy_score(torch.zeros(0, 4), torch.zeros(0, 4, 4), torch.zeros(0, 4)).shape == (0,)


def test_energy_score_rejects_shapes_and_negative_variances():
    with pytest.raises(ValueError, match=r"of shapes \(n, 4\), \(n, 4, 4\) and \(n, 4\), got"):
        energy_score(torch.zeros(2, 4), torch.zeros(2, 4), torch.zeros(2, 4))
    with pytest.raises(ValueError, match=r"expected `covariances` with eigenvalues >= 0, got -1 \(4 of 4 values\)"):
        energy_score(torch.zeros(1, 4), -torch.eye(4)[None], torch.zeros(1, 4))
