"""What a calibrated model scores: against enumeration, simulation and the paper's digest."""

import math

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy import stats
from torch.distributions import Normal

import fcal
from fcal.metrics import expected_ece_of_z, repaired_floors
from fcal.metrics.calibration_errors import floors, interpolated_floors


@pytest.mark.parametrize("bins", [2, 3, 7, 20, 100, 1000])
@pytest.mark.parametrize("n", [1, 2, 3, 10, 37, 100, 500])
def test_expected_ece_is_the_sum_over_all_counts(n, bins):
    k = np.arange(n + 1)
    expected = bins * (stats.binom.pmf(k, n, 1 / bins) * (k / n) * np.abs(1 / bins - k / n)).sum()
    assert_allclose(expected_ece_of_z(n, bins), expected, rtol=1e-10)


@pytest.mark.parametrize("n", [10_000, 1_000_000, 100_000_000])
def test_expected_ece_of_much_data_is_the_normal_limit(n):
    # E|N(0, 1)| = 0.798 times the sd of a share, sqrt((1 - 1/S) / (S n)), plus terms of 1 / n
    bins = 20
    assert_allclose(
        expected_ece_of_z(n, bins), math.sqrt(2 / math.pi * (1 - 1 / bins) / (bins * n)), rtol=3 / math.sqrt(n)
    )


@pytest.mark.parametrize(("n", "factor"), [(100_000, 1.0), (100, 1.25), (10, 4.0)])
def test_expected_ece_grows_over_the_limit_where_data_are_fewer_than_bins(n, factor):
    # S = 100: the digest gives 1, 1.25 and 4 times 0.8 / sqrt(S n) for n >> S, n = S, n = S / 10
    assert_allclose(expected_ece_of_z(n, 100), factor * 0.8 / math.sqrt(100 * n), rtol=0.06)


@pytest.mark.parametrize(("n", "bins"), [(0, 20), (10, 1)])
def test_expected_ece_refuses_what_has_no_bins_or_data(n, bins):
    with pytest.raises(ValueError, match=r"expected `(n|bins)` >= "):
        expected_ece_of_z(n, bins)


def simulated_reports(n, runs, *, df=75, bins=20, seed=0, sigma=None):
    generator = torch.Generator().manual_seed(seed)
    sigma = torch.tensor(1.0, dtype=torch.float64) if sigma is None else sigma
    reports = []
    for _ in range(runs):
        y = sigma * torch.randn(n, generator=generator, dtype=torch.float64)
        reports.append(fcal.evaluate(Normal(torch.zeros_like(y), sigma), y, df=df, bins=bins))
    return reports


@pytest.mark.parametrize(
    ("n", "df", "bins"), [(50, 75, 20), (1000, 75, 20), (1000, 1, 10), (1000, 2, 50), (4000, 75, 15), (800, 2000, 20)]
)
def test_floors_are_what_calibrated_data_score(n, df, bins):
    # 200 data sets of normal residuals. Their mean is known to sd / 14, that of 500 runs for the floor to sd / 22: five
    # standard errors of the difference are 0.42 sd, passed by chance in 6e-7 of seeds. Of 200, 10 lie beyond the 95 %
    # quantile, which 500 runs tell to a percent, so from 0 to 28 do but in 1e-4 of seeds.
    reports = simulated_reports(n, 200, df=df, bins=bins)
    for name in ("ece_z", "mce_z", "ece_q", "mce_q"):
        scores = np.array([getattr(report, name) for report in reports])
        floor = getattr(reports[0], f"{name}_floor")
        assert abs(scores.mean() - floor.expected) < 0.42 * scores.std(), name
        assert np.sum(scores > floor.q95) <= 28, name


@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_floor_of_ence_is_what_calibrated_data_score(spread):
    sigma = torch.exp(spread * torch.randn(1500, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    reports = simulated_reports(1500, 300, sigma=sigma, seed=1)
    scores, floor = np.array([report.ence for report in reports]), reports[0].ence_floor
    # as above; the Gamma law that stands for a mean of squares has their first two moments only, hence 5 % more
    assert abs(scores.mean() - floor.expected) < 0.37 * scores.std() + 0.05 * floor.expected
    assert 1 <= np.sum(scores > floor.q95) <= 40


def test_floor_of_q_is_the_one_of_the_digest_without_the_noise_of_its_draws():
    # n = 4000, S = 15, K = 75: mean .0068, 95 % .016 by draws. Plain numpy gives .0091, .0075 and .0064 (+- .0004) with
    # 1e3, 4e3 and 2e4 draws a data set: what draws add falls like the root of their number; .0056 is left.
    floor = floors(4000, 15, 75)
    assert 0.0050 < floor.ece.expected < 0.0068
    assert 0.0125 < floor.ece.q95 < 0.0165


@pytest.mark.parametrize("n", [50, 700, 3000])
def test_floors_between_powers_of_two_are_near_those_of_their_own_number(n):
    # means of 500 runs are known to 3.5 %, 95 % quantiles to 7 %: 4 sd of differences
    near, own = interpolated_floors(n, 20, 75).ece, floors(n, 20, 75).ece
    assert_allclose(interpolated_floors(n, 20, 1).ece.expected, expected_ece_of_z(n, 20), rtol=0.03)
    assert_allclose(near.expected, own.expected, rtol=0.2)
    assert_allclose(near.q95, own.q95, rtol=0.4)


def test_floors_fall_with_the_number_of_rows_and_rise_with_clusters():
    generator = torch.Generator().manual_seed(0)
    shared = torch.randn(300, generator=generator, dtype=torch.float64).repeat_interleave(20)
    y = (shared + torch.randn(6000, generator=generator, dtype=torch.float64)) / math.sqrt(2)
    pred = Normal(torch.zeros_like(y), 1.0)
    alone = fcal.evaluate(pred, y)
    together = fcal.evaluate(pred, y, cluster=torch.arange(300).repeat_interleave(20))
    fewer = fcal.evaluate(Normal(torch.zeros(60).double(), 1.0), y[::100])
    for name in ("ece_z_floor", "mce_z_floor", "ece_q_floor", "mce_q_floor", "ence_floor"):
        assert getattr(alone, name).expected < getattr(together, name).expected, name
        assert getattr(alone, name).expected < getattr(fewer, name).expected, name
        assert getattr(alone, name).expected < getattr(alone, name).q95, name


def test_floors_are_the_same_in_every_run_and_use_no_global_randomness():
    torch.manual_seed(0)
    y = torch.randn(777)
    state = torch.get_rng_state()
    np_state = np.random.get_state()[1].copy()  # noqa: NPY002
    first = fcal.evaluate(Normal(torch.zeros(777), 1.0), y)
    floors.cache_clear()
    assert fcal.evaluate(Normal(torch.zeros(777), 1.0), y).ece_q_floor == first.ece_q_floor
    assert torch.equal(torch.get_rng_state(), state)
    assert np.array_equal(np.random.get_state()[1], np_state)  # noqa: NPY002


@pytest.mark.parametrize(("n", "fitted_on"), [(1000, 200), (4000, 1000)])
def test_repaired_floors_are_what_one_fitted_factor_scores(n, fitted_on):
    # 200 data sets, each with a factor fitted to residuals of its own; false alarms as for calibrated data, above
    generator = torch.Generator().manual_seed(5)
    reports = []
    for _ in range(200):
        factor = torch.randn(fitted_on, generator=generator, dtype=torch.float64).square().mean().sqrt()
        sigma = torch.rand(n, generator=generator, dtype=torch.float64) + 0.5
        y = sigma * torch.randn(n, generator=generator, dtype=torch.float64)
        reports.append(fcal.evaluate(Normal(torch.zeros_like(y), factor * sigma), y, df=50, bins=15))
    for name, floor in repaired_floors(n, fitted_on=fitted_on, df=50, bins=15).items():
        scores = np.array([getattr(report, name) for report in reports])
        slack = 0.05 * floor.expected if name == "ence" else 0.0  # its sigmas are equal within a bin only nearly
        assert abs(scores.mean() - floor.expected) < 0.42 * scores.std() + slack, name
        assert 1 <= np.sum(scores > floor.q95) <= 28, name


def test_repaired_floors_of_dependent_pairs_are_those_of_fewer_residuals():
    pairs, fewer = repaired_floors(4000, fitted_on=800, dependence=2.0), repaired_floors(2000, fitted_on=400)
    assert pairs == fewer


def test_repaired_floors_of_a_known_factor_are_those_of_calibrated_models():
    known = repaired_floors(2000, fitted_on=2**40)
    for name, exact in (("ece_z", floors(2000, 20, 1).ece), ("ece_q", floors(2000, 20, 75).ece)):
        assert_allclose(known[name].expected, exact.expected, rtol=0.1, err_msg=name)  # 500 runs: 4 sd


@pytest.mark.parametrize(
    ("options", "message"),
    [({"n": 1}, "`n` >= 2"), ({"fitted_on": 0}, "`fitted_on` >= 2"), ({"dependence": 0.0}, "`dependence` within")],
)
def test_repaired_floors_refuse_what_has_no_data(options, message):
    with pytest.raises(ValueError, match=message):
        repaired_floors(**{"n": 100, "fitted_on": 100, **options})
