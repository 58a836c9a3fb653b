"""Recalibrators: closed forms, optima, laws they return, masks, shapes, dtypes, refusals."""

import math

import numpy as np
import pytest
import torch
from scipy import optimize, stats
from torch import Tensor
from torch.distributions import (
    Categorical,
    Cauchy,
    Distribution,
    Gamma,
    Gumbel,
    Independent,
    Laplace,
    LogNormal,
    LowRankMultivariateNormal,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    StudentT,
    TransformedDistribution,
)
from torch.distributions.transforms import ExpTransform

import fcal
from fcal.distributions import Logistic, QuantileLaw, Warped
from fcal.metrics import fingerprint
from fcal.recalibration import Affine, Conformal, GPBeta, Isotonic, Temperature, by_name, names

ALL = [Temperature, Affine, Isotonic, Conformal, lambda: GPBeta(inducing=8, steps=20)]
COUNT = 400


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def ones(*shape: int) -> Tensor:
    return torch.ones(*shape, dtype=torch.float64)


FAMILIES: dict[str, Distribution] = {
    "normal": Normal(noise(COUNT), ones(COUNT)),
    "laplace": Laplace(noise(COUNT), ones(COUNT)),
    "logistic": Logistic(noise(COUNT), ones(COUNT)),
    "student": StudentT(4 * ones(COUNT), noise(COUNT), ones(COUNT)),
    "cauchy": Cauchy(noise(COUNT), ones(COUNT)),
    "gumbel": Gumbel(noise(COUNT), ones(COUNT)),
}


def test_temperature_of_normal_predictions_is_the_root_mean_square_residual():
    pred, y = Normal(noise(50), 0.5 * ones(50)), noise(50, seed=1)
    factor = Temperature().fit(pred, y).factor
    torch.testing.assert_close(factor, ((y - pred.loc) / 0.5).square().mean().sqrt())


@pytest.mark.parametrize("name", FAMILIES)
def test_temperature_has_the_most_likely_factor_by_brute_force(name: str):
    pred = FAMILIES[name]
    y = pred.loc + 2.5 * noise(COUNT, seed=2)
    repaired = Temperature().fit(pred, y).transform(pred)

    def score(log_factor: float) -> float:
        scaled = pred.expand(pred.batch_shape)
        scaled.scale = pred.scale * math.exp(log_factor)
        return -scaled.log_prob(y).mean().item()

    best = optimize.minimize_scalar(score, bounds=(-3, 3), method="bounded", options={"xatol": 1e-10})
    assert (repaired.scale[0] / pred.scale[0]).item() == pytest.approx(math.exp(best.x), rel=1e-6)


@pytest.mark.parametrize("name", FAMILIES)
def test_affine_has_the_most_likely_shift_and_factor_by_brute_force(name: str):
    pred = FAMILIES[name]
    y = pred.loc + 1.5 + 2.5 * noise(COUNT, seed=3)
    repaired = Affine().fit(pred, y).transform(pred)

    def score(at: np.ndarray) -> float:
        moved = pred.expand(pred.batch_shape)
        moved.loc, moved.scale = pred.loc + at[0] * pred.scale, pred.scale * math.exp(at[1])
        return -moved.log_prob(y).mean().item()

    options = {"xatol": 1e-9, "fatol": 1e-14, "maxiter": 2000}
    best = optimize.minimize(score, np.array([1.0, 0.5]), method="Nelder-Mead", options=options)
    found = -repaired.log_prob(y).mean().item()
    assert found <= best.fun + 1e-10
    assert (repaired.scale[0] / pred.scale[0]).item() == pytest.approx(math.exp(best.x[1]), rel=1e-3)


def test_temperature_of_other_families_is_the_most_likely_map_of_residuals():
    pred = Gamma(3 * ones(COUNT), 2 * ones(COUNT))
    y = Gamma(1.5 * ones(COUNT), ones(COUNT)).sample()
    temperature = Temperature().fit(pred, y)
    z = fcal.standardize(pred, y)

    def score(factor: float) -> float:
        return (0.5 * (z / factor).square() + math.log(factor)).mean().item()

    best = optimize.minimize_scalar(score, bounds=(0.1, 10), method="bounded", options={"xatol": 1e-10})
    assert temperature.factor.item() == pytest.approx(best.x, rel=1e-6)
    torch.testing.assert_close(fcal.standardize(temperature.transform(pred), y), z / temperature.factor)


def test_log_normal_predictions_stay_log_normal():
    pred, y = LogNormal(noise(COUNT), ones(COUNT)), LogNormal(noise(COUNT) + 1, 3 * ones(COUNT)).sample()
    repaired = Affine().fit(pred, y).transform(pred)
    assert isinstance(repaired, LogNormal)
    z = fcal.standardize(repaired, y)
    assert z.mean().item() == pytest.approx(0, abs=1e-12)
    assert z.std(correction=0).item() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("kind", [Temperature, Affine])
def test_per_output_fits_every_column_on_its_own(kind):
    for family in (Normal, Laplace, Gumbel):
        pred = family(noise(200, 3), ones(200, 3))
        y = pred.loc + noise(200, 3, seed=4) * torch.tensor([0.5, 1.0, 4.0]) + torch.tensor([0.0, 1.0, -2.0])
        together = kind(per_output=True).fit(pred, y).transform(pred)
        wrapped = kind(per_output=True).fit(Independent(pred, 1), y).transform(Independent(pred, 1))
        for k in range(3):
            alone = family(pred.loc[:, k], pred.scale[:, k])
            single = kind().fit(alone, y[:, k]).transform(alone)
            torch.testing.assert_close(together.scale[:, k], single.scale, rtol=1e-7, atol=0)
            torch.testing.assert_close(wrapped.base_dist.loc[:, k], single.loc, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("low_rank", [False, True])
def test_multivariate_predictions_are_rescaled_and_moved(low_rank: bool):
    loc, factor = noise(300, 3), noise(3, 1, seed=5).expand(300, 3, 1)
    if low_rank:
        pred: Distribution = LowRankMultivariateNormal(loc, factor, ones(300, 3))
    else:
        pred = MultivariateNormal(loc, torch.eye(3, dtype=torch.float64) + factor @ factor.mT)
    y = loc + 3 * noise(300, 3, seed=6) + 1
    hot = Temperature().fit(pred, y).transform(pred)
    assert type(hot) is type(pred)
    assert fcal.standardize(hot, y).square().mean().item() == pytest.approx(1, rel=1e-9)
    moved = Affine().fit(pred, y).transform(pred)
    z = fcal.standardize(moved, y)
    torch.testing.assert_close(z.mean(0), torch.zeros(3, dtype=torch.float64), rtol=0, atol=1e-9)
    assert z.square().mean().item() == pytest.approx(1, rel=1e-9)


@pytest.mark.parametrize("kind", [Isotonic, Conformal, lambda: GPBeta(steps=2)])
def test_vectors_are_refused_by_maps_of_probabilities(kind):
    pred = MultivariateNormal(torch.zeros(20, 2), torch.eye(2))
    with pytest.raises(TypeError, match="expected `pred` of scalars for .*, got MultivariateNormal"):
        kind().fit(pred, torch.randn(20, 2, generator=torch.Generator().manual_seed(0)))


def small_predictions() -> dict[str, Distribution]:
    n = 60
    mixture = MixtureSameFamily(Categorical(torch.ones(n, 2)), Normal(torch.rand(n, 2), torch.ones(n, 2)))
    return {
        "normal": Normal(torch.zeros(n), torch.ones(n)),
        "independent": Independent(Laplace(torch.zeros(n // 3, 3), torch.ones(n // 3, 3)), 1),
        "student": StudentT(torch.full((n,), 5.0), torch.zeros(n), torch.ones(n)),
        "gamma": Gamma(torch.full((n,), 3.0), torch.ones(n)),
        "mixture": mixture,
        "exp": TransformedDistribution(Normal(torch.zeros(n), torch.ones(n)), [ExpTransform()]),
        "quantiles": QuantileLaw([0.1, 0.5, 0.9], torch.tensor([0.0, 1.0, 3.0]).expand(n, 3)),
    }


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("name", small_predictions())
def test_repaired_laws_are_whole_distributions_in_the_dtype_of_the_prediction(kind, name: str):
    pred = small_predictions()[name]
    torch.manual_seed(0)
    y = pred.sample() * 1.1 + 0.1
    repaired = kind().fit(pred, y).transform(pred)
    assert repaired.batch_shape == pred.batch_shape
    assert repaired.event_shape == pred.event_shape
    assert repaired.fitted_on == fingerprint(y)
    for found in (repaired.log_prob(y), repaired.sample(), fcal.nll(repaired, y), fcal.standardize(repaired, y)):
        assert found.dtype == torch.float32
        assert bool(found.isfinite().all())
    assert fcal.crps(repaired, y).dtype == torch.float32
    middle = fcal.distributions.quantile(repaired, 0.5)
    torch.testing.assert_close(fcal.standardize(repaired, middle), torch.zeros_like(middle), rtol=0, atol=2e-5)


@pytest.mark.parametrize("kind", ALL)
def test_missing_targets_and_masked_rows_do_not_count(kind):
    pred, y = Normal(noise(100), ones(100)), 2 * noise(100, seed=7)
    holes = y.clone()
    holes[::4] = torch.nan
    mask = torch.ones(100, dtype=torch.bool)
    mask[1::4] = False
    kept = mask & ~holes.isnan()
    some = kind().fit(pred, holes, valid_mask=mask).transform(pred)
    few = kind().fit(Normal(pred.loc[kept], pred.scale[kept]), y[kept]).transform(pred)
    torch.testing.assert_close(some.log_prob(y), few.log_prob(y))
    assert some.fitted_on == few.fitted_on


@pytest.mark.parametrize("kind", [Isotonic, Conformal])
def test_outliers_beyond_the_calibration_data_cost_what_the_rescaled_law_says(kind):
    pred, y = Normal(ones(500), 0.5 * ones(500)), 1 + 2 * noise(500, seed=8)
    method = kind().fit(pred, y)
    one = Normal(ones(()), 0.5 * ones(()))
    law = method.transform(one)
    slopes = method.numbers()["slopes"]
    spread = fcal.standardize(pred, y).std(correction=0).item()
    assert slopes == pytest.approx([1 / spread] * 2, rel=0.2)  # the rescaled law, as the data have it
    z = [fcal.standardize(law, torch.tensor(v, dtype=torch.float64)).item() for v in (1e6, 1e6 + 1, -1e6)]
    assert z[1] - z[0] == pytest.approx(slopes[1] / 0.5, rel=1e-6)
    for at, value, slope in ((z[0], 1e6, slopes[1]), (z[2], -1e6, slopes[0])):
        expected = stats.norm.logpdf(at) + math.log(slope / 0.5)
        assert law.log_prob(torch.tensor(value, dtype=torch.float64)).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("kind", [Isotonic, Conformal])
def test_repaired_density_is_positive_and_integrates_to_one(kind):
    pred, y = Normal(noise(800), ones(800)), torch.from_numpy(stats.gumbel_r(0, 2).rvs(800, random_state=0))
    law = kind().fit(pred, y).transform(Normal(ones(()), ones(())))
    cuts = torch.cat([law.warp.segments.x + 1, torch.tensor([-80.0, 100.0], dtype=torch.float64)]).sort().values
    nodes, weights = (torch.from_numpy(v) for v in np.polynomial.legendre.leggauss(40))
    x = cuts[:-1, None] + cuts.diff()[:, None] * (nodes + 1) / 2
    density = law.log_prob(x).exp()
    total = (density * weights * cuts.diff()[:, None] / 2).sum()
    assert total.item() == pytest.approx(1, abs=1e-7)
    assert bool((law.log_prob(x) > -math.inf).all())
    grid = torch.linspace(-30, 30, 2001, dtype=torch.float64)
    assert bool((fcal.standardize(law.expand((2001,)), grid).diff() > 0).all())


@pytest.mark.parametrize("kind", [Isotonic, Conformal])
def test_ties_do_not_make_knots_of_no_width(kind):
    pred = Normal(torch.zeros(300), torch.ones(300))
    y = torch.cat([torch.zeros(200), torch.linspace(-2, 2, 100)])
    law = kind().fit(pred, y).transform(pred)
    assert law.warp.segments.x.diff().min() > 0
    assert law.warp.segments.slope.max() < 1e4
    almost = torch.zeros(300)
    almost[0], almost[1] = -1.0, 1.0
    assert bool(kind().fit(pred, almost).transform(pred).log_prob(almost).isfinite().all())


@pytest.mark.parametrize("kind", ALL)
def test_targets_without_any_spread_are_refused(kind):
    pred = Normal(torch.zeros(30), torch.ones(30))
    with pytest.raises(ValueError, match="expected `target` (that differ|whose residuals differ)"):
        kind().fit(pred, torch.zeros(30))


def test_too_few_and_missing_targets_are_refused_with_their_number():
    pred = Normal(torch.zeros(5), torch.ones(5))
    for kind, least in ((Temperature, 2), (Affine, 2), (Isotonic, 10), (Conformal, 10), (GPBeta, 10)):
        y = torch.full((5,), torch.nan)
        with pytest.raises(ValueError, match=f"expected `target` with at least {least} values that count, got 0"):
            kind().fit(pred, y)
        y[2] = 1.0
        with pytest.raises(ValueError, match=f"at least {least} values that count, got 1"):
            kind().fit(pred, y)


@pytest.mark.parametrize("kind", ALL)
def test_transform_before_fit_and_of_another_family_are_refused(kind):
    pred = Normal(torch.zeros(20), torch.ones(20))
    with pytest.raises(ValueError, match="to be fitted before this, got one that is not"):
        kind().transform(pred)
    fitted = kind().fit(pred, torch.linspace(-1, 1, 20))
    with pytest.raises(ValueError, match="expected `pred` of the family at fit, Normal, got Laplace"):
        fitted.transform(Laplace(torch.zeros(2), torch.ones(2)))
    with pytest.raises(TypeError, match="expected `pred` a torch.distributions.Distribution, got Tensor"):
        fitted.transform(torch.zeros(3))


def test_per_output_needs_outputs():
    pred = Normal(torch.zeros(4), torch.ones(4))
    with pytest.raises(ValueError, match="expected `per_output` with scalar predictions .* got one output"):
        Temperature(per_output=True).fit(pred, torch.ones(4))
    wide = Normal(torch.zeros(4, 2), torch.ones(4, 2))
    fitted = Affine(per_output=True).fit(wide, torch.arange(8.0).reshape(4, 2))
    with pytest.raises(ValueError, match=r"expected `pred` with 2 outputs like at fit, got shape \(4, 3\)"):
        fitted.transform(Normal(torch.zeros(4, 3), torch.ones(4, 3)))
    holes = torch.arange(8.0).reshape(4, 2)
    holes[:, 1] = torch.nan
    with pytest.raises(ValueError, match="at least 2 values per output, got 0 of 1"):
        Temperature(per_output=True).fit(wide, holes)


def test_isotonic_with_every_rank_as_a_knot_is_the_empirical_cdf():
    # Kuleshov et al. 2018: the recalibrated probability is the share of calibration residuals below
    pred, y = Normal(torch.zeros(50).double(), torch.ones(50).double()), noise(50, seed=9)
    law = Isotonic(knots=50).fit(pred, y).transform(pred)
    found = law.cdf(y.sort().values)
    torch.testing.assert_close(found, (torch.arange(1, 51).double() - 0.5) / 50, rtol=1e-9, atol=0)


def test_recalibrators_go_by_name():
    assert names() == ["affine", "conformal", "gp-beta", "isotonic", "power", "scale-and-shape", "temperature"]
    assert by_name("gp-beta") is GPBeta
    with pytest.raises(
        ValueError, match=r"expected `method` one of .* got 'temprature' \(did you mean 'temperature'\?\)"
    ):
        by_name("temprature")


def test_repaired_law_of_a_repaired_law():
    pred, y = Normal(noise(500), ones(500)), noise(500, seed=11) * 3
    first = Isotonic().fit(pred, y).transform(pred)
    again = Temperature().fit(first, y).transform(first)
    assert isinstance(again, Warped)
    assert fcal.standardize(again, y).square().mean().item() == pytest.approx(1, rel=1e-9)
