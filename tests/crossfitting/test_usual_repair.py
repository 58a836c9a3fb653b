"""The default repair: not moved by spoilt rows."""

import pytest
import torch
from torch.distributions import MultivariateNormal, Normal, StudentT

import fcal
from fcal.crossfitting import usual_repair
from fcal.recalibration import Temperature

ROWS, SEEDS = 4000, 20


def normal_noise(generator, count):
    return torch.randn(count, generator=generator, dtype=torch.float64)


def heavy_noise(generator, count, df=4.0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**31, (), generator=generator)))
        return StudentT(torch.tensor(df, dtype=torch.float64)).sample((count,))


def slightly_heavy_noise(generator, count):
    """Noise whose shape is a matter of doubt."""
    return heavy_noise(generator, count, df=12.0)


def predictions(noise, seed, count=ROWS):
    """Predictions with sigmas of several sizes, all too small by a factor of 1.5."""
    generator = torch.Generator().manual_seed(seed)
    sigma = torch.rand(count, generator=generator, dtype=torch.float64) + 0.5
    return Normal(torch.zeros_like(sigma), sigma), 1.5 * sigma * noise(generator, count), generator


@pytest.mark.parametrize("noise", [normal_noise, slightly_heavy_noise, heavy_noise])
def test_usual_repair_is_not_moved_by_one_spoilt_row_in_a_thousand(noise):
    """Errors of 1e2 to 1e6 sigma: coverage of clean rows moves by at most 0.003, CRPS by at most 1 %, each time."""
    for seed in range(SEEDS):
        pred, target, generator = predictions(noise, seed)
        clean_pred, clean, _ = predictions(noise, 1000 + seed, 20_000)
        spoilt = target.clone()
        rows = torch.randperm(ROWS, generator=generator)[: ROWS // 1000]
        spoilt[rows] = pred.scale[rows] * 10 ** (2 + 4 * torch.rand(len(rows), generator=generator).double())
        reports = []
        for calibration in (target, spoilt):
            repair = usual_repair(pred).fit(pred, calibration)
            law = repair.transform(clean_pred)
            reports.append((fcal.standardize(law, clean).abs(), fcal.crps(law, clean).mean()))
        assert len(rows) <= repair.wild.count <= len(rows) + 1  # the farthest of heavy tails may be wild, too
        assert abs(reports[1][1] / reports[0][1] - 1) < 0.01
        for level in (0.5, 0.9, 0.95):
            edge = Normal(0.0, 1.0).icdf(torch.tensor(0.5 + level / 2))
            before, after = ((z < edge).double().mean().item() for z, _ in reports)
            assert abs(after - before) <= 0.003


def test_usual_repair_of_vectors_is_a_factor():
    vectors = MultivariateNormal(torch.zeros(300, 2), torch.eye(2))
    assert isinstance(usual_repair(vectors), Temperature)
