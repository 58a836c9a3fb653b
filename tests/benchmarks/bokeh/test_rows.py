"""The Bokeh benchmark at its smallest: what is in the tables, and that they are what they say."""

import dataclasses
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
import torch
from scipy import stats
from torch.distributions import Normal

import fcal
from fcal._datasets import BatchConcat
from fcal.benchmarks import benchmark, preset, runner
from fcal.benchmarks.bokeh.problem import BokehProblem, splits_of
from fcal.benchmarks.bokeh.scoring import COLUMNS, other_grids, scored
from fcal.benchmarks.bokeh.tables import bokeh_table
from fcal.benchmarks.bokeh.task import BOKEH
from fcal.benchmarks.method_kinds import Trained
from fcal.benchmarks.methods import METHODS, method_of
from fcal.benchmarks.network_problem import candidate_record, chosen
from fcal.benchmarks.paper_tables import paper_numbers
from fcal.sweeps import Store

SETTINGS = preset(BOKEH, "tiny", noises=("heteroscedastic",), seeds=2)
PAGE = Path(__file__).parents[3] / "docs" / "bokeh.md"
METHODS_USED = ["oracle", "deterministic", "nll", "temperature", "fcal_kl"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("bokeh")


@pytest.fixture(scope="module")
def done(folder):
    return benchmark(BOKEH, SETTINGS, store=Store(folder / "cells"), methods=METHODS_USED, workers=1, progress=False)


def row_cell(settings, data, row):
    return runner.row_cell(BOKEH, BokehProblem(settings, data, None), row)


def rows_of(done):
    return done.document["tables"][0]["rows"]


def test_benchmark_has_every_row_and_column(done):
    assert not done.crashed
    rows = rows_of(done)
    assert list(rows) == BOKEH.rows_of(None, METHODS_USED)
    for row in rows.values():
        assert set(COLUMNS) <= set(row)
        assert all(set(row[column]) == {"mean", "sd"} for column in COLUMNS)


def test_benchmark_document_is_json(done):
    text = json.dumps(done.document, allow_nan=False)
    assert json.loads(text)["task"] == "bokeh"


def test_benchmark_deterministic_row_has_no_calibration(done):
    row = rows_of(done)["deterministic"]
    assert row["l1_gt"]["mean"] > 0
    assert all(row[column]["mean"] is None for column in ("ece_z", "ece_q", "nll", "crps", "ence", "sigma_corr"))


def test_benchmark_oracle_is_exact_and_calibrated(done):
    """Two seeds, each ECE below its 95 % floor but in 5 % of seeds: these two were looked at once."""
    row, floors = rows_of(done)["oracle"], done.document["tables"][0]["floors"]
    assert row["l1_gt"]["mean"] == 0
    assert row["sigma_corr"]["mean"] == pytest.approx(1)
    assert row["ece_q"]["mean"] < floors["ece_q"]["q95"]
    assert all(
        row["nll"]["mean"] < other["nll"]["mean"]
        for name, other in rows_of(done).items()
        if other["nll"]["mean"] and name != "oracle"
    )


def test_benchmark_mean_and_sd_are_over_seeds(done):
    row = rows_of(done)["nll"]
    values = row["seeds"]["nll"]
    assert len(values) == 2
    assert row["nll"]["mean"] == pytest.approx(fmean(values))
    assert row["nll"]["sd"] == pytest.approx(np.std(values, ddof=1))


def test_benchmark_temperature_keeps_the_mean_of_nll(done):
    """One factor on sigma repairs the network of the NLL row and leaves its mean alone."""
    rows = rows_of(done)
    assert rows["temperature"]["seeds"]["l1_gt"] == pytest.approx(rows["nll"]["seeds"]["l1_gt"], rel=1e-6)


def test_benchmark_run_again_computes_nothing_and_gives_the_same(done, folder, monkeypatch):
    def forbidden(*_args, **_options):
        raise AssertionError("a finished cell was computed again")

    monkeypatch.setattr(BokehProblem.source.__class__, "train", None)
    monkeypatch.setattr(runner, "compute", forbidden)
    again = benchmark(BOKEH, SETTINGS, store=Store(folder / "cells"), methods=METHODS_USED, workers=1, progress=False)
    assert again.document["tables"] == done.document["tables"]


def test_benchmark_in_another_folder_gives_the_same_numbers(done, tmp_path):
    fewer = benchmark(BOKEH, SETTINGS, store=Store(tmp_path / "cells"), methods=["fcal_kl"], workers=1, progress=False)
    for column in COLUMNS:
        if column not in ("train_s", "predict_ms"):  # times differ
            assert rows_of(fewer)["fcal_kl"][column] == rows_of(done)["fcal_kl"][column]


@pytest.mark.usefixtures("done")
def test_benchmark_row_is_what_its_weights_say(folder):
    """The NLL row of the first seed, computed from the stored weights by SciPy and plain torch."""
    settings, store = SETTINGS, Store(folder / "cells")
    data = settings.data("heteroscedastic", "paper-like", 0)
    problem = BokehProblem(settings, data, store)
    network = problem.source.network_of(problem.cells.candidates(method_of("nll"))[0], store)
    splits = splits_of(**dataclasses.asdict(data))
    parts = [part.__getitems__(range(len(part))) for part in (splits.test, splits.extra)]
    images, target, truth = (torch.cat([part[name] for part in parts]) for name in ("input", "target", "truth"))
    with torch.no_grad():
        pred = network(images)
    columns = store.get("bokeh-row", row_cell(settings, data, "nll").config)["columns"]
    row = {name: value for name, (value,) in columns.items()}
    z = ((target - pred.mean) / pred.stddev).double().numpy().ravel()
    shares = np.histogram(stats.norm.cdf(z), bins=20, range=(0, 1))[0] / z.size
    error = (pred.mean - truth).double()
    assert row["ece_z"] == pytest.approx((shares * np.abs(shares - 1 / 20)).sum(), rel=1e-4)
    assert row["nll"] == pytest.approx(-stats.norm.logpdf(target, pred.mean, pred.stddev).mean(), rel=1e-4)
    assert row["l1_gt"] == pytest.approx(0.5 * error.square().mean().item(), rel=1e-4)  # smooth L1 of small errors


@pytest.mark.usefixtures("done")
def test_benchmark_all_images_row_uses_the_epochs_chosen_before(folder):
    store, data = Store(folder / "cells"), SETTINGS.data("heteroscedastic", "paper-like", 0)
    chosen = store.get("bokeh-row", row_cell(SETTINGS, data, "nll").config)
    more = store.get("bokeh-row", row_cell(SETTINGS, data, "nll_all").config)
    assert more["epochs"] == chosen["epochs"]


def test_benchmark_nothing_is_chosen_by_test_images(tmp_path):
    """Other test images, the same images to train on and to choose by: the same choice from the same scores."""
    results = []
    for extra in (400, 50):
        settings = dataclasses.replace(SETTINGS, candidates=3, seeds=1, tune_epochs=1, extra=extra)
        store = Store(tmp_path / "cells")
        benchmark(BOKEH, settings, store=store, methods=["fcal_kl"], workers=1, progress=False)
        data = settings.data("heteroscedastic", "paper-like", 0)
        results.append(store.get("bokeh-row", row_cell(settings, data, "fcal_kl").config))
    chosen = [(one["chosen"], one["epochs"], [other["nll"] for other in one["candidates"]]) for one in results]
    assert chosen[0] == chosen[1]
    assert chosen[0][0] == chosen[0][2].index(min(chosen[0][2]))
    assert results[0]["columns"]["nll"] != results[1]["columns"]["nll"]


def test_scored_sigma_correlation_is_pearson_of_logs():
    generator = torch.Generator().manual_seed(0)
    sigma, true = (torch.rand(500, 2, generator=generator, dtype=torch.float64) + 0.5 for _ in range(2))
    truth = torch.zeros(500, 2, dtype=torch.float64)
    target = true * torch.randn(500, 2, generator=generator, dtype=torch.float64)
    row = scored(Normal(truth, sigma), {"target": target, "truth": truth, "sigma": true}, bins=20, df=75)["columns"]
    expected = stats.pearsonr(sigma.log().flatten(), true.log().flatten()).statistic
    assert row["sigma_corr"] == pytest.approx(expected, abs=1e-5)
    assert row["crps"] == pytest.approx(fcal.crps(Normal(truth, sigma), target).mean().item(), rel=1e-5)


def test_other_grids_are_those_asked_for():
    target = torch.randn(3000, 2, generator=torch.Generator().manual_seed(1))
    pred = Normal(torch.zeros(3000, 2), torch.ones(3000, 2))
    test = {"target": target, "truth": target, "sigma": torch.ones(3000, 2)}
    row, grids = scored(pred, test, bins=20, df=75), other_grids(pred, target)
    assert {(grid["bins"], grid["df"]) for grid in grids} == {
        (bins, df) for bins in (20, 200, 1000) for df in (75, 100)
    }
    same = next(grid for grid in grids if (grid["bins"], grid["df"]) == (20, 75))
    assert same["ece_q"] == pytest.approx(row["columns"]["ece_q"], rel=1e-4)


def test_candidate_that_lost_its_mean_is_failed():
    base = {"best": {"validation/l1": 1.0}}
    lost = {"status": "done", "best": {"validation/l1": 2.5, "validation/nll": 0.1}, "best_epoch": 0}
    found = candidate_record({"lam": 1.0}, lost, base)
    assert found["status"] == "failed"
    assert "rose by 150%" in found["reason"]
    kept = {**found, "status": "done", "nll": 5.0}
    assert chosen([found, kept], by="nll") == 1
    assert chosen([found], by="nll") == 0
    assert chosen([{"status": "diverged"}], by="nll") is None


def test_table_of_a_failed_method_says_so_with_its_numbers():
    columns = {name: [1.0] for name in COLUMNS}
    results = {
        "mmd": [{"status": "failed", "reason": "lost", "columns": columns}, {"status": "done", "columns": columns}]
    }
    table = bokeh_table(preset(BOKEH, "tiny"), {"noise": "homoscedastic", "regime": "paper-like"}, results)
    row = table.rows["mmd"]
    assert row.status == "failed"
    assert row.reason == "1 of 2 seeds: lost"
    assert row.columns["nll"].mean == 1.0


def test_paper_numbers_are_those_of_its_appendix():
    """Two entries of the paper's appendix table of Bokeh: ECE(q) of f-Cal-Wass and NLL of temperature scaling."""
    assert paper_numbers("bokeh", "homoscedastic")["fcal_wass"]["ece_q"] == {"mean": 0.037, "sd": 0.0022}
    assert paper_numbers("bokeh", "heteroscedastic")["temperature"]["nll"]["mean"] == -1.7
    assert paper_numbers("bokeh", "gamma") == {}


def test_rows_of_unknown_method_lists_the_known():
    with pytest.raises(ValueError, match="expected `method` one of .*'oracle', .*got 'fcal_k'.*did you mean 'fcal_kl'"):
        BOKEH.methods(["fcal_k"])


def test_preset_unknown_lists_the_known():
    with pytest.raises(ValueError, match="expected `preset` one of 'tiny', 'quick', 'paper', got 'papr'"):
        preset(BOKEH, "papr")


def test_every_method_has_as_many_candidates():
    counts = {len(METHODS[name].candidates) for name in METHODS.names() if isinstance(METHODS[name], Trained)}
    assert counts == {3}


def test_together_takes_residuals_from_both_parts():
    splits = splits_of(**dataclasses.asdict(SETTINGS.data("homoscedastic", "paper-like", 3)))
    both = BatchConcat([splits.train, splits.validation])
    batch = both.__getitems__([len(splits.train), 0, len(both) - 1])
    torch.testing.assert_close(batch["target"][0], splits.validation[0]["target"])
    torch.testing.assert_close(batch["target"][1], splits.train[0]["target"])
    torch.testing.assert_close(batch["input"][2], splits.validation[len(splits.validation) - 1]["input"])
    assert math.prod(batch["target"].shape) == 6


def test_row_of_ones_own_as_the_page_adds_it(tmp_path):
    (script,) = re.findall(r"```python\n(# own_row.py\n.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "own_row.py").write_text(script, encoding="utf-8")
    words = [sys.executable, "own_row.py"]
    said = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [line.split()[0] for line in said] == ["homoscedastic", "heteroscedastic"]
    assert all("'crps_all': 0." in line for line in said)
