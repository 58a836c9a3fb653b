"""How much better a model of all rows is: told by disagreement, against least squares whose errors are known."""

import pytest
import torch
from crossfitting.lines import full_crossfit
from torch.distributions import Gamma, Normal
from torch.utils.data import TensorDataset

from fcal._datasets import get_batch
from fcal.crossfitting import error_ratio


def regression(seed, rows=400, columns=20, noise=1.0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, columns, dtype=torch.float64, generator=generator)
    return x, x.sum(1, keepdim=True) + noise * torch.randn(rows, 1, dtype=torch.float64, generator=generator)


def fit(rows):
    x, y = (torch.stack(column) for column in zip(*(rows[i] for i in range(len(rows))), strict=True))
    weights = torch.linalg.lstsq(x, y).solution
    return lambda given: Normal(given @ weights, torch.ones(len(given), 1, dtype=torch.float64))


@pytest.mark.parametrize("folds", [3, 6])
def test_part_of_the_truth_that_least_squares_has(folds):
    """Mean of 20 draws: 1 / (k - 1) of it, as the delete-a-group jackknife says."""
    found, truth = [], []
    for seed in range(20):
        one = full_crossfit(fit, TensorDataset(*regression(seed)), folds=folds)
        x, y = regression(1000 + seed, rows=4000)
        full = (y - one.full(x).mean).square().mean()
        parts = torch.stack([(y - model(x).mean).square().mean() for model in one.without]).mean()
        found.append(one.error_ratio**2)
        truth.append((full / parts).item())
    mean, true = sum(found) / 20, sum(truth) / 20
    assert (1 - mean) * (folds - 1) == pytest.approx(1 - true, rel=0.3)


def test_calibrated_uses_errors_that_much_smaller():
    data = TensorDataset(*regression(3))
    plain, corrected = (full_crossfit(fit, data, folds=3, correct=correct) for correct in (False, True))
    x = regression(4)[0]
    ratio = corrected.calibrated()(x).stddev / plain.calibrated()(x).stddev
    assert plain.error_ratio == 1
    torch.testing.assert_close(ratio, torch.full_like(ratio, corrected.error_ratio))


def test_scales_are_fitted_to_errors_that_much_smaller():
    corrected = full_crossfit(fit, TensorDataset(*regression(3)), folds=3)

    def rms(rows, start):
        batch = get_batch(rows, list(range(len(rows))))
        sigma = (batch["target"] - batch["center"]).square().mean().sqrt()
        return lambda given: Normal(start(given).mean, sigma.expand(len(given), 1))

    errors = (corrected.target - corrected.held_out.mean).square().mean().sqrt()
    found = corrected.with_scales(rms).full(regression(4)[0]).stddev[0, 0]
    torch.testing.assert_close(found, corrected.error_ratio * errors)


def test_models_that_know_their_rows_by_heart_are_not_corrected():
    """They agree on what they have seen, whatever they are worth elsewhere: too little is taken away, not too much."""
    x, y = regression(0, rows=40)

    def memoriser(rows):
        seen = {tuple(rows[i][0].tolist()): rows[i][1] for i in range(len(rows))}
        unknown = torch.zeros(1, dtype=torch.float64)
        return lambda given: Normal(torch.stack([seen.get(tuple(one.tolist()), unknown) for one in given]), 1.0)

    assert full_crossfit(memoriser, TensorDataset(x, y), folds=4).error_ratio == 1


def test_of_two_folds_nothing_is_known():
    assert full_crossfit(fit, TensorDataset(*regression(0)), folds=2).error_ratio == 1


def test_missing_targets_do_not_count():
    held_out = Normal(torch.tensor([0.0, 0.0, 1.0]), 1.0)
    others = [Normal(torch.full((3,), mean), 1.0) for mean in (0.0, 0.0, 1.0)]
    fold, target = torch.tensor([0, 1, 2]), torch.tensor([2.0, torch.nan, 2.0])
    found = error_ratio(held_out, target, fold, others)
    assert found**2 == pytest.approx(1 - 0.5 / 3 / (4 + 1))
    mask = torch.tensor([True, False, True])
    assert error_ratio(held_out, target.nan_to_num(), fold, others, valid_mask=mask) == pytest.approx(found)


def test_a_family_without_location_is_left_alone():
    pred = Gamma(torch.ones(3), torch.ones(3))
    assert error_ratio(pred, torch.ones(3), torch.arange(3), [pred] * 3) == 1.0
