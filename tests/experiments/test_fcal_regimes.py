"""The experiment on f-Cal where networks overfit: choices, limits, and a tiny run that resumes from its cells."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from fcal_regimes.choices import ACCURACY_LOST, RULES, Scored, difference, paired
from fcal_regimes.points import LEVELS, Config, points, stage_epochs
from fcal_regimes.run import main

from fcal._config import read_config
from fcal.sweeps import read_cells
from fcal.training import Fit

FOLDER = Path(__file__).parents[2] / "experiments/fcal_regimes"


def run(*words):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, FOLDER / "run.py", *words]
    return subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True, check=False)


def scored(nll, ece_q, l1):
    return Scored({}, {"validation": {"nll": nll, "ece_q": ece_q, "l1": l1}})


def test_run_publishes_cells_from_which_it_writes_the_same_page_again(tmp_path, monkeypatch):
    config = tmp_path / "tiny.toml"
    text = (FOLDER / "tiny.toml").read_text(encoding="utf-8")
    text = text.replace('["homoscedastic", "heteroscedastic"]', '["homoscedastic"]').replace("[0.02, 0.9]", "[0.9]")
    config.write_text(text, encoding="utf-8")
    words = ["--config", config, "--out", tmp_path / "out"]
    done = run(*words, "--run", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "out/fcal_regimes.md").read_bytes()
    folder = tmp_path / "out/fcal_regimes"
    assert (folder / "tradeoff.png").read_bytes().startswith(b"\x89PNG")
    document = json.loads((folder / "results.json").read_text())
    wanted = points(read_config(config, Config))
    assert len(read_cells(folder / "cells.jsonl")) == document["cells"] > len(wanted)
    assert not document["failed"]
    for level in LEVELS:
        rows = document["results"]["homoscedastic"][level]["rows"]
        assert len(rows) == 6 + 2 * len(RULES)  # references, and two forms of f-Cal
        assert all(row["count"] == 2 for row in rows.values())
        assert rows["temperature"]["test"]["l1_gt"] == rows["nll"]["test"]["l1_gt"]
    monkeypatch.setattr(sys, "argv", list(map(str, ["run.py", *words, "--run", tmp_path / "empty", "--collect"])))
    assert main() == 0
    assert (tmp_path / "out/fcal_regimes.md").read_bytes() == page
    assert not (tmp_path / "empty/artifacts").exists()


@pytest.mark.parametrize(
    "line", ["seeds = 0", "lams = [1.5]", 'divergences = ["foo"]', "paper_z2 = 0.5", "decays = []"]
)
def test_run_refuses_bad_values_in_one_line_before_training(tmp_path, line):
    name = line.partition(" ")[0]
    text = (FOLDER / "tiny.toml").read_text(encoding="utf-8").splitlines()
    config = tmp_path / "bad.toml"
    config.write_text("\n".join(line if old.startswith(f"{name} ") else old for old in text), encoding="utf-8")
    with pytest.raises(ValueError, match="expected `"):
        read_config(config, Config)


def test_limits_of_a_difference_are_those_of_scipy():
    values = np.random.default_rng(0).normal(0.3, 1.0, 5)
    low, high = scipy.stats.ttest_1samp(values, 0.0).confidence_interval(0.9)  # each limit has 95 %
    limits = difference(values.tolist())
    np.testing.assert_allclose([limits.low, limits.high], [low, high], rtol=1e-9)


def test_difference_of_one_seed_is_not_judged():
    assert difference([-1.0]).word == "unknown"


def test_difference_pairs_seeds_that_both_rows_have():
    one, two = (
        {seed: Scored({}, {"test": {"nll": value}}) for seed, value in values.items()}
        for values in ({0: 1.0, 1: 2.0, 2: 9.0}, {1: 2.5, 0: 1.5})
    )
    limits = paired(one, two, "nll")
    assert (limits.mean, limits.seeds, limits.word) == (-0.5, 2, "below")


def test_rules_choose_by_their_own_column_and_keep_the_accuracy():
    start = scored(0.0, 0.9, 1.0)
    likely, calibrated, accurate = scored(-1.0, 0.5, 1.0), scored(1.0, 0.1, 1.1), scored(0.5, 0.3, ACCURACY_LOST)
    candidates = [likely, calibrated, accurate]
    assert [RULES[rule](candidates, start) for rule in ("nll", "ece_q", "ece_q_l1")] == [likely, calibrated, accurate]
    assert RULES["ece_q_l1"]([calibrated], start) is start


@pytest.mark.parametrize(("squares", "paper"), [([0.9, 1.7, 1.5, 2.0], 2), ([0.9, 1.0, 1.1, 1.2], 4)])
def test_stages_are_the_stopped_the_first_overfit_and_the_last_epoch(squares, paper):
    history = [{"validation/z_sq": value} for value in squares]
    done = Fit(history=history, best_epoch=0, epochs_run=4, stopped_early=False, seconds=math.pi, step_count=4)
    assert stage_epochs(done, 1.6) == {"stopped": 1, "paper": paper, "last": 4}
