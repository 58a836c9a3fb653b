"""The sensors' tables: numbers recomputed from what networks said, resume, and what laws say of many rows."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import torch
from benchmarks.sensors.made_up import ABSENT, DATA, write_all
from numpy.testing import assert_allclose
from safetensors.numpy import load_file
from scipy import stats
from torch.distributions import Normal, StudentT

import fcal
from fcal.benchmarks import sensors
from fcal.benchmarks.sensors import markdown
from fcal.benchmarks.sensors.folds import fold_of
from fcal.benchmarks.sensors.laws import law, parameters, spread
from fcal.sweeps import Store

SMALL = sensors.Settings(
    tables=("range", "gnss"), rows=500, folds=2, inner_folds=2, hidden=8, steps=40, tune_steps=5, batch=128
)
ROWS = ["stated", "nll", "temperature", "oof_temperature", "oof_nll", "oof_fcal"]
COLUMNS = ["rmse", "ll", "crps", "ece_z", "ece_q", "coverage", "z2"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_all(tmp_path_factory.mktemp("robot_known_noise"))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return Store(tmp_path_factory.mktemp("run") / "cells")


@pytest.fixture(scope="module")
def tables(data, store):
    done = sensors.benchmark(data, SMALL, store=store, workers=1, progress=False)
    assert done.crashed == {}
    return {table["name"]: table for table in done.document["tables"]}


def test_document_has_rows_columns_and_comparisons(tables):
    assert list(tables) == ["range", "gnss"]
    for table in tables.values():
        assert list(table["rows"]) == ROWS
        assert table["columns"] == COLUMNS
        assert set(table["known"]["learnt"]) == set(ROWS)
        assert table["family"]["ranking"][0]["behind"] == 0
        for row in table["rows"].values():
            assert row["verdict"] in fcal.metrics.report.VERDICTS
            assert set(row["floors"]) == {"ece_z", "ece_q"}
    assert json.loads(json.dumps(tables, allow_nan=False)) == tables
    assert set(tables["gnss"]["family"]["log_likelihood"]) == set(sensors.TASKS["gnss"].families)


def test_stated_row_is_of_normal_laws_with_the_stated_sd(data, tables):
    """By SciPy, from the file alone."""
    readings = sensors.read_landmarks(data)[0].thinned(SMALL.rows)
    row, z = tables["range"]["rows"]["stated"], readings.error / readings.stated
    assert_allclose(row["ll"]["mean"], stats.norm(0, readings.stated).logpdf(readings.error).mean(), rtol=1e-9)
    assert_allclose(row["z2"]["mean"], np.square(z).mean(), rtol=1e-9)
    assert_allclose(row["coverage"]["mean"], (np.abs(z) < stats.norm.ppf(0.95)).mean(), atol=2e-3)
    assert_allclose(tables["range"]["known"]["learnt"]["stated"]["ratio"], 1, rtol=1e-12)


def test_learnt_row_is_recomputed_from_the_laws_of_test_rows(data, store, tables):
    """By NumPy and SciPy, from the tensors that the folds left: likelihood, mean z^2, sds of all rows and of a bin."""
    readings, _ = sensors.read_landmarks(data)
    readings = readings.thinned(SMALL.rows)
    cell = sensors.cells_of(SMALL, sensors.checksums(data, ["range"]))["range"]
    tested = fold_of(readings, SMALL).numpy()
    loc, scale = np.empty(len(readings)), np.empty(len(readings))
    for number, part in enumerate(cell.needs):
        kept = load_file(store.artifact(part.kind, part.config, ".safetensors"))
        loc[tested == number], scale[tested == number] = kept["oof_nll.loc"], kept["oof_nll.scale"]
    row, known = tables["range"]["rows"]["oof_nll"], tables["range"]["known"]
    assert_allclose(row["ll"]["mean"], stats.norm(loc, scale).logpdf(readings.error).mean(), rtol=1e-6)
    assert_allclose(row["z2"]["mean"], np.square((readings.error - loc) / scale).mean(), rtol=1e-6)
    assert_allclose(row["rmse"]["mean"], np.sqrt(np.square(readings.error - loc).mean()), rtol=1e-6)
    near = readings.state["distance"] < 2
    for inside, found in ((near | True, known["learnt"]), (near, known["bins"][0]["learnt"])):
        sd = np.sqrt(np.square(scale[inside]).mean() + loc[inside].var())
        assert_allclose(found["oof_nll"]["sd"], sd, rtol=1e-6)
        assert_allclose(found["oof_nll"]["noise"], np.sqrt(np.square(scale[inside]).mean()), rtol=1e-6)
    assert_allclose(known["bins"][0]["measured_sd"], readings.error[near].std(), rtol=1e-9)


def test_no_network_is_tested_on_a_stretch_that_it_has_seen(data):
    for readings in (sensors.read_laser(data), *sensors.read_landmarks(data), sensors.read_gnss(data)):
        tested = fold_of(readings, SMALL).numpy()
        for stretch in np.unique(readings.stretch):
            assert len(np.unique(tested[readings.stretch == stretch])) == 1


def test_finished_cells_are_not_computed_again(data, store, tables):
    before = {path.name: path.stat().st_mtime_ns for path in store.folder.iterdir()}
    again = sensors.benchmark(data, SMALL, store=store, workers=1, progress=False)
    assert {table["name"]: table for table in again.document["tables"]} == tables
    assert {path.name: path.stat().st_mtime_ns for path in store.folder.iterdir()} == before


def test_killed_run_goes_on_with_the_folds_that_it_finished(data, store, tables):
    cell = sensors.cells_of(SMALL, sensors.checksums(data, ["range"]))["range"]
    lost = store.record(cell.kind, cell.config).path
    folds = [store.record(part.kind, part.config).path for part in cell.needs]
    before = [path.stat().st_mtime_ns for path in folds]
    lost.unlink()
    again = sensors.benchmark(
        data, dataclasses.replace(SMALL, tables=("range",)), store=store, workers=1, progress=False
    )
    assert again.document["tables"] == [tables["range"]]
    assert [path.stat().st_mtime_ns for path in folds] == before


def test_other_data_are_other_cells(data, tmp_path):
    shutil.copytree(data, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "smartloc_gnss/Berlin_Potsdamer_Platz_GT.txt"
    path.write_text(path.read_text() + "\n")
    one, two = (sensors.cells_of(SMALL, sensors.checksums(folder, SMALL.tables)) for folder in (data, tmp_path))
    assert one["range"] == two["range"]
    assert one["gnss"] != two["gnss"]


def test_markdown_has_every_row_and_the_verdict_of_families(tables):
    text = markdown.everything(list(tables.values()))
    assert "## GNSS, given C/N0, elevation and system" in text
    assert all(text.count(f"| {name} |") == 2 * len(tables) for name in ROWS)
    assert all(table["family"]["verdict"] in text for table in tables.values())


def test_robust_spread_is_the_median_size_of_draws():
    """A million draws of two laws: the standard error of their median is 0.1 %."""
    one = Normal(torch.full((50,), 3.0).double(), 0.5)
    two = StudentT(torch.full((50,), 3.0).double(), -1.0, 2.0)
    torch.manual_seed(0)
    draws = torch.cat([part.sample((10_000,)).ravel() for part in (one, two)])
    assert_allclose(spread([one, two], robust=True).robust, float(draws.abs().median()) / 0.6745, rtol=0.005)


def test_laws_come_back_from_their_parameters():
    pred = StudentT(torch.tensor([3.0, 4.0]), torch.tensor([1.0, 2.0]), torch.tensor([0.5, 0.25]))
    again = law("student-t", parameters(pred))
    torch.testing.assert_close(
        again.log_prob(torch.zeros(2).double()), pred.log_prob(torch.zeros(2)).double(), rtol=1e-6, atol=1e-6
    )


def test_settings_refuse_an_unknown_table():
    with pytest.raises(ValueError, match="expected `sensors` one of 'laser', .*, got 'lidar'"):
        sensors.Settings(tables=("lidar",))


@pytest.mark.skipif(not DATA.is_dir(), reason=ABSENT)
def test_real_gnss_errors_are_heavy_tailed():
    """About one centre and scale per bin of C/N0, which need no network: families are told apart by stretches."""
    readings = sensors.read_gnss(DATA).thinned(3000)
    strength = torch.from_numpy(readings.state["strength"])
    which, errors = (strength / 5).long(), torch.from_numpy(readings.error)
    loc, scale = torch.empty_like(errors), torch.empty_like(errors)
    for number in which.unique():
        inside = which == number
        loc[inside], scale[inside] = errors[inside].mean(), errors[inside].std()
    found = fcal.select_family(
        Normal(loc, scale),
        errors,
        groups=torch.from_numpy(readings.stretch),
        families=["normal", "laplace", "student-t"],
    )
    assert found.family in ("laplace", "student-t")
