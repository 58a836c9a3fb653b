"""Predictions of every kind: families, vectors, shapes, masks and precisions."""

import math

import numpy as np
import pytest
import torch
from metrics import brute_force
from metrics.same_reports import assert_same
from numpy.testing import assert_allclose
from scipy import integrate, stats
from torch.distributions import (
    AffineTransform,
    Categorical,
    Cauchy,
    Gamma,
    Independent,
    Laplace,
    LogNormal,
    LowRankMultivariateNormal,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    StudentT,
    TransformedDistribution,
    Uniform,
)

import fcal

N = 2000


def full(*values):
    return [torch.full((N,), v, dtype=torch.float64) for v in values]


def mixture():
    weights = torch.tensor([0.3, 0.7], dtype=torch.float64).expand(N, 2)
    loc, scale = (torch.tensor(v, dtype=torch.float64).expand(N, 2) for v in ([-1.0, 2.0], [0.5, 1.5]))
    return MixtureSameFamily(Categorical(weights), Normal(loc, scale))


class MixtureLaw:
    """The mixture above by SciPy's parts."""

    parts = ((0.3, stats.norm(-1, 0.5)), (0.7, stats.norm(2, 1.5)))

    def cdf(self, y):
        return sum(w * part.cdf(y) for w, part in self.parts)

    def sf(self, y):
        return sum(w * part.sf(y) for w, part in self.parts)

    def logpdf(self, y):
        return np.log(sum(w * part.pdf(y) for w, part in self.parts))

    def mean(self):
        return 0.3 * -1 + 0.7 * 2

    def std(self):
        return math.sqrt(0.3 * (0.25 + 1) + 0.7 * (2.25 + 4) - self.mean() ** 2)

    def support(self):
        return -np.inf, np.inf


LAWS = {
    "Laplace": (lambda: Laplace(*full(0.3, 1.7)), stats.laplace(0.3, 1.7)),
    "StudentT": (lambda: StudentT(*full(4.5, 0.3, 1.7)), stats.t(4.5, 0.3, 1.7)),
    "Gamma": (lambda: Gamma(*full(2.3, 1.3)), stats.gamma(2.3, scale=1 / 1.3)),
    "LogNormal": (lambda: LogNormal(*full(0.3, 0.7)), stats.lognorm(0.7, scale=math.exp(0.3))),
    "Uniform": (lambda: Uniform(*full(-1.0, 3.0)), stats.uniform(-1, 4)),
    "mixture": (mixture, MixtureLaw()),
    "moved Laplace": (
        lambda: TransformedDistribution(Laplace(*full(0.0, 1.0)), [AffineTransform(*full(1.0, -2.0))]),
        stats.laplace(1, 2),
    ),
}


def z_of(law, y):
    lower, upper = law.cdf(y), law.sf(y)
    return np.where(lower < upper, stats.norm.ppf(lower), stats.norm.isf(upper))


def crps_of(law, y):
    low, high = law.support()
    low, high = max(low, -80.0), min(high, 80.0)
    below = integrate.quad(lambda x: law.cdf(x) ** 2, low, y, limit=200)[0] if y > low else 0.0
    return below + (integrate.quad(lambda x: law.sf(x) ** 2, y, high, limit=200)[0] if y < high else 0.0)


@pytest.mark.parametrize("name", LAWS)
def test_numbers_of_a_family_are_those_of_its_probabilities(name):
    make, law = LAWS[name]
    torch.manual_seed(0)
    pred = make()
    y = pred.sample()
    report = fcal.evaluate(pred, y, bins=20, df=2)
    values = y.numpy()
    z = z_of(law, values)
    shares = brute_force.shares_of_z(z, 20)
    assert_allclose(report.nll, -law.logpdf(values).mean(), rtol=1e-9)
    assert_allclose([report.ece_z, report.mce_z], [brute_force.ece(shares), brute_force.mce(shares)], atol=1e-9)
    assert_allclose([report.scale.value, report.shift.value], [z.std(), z.mean()], rtol=1e-7, atol=1e-9)
    if name != "moved Laplace":  # torch knows no mean of a transformed law
        check_errors(report, law, values)
    for level, share in report.coverage.items():
        p = float(level)
        assert_allclose(share, np.mean(np.abs(law.cdf(values) - 0.5) <= p / 2), atol=1e-9)
    some = fcal.evaluate(pred, torch.where(torch.arange(N) < 40, y, torch.nan))
    assert_allclose(some.crps, np.mean([crps_of(law, x) for x in values[:40]]), rtol=1e-5)
    assert report.verdict == "calibrated"


def check_errors(report, law, values):
    error = values - law.mean()
    assert_allclose(report.rmse, math.sqrt((error**2).mean()), rtol=1e-9)
    assert_allclose(report.bias, error.mean(), rtol=1e-7, atol=1e-10)
    assert_allclose(report.sharpness, law.std(), rtol=1e-9)
    assert_allclose(report.ence, abs(1 - report.rmse / law.std()), rtol=1e-9)


def test_law_without_mean_has_no_numbers_that_need_one():
    torch.manual_seed(0)
    pred = Cauchy(*full(0.0, 1.0))
    report = fcal.evaluate(pred, pred.sample())
    assert (report.rmse, report.bias, report.sharpness, report.ence, report.ause) == (None,) * 5
    assert report.ence_floor is None
    assert report.curves.sigma is None
    assert report.curves.sparsification is None
    assert report.crps_split is None
    assert report.verdict == "calibrated"
    assert math.isfinite(report.nll)


def test_one_row_without_variance_takes_the_errors_of_its_group_only():
    torch.manual_seed(0)
    n = 70_000  # more than one piece
    df = torch.full((n,), 5.0, dtype=torch.float64)
    df[10] = 1.5
    pred = StudentT(df, torch.zeros(n, dtype=torch.float64), 1.0)
    y, group = torch.randn(n, dtype=torch.float64), torch.arange(n) % 2
    report = fcal.evaluate(pred, y, group=group)
    for one in (report, report.groups["0"]):
        assert (one.rmse, one.sharpness, one.ence, one.ause, one.ence_floor) == (None,) * 5
    alone = fcal.evaluate(StudentT(df[1::2], torch.zeros(n // 2, dtype=torch.float64), 1.0), y[1::2])
    for name in ("rmse", "sharpness", "ence", "ause"):
        assert_allclose(getattr(report.groups["1"], name), getattr(alone, name), rtol=1e-9)


def covariance(n, dims, seed=0):
    rng = np.random.default_rng(seed)
    factor = np.tril(rng.standard_normal((n, dims, dims)))
    factor[:, range(dims), range(dims)] = np.exp(0.5 * rng.standard_normal((n, dims)))
    return rng.standard_normal((n, dims)), factor


def check_vectors(pred, mean, cov, y):
    n, dims = y.shape
    report = fcal.evaluate(pred, torch.from_numpy(y), bins=20, df=10)
    whitened = np.stack([np.linalg.solve(np.linalg.cholesky(c), e) for c, e in zip(cov, y - mean, strict=True)])
    distance = (whitened**2).sum(1)
    shares = brute_force.shares_of_z(whitened.ravel(), 20)
    assert report.n == n * dims
    assert_allclose([report.ece_z, report.mce_z], [brute_force.ece(shares), brute_force.mce(shares)], atol=1e-9)
    for level, share in report.coverage.items():
        assert_allclose(share, np.mean(distance <= stats.chi2.ppf(float(level), dims)), atol=1e-9)
    densities = [stats.multivariate_normal(m, c).logpdf(row) for m, c, row in zip(mean, cov, y, strict=True)]
    assert_allclose(report.nll, -np.mean(densities) / dims, rtol=1e-8)
    assert_allclose(report.rmse, math.sqrt(((y - mean) ** 2).mean()), rtol=1e-9)
    assert_allclose(report.sharpness, math.sqrt(np.mean([np.diag(c).mean() for c in cov])), rtol=1e-9)
    assert_allclose([report.scale.value, report.shift.value], [whitened.std(), whitened.mean()], rtol=1e-8)
    assert report.crps is None
    assert report.crps_split is None
    return report


@pytest.mark.parametrize("dims", [1, 3])
def test_numbers_of_vectors_are_those_of_whitened_residuals(dims):
    mean, factor = covariance(600, dims)
    cov = factor @ factor.transpose(0, 2, 1)
    y = mean + 1.2 * (factor @ np.random.default_rng(1).standard_normal((600, dims, 1)))[..., 0]
    check_vectors(MultivariateNormal(torch.from_numpy(mean), torch.from_numpy(cov)), mean, cov, y)


def test_numbers_of_low_rank_vectors_are_those_of_the_same_covariance():
    rng = np.random.default_rng(0)
    mean, factor, diag = rng.standard_normal((500, 4)), rng.standard_normal((500, 4, 2)), rng.uniform(0.5, 2, (500, 4))
    cov = factor @ factor.transpose(0, 2, 1) + np.stack([np.diag(d) for d in diag])
    y = mean + (np.linalg.cholesky(cov) @ rng.standard_normal((500, 4, 1)))[..., 0]
    pred = LowRankMultivariateNormal(*(torch.from_numpy(x) for x in (mean, factor, diag)))
    report = fcal.evaluate(pred, torch.from_numpy(y))
    distance = np.array([e @ np.linalg.solve(c, e) for e, c in zip(y - mean, cov, strict=True)])
    for level, share in report.coverage.items():
        assert_allclose(share, np.mean(distance <= stats.chi2.ppf(float(level), 4)), atol=1e-9)
    assert report.n == 2000
    assert_allclose(report.shift.value**2 + report.scale.value**2, distance.mean() / 4, rtol=1e-8)


def test_vector_with_a_missing_coordinate_does_not_count():
    mean, factor = covariance(300, 2)
    cov, y = factor @ factor.transpose(0, 2, 1), mean + 1.0
    pred = MultivariateNormal(*(torch.from_numpy(x) for x in (mean, cov)))
    holes = torch.from_numpy(y.copy())
    holes[::3, 1] = torch.nan
    kept = np.arange(300) % 3 != 0
    some = MultivariateNormal(*(torch.from_numpy(x[kept]) for x in (mean, cov)))
    assert_same(fcal.evaluate(pred, holes), fcal.evaluate(some, torch.from_numpy(y[kept])))


def test_independent_coordinates_are_scalars():
    torch.manual_seed(0)
    loc, scale, y = torch.randn(200, 3), torch.rand(200, 3) + 0.5, torch.randn(200, 3)
    whole = fcal.evaluate(Independent(Normal(loc, scale), 1), y)
    assert whole.n == 600
    assert_same(whole, fcal.evaluate(Normal(loc.reshape(-1), scale.reshape(-1)), y.reshape(-1)))


def test_images_count_their_valid_pixels():
    torch.manual_seed(0)
    loc, scale, y = (torch.randn(4, 1, 30, 40) for _ in range(3))
    scale = scale.exp()
    mask = torch.rand(4, 1, 30, 40) > 0.4
    holes = y.masked_fill(torch.rand_like(y) > 0.9, torch.nan)
    kept = mask & ~holes.isnan()
    images = fcal.evaluate(Normal(loc, scale), holes, valid_mask=mask, df=5)
    rows = fcal.evaluate(Normal(loc[kept], scale[kept]), y[kept], df=5)
    assert images.n == int(kept.sum())
    assert_same(images, rows)


@pytest.mark.parametrize("family", [Normal, Laplace])
def test_bad_predictions_under_the_mask_do_not_matter(family):
    torch.manual_seed(0)
    loc, scale, y = torch.randn(100), torch.rand(100) + 0.5, torch.randn(100)
    mask = torch.arange(100) % 4 > 0
    spoiled = family(loc.masked_fill(~mask, torch.nan), scale.masked_fill(~mask, -1.0), validate_args=False)
    assert_same(fcal.evaluate(spoiled, y, valid_mask=mask), fcal.evaluate(family(loc[mask], scale[mask]), y[mask]))


def test_mask_of_rows_covers_the_coordinates():
    torch.manual_seed(0)
    loc, scale, y = torch.randn(50, 3), torch.rand(50, 3) + 0.5, torch.randn(50, 3)
    mask = torch.arange(50) % 2 == 0
    pred, some = Independent(Normal(loc, scale), 1), Independent(Normal(loc[::2], scale[::2]), 1)
    assert_same(fcal.evaluate(pred, y, valid_mask=mask), fcal.evaluate(some, y[::2]))


def test_scalar_parameters_are_shared_by_all_rows():
    y = torch.randn(500, generator=torch.Generator().manual_seed(0))
    every = fcal.evaluate(Normal(torch.full((500,), 0.1), torch.full((500,), 1.3)), y)
    assert_same(fcal.evaluate(Normal(torch.tensor(0.1), torch.tensor(1.3)), y), every)
    assert_same(fcal.evaluate(Normal(torch.full((500,), 0.1), torch.tensor(1.3)), y), every)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("family", [Normal, Laplace])
def test_half_precision_is_widened_before_anything_is_computed(dtype, family):
    torch.manual_seed(0)
    loc, scale, y = torch.randn(3000).to(dtype), (torch.rand(3000) + 0.5).to(dtype), torch.randn(3000).to(dtype)
    narrow = fcal.evaluate(family(loc, scale), y)
    wide = fcal.evaluate(family(loc.float(), scale.float()), y.float())
    assert_same(narrow, wide)


def test_gradients_are_not_recorded_and_inputs_not_changed():
    loc = torch.zeros(100, requires_grad=True)
    scale = torch.ones(100, requires_grad=True)
    y = torch.randn(100)
    before = y.clone()
    fcal.evaluate(Normal(loc, scale), y)
    torch.testing.assert_close(y, before, rtol=0, atol=0)
    torch.testing.assert_close(scale.detach(), torch.ones(100), rtol=0, atol=0)
    torch.testing.assert_close(loc.detach(), torch.zeros(100), rtol=0, atol=0)


def test_tensors_that_are_views_are_not_changed():
    table = torch.rand(200, 3, dtype=torch.float64) + 0.5
    before = table.clone()
    fcal.evaluate(Normal(table[:, 0], table[:, 1]), table[:, 2])
    torch.testing.assert_close(table, before, rtol=0, atol=0)
