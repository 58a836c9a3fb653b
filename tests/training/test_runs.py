"""A run from config to folder."""

import json
import math
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from training.toys import CONFIG, Waves

import fcal
from fcal import recalibration
from fcal._config import read_config, with_overrides
from fcal.training import RunConfig, load, predict, train


def config(tmp_path: Path, *overrides: str) -> RunConfig:
    path = tmp_path / "given.toml"
    path.write_text(CONFIG)
    return with_overrides(read_config(path, RunConfig), overrides)


def test_run_folder_has_the_documented_files(tmp_path):
    settings = config(tmp_path, "recalibration.method=temperature")
    run = train(settings, tmp_path / "run", progress=False)
    files = {path.relative_to(run.folder).as_posix() for path in run.folder.rglob("*") if path.is_file()}
    fixed = {"config.toml", "weights.safetensors", "report.json", "SHA256SUMS", "training/history.csv"}
    assert fixed | {"recalibrator/recalibrator.json"} <= files
    assert not [name for name in files if "checkpoint" in name]
    assert read_config(run.folder / "config.toml", RunConfig) == settings
    checked = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=run.folder, capture_output=True, text=True)
    assert checked.returncode == 0
    assert len(checked.stdout.splitlines()) >= 6
    report = json.loads((run.folder / "report.json").read_text())
    assert report["seed"] == 3
    assert report["config"]["fit"]["epochs"] == 3
    assert len(report["fit"]["history"]) == 3
    assert report["provenance"]["torch"]


def test_report_is_evaluate_on_the_test_set_before_and_after_recalibration(tmp_path):
    run = train(config(tmp_path, "recalibration.method=affine"), tmp_path / "run", progress=False)
    splits = Waves()
    pred, target, _ = predict(run.model, splits.test)
    repaired = recalibration.load(run.folder / "recalibrator").transform(pred)
    for name, law in (("before", pred), ("test", repaired)):
        report = fcal.evaluate(law, target)
        for key in ("nll", "ece_q", "crps", "rmse"):
            assert run.report[name][key] == pytest.approx(getattr(report, key), rel=1e-6), (name, key)
        l1 = torch.nn.functional.smooth_l1_loss(law.mean.float(), target).item()
        assert run.report[name]["l1"] == pytest.approx(l1, rel=1e-5)


def test_loaded_run_predicts_the_same(tmp_path):
    run = train(config(tmp_path), tmp_path / "run", progress=False)
    again = load(tmp_path / "run")
    x = torch.linspace(-1, 1, 9).unsqueeze(1)
    assert torch.equal(again.model(x).mean, run.model(x).mean)
    assert again.config == run.config
    assert again.report == json.loads(json.dumps(run.report))


def test_same_config_gives_the_same_weights_and_another_seed_others(tmp_path):
    torch.manual_seed(0)
    bytes_of = {}
    for name, overrides in (("a", []), ("b", []), ("seed", ["seed=4"]), ("order", ["fit.seed=1"])):
        run = train(config(tmp_path, *overrides), tmp_path / name, progress=False)
        bytes_of[name] = (run.folder / "weights.safetensors").read_bytes()
        torch.rand(7)
    assert bytes_of["a"] == bytes_of["b"]
    assert len(set(bytes_of.values())) == 3


def test_start_from_takes_the_weights_of_a_run_and_head_changes_only_the_head(tmp_path):
    first = train(config(tmp_path), tmp_path / "first", progress=False)
    overrides = [f"model.start_from={tmp_path / 'first'}", "fit.trained=head", "objective.name=fcal", "seed=9"]
    second = train(config(tmp_path, *overrides), tmp_path / "second", progress=False)
    before, after = first.model.state_dict(), second.model.state_dict()
    for name in before:
        assert torch.equal(before[name], after[name]) != name.startswith("head"), name


def test_start_from_a_damaged_or_other_run_is_refused(tmp_path):
    train(config(tmp_path), tmp_path / "first", progress=False)
    start = f"model.start_from={tmp_path / 'first'}"
    with pytest.raises(
        ValueError,
        match=r"^model.start_from: .* of this network, got trunk.0.weight of shape \(8, 1\), not \(5, 1\)$",
    ):
        train(config(tmp_path, start, "model.options.hidden=5"), tmp_path / "second")
    weights = tmp_path / "first" / "weights.safetensors"
    content = bytearray(weights.read_bytes())
    content[-3] ^= 1
    weights.write_bytes(content)
    with pytest.raises(ValueError, match="weights.safetensors with the checksum in SHA256SUMS, got another"):
        train(config(tmp_path, start), tmp_path / "second")
    needed = "^expected `model.start_from` the folder of a finished run, with weights.safetensors and SHA256SUMS, got "
    with pytest.raises(ValueError, match=f"{needed}{tmp_path}, which has no SHA256SUMS: not finished"):
        train(config(tmp_path, f"model.start_from={tmp_path}"), tmp_path / "second")
    with pytest.raises(ValueError, match=f"{needed}no folder {tmp_path}/none$"):
        train(config(tmp_path, f"model.start_from={tmp_path}/none"), tmp_path / "second")
    assert not (tmp_path / "second").exists(), "errors leave no folder behind"


def test_folder_that_is_not_empty_is_refused(tmp_path):
    settings = config(tmp_path)
    train(settings, tmp_path / "run", progress=False)
    with pytest.raises(ValueError, match="expected `out` an empty folder, or --resume to go on"):
        train(settings, tmp_path / "run")
    other = replace(settings, fit=replace(settings.fit, learning_rate=0.5))
    with pytest.raises(ValueError, match="of the same config, got fit.learning_rate = 0.01 there and 0.5 here"):
        train(other, tmp_path / "run", resume=True)
    with pytest.raises(ValueError, match="a run to go on with, got .* without config.toml"):
        train(settings, tmp_path, resume=True)
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="expected `out` a folder, got the file"):
        train(settings, tmp_path / "file")


def test_finished_run_is_loaded_and_not_changed(tmp_path):
    run = train(config(tmp_path), tmp_path / "run", progress=False)
    before = {path: path.stat().st_mtime_ns for path in run.folder.rglob("*")}
    again = train(config(tmp_path), tmp_path / "run", resume=True)
    assert again.report["fit"]["seconds"] == run.report["fit"]["seconds"]
    assert before == {path: path.stat().st_mtime_ns for path in run.folder.rglob("*")}


@pytest.mark.parametrize("lost", ["SHA256SUMS", "report.json"])
def test_run_killed_while_it_is_sealed_can_be_resumed(tmp_path, monkeypatch, lost):
    from fcal.training import pipeline, run_folder

    whole = train(config(tmp_path), tmp_path / "whole", progress=False)
    module, name = {"SHA256SUMS": (run_folder, "write_checksums"), "report.json": (pipeline, "write_json")}[lost]
    with monkeypatch.context() as patched:
        patched.setattr(module, name, lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train(config(tmp_path), tmp_path / "run", progress=False)
    again = train(config(tmp_path), tmp_path / "run", resume=True)
    assert (again.folder / lost).is_file()
    assert again.report["fit"]["history"] == whole.report["fit"]["history"]
    assert (again.folder / "weights.safetensors").read_bytes() == (whole.folder / "weights.safetensors").read_bytes()


def test_deterministic_network_is_evaluated_by_its_errors(tmp_path):
    overrides = ["model.options.deterministic=true", "objective.name=smooth-l1"]
    run = train(config(tmp_path, *overrides), tmp_path / "run", progress=False)
    assert set(run.report["test"]) == {"l1", "mse", "rmse"}
    assert run.report["test"]["rmse"] == pytest.approx(math.sqrt(run.report["test"]["mse"]))
    with pytest.raises(ValueError, match="a model with a distribution to recalibrate"):
        train(config(tmp_path, *overrides, "recalibration.method=affine"), tmp_path / "other", progress=False)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.options.hiden=3", "`model.options` keys among 'hidden', 'deterministic', got 'hiden' .did you mean"),
        ("model.name=toi", "`model` one of .* got 'toi' .did you mean 'toy'"),
        ("data.name=wave", "`data` one of .* got 'wave' .did you mean 'waves'"),
    ],
)
def test_unknown_names_are_refused_before_anything_is_written(tmp_path, override, message):
    with pytest.raises(ValueError, match=f"expected {message}"):
        train(config(tmp_path, override), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_concatenated_predictions_are_those_of_the_whole():
    from torch.distributions import (
        Categorical,
        Independent,
        LogNormal,
        MixtureSameFamily,
        MultivariateNormal,
        Normal,
        StudentT,
    )

    from fcal.distributions.functional import cat

    generator = torch.Generator().manual_seed(0)
    a, b, c = torch.randn(3, 7, 2, generator=generator)
    makers = [
        lambda s: Normal(a[s], b[s].exp()),
        lambda s: Normal(a[s], 0.5),  # a scale that is the same for all
        lambda s: Independent(StudentT(4.0, a[s], b[s].exp()), 1),
        lambda s: LogNormal(a[s], b[s].exp()),
        lambda s: MultivariateNormal(a[s], torch.diag_embed(b[s].exp())),
        lambda s: MixtureSameFamily(Categorical(logits=c[s]), Normal(a[s], b[s].exp())),
    ]
    for make in makers:
        whole, parts = make(slice(None)), cat([make(slice(0, 4)), make(slice(4, 5)), make(slice(5, 7))])
        assert parts.batch_shape == whole.batch_shape
        assert parts.event_shape == whole.event_shape
        y = torch.rand(whole.batch_shape + whole.event_shape, generator=generator) + 0.1
        np.testing.assert_allclose(parts.log_prob(y), whole.log_prob(y), rtol=1e-6)


def test_weights_of_more_or_fewer_tensors_are_refused(tmp_path):
    from fcal.training.run_folder import read_weights, write_weights

    small, large = torch.nn.Linear(2, 3, bias=False), torch.nn.Linear(2, 3)
    write_weights(tmp_path / "small", small)
    write_weights(tmp_path / "large", large)
    with pytest.raises(ValueError, match=r"small with weights of this network, got no bias, of shape \(3,\) here$"):
        read_weights(tmp_path / "small", large)
    with pytest.raises(ValueError, match=r"large with .*, got bias of shape \(3,\), which it does not have$"):
        read_weights(tmp_path / "large", small)


def test_weights_that_share_memory_or_are_channels_last_can_be_written(tmp_path):
    from fcal.training.run_folder import read_weights, write_weights

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Linear(5, 5), torch.nn.Linear(5, 5))
    model[2].weight = model[1].weight
    model.to(memory_format=torch.channels_last)
    write_weights(tmp_path / "w.safetensors", model)
    other = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Linear(5, 5), torch.nn.Linear(5, 5))
    read_weights(tmp_path / "w.safetensors", other)
    for name, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[name])
