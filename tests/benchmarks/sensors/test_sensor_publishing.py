"""The page of the sensors, and what the committed results say."""

import importlib.util
import json
from pathlib import Path

import pytest
from benchmarks.sensors.made_up import write_all

from fcal.benchmarks.runner import benchmark, plan
from fcal.benchmarks.sensors.settings import Settings
from fcal.benchmarks.sensors.task import SENSORS
from fcal.sweeps import Store

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "docs/results"

committed = pytest.mark.skipif(
    not (RESULTS / "sensors/results.json").is_file(), reason="no results of sensors in this checkout"
)


@pytest.fixture(scope="module")
def page():
    spec = importlib.util.spec_from_file_location("sensors_page", ROOT / "experiments/sensors/page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tables():
    document = json.loads((RESULTS / "sensors/results.json").read_text())
    return {table["name"]: table for table in document["tables"]}


def test_page_has_answers_tables_and_facts_of_every_table(page, tmp_path):
    settings = Settings(rows=500, folds=2, inner_folds=2, hidden=4, steps=5, tune_steps=2, batch=64)
    store, data = Store(tmp_path / "cells"), str(write_all(tmp_path / "data"))
    done = benchmark(SENSORS, settings, store=store, data=data, workers=1, progress=False)
    assert done.crashed == {}
    text = page.page(done, "FACTS OF THE RUN\n")
    assert text.count("FACTS OF THE RUN") == 1
    for table in done.tables:
        assert text.count(f"## {SENSORS.table_title(table)}\n") == 1
        assert all(lines in text for _, lines in SENSORS.sections(table))
    assert text.count("All within 10 %: ") == 4
    assert list(page.pictures(done)) == ["sensors"]
    rows = plan(SENSORS, SENSORS.problems(settings, store, None), None)
    facts = page.more_cells(settings, rows)
    assert len(facts) == len(settings.tables)
    assert all(store.record(cell.kind, cell.config) for cell in facts)


@pytest.mark.parametrize(
    ("name", "ratio", "of_bins", "near"),
    [
        ("laser", 1.049, (5.0, 5.0), True),
        ("laser", 0.94, (1.0, 1.0), False),
        ("range", 5.0, (0.91, 1.09), True),
        ("range", 1.0, (1.0, 1.11), False),
    ],
)
def test_rows_reach_what_is_asked_of_their_table(page, name, ratio, of_bins, near):
    class OneRow:
        labels = {"name": name}
        details = {
            "known": {
                "learnt": {"nll": {"ratio": ratio}},
                "bins": [{"learnt": {"nll": {"ratio": of_bin}}} for of_bin in of_bins],
            }
        }

    assert page.reached(OneRow) == {"nll": near}


def test_nothing_is_asked_of_gnss(page):
    class Gnss:
        labels = {"name": "gnss"}
        details = {"known": {"learnt": {"nll": {"ratio": 1.0}}, "bins": []}}

    assert page.reached(Gnss) == {}


@committed
@pytest.mark.parametrize("row", ["nll", "temperature", "oof_temperature", "oof_nll"])
def test_committed_laser_sd_is_within_5_percent_of_the_stated(tables, row):
    learnt = tables["laser"]["known"]["learnt"][row]
    assert learnt["noise"] == pytest.approx(tables["laser"]["known"]["stated_sd"], rel=0.05)
    assert learnt["ratio"] == pytest.approx(1, rel=0.05)


@committed
@pytest.mark.parametrize("row", ["nll", "temperature", "oof_temperature", "oof_nll", "oof_fcal"])
@pytest.mark.parametrize(("sensor", "source"), [("range", (0.023, 0.029, 0.039)), ("bearing", (0.038, 0.013, 0.0075))])
def test_committed_sds_by_distance_are_within_10_percent_of_the_source(tables, sensor, source, row):
    """SOURCE.txt beside the data, at 0-2, 2-4 and 4-6 m."""
    bins = tables[sensor]["known"]["bins"]
    assert [one["learnt"][row]["sd"] for one in bins] == [pytest.approx(sd, rel=0.10) for sd in source]


@committed
def test_committed_gnss_noise_is_heavy_tailed(tables):
    family = tables["gnss"]["family"]
    assert family["named"] == "student-t"
    assert family["log_likelihood"]["student-t"] > family["log_likelihood"]["normal"]
