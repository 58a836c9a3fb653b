"""Tests of fcal.metrics.detection.score_calibration."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from fcal.metrics.detection import score_calibration


def plain_ece(scores, right, bins):
    """From the definition, one bin after the other."""
    error = 0.0
    for b in range(bins):
        inside = [k for k, s in enumerate(scores) if b / bins <= s < (b + 1) / bins or (b == bins - 1 and s == 1)]
        if inside:
            gap = np.mean([scores[k] for k in inside]) - np.mean([right[k] for k in inside])
            error += len(inside) / len(scores) * abs(gap)
    return error


def draws(n, seed, power=1.0):
    generator = np.random.default_rng(seed)
    scores = generator.random(n)
    return scores, generator.random(n) < scores**power


@pytest.mark.parametrize("bins", [1, 7, 20])
def test_ece_of_scores_is_that_of_its_definition(bins):
    scores, right = draws(300, 0, power=2)
    scores[:2] = 0.0, 1.0
    report = score_calibration(torch.from_numpy(scores), torch.from_numpy(right), bins=bins)
    assert_allclose(report.ece.value, plain_ece(scores, right, bins), rtol=1e-12)
    assert sum(report.count) == 300


def test_floor_of_scores_is_that_of_simulated_outcomes():
    """Mean and quantile of 2000 simulated ECEs, to 5 %; their own noise is about 1 %."""
    scores = draws(200, 1)[0] ** 3
    generator = np.random.default_rng(2)
    simulated = [plain_ece(scores, generator.random(200) < scores, 10) for _ in range(2000)]
    floor = score_calibration(torch.from_numpy(scores), torch.from_numpy(scores > 0.5), bins=10).ece_floor
    assert_allclose(floor.expected, np.mean(simulated), rtol=0.05)
    assert_allclose(floor.q95, np.quantile(simulated, 0.95), rtol=0.05)


def test_scores_that_are_true_stay_below_their_floor_and_others_do_not():
    """A calibrated model exceeds the 95 % quantile in 1 of 20 data sets; of 40, more than 6 do with probability 1 %."""
    exceeded = 0
    for seed in range(40):
        report = score_calibration(*map(torch.from_numpy, draws(500, seed)))
        exceeded += report.ece.value > report.ece_floor.q95
    assert exceeded <= 6
    promising = score_calibration(*map(torch.from_numpy, draws(500, 0, power=3)))
    assert promising.ece.low > 0
    assert promising.ece.value > 3 * promising.ece_floor.q95
    assert promising.mean_score > promising.right + 0.1


def test_interval_of_scores_widens_where_detections_of_an_image_are_alike():
    scores, right = draws(40, 3, power=3)
    repeated = torch.from_numpy(np.repeat(scores, 25)), torch.from_numpy(np.repeat(right, 25))
    alone = score_calibration(*repeated).ece
    together = score_calibration(*repeated, image=torch.arange(40).repeat_interleave(25)).ece
    assert_allclose(together.value, alone.value, rtol=1e-12)
    assert together.high - together.value > 3 * (alone.high - alone.value)


def test_scores_of_many_images_are_resampled_in_bounded_pieces():
    scores, right = draws(9000, 4)
    report = score_calibration(torch.from_numpy(scores), torch.from_numpy(right), image=torch.arange(9000))
    assert report.images == 9000
    assert 0 <= report.ece.low <= report.ece.value <= report.ece.high < 0.05


@pytest.mark.parametrize(
    ("scores", "right", "error", "message"),
    [
        ([], [], ValueError, "expected `scores` of at least 1 detection, got 0"),
        ([0.5, 1.5], [True, False], ValueError, r"expected `scores` within \[0, 1\], got 1.5 \(1 of 2 values\)"),
        ([0.5], [True, False], ValueError, r"expected `right` of shape \(n,\) like `scores`, got \(2,\)"),
        ([0.5], [1.0], TypeError, "expected `right` of dtype torch.bool, got torch.float32"),
    ],
)
def test_score_calibration_rejects(scores, right, error, message):
    right = torch.tensor(right, dtype=torch.bool) if not right else torch.tensor(right)
    with pytest.raises(error, match=message):
        score_calibration(torch.tensor(scores), right)
