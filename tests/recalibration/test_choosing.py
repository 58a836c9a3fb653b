"""The automatic choice of a repair: what is chosen where the answer is known, and that spoilt rows do not turn it."""

import numpy as np
import pytest
import torch
from torch.distributions import Independent, MultivariateNormal, Normal, StudentT

import fcal
from fcal.recalibration import ScaleAndShape, choose

N = 2000


def noise(rows=N, seed=0, degrees=None):
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(rows, generator=generator, dtype=torch.float64)
    if degrees is None:
        return drawn
    return drawn / torch.randn(degrees, rows, generator=generator, dtype=torch.float64).square().mean(0).sqrt()


def predicted(rows=N, scale=1.0):
    return Normal(torch.zeros(rows, dtype=torch.float64), torch.full((rows,), scale, dtype=torch.float64))


@pytest.mark.parametrize("seed", range(5))
def test_errors_that_are_too_large_by_a_factor_keep_the_usual_method(seed):
    choice = choose(predicted(), 2 * noise(seed=seed))
    assert choice.recalibrator.method == "scale-and-shape"
    assert set(choice.candidates) == {"scale-and-shape", "temperature", "affine", "conformal", "isotonic"}
    assert choice.candidates["scale-and-shape"].difference == 0


@pytest.mark.parametrize("seed", range(5))
def test_a_bias_is_repaired_by_a_method_that_moves_the_mean(seed):
    choice = choose(predicted(), 1 + noise(seed=seed))
    assert choice.recalibrator.method == "affine"
    assert "below that of scale-and-shape" in choice.reason


def test_skewed_errors_are_repaired_by_a_map_of_both_sides():
    choice = choose(predicted(rows=5000), noise(rows=5000).exp())
    assert choice.recalibrator.method in ("conformal", "isotonic")


def test_scores_are_those_of_rows_that_were_not_fitted_to():
    """Against a plain loop over the same folds, with CRPS of the normal distribution by its definition."""
    y = 2 * noise()
    order = torch.randperm(N, generator=torch.Generator().manual_seed(0))
    scores = []
    for fold in range(5):
        judged = order[fold::5]
        factor = y[torch.tensor(sorted(set(range(N)) - set(judged.tolist())))].square().mean().sqrt().item()
        z = (y[judged] / factor).numpy()
        density, below = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi), torch.special.ndtr(torch.tensor(z)).numpy()
        scores.append(factor * (z * (2 * below - 1) + 2 * density - 1 / np.sqrt(np.pi)))
    found = choose(predicted(), y).candidates["temperature"]
    np.testing.assert_allclose(found.crps, np.concatenate(scores).mean(), rtol=1e-6)


@pytest.mark.parametrize("degrees", [None, 4])
def test_spoilt_rows_move_neither_the_choice_nor_the_coverage(degrees):
    """One row in a thousand with an error of 100 to a million sigma, 20 seeds: coverage moves by at most 0.003."""
    fresh = noise(rows=20_000, seed=999, degrees=degrees)
    for seed in range(20):
        y = 2 * noise(seed=seed, degrees=degrees)
        spoilt = y.clone()
        spoilt[torch.tensor([7, 1234])] = torch.tensor([1.0, -1.0], dtype=torch.float64) * 10 ** (2 + 4 * seed / 19)
        repairs = [choose(predicted(), target).recalibrator for target in (y, spoilt)]
        assert repairs[0].method == repairs[1].method
        clean, moved = (fcal.evaluate(repair.transform(predicted(20_000)), 2 * fresh).coverage for repair in repairs)
        assert all(abs(clean[level] - moved[level]) <= 0.003 for level in ("0.5", "0.9", "0.95"))


def test_few_rows_are_not_compared():
    choice = choose(predicted(rows=30), 2 * noise(rows=30))
    assert isinstance(choice.recalibrator, ScaleAndShape)
    assert choice.reason == "30 rows are too few to compare methods"


def test_vectors_have_a_factor():
    pred = MultivariateNormal(torch.zeros(100, 2), torch.eye(2))
    assert choose(pred, noise(200).reshape(100, 2).float()).recalibrator.method == "temperature"


def test_several_outputs_and_missing_targets_are_rows_like_others():
    y = (1 + noise()).reshape(-1, 2)
    pred = Independent(Normal(torch.zeros_like(y), torch.ones_like(y)), 1)
    holes = y.clone()
    holes[::5] = torch.nan
    choice = choose(pred, holes)
    assert choice.recalibrator.method == "affine"
    assert choice.recalibrator.transform(pred).batch_shape == pred.batch_shape


def test_heavy_tailed_predictions_are_compared_too():
    y = 2 * noise(degrees=5)
    pred = StudentT(torch.full((N,), 5.0, dtype=torch.float64), torch.zeros(N), 1.0)
    repaired = choose(pred, y).recalibrator.transform(pred)
    assert fcal.evaluate(repaired, y).verdict == "calibrated"


def test_mixtures_are_compared_too():
    y = 2 * noise(rows=200)
    pred = fcal.models.mixture([predicted(rows=200), predicted(rows=200, scale=2.0)])
    z = fcal.standardize(choose(pred, y).recalibrator.transform(pred), y)
    assert 0.9 < z.std() < 1.1


def test_targets_of_other_libraries_are_targets():
    y = 2 * noise()
    expected = ScaleAndShape().fit(predicted(), y).factor
    for values in (y.numpy(), y.tolist()):
        assert choose(predicted(), values).recalibrator.factor == expected
        assert ScaleAndShape().fit(predicted(), values).factor == expected
