"""Numbers of rows, each recomputed by another route."""

import math

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy import stats
from torch.distributions import Categorical, MixtureSameFamily, Normal
from uci_tables import write_table

from fcal.benchmarks.uci.bars import bars
from fcal.benchmarks.uci.fits import fold_trace, member_trace
from fcal.benchmarks.uci.methods import METHODS, Shared, options_of
from fcal.benchmarks.uci.outoffold import cv_plus
from fcal.benchmarks.uci.problems import problem
from fcal.benchmarks.uci.rows import Answer, scored
from fcal.benchmarks.uci.settings import Settings
from fcal.benchmarks.uci.tables import spread, table
from fcal.benchmarks.uci.training import Schedule
from fcal.data.uci import read_uci


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    data = write_table(tmp_path_factory.mktemp("tables"), rows=120)
    task = problem(read_uci(data, "yacht"), folds=5, seed=0)
    schedule = Schedule(epochs=30, batch=16, rate=1e-2, checkpoints=2)
    folds = fold_trace(task, (64, 64), schedule, seed=0)
    members = member_trace(task, (64, 64), schedule, count=5, seed=0)
    everything = members.at(-1)
    networks = {
        "nll": folds.at(-1).select(torch.arange(2)),
        "repaired": folds.at(-1).select(torch.arange(2)),
        "nll_all": everything.select(torch.arange(2)),
        "full": everything.select(torch.arange(2)),
        "folds": folds.at(-1),
        "members": everything,
    }
    settings = Settings(datasets=("yacht",), networks=("2x64",), splits={"2x64": 2}, shorten=20, candidates=1)
    return Shared(settings, "yacht", "2x64", task, networks, {"fold_s": 10.0, "member_s": 10.0})


def answered(shared, name):
    return METHODS[name].answer(shared, options_of(METHODS[name]))


def targets_of(shared):
    return [shared.task.raw[rows] for rows in shared.task.test]


def by_hand(shared, network, split):
    """Mean and sigma of a split's test rows in original units, by a plain network and NumPy."""
    task, rows = shared.task, shared.task.test[split]
    with torch.no_grad():
        out = network(task.x[split, rows]).double().numpy()
    sigma = np.log1p(np.exp(out[:, 1])) + 1e-3
    return out[:, 0] * task.unit[split].item() + task.shift[split].item(), sigma * task.unit[split].item()


def test_nll_row_is_that_of_scipy_in_original_units(shared):
    row = scored(answered(shared, "nll"), targets_of(shared))["columns"]
    for split, target in enumerate(targets_of(shared)):
        mean, sigma = by_hand(shared, shared.networks["nll"].alone(split), split)
        y = target.numpy()
        assert_allclose(row["ll"][split], stats.norm.logpdf(y, mean, sigma).mean(), rtol=1e-5)
        assert_allclose(row["rmse"][split], np.sqrt(np.mean((y - mean) ** 2)), rtol=1e-5)
        z = (y - mean) / sigma
        crps = sigma * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / np.sqrt(np.pi))
        assert_allclose(row["crps"][split], crps.mean(), rtol=1e-5)
        low, high = stats.norm.interval(0.9, mean, sigma)
        assert_allclose(row["coverage"][split], np.mean((low <= y) & (y <= high)))
        assert_allclose(row["width"][split], (high - low).mean(), rtol=1e-5)
        assert_allclose(row["train_s"][split], 1.0)  # 10 seconds for 2 splits and 5 folds


def test_temperature_row_is_the_root_mean_square_of_held_out_residuals(shared):
    task, laws = shared.task, answered(shared, "temperature").laws
    for split in range(2):
        rows = task.held_out(split, 0)
        with torch.no_grad():
            out = shared.networks["repaired"].alone(split)(task.x[split, rows]).double()
        sigma = torch.nn.functional.softplus(out[:, 1]) + 1e-3
        factor = ((task.y[split, rows] - out[:, 0]) / sigma).square().mean().sqrt()
        _, plain = by_hand(shared, shared.networks["repaired"].alone(split), split)
        assert_allclose(laws[split].stddev.numpy(), plain * factor.item(), rtol=1e-4)


def test_ensemble_is_a_mixture_whose_scores_are_those_of_brute_force(shared):
    answer = answered(shared, "ensemble")
    row = scored(answer, targets_of(shared))["columns"]
    for split, target in enumerate(targets_of(shared)):
        parts = [by_hand(shared, shared.networks["members"].alone(2 * i + split), split) for i in range(5)]
        y = target.numpy()
        density = np.mean([stats.norm.pdf(y, mean, sigma) for mean, sigma in parts], axis=0)
        assert_allclose(row["ll"][split], np.log(density).mean(), rtol=1e-5)
        below = np.mean([stats.norm.cdf(y, mean, sigma) for mean, sigma in parts], axis=0)
        inside = np.abs(stats.norm.ppf(below)) <= stats.norm.ppf(0.95)
        assert_allclose(row["coverage"][split], inside.mean())
        # The integral of (F(t) - 1{y <= t})^2, on a fine grid of each target's own.
        scores = []
        for i in range(len(y)):
            grid = np.linspace(y[i] - 60, y[i] + 60, 24_001)
            law = np.mean([stats.norm.cdf(grid, mean[i], sigma[i]) for mean, sigma in parts], axis=0)
            scores.append(np.trapezoid((law - (grid >= y[i])) ** 2, grid))
        assert_allclose(row["crps"][split], np.mean(scores), rtol=2e-3)


def test_out_of_fold_rows_keep_the_mean_of_the_network_of_all_rows(shared):
    for name in ("oof_temperature", "oof_nll", "oof_fcal"):
        for split, law in enumerate(answered(shared, name).laws):
            mean, _ = by_hand(shared, shared.networks["full"].alone(split), split)
            assert_allclose(law.mean.numpy(), mean, rtol=1e-5)


def test_out_of_fold_factor_is_at_the_level_of_the_full_network(shared):
    """By hand: residuals over sigmas whose mean logarithm is, fold by fold, that of the full network."""
    task, laws = shared.task, answered(shared, "oof_temperature").laws
    for split in range(2):
        squares = []
        for fold in range(5):
            rows = task.held_out(split, fold)
            with torch.no_grad():
                held = shared.networks["folds"].alone(2 * fold + split)(task.x[split, rows]).double()
                full = shared.networks["full"].alone(split)(task.x[split, rows]).double()
            sigma, level = (torch.nn.functional.softplus(out[:, 1]) + 1e-3 for out in (held, full))
            sigma = sigma * (level.log().mean() - sigma.log().mean()).exp()
            squares.append(((task.y[split, rows] - held[:, 0]) / sigma).square())
        factor = torch.cat(squares).mean().sqrt().item()
        _, plain = by_hand(shared, shared.networks["full"].alone(split), split)
        assert_allclose(laws[split].stddev.numpy(), plain * factor, rtol=1e-4)


def test_cv_plus_is_that_of_a_loop():
    rng = torch.Generator().manual_seed(0)
    residuals = [torch.rand(n, generator=rng).double() for n in (7, 8, 6)]
    means = torch.randn(3, 5, generator=rng).double()
    for level in (0.5, 0.68, 0.9):
        low, high = cv_plus(residuals, means, level)
        for row in range(5):
            pairs = [(means[k, row].item(), r) for k in range(3) for r in residuals[k].tolist()]
            rank = math.ceil(level * (len(pairs) + 1))
            assert_allclose(high[row], sorted(mean + r for mean, r in pairs)[rank - 1], atol=1e-9)
            assert_allclose(low[row], sorted((mean - r for mean, r in pairs), reverse=True)[rank - 1], atol=1e-9)


def test_cv_plus_of_too_few_rows_is_everything():
    low, high = cv_plus([torch.ones(3).double()], torch.zeros(1, 2).double(), 0.95)
    assert low.tolist() == [-math.inf] * 2
    assert high.tolist() == [math.inf] * 2


def test_cv_plus_row_has_intervals_and_nothing_else(shared):
    row = scored(answered(shared, "cv_plus"), targets_of(shared))
    known = {name for name, values in row["columns"].items() if values[0] is not None}
    assert known == {"coverage_68", "coverage", "coverage_95", "width", "train_s"}
    assert "pooled" not in row


@pytest.mark.parametrize("name", METHODS.names())
def test_every_method_gives_numbers_for_every_split(shared, name):
    row = scored(answered(shared, name), targets_of(shared))
    assert row["status"] == "done"
    known = {column for column, values in row["columns"].items() if all(v is not None for v in values)}
    expected = {"deterministic": {"rmse", "train_s"}, "cv_plus": {"coverage", "width"}}
    assert known >= expected.get(name, {"rmse", "ll", "crps", "ece_z", "ece_q", "coverage", "width"})


def test_calibrated_predictions_stay_within_their_floors():
    """Draws from the predicted laws; false-alarm rate 5 % for either error, at this seed none."""
    rng = torch.Generator().manual_seed(3)
    laws = [Normal(torch.zeros(800).double(), torch.full((800,), 2.0).double()) for _ in range(2)]
    targets = [2 * torch.randn(800, generator=rng).double() for _ in range(2)]
    found = scored(Answer(laws=laws), targets)
    made = table(Settings(), "yacht", "1x50", {"nll": found})
    assert (made["n_test"], made["bins"], made["df"]) == (800, 20, 75)
    assert made["rows"]["nll"]["ece_z"]["mean"] < made["floors"]["ece_z"]["q95"]
    assert made["rows"]["nll"]["pooled"]["ece_q"] < made["pooled"]["floors"]["ece_q"]["q95"]


def test_undefined_numbers_are_none():
    law = MixtureSameFamily(Categorical(logits=torch.zeros(20, 2)), Normal(torch.zeros(20, 2), torch.ones(20, 2)))
    row = scored(Answer(laws=[law], means=[torch.full((20,), torch.inf)]), [torch.randn(20)])
    assert row["columns"]["rmse"] == [None]
    assert spread([None]) == {"mean": None, "sd": None, "se": None}


def test_paired_differences_and_bars_count_tables():
    def found(values):
        columns = {name: [None, None] for name in ("rmse", "crps", "ece_z", "ece_q", "width", "train_s")}
        columns |= {name: [None, None] for name in ("coverage_68", "coverage", "coverage_95")}
        return {"status": "done", "columns": {**columns, "ll": values}}

    rows = {"temperature": found([-1.0, -2.0]), "oof_nll": found([-1.1, -1.0]), "oof_fcal": found([-3.0, -3.0])}
    made = table(Settings(), "yacht", "1x50", rows)
    pair = made["paired"]["oof_nll - temperature"]
    assert pair["above"] == 1
    assert_allclose(pair["ll"], [-0.1, 1.0])
    assert_allclose([pair["mean"], pair["se"]], [0.45, 0.55])
    counted = bars([made])["1x50"]
    assert counted["datasets"]["yacht"]["best"] == "oof_nll"
    assert counted["temperature"] == {"reached": 1, "bar": 7}
    assert counted["published"]["reached"] == 1  # -1.05 is above -1.25
    assert counted["clear"] == 0  # 0.45 is less than twice 0.55
    assert counted["ensemble_above"] == 0
    assert counted["above_unrepaired"] == 0
    assert counted["each"]["oof_fcal"] == {"temperature": 0, "published": 0, "calibrated": 0}


def test_bars_count_calibration_and_the_network_that_nothing_repairs():
    def row(ll, ece_q):
        return {"ll": {"mean": ll}, "pooled": {"ece_q": ece_q}}

    rows = {
        "temperature": row(-1.0, 0.2),
        "nll_all": row(-0.9, 0.5),
        "oof_nll": row(-0.8, 0.1),
        "oof_fcal": row(-2.0, 0.3),
    }
    made = {"dataset": "wine", "network": "1x50", "rows": rows, "published": {}, "paired": {}}
    counted = bars([made])["1x50"]
    assert counted["above_unrepaired"] == 1
    assert [counted["each"][name]["calibrated"] for name in ("oof_nll", "oof_fcal")] == [1, 0]
