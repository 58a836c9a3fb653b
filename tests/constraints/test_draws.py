"""Random draws: subsets are uniform, repeatable, and agree with the closed form as they grow."""

import math

import pytest
import torch
from scipy import stats

from fcal.constraints import (
    BatchSums,
    SumInputs,
    SumOptions,
    batch_sums,
    draw_indices,
    moments_of_q,
    sampled_moments_of_q,
    weighted_indices,
)

CPU = torch.device("cpu")


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
def test_sampled_moments_tend_to_the_exact_ones(finite_batch, weighted):
    # 400,000 draws: mean within 4.5 standard errors, variance within 4.5 of its own; false-alarm rate below 2e-5.
    torch.manual_seed(0)
    z, df, draws = torch.randn(40, dtype=torch.float64), 15, 400_000
    weight = torch.rand(40, dtype=torch.float64) if weighted else None
    exact = moments_of_q(
        BatchSums(*batch_sums(SumInputs(z, weight=weight), SumOptions())), df, finite_batch=finite_batch
    )
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
