"""Moments of q against brute force over all subsets; random draws against uniform subsets and the closed form."""

import itertools
import math

import pytest
import torch
from scipy import stats

from fcal.constraints import (
    BatchSums,
    draw_indices,
    moments_of_q,
    moments_of_z,
    residual_sums,
    sampled_moments_of_q,
    weighted_indices,
)
from fcal.losses._fused.fused_sums import SumInputs, SumOptions, batch_sums

CPU = torch.device("cpu")


def plain_sums(z, weight=None):
    return BatchSums(*residual_sums(z, weight).tolist())


def fused_sums(z, weight=None):
    return BatchSums(*batch_sums(SumInputs(z, weight=weight), SumOptions()))


@pytest.fixture(params=[plain_sums, fused_sums], ids=["plain", "fused"])
def sums_of(request):
    """Both ways to sum a batch."""
    return request.param


def test_moments_of_q_are_those_over_all_subsets(sums_of):
    torch.manual_seed(0)
    z, df = torch.randn(9, dtype=torch.float64), 4
    q = torch.tensor([sum(z[i].item() ** 2 for i in subset) for subset in itertools.combinations(range(9), df)])
    moments = moments_of_q(sums_of(z), df, finite_batch=False)
    assert moments.mean == pytest.approx(q.mean().item(), rel=1e-6)
    assert moments.variance == pytest.approx(q.var(correction=0).item(), rel=1e-6)
    unbiased = moments_of_q(sums_of(z), df, finite_batch=True)
    assert unbiased.variance * (1 - df / 9) == pytest.approx(moments.variance, rel=1e-12)


def test_moments_of_z_are_torchs_mean_and_unbiased_variance(sums_of):
    torch.manual_seed(0)
    z = 3 * torch.randn(1000, dtype=torch.float64) + 2
    moments = moments_of_z(sums_of(z))
    assert (moments.mean, moments.variance) == pytest.approx((z.mean().item(), z.var().item()), rel=1e-12)


def test_weighted_variance_is_unbiased(sums_of):
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


def test_equal_weights_change_nothing(sums_of):
    torch.manual_seed(0)
    z = torch.randn(500, dtype=torch.float64)
    plain, weighted = moments_of_q(sums_of(z), 75), moments_of_q(sums_of(z, torch.full((500,), 7.0)), 75)
    assert (weighted.mean, weighted.variance) == pytest.approx((plain.mean, plain.variance), rel=1e-12)


@pytest.mark.parametrize(("count", "df"), [(5, 5), (6, 5), (100, 75), (1_000_000, 75), (10, 1)])
def test_draws_are_without_replacement_and_in_range(count, df):
    indices = draw_indices(count, df, 200, generator=torch.Generator().manual_seed(0), device=CPU)
    assert indices.shape == (200, df)
    assert int(indices.min()) >= 0
    assert int(indices.max()) < count
    assert (indices.sort(1).values.diff(dim=1) > 0).all()


def test_every_subset_is_equally_likely():
    # Chi-square over the 20 subsets of 3 of 6; false-alarm rate 1e-4.
    indices = draw_indices(6, 3, 40_000, generator=torch.Generator().manual_seed(0), device=CPU)
    codes = (1 << indices).sum(1)
    counts = torch.bincount(codes)[torch.unique(codes)]
    assert len(counts) == 20
    assert stats.chisquare(counts.numpy()).pvalue > 1e-4


def test_weighted_draws_are_in_proportion():
    # 4.5 standard errors: false-alarm rate below 1e-5.
    weight = torch.tensor([0.0, 1.0, 3.0, 0.0])
    indices = weighted_indices(weight, 10, 10_000, generator=torch.Generator().manual_seed(0))
    share = (indices == 2).double().mean().item()
    assert set(indices.unique().tolist()) == {1, 2}
    assert abs(share - 0.75) < 4.5 * math.sqrt(0.75 * 0.25 / 100_000)


@pytest.mark.parametrize("finite_batch", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_sampled_moments_converge_to_the_exact_ones(sums_of, finite_batch, weighted):
    # 400,000 draws: mean within 4.5 standard errors, variance within 4.5 of its own; false-alarm rate below 2e-5.
    torch.manual_seed(0)
    z, df, draws = torch.randn(40, dtype=torch.float64), 15, 400_000
    weight = torch.rand(40, dtype=torch.float64) if weighted else None
    exact = moments_of_q(sums_of(z, weight), df, finite_batch=finite_batch)
    generator = torch.Generator().manual_seed(1)
    sampled = sampled_moments_of_q(z, df, draws, weight=weight, finite_batch=finite_batch, generator=generator)
    spread = math.sqrt(exact.variance)
    assert abs(sampled.mean.item() - exact.mean) < 4.5 * spread / math.sqrt(draws)
    assert sampled.variance.item() == pytest.approx(exact.variance, rel=4.5 * math.sqrt(3 / draws))


def test_draws_repeat_from_a_generator():
    z = torch.randn(500)
    first, second = (sampled_moments_of_q(z, 75, 100, generator=torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(first.mean, second.mean)
    assert torch.equal(first.variance, second.variance)
