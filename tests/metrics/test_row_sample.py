"""Single rows of an evaluation: the same for all chunks, a fair sample, with intervals as SciPy has them."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch.distributions import Gamma, Independent, MultivariateNormal, Normal

import fcal
from fcal.metrics.accumulation import accumulate
from fcal.metrics.row_sample import SAMPLED, WITH_BARS, WORST, RowSampler, hashes
from fcal.metrics.state import Grid

GRID = Grid(75, 20)


def normals(n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    mean, noise = torch.randn(2, n, generator=generator, dtype=torch.float64)
    sigma = torch.rand(n, generator=generator, dtype=torch.float64) + 0.1
    return mean, sigma, mean + sigma * noise


def collected(mean, sigma, target, cuts):
    sampler = RowSampler()
    for where in np.split(np.arange(len(target)), cuts):
        accumulate(Normal(mean[where], sigma[where]), target[where], GRID, rows=sampler)
    return sampler.sample(), sampler.worst()


def test_rows_do_not_depend_on_chunks():
    data = normals(3000)
    whole = collected(*data, [])
    assert collected(*data, [1, 7, 500, 501, 2900]) == whole
    assert len(whole[0].row) == SAMPLED
    assert len(whole[0].low) == WITH_BARS


def test_worst_rows_are_those_of_a_full_sort():
    mean, sigma, target = normals(3000)
    worst = fcal.evaluate(Normal(mean, sigma), target).curves.worst
    z = ((target - mean) / sigma).numpy()
    order = np.argsort(-np.abs(z))[:WORST]
    assert worst.row == tuple(order + 1)
    np.testing.assert_allclose(worst.z, z[order])
    for name, values in (("mean", mean), ("sigma", sigma), ("target", target)):
        np.testing.assert_allclose(getattr(worst, name), values[order])


def test_sample_is_fair():
    # 400 of 40,000 rows in 20 blocks: a chi-squared test, false alarm 1e-6; the hash is fixed.
    mean, sigma, target = normals(40_000)
    rows = np.array(fcal.evaluate(Normal(mean, sigma), target).curves.sample.row)
    assert len(set(rows)) == SAMPLED
    counts = np.histogram(rows, 20, (1, 40_001))[0]
    assert stats.chisquare(counts).pvalue > 1e-6
    bits = (hashes(torch.arange(4000))[:, None] >> torch.arange(53)) & 1
    assert abs(bits.double().mean(0) - 0.5).max() < 6 * 0.5 / 4000**0.5


def test_bars_of_a_skewed_family_are_its_quantiles():
    shape = torch.linspace(1.0, 4.0, 50, dtype=torch.float64)
    pred = Gamma(shape, torch.full_like(shape, 2.0))
    worst = fcal.evaluate(pred, torch.linspace(0.2, 5.0, 50, dtype=torch.float64)).curves.worst
    chosen = shape.numpy()[np.array(worst.row) - 1]
    np.testing.assert_allclose(worst.low, stats.gamma.ppf(0.05, chosen, scale=0.5), rtol=1e-8)
    np.testing.assert_allclose(worst.high, stats.gamma.ppf(0.95, chosen, scale=0.5), rtol=1e-8)


def test_rows_are_numbered_among_all_rows_of_all_outputs():
    mean = torch.zeros(5, 2)
    target = torch.tensor([[0.1, 0.2], [float("nan"), 0.3], [9.0, 0.0], [0.0, 0.1], [0.0, -7.0]])
    report = fcal.evaluate(Independent(Normal(mean, 1.0), 1), target)
    assert report.curves.worst.row[:2] == (3, 5)
    masked = fcal.evaluate(Normal(mean[:, 0], 1.0), target[:, 1], valid_mask=torch.tensor([0, 0, 0, 1, 1]).bool())
    assert masked.curves.worst.row == (5, 4)


def test_vectors_and_predictions_without_moments_have_no_rows():
    vectors = fcal.evaluate(MultivariateNormal(torch.zeros(9, 2), torch.eye(2)), torch.randn(9, 2))
    assert vectors.curves.sample is None
    heavy = torch.distributions.StudentT(torch.full((9,), 1.5))
    assert fcal.evaluate(heavy, torch.linspace(-1, 1, 9)).curves.worst is None


@pytest.mark.parametrize("n", [2, 30])
def test_few_rows_are_all_sampled(n):
    rows = fcal.evaluate(*(lambda m, s, y: (Normal(m, s), y))(*normals(n))).curves.sample
    assert sorted(rows.row) == list(range(1, n + 1))
