"""Moments of q against brute force over all subsets; sums against their definition."""

import itertools
import math

import pytest
import torch

from fcal.constraints import (
    BatchSums,
    SumInputs,
    SumOptions,
    batch_slopes,
    batch_sums,
    moments_of_q,
    moments_of_z,
    traced_sums,
)


def sums_of(z: torch.Tensor, weight: torch.Tensor | None = None) -> BatchSums:
    return BatchSums(*batch_sums(SumInputs(z, weight=weight), SumOptions()))


def test_moments_of_q_are_those_over_all_subsets():
    torch.manual_seed(0)
    z, df = torch.randn(9, dtype=torch.float64), 4
    q = torch.tensor([sum(z[i].item() ** 2 for i in subset) for subset in itertools.combinations(range(9), df)])
    moments = moments_of_q(sums_of(z), df, finite_batch=False)
    assert moments.mean == pytest.approx(q.mean().item(), rel=1e-6)
    assert moments.variance == pytest.approx(q.var(correction=0).item(), rel=1e-6)
    unbiased = moments_of_q(sums_of(z), df, finite_batch=True)
    assert unbiased.variance * (1 - df / 9) == pytest.approx(moments.variance, rel=1e-12)


def test_moments_of_z_are_torchs_mean_and_unbiased_variance():
    torch.manual_seed(0)
    z = 3 * torch.randn(1000, dtype=torch.float64) + 2
    moments = moments_of_z(sums_of(z))
    assert (moments.mean, moments.variance) == pytest.approx((z.mean().item(), z.var().item()), rel=1e-12)


def test_weighted_variance_is_unbiased():
    # Two residual levels a (weight 1) and b (weight 3): E s^2 over draws must be the variance of z^2.
    # 40,000 batches, 4.5 standard errors: false-alarm rate below 1e-5.
    generator = torch.Generator().manual_seed(0)
    weight = torch.tensor([1.0, 3.0, 1.0, 0.5, 2.0], dtype=torch.float64)
    z = torch.randn(40_000, 5, dtype=torch.float64, generator=generator)
    q = z.square()
    mean = (weight * q).sum(1, keepdim=True) / weight.sum()
    s2 = (weight * (q - mean).square()).sum(1) / (weight.sum() - weight.square().sum() / weight.sum())
    ours = torch.tensor([moments_of_q(sums_of(row, weight), 1).variance for row in z[:200]])
    torch.testing.assert_close(ours, s2[:200].float(), rtol=1e-6, atol=1e-9)
    assert abs(s2.mean().item() - 2) < 4.5 * s2.std().item() / math.sqrt(40_000)


def test_equal_weights_change_nothing():
    torch.manual_seed(0)
    z = torch.randn(500, dtype=torch.float64)
    plain, weighted = moments_of_q(sums_of(z), 75), moments_of_q(sums_of(z, torch.full((500,), 7.0)), 75)
    assert (weighted.mean, weighted.variance) == pytest.approx((plain.mean, plain.variance), rel=1e-12)


@pytest.mark.parametrize("count", [1, 1000, 131_072, 400_000])
def test_sums_in_pieces_equal_the_definition(count):
    torch.manual_seed(0)
    target, loc = torch.randn(count), torch.randn(count)
    scale, weight = torch.rand(count) + 0.5, torch.rand(count)
    z = (target - loc).double() / scale.double()
    w = weight.double()
    nll = 0.5 * z.square() + scale.double().log() + 0.5 * math.log(2 * math.pi)
    square = z.square()
    parts = [w, w.square(), w * z, w * square, w * square.square(), w * nll]
    expected = [part.sum() for part in parts]
    found = batch_sums(SumInputs(target, loc, scale, weight), SumOptions(dtype=torch.float32, with_nll=True))
    scale_of = [max(abs(float(e)), count) for e in expected]  # float32 rounds terms, not their sum
    assert all(abs(f - float(e)) < 2e-6 * s for f, e, s in zip(found, expected, scale_of, strict=True))
    traced = traced_sums(z, w)[:-1].tolist()
    assert found[:-1] == pytest.approx(traced, rel=2e-6, abs=2e-6 * count)


@pytest.mark.parametrize("detach_mean", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_hand_written_slopes_are_autograds(weighted, detach_mean):
    torch.manual_seed(0)
    target, loc = (torch.randn(50, dtype=torch.float64, requires_grad=True) for _ in range(2))
    scale = (torch.rand(50, dtype=torch.float64) + 0.5).requires_grad_()
    weight = torch.rand(50, dtype=torch.float64) if weighted else torch.ones(50, dtype=torch.float64)
    slopes = [0.0, 0.0, 0.3, -0.7, 0.2, 0.9]
    options = SumOptions(detach_mean=detach_mean, with_nll=True)
    inputs = SumInputs(target, loc, scale, weight if weighted else None)
    found = batch_slopes(inputs, options, slopes, (True, True, True))
    calibrated = (target - (loc.detach() if detach_mean else loc)) / scale
    square = calibrated.square()
    nll = 0.5 * ((target - loc) / scale).square() + scale.log()
    parts = [calibrated, square, square.square(), nll]
    objective = sum(slope * (weight * part).sum() for slope, part in zip(slopes[2:], parts, strict=True))
    expected = torch.autograd.grad(objective, [target, loc, scale])
    for ours, autograd in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, autograd)


def test_float32_batch_of_ten_million_keeps_its_precision():
    # A float32 accumulator would stop counting at 2^24 and lose a variance to cancellation.
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(10_000_000, generator=generator)
    ones = torch.ones_like(z)
    found = BatchSums(*batch_sums(SumInputs(z, 0 * ones, ones), SumOptions(dtype=torch.float32)))
    wide = z.double().square()
    moments = moments_of_q(found, 1)
    assert moments.mean == pytest.approx(wide.mean().item(), rel=1e-7)
    assert moments.variance == pytest.approx(wide.var().item(), rel=1e-6)


def test_piece_that_is_hidden_as_a_whole_adds_nothing():
    torch.manual_seed(0)
    z = torch.randn(300_000, dtype=torch.float64)
    keep = torch.arange(300_000) >= 200_000
    found = batch_sums(SumInputs(z, weight=keep), SumOptions())
    assert found == pytest.approx(batch_sums(SumInputs(z[keep]), SumOptions()), rel=1e-9)


@pytest.mark.parametrize("bias", [0.0, 300.0, 1e4])
def test_variance_of_z_in_float32_does_not_cancel_under_bias(bias):
    torch.manual_seed(0)
    y, one = torch.randn(300_000) + bias, torch.ones(300_000)
    found = moments_of_z(BatchSums(*batch_sums(SumInputs(y, 0 * one, one), SumOptions(dtype=torch.float32))))
    assert found.mean == pytest.approx(y.double().mean().item(), rel=1e-6, abs=1e-6)
    assert found.variance == pytest.approx(y.double().var().item(), rel=1e-5)
