"""The experiment behind docs/families.md: its cells, its table, its refusals."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "experiments/family_accuracy/run.py"
pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="experiments are not part of the sources of a release")


@pytest.fixture
def experiment(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    spec = importlib.util.spec_from_file_location("family_accuracy", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_cells_become_a_table_with_the_largest_errors(experiment):
    rows = [(0.0, 1.3, 0.5), (0.0, 1.3, 1.0)]
    cells = [experiment.cell("GeneralizedPareto", row, "float64") for row in rows]
    (line,) = experiment.summarised(cells)
    assert line["points"] == sum(cell["points"] for cell in cells)
    for title, entry in line["worst"].items():
        assert entry["error"] == max(cell["worst"][title] for cell in cells)
        assert entry["error"] <= 1e-6
    table = experiment.as_markdown({"lines": [line]})
    assert "| GeneralizedPareto | tail index from 0 to 3 | -37 to 37 |" in table
    assert "slope" in table


def test_every_family_of_the_grid_has_a_band(experiment):
    scalars = {name for name in experiment.accuracy.HARD if not name.startswith("mixture")}
    assert scalars == set(experiment.BANDS)
    for name, band in experiment.BANDS.items():
        assert all(isinstance(band(*row), str) for row in experiment.accuracy.HARD[name].rows)


def test_bad_arguments_end_with_one_line_and_2(tmp_path):
    command = [sys.executable, str(SCRIPT), "--out", str(tmp_path), "--shrink", "0"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 2
    assert run.stderr.startswith("expected `shrink`")
    assert run.stderr.count("\n") == 1


def test_published_table_belongs_to_its_numbers(experiment):
    folder = SCRIPT.parents[2] / "docs/results/family_accuracy"
    document = json.loads((folder / "result.json").read_text())
    assert document["shrink"] == 1
    assert (folder / "table.md").read_text() == experiment.as_markdown(document)


@pytest.mark.parametrize(
    "families",
    [
        ["StudentT"],
        ["Gamma", "Chi2"],
        ["InverseGamma"],
        ["Beta"],
        ["FisherSnedecor"],
        ["GeneralizedPareto"],
        ["AsymmetricLaplace"],
        ["TruncatedNormal"],
        ["mixture of Normal", "mixture of Gamma", "mixture of StudentT", "mixture of Beta"],
    ],
    ids=lambda families: families[0],
)
def test_page_of_families_quotes_the_largest_errors(experiment, families):
    root = SCRIPT.parents[2]
    document = json.loads((root / "docs/results/family_accuracy/result.json").read_text())
    name = "MixtureSameFamily" if "mixture" in families[0] else families[0]
    page = (root / "docs/families.md").read_text().splitlines()
    (row,) = [line for line in page if re.search(rf"^\|.*[`.]{name}`", line.partition(" | ")[0])]
    assert f"| {experiment.largest(document, families)} |" in row
