"""A whole benchmark of one's own, as its page shows it: few lines, every method, cells, table and page."""

import json
import re
from pathlib import Path

import pytest

from fcal.benchmarks import METHODS, TASKS
from fcal.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "own_benchmark.md"
MOST_LINES = 80


@pytest.fixture
def files(tmp_path, monkeypatch):
    """The page's files in a folder of their own; what they register is forgotten afterwards."""
    for registry in (TASKS, METHODS):
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    blocks = re.findall(r"```python\n(# (\S+\.py)\n.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    for text, name in blocks:
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def run(files, *words):
    return main(["benchmark", "line", "--plugin", str(files / "line.py"), "--out", str(files / "out"), *words])


def test_own_benchmark_is_short(files):
    assert len((files / "line.py").read_text().splitlines()) <= MOST_LINES


@pytest.mark.parametrize("workers", ["1", "2"])
def test_own_benchmark_has_rows_table_and_page(files, capsys, workers):
    assert run(files, "--workers", workers, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    (table,) = document["tables"]
    assert (document["task"], table["noise"], table["seeds"], table["n_test"]) == ("line", "growing", 3, 2000)
    assert list(table["rows"]) == ["oracle", "nll", "temperature"]
    assert all(row["finished"] == 3 for row in table["rows"].values())
    nll = {name: row["nll"]["mean"] for name, row in table["rows"].items()}
    assert nll["oracle"] < min(nll["nll"], nll["temperature"])  # whose sigma does not grow
    assert "A noisy line" in (files / "out" / "report.html").read_text()
    assert json.loads((files / "out" / "results.json").read_text())["tables"] == document["tables"]


def test_network_of_ones_own_has_every_method_but_those_that_know_the_noise(files, capsys):
    """Whole trainings of a tiny network: base, candidates, ensemble, cross-fit and error bars, all from one class."""
    words = [
        "--plugin",
        str(files / "waves.py"),
        "--out",
        str(files / "out"),
        "--workers",
        "1",
        "--seeds",
        "1",
        "--json",
    ]
    assert main(["benchmark", "waves", *words]) == 0
    (table,) = json.loads(capsys.readouterr().out)["tables"]
    missing = {"oracle", "stated", "oob_heads", "nll_base"}  # no truth, no shared trunk, no uncertainty head
    assert set(table["rows"]) == set(METHODS.names()) - missing
    assert all("status" not in row for row in table["rows"].values())
    rmse = {name: row["rmse"]["mean"] for name, row in table["rows"].items()}
    assert max(rmse.values()) < 0.5  # the standard deviation of the targets is 0.8, that of the noise 0.27


def test_own_benchmark_run_again_computes_nothing(files, capsys):
    assert run(files, "--workers", "1", "--json") == 0
    first = json.loads(capsys.readouterr().out)["tables"]
    cells = {path: path.stat().st_mtime_ns for path in (files / "out/cells").glob("*.json")}
    assert len(cells) == 9
    assert run(files, "--workers", "1", "--json") == 0
    assert json.loads(capsys.readouterr().out)["tables"] == first
    assert {path: path.stat().st_mtime_ns for path in (files / "out/cells").glob("*.json")} == cells


def test_method_that_a_plugin_adds_is_in_the_table_of_every_task_that_has_what_it_needs(files, capsys):
    assert run(files, "--plugin", str(files / "affine.py"), "--workers", "1", "--json") == 0
    (table,) = json.loads(capsys.readouterr().out)["tables"]
    assert list(table["rows"]) == ["oracle", "nll", "temperature", "affine"]
    assert all("affine" in TASKS[name].load().methods() for name in ("bokeh", "uci", "sensors", "line"))


def test_method_that_a_task_does_not_list_runs_where_it_has_what_the_method_needs(files, capsys):
    assert run(files, "--methods", "conformal,fcal_kl", "--seeds", "1", "--workers", "1", "--json") == 0
    (table,) = json.loads(capsys.readouterr().out)["tables"]
    assert list(table["rows"]) == ["conformal", "fcal_kl"]
    assert all(row["nll"]["mean"] is not None for row in table["rows"].values())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--methods", "ensemble"], "step the benchmark 'line' has, got 'ensemble', which needs `members`"),
        (["--seeds", "0"], "expected `seeds` >= 1, got 0"),
        (["--preset", "tiny"], "expected `preset` one of 'quick', got 'tiny'"),
        (["--plugin", "nowhere.py"], "expected `--plugin` a Python file, got nowhere.py, which is not there"),
    ],
)
def test_own_benchmark_refuses_in_one_line(files, capsys, words, message):
    assert run(files, *words) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert not (files / "out").exists()


BROKEN = """
from fcal_plugin_line import Line, LineTask
from fcal.benchmarks import register

class Broken(Line):
    def score(self, method, prediction):
        return {score}

class BrokenTask(LineTask):
    name, problem = "broken", Broken
    def problem_of(self, config, store, data):
        return Broken(**config, store=store)

register(BrokenTask(), "scores that no table can show")
"""


@pytest.mark.parametrize(
    ("score", "message"),
    [
        ("None", "expected `score` to return a mapping with `columns`, got None"),
        ("{'nll': 1.0}", "expected `score` to return a mapping with `columns`, got {'nll': 1.0}"),
        ("{'columns': {'nll': 1.0}}", "expected `score` with a list of numbers as column 'nll', got 1.0"),
        ("{'columns': {'nll': ['high']}}", "expected `score` with a list of numbers as column 'nll', got ['high']"),
        ("{'columns': {'nll': [float('nan')]}}", "expected `result.columns.nll[0]` a finite number, got nan"),
    ],
)
def test_scores_that_no_table_can_show_are_refused_and_not_stored(files, capsys, score, message):
    (files / "broken.py").write_text(BROKEN.replace("{score}", score), encoding="utf-8")
    plugins = ["--plugin", str(files / "line.py"), "--plugin", str(files / "broken.py")]
    words = ["benchmark", "broken", *plugins, "--out", str(files / "out"), "--methods", "nll", "--workers", "1"]
    assert main(words) == 1
    assert message in capsys.readouterr().err
    assert not list((files / "out/cells").glob("*.json"))


def test_debug_shows_where_a_step_raises(files, capsys):
    (files / "broken.py").write_text(BROKEN.replace("return {score}", "return self.nothing"), encoding="utf-8")
    plugins = ["--plugin", str(files / "line.py"), "--plugin", str(files / "broken.py")]
    words = ["benchmark", "broken", *plugins, "--out", str(files / "out"), "--methods", "nll", "--workers", "1"]
    assert main([*words, "--debug"]) == 1
    assert "return self.nothing" in capsys.readouterr().err


OWN_STEP = """
from dataclasses import dataclass
from torch.distributions import Normal
from fcal.benchmarks import METHODS, Method, Prediction
from fcal_plugin_waves import Wave

def known(self):
    x, y = self.datasets.test.tensors
    return [Normal(x.sin(), 0.1 + 0.1 * x.abs())]

Wave.stated = Wave.median = known

@dataclass(frozen=True, kw_only=True)
class Median(Method):
    needs = "median"

    def predict(self, problem):
        return Prediction(dists=problem.median())

METHODS.add("median", Median(title="a step of one's own"))
"""


def test_network_problem_may_have_steps_of_ones_own(files, capsys):
    (files / "step.py").write_text(OWN_STEP, encoding="utf-8")
    plugins = ["--plugin", str(files / "waves.py"), "--plugin", str(files / "step.py"), "--out", str(files / "out")]
    words = ["benchmark", "waves", *plugins, "--methods", "stated,median", "--seeds", "1", "--workers", "1", "--json"]
    assert main(words) == 0
    (table,) = json.loads(capsys.readouterr().out)["tables"]
    assert table["rows"]["stated"]["nll"]["mean"] == table["rows"]["median"]["nll"]["mean"] < 0.1


def edited(files, name, *changes):
    """A file of the page with some of its text replaced, under another name."""
    text = (files / "waves.py").read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (files / name).write_text(text, encoding="utf-8")
    return files / name


def run_waves(files, plugin, *words):
    return main(["benchmark", "waves", "--plugin", str(plugin), "--out", str(files / "out"), "--workers", "1", *words])


def test_network_that_fails_at_once_is_an_error_and_is_not_stored(files, capsys):
    broken = edited(files, "broken.py", ("log_sigma.exp())", "log_sigma.exp() * float('nan'))"))
    assert run_waves(files, broken, "--methods", "nll", "--seeds", "1") == 1
    assert "training diverged: invalid" in capsys.readouterr().err
    assert not list((files / "out" / "cells").glob("*.json"))


def test_caption_and_heading_are_those_of_what_was_scored(files, capsys):
    few = edited(
        files,
        "few.py",
        ("candidates=1)", "candidates=1, df=20, bins=10)"),
        ('{"noise": "growing"}', '{"size": "small"}'),
    )
    assert run_waves(files, few, "--methods", "nll", "--seeds", "1") == 0
    assert "S = 10, K = 20, n = 2,000" in capsys.readouterr().out
    assert "<h2>Small</h2>" in (files / "out" / "report.html").read_text(encoding="utf-8").replace(' id="small"', "")


def test_version_of_trainings_is_part_of_the_address_of_rows(files, capsys):
    assert run_waves(files, files / "waves.py", "--methods", "nll", "--seeds", "1", "--json") == 0
    first = json.loads(capsys.readouterr().out)["tables"][0]["rows"]["nll"]["nll"]["mean"]
    del TASKS._entries["waves"]  # as in a new process
    noisier = edited(
        files, "noisier.py", ("(0.1 + 0.1", "(0.5 + 0.1"), ('task = "waves"', 'task, version = "waves", 2')
    )
    assert run_waves(files, noisier, "--methods", "nll", "--seeds", "1", "--json") == 0
    second = json.loads(capsys.readouterr().out)["tables"][0]["rows"]["nll"]["nll"]["mean"]
    assert second > first + 0.3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ('{"noise": "growing"}', '{"size": 300}'),
            "expected `labels` of Wave a mapping to strings, got {'size': 300}",
        ),
        (('"seed": s}', '"seed": 0}'), "expected problems of 'waves' with different configs, got the same one twice"),
        (("register(WaveTask()", "register(WaveTask"), "expected `task` an instance, WaveTask(), got the class"),
        (("seeds: int = 3", "repeats: int = 3"), "expected settings of 'waves' with the field 'seeds', got none"),
    ],
)
def test_mistakes_in_a_benchmark_of_ones_own_are_one_line_before_any_training(files, capsys, change, message):
    assert run_waves(files, edited(files, "wrong.py", change), "--methods", "nll", "--seeds", "2") == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (files / "out").exists()
