"""Sums of the fused pass against their definition; their gradients against autograd."""

import math

import pytest
import torch

from fcal.constraints import BatchSums, moments_of_q, moments_of_z, residual_sums
from fcal.losses._fused.fused_sums import SumInputs, SumOptions, batch_gradients, batch_sums


@pytest.mark.parametrize("count", [1, 1000, 131_072, 400_000])
def test_sums_in_chunks_equal_the_definition(count):
    torch.manual_seed(0)
    target, loc = torch.randn(count), torch.randn(count)
    scale, weight = torch.rand(count) + 0.5, torch.rand(count)
    z = (target - loc).double() / scale.double()
    w = weight.double()
    nll = 0.5 * z.square() + scale.double().log() + 0.5 * math.log(2 * math.pi)
    square = z.square()
    terms = [w, w.square(), w * z, w * square, w * square.square(), w * nll]
    expected = [term.sum() for term in terms]
    found = batch_sums(SumInputs(target, loc, scale, weight), SumOptions(dtype=torch.float32, with_nll=True))
    scale_of = [max(abs(float(e)), count) for e in expected]  # float32 rounds terms, not their sum
    assert all(abs(f - float(e)) < 2e-6 * s for f, e, s in zip(found, expected, scale_of, strict=True))
    plain = residual_sums(z, w)[:-1].tolist()
    assert found[:-1] == pytest.approx(plain, rel=2e-6, abs=2e-6 * count)


@pytest.mark.parametrize("detach_mean", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_hand_written_gradients_are_autograds(weighted, detach_mean):
    torch.manual_seed(0)
    target, loc = (torch.randn(50, dtype=torch.float64, requires_grad=True) for _ in range(2))
    scale = (torch.rand(50, dtype=torch.float64) + 0.5).requires_grad_()
    weight = torch.rand(50, dtype=torch.float64) if weighted else torch.ones(50, dtype=torch.float64)
    derivatives = [0.0, 0.0, 0.3, -0.7, 0.2, 0.9]
    options = SumOptions(detach_mean=detach_mean, with_nll=True)
    inputs = SumInputs(target, loc, scale, weight if weighted else None)
    found = batch_gradients(inputs, options, derivatives, (True, True, True))
    calibrated = (target - (loc.detach() if detach_mean else loc)) / scale
    square = calibrated.square()
    nll = 0.5 * ((target - loc) / scale).square() + scale.log()
    terms = [calibrated, square, square.square(), nll]
    objective = sum(d * (weight * term).sum() for d, term in zip(derivatives[2:], terms, strict=True))
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


def test_chunk_that_is_hidden_as_a_whole_adds_nothing():
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
