"""The sensors' tables: numbers recomputed from the networks' weights, resume, and the spread of many predictions."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import torch
from benchmarks.sensors.made_up import ABSENT, DATA, list_checksums, write_all
from numpy.testing import assert_allclose
from safetensors.torch import load_file
from scipy import stats
from torch.distributions import Normal, StudentT

import fcal
from fcal.benchmarks.markdown import results_markdown
from fcal.benchmarks.method_kinds import CrossFitted, Repaired, Trained
from fcal.benchmarks.methods import METHODS
from fcal.benchmarks.runner import benchmark, collect, plan, row_cell
from fcal.benchmarks.sensors.readings import read_gnss, read_landmarks, read_laser
from fcal.benchmarks.sensors.settings import TABLES, Settings
from fcal.benchmarks.sensors.spreads import error_spread, in_double
from fcal.benchmarks.sensors.task import SENSORS
from fcal.benchmarks.sensors.trainings import FOLD, SCALES, fold_of
from fcal.benchmarks.table import Table
from fcal.sweeps import Store

SMALL = Settings(
    tables=("range", "gnss"), rows=500, folds=2, inner_folds=2, hidden=8, steps=40, tune_steps=5, batch=128
)
ROWS = ["stated", "nll", "temperature", "oob_auto", "oof_temperature", "oof_nll", "oof_fcal"]
COLUMNS = ["rmse", "ll", "crps", "ece_z", "ece_q", "coverage", "z2"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_all(tmp_path_factory.mktemp("robot_known_noise"))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return Store(tmp_path_factory.mktemp("run") / "cells")


def computed(data, store, settings=SMALL, methods=None):
    done = benchmark(SENSORS, settings, store=store, data=str(data), methods=methods, workers=1, progress=False)
    assert done.crashed == {}
    return done


def problems(data, store, settings=SMALL):
    return {problem.name: problem for problem in SENSORS.problems(settings, store, str(data))}


@pytest.fixture(scope="module")
def done(data, store):
    return computed(data, store)


@pytest.fixture(scope="module")
def tables(done):
    return {table["name"]: table for table in done.document["tables"]}


def test_document_has_rows_columns_and_comparisons(done, tables):
    assert list(tables) == ["range", "gnss"]
    for table in tables.values():
        assert list(table["rows"]) == ROWS
        assert table["columns"] == COLUMNS
        assert set(table["known"]["learnt"]) == set(ROWS)
        assert table["family"]["ranking"][0]["behind"] == 0
        for row in table["rows"].values():
            assert row["verdict"] in fcal.metrics.report.VERDICTS
            assert set(row["floors"]) == {"ece_z", "ece_q"}
            assert row["finished"] == SMALL.folds
            for column in COLUMNS:
                assert row[column]["sd"] == pytest.approx(np.std(row["seeds"][column], ddof=1), rel=1e-9)
    assert json.loads(json.dumps(tables, allow_nan=False)) == tables
    assert set(tables["gnss"]["family"]["log_likelihood"]) == set(TABLES["gnss"].families)
    assert [Table.from_dict(table) for table in tables.values()] == done.tables


def test_column_of_all_rows_is_the_mean_over_folds_weighted_by_their_rows(data, store, tables):
    weights = [len(rows) for rows in problems(data, store)["range"].test_rows]
    for row in tables["range"]["rows"].values():
        for column in ("ll", "crps", "z2"):
            assert_allclose(row[column]["mean"], np.average(row["seeds"][column], weights=weights), rtol=1e-9)


def test_stated_row_is_of_normal_laws_with_the_stated_sd(data, tables):
    """By SciPy, from the file alone."""
    readings = read_landmarks(data)[0].thinned(SMALL.rows)
    row, z = tables["range"]["rows"]["stated"], readings.error / readings.stated
    assert_allclose(row["ll"]["mean"], stats.norm(0, readings.stated).logpdf(readings.error).mean(), rtol=1e-9)
    assert_allclose(row["z2"]["mean"], np.square(z).mean(), rtol=1e-9)
    assert_allclose(row["coverage"]["mean"], (np.abs(z) < stats.norm.ppf(0.95)).mean(), atol=2e-3)
    assert_allclose(tables["range"]["known"]["learnt"]["stated"]["ratio"], 1, rtol=1e-12)


def by_hand(weights, number, inputs):
    """Location and scale of the network of this number in a file of weights, in double precision."""
    w = {name.removeprefix(f"{number}."): value.double().numpy() for name, value in weights.items()}
    hidden = (inputs - w["centre"]) / w["spread"]
    for layer in ("trunk.0", "trunk.2"):
        hidden = hidden @ w[f"{layer}.weight"].T + w[f"{layer}.bias"]
        hidden = hidden / (1 + np.exp(-hidden))
    loc, scale = (hidden @ w["trunk.4.weight"].T + w["trunk.4.bias"]).T
    return w["unit"] * loc, w["unit"] * (np.logaddexp(0, scale) + 1e-3)


def test_learnt_row_is_recomputed_from_the_weights(data, store, tables):
    """By NumPy and SciPy, from the weights of the folds: likelihood, mean z^2, sds of all rows and of a bin."""
    readings = read_landmarks(data)[0].thinned(SMALL.rows)
    inputs = np.stack([readings.state[name] for name in TABLES["range"].inputs], axis=1)
    inputs = inputs.astype(np.float32).astype(np.float64)  # what networks are given; two of them hardly vary
    cell = row_cell(SENSORS, problems(data, store)["range"], "oof_nll")
    folds, scales = ([need for need in cell.needs if need.kind == kind] for kind in (FOLD, SCALES))
    tested = fold_of(readings, SMALL).numpy()
    loc, scale = np.empty(len(readings)), np.empty(len(readings))
    for number, (full, error_bars) in enumerate(zip(folds, scales, strict=True)):
        inside = tested == number
        weights = [load_file(store.artifact(need.kind, need.config, ".safetensors")) for need in (full, error_bars)]
        loc[inside], _ = by_hand(weights[0], 0, inputs[inside])
        _, scale[inside] = by_hand(weights[1], 0, inputs[inside])
    row, known = tables["range"]["rows"]["oof_nll"], tables["range"]["known"]
    assert_allclose(row["ll"]["mean"], stats.norm(loc, scale).logpdf(readings.error).mean(), rtol=1e-5)
    assert_allclose(row["z2"]["mean"], np.square((readings.error - loc) / scale).mean(), rtol=1e-5)
    assert_allclose(row["rmse"]["mean"], np.sqrt(np.square(readings.error - loc).mean()), rtol=1e-5)
    near = readings.state["distance"] < 2
    for inside, found in ((near | True, known["learnt"]), (near, known["bins"][0]["learnt"])):
        sd = np.sqrt(np.square(scale[inside]).mean() + loc[inside].var())
        assert_allclose(found["oof_nll"]["sd"], sd, rtol=1e-5)
        assert_allclose(found["oof_nll"]["noise"], np.sqrt(np.square(scale[inside]).mean()), rtol=1e-5)
    assert_allclose(known["bins"][0]["measured_sd"], readings.error[near].std(), rtol=1e-9)


def test_no_network_is_tested_on_a_stretch_that_it_has_seen(data):
    for readings in (read_laser(data), *read_landmarks(data), read_gnss(data)):
        tested = fold_of(readings, SMALL).numpy()
        for stretch in np.unique(readings.stretch):
            assert len(np.unique(tested[readings.stretch == stretch])) == 1


def test_finished_cells_are_not_computed_again(data, store, tables):
    before = {path.name: path.stat().st_mtime_ns for path in store.folder.iterdir()}
    again = computed(data, store)
    assert {table["name"]: table for table in again.document["tables"]} == tables
    assert {path.name: path.stat().st_mtime_ns for path in store.folder.iterdir()} == before


def test_tables_are_collected_without_the_data(store, done):
    again = collect(SENSORS, SMALL, store=store)
    assert again.tables == done.tables


@pytest.mark.parametrize("row", [*ROWS, "facts"])
def test_killed_run_goes_on_with_the_folds_that_it_finished(data, store, tables, row):
    problem = problems(data, store)["range"]
    cell = problem.facts_cell() if row == "facts" else row_cell(SENSORS, problem, row)
    lost = store.record(cell.kind, cell.config).path
    before = {path.name: path.stat().st_mtime_ns for path in store.folder.iterdir() if path != lost}
    lost.unlink()
    again = computed(data, store, dataclasses.replace(SMALL, tables=("range",)))
    assert again.document["tables"] == [tables["range"]]
    after = {path.name: path.stat().st_mtime_ns for path in store.folder.iterdir() if path != lost}
    assert after == before


def test_other_data_are_other_cells(data, store, tmp_path):
    shutil.copytree(data, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "smartloc_gnss/Berlin_Potsdamer_Platz_GT.txt"
    path.write_text(path.read_text() + "\n")
    list_checksums(tmp_path)
    one, two = (
        {name: (problem.facts_cell(), row_cell(SENSORS, problem, "nll")) for name, problem in known.items()}
        for known in (problems(data, store), problems(tmp_path, store))
    )
    assert one["range"] == two["range"]
    assert all(a != b for a, b in zip(one["gnss"], two["gnss"], strict=True))


def test_address_has_all_that_changes_a_number_and_neither_names_nor_the_source(data, store, monkeypatch):
    def keys(settings):
        return [row.cell.key for row in plan(SENSORS, SENSORS.problems(settings, store, str(data)), None)]

    before = keys(SMALL)
    other = dataclasses.replace(TABLES["range"], state="renamed", source=(1.0, 2.0, 3.0))
    monkeypatch.setitem(TABLES._entries, "range", other)
    assert keys(SMALL) == before
    assert not set(keys(dataclasses.replace(SMALL, df=10))) & set(before)
    monkeypatch.setitem(TABLES._entries, "range", dataclasses.replace(other, inputs=("distance",)))
    assert [a == b for a, b in zip(keys(SMALL), before, strict=True)] == [True] + 6 * [False] + 7 * [True]
    longer = keys(dataclasses.replace(SMALL, tune_steps=6, tables=("gnss",)))
    assert [a == b for a, b in zip(longer, before[7:], strict=True)] == 5 * [True] + 2 * [False]


def test_markdown_has_every_row_and_the_verdict_of_families(done):
    for table in done.tables:
        text = results_markdown(SENSORS.columns, table)
        assert all(text.count(f"| {name} |") == 1 for name in ROWS)
        sections = SENSORS.sections(table)
        assert len(sections) == 4
        for _, lines in sections[:3]:
            assert all(lines.count(f"| {name} |") == 1 for name in ROWS)
        assert table.details["family"]["verdict"] in sections[3][0]
        printed = SENSORS.printed_sections(table)
        assert [sentence for sentence, _ in printed] == [sections[number][0] for number in (0, 1, 3)]
    assert SENSORS.table_title(done.tables[1]) == "GNSS, given C/N0, elevation and system"


def test_methods_of_users_have_rows_too(data, tmp_path, monkeypatch):
    """A loss, a repair, error bars and intervals that the benchmark does not name itself."""
    monkeypatch.setitem(
        METHODS._entries, "mine", Trained(title="mine", candidates=({"name": "beta-nll", "beta": 1.0},))
    )
    monkeypatch.setitem(METHODS._entries, "bent", Repaired(title="bent", recalibrator="isotonic"))
    bars = CrossFitted(title="bars", scales={"name": "mmd", "lam": 0.5}, batch=64)
    monkeypatch.setitem(METHODS._entries, "bars", bars)
    settings = dataclasses.replace(SMALL, tables=("laser",), steps=10)
    names = ["nll", "mine", "bent", "bars", "cv_plus", "deterministic"]
    done = computed(data, Store(tmp_path / "cells"), settings, names)
    (table,) = done.tables
    assert list(table.rows) == names
    assert table.rows["deterministic"].status == "failed"
    assert [name for name, row in table.rows.items() if "verdict" in row.details] == names[:4]
    assert 0.5 < table.rows["cv_plus"].columns["coverage"].mean <= 1
    likelihoods = {table.rows[name].columns["ll"].mean for name in names[:4]}
    assert len(likelihoods) == 4
    assert SENSORS.sections(table)
    assert SENSORS.pictures(done.tables)


def test_picture_has_a_panel_for_each_table(done):
    (figure,) = SENSORS.pictures(done.tables).values()
    assert len([ax for ax in figure.axes if ax.axison]) == 2
    assert SENSORS.pictures([]) == {}


def test_robust_spread_is_the_median_size_of_draws():
    """A million draws of two laws: the standard error of their median is 0.1 %."""
    one = Normal(torch.full((50,), 3.0).double(), 0.5)
    two = StudentT(torch.full((50,), 3.0).double(), -1.0, 2.0)
    torch.manual_seed(0)
    draws = torch.cat([part.sample((10_000,)).ravel() for part in (one, two)])
    every = torch.arange(50)
    spread = error_spread([(one, every), (two, every)], robust=True)
    assert_allclose(spread.robust, float(draws.abs().median()) / 0.6745, rtol=0.005)
    assert spread.sd == spread.robust


def test_predictions_in_double_precision_have_the_same_parameters():
    pred = StudentT(torch.tensor([3.0, 4.0]), torch.tensor([1.0, 2.0]), torch.tensor([0.5, 0.25]))
    again = in_double(pred)
    assert type(again) is StudentT
    for name in ("df", "loc", "scale"):
        assert torch.equal(getattr(again, name), getattr(pred, name).double())


def test_settings_refuse_an_unknown_table():
    with pytest.raises(ValueError, match="expected `sensors` one of 'laser', .*, got 'lidar'"):
        Settings(tables=("lidar",))


@pytest.mark.skipif(not DATA.is_dir(), reason=ABSENT)
def test_real_gnss_errors_are_heavy_tailed():
    """About one centre and scale per bin of C/N0, which need no network: families are told apart by stretches."""
    readings = read_gnss(DATA).thinned(3000)
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
