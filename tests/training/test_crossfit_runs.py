"""Runs with cross-fitting: their training rows, their recalibration, and resuming after a kill."""

import csv
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import TensorDataset
from training import toys
from training.test_runs import config
from training.toys import Waves

import fcal
from fcal import data, recalibration
from fcal.cli import main
from fcal.crossfitting import WithScales
from fcal.training import load, predict, train

FOLDS = ("crossfit.folds=3", "recalibration.method=temperature", "fit.monitor=nll")


def history(folder: Path) -> list[dict[str, str]]:
    with (folder / "history.csv").open() as lines:
        return list(csv.DictReader(lines))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    toys.register()
    folder = tmp_path_factory.mktemp("crossfit")
    return train(config(folder, *FOLDS), folder / "run", progress=False)


def test_full_network_trains_on_all_rows_for_as_long_as_the_folds_did_best(run):
    """120 rows to train on and 60 to validate; batches of 16 make 12 steps of 180 rows and 8 of 120."""
    folds = [history(run.folder / "training" / f"fold-{number}") for number in (1, 2, 3)]
    best = [min(range(3), key=lambda epoch: float(lines[epoch]["validation/nll"])) + 1 for lines in folds]
    full = history(run.folder / "training")
    assert [int(lines[0]["step"]) for lines in folds] == [8, 8, 8]
    assert int(full[0]["step"]) == 12
    assert len(full) == round(sum(best) / 3)


def test_one_factor_scales_all_predictions_and_keeps_the_mean(run):
    """The networks of the folds are not kept, so the factor is compared with the reported metrics."""
    repair = recalibration.load(run.folder / "recalibrator")
    pred, target, _ = predict(run.model, Waves().test)
    factor = (repair.transform(pred).stddev / pred.stddev).unique()
    report = fcal.evaluate(repair.transform(pred), target)
    assert factor.max() - factor.min() < 1e-5
    assert run.report["test"]["nll"] == pytest.approx(report.nll, rel=1e-6)
    assert run.report["before"]["l1"] == run.report["test"]["l1"]  # the mean stays


def test_loaded_run_is_the_same(run):
    x = torch.linspace(-1, 1, 9).unsqueeze(1)
    assert torch.equal(load(run.folder).model(x).stddev, run.model(x).stddev)


def test_scale_network_changes_the_scale_and_not_the_mean(tmp_path):
    settings = config(tmp_path, *FOLDS, "crossfit.scales=fcal", "objective.lam=0.2", "objective.df=4")
    run = train(settings, tmp_path / "run", progress=False)
    plain = train(config(tmp_path, *FOLDS), tmp_path / "plain", progress=False)
    x = torch.linspace(-1, 1, 9).unsqueeze(1)
    assert isinstance(run.model, WithScales)
    assert torch.equal(run.model(x).mean, plain.model(x).mean)
    assert not torch.equal(run.model(x).stddev, plain.model(x).stddev)
    again = load(tmp_path / "run")
    assert torch.equal(again.model(x).stddev, run.model(x).stddev)
    sealed = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=run.folder, capture_output=True, text=True)
    assert "scales.safetensors: OK" in sealed.stdout
    (run.folder / "scales.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match="expected .*scales.safetensors"):
        load(run.folder)


def test_shared_epochs_are_trained_once_on_all_rows(tmp_path):
    run = train(config(tmp_path, *FOLDS, "crossfit.early_epochs=1"), tmp_path / "run", progress=False)
    early, fold = (history(run.folder / "training" / name) for name in ("early", "fold-1"))
    assert [int(line["step"]) for line in early] == [12]
    assert len(fold) == 2


class Sequences:
    """Rows in sequences of ten."""

    def __init__(self) -> None:
        sequence = torch.arange(60) // 10
        rows = [
            {"input": torch.randn(1), "target": torch.randn(1), "sequence": f"drive {int(number)}"}
            for number in sequence
        ]
        self.train, self.validation, self.test = rows, None, TensorDataset(torch.randn(20, 1), torch.randn(20, 1))


def test_groups_are_held_out_together(tmp_path, monkeypatch):
    seen = []
    original = fcal.data.folds.fold_numbers

    def spied(rows, folds, *, groups=None, seed=0):
        seen.append((groups, original(rows, folds, groups=groups, seed=seed)))
        return seen[-1][1]

    monkeypatch.setattr("fcal.crossfitting.procedure.fold_numbers", spied)
    data.register("sequences", Sequences, replace=True)
    settings = config(tmp_path, *FOLDS, "data.name=sequences", "crossfit.groups=sequence", "fit.epochs=1")
    train(settings, tmp_path / "run", progress=False)
    groups, fold = seen[0]
    assert groups == [f"drive {number}" for number in range(6) for _ in range(10)]
    assert all(len(set(fold[start : start + 10].tolist())) == 1 for start in range(0, 60, 10))


class Drives(TensorDataset):
    """Rows that know their drive without being read."""

    def __init__(self, drives: str, of_each: int) -> None:
        super().__init__(torch.randn(len(drives) * of_each, 1), torch.randn(len(drives) * of_each, 1))
        self.groups = [f"drive {drive}" for drive in drives for _ in range(of_each)]
        self.rows_read = 0

    def __getitem__(self, index):
        self.rows_read += 1
        return super().__getitem__(index)


class DriveSplits:
    def __init__(self) -> None:
        self.train, self.validation, self.test = Drives("abcd", 10), Drives("ef", 5), Drives("g", 20)


def test_groups_of_the_data_are_taken_without_reading_its_rows(tmp_path, monkeypatch):
    splits, seen = DriveSplits(), []
    original = fcal.data.folds.fold_numbers

    def spied(rows, folds, *, groups=None, seed=0):
        seen.append((groups, splits.train.rows_read + splits.validation.rows_read))
        return original(rows, folds, groups=groups, seed=seed)

    monkeypatch.setattr("fcal.training.pipeline.fold_numbers", spied)
    data.register("drives", lambda: splits, replace=True)
    settings = config(tmp_path, *FOLDS, "data.name=drives", "crossfit.groups=groups", "fit.epochs=1")
    train(settings, tmp_path / "run", progress=False)
    groups, rows_read = seen[0]
    assert groups == [f"drive {drive}" for drive in "abcd" for _ in range(10)] + ["drive e"] * 5 + ["drive f"] * 5
    assert rows_read <= 2  # one of each part, to compare their entries


def test_groups_of_the_data_are_refused_if_there_are_too_few(tmp_path):
    splits = DriveSplits()
    splits.validation.groups = splits.validation.groups[1:]
    data.register("drives", lambda: splits, replace=True)
    settings = config(tmp_path, *FOLDS, "data.name=drives", "crossfit.groups=groups")
    with pytest.raises(ValueError, match="expected `groups` of the data for 50 rows, got 49"):
        train(settings, tmp_path / "run", progress=False)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["crossfit.folds=3"], "expected `recalibration.method` or `crossfit.scales` with `crossfit.folds`"),
        (["crossfit.folds=1"], "expected `folds` 0, or at least 2, got 1"),
        (["crossfit.scales=nll"], "expected `crossfit.folds` for `crossfit.scales`, got 0"),
        ([*FOLDS, "crossfit.early_epochs=3"], "expected `crossfit.early_epochs` fewer than `fit.epochs`, got 3 of 3"),
        ([*FOLDS, "crossfit.scales=mse"], "expected `scales` an objective of error bars, got 'mse', one of the mean"),
        (["crossfit.folds=300", "crossfit.early_epochs=1", *FOLDS[1:]], "expected `folds` at most the number of rows"),
        ([*FOLDS, "crossfit.scales=nlll"], "expected `objective` one of .*did you mean 'nll'"),
        ([*FOLDS, "crossfit.fold=3"], "did you mean 'folds'"),
        ([*FOLDS, "crossfit.groups=drive"], "expected `crossfit.groups` an entry of the rows, got 'drive'"),
        (["crossfit.folds=300", *FOLDS[1:]], "expected `folds` at most the number of rows, 180, got 300"),
        ([*FOLDS, "model.options.deterministic=true"], "expected a model with a distribution"),
    ],
)
def test_refuses(tmp_path, overrides, message):
    with pytest.raises((ValueError, TypeError), match=message):
        train(config(tmp_path, *overrides), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists() or not list((tmp_path / "run").iterdir())


KILLED = """
import os, sys
from fcal import models
from fcal.cli import main
from training import toys

class Killed(toys.Net):
    left = 22  # of steps in training: eight in each of the epochs of the first fold, which are three

    def forward(self, x):
        if self.training:
            Killed.left -= 1
            if Killed.left == 0:
                os.kill(os.getpid(), 9)
        return super().forward(x)

toys.register()
models.register("toy", Killed, replace=True)
Killed.left = int(sys.argv[2])
main(["train", f"{sys.argv[1]}/config.toml", "--out", f"{sys.argv[1]}/killed"])
"""


@pytest.mark.parametrize("step", [5, 30, 80])
def test_killed_run_goes_on_and_equals_an_uninterrupted_one(tmp_path, step):
    """Killed in the first fold, in the second, and while a scale network is trained."""
    toys.register()
    words = "[recalibration]\nmethod = 'temperature'\n[crossfit]\nfolds = 3\nscales = 'nll'\nscale_epochs = 2\n"
    (tmp_path / "config.toml").write_text(f"{toys.CONFIG}checkpoint_every_steps = 1\n{words}")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent.parent), *sys.path])}
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path), str(step)], env=environment, capture_output=True, timeout=120
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert main(["train", str(tmp_path / "config.toml"), "--out", str(tmp_path / "killed"), "--resume"]) == 0
    assert main(["train", str(tmp_path / "config.toml"), "--out", str(tmp_path / "whole")]) == 0
    for file in ("weights.safetensors", "scales.safetensors", "training/history.csv"):
        assert (tmp_path / "killed" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes(), file
    one, two = (recalibration.load(tmp_path / name / "recalibrator") for name in ("killed", "whole"))
    assert repr(one) == repr(two)
