"""``Power``: the most likely power and factor of predicted scales."""

from functools import partial

import numpy as np
import pytest
import torch
from scipy import optimize, stats
from torch.distributions import Gamma, Gumbel, Independent, Laplace, LogNormal, MultivariateNormal, Normal, StudentT

import fcal
from fcal.recalibration import Power, Temperature, load

ROWS = 400
DENSITIES = {
    "normal": (Normal, stats.norm.logpdf),
    "laplace": (Laplace, stats.laplace.logpdf),
    "gumbel": (Gumbel, stats.gumbel_r.logpdf),
    "student": (partial(StudentT, 4.0), lambda y, loc, scale: stats.t.logpdf(y, 4.0, loc, scale)),
    "lognormal": (LogNormal, lambda y, loc, scale: stats.norm.logpdf(np.log(y), loc, scale) - np.log(y)),
}


def case(seed=0, rows=ROWS, exponent=0.6, factor=1.7):
    """Locations, scales, and targets whose errors follow a power of the scales."""
    draw = partial(torch.randn, rows, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    loc, scale = draw(), (0.8 * draw() - 1).exp()
    return loc, scale, loc + factor * scale**exponent * draw()


@pytest.mark.parametrize("family", DENSITIES)
@pytest.mark.parametrize("seed", [0, 1])
def test_power_is_the_most_likely_one(family, seed):
    kind, log_density = DENSITIES[family]
    loc, scale, target = case(seed)
    target = target.exp() if kind is LogNormal else target
    pred = kind(loc, scale)
    log_scale = scale.log().numpy()

    def mean_nll(at):
        return -log_density(target.numpy(), loc.numpy(), np.exp(at[0] + at[1] * log_scale)).mean()

    best = optimize.minimize(mean_nll, [0.0, 1.0], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-14})
    repair = Power().fit(pred, target)
    expected = np.exp(best.x[0] + best.x[1] * log_scale)
    np.testing.assert_allclose(repair.transform(pred).scale.numpy(), expected, rtol=1e-5)


def test_power_finds_the_power_of_the_simulated_errors():
    """Standard error of an exponent from 20,000 rows: 1 / sqrt(2 n) / 0.8 = 0.006; 4 of them, one alarm in 16,000."""
    loc, scale, target = case(rows=20_000)
    repaired = Power().fit(Normal(loc, scale), target).transform(Normal(loc, scale)).scale
    fitted = stats.linregress(scale.log().numpy(), repaired.log().numpy())
    assert fitted.slope == pytest.approx(0.6, abs=0.025)
    assert fitted.rvalue == pytest.approx(1)
    assert np.exp(fitted.intercept) == pytest.approx(1.7, rel=0.04)


def test_power_of_new_predictions_is_the_same_function_of_the_scale():
    loc, scale, target = case()
    repair = Power().fit(Normal(loc, scale), target)
    fitted = stats.linregress(scale.log().numpy(), repair.transform(Normal(loc, scale)).scale.log().numpy())
    new = torch.tensor([1e-3, 1.0, 50.0], dtype=torch.float64)
    expected = np.exp(fitted.intercept + fitted.slope * new.log().numpy())
    np.testing.assert_allclose(repair.transform(Normal(torch.zeros(3), new)).scale.numpy(), expected, rtol=1e-9)


def test_power_keeps_location_and_family():
    loc, scale, target = case()
    pred = Laplace(loc, scale)
    repaired = Power().fit(pred, target).transform(pred)
    assert isinstance(repaired, Laplace)
    assert torch.equal(repaired.loc, loc)


@pytest.mark.parametrize("kind", [Normal, Laplace, Gumbel])
def test_power_of_equal_scales_is_one_and_its_factor_that_of_temperature(kind):
    loc, _, target = case()
    pred = kind(loc, torch.full_like(loc, 0.3))
    repair = Power().fit(pred, target)
    assert "exponent=1" in repr(repair)
    expected = Temperature().fit(pred, target).transform(pred)
    torch.testing.assert_close(repair.transform(pred).scale, expected.scale)


def test_power_of_calibrated_predictions_changes_little():
    """Exponent and log factor: 4 standard errors of 0.006 and 0.005 from 20,000 rows, one false alarm in 8,000."""
    loc, scale, target = case(rows=20_000, exponent=1.0, factor=1.0)
    repaired = Power().fit(Normal(loc, scale), target).transform(Normal(loc, scale)).scale
    fitted = stats.linregress(scale.log().numpy(), repaired.log().numpy())
    assert fitted.slope == pytest.approx(1, abs=0.025)
    assert (repaired / scale).log().mean().item() == pytest.approx(0, abs=0.02)


@pytest.mark.parametrize("unit", [1e-6, 1e6])
def test_power_follows_the_unit_of_the_target(unit):
    loc, scale, target = case()
    here = Power().fit(Normal(loc, scale), target).transform(Normal(loc, scale)).scale
    pred = Normal(unit * loc, unit * scale)
    torch.testing.assert_close(Power().fit(pred, unit * target).transform(pred).scale, unit * here, rtol=1e-6, atol=0)


def test_power_is_at_least_as_likely_as_temperature():
    loc, scale, target = case()
    pred = Normal(loc, scale)
    power, temperature = (
        fcal.nll(r.fit(pred, target).transform(pred), target).mean() for r in (Power(), Temperature())
    )
    assert power < temperature - 0.01


@pytest.mark.parametrize("family", DENSITIES)
def test_loaded_power_repairs_exactly_as_the_saved_one(tmp_path, family):
    kind, _ = DENSITIES[family]
    loc, scale, target = case()
    target = target.exp() if kind is LogNormal else target
    fitted = Power().fit(kind(loc, scale), target)
    fitted.save(tmp_path)
    loaded = load(tmp_path)
    assert isinstance(loaded, Power)
    assert loaded.fitted_on == fitted.fitted_on
    assert torch.equal(loaded.transform(kind(loc, scale)).scale, fitted.transform(kind(loc, scale)).scale)


def test_power_is_known_by_name():
    assert fcal.recalibration.by_name("power") is Power


@pytest.mark.parametrize("kind", [Normal, Laplace])
def test_power_leaves_out_a_wild_row(kind):
    loc, scale, target = case()
    wild = target.clone()
    wild[7] = 1e6
    others = torch.arange(ROWS) != 7
    repair = Power().fit(kind(loc, scale), wild)
    expected = Power().fit(kind(loc[others], scale[others]), target[others]).transform(kind(loc, scale))
    assert (repair.wild.count, repair.wild.rows) == (1, ROWS)
    torch.testing.assert_close(repair.transform(kind(loc, scale)).scale, expected.scale, rtol=1e-9, atol=0)


def test_power_does_not_count_missing_and_masked_targets():
    loc, scale, target = case()
    missing = torch.arange(ROWS) % 5 == 0
    pred = Normal(loc, scale)
    expected = Power().fit(Normal(loc[~missing], scale[~missing]), target[~missing]).transform(pred).scale
    absent = Power().fit(pred, torch.where(missing, torch.nan, target))
    masked = Power().fit(pred, torch.where(missing, 100.0, target), valid_mask=~missing)
    torch.testing.assert_close(absent.transform(pred).scale, expected, rtol=1e-9, atol=0)
    torch.testing.assert_close(masked.transform(pred).scale, expected, rtol=1e-9, atol=0)


def test_power_keeps_the_dtype():
    loc, scale, target = case()
    pred = Normal(loc.float(), scale.float())
    repaired = Power().fit(pred, target.float()).transform(pred).scale
    assert repaired.dtype == torch.float32
    expected = Power().fit(Normal(loc, scale), target).transform(Normal(loc, scale)).scale
    torch.testing.assert_close(repaired.double(), expected, rtol=1e-5, atol=0)


def test_power_of_several_outputs_is_one_for_all():
    loc, scale, target = (values.reshape(-1, 2) for values in case())
    repaired = Power().fit(Normal(loc, scale), target).transform(Normal(loc, scale)).scale
    flat = Normal(loc.flatten(), scale.flatten())
    expected = Power().fit(flat, target.flatten()).transform(flat).scale
    torch.testing.assert_close(repaired.flatten(), expected, rtol=1e-9, atol=0)


def test_power_has_gradients_to_the_scale():
    loc, scale, target = case()
    repair = Power().fit(Normal(loc, scale), target)
    given = torch.tensor([0.2, 3.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s: repair.transform(Normal(torch.zeros_like(s), s)).scale, given)


@pytest.mark.parametrize(
    ("pred", "name"),
    [
        (Gamma(torch.ones(9), torch.ones(9)), "with a location and a scale for Power, got Gamma"),
        (fcal.models.mixture([Gamma(torch.ones(9), 1.0)] * 2), "a scale for Power, got MixtureSameFamily"),
        (MultivariateNormal(torch.zeros(9, 2), torch.eye(2)), "of scalars for Power, got MultivariateNormal"),
    ],
)
def test_power_refuses_families_without_a_scale(pred, name):
    target = torch.ones(pred.batch_shape + pred.event_shape)
    with pytest.raises(TypeError, match=f"expected `pred` .*{name}"):
        Power().fit(pred, target)


def test_power_takes_scalars_inside_independent():
    loc, scale, target = (values.reshape(-1, 2) for values in case())
    inside = Power().fit(Independent(Normal(loc, scale), 1), target).transform(Independent(Normal(loc, scale), 1))
    expected = Power().fit(Normal(loc, scale), target).transform(Normal(loc, scale))
    torch.testing.assert_close(inside.stddev, expected.stddev)


def test_power_refuses_too_few_targets():
    with pytest.raises(ValueError, match="expected `target` with at least 4 values that count, got 3"):
        Power().fit(Normal(torch.zeros(3), torch.ones(3)), torch.ones(3))


def test_power_refuses_targets_that_are_predicted_exactly():
    with pytest.raises(ValueError, match="expected `target` that differ from the predictions"):
        Power().fit(Normal(torch.zeros(6), torch.arange(1.0, 7.0)), torch.zeros(6))


def test_power_is_finite_where_small_scales_have_no_errors():
    pred = Normal(torch.zeros(6), torch.tensor([1.0, 1.0, 1.0, 2.0, 2.0, 2.0]))
    try:
        repair = Power().fit(pred, torch.tensor([0.0, 0.0, 0.0, 1.0, -1.0, 1.0]))
    except ValueError:
        return  # refusing is as good
    assert repair.transform(pred).scale.isfinite().all()
