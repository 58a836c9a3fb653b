"""The experiment on wrong predictions runs and writes what it says; the page runs and quotes what it wrote."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fcal

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "experiments/recalibration"
COMMITTED = ROOT / "docs/results/recalibration"
PAGE = ROOT / "docs/recalibration.md"


def load():
    """The script as a module; a name of its own, as other experiments have a run.py too."""
    spec = importlib.util.spec_from_file_location("recalibration_run", FOLDER / "run.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


experiment = load()


def run(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True, check=False, cwd=ROOT)


def test_experiment_writes_every_method_for_every_error(tmp_path: Path):
    result = run(FOLDER / "run.py", "--config", FOLDER / "tiny.toml", "--out", tmp_path)
    assert result.returncode == 0, result.stderr
    document = json.loads((tmp_path / "results.json").read_text())
    assert set(document["cells"]) == set(experiment.ERRORS)
    methods = set(fcal.recalibration.names()) - {"power"}  # none of the errors is one of the spread of sigmas
    assert all(set(cell) == {"before", "truth", *methods} for cell in document["cells"].values())
    assert {path.name for path in tmp_path.iterdir()} == {"results.json", *experiment.tables(document)}
    assert "sigma x" in result.stdout


@pytest.mark.parametrize("line", ["calibration_rows = 5", "seeds = 0", 'fresh_rows = "many"'])
def test_experiment_refuses_bad_values_in_one_line(tmp_path: Path, line: str):
    name = line.partition(" ")[0]
    text = (FOLDER / "tiny.toml").read_text().splitlines()
    config = tmp_path / "bad.toml"
    config.write_text("\n".join(line if old.startswith(name) else old for old in text))
    result = run(FOLDER / "run.py", "--config", config, "--out", tmp_path / "out")
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert f"{name}`" in result.stderr


def test_committed_tables_come_from_the_committed_numbers_and_stand_in_the_page():
    document = json.loads((COMMITTED / "results.json").read_text())
    page = PAGE.read_text(encoding="utf-8")
    for name, text in experiment.tables(document).items():
        assert (COMMITTED / name).read_text() == text
        assert text in page


def test_committed_coverage_is_nominal_where_the_page_says_so():
    # three standard errors of calibration and fresh rows over the seeds: what is bold in the table
    document = json.loads((COMMITTED / "results.json").read_text())
    scales = ("quarter", "half", "double", "four")
    right = [(error, name) for error in (*scales, "biased") for name in ("affine", "isotonic", "conformal")]
    for error, name in [*right, *((error, "temperature") for error in scales)]:
        for level, bound in document["standard_error"].items():
            found = document["cells"][error][name][level]["mean"]
            assert found == pytest.approx(float(level.partition("_")[2]), abs=3 * bound), (error, name, level)


def test_page_runs(capsys: pytest.CaptureFixture[str]):
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        exec(block, names)
    assert "coverage of 90 % intervals: 0.9" in capsys.readouterr().out


def test_bench_without_netcal_says_what_to_install(tmp_path: Path):
    code = """
import runpy, sys
sys.modules["netcal"] = None
sys.path.insert(0, "bench")
runpy.run_path("bench/recalibration.py", run_name="__main__")
"""
    result = run("-c", code, "--out", tmp_path / "out.json")
    assert result.returncode == 2
    assert result.stderr == "expected netcal for this comparison; pip install 'fcal[bench]'\n"
    assert not (tmp_path / "out.json").exists()
