"""How much better a model of all rows is: told by disagreement, against least squares whose errors are known."""

import pytest
import torch
from torch.distributions import Gamma, Normal
from torch.utils.data import TensorDataset

import fcal
from fcal.crossfitting import error_ratio


def regression(seed, rows=400, columns=20, noise=1.0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, columns, dtype=torch.float64, generator=generator)
    return x, x.sum(1, keepdim=True) + noise * torch.randn(rows, 1, dtype=torch.float64, generator=generator)


def fit(rows):
    x, y = (torch.stack(column) for column in zip(*(rows[i] for i in range(len(rows))), strict=True))
    weights = torch.linalg.lstsq(x, y).solution
    return lambda given: Normal(given @ weights, torch.ones(len(given), 1, dtype=torch.float64))


@pytest.mark.parametrize("folds", [2, 3, 6])
def test_part_of_the_truth_that_least_squares_has(folds):
    """Mean of 20 draws: all of it for two folds, 1 / (k - 1) for k, as the delete-a-group jackknife says."""
    found, truth = [], []
    for seed in range(20):
        one = fcal.crossfit(fit, TensorDataset(*regression(seed)), folds=folds)
        x, y = regression(1000 + seed, rows=4000)
        full = (y - one.full(x).mean).square().mean()
        parts = torch.stack([(y - model(x).mean).square().mean() for model in one.without]).mean()
        found.append(one.error_ratio**2)
        truth.append((full / parts).item())
    mean, true = sum(found) / 20, sum(truth) / 20
    assert (1 - mean) * (folds - 1) == pytest.approx(1 - true, rel=0.3)


def test_calibrated_uses_errors_that_much_smaller():
    data = TensorDataset(*regression(3))
    plain, corrected = (fcal.crossfit(fit, data, folds=3, correct=correct) for correct in (False, True))
    x = regression(4)[0]
    ratio = corrected.calibrated()(x).stddev / plain.calibrated()(x).stddev
    assert plain.error_ratio == 1
    torch.testing.assert_close(ratio, torch.full_like(ratio, corrected.error_ratio))


def test_scales_are_fitted_to_errors_that_much_smaller():
    corrected = fcal.crossfit(fit, TensorDataset(*regression(3)), folds=3)

    def rms(rows, start):
        batch = rows.__getitems__(list(range(len(rows))))
        sigma = (batch["target"] - batch["center"]).square().mean().sqrt()
        return lambda given: Normal(start(given).mean, sigma.expand(len(given), 1))

    errors = (corrected.target - corrected.held_out.mean).square().mean().sqrt()
    found = corrected.with_scales(rms).full(regression(4)[0]).stddev[0, 0]
    torch.testing.assert_close(found, corrected.error_ratio * errors)


def test_models_that_agree_need_no_correction():
    pred = Normal(torch.zeros(4), 1.0)
    assert error_ratio(pred, torch.ones(4), [pred, pred]) == 1.0


def test_missing_targets_do_not_count():
    held_out, other = Normal(torch.zeros(3), 1.0), Normal(torch.ones(3), 1.0)
    whole = error_ratio(held_out, torch.tensor([1.0, torch.nan, 2.0]), [held_out, other])
    part = error_ratio(
        Normal(torch.zeros(2), 1.0), torch.tensor([1.0, 2.0]), [Normal(torch.zeros(2), 1.0), Normal(torch.ones(2), 1.0)]
    )
    assert whole == pytest.approx(part)


def test_a_family_without_location_is_left_alone():
    pred = Gamma(torch.ones(3), torch.ones(3))
    assert error_ratio(pred, torch.ones(3), [pred, pred]) == 1.0
