"""Pictures and pages of what the library itself evaluates, and the script that draws those of the documentation."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.distributions import Cauchy, Independent, MultivariateNormal, Normal

import fcal.plots as plots
from fcal.metrics import evaluate
from fcal.reports import calibration_page

ROWS = 300
PREDICTIONS = {
    "normal": Normal(torch.zeros(ROWS), torch.linspace(0.1, 3, ROWS)),
    "one sigma": Normal(torch.zeros(ROWS), torch.ones(ROWS)),
    "three rows": Normal(torch.zeros(3), torch.ones(3)),
    "several outputs": Independent(Normal(torch.zeros(ROWS, 3), torch.ones(ROWS, 3)), 1),
    "vectors": MultivariateNormal(torch.zeros(ROWS, 2), torch.eye(2).expand(ROWS, 2, 2)),
    "no moments": Cauchy(torch.zeros(ROWS), torch.ones(ROWS)),
}


@pytest.mark.parametrize("name", PREDICTIONS)
@pytest.mark.parametrize("factor", [1.0, 1e3])
def test_any_evaluation_can_be_drawn_and_put_on_a_page(name, factor):
    pred = PREDICTIONS[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        target = factor * pred.sample()
    report = evaluate(pred, target)
    figure = plots.overview(report)
    assert figure._repr_png_().startswith(b"\x89PNG")
    text = calibration_page(report, source=name, command="c")
    assert report.reason in text
    of_sigma = {"no moments": 0}.get(name, 2)
    of_rows = {"no moments": 0, "vectors": 0}.get(name, 3)  # a vector has no error bar of its own
    assert text.count("<figure") == 6 + of_sigma + of_rows


def test_script_draws_every_picture_of_the_documentation(tmp_path):
    root = Path(__file__).parents[2]
    script = root / "experiments" / "pictures" / "run.py"
    subprocess.run([sys.executable, "-W", "error", script, "--out", tmp_path], check=True, capture_output=True)
    drawn = {path.name for path in tmp_path.iterdir()}
    assert drawn == {path.name for path in (root / "docs" / "pictures").iterdir()}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in tmp_path.iterdir())
