"""Scale and shape in one repair: a factor for errors of the predicted shape, the observed shape for others."""

import pytest
import torch
from torch.distributions import Laplace, MultivariateNormal, Normal, StudentT

import fcal
from fcal.recalibration import Conformal, ScaleAndShape, Temperature


def errors(law, count, seed):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return law.sample((count,)).double()


def standard(count):
    return Normal(torch.zeros(count, dtype=torch.float64), torch.ones(count, dtype=torch.float64))


def test_scale_and_shape_of_errors_of_the_predicted_shape_is_nearly_the_factor():
    """Quantiles of levels 0.75 and 0.975 of 20 draws of 2000 normal errors: within 2 % of the factor's, on average."""
    pred, single = standard(2000), standard(1)
    levels = torch.tensor([0.75, 0.975], dtype=torch.float64)
    quotients = []
    for seed in range(20):
        target = errors(Normal(0.0, 1.5), 2000, seed)
        laws = (repair.fit(pred, target).transform(single) for repair in (ScaleAndShape(), Temperature()))
        both, scale = (law.icdf(levels) for law in laws)
        quotients.append(both / scale)
    mean = torch.stack(quotients).mean(0)
    torch.testing.assert_close(mean, torch.ones_like(mean), atol=0.02, rtol=0)


def test_scale_and_shape_keeps_the_family_where_the_shape_is_clearly_right():
    """Normal quantiles as errors: their shape has nothing to gain, and cross-validation charges it for the trial."""
    levels = torch.arange(1, 2001, dtype=torch.float64) / 2001
    target = 3 * torch.special.ndtri(levels)
    repair = ScaleAndShape().fit(standard(2000), target)
    assert repair.weight == 0.0
    assert isinstance(repair.transform(standard(1)), Normal)


@pytest.mark.parametrize("law", [Laplace(0.0, 1.0), StudentT(3.0)])
def test_scale_and_shape_of_other_errors_has_their_shape(law):
    """With 4000 errors the weight is 1, and quantiles are those of the centred conformal distribution."""
    pred, target, single = standard(4000), errors(law, 4000, 0), standard(1)
    both, conformal = ScaleAndShape().fit(pred, target), Conformal(centred=True).fit(pred, target)
    assert both.weight == 1.0
    levels = torch.tensor([0.6, 0.75, 0.9, 0.99], dtype=torch.float64)
    torch.testing.assert_close(
        both.transform(single).icdf(levels), conformal.transform(single).icdf(levels), rtol=2e-3, atol=1e-9
    )


def test_scale_and_shape_of_laplace_predictions_is_right_where_normal_errors_come():
    """The residuals of a rescaled Laplace distribution are no multiple of those before: coverage tells."""
    count = 8000
    pred = Laplace(torch.zeros(count, dtype=torch.float64), torch.full((count,), 0.3, dtype=torch.float64))
    repaired = ScaleAndShape().fit(pred, errors(Normal(0.0, 1.0), count, 1)).transform(pred)
    fresh = errors(Normal(0.0, 1.0), count, 2)
    for level in (0.5, 0.9, 0.99):
        edge = torch.special.ndtri(torch.tensor(0.5 + level / 2, dtype=torch.float64))
        covered = (fcal.standardize(repaired, fresh).abs() <= edge).double().mean()
        # 4 standard errors of calibration and fresh rows: one false alarm in 16,000
        torch.testing.assert_close(
            covered, torch.tensor(level, dtype=torch.float64), atol=4 * (2 * level * (1 - level) / count) ** 0.5, rtol=0
        )


def test_scale_and_shape_keeps_every_median():
    pred = Normal(torch.linspace(-3, 3, 500), torch.rand(500, generator=torch.Generator().manual_seed(0)) + 0.5)
    target = pred.loc + errors(Laplace(0.4, 1.0), 500, 3).float()  # biased, too
    repaired = ScaleAndShape().fit(pred, target).transform(pred)
    torch.testing.assert_close(repaired.icdf(torch.tensor(0.5)), pred.loc, rtol=0, atol=1e-5)


def test_scale_and_shape_of_few_rows_is_a_factor():
    """Of 199 normal errors nearly none is cut off: the factor is their root mean square to 1 %."""
    pred, target = standard(199), errors(Normal(0.0, 2.0), 199, 0)
    repair = ScaleAndShape().fit(pred, target)
    assert repair.weight == 0.0
    torch.testing.assert_close(repair.factor, target.square().mean().sqrt(), rtol=0.01, atol=0)
    torch.testing.assert_close(repair.transform(pred).stddev, repair.factor.expand(199))


def test_factor_of_normal_errors_is_right_although_large_ones_are_cut_off():
    """Five standard errors of the factor of 100,000 errors are 1.1 %."""
    repair = ScaleAndShape().fit(standard(100_000), errors(Normal(0.0, 3.0), 100_000, 1))
    assert float(repair.factor) == pytest.approx(3.0, rel=0.011)


@pytest.mark.parametrize("size", [1e2, 1e4, 1e6])
@pytest.mark.parametrize("share", [0.4, 0.0])
def test_wild_rows_do_not_move_the_repair_of_a_narrow_core_in_a_wide_rest(size, share):
    """Two rows in 2500, beside errors of which a share is 30 times as wide: quantiles move by at most 2 %."""
    generator = torch.Generator().manual_seed(0)
    wide = torch.where(torch.rand(2500, generator=generator) < share, 30.0, 1.0).double()
    clean = wide * torch.randn(2500, generator=generator, dtype=torch.float64)
    spoilt = clean.clone()
    spoilt[:2] = torch.tensor([size, -size], dtype=torch.float64) * clean.std()
    levels = torch.tensor([0.6, 0.75, 0.95], dtype=torch.float64)
    found = [ScaleAndShape().fit(standard(2500), y).transform(standard(1)).icdf(levels) for y in (clean, spoilt)]
    torch.testing.assert_close(found[1], found[0], rtol=0.02, atol=0)


def test_residuals_that_are_mostly_zero_have_a_factor():
    target = torch.cat([torch.zeros(999, dtype=torch.float64), torch.ones(1, dtype=torch.float64)])
    assert ScaleAndShape().fit(standard(1000), target).weight == 0.0


def test_scale_and_shape_does_not_depend_on_the_place_of_wild_rows():
    """Rows that do not count leave the folds of the others where they are, so the weight hardly moves."""
    target = errors(StudentT(10.0), 2000, 4)
    weights = []
    for rows in ([], [7, 1500]):
        spoilt = target.index_fill(0, torch.tensor(rows, dtype=torch.long), 1e5)
        weights.append(ScaleAndShape().fit(standard(2000), spoilt).weight)
    assert abs(weights[1] - weights[0]) < 0.05


def test_scale_and_shape_survives_saving(tmp_path):
    pred, target = standard(1000), errors(StudentT(4.0), 1000, 5)
    repair = ScaleAndShape().fit(pred, target)
    repair.save(tmp_path)
    loaded = fcal.recalibration.load(tmp_path)
    torch.testing.assert_close(loaded.transform(pred).stddev, repair.transform(pred).stddev, rtol=0, atol=0)
    assert loaded.weight == repair.weight


def test_scale_and_shape_of_vectors_is_refused():
    vectors = MultivariateNormal(torch.zeros(300, 2), torch.eye(2))
    with pytest.raises(TypeError, match="expected `pred` of scalars for ScaleAndShape"):
        ScaleAndShape().fit(vectors, torch.zeros(300, 2))
