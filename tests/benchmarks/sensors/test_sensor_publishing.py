"""The script that writes the docs of the sensors from finished tables, and what the committed ones say."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "experiments/sensors/publish.py"
RESULTS = ROOT / "docs/results"

committed = pytest.mark.skipif(
    not (RESULTS / "sensors/results.json").is_file(), reason="no results of sensors in this checkout"
)


def publish(*words):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error::UserWarning", SCRIPT, *map(str, words)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250, check=False)


@pytest.fixture(scope="module")
def tables():
    document = json.loads((RESULTS / "sensors/results.json").read_text())
    return {table["name"]: table for table in document["tables"]}


@committed
def test_committed_page_is_written_from_the_committed_cells(tmp_path):
    (tmp_path / "sensors").mkdir()
    (tmp_path / "sensors/cells").symlink_to(RESULTS / "sensors/cells")
    done = publish("--run", tmp_path / "none", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "sensors.md").read_text() == (RESULTS / "sensors.md").read_text()
    assert (tmp_path / "sensors/results.json").read_text() == (RESULTS / "sensors/results.json").read_text()
    assert (tmp_path / "sensors/sensors.png").read_bytes().startswith(b"\x89PNG")


def test_publish_refuses_unfinished_tables(tmp_path):
    done = publish("--run", tmp_path / "none", "--out", tmp_path)
    assert done.returncode == 1
    assert "expected all tables of the preset, got none of laser, range, bearing, gnss" in done.stderr
    assert not (tmp_path / "sensors.md").exists()


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
