"""Verdicts on few rows and small groups, on vectors, and labels of whole images."""

import pytest
import torch
from torch.distributions import MultivariateNormal, Normal

import fcal


def normal(n):
    return Normal(torch.zeros(n), torch.ones(n))


@pytest.mark.parametrize("n", [2, 3, 5, 10, 20])
def test_few_calibrated_rows_are_rarely_called_otherwise(n):
    # 5 % of 300 data sets is 15; more than 30 come in fewer than 1e-3 of seeds
    generator = torch.Generator().manual_seed(n)
    words = [fcal.evaluate(normal(n), torch.randn(n, generator=generator)).verdict for _ in range(300)]
    assert sum(word != "calibrated" for word in words) <= 30


def test_small_groups_together_give_few_alarms():
    # a family of 40 groups alarms in at most 5 % of data sets: of 30, more than 6 in fewer than 1e-3 of seeds
    generator = torch.Generator().manual_seed(0)
    group = torch.arange(400) % 40
    alarms = 0
    for _ in range(30):
        report = fcal.evaluate(normal(400), torch.randn(400, generator=generator), group=group)
        alarms += any(part.verdict != "calibrated" for part in report.groups.values())
    assert alarms <= 6


def test_few_rows_are_not_conclusive():
    report = fcal.evaluate(normal(20), torch.randn(20, generator=torch.Generator().manual_seed(0)))
    assert not report.conclusive
    assert report.word == "calibrated?"
    assert fcal.evaluate(normal(10_000), torch.randn(10_000, generator=torch.Generator().manual_seed(0))).conclusive


def test_wrong_correlation_of_vectors_is_not_calibrated():
    e = torch.randn(20_000, 2, generator=torch.Generator().manual_seed(0))
    y = torch.stack([e[:, 0], 0.9 * e[:, 0] + 0.19**0.5 * e[:, 1]], -1)
    pred = MultivariateNormal(torch.zeros(20_000, 2), torch.eye(2))
    assert fcal.evaluate(pred, e).verdict == "calibrated"
    report = fcal.evaluate(pred, y)
    assert report.verdict == "wrong shape"
    assert "correlations" in report.reason


def test_labels_may_be_one_per_image():
    y = torch.randn(6, 1, 4, 5, generator=torch.Generator().manual_seed(0))
    pred = Normal(torch.zeros_like(y), torch.ones_like(y))
    whole = torch.arange(6).reshape(6, 1, 1, 1).expand(y.shape)
    expected = fcal.evaluate(pred, y, cluster=whole, group=whole % 2)
    for labels in (torch.arange(6), torch.arange(6).reshape(6, 1, 1, 1)):
        found = fcal.evaluate(pred, y, cluster=labels, group=labels % 2)
        assert found.as_dict() == expected.as_dict()


def test_clusters_with_large_numbers_are_counted_about_right():
    cluster = torch.arange(205).repeat_interleave(5) * 7919 + 10**9
    y = torch.randn(1025, generator=torch.Generator().manual_seed(0))
    report = fcal.evaluate(normal(1025), y, cluster=cluster)
    assert report.clusters == pytest.approx(205, abs=12)


def test_rounded_targets_are_told_of():
    y = torch.randn(5000, generator=torch.Generator().manual_seed(0)).round()
    assert any("rounded" in text for text in fcal.evaluate(normal(5000), y).warnings)


@pytest.mark.parametrize("scale", [1e-3, 1e-6])
def test_miscalibration_of_far_too_wide_predictions_does_not_saturate(scale):
    y = scale * torch.randn(20_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    pred = Normal(torch.zeros(20_000, dtype=torch.float64), torch.ones(20_000, dtype=torch.float64))
    split = fcal.evaluate(pred, y).nll_split
    # KL(N(0, s^2) || N(0, 1)) = (s^2 - 1) / 2 - log s
    expected = 0.5 * (scale**2 - 1) - torch.log(torch.tensor(scale, dtype=torch.float64)).item()
    assert split.miscalibration == pytest.approx(expected, abs=0.02)
