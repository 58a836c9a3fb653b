"""Sparsification curves against curves that remove pixels one by one."""

import numpy as np
import pytest
import torch
from metrics.brute_force import ause
from numpy.testing import assert_allclose
from torch.distributions import Normal

import fcal
from fcal.metrics import SparsificationCurves, sparsification_curves


def maps(n=4000, seed=0, informative=True):
    generator = torch.Generator().manual_seed(seed)
    depth, raw, noise = (torch.rand(n, generator=generator, dtype=torch.float64) for _ in range(3))
    depth, sigma = 5 + 50 * depth, 0.1 + 3 * raw**2
    error = sigma if informative else sigma.flip(0)
    return depth, sigma, (depth + error * (4 * noise - 2)).clamp(min=0.1)


def removed_one_by_one(rank_by, values):
    """Mean of the values that remain after each removal of the one with the largest rank, relative to that of all."""
    ordered = values[np.argsort(-rank_by, kind="stable")]
    kept = np.arange(len(values), 0, -1)
    return ordered[::-1].cumsum()[::-1] / kept / values.mean()


def at(dropped, curve):
    """Value of the curve at the nearest number of removed pixels."""
    return curve[np.rint(np.asarray(dropped) * len(curve)).astype(int)]


@pytest.mark.parametrize("informative", [True, False])
def test_curves_are_those_of_removing_pixels_one_by_one(informative):
    depth, sigma, target = maps(informative=informative)  # 4000 pixels: every share of 0.01 is a whole number of them
    report = sparsification_curves(depth, sigma, target)
    p, s, t = (x.numpy() for x in (depth, sigma, target))
    error, ratio = np.abs(p - t), np.abs(p - t) / t
    dropped = report.rmse.curve.dropped
    assert_allclose(report.rmse.curve.by_sigma, np.sqrt(at(dropped, removed_one_by_one(s, error**2))), rtol=1e-9)
    assert_allclose(report.rmse.curve.by_error, np.sqrt(at(dropped, removed_one_by_one(error, error**2))), rtol=1e-9)
    assert_allclose(report.abs_rel.curve.by_sigma, at(dropped, removed_one_by_one(s, ratio)), rtol=1e-9)
    assert_allclose(report.abs_rel.curve.by_error, at(dropped, removed_one_by_one(ratio, ratio)), rtol=1e-9)
    assert_allclose([report.rmse.error, report.abs_rel.error], [np.sqrt((error**2).mean()), ratio.mean()])


def test_areas_are_the_mean_gaps_between_the_curves():
    depth, sigma, target = maps()
    report = sparsification_curves(depth, sigma, target)
    error, ratio = (depth - target).numpy(), ((depth - target).abs() / target).numpy()
    assert_allclose(report.rmse.ause, ause(sigma.numpy(), error), rtol=2e-3)
    by_sigma = removed_one_by_one(sigma.numpy(), ratio)[:3961]
    assert_allclose(report.abs_rel.aurg, np.mean(1 - by_sigma), rtol=2e-3)


def test_area_of_rmse_is_that_of_a_report():
    depth, sigma, target = maps(n=20_000)
    found = fcal.evaluate(Normal(depth, sigma), target).ause
    assert_allclose(found, sparsification_curves(depth, sigma, target).rmse.ause, rtol=0.02)


def test_sigma_that_ranks_like_the_error_has_no_area_and_random_sigma_gains_nothing():
    depth, _, target = maps(n=20_000)
    error = (depth - target).abs()
    perfect = sparsification_curves(depth, error, target)
    assert_allclose(perfect.rmse.ause, 0, atol=1e-12)
    assert perfect.rmse.aurg > 0.3
    random = torch.rand(20_000, generator=torch.Generator().manual_seed(9)) + 0.1
    # Sd of the gain: the last points of the curve hold 1 % of the pixels, whose RMSE varies by 5 %; 0.02 is 4 sd.
    assert_allclose(sparsification_curves(depth, random.double(), target).rmse.aurg, 0, atol=0.02)


def test_pixels_with_the_same_sigma_are_removed_in_shares():
    depth, _, target = maps()
    same = sparsification_curves(depth, torch.ones_like(depth), target)
    assert_allclose(same.rmse.curve.by_sigma, 1, rtol=1e-12)
    assert_allclose(same.abs_rel.aurg, 0, atol=1e-12)


def test_masked_and_missing_pixels_do_not_count():
    depth, sigma, target = maps()
    target[::3] = torch.nan
    valid = torch.arange(len(target)) % 2 == 0
    kept = valid & ~torch.isnan(target)
    found = sparsification_curves(torch.where(kept, depth, torch.nan), sigma, target, valid_mask=valid)
    assert found == sparsification_curves(depth[kept], sigma[kept], target[kept])
    assert found.n == int(kept.sum())


def test_streamed_curves_are_the_exact_ones_up_to_the_width_of_bins():
    depth, sigma, target = maps(n=50_000)
    metric = SparsificationCurves()
    for where in torch.arange(50_000).split(7000):
        metric.update(depth[where], sigma[where], target[where])
    found, exact = metric.compute(), sparsification_curves(depth, sigma, target)
    for name in ("rmse", "abs_rel"):
        ours, theirs = getattr(found, name), getattr(exact, name)
        assert_allclose(ours.error, theirs.error, rtol=1e-12)
        assert_allclose([ours.ause, ours.aurg], [theirs.ause, theirs.aurg], atol=1e-3)
        assert_allclose(ours.curve.by_error, theirs.curve.by_error, atol=1e-3)
        assert_allclose(ours.curve.by_sigma, theirs.curve.by_sigma, atol=0.02)


def test_exact_predictions_have_no_curve_to_rank():
    depth, sigma, _ = maps()
    report = sparsification_curves(depth, sigma, depth)
    assert (report.rmse.error, report.rmse.ause, report.rmse.aurg) == (0.0, 0.0, 0.0)


def test_report_is_plain_for_json_with_curves_on_demand():
    report = sparsification_curves(*maps())
    assert report.as_dict() == {
        "n": 4000,
        **{
            name: {"error": score.error, "ause": score.ause, "aurg": score.aurg}
            for name, score in (("rmse", report.rmse), ("abs_rel", report.abs_rel))
        },
    }
    assert len(report.as_dict(curves=True)["rmse"]["curve"]["dropped"]) == 100


@pytest.mark.parametrize(
    ("sigma", "target", "message"),
    [
        (torch.zeros(3), torch.ones(3), "expected `sigma` > 0 and finite where `target` counts, got 0"),
        (torch.ones(2), torch.ones(3), r"expected `sigma` of shape \(3,\) like `target`, got \(2,\)"),
        (torch.ones(3), torch.full((3,), torch.nan), "expected `target` with at least 1 value that counts, got 0"),
    ],
)
def test_bad_values_are_refused_by_name(sigma, target, message):
    with pytest.raises(ValueError, match=message):
        sparsification_curves(torch.ones(3), sigma, target)
