"""Where other packages compute the same quantity correctly, ours agrees with them to 1e-6."""

import warnings

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch.distributions import Laplace, Normal

import fcal
from fcal.metrics import interval_calibration_error, quantile_calibration_error

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of their imports
    toolbox = pytest.importorskip("uncertainty_toolbox.metrics")
    toolbox_calibration = pytest.importorskip("uncertainty_toolbox.metrics_calibration")
    netcal = pytest.importorskip("netcal.metrics.regression")

KINDS = {
    "calibrated": (0.0, 1.0),
    "over-confident": (0.0, 2.0),
    "under-confident": (0.0, 0.5),
    "biased": (0.7, 1.0),
}


@pytest.fixture(params=KINDS)
def arrays(request):
    shift, scale = KINDS[request.param]
    rng = np.random.default_rng(0)
    mean, sigma = rng.standard_normal(3000), np.exp(0.5 * rng.standard_normal(3000))
    return mean, sigma, mean + sigma * (shift + scale * rng.standard_normal(3000))


def as_prediction(mean, sigma, y):
    return Normal(torch.from_numpy(mean), torch.from_numpy(sigma)), torch.from_numpy(y)


def test_scores_are_those_of_uncertainty_toolbox(arrays):
    report = fcal.evaluate(*as_prediction(*arrays))
    mean, sigma, y = arrays
    accuracy = toolbox.prediction_error_metrics(mean, y)
    assert_allclose(report.crps, toolbox.crps_gaussian(mean, sigma, y), rtol=1e-6)
    assert_allclose(report.nll, toolbox.nll_gaussian(mean, sigma, y), rtol=1e-6)
    assert_allclose(report.rmse, accuracy["rmse"], rtol=1e-6)
    assert_allclose(report.sharpness, toolbox_calibration.sharpness(sigma), rtol=1e-6)


def test_interval_calibration_error_is_that_of_uncertainty_toolbox(arrays):
    # at levels within (0, 1); their level 0 holds nothing and 1 everything, an error of 0 in both
    theirs = toolbox_calibration.mean_absolute_calibration_error(
        *arrays, num_bins=100, vectorized=True, prop_type="interval"
    )
    levels = torch.linspace(0, 1, 100, dtype=torch.float64)[1:-1]
    ours = interval_calibration_error(*as_prediction(*arrays), levels=levels)
    assert_allclose(ours * 98 / 100, theirs, atol=1e-6)


def test_interval_calibration_error_is_the_marginal_error_of_netcal(arrays):
    # their "quantile" levels are those of the squared distance, so of central intervals
    mean, sigma, y = arrays
    levels = np.arange(1, 20) / 20
    theirs = netcal.QCE(marginal=True).measure((mean, sigma), y, levels, kind="meanstd", reduction="mean")
    assert_allclose(
        interval_calibration_error(*as_prediction(*arrays), levels=torch.from_numpy(levels)), theirs, atol=1e-6
    )


def test_level_errors_are_counts_by_definition(arrays):
    mean, sigma, y = arrays
    pred, target = Laplace(torch.from_numpy(mean), torch.from_numpy(sigma)), torch.from_numpy(y)
    u = pred.cdf(target).numpy()
    levels = np.array([0.1, 0.33, 0.5, 0.9])
    below = np.mean([abs(np.mean(u <= p) - p) for p in levels])
    inside = np.mean([abs(np.mean(np.abs(u - 0.5) <= p / 2) - p) for p in levels])
    chosen = torch.from_numpy(levels)
    assert_allclose(quantile_calibration_error(pred, target, levels=chosen), below, atol=1e-12)
    assert_allclose(interval_calibration_error(pred, target, levels=chosen), inside, atol=1e-12)
    every = np.arange(1, 20) / 20
    assert_allclose(
        quantile_calibration_error(pred, target), np.mean([abs(np.mean(u <= p) - p) for p in every]), atol=1e-12
    )
    mask = torch.arange(3000) % 3 == 0
    some = np.mean([abs(np.mean(u[::3] <= p) - p) for p in levels])
    assert_allclose(quantile_calibration_error(pred, target, levels=chosen, valid_mask=mask), some, atol=1e-12)
    holes = torch.where(mask, target, torch.nan)
    assert_allclose(quantile_calibration_error(pred, holes, levels=chosen), some, atol=1e-12)


@pytest.mark.parametrize("error", [quantile_calibration_error, interval_calibration_error])
@pytest.mark.parametrize(
    "levels", [torch.tensor([]), torch.tensor([0.5, 1.5]), torch.tensor([-0.1]), torch.tensor([torch.nan])]
)
def test_level_errors_refuse_levels_that_are_none(error, levels):
    with pytest.raises(ValueError, match="expected `levels`"):
        error(Normal(torch.zeros(10), 1.0), torch.randn(10), levels=levels)


@pytest.mark.parametrize("error", [quantile_calibration_error, interval_calibration_error])
def test_level_errors_take_scalar_families_only(error):
    pred = torch.distributions.MultivariateNormal(torch.zeros(10, 2), torch.eye(2))
    with pytest.raises(ValueError, match="expected `pred` of a scalar family"):
        error(pred, torch.randn(10, 2))
