"""GPBeta: as likely as the best constant beta map, better where errors depend on the prediction, deterministic."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from scipy import optimize, special, stats
from torch import Tensor
from torch.distributions import Normal

import fcal
from fcal.recalibration import GPBeta, Temperature

COUNT = 1000


def rows(seed: int, count: int = COUNT) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    mean = 3 * torch.randn(count, generator=generator, dtype=torch.float64)
    sigma = torch.exp(0.5 * torch.randn(count, generator=generator, dtype=torch.float64))
    return mean, sigma, mean + sigma * torch.randn(count, generator=generator, dtype=torch.float64)


def best_constant_beta_nll(pred: Normal, target: Tensor) -> float:
    """Mean NLL of the most likely constant beta map, by SciPy from its definition."""
    z = ((target - pred.loc) / pred.scale).numpy()
    log_u, log_v, log_density = stats.norm.logcdf(z), stats.norm.logsf(z), pred.log_prob(target).numpy()

    def nll(at: np.ndarray) -> float:
        a, b, c = math.exp(at[0]), math.exp(at[1]), at[2]
        odds = a * log_u - b * log_v + c
        # log G'(u) = log s(odds) + log s(-odds) + log(a / u + b / (1 - u))
        log_slope = special.log_expit(odds) + special.log_expit(-odds)
        log_slope += np.logaddexp(at[0] - log_u, at[1] - log_v)
        return float(-(log_density + log_slope).mean())

    return min(optimize.minimize(nll, np.array(s), method="Nelder-Mead", options={"maxiter": 2000}).fun for s in STARTS)


STARTS = ((0.0, 0.0, 0.0), (-2.0, -2.0, 0.0), (2.0, 2.0, 0.0))


@pytest.mark.parametrize(("scale", "bias"), [(0.25, 0.0), (0.5, 0.0), (2.0, 0.0), (4.0, 0.0), (1.0, 1.5)])
def test_gp_beta_is_as_likely_as_the_best_constant_beta_map(scale: float, bias: float):
    mean, sigma, target = rows(0)
    pred = Normal(mean + bias * sigma, scale * sigma)
    found = fcal.nll(GPBeta(steps=40).fit(pred, target).transform(pred), target).mean().item()
    assert found <= best_constant_beta_nll(pred, target) + 0.01


def test_gp_beta_sees_errors_that_depend_on_the_prediction():
    def wrong(mean: Tensor, sigma: Tensor) -> Normal:
        return Normal(mean, sigma * torch.exp(mean.sin()))

    mean, sigma, target = rows(1, 2000)
    fresh_mean, fresh_sigma, fresh = rows(2, 5000)
    method = GPBeta().fit(wrong(mean, sigma), target)
    pred = wrong(fresh_mean, fresh_sigma)
    learned = fcal.nll(method.transform(pred), fresh).mean().item()
    hot = fcal.nll(Temperature().fit(wrong(mean, sigma), target).transform(pred), fresh).mean().item()
    truth = fcal.nll(Normal(fresh_mean, fresh_sigma), fresh).mean().item()
    assert learned < truth + 0.35 * (hot - truth)  # most of what one factor for all leaves on the table
    # far from all calibration data the constant map is left
    far = method.transform(Normal(torch.tensor([1e4]).double(), torch.ones(1).double()))
    constant = method._fitted_tensors()["constant"]
    torch.testing.assert_close(torch.stack(far.warp.tensors).squeeze(), torch.stack([*constant[:2].exp(), constant[2]]))


def test_gp_beta_after_temperature_repairs_what_a_beta_map_cannot():
    # sigma a quarter of the true one: alone its 50 % intervals hold 60 % (docs), with the scale right they are right.
    # 4.5 standard errors of calibration and fresh rows; false-alarm rate 7e-6
    mean, sigma, target = rows(4, 2000)
    fresh_mean, fresh_sigma, fresh = rows(5, 10_000)
    pred, new = Normal(mean, sigma / 4), Normal(fresh_mean, fresh_sigma / 4)

    def covered(law: torch.distributions.Distribution) -> float:
        return (fcal.standardize(law, fresh).abs() <= stats.norm.ppf(0.75)).double().mean().item()

    first = Temperature().fit(pred, target)
    second = GPBeta(steps=30).fit(first.transform(pred), target)
    bound = 4.5 * math.sqrt(0.25 / 2000 + 0.25 / 10_000)
    assert covered(second.transform(first.transform(new))) == pytest.approx(0.5, abs=bound)
    assert covered(GPBeta(steps=30).fit(pred, target).transform(new)) > 0.5 + bound


def test_gp_beta_repeats_bit_for_bit_and_leaves_the_random_state_alone():
    mean, sigma, target = rows(3, 300)
    pred = Normal(mean, sigma)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = GPBeta(inducing=8, steps=15).fit(pred, target)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    second = GPBeta(inducing=8, steps=15).fit(pred, target)
    for name, tensor in first._fitted_tensors().items():
        assert torch.equal(tensor, second._fitted_tensors()[name]), name
    other = GPBeta(inducing=8, steps=15, generator=torch.Generator().manual_seed(1)).fit(pred, target)
    assert not torch.equal(other._fitted_tensors()["inducing"], first._fitted_tensors()["inducing"])


def test_gp_beta_of_predictions_that_are_all_the_same():
    pred = Normal(torch.zeros(100), torch.ones(100))
    target = 2 * torch.randn(100, generator=torch.Generator().manual_seed(0))
    law = GPBeta(steps=5).fit(pred, target).transform(pred)
    assert bool(law.log_prob(target).isfinite().all())
    assert law.mean.dtype == torch.float32


def test_gp_beta_without_gpytorch_says_what_to_install_and_nothing_else_needs_it():
    code = """
import sys
sys.modules["gpytorch"] = None
import torch, fcal.recalibration as r
from torch.distributions import Normal
pred, y = Normal(torch.zeros(20), torch.ones(20)), torch.linspace(-1, 1, 20)
r.Temperature().fit_transform(pred, y), r.Isotonic().fit_transform(pred, y)
try:
    r.GPBeta().fit(pred, y)
except ImportError as error:
    print(error)
print("torchmetrics" in sys.modules, "pyarrow" in sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == ["expected gpytorch for GPBeta; pip install 'fcal[gp]'", "False False"]


def test_gp_beta_refuses_options_out_of_range():
    with pytest.raises(ValueError, match="expected `inducing` >= 1, got 0"):
        GPBeta(inducing=0)
    with pytest.raises(TypeError, match="expected `generator` a torch.Generator, got int"):
        GPBeta(generator=3)
