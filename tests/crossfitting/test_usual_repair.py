"""The default repair: chosen by likelihood, and not moved by spoilt rows."""

import pytest
import torch
from torch.distributions import MultivariateNormal, Normal, StudentT

import fcal
from fcal.crossfitting import usual_repair
from fcal.recalibration import Conformal, Temperature

ROWS, SEEDS = 4000, 20


def normal_noise(generator, count):
    return torch.randn(count, generator=generator, dtype=torch.float64)


def heavy_noise(generator, count):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**31, (), generator=generator)))
        return StudentT(torch.tensor(4.0, dtype=torch.float64)).sample((count,))


def predictions(noise, seed, count=ROWS):
    """Predictions with sigmas of several sizes, all too small by a factor of 1.5."""
    generator = torch.Generator().manual_seed(seed)
    sigma = torch.rand(count, generator=generator, dtype=torch.float64) + 0.5
    return Normal(torch.zeros_like(sigma), sigma), 1.5 * sigma * noise(generator, count), generator


def test_usual_repair_is_a_factor_for_normal_errors_and_a_shape_for_others():
    """Which of two nearly equal likelihoods is larger is chance for normal errors: most of ten draws are a factor."""
    factors = 0
    for seed in range(10):
        pred, target, _ = predictions(normal_noise, seed)
        factors += isinstance(usual_repair(pred, target), Temperature)
        pred, target, _ = predictions(heavy_noise, seed)
        assert isinstance(usual_repair(pred, target), Conformal)
    assert factors >= 7


@pytest.mark.parametrize("noise", [normal_noise, heavy_noise])
def test_usual_repair_is_not_moved_by_one_spoilt_row_in_a_thousand(noise):
    """Errors of 1e2 to 1e6 sigma: coverage of clean rows moves by at most 0.003, and CRPS by at most 1 %."""
    moved = {0.5: [], 0.9: [], 0.95: []}
    for seed in range(SEEDS):
        pred, target, generator = predictions(noise, seed)
        clean_pred, clean, _ = predictions(noise, 1000 + seed, 20_000)
        spoilt = target.clone()
        rows = torch.randperm(ROWS, generator=generator)[: ROWS // 1000]
        spoilt[rows] = pred.scale[rows] * 10 ** (2 + 4 * torch.rand(len(rows), generator=generator).double())
        reports = []
        for calibration in (target, spoilt):
            repair = usual_repair(pred, calibration).fit(pred, calibration)
            law = repair.transform(clean_pred)
            reports.append((fcal.standardize(law, clean).abs(), fcal.crps(law, clean).mean()))
        assert repair.wild.count == len(rows)
        assert abs(reports[1][1] / reports[0][1] - 1) < 0.01
        for level, differences in moved.items():
            edge = Normal(0.0, 1.0).icdf(torch.tensor(0.5 + level / 2))
            before, after = ((z < edge).double().mean().item() for z, _ in reports)
            differences.append(after - before)
    assert all(abs(sum(values) / SEEDS) < 0.003 for values in moved.values())


def test_usual_repair_of_few_targets_and_of_vectors_is_a_factor():
    pred, target, _ = predictions(heavy_noise, 0, 199)
    assert isinstance(usual_repair(pred, target), Temperature)
    vectors = MultivariateNormal(torch.zeros(300, 2), torch.eye(2))
    assert isinstance(usual_repair(vectors, torch.randn(300, 2)), Temperature)


def test_usual_repair_ignores_targets_that_do_not_count():
    pred, target, _ = predictions(normal_noise, 3)
    mask = torch.arange(ROWS) % 2 == 0
    marked = torch.where(mask, target, 1e3)
    missing = torch.where(mask, target, torch.nan)
    kinds = {type(usual_repair(pred, marked, mask)), type(usual_repair(pred, missing))}
    assert kinds == {type(usual_repair(Normal(pred.loc[mask], pred.scale[mask]), target[mask]))}
