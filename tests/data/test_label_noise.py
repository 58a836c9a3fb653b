"""Distributions of label noise: mean, standard deviation, shape, and the labels drawn from them."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch.distributions import Gamma

import fcal
from fcal.data import label_noise
from fcal.data.bokeh import uniforms

NOISES = ["homoscedastic", "heteroscedastic", "gamma", "laplace", "student-t"]
SHAPE = 5.0
STANDARD = {
    "homoscedastic": stats.norm(),
    "heteroscedastic": stats.norm(),
    "gamma": stats.gamma(SHAPE, loc=-np.sqrt(SHAPE), scale=1 / np.sqrt(SHAPE)),
    "laplace": stats.laplace(scale=np.sqrt(0.5)),
    "student-t": stats.t(SHAPE, scale=np.sqrt((SHAPE - 2) / SHAPE)),
}


def law(noise: str, centre: float, sigma: float, shape: float = SHAPE, rows: int = 1):
    full = torch.full((rows,), 1.0, dtype=torch.float64)
    return label_noise.NOISES[noise](centre * full, sigma * full, shape)


def test_names_are_those_of_the_surface():
    assert label_noise.NOISES.names() == NOISES


@pytest.mark.parametrize("noise", NOISES)
def test_law_has_the_mean_and_sigma_asked_for(noise):
    assert STANDARD[noise].mean() == pytest.approx(0, abs=1e-12)
    assert STANDARD[noise].std() == pytest.approx(1)
    uniform = torch.linspace(0.001, 0.999, 999, dtype=torch.float64)
    found = fcal.distributions.quantile(law(noise, 0.3, 0.02, rows=999), uniform)
    np.testing.assert_allclose(found, 0.3 + 0.02 * STANDARD[noise].ppf(uniform.numpy()), rtol=0, atol=1e-12)
    own = law(noise, 0.3, 0.02)
    np.testing.assert_allclose([own.mean.item(), own.stddev.item()], [0.3, 0.02], rtol=1e-12)
    assert own.expand([4, 1]).mean.shape == (4, 1)


@pytest.mark.parametrize("noise", NOISES)
def test_labels_follow_their_law(noise):
    uniform = torch.from_numpy(uniforms(0, 0, 20_000, 1)[:, 0])
    own = law(noise, 0.5, 0.03, rows=20_000)
    z = fcal.standardize(own, label_noise.labels(own, uniform))
    assert stats.kstest(z.numpy(), "norm").pvalue > 1e-6  # false-alarm rate 1e-6
    noise_of_sigma = (label_noise.labels(own, uniform).numpy() - 0.5) / 0.03
    assert stats.kstest(noise_of_sigma, STANDARD[noise].cdf).pvalue > 1e-6  # false-alarm rate 1e-6


@pytest.mark.parametrize("noise", NOISES)
def test_labels_do_not_depend_on_the_last_digits_of_a_quantile(noise, monkeypatch):
    uniform = torch.from_numpy(uniforms(1, 0, 5000, 1)[:, 0])
    own = law(noise, 0.5, 0.031, rows=5000)
    expected = label_noise.labels(own, uniform)
    for change in (1 - 1e-13, 1 + 1e-13):  # hundreds of roundings
        exact = fcal.distributions.quantile
        monkeypatch.setattr(label_noise, "quantile", lambda *a, f=change, exact=exact: f * exact(*a))
        assert torch.equal(label_noise.labels(own, uniform), expected)
        monkeypatch.undo()
    assert torch.equal(expected.float().double(), expected)


@pytest.mark.parametrize("shape", [0.05, 0.5, 1.0])
def test_gamma_labels_stay_within_the_support(shape):
    # Half of the labels lie within rounding of the lower end where the shape is small.
    uniform = torch.from_numpy(uniforms(2, 0, 20_000, 1)[:, 0])
    own = law("gamma", 0.5, 0.031, shape, rows=20_000)
    labels = label_noise.labels(own, uniform).float().double()
    assert torch.isfinite(fcal.standardize(own, labels)).all()


def test_gamma_of_a_large_shape_is_nearly_normal():
    uniform = torch.linspace(0.01, 0.99, 99, dtype=torch.float64)
    gamma = fcal.distributions.quantile(law("gamma", 0.0, 1.0, 1e4, rows=99), uniform)
    np.testing.assert_allclose(gamma, stats.norm.ppf(uniform.numpy()), atol=0.02)  # skewness 2 / sqrt(1e4)


def test_gamma_noise_is_a_gamma_moved_and_scaled():
    base = law("gamma", 0.0, 1.0).base_dist
    assert isinstance(base, Gamma)
    assert base.concentration.item() == SHAPE


def test_unknown_noise_is_refused_with_the_nearest_name():
    with pytest.raises(ValueError, match="expected `noise` one of 'homoscedastic'.*did you mean 'laplace'"):
        label_noise.NOISES["laplase"]
