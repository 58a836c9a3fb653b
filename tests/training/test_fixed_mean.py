"""Runs that keep the mean of another run, trimmed objectives, and the warning where calibration costs the mean."""

import json
import warnings

import pytest
import torch
from torch.distributions import Normal
from training import toys
from training.test_runs import config
from training.toys import Waves, net, wave

from fcal.crossfitting import WithScales
from fcal.losses import CombinedLoss, FCalLoss, TrimmedLoss
from fcal.training import FitConfig, ObjectiveConfig, fit, load, objective, train

RECIPE = ("model.fixed_mean=true", "objective.name=fcal", "objective.warmup_steps=8", "objective.trim=0.01")
X = torch.linspace(-1, 1, 9).unsqueeze(1)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    toys.register()
    folder = tmp_path_factory.mktemp("fixed")
    first = train(config(folder), folder / "first", progress=False)
    options = (f"model.start_from={first.folder}", *RECIPE, "fit.batch_size=30")
    return first, train(config(folder, *options), folder / "second", progress=False)


def test_run_keeps_the_mean_of_the_run_it_starts_from(runs):
    first, second = runs
    assert torch.equal(second.model(X).mean, first.model(X).mean)
    assert not torch.equal(second.model(X).stddev, first.model(X).stddev)
    assert second.report["test"]["rmse"] == pytest.approx(first.report["test"]["rmse"], rel=1e-6)


def test_error_bars_are_trained_on_the_validation_rows(runs):
    """60 rows in batches of 30 make two steps of an epoch; the 120 rows to train on would make four."""
    _, second = runs
    assert [line["step"] for line in second.report["fit"]["history"]] == [2, 4, 6]
    assert len(Waves().validation) == 60


def test_run_is_loaded_with_its_error_bars(runs):
    _, second = runs
    again = load(second.folder)
    assert isinstance(again.model, WithScales)
    assert torch.equal(again.model(X).mean, second.model(X).mean)
    assert torch.equal(again.model(X).stddev, second.model(X).stddev)
    assert "scales.safetensors" in (second.folder / "SHA256SUMS").read_text()
    assert json.loads((second.folder / "report.json").read_text())["config"]["model"]["fixed_mean"] is True


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ((), "expected .*`start_from`, the run whose mean to keep, with `fixed_mean`, got none"),
        (("recalibration.method=temperature",), "`recalibration.method` '', as the validation set trains"),
        (("crossfit.folds=3", "crossfit.scales=nll"), "`crossfit.folds` 0 .`crossfit.scales` keeps the mean, too."),
        (("objective.task=mse",), "`objective.task` 'nll' with `model.fixed_mean`, got 'mse'"),
        (("objective.name=mse",), "`objective.name` of error bars .fcal. with `model.fixed_mean`, got 'mse'"),
    ],
)
def test_what_a_fixed_mean_has_no_use_for_is_refused(tmp_path, overrides, message):
    start = ("model.start_from=somewhere",) if overrides else ()
    with pytest.raises(ValueError, match=message):
        config(tmp_path, *start, "model.fixed_mean=true", *overrides)


def test_trimmed_objective_is_the_trimmed_loss():
    data = wave(200)
    x, y = data.tensors
    y[3] += 1000.0
    model = net().eval()
    options = ObjectiveConfig(name="fcal", trim=0.01)
    terms = objective(options)(model, {"input": x, "target": y})
    expected = TrimmedLoss(CombinedLoss(FCalLoss(), lam=0.5))(model(x), y)
    torch.testing.assert_close(sum(terms.values()), expected)
    plain = objective(ObjectiveConfig(name="fcal"))(model, {"input": x, "target": y})
    assert sum(plain.values()) > 100 * sum(terms.values())


class Line(torch.nn.Module):
    """A mean and a sigma from one weight, so that a loss of sigma moves the mean."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(1.0))

    def forward(self, x):
        return Normal(self.weight * x, 0.05 * self.weight.pow(4) * torch.ones_like(x))


def test_mean_that_is_traded_for_calibration_is_told():
    x = torch.linspace(-1, 1, 200).unsqueeze(1)
    noise = 0.3 * torch.randn(200, 1, generator=torch.Generator().manual_seed(0))
    data = torch.utils.data.TensorDataset(x, x + noise)
    options = ObjectiveConfig(name="fcal", lam=0.9, detach_mean=True)
    with pytest.warns(UserWarning, match="the mean has become worse .*; train the error bars alone"):
        fit(Line(), objective(options), data, data, FitConfig(epochs=5, learning_rate=0.05), progress=False)


def test_run_whose_mean_is_worse_than_that_of_its_start_is_told(tmp_path, runs):
    first, _ = runs
    start = f"model.start_from={first.folder}"
    harmful = ("objective.name=fcal", "objective.lam=1.0", "objective.df=4", "fit.learning_rate=0.3", "fit.epochs=1")
    with pytest.warns(UserWarning, match="RMSE .* on the test set, .* in .*first; .* model.fixed_mean = true"):
        train(config(tmp_path, start, *harmful), tmp_path / "harmed", progress=False)


def test_usual_training_is_not_warned_of():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(net(), objective(ObjectiveConfig(name="fcal", lam=0.02)), wave(120), wave(60, seed=1), FitConfig(epochs=2))
