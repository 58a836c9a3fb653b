"""Rows of the Bokeh benchmark that hold out no image for good, at their smallest: are they what they say?"""

import dataclasses
import shutil

import numpy as np
import pytest
import scipy.stats
import torch
from bokeh.comparisons import compared, with_comparisons
from bokeh.sections import sections

import fcal
from fcal.benchmarks import benchmark, preset, runner
from fcal.benchmarks.bokeh.problem import BokehProblem, labels_of
from fcal.benchmarks.bokeh.scoring import by_sigma
from fcal.benchmarks.bokeh.tables import bokeh_table
from fcal.benchmarks.bokeh.task import BOKEH
from fcal.benchmarks.methods import METHODS, method_of
from fcal.benchmarks.scoring import interval_columns
from fcal.sweeps import Store
from fcal.sweeps.cells import file_stem

ROWS = [
    "nll", "temperature", "ensemble", "oof_temperature", "oof_nll", "oof_fcal", "oof_fcal_strata", "oof_conformal",
    "oof_nll_conformal", "cv_plus",
]  # fmt: skip
SETTINGS = preset(BOKEH, "tiny", noises=("heteroscedastic",))
DATA = SETTINGS.data("heteroscedastic", "paper-like", 0)
PROBLEM = BokehProblem(SETTINGS, DATA, None)
TRAININGS = PROBLEM.source


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return Store(tmp_path_factory.mktemp("crossfits") / "cells")


@pytest.fixture(scope="module")
def done(store):
    found = benchmark(BOKEH, SETTINGS, store=store, methods=ROWS, workers=1, progress=False)
    assert not found.crashed
    return found


def row_cell(row):
    return runner.row_cell(BOKEH, BokehProblem(SETTINGS, DATA, None), row)


def crossfit_of(store):
    return TRAININGS.crossfit_of(PROBLEM.cells.crossfit().config, store)


def scales_cell(row):
    method = METHODS[row]
    return PROBLEM.cells.scales(method.scales, method.batch)


@pytest.fixture(scope="module")
def rows(done):
    return done.document["tables"][0]["rows"]


def test_mean_is_that_of_the_network_of_all_images(rows):
    """Also where error bars have a network of their own; a conformal law need not be centred."""
    kept = [rows[name]["l1_gt"]["mean"] for name in ("oof_temperature", "oof_nll", "oof_fcal", "oof_fcal_strata")]
    assert kept == [kept[0]] * 4
    assert rows["cv_plus"]["l1_gt"]["mean"] == kept[0]


@pytest.mark.usefixtures("done")
def test_no_network_of_a_fold_has_seen_it(store):
    """Every image is held out by exactly one network, whose prediction is the one that is used."""
    found = crossfit_of(store)
    splits, both = PROBLEM.datasets, PROBLEM.datasets.all
    for number, network in enumerate(found.without):
        held = (found.fold == number).nonzero().squeeze(1)
        pred = network(both.__getitems__(held.tolist())["input"])
        torch.testing.assert_close(found.held_out.mean[held], pred.mean, rtol=1e-4, atol=1e-5)
    assert len(found.fold) == len(splits.train) + len(splits.validation)
    assert 0.5 < found.error_ratio <= 1  # no common checkpoint, so the correction for fewer rows applies


@pytest.mark.usefixtures("done")
def test_temperature_is_the_rms_of_held_out_residuals_at_the_level_of_the_full_network(store, rows):
    """Recomputed by NumPy, up to the NLL of the test images."""
    found = crossfit_of(store)
    fold, y = found.fold.numpy(), found.target.double().numpy()
    mean, sd = found.held_out.mean.double().numpy(), found.held_out.stddev.double().numpy().copy()
    seen = found.seen.stddev.double().numpy()
    for number in range(SETTINGS.folds):
        here = fold == number
        sd[here] *= np.exp(np.log(seen[here]).mean() - np.log(sd[here]).mean())
    factor = found.error_ratio * np.sqrt(np.mean(((y - mean) / sd) ** 2))
    test = labels_of(PROBLEM.cells.data)
    pred = TRAININGS.predict(found.full, PROBLEM.datasets.test).pred
    nll = -scipy.stats.norm.logpdf(test["target"], pred.mean, factor * pred.stddev.numpy()).mean()
    assert rows["oof_temperature"]["nll"]["mean"] == pytest.approx(nll, rel=1e-4)


@pytest.mark.usefixtures("done")
def test_ensemble_is_the_mean_density_of_five_networks(store, rows):
    epochs = store.get("bokeh-row", row_cell("nll").config)["epochs"]["base"]
    cells = PROBLEM.cells.members(method_of("nll"), 5, stop_after=epochs)
    assert len({cell.key for cell in cells}) == 5
    target = labels_of(cells[0].config["data"])["target"]
    preds = [TRAININGS.predict(TRAININGS.network_of(cell, store), PROBLEM.datasets.test).pred for cell in cells]
    density = np.mean([scipy.stats.norm.pdf(target, pred.mean, pred.stddev) for pred in preds], 0)
    assert rows["ensemble"]["nll"]["mean"] == pytest.approx(-np.log(density).mean(), rel=1e-4)
    assert not torch.equal(preds[0].mean, preds[1].mean)


def test_intervals_have_coverage_and_width_but_no_law(done, rows):
    assert all(rows["cv_plus"][column]["mean"] is None for column in ("nll", "ece_q", "ece_z", "crps"))
    found = done.document["tables"][0]["intervals"]
    assert set(found) == set(BOKEH.rows_of(None, ROWS))
    assert all(0 < one["coverage"]["mean"] <= 1 and one["width"]["mean"] > 0 for one in found.values())
    assert found["cv_plus"]["coverage"]["mean"] > 0.8


def test_interval_counts_its_ends():
    low, high = torch.tensor([0.0, 0.0, 0.0]), torch.tensor([1.0, 1.0, 3.0])
    found = interval_columns({0.9: (low, high)}, torch.tensor([0.0, 2.0, 3.0]))
    assert found == {"coverage": pytest.approx(2 / 3, rel=1e-5), "width": pytest.approx(5 / 3, rel=1e-5)}


def test_strata_are_of_equal_size_from_small_sigma_to_large():
    """Error bars too small in the last eighth alone: only its ECE is large."""
    generator = torch.Generator().manual_seed(0)
    sigma = torch.linspace(1, 2, 8000, dtype=torch.float64)[torch.randperm(8000, generator=generator)]
    error = sigma * torch.randn(8000, dtype=torch.float64, generator=generator)
    error = torch.where(sigma > 1.875, 2 * error, error)
    pred = torch.distributions.Normal(torch.zeros(8000, dtype=torch.float64), sigma)
    found = by_sigma(pred, error, bins=20, df=20)
    assert len(found["ece_z"]) == 8
    assert found["ece_z"][-1] > 3 * max(found["ece_z"][:-1])


def test_cost_counts_rows_times_epochs_of_all_trainings(rows, store):
    """By hand: three quarters of the rows train, one candidate; three folds of two thirds and a network of all rows."""
    epochs = store.get("bokeh-row", row_cell("nll").config)["epochs"]["base"]
    assert rows["nll"]["cost"]["mean"] == rows["temperature"]["cost"]["mean"] == 0.75
    assert rows["oof_temperature"]["cost"]["mean"] == 3 * 2 / 3 + 1
    assert rows["oof_nll"]["cost"]["mean"] == 3 * (1 + SETTINGS.scale_epochs / SETTINGS.base_epochs)
    assert rows["ensemble"]["cost"]["mean"] == pytest.approx(0.75 + 5 * epochs / SETTINGS.base_epochs, abs=1e-4)


def test_rows_beside_temperature_are_paired_differences(done, rows):
    found = with_comparisons(done).document["tables"][0]["against_temperature"]
    assert set(found) == {name for name in ROWS if name.startswith("oof_")}
    for name, one in found.items():
        assert one["nll"] == [pytest.approx(rows[name]["nll"]["mean"] - rows["temperature"]["nll"]["mean"])]
        assert one["l1_gt"] == [pytest.approx(rows[name]["l1_gt"]["mean"] / rows["temperature"]["l1_gt"]["mean"])]


def test_calibration_errors_are_measured_by_the_band():
    floors = {name: {"expected": 0.1, "q95": 0.2} for name in ("ece_z", "mce_z", "ece_q", "mce_q", "ence")}

    def result(ece_q):
        columns = {"ece_z": [0.5], "ece_q": [ece_q], "nll": [1.0], "crps": [1.0], "l1_gt": [1.0]}
        return {"status": "done", "columns": columns, "floors": floors}

    settings, labels = preset(BOKEH, "tiny", seeds=2), {"noise": "homoscedastic", "regime": "paper-like"}
    results = {"oof_nll": [result(0.3), result(0.5)], "temperature": [result(0.1), result(0.1)]}
    table = compared(bokeh_table(settings, labels, results), results)
    found = table.details["against_temperature"]["oof_nll"]
    assert found["of_band"] == {"ece_z": [2.5, 2.5], "ece_q": pytest.approx([1.5, 2.5])}


def test_weights_that_are_lost_are_trained_again(store, done, tmp_path):
    """Another row of the same cross-fit in a store without artifacts gives the same number."""
    copied = tmp_path / "cells"
    shutil.copytree(store.folder, copied)
    other = Store(copied)
    cell = row_cell("oof_nll")
    (copied / f"{file_stem(cell.kind, cell.config)}.json").unlink()
    again = benchmark(BOKEH, SETTINGS, store=other, methods=["nll", "oof_nll"], workers=1, progress=False)
    before = done.document["tables"][0]["rows"]["oof_nll"]["nll"]["mean"]
    assert again.document["tables"][0]["rows"]["oof_nll"]["nll"]["mean"] == before


def test_sections_show_what_is_known(done):
    (table,) = with_comparisons(done).tables
    shown = dict(sections(table))
    (against,) = [text for sentence, text in shown.items() if sentence.startswith("Rows of networks that leave")]
    assert against.count("\n") == 2 + 6
    assert "cv_plus" in shown["Central intervals:"]
    assert "oof_fcal_strata" in shown["By size of the predicted sigma, eight strata:"]
    assert any("held-out images" in text for text in shown.values())
    known = {"against_temperature": {}, "intervals": {}, "strata": {}, "folds": {}}
    empty = dataclasses.replace(table, details={**table.details, **known})
    assert len(sections(empty)) == len(shown) - 4


def test_leak_is_the_ratio_of_errors_on_held_out_and_test_images(store, done):
    """Of a network without a fold, recomputed."""
    found = crossfit_of(store)
    target = labels_of(PROBLEM.cells.data)["target"].double()
    preds = [TRAININGS.predict(network, PROBLEM.datasets.test).pred for network in found.without]
    test = np.mean([(target - pred.mean).square().mean().item() for pred in preds])
    held_out = (found.target - found.held_out.mean).double().square().mean().item()
    leak = with_comparisons(done).document["tables"][0]["folds"]["mse_leak"]["mean"]
    assert leak == pytest.approx(held_out / test, rel=1e-4)


def test_strata_reach_the_objective():
    config = scales_cell("oof_fcal_strata").config
    assert config["objective"]["strata"] == 8
    assert "strata" not in scales_cell("oof_fcal").config["objective"]
    loss = fcal.training.objective(fcal.training.ObjectiveConfig(**config["objective"])).calibration
    assert isinstance(loss, fcal.losses.StratifiedLoss)
