"""The script that writes the docs of UCI from finished cells."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from uci_tables import write_table

from fcal.benchmarks.uci import markdown
from fcal.benchmarks.uci.bars import bars
from fcal.cli import main

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "experiments/uci/publish.py"
RESULTS = ROOT / "docs/results"
FINISHED = pytest.mark.skipif(not (RESULTS / "uci/results.json").is_file(), reason="no results of UCI in this checkout")


@pytest.fixture
def publish(monkeypatch):
    """The script's main, called with words, without a process of its own, which would cost seconds."""
    spec = importlib.util.spec_from_file_location("publish_uci", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)

    def call(*words):
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, words)])
        script.main()

    return call


def test_publish_writes_the_page_from_the_cells_alone(publish, tmp_path):
    """Published once from a run, and once more from what was published, without the data: the same bytes."""
    tables = write_table(tmp_path / "tables", rows=80)
    run = tmp_path / "run"
    few = ["--datasets", "yacht", "--networks", "1x50"]
    words = ["benchmark", "uci", "--data", str(tables), "--preset", "tiny", *few, "--workers", "1", "--out", str(run)]
    assert main([*words, "--json"]) == 0
    first, second = tmp_path / "first", tmp_path / "second"
    publish("--run", run, "--out", first, "--preset", "tiny")
    second.mkdir()
    (first / "uci").rename(second / "uci")
    publish("--run", tmp_path / "none", "--out", second, "--preset", "tiny")
    page = (first / "uci.md").read_text()
    assert (second / "uci.md").read_text() == page
    assert "Not finished yet: energy 1x50, energy 2x64, yacht 2x64." in page
    assert (second / "uci/log-likelihood.png").read_bytes().startswith(b"\x89PNG")


def test_publish_refuses_when_nothing_is_finished(publish, tmp_path):
    with pytest.raises(SystemExit, match="expected finished cells of the UCI benchmark, got none"):
        publish("--run", tmp_path / "none", "--out", tmp_path, "--preset", "tiny")
    assert not (tmp_path / "uci.md").exists()


@FINISHED
def test_committed_page_is_written_from_the_committed_cells(publish, tmp_path):
    (tmp_path / "uci").mkdir()
    (tmp_path / "uci/cells").symlink_to(RESULTS / "uci/cells")
    publish("--run", tmp_path / "none", "--out", tmp_path)
    assert (tmp_path / "uci.md").read_text() == (RESULTS / "uci.md").read_text()


@FINISHED
def test_committed_numbers_are_those_of_the_page():
    document = json.loads((RESULTS / "uci/results.json").read_text())
    page = (RESULTS / "uci.md").read_text()
    assert bars(document["tables"]) == document["bars"]
    for table in document["tables"]:
        assert markdown.results_markdown(table) in page
        for row in table["rows"].values():
            known = [value for value in row["seeds"]["ll"] if value is not None]
            if known:
                assert row["ll"]["mean"] == pytest.approx(sum(known) / len(known))
