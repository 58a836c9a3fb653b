"""Every number of a report against its definition."""

import itertools
import math

import numpy as np
import pytest
import torch
from metrics import brute_force
from numpy.testing import assert_allclose
from scipy import stats
from torch.distributions import Normal

import fcal

NOISE = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "skewed": lambda rng, n: rng.gamma(2, 1, n) - 2,
    "heavy": lambda rng, n: rng.standard_t(3, n),
    "sigma too small": lambda rng, n: 50 * rng.standard_normal(n),
    "sigma too large": lambda rng, n: 0.02 * rng.standard_normal(n),
    "biased": lambda rng, n: rng.standard_normal(n) + 3,
}
CLOSED = ("nll", "crps", "rmse", "bias", "sharpness", "kld_z", "wdist_z", "kld_q", "wdist_q")


def data(noise="normal", n=5000, *, seed=0, dtype=torch.float64):
    rng = np.random.default_rng(seed)
    mean, sigma = 3 * rng.standard_normal(n), np.exp(rng.standard_normal(n))
    y = mean + sigma * NOISE[noise](rng, n)
    return tuple(torch.from_numpy(x).to(dtype) for x in (mean, sigma, y))


@pytest.mark.parametrize("bins", [7, 20, 1000])
@pytest.mark.parametrize("df", [1, 2, 75, 1000])
@pytest.mark.parametrize("noise", NOISE)
def test_evaluate_agrees_with_definitions_in_float64(noise, df, bins):
    mean, sigma, y = data(noise)
    report = fcal.evaluate(Normal(mean, sigma), y, df=df, bins=bins)
    expected = brute_force.numbers(mean, sigma, y, bins=bins, df=df)
    assert (report.n, report.df, report.bins) == (expected["n"], df, bins)
    for name in CLOSED:
        assert_allclose(getattr(report, name), expected[name], rtol=1e-9, err_msg=name)
    for name in ("ece_z", "mce_z"):
        assert_allclose(getattr(report, name), expected[name], rtol=1e-9, atol=1e-12, err_msg=name)
    assert_allclose(report.scale.value, expected["scale"], rtol=1e-10)
    assert_allclose(report.shift.value, expected["shift"], rtol=1e-10)
    assert list(report.coverage) == ["0.5", "0.68", "0.9", "0.95", "0.99"]
    assert report.coverage == expected["coverage"]


@pytest.mark.parametrize("noise", NOISE)
def test_evaluate_agrees_with_definitions_in_float32(noise):
    mean, sigma, y = data(noise, dtype=torch.float32)
    report = fcal.evaluate(Normal(mean, sigma), y)
    expected = brute_force.numbers(mean, sigma, y, bins=20, df=75)
    for name in CLOSED:
        assert_allclose(getattr(report, name), expected[name], rtol=2e-5, atol=1e-6, err_msg=name)
    # float32 may put a residual that lies on an edge into the neighbouring bin: two of 5000 at most, so 4e-4
    for name in ("ece_z", "mce_z"):
        assert_allclose(getattr(report, name), expected[name], atol=4e-4, err_msg=name)
    for level, share in expected["coverage"].items():
        assert_allclose(report.coverage[level], share, atol=4e-4)


@pytest.mark.parametrize("bins", [7, 20, 1000])
@pytest.mark.parametrize("noise", NOISE)
def test_ece_of_q_of_single_squares_is_that_of_the_data(noise, bins):
    mean, sigma, y = data(noise)
    report = fcal.evaluate(Normal(mean, sigma), y, df=1, bins=bins)
    z = ((y - mean) / sigma).numpy()
    shares = brute_force.shares_of_q(z**2, 1, bins)
    assert_allclose([report.ece_q, report.mce_q], [brute_force.ece(shares), brute_force.mce(shares)], rtol=1e-9)


@pytest.mark.parametrize("bins", [7, 20, 100])
@pytest.mark.parametrize("noise", NOISE)
def test_ece_of_q_of_pairs_is_that_of_all_pairs(noise, bins):
    mean, sigma, y = data(noise, n=1500)
    report = fcal.evaluate(Normal(mean, sigma), y, df=2, bins=bins)
    z = ((y - mean) / sigma).numpy()
    shares = brute_force.shares_of_q((z[:, None] ** 2 + z**2).ravel(), 2, bins)
    # residuals are told apart to 0.004, squares to 0.001: a pair near one of the edges may change its bin
    assert_allclose(report.ece_q, brute_force.ece(shares), rtol=5e-3, atol=1e-4)
    assert_allclose(report.mce_q, brute_force.mce(shares), rtol=5e-3, atol=2e-4)


@pytest.mark.parametrize(("df", "draws"), [(2, 400_000), (10, 200_000), (75, 100_000), (1000, 8000), (10_000, 1000)])
@pytest.mark.parametrize("noise", ["normal", "heavy", "skewed"])
def test_ece_of_q_is_the_limit_of_draws_with_replacement(noise, df, draws):
    mean, sigma, y = data(noise)
    bins = 20
    report = fcal.evaluate(Normal(mean, sigma), y, df=df, bins=bins)
    shares = brute_force.shares_of_q(brute_force.drawn_sums(((y - mean) / sigma).numpy(), df, draws), df, bins)
    # A share is off by a binomial sd; 5 of them are passed by none of 2 x 15 numbers but in 2e-5 of seeds. The ECE adds
    # a bias of at most the sum of p sd(p).
    sd = np.sqrt(shares * (1 - shares) / draws)
    assert abs(report.mce_q - brute_force.mce(shares)) < 5 * sd.max() + 1e-3
    slope = np.abs(np.abs(1 / bins - shares) + shares * np.sign(shares - 1 / bins))
    limit = 5 * np.sqrt((slope**2 * sd**2).sum()) + (np.maximum(shares, 1 / bins) * sd).sum()
    assert abs(report.ece_q - brute_force.ece(shares)) < limit + 1e-3


def test_ece_of_q_of_very_many_squares_is_that_of_the_normal_limit():
    # The mean of 1e4 squares is normal to 1e-2 of its sd (skewness 0.03); edges of chi-squared likewise.
    z = torch.randn(4000, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    z = z / z.std()
    square = (z * 1.01).square()
    report = fcal.evaluate(Normal(torch.zeros_like(z), 1.0), 1.01 * z, df=10_000, bins=10)
    edges = stats.chi2.ppf(np.arange(1, 10) / 10, 10_000)
    cdf = stats.norm.cdf(edges, 10_000 * square.mean(), math.sqrt(10_000 * square.var(correction=0)))
    shares = np.diff([0, *cdf, 1])
    assert_allclose(report.ece_q, brute_force.ece(shares), atol=0.012)
    assert_allclose(report.mce_q, brute_force.mce(shares), atol=0.012)


def test_ece_reaches_its_ceiling_when_one_bin_holds_everything():
    y = torch.randn(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    report = fcal.evaluate(Normal(torch.zeros_like(y), 1e-9), y - 100, bins=25)
    assert_allclose([report.ece_z, report.mce_z, report.ece_q, report.mce_q], 1 - 1 / 25, rtol=1e-12)


def test_ece_is_a_weighted_mean_and_mce_a_maximum():
    shares = np.array([0.1, 0.2, 0.3, 0.4])
    assert_allclose(fcal.metrics.expected_calibration_error(shares), 0.1 * 0.15 + 0.2 * 0.05 + 0.3 * 0.05 + 0.4 * 0.15)
    assert_allclose(fcal.metrics.maximum_calibration_error(shares), 0.15)


def test_drawn_calibration_error_tends_to_that_of_evaluate():
    mean, sigma, y = data("heavy", n=4000)
    pred = Normal(mean, sigma)
    drawn = fcal.metrics.drawn_calibration_error(
        pred, y, df=20, bins=20, draws=100_000, generator=torch.Generator().manual_seed(0)
    )
    # 20 of 4000 without replacement have 0.5 % less variance than with replacement; a share is known to 7e-4
    assert_allclose(drawn, fcal.evaluate(pred, y, df=20, bins=20).ece_q, atol=4e-3)


def test_ence_is_the_textbook_mean_over_sigmas_that_are_well_apart():
    # 15 sigmas of 100 rows each are 15 bins, whatever the rule of binning: factors of 2 are far more than 3 % apart
    rng = np.random.default_rng(0)
    levels = 2.0 ** np.arange(-7, 8)
    sigma = np.repeat(levels, 100)
    error = sigma * rng.standard_normal(1500) * np.repeat(rng.uniform(0.5, 2, 15), 100)
    order = rng.permutation(1500)
    report = fcal.evaluate(
        Normal(torch.zeros(1500).double(), torch.from_numpy(sigma[order])), torch.from_numpy(error[order])
    )
    by_level = [math.sqrt((error[sigma == s] ** 2).mean()) for s in levels]
    assert_allclose(report.ence, np.mean([abs(s - e) / s for s, e in zip(levels, by_level, strict=True)]), rtol=1e-12)
    assert_allclose(report.curves.sigma.sigma, levels, rtol=1e-12)
    assert_allclose(report.curves.sigma.error, by_level, rtol=1e-12)
    assert report.curves.sigma.count == (100,) * 15


def test_ence_of_one_sigma_is_its_relative_error():
    y = torch.randn(300, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    report = fcal.evaluate(Normal(torch.zeros_like(y), 0.37), y)
    assert_allclose(report.ence, abs(1 - y.square().mean().sqrt().item() / 0.37), rtol=1e-12)


def test_ence_of_many_sigmas_is_near_that_of_equal_bins_of_sorted_sigmas():
    mean, sigma, y = data("heavy", n=30_000)
    report = fcal.evaluate(Normal(mean, sigma), y)
    order = np.argsort(sigma.numpy())
    error, spread = ((y - mean).numpy() ** 2)[order], (sigma.numpy() ** 2)[order]
    ratio = [math.sqrt(e.mean() / s.mean()) for e, s in zip(np.split(error, 15), np.split(spread, 15), strict=True)]
    # bins of sigma are 3 % wide and hold 1 % of the data, so a bin of 2000 may differ by 300 rows
    assert_allclose(report.ence, np.mean(np.abs(np.array(ratio) - 1)), rtol=0.1)


@pytest.mark.parametrize("noise", ["normal", "heavy", "skewed"])
@pytest.mark.parametrize("n", [300, 20_000])
def test_ause_is_the_area_between_sorted_curves(noise, n):
    mean, sigma, y = data(noise, n=n)
    report = fcal.evaluate(Normal(mean, sigma), y)
    assert_allclose(report.ause, brute_force.ause(sigma.numpy(), (y - mean).numpy()), atol=1e-2)


def test_ause_is_zero_when_sigma_ranks_the_errors_perfectly():
    _, _, y = data(n=20_000)
    assert abs(fcal.evaluate(Normal(torch.zeros_like(y), 2 * y.abs()), y).ause) < 1e-3


def test_ause_of_a_sigma_that_knows_nothing_is_that_of_a_flat_curve():
    # RMSE does not fall when rows are dropped at random, so the curve by sigma is 1; normal errors kept up to |z| < c
    # have mean square 1 - 2 c phi(c) / share, the curve by error.
    y = torch.randn(200_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    report = fcal.evaluate(Normal(torch.zeros_like(y), 1.0), y)
    dropped = np.linspace(0, 0.99, 4001)
    c = stats.norm.isf(np.maximum(dropped, 1e-12) / 2)
    best = np.sqrt(1 - 2 * c * stats.norm.pdf(c) / (1 - dropped))
    assert_allclose(report.ause, np.trapezoid(1 - best, dropped) / 0.99, atol=2e-3)


def test_errors_that_are_all_zero_are_under_confident():
    y = torch.arange(50.0, dtype=torch.float64)
    report = fcal.evaluate(Normal(y, 1.0), y)
    assert report.verdict == "under-confident"
    assert (report.rmse, report.scale.value, report.wdist_z, report.kld_z) == (0.0, 0.0, 1.0, math.inf)


def test_residuals_beyond_float32_are_counted_like_those_of_float64():
    y = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    y[3] = 1e30
    sigma = torch.full((1000,), 1e-12)
    narrow, wide = (
        fcal.evaluate(Normal(torch.zeros_like(x), s), x) for x, s in ((y, sigma), (y.double(), sigma.double()))
    )
    assert narrow.verdict == wide.verdict == "over-confident"
    assert math.isfinite(narrow.nll)
    assert narrow.ece_z == wide.ece_z


def test_residuals_out_of_reach_are_told_of():
    y = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    report = fcal.evaluate(Normal(torch.zeros(1000), 0.01), y)
    assert any("beyond 17 sd: is the spread in the right unit" in text for text in report.warnings)
    assert not fcal.evaluate(Normal(torch.zeros(1000), 1.0), y).warnings


class TestSplits:
    """Scores taken apart, against closed forms."""

    n = 400_000

    def both(self, sigma, y):
        report = fcal.evaluate(Normal(torch.zeros_like(y), sigma), y)
        for score, split in ((report.nll, report.nll_split), (report.crps, report.crps_split)):
            assert_allclose(split.miscalibration - split.discrimination + split.uncertainty, score, rtol=1e-9)
        return report.nll_split, report.crps_split

    def heteroscedastic(self):
        generator = torch.Generator().manual_seed(0)
        true = torch.exp(torch.randn(self.n, generator=generator, dtype=torch.float64))
        return true, true * torch.randn(self.n, generator=generator, dtype=torch.float64)

    @pytest.mark.parametrize("factor", [0.5, 0.8, 1.25, 2.0])
    def test_miscalibration_of_a_scale_error_is_the_divergence_to_the_right_prediction(self, factor):
        true, y = self.heteroscedastic()
        nll, crps = self.both(factor * true, y)
        # NLL: KL(N(0, 1) || N(0, factor^2)). CRPS of N(0, s^2) when N(0, 1) is true: see the integral of the gap.
        assert_allclose(nll.miscalibration, brute_force.kl_between_normals(0, 1, 0, factor**2), rtol=0.02, atol=1e-3)
        mean_score = lambda s: 2 * math.sqrt((1 + s**2) / (2 * math.pi)) - s / math.sqrt(math.pi)  # noqa: E731
        excess = mean_score(factor) - mean_score(1)
        assert_allclose(crps.miscalibration, true.mean().item() * excess, rtol=0.03)

    def test_miscalibration_of_a_bias_is_its_divergence(self):
        true, y = self.heteroscedastic()
        report = fcal.evaluate(Normal(-0.5 * true, true), y)
        assert_allclose(report.nll_split.miscalibration, 0.125, rtol=0.02)

    def test_truth_has_no_miscalibration(self):
        true, y = self.heteroscedastic()
        nll, crps = self.both(true, y)
        assert nll.miscalibration < 1e-3
        assert crps.miscalibration < 1e-4 * true.mean()

    def test_uncertainty_is_the_score_of_one_normal_law_for_all(self):
        true, y = self.heteroscedastic()
        nll, crps = self.both(true, y)
        m, s = y.mean().item(), y.std(correction=0).item()
        # its NLL on the data, and, of the CRPS, what that law expects of itself: sd / sqrt(pi)
        assert_allclose(nll.uncertainty, -stats.norm.logpdf(y.numpy(), m, s).mean(), rtol=1e-9)
        assert_allclose(crps.uncertainty, s / math.sqrt(math.pi), rtol=1e-9)

    def test_constant_sigma_is_calibrated_but_tells_less_than_the_truth(self):
        # Uniformly small against large errors of two kinds, half and half: z of a constant sigma is made normal by
        # drawing y from a normal law and calling its parts by a feature that knows only |y|.
        generator = torch.Generator().manual_seed(1)
        y = torch.randn(self.n, generator=generator, dtype=torch.float64)
        flat, knowing = Normal(torch.zeros_like(y), 1.0), Normal(torch.where(y > 0, 0.8, -0.8), 0.6)
        one, two = (fcal.evaluate(pred, y) for pred in (flat, knowing))
        assert one.nll_split.miscalibration < 1e-3
        assert one.crps_split.miscalibration < 1e-4
        assert abs(one.nll_split.discrimination) < 1e-3
        assert two.nll_split.discrimination > one.nll_split.discrimination + 0.3
        assert two.crps_split.discrimination > one.crps_split.discrimination + 0.1

    def test_constant_sigma_of_mixed_noise_discriminates_less_than_the_true_sigma(self):
        true, y = self.heteroscedastic()
        constant = torch.full_like(y, y.std().item())
        (nll_true, crps_true), (nll_flat, crps_flat) = self.both(true, y), self.both(constant, y)
        assert nll_true.discrimination > nll_flat.discrimination + 0.1
        assert crps_true.discrimination > crps_flat.discrimination + 0.01

    def test_splits_are_none_where_targets_do_not_vary(self):
        y = torch.full((1000,), 0.1, dtype=torch.float64)
        report = fcal.evaluate(Normal(torch.linspace(-1, 1, 1000, dtype=torch.float64), 1.0), y)
        assert report.nll_split is None
        assert report.crps_split is None


def test_curves_are_shares_of_the_data():
    mean, sigma, y = data("skewed")
    report = fcal.evaluate(Normal(mean, sigma), y)
    z = ((y - mean) / sigma).numpy()
    curve = report.curves.z
    assert_allclose(curve.nominal, np.arange(21) / 20, atol=1e-12)
    assert_allclose(curve.empirical, [np.mean(stats.norm.cdf(z) < p) for p in np.arange(20) / 20] + [1], atol=1e-12)
    central = report.curves.central
    inside = [np.mean(np.abs(2 * stats.norm.cdf(z) - 1) < p) for p in central.nominal[:-1]]
    assert_allclose(central.empirical[:-1], inside, atol=3e-4)
    assert_allclose(
        report.curves.q.empirical[1:-1],
        brute_force.shares_of_q(brute_force.drawn_sums(z, 75, 50_000), 75, 20).cumsum()[:-1],
        atol=0.011,
    )  # 5 sd of a share of 50,000
    bars = report.curves.z_histogram
    counted = np.histogram(z, bars.edges)[0] / len(z) / np.diff(bars.edges)
    assert_allclose(bars.density, counted, atol=1e-9)
    assert_allclose(bars.beyond, np.mean((z < bars.edges[0]) | (z >= bars.edges[-1])), atol=1e-12)
    q = report.curves.q_histogram
    assert_allclose(np.dot(q.density, np.diff(q.edges)) + q.beyond, 1, rtol=1e-9)
    normal, seen = report.curves.qq
    inner = np.abs(normal) < 2
    assert_allclose(np.array(seen)[inner], np.quantile(z, stats.norm.cdf(normal))[inner], atol=0.05)


def test_bands_hold_95_percent_of_calibrated_models_at_each_level():
    # 400 data sets x 19 levels: a share of 95 % is known to about 1 % (levels of one set hang together); limits are
    # 4 sd away, a false alarm in 1e-4 of seeds.
    generator = torch.Generator().manual_seed(5)
    inside = {name: [] for name in ("z", "central", "q")}
    for _ in range(400):
        y = torch.randn(1000, generator=generator, dtype=torch.float64)
        curves = fcal.evaluate(Normal(torch.zeros_like(y), 1.0), y).curves
        for name, found in inside.items():
            curve = getattr(curves, name)
            low, mid, high = (np.array(x)[1:-1] for x in (curve.low, curve.empirical, curve.high))
            found.append(np.mean((low <= mid) & (mid <= high)))
    for name, found in inside.items():
        assert 0.92 < np.mean(found) < 0.98, name


def test_pairs_of_residuals_by_hand():
    # z = 0 and 2: q of two squares is 0, 4 or 8 with chances 1/4, 1/2, 1/4; quartiles of chi-squared with 2 degrees of
    # freedom are 0.58, 1.39, 2.77, so the shares are 1/4, 0, 0, 3/4
    y = torch.tensor([0.0, 2.0], dtype=torch.float64)
    report = fcal.evaluate(Normal(torch.zeros(2).double(), 1.0), y, df=2, bins=4)
    sums = [a**2 + b**2 for a, b in itertools.product((0, 2), repeat=2)]
    assert sorted(sums) == [0, 4, 4, 8]
    assert_allclose([report.ece_q, report.mce_q], [0.75 * 0.5, 0.5], atol=1e-7)
