"""Quantile recalibration training against the n x n definition."""

import math

import pytest
import torch
from torch.distributions import Independent, Laplace, MultivariateNormal, Normal

from fcal.losses import NLLLoss, QuantileRecalibrationLoss


def batch(n=60):
    generator = torch.Generator().manual_seed(0)
    loc, y = torch.randn(2, n, dtype=torch.float64, generator=generator)
    scale = torch.rand(n, dtype=torch.float64, generator=generator) + 0.5
    return loc.requires_grad_(), scale.requires_grad_(), y


def logistic(x, h):
    return torch.sigmoid(x / h) * torch.sigmoid(-x / h) / h


def by_pairs(pred, y, bandwidth, weight=None, images=3):
    """The definition: a density of n kernels and their mirror images, evaluated at n transforms."""
    weight = torch.ones_like(y) if weight is None else weight
    share = weight / weight.sum()
    h = bandwidth * (weight.sum() ** 2 / weight.square().sum()) ** -0.2
    z = pred.cdf(y)
    here, there = z.unsqueeze(-1), z
    if images == 3:  # the paper's: the kernel itself and one mirror image at each end
        kernels = logistic(here - there, h) + logistic(here + there, h) + logistic(2 - here - there, h)
    else:
        shifts = range(-images, images + 1)
        kernels = sum(logistic(here - 2 * k - there, h) + logistic(here - 2 * k + there, h) for k in shifts)
    return share @ (-pred.log_prob(y) - torch.log(kernels @ share))


def assert_same_with_gradients(found, expected, inputs, **tolerance):
    torch.testing.assert_close(found, expected, **tolerance)
    theirs = torch.autograd.grad(expected, inputs)
    for ours, theirs_ in zip(torch.autograd.grad(found, inputs), theirs, strict=True):
        torch.testing.assert_close(ours, theirs_, **tolerance)


@pytest.mark.parametrize("bandwidth", [0.02, 0.1, 1.0])
@pytest.mark.parametrize("family", [Normal, Laplace])
def test_loss_is_the_sum_over_pairs(family, bandwidth):
    loc, scale, y = batch()
    found = QuantileRecalibrationLoss(bandwidth=bandwidth)(family(loc, scale), y)
    expected = by_pairs(family(loc, scale), y, bandwidth, images=12)
    assert_same_with_gradients(found, expected, [loc, scale], rtol=1e-9, atol=1e-11)


def test_infinite_reflection_equals_that_of_the_paper_for_its_bandwidth():
    loc, scale, y = batch()
    found = QuantileRecalibrationLoss()(Normal(loc, scale), y)
    expected = by_pairs(Normal(loc, scale), y, 0.1)
    h = 0.1 * 60**-0.2
    least = 1 / (60 * 4 * h)  # a density of 60 kernels at the centre of one
    assert (found - expected).abs() < 2 * math.exp(-1 / h) / h / least


def test_weights_are_shares_of_the_density_and_of_the_mean():
    loc, scale, y = batch()
    weight = torch.rand(60, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 5
    found = QuantileRecalibrationLoss()(Normal(loc, scale), y, weight=weight)
    expected = by_pairs(Normal(loc, scale), y, 0.1, weight, images=4)
    assert_same_with_gradients(found, expected, [loc, scale], rtol=1e-9, atol=1e-11)


def test_weights_of_any_size_keep_the_density_positive():
    loc, scale, y = batch()
    y[0] = loc[0].detach() + 9 * scale[0].detach()
    weight = torch.ones(60, dtype=torch.float64)
    weight[0] = 1e-60
    loss = QuantileRecalibrationLoss(bandwidth=0.01)(Normal(loc, scale), y, weight=weight)
    assert torch.isfinite(loss)
    assert all(torch.isfinite(gradient).all() for gradient in torch.autograd.grad(loss, [loc, scale]))


def test_gradient_is_that_of_differences():
    loc, scale, y = batch(12)
    criterion = QuantileRecalibrationLoss()
    weight = torch.linspace(0.5, 2.0, 12, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda a, b: criterion(Normal(a, b), y, weight=weight), (loc, scale))


def test_vectors_are_recalibrated_coordinate_by_coordinate():
    y = torch.randn(30, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    scale = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    scalars = Normal(torch.zeros(30, 3).double(), scale.expand(30, 3))
    vector = MultivariateNormal(torch.zeros(30, 3).double(), torch.diag(scale**2))
    expected = 3 * QuantileRecalibrationLoss()(scalars, y)  # a mean over scalars, three of which make a row
    torch.testing.assert_close(QuantileRecalibrationLoss()(vector, y), expected)
    torch.testing.assert_close(QuantileRecalibrationLoss()(Independent(scalars, 1), y), expected)


def test_wide_kernel_leaves_the_likelihood():
    loc, scale, y = batch()
    pred = Normal(loc, scale)
    torch.testing.assert_close(QuantileRecalibrationLoss(bandwidth=1e3)(pred, y), NLLLoss()(pred, y))


def test_right_spreads_score_better_than_wrong_ones():
    # Over 50 seeds the gap is 1.44 with a standard deviation of 0.06: 1 is 7 of them, a false-alarm rate of 1e-12.
    n = 4000
    generator = torch.Generator().manual_seed(0)
    sigma = torch.rand(n, generator=generator) + 0.5
    y = sigma * torch.randn(n, generator=generator)
    wrong = torch.where(torch.arange(n) % 2 == 0, 3 * sigma, sigma / 3)
    right_score, wrong_score = (QuantileRecalibrationLoss()(Normal(torch.zeros(n), s), y) for s in (sigma, wrong))
    assert right_score + 1.0 < wrong_score


def test_one_factor_on_all_spreads_hardly_changes_the_loss():
    # Over 50 seeds the scores differ by 0.002 (standard deviation 0.0005), the likelihoods by 0.320 (0.008).
    n = 4000
    y = torch.randn(n, generator=torch.Generator().manual_seed(0))
    scores = [QuantileRecalibrationLoss()(Normal(torch.zeros(n), s * torch.ones(n)), y) for s in (1.0, 2.0)]
    likelihoods = [NLLLoss()(Normal(torch.zeros(n), s * torch.ones(n)), y) for s in (1.0, 2.0)]
    assert abs(scores[1] - scores[0]) < 0.02
    assert likelihoods[1] - likelihoods[0] > 0.25


def test_bad_options_are_refused():
    with pytest.raises(ValueError, match=r"expected `bandwidth` within \[0.001, 1000\], got 0"):
        QuantileRecalibrationLoss(bandwidth=0)


def test_single_target_is_refused():
    with pytest.raises(ValueError, match="expected `target` with at least 2 values that count, got 1"):
        QuantileRecalibrationLoss()(Normal(torch.zeros(1), torch.ones(1)), torch.zeros(1))
