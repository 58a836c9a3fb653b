"""The demo and the bench run end to end on tiny settings, and pages quote what they wrote."""

import importlib.util
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
DEMO = ROOT / "experiments/heteroscedastic_line/run.py"


def run(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True, check=False, cwd=ROOT)


def test_demo_writes_numbers_table_and_picture(tmp_path):
    config = tmp_path / "tiny.toml"
    text = (ROOT / "experiments/heteroscedastic_line/config.toml").read_text()
    for name, value in (("train_steps", 5), ("tune_steps", 3), ("seeds", 2), ("test_rows", 200)):
        text = "\n".join(f"{name} = {value}" if line.startswith(name) else line for line in text.splitlines())
    config.write_text(text)
    result = run(DEMO, "--config", config, "--out", tmp_path / "out")
    assert result.returncode == 0, result.stderr
    document = json.loads((tmp_path / "out/result.json").read_text())
    assert set(document["methods"]) == {"usual", "fcal", "factor", "usual_all"}
    assert 0 <= document["methods"]["fcal"]["coverage_0.683"]["mean"] <= 1
    assert (tmp_path / "out/picture.png").read_bytes().startswith(b"\x89PNG")
    assert "f-Cal" in result.stdout


def test_demo_refuses_a_misspelt_key_in_one_line(tmp_path):
    config = tmp_path / "bad.toml"
    config.write_text("train_row = 3\n")
    result = run(DEMO, "--config", config, "--out", tmp_path / "out")
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert "did you mean 'train_rows'" in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("line", ["train_rows = 0", "lam = nan", "seeds = 0", 'divergence = "foo"', "hidden = -1"])
def test_demo_refuses_bad_values_in_one_line_before_training(tmp_path, line):
    name = line.partition(" ")[0]
    text = (ROOT / "experiments/heteroscedastic_line/config.toml").read_text().splitlines()
    config = tmp_path / "bad.toml"
    config.write_text("\n".join(line if old.startswith(f"{name} ") else old for old in text))
    result = run(DEMO, "--config", config, "--out", tmp_path / "out")
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert re.search(rf"expected `([^`]*: )?{name}`", result.stderr)


def test_scripts_refuse_an_output_they_cannot_write(tmp_path):
    (tmp_path / "file").write_text("")
    for command in ([DEMO, "--out", tmp_path / "file"], [ROOT / "bench/core.py", "--out", tmp_path]):
        result = run(*command)
        assert result.returncode == 2
        assert result.stderr.count("\n") == 1
    assert run(ROOT / "bench/core.py", "--shrink", 0).returncode == 2


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from Linux's /proc")
@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("core", 8),
        ("families", 26),
        ("evaluation", 5),
        ("stacked", 2),
        ("depth_speed", 8),
        ("detection_speed", 5),
        ("detector_speed", 2),
        ("repaired_laws", 48),
    ],
)
def test_bench_writes_a_row_per_claim(tmp_path, name, rows):
    result = run(ROOT / f"bench/{name}.py", "--shrink", 1000, "--out", tmp_path / "out.json")
    assert result.returncode == 0, result.stderr
    document = json.loads((tmp_path / "out.json").read_text())
    assert len(document["rows"]) == rows
    assert all(math.isfinite(row["ratio"]) for row in document["rows"])
    assert (tmp_path / "out.md").read_text().count("\n") == rows + 2


@pytest.mark.parametrize(
    ("name", "page"),
    [
        ("heteroscedastic_line/table.md", "docs/training.md"),
        ("safe_recipe/summary.md", "docs/fcal_loss.md"),
        ("safe_recipe/data_sets.md", "docs/training.md"),
        ("safe_recipe/spoilt.md", "docs/training.md"),
        ("bench/core.md", "docs/speed.md"),
        ("bench/families.md", "docs/families.md"),
        ("bench/evaluation.md", "docs/evaluation.md"),
        ("bench/recalibration.md", "docs/recalibration.md"),
        ("bench/stacked.md", "docs/uci.md"),
    ],
)
def test_pages_quote_the_committed_results(name, page):
    assert (ROOT / "docs/results" / name).read_text() in (ROOT / page).read_text()


def test_committed_tables_are_those_of_their_numbers():
    sys.path.insert(0, str(DEMO.parent))
    try:
        import run as demo
    finally:
        sys.path.remove(str(DEMO.parent))
    folder = ROOT / "docs/results/heteroscedastic_line"
    assert demo.as_markdown(json.loads((folder / "result.json").read_text())) == (folder / "table.md").read_text()


def test_safe_recipe_writes_numbers_and_tables(tmp_path):
    script = ROOT / "experiments/safe_recipe/run.py"
    command = [script, "--config", script.with_name("tiny.toml"), "--out", tmp_path / "out"]
    result = run(*command)
    assert result.returncode == 0, result.stderr
    document = json.loads((tmp_path / "out/result.json").read_text())
    assert document["clean"]["waves"]["recipe"]["rmse"] == pytest.approx(document["clean"]["waves"]["usual"]["rmse"])
    assert (tmp_path / "out/spoilt.md").read_text() in result.stdout
    before = (tmp_path / "out/result.json").read_bytes()
    assert run(*command).stdout == result.stdout  # nothing is left to compute
    assert (tmp_path / "out/result.json").read_bytes() == before


def test_committed_tables_of_the_safe_recipe_are_those_of_its_numbers():
    folder = ROOT / "docs/results/safe_recipe"
    spec = importlib.util.spec_from_file_location("safe_recipe", ROOT / "experiments/safe_recipe/run.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["safe_recipe"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    document = json.loads((folder / "result.json").read_text())
    assert {name: (folder / name).read_text() for name in module.tables(document)} == module.tables(document)
    judged = module.judged(document)
    assert len(judged) >= 5
    assert all(max(module.ratios(document, "recipe", name)) < 1 + 1e-9 for name in judged)


def test_page_of_families_quotes_the_speeds():
    rows = json.loads((ROOT / "docs/results/bench/families.json").read_text())["rows"]
    page = (ROOT / "docs/families.md").read_text().splitlines()
    for row in rows:
        name = row["work"].partition(",")[0]
        if row["against"] == "Normal" and "Categorical" not in name:
            lines = [line for line in page if line.startswith("| `") and re.search(rf"[`.]{name}`", line)]
            shown = f"{row['ratio']:.1f}x" if row["ratio"] < 10 else f"{row['ratio']:.0f}x"
            assert any(shown in line for line in lines), name


def test_scripts_of_the_page_on_the_loss_calibrate_and_print_what_it_says():
    text = (ROOT / "docs/fcal_loss.md").read_text()
    result = run("-c", "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)))
    assert result.returncode == 0, result.stderr
    pattern = r"^errors ([\d.]+) times as large as sigma says, RMSE ([\d.]+), NLL ([\d.]+)$"
    found, said = (re.findall(pattern, source, re.MULTILINE) for source in (result.stdout, text))
    assert len(found) == len(said) == 2
    assert found[0][1] == found[1][1]  # the mean stays
    for ours, printed in zip(found, said, strict=True):  # training amplifies rounding
        np.testing.assert_allclose(np.array(ours, float), np.array(printed, float), rtol=0.3)
    assert f"```text\n{result.stdout.splitlines()[-1]}\n```" in text


def test_example_predictions_are_those_of_their_script(tmp_path):
    script = tmp_path / "predictions.py"
    script.write_text((ROOT / "docs/examples/predictions.py").read_text())
    assert run(str(script)).returncode == 0
    for name in ("val.csv", "test.csv"):
        folders = (tmp_path, ROOT / "docs/examples")
        made, kept = (np.loadtxt(at / name, delimiter=",", skiprows=1, usecols=(0, 1, 2)) for at in folders)
        np.testing.assert_allclose(made[:, 2], kept[:, 2], atol=1.1e-4)  # targets: the same draws
        np.testing.assert_allclose(made, kept, atol=0.1)  # training amplifies rounding
