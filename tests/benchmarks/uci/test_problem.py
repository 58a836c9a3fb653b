"""Numbers of rows, each recomputed by another route."""

import json
import math

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy import stats
from torch.distributions import Categorical, MixtureSameFamily, Normal
from uci_tables import write_table

from fcal.benchmarks.methods import method_of
from fcal.benchmarks.problem import Prediction
from fcal.benchmarks.runner import compute, row_cell
from fcal.benchmarks.table import Spread
from fcal.benchmarks.trainings import WEIGHTS
from fcal.benchmarks.uci import trainings
from fcal.benchmarks.uci.problem import UCIProblem, scored
from fcal.benchmarks.uci.settings import Schedule, Settings
from fcal.benchmarks.uci.task import UCI
from fcal.sweeps import Store, save_tensors

TRAINED_ON_ALL_ROWS = ("beta_nll_all", "deterministic_all")


@pytest.fixture(scope="module")
def problem(tmp_path_factory):
    """Two splits, with shared networks that were trained briefly and stored where a run would store them."""
    folder = tmp_path_factory.mktemp("uci")
    data, store = write_table(folder / "tables", rows=120), Store(folder / "cells")
    settings = Settings(datasets=("yacht",), networks=("2x64",), splits={"2x64": 2}, shorten=20, candidates=1)
    (made,) = UCI.problems(settings, store, str(data))
    schedule = Schedule(epochs=30, batch=16, rate=1e-2, checkpoints=2)
    folds = trainings.fold_trace(made.splits, (64, 64), schedule, seed=0).at(-1)
    members = trainings.member_trace(made.splits, (64, 64), schedule, count=5, seed=0).at(-1)
    networks = {"nll": folds, "repaired": folds, "nll_all": members, "full": members}
    thetas = {name: network.theta.detach()[:2].clone() for name, network in networks.items()}
    thetas |= {"folds": folds.theta.detach().clone(), "members": members.theta.detach().clone()}
    save_tensors(store.artifact(trainings.FIT, made.fit, WEIGHTS), thetas)
    store.put(trainings.FIT, made.fit, {"status": "done", "fold_s": 10.0, "member_s": 10.0})
    return made


def method_in(problem, row):
    return problem.resolved(method_of(row, UCI.changes))


def prediction_of(problem, row):
    return method_in(problem, row).predict(problem)


def row_of(problem, row):
    return problem.score(method_in(problem, row), prediction_of(problem, row))


def unsolved(network):
    """A problem without data: only its labels matter."""
    return UCIProblem({"dataset": "yacht", "network": network}, Settings(), Store("cells"))


def targets_of(problem):
    return [problem.splits.raw[rows] for rows in problem.splits.test]


def by_hand(problem, network, split, rows=None):
    """Mean and sigma of a split's rows, by default its test rows, in original units, by a plain network and NumPy."""
    splits = problem.splits
    with torch.no_grad():
        out = network(splits.x[split, splits.test[split] if rows is None else rows]).double().numpy()
    sigma = np.log1p(np.exp(out[:, 1])) + 1e-3
    return out[:, 0] * splits.unit[split].item() + splits.shift[split].item(), sigma * splits.unit[split].item()


def test_nll_row_is_that_of_scipy_in_original_units(problem):
    row = row_of(problem, "nll")["columns"]
    for split, target in enumerate(targets_of(problem)):
        mean, sigma = by_hand(problem, problem.networks["nll"].alone(split), split)
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


def test_temperature_row_is_the_root_mean_square_of_held_out_residuals(problem):
    splits, dists = problem.splits, prediction_of(problem, "temperature").dists
    for split in range(2):
        network, rows = problem.networks["repaired"].alone(split), splits.of_fold(split)
        mean, sigma = by_hand(problem, network, split, rows)
        factor = np.sqrt(np.mean(((splits.raw[rows].numpy() - mean) / sigma) ** 2))
        _, plain = by_hand(problem, network, split)
        assert_allclose(dists[split].stddev.numpy(), plain * factor, rtol=1e-4)


def test_ensemble_is_a_mixture_whose_scores_are_those_of_brute_force(problem):
    row = row_of(problem, "ensemble")["columns"]
    for split, target in enumerate(targets_of(problem)):
        members = [by_hand(problem, problem.networks["members"].alone(2 * i + split), split) for i in range(5)]
        y = target.numpy()
        density = np.mean([stats.norm.pdf(y, mean, sigma) for mean, sigma in members], axis=0)
        assert_allclose(row["ll"][split], np.log(density).mean(), rtol=1e-5)
        below = np.mean([stats.norm.cdf(y, mean, sigma) for mean, sigma in members], axis=0)
        inside = np.abs(stats.norm.ppf(below)) <= stats.norm.ppf(0.95)
        assert_allclose(row["coverage"][split], inside.mean())
        # The integral of (F(t) - 1{y <= t})^2, on a fine grid around each target.
        scores = []
        for i in range(len(y)):
            grid = np.linspace(y[i] - 60, y[i] + 60, 24_001)
            cdf = np.mean([stats.norm.cdf(grid, mean[i], sigma[i]) for mean, sigma in members], axis=0)
            scores.append(np.trapezoid((cdf - (grid >= y[i])) ** 2, grid))
        assert_allclose(row["crps"][split], np.mean(scores), rtol=2e-3)


def test_out_of_fold_rows_keep_the_mean_of_the_network_of_all_rows(problem):
    for name in ("oof_temperature", "oof_nll", "oof_fcal"):
        for split, dist in enumerate(prediction_of(problem, name).dists):
            mean, _ = by_hand(problem, problem.networks["full"].alone(split), split)
            assert_allclose(dist.mean.numpy(), mean, rtol=1e-5)


def test_out_of_fold_factor_is_at_the_level_of_the_full_network(problem):
    """By hand: residuals over sigmas whose mean logarithm is, fold by fold, that of the full network."""
    splits, dists = problem.splits, prediction_of(problem, "oof_temperature").dists
    for split in range(2):
        full, squares = problem.networks["full"].alone(split), []
        for fold in range(5):
            rows = splits.of_fold(split, fold)
            mean, sigma = by_hand(problem, problem.networks["folds"].alone(2 * fold + split), split, rows)
            _, level = by_hand(problem, full, split, rows)
            sigma = sigma * np.exp(np.log(level).mean() - np.log(sigma).mean())
            squares.append(((splits.raw[rows].numpy() - mean) / sigma) ** 2)
        factor = np.sqrt(np.concatenate(squares).mean())
        _, plain = by_hand(problem, full, split)
        assert_allclose(dists[split].stddev.numpy(), plain * factor, rtol=1e-4)


def test_cv_plus_of_absolute_errors_is_that_of_a_loop(problem):
    splits, intervals = problem.splits, prediction_of(problem, "cv_plus_absolute").intervals
    for split in range(2):
        means, errors = [], []  # of fold networks: for the test rows, and absolute ones of the rows held out
        for fold in range(5):
            network, rows = problem.networks["folds"].alone(2 * fold + split), splits.of_fold(split, fold)
            means.append(by_hand(problem, network, split)[0])
            errors.append(np.abs(splits.raw[rows].numpy() - by_hand(problem, network, split, rows)[0]))
        for level in (0.68, 0.9, 0.95):
            low, high = intervals[split][level]
            for i in range(len(splits.test[split])):
                pairs = [(mean[i], error) for mean, of_fold in zip(means, errors, strict=True) for error in of_fold]
                rank = math.ceil(level * (len(pairs) + 1))
                above = sorted(mean + error for mean, error in pairs)
                below = sorted((mean - error for mean, error in pairs), reverse=True)
                assert_allclose([low[i], high[i]], [below[rank - 1], above[rank - 1]], rtol=1e-5)


def test_cv_plus_row_has_intervals_and_nothing_else(problem):
    row = row_of(problem, "cv_plus_absolute")
    known = {name for name, values in row["columns"].items() if values[0] is not None}
    assert known == {"coverage_68", "coverage", "coverage_95", "width", "train_s"}
    assert "pooled" not in row


@pytest.mark.parametrize("name", [*UCI.rows, *TRAINED_ON_ALL_ROWS])
def test_every_method_gives_numbers_for_every_split(problem, name):
    """From the address of its cell alone, as in a process that computes it."""
    cell, method = row_cell(UCI, problem, name), method_in(problem, name)
    methods = {json.dumps(method.config(), sort_keys=True): method}
    row = compute(cell.kind, cell.config, problem.store, task=UCI, methods=methods, data=problem.data)
    assert row["status"] == "done"
    known = {column for column, values in row["columns"].items() if all(v is not None for v in values)}
    points, intervals = {"rmse", "train_s"}, {"coverage", "width"}
    expected = {"deterministic": points, "deterministic_all": points, "cv_plus_absolute": intervals}
    assert known >= expected.get(name, {"rmse", "ll", "crps", "ece_z", "ece_q", "coverage", "width"})


@pytest.mark.parametrize("name", TRAINED_ON_ALL_ROWS)
def test_all_rows_train_as_chosen_without_the_held_out_ones(problem, name):
    chosen, again = (row_of(problem, row) for row in (name.removesuffix("_all"), name))
    assert again["epochs"] == chosen["epochs"]
    assert again["columns"]["rmse"] != chosen["columns"]["rmse"]


def test_addresses_have_only_what_changes_a_number(problem):
    def addresses(**changes):
        other = UCIProblem(problem.fit, Settings(**{"candidates": 1, "shorten": 20.0, **changes}), problem.store)
        return {row: row_cell(UCI, other, row).key for row in UCI.rows}

    start = addresses()
    tuned = {"calibration_loss", "beta_nll", "mmd", "pce_kde", "fcal_kl", "fcal_wass"}
    for changes, rows in (
        ({"tune_rate": 2e-3}, tuned | {"oof_nll", "oof_fcal"}),
        ({"tune_batch": 64}, tuned | {"oof_nll", "oof_fcal"}),
        ({"candidates": 2}, tuned),
        ({"lam": 0.3}, {"oof_fcal"}),
        ({"datasets": ("yacht", "wine")}, set()),
    ):
        assert {row for row, key in addresses(**changes).items() if key != start[row]} == rows
    assert len(set(start.values())) == len(start)


def test_calibrated_predictions_stay_within_their_floors():
    """Draws from the predicted distributions; false-alarm rate 5 % for either error, at this seed none."""
    rng = torch.Generator().manual_seed(3)
    dists = [Normal(torch.zeros(800).double(), torch.full((800,), 2.0).double()) for _ in range(2)]
    targets = [2 * torch.randn(800, generator=rng).double() for _ in range(2)]
    cell = {"status": "done", **scored(Prediction(dists=dists), targets)}
    table = UCI.table(Settings(), [unsolved("1x50")], {"nll": [cell]})
    assert (table.n_test, table.bins, table.df) == (800, 20, 75)
    assert table.rows["nll"].columns["ece_z"].mean < table.floors["ece_z"]["q95"]
    assert table.rows["nll"].details["pooled"]["ece_q"] < table.details["pooled"]["floors"]["ece_q"]["q95"]


def test_undefined_numbers_are_none():
    dist = MixtureSameFamily(Categorical(logits=torch.zeros(20, 2)), Normal(torch.zeros(20, 2), torch.ones(20, 2)))
    row = scored(Prediction(dists=[dist], means=[torch.full((20,), torch.inf)]), [torch.randn(20)])
    assert row["columns"]["rmse"] == [None]
    assert Spread.of([None]) == Spread()


def test_a_method_that_diverged_is_a_row_without_numbers():
    columns = {name: [1.0, 2.0] for name in ("rmse", "ll")}
    cells = {"nll": [{"status": "done", "columns": columns}], "mmd": [{"status": "failed", "reason": "diverged"}]}
    row = UCI.table(Settings(), [unsolved("2x64")], cells).rows["mmd"]
    assert (row.status, row.reason, row.seeds["ll"]) == ("failed", "diverged", [None, None])
