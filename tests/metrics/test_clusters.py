"""Calibration within clusters: sums against draws in NumPy, bands against simulated data sets with dependence."""

import math

import numpy as np
import pytest
import torch
from metrics.brute_force import ece, kl_between_normals, mce, shares_of_q, shares_of_z, squared_w2_between_normals
from numpy.testing import assert_allclose
from scipy import stats
from torch.distributions import Independent, Laplace, MultivariateNormal, Normal

import fcal
from fcal.metrics import cluster_calibration


def alike_by_cluster(clusters, size, correlation, seed, *, squares=False):
    """N(0, 1) residuals whose values, or only whose squares, are alike within a cluster."""
    rng = np.random.default_rng(seed)
    shared, own = rng.standard_normal((clusters, 1)), rng.standard_normal((clusters, size))
    z = math.sqrt(correlation) * shared + math.sqrt(1 - correlation) * own
    return torch.from_numpy(np.abs(z) * rng.choice([-1, 1], z.shape) if squares else z)


def report_of(z, *, seed=0, family=Normal, **options):
    options.setdefault("cluster", torch.arange(len(z)))
    generator = torch.Generator().manual_seed(seed)
    return cluster_calibration(family(torch.zeros_like(z), torch.ones_like(z)), z, generator=generator, **options)


def test_ece_of_z_is_that_of_all_residuals():
    z = 1.3 * alike_by_cluster(40, 100, 0.3, seed=0)
    for bins in (2, 7, 20, 100):
        assert_allclose(report_of(z, bins=bins).ece_z.value, ece(shares_of_z(z.numpy().ravel(), bins)), rtol=1e-12)


@pytest.mark.parametrize("scale", [0.5, 1.0, 1.1, 2.0])
@pytest.mark.parametrize("df", [1, 3, 75, 400])
def test_pooled_ece_of_q_is_that_of_evaluate(scale, df):
    z = scale * alike_by_cluster(40, 500, 0.0, seed=1)
    found = report_of(z, df=df).ece_q.value
    assert_allclose(found, fcal.evaluate(Normal(torch.zeros_like(z), 1.0), z, df=df).ece_q, atol=1e-3)


@pytest.mark.parametrize("bins", [2, 20, 100])
def test_cell_of_a_residual_is_the_number_of_edges_at_or_below_it(bins):
    grid = fcal.metrics.clusters.cluster_grid(75, bins)
    edges = fcal.metrics.clusters.cell_edges(grid)
    beside = [np.nextafter(edges, to) for to in (-np.inf, np.inf)]
    rng = np.random.default_rng(0)
    z = np.concatenate([edges, *beside, rng.normal(scale=3, size=20_000), [-1e70, 1e70, 5e-324, -5e-324, -0.0]])
    found = fcal.metrics.clusters.cell_index(torch.from_numpy(z), grid)
    assert_allclose(found, np.searchsorted(edges, z, side="right"), rtol=0)


def test_sums_within_a_cluster_hold_every_residual_at_most_once_and_all_whole_sums():
    # Squares are powers of two, so a sum of 4 tells which residuals it holds; one of 13 is left out.
    z = torch.pow(2.0, 0.5 * torch.arange(13.0, dtype=torch.float64)).expand(5, 13)
    grid = fcal.metrics.clusters.cluster_grid(4, 20)
    clusters, number = torch.arange(5), torch.arange(5).repeat_interleave(13)
    sums, of = fcal.metrics.clusters._sums_within(z.square().reshape(-1), number, clusters, grid.df, 3)
    assert of.tolist() == [cluster for cluster in range(5) for _ in range(3)]
    for cluster in range(5):
        held = [round(x) for x in sums[of == cluster].tolist()]
        assert all(bin(x).count("1") == 4 for x in held)
        assert bin(held[0] | held[1] | held[2]).count("1") == 12
    assert len(set(sums.tolist())) > 12  # clusters are in different orders


def test_random_order_breaks_up_neighbours():
    # Residuals grow along each cluster: sums of neighbours would vary far more than sums of any 50 of 1000.
    square = torch.linspace(0, 2, 1000, dtype=torch.float64).expand(400, 1000)
    number = torch.arange(400).repeat_interleave(1000)
    sums, _ = fcal.metrics.clusters._sums_within(square.reshape(-1), number, torch.arange(400), 50, 5)
    variance = float(square[0].var(correction=0)) * 50 * (1000 - 50) / 999  # drawn without replacement
    # 8000 sums, those of a cluster nearly independent: the variance is known to 1.6 %, 5 sd are 8 %.
    assert_allclose(float(sums.var()), variance, rtol=0.08)
    assert_allclose(float(sums.mean()), 50, rtol=1e-9)
    for lag in (1, 2, 20):  # of order in a cluster, and of neighbouring clusters
        correlation = np.corrcoef(sums[lag:], sums[:-lag])[0, 1]
        assert abs(correlation) < 0.08  # -1 / 19 is expected within a cluster


def test_scores_within_clusters_are_those_of_any_random_sums():
    z = 1.05 * alike_by_cluster(200, 310, 0.2, seed=2)
    found = report_of(z, df=30, bins=10)
    rng = np.random.default_rng(0)
    scores = []
    for _ in range(60):
        shuffled = rng.permuted(z.numpy(), axis=1)[:, :300]
        q = (shuffled**2).reshape(-1, 30).sum(1)
        share = shares_of_q(q, 30, 10)
        scores.append((ece(share), mce(share), q.mean(), q.var()))
    mean, sd = np.mean(scores, 0), np.std(scores, 0)
    assert found.sums_within == 2000
    # Five sd of one random order: a false alarm in 1e6.
    assert abs(found.ece_q_within.value - mean[0]) < 5 * sd[0]
    assert abs(found.mce_q_within - mean[1]) < 5 * sd[1]
    kld, wdist = (function(30, 60, mean[2], mean[3]) for function in (kl_between_normals, squared_w2_between_normals))
    assert_allclose([found.kld_q_within, found.wdist_q_within], [kld, wdist], rtol=0.1)


def test_only_draws_within_clusters_show_dependence():
    z = alike_by_cluster(400, 225, 0.3, seed=3, squares=True)
    found = report_of(z)
    assert found.ece_q.value < found.ece_q_band.q95
    assert found.ece_z.value < found.ece_z_band.q95
    assert found.ece_q_within.low > 5 * found.ece_q_within_floor.q95
    independent = report_of(alike_by_cluster(400, 225, 0.0, seed=4))
    assert independent.ece_q_within.value < independent.ece_q_within_floor.q95
    assert independent.ece_q_within.low == 0


def test_floor_within_clusters_is_that_of_independent_sums():
    found = report_of(alike_by_cluster(50, 800, 0.0, seed=0), df=40, bins=20).ece_q_within_floor
    rng = np.random.default_rng(0)
    scores = [ece(shares_of_q(rng.chisquare(40, 1000), 40, 20)) for _ in range(1000)]
    assert_allclose([found.expected, found.q95], [np.mean(scores), np.quantile(scores, 0.95)], rtol=0.05)


def false_alarms(clusters, size, correlation, *, runs, squares=False):
    """Shares of calibrated data sets beyond the 95 % quantiles of their bands, of ECE(z) and of ECE(q)."""
    beyond = np.zeros(2)
    for seed in range(runs):
        found = report_of(alike_by_cluster(clusters, size, correlation, 1000 + seed, squares=squares), seed=seed)
        beyond += [found.ece_z.value > found.ece_z_band.q95, found.ece_q.value > found.ece_q_band.q95]
    return beyond / runs


@pytest.mark.parametrize(("squares", "correlation"), [(False, 0.5), (True, 0.8)])
def test_bands_hold_calibrated_models_with_strongly_dependent_residuals(squares, correlation):
    # 5 % are expected; 60 data sets have 9 or more beyond (15 %) with probability 0.3 %. Bands that took the residuals
    # for independent would be exceeded by nearly all.
    of_z, of_q = false_alarms(100, 200, correlation, runs=60, squares=squares)
    assert of_z < 0.15
    assert of_q < 0.2
    z = alike_by_cluster(100, 200, correlation, 1, squares=squares)
    independent = fcal.evaluate(Normal(torch.zeros_like(z), 1.0), z).ece_z_floor
    assert report_of(z).ece_z_band.expected > 1.5 * independent.q95


def test_band_is_the_distribution_of_scores_of_calibrated_models():
    scores = [ece(shares_of_z(alike_by_cluster(100, 100, 0.5, seed).numpy().ravel(), 20)) for seed in range(400)]
    bands = [report_of(alike_by_cluster(100, 100, 0.5, seed), df=1).ece_z_band for seed in range(8)]
    assert_allclose(np.mean([band.expected for band in bands]), np.mean(scores), rtol=0.1)
    assert_allclose(np.mean([band.q95 for band in bands]), np.quantile(scores, 0.95), rtol=0.15)


@pytest.mark.parametrize("scale", [0.6, 1.7])
def test_band_of_a_model_with_wrong_sigma_is_that_of_the_right_one(scale):
    z = alike_by_cluster(100, 500, 0.5, seed=5)
    right, wrong = report_of(z), report_of(scale * z)
    assert wrong.ece_z.low > wrong.ece_z_band.q95
    for name in ("ece_z_band", "ece_q_band"):
        assert_allclose(getattr(wrong, name).q95, getattr(right, name).q95, rtol=0.15)


def test_bands_of_independent_residuals_are_the_floors_of_independent_rows():
    z = alike_by_cluster(500, 100, 0.0, seed=6)
    found, plain = report_of(z), fcal.evaluate(Normal(torch.zeros_like(z), 1.0), z)
    assert_allclose(found.ece_z_band.expected, plain.ece_z_floor.expected, rtol=0.1)
    assert_allclose(found.ece_z_band.q95, plain.ece_z_floor.q95, rtol=0.1)
    assert_allclose(found.ece_q_band.expected, plain.ece_q_floor.expected, rtol=0.2)


def test_interval_holds_the_score_of_the_population():
    # z is N(0, 1.3^2), alike within clusters: its ECE is known. 95 % are expected, and more near 0, where intervals
    # are wide; 90 % or less of 60 data sets happens with probability 8 %, 83 % with 0.03 %.
    edges = stats.norm.ppf(np.arange(21) / 20)
    truth = ece(np.diff(stats.norm.cdf(edges / 1.3)))
    inside = 0
    for seed in range(60):
        interval = report_of(1.3 * alike_by_cluster(100, 100, 0.5, seed), df=1, seed=seed).ece_z
        assert interval.low <= interval.value <= interval.high
        inside += interval.low <= truth <= interval.high
    assert inside > 50


def test_clusters_may_be_labelled_by_pixel_row_or_image():
    z = alike_by_cluster(12, 60, 0.5, seed=0).reshape(12, 6, 10)
    images = torch.arange(12)
    by_image = report_of(z, df=10, cluster=images)
    assert report_of(z, df=10, cluster=images.reshape(12, 1, 1).expand(12, 6, 10)) == by_image
    assert report_of(z, df=10, cluster=images.reshape(12, 1).expand(12, 6)) == by_image


def test_clusters_in_any_order_have_the_same_scores():
    z = alike_by_cluster(30, 50, 0.5, seed=0)
    cluster = torch.arange(30).reshape(-1, 1).expand(30, 50)
    order = torch.randperm(1500, generator=torch.Generator().manual_seed(0))
    mixed = report_of(z.reshape(-1)[order], df=10, cluster=cluster.reshape(-1)[order])
    whole = report_of(z, df=10, cluster=cluster)
    assert (mixed.ece_z, mixed.ece_z_band) == (whole.ece_z, whole.ece_z_band)
    assert_allclose(mixed.ece_q.value, whole.ece_q.value, rtol=1e-9)
    assert (mixed.sums_within, mixed.clusters) == (150, 30)


def test_missing_and_masked_targets_do_not_count():
    z = alike_by_cluster(20, 40, 0.5, seed=0)
    valid = torch.rand(z.shape, generator=torch.Generator().manual_seed(0)) < 0.6
    valid[3] = False
    by_mask = report_of(z, df=5, valid_mask=valid)
    by_nan = report_of(torch.where(valid, z, torch.nan), df=5)
    assert by_mask == by_nan
    assert by_mask.clusters == 19
    assert by_mask.sums_within == sum(int(count) // 5 for count in valid.sum(1))


def test_clusters_too_small_for_a_sum_are_counted():
    z = alike_by_cluster(20, 40, 0.0, seed=0)
    z[:7, 10:] = torch.nan
    some = report_of(z, df=11)
    assert (some.short_clusters, some.sums_within) == (7, 39)
    none = report_of(z, df=41)
    assert (none.short_clusters, none.sums_within) == (20, 0)
    names = ("ece_q_within", "ece_q_within_floor", "mce_q_within", "kld_q_within", "wdist_q_within")
    assert [getattr(none, name) for name in names] == [None] * 5
    assert none.as_dict()["ece_q_within"] is None


def test_same_generator_gives_the_same_report_and_another_one_another_order():
    z = alike_by_cluster(20, 200, 0.5, seed=0)
    first, again, other = (report_of(z, df=30, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first.kld_q_within != other.kld_q_within
    assert first.ece_z.value == other.ece_z.value


def test_other_families_and_vectors_have_residuals_too():
    generator = torch.Generator().manual_seed(0)
    z = alike_by_cluster(20, 100, 0.5, seed=0)
    y = fcal.residuals.unstandardize(Laplace(torch.zeros_like(z), 1.0), z)
    assert_allclose(report_of(y, df=10, family=Laplace).ece_q.value, report_of(z, df=10).ece_q.value, rtol=1e-6)
    vectors = torch.randn(20, 50, 2, generator=generator)
    found = cluster_calibration(
        MultivariateNormal(torch.zeros(20, 50, 2), torch.eye(2)), vectors, cluster=torch.arange(20), df=30
    )
    assert (found.n, found.sums_within) == (2000, 60)
    scalar = report_of(vectors.reshape(20, 100), df=30)
    assert found.ece_z.value == scalar.ece_z.value
    independent = Independent(Normal(torch.zeros(20, 50, 2), torch.ones(20, 50, 2)), 1)
    again = cluster_calibration(independent, vectors, cluster=torch.arange(20), df=30)
    assert again.ece_z.value == scalar.ece_z.value


def test_more_clusters_than_buckets_are_estimated():
    z = alike_by_cluster(6000, 4, 0.5, seed=0)
    found = report_of(z, df=2, cluster=7_000_000 * torch.arange(1, 6001))
    assert_allclose(found.clusters, 6000, rtol=0.1)
    assert found.n == 24_000
    assert found.sums_within == 12_000


def test_residuals_beyond_all_cells_are_counted():
    z = torch.tensor([[1e30, -1e30], [0.0, 1.0]], dtype=torch.float64)
    assert report_of(z, df=2).n == 4


PAIR = torch.zeros(4, 5)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"cluster": torch.zeros(4, dtype=torch.int64)},
            ValueError,
            "expected `cluster` with at least 2 clusters that",
        ),
        ({"cluster": torch.arange(4.0)}, TypeError, "expected `cluster` of an integer dtype, got torch.float32"),
        ({"cluster": torch.arange(3)}, ValueError, "expected `cluster` of shape"),
        ({"cluster": None}, TypeError, "expected `cluster` a tensor of integers, got NoneType"),
        ({"bins": 101}, ValueError, "expected `bins` <= 100, got 101"),
        ({"bins": 1}, ValueError, "expected `bins` >= 2, got 1"),
        ({"df": 0}, ValueError, "expected `df` >= 1, got 0"),
        ({"valid_mask": torch.zeros(4, 5, dtype=torch.bool)}, ValueError, "at least 1 value that counts, got 0"),
    ],
)
def test_bad_options_are_refused_by_name(options, error, message):
    with pytest.raises(error, match=message):
        cluster_calibration(Normal(PAIR, 1.0), PAIR, **{"cluster": torch.arange(4), **options})
