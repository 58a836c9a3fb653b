"""What one bad row, or a heavy tail, must not do to a map."""

import numpy as np
import pytest
import torch
from torch.distributions import Categorical, MixtureSameFamily, Normal, StudentT

import fcal
from fcal.distributions import AffineMap, Warped
from fcal.recalibration import Affine, Conformal, Isotonic, Temperature


def standard(count):
    return Normal(torch.zeros(count, dtype=torch.float64), torch.ones(count, dtype=torch.float64))


def coverage(law, y, level):
    low, high = (law.icdf(torch.tensor(p, dtype=torch.float64)) for p in ((1 - level) / 2, (1 + level) / 2))
    return float(((y >= low) & (y <= high)).double().mean())


@pytest.mark.parametrize("kind", [Isotonic, Conformal])
@pytest.mark.parametrize("outlier", [1e2, 1e4, 1e6])
def test_one_outlier_does_not_spoil_the_map(kind, outlier):
    generator = torch.Generator().manual_seed(0)
    y = 2 * torch.randn(2000, generator=generator, dtype=torch.float64)
    y[0] = outlier
    law = kind().fit(standard(2000), y).transform(standard(1))
    width = law.icdf(torch.tensor(0.95)) - law.icdf(torch.tensor(0.05))
    # twice 1.645 times 2; the quantiles of 2000 rows move it by 0.13 at one sd
    assert width.item() == pytest.approx(6.58, abs=0.5)


@pytest.mark.parametrize("kind", [Isotonic, Conformal])
def test_heavy_tails_are_covered(kind):
    rng = np.random.default_rng(0)
    fit, fresh = (torch.from_numpy(rng.lognormal(0, 3, 5000)) for _ in range(2))
    law = kind().fit(standard(5000), fit).transform(standard(1))
    for level in (0.5, 0.9, 0.95):
        # calibration and fresh rows each have the noise of a share of 5000; 4 sd: one alarm in 16,000
        assert abs(coverage(law, fresh, level) - level) < 4 * np.sqrt(2 * level * (1 - level) / 5000)


@pytest.mark.parametrize("kind", [Temperature, Affine])
def test_repaired_student_t_has_cdf_and_icdf(kind):
    pred = StudentT(torch.full((500,), 4.0), 0.0, 1.0)
    y = 2 * StudentT(4.0).sample((500,))
    law = kind().fit(pred, y).transform(pred)
    p = torch.full((500,), 0.3)
    torch.testing.assert_close(law.cdf(law.icdf(p)), p, rtol=1e-5, atol=1e-6)
    assert isinstance(law, StudentT)
    assert fcal.evaluate(law, y).n == 500


def test_moments_of_a_warped_mixture_follow_its_jump():
    weights, means = torch.tensor([0.3, 0.7], dtype=torch.float64), torch.tensor([-5.0, 5.0], dtype=torch.float64)
    base = MixtureSameFamily(Categorical(weights), Normal(means, torch.full((2,), 0.5, dtype=torch.float64)))
    same = Warped(base, AffineMap(torch.tensor(0.0, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64)))
    assert same.mean.item() == pytest.approx(2.0, abs=0.02)
    assert same.stddev.item() == pytest.approx(base.stddev.item(), abs=0.02)


@pytest.mark.parametrize("method", ["temperature", "affine", "power", "scale-and-shape"])
def test_a_fit_whose_numbers_overflow_is_refused(method: str):
    pred = Normal(torch.zeros(20, dtype=torch.float64), torch.ones(20, dtype=torch.float64))
    y = torch.linspace(-1, 1, 20, dtype=torch.float64) * 1e300
    with pytest.raises(ValueError, match="expected `pred` and `target` .* finite `.*` is fitted, got (inf|nan)"):
        fcal.recalibration.by_name(method)().fit(pred, y)
