"""Errors are one line, raised before training where possible, and leave no files in the way."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.distributions import Cauchy, Normal
from training import toys
from training.toys import CONFIG, Net, net, wave

from fcal import data, models
from fcal._config import read_config, with_overrides
from fcal._files import held
from fcal.training import (
    Batches,
    DataConfig,
    Diverged,
    FitConfig,
    ModelConfig,
    ObjectiveConfig,
    RunConfig,
    fit,
    load,
    objective,
    train,
)
from fcal.training.checkpoints import CheckedIO, read_checkpoint
from fcal.training.objectives import register

SHORT = FitConfig(epochs=1, batch_size=4)


def config(tmp_path: Path, *overrides: str) -> RunConfig:
    path = tmp_path / "given.toml"
    path.write_text(CONFIG)
    return with_overrides(read_config(path, RunConfig), overrides)


# -- one process at a time


def test_folder_that_another_process_trains_in_is_refused(tmp_path):
    with (
        held(tmp_path / "run" / ".lock"),
        pytest.raises(ValueError, match="got .*run: another process is training there"),
    ):
        train(config(tmp_path), tmp_path / "run", progress=False)
    with held(tmp_path / "fit" / ".lock"), pytest.raises(ValueError, match="another process is training there"):
        fit(net(), None, wave(8), None, SHORT, folder=tmp_path / "fit")
    train(config(tmp_path), tmp_path / "run", progress=False)  # the lock is free again
    assert not (tmp_path / "run" / ".lock").exists()


# Each says when it is about to train, and goes on when both are there.
AT_ONCE = """
import sys
from training import toys
from fcal import models
from fcal.cli import main

class Meeting(toys.Net):
    met = False

    def forward(self, x):
        if not Meeting.met:
            Meeting.met = True
            print("here", file=sys.stderr, flush=True)
            sys.stdin.readline()
        return super().forward(x)

toys.register()
models.register("toy", Meeting, replace=True)
sys.exit(main(["train", *sys.argv[1:]]))
"""


def test_second_training_in_the_same_folder_is_refused(tmp_path):
    (tmp_path / "config.toml").write_text(CONFIG)
    words = [sys.executable, "-c", AT_ONCE, str(tmp_path / "config.toml"), "--out", str(tmp_path / "run"), "--json"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent.parent), *sys.path])}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    first = subprocess.Popen([*words, "--set", "seed=1"], env=environment, **pipes)
    assert first.stderr.readline() == "here\n"
    second = subprocess.run(
        [*words, "--set", "seed=1", "--resume"], env=environment, input="\n", capture_output=True, text=True, timeout=60
    )
    out, err = first.communicate("\n", timeout=60)
    assert (second.returncode, second.stdout) == (2, "")
    assert second.stderr.endswith("run: another process is training there\n")
    assert first.returncode == 0, err
    assert json.loads(out)["config"]["seed"] == 1
    assert load_config(tmp_path / "run").seed == 1


def load_config(folder: Path) -> RunConfig:
    return read_config(folder / "config.toml", RunConfig)


def test_run_that_another_process_finished_in_the_meantime_is_not_overwritten(tmp_path, monkeypatch):
    from fcal.training import pipeline

    ours, theirs = config(tmp_path), config(tmp_path, "seed=8")
    start_model = pipeline._start_model

    def slow(settings):
        monkeypatch.setattr(pipeline, "_start_model", start_model)
        train(theirs, tmp_path / "run", progress=False)
        return start_model(settings)

    monkeypatch.setattr(pipeline, "_start_model", slow)
    with pytest.raises(ValueError, match="expected `out` an empty folder"):
        train(ours, tmp_path / "run", progress=False)
    assert load(tmp_path / "run").report["config"]["seed"] == load_config(tmp_path / "run").seed == 8


def test_existing_config_is_compared_before_anything_is_written(tmp_path):
    from fcal.training.run_folder import write_config

    write_config(config(tmp_path), tmp_path / "run")
    with pytest.raises(ValueError, match="of the same config, got seed = 3 there and 4 here"):
        write_config(config(tmp_path, "seed=4"), tmp_path / "run")


# -- loops that end early


@pytest.mark.parametrize("where", ["training", "validation"])
def test_stop_iteration_of_a_model_is_an_error(where):
    class Stops(Net):
        def forward(self, x):
            if self.training == (where == "training"):
                next(iter([]))
            return super().forward(x)

    with pytest.raises(RuntimeError, match="expected model and objective to return, got a StopIteration"):
        fit(Stops(), None, wave(20), wave(20), SHORT)


@pytest.mark.parametrize("where", ["train", "validation"])
def test_epoch_that_a_callback_cuts_short_is_an_error(where):
    from lightning.pytorch import Callback

    class Stop(Callback):
        def on_train_batch_end(self, _, module, *__) -> None:
            if where == "train" and module.record.step == 3:
                raise StopIteration

        def on_validation_batch_end(self, *_) -> None:
            if where == "validation":
                raise StopIteration

    word = {"train": "5 batches of training in an epoch, got 3", "validation": "5 batches of validation .* got 1"}
    with pytest.raises(RuntimeError, match=f"expected {word[where]}"):
        fit(net(), None, wave(20), wave(20), SHORT, callbacks=[Stop()])


# -- errors of the user and divergences


def test_error_of_a_model_is_passed_on():
    class Complains(Net):
        def forward(self, _):
            raise ValueError("expected rain, got sun")

    with pytest.raises(ValueError, match="^expected rain, got sun$"):
        fit(Complains(), None, wave(8), None, SHORT)
    with pytest.raises(ValueError, match=r"expected `images` of shape \(N, 3, 16, 16\), got \(4, 1\)"):
        fit(models.ConvNet(size=16), None, wave(8), None, SHORT)


def test_distribution_without_a_mean_is_no_divergence():
    class Heavy(Net):
        def forward(self, x):
            pred = super().forward(x)
            return Cauchy(pred.loc, pred.scale)

    def refuses(model, batch):
        model(batch["input"])
        raise ValueError("expected another law")

    with pytest.raises(ValueError, match="expected another law"):
        fit(Heavy(), refuses, wave(8), None, SHORT)


def test_distribution_without_a_mean_has_no_errors_of_the_mean(tmp_path):
    class Heavy(Net):
        def forward(self, x):
            pred = super().forward(x)
            return Cauchy(pred.loc, pred.scale)

    models.register("heavy", Heavy)
    with pytest.raises(ValueError, match=r"expected `pred` with a mean of shape \(4, 1\), got no mean"):
        fit(Heavy(), objective(ObjectiveConfig(name="mse")), wave(8), None, SHORT)
    run = train(config(tmp_path, "model.name=heavy", "fit.epochs=1"), tmp_path / "run", progress=False)
    assert "l1" not in run.report["test"]
    assert run.report["test"]["nll"] > 0


def test_distribution_without_validation_that_is_not_finite_is_a_divergence():
    class Unchecked(Net):
        def forward(self, x):
            return Normal(super().forward(x).loc * torch.nan, 1.0, validate_args=False)

    def refuses(model, batch):
        model(batch["input"])
        raise ValueError("expected finite predictions")

    with pytest.raises(Diverged, match="invalid prediction after 0 steps: Normal with loc nan, expected Real"):
        fit(Unchecked(), refuses, wave(8), None, SHORT)


# -- sealed runs


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> dict[str, bytes]:
    """The files of a run with recalibration."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patched:
        for room in (models, data):  # which forget the toys again
            patched.setattr(room._FACTORIES, "_entries", dict(room._FACTORIES._entries))
        toys.register()
        train(config(folder, "recalibration.method=temperature"), folder / "run", progress=False)
    files = [path for path in (folder / "run").rglob("*") if path.is_file()]
    return {path.relative_to(folder / "run").as_posix(): path.read_bytes() for path in files}


def laid_out(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize("name", ["config.toml", "weights.safetensors", "report.json", "training/history.csv", "recal"])
def test_truncated_checksums_are_refused(finished, tmp_path, name):
    lines = finished["SHA256SUMS"].decode().splitlines(keepends=True)
    cut = "".join(line for line in lines if f"  {name}" not in line).encode()
    assert cut != finished["SHA256SUMS"]
    folder = laid_out(tmp_path / "run", finished | {"SHA256SUMS": cut})
    with pytest.raises(ValueError, match=f"SHA256SUMS with a line for {name}.*, got none"):
        load(folder)
    with pytest.raises(ValueError, match=f"SHA256SUMS with a line for {name}.*, got none"):
        train(config(tmp_path, "recalibration.method=temperature"), folder, resume=True)


@pytest.mark.parametrize(
    "line",
    [
        "rubbish",
        f"{'0' * 63}  config.toml",
        f"{'0' * 64} config.toml",
        f"{'0' * 64}  ../config.toml",
        f"{'0' * 64}  /etc/passwd",
        f"{'0' * 64}  config.toml",  # a second one for the same name
    ],
)
def test_checksums_with_an_invalid_line_are_refused(finished, tmp_path, line):
    folder = laid_out(tmp_path / "run", finished | {"SHA256SUMS": finished["SHA256SUMS"] + f"{line}\n".encode()})
    with pytest.raises(ValueError, match=r"SHA256SUMS of checksums and names, got '.*' in line \d"):
        load(folder)


def test_empty_checksums_are_refused(finished, tmp_path):
    with pytest.raises(ValueError, match="SHA256SUMS with a line for config.toml, got none"):
        load(laid_out(tmp_path / "run", finished | {"SHA256SUMS": b""}))
    assert load(laid_out(tmp_path / "whole", finished)).config.seed == 3, "complete ones are accepted"


# -- before training, and nothing left behind


class Counted(Net):
    steps = 0

    def forward(self, x):
        Counted.steps += 1
        return super().forward(x)


@pytest.fixture
def _counted():
    Counted.steps = 0
    models.register("counted", Counted)


@pytest.mark.usefixtures("_counted")
@pytest.mark.parametrize(
    ("splits", "message"),
    [
        ({"train": wave(8), "validation": wave(8)}, "`data` 'odd' with a part 'test', got none"),
        ({"train": wave(8), "test": wave(8)}, "`data` 'odd' with a part 'validation', got none"),
        ({"train": wave(8), "validation": wave(8), "test": wave(1)}, "at least 2 rows in 'test', got 1"),
        ({"train": wave(8), "validation": wave(8), "test": []}, "at least 2 rows in 'test', got 0"),
        ({"train": wave(8), "validation": [], "test": wave(8)}, "at least 1 rows in 'validation', got 0"),
    ],
)
def test_data_that_cannot_be_evaluated_are_refused_before_training(tmp_path, splits, message):
    data.register("odd", lambda: type("Odd", (), splits)())
    with pytest.raises(ValueError, match=f"expected .*{message}"):
        train(config(tmp_path, "data.name=odd", "model.name=counted"), tmp_path / "run", progress=False)
    assert Counted.steps == 0
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("_counted")
def test_recalibration_of_a_network_without_error_bars_is_refused_at_its_first_prediction(tmp_path):
    overrides = ["model.name=counted", "model.options.deterministic=true", "objective.name=mse"]
    with pytest.raises(ValueError, match="a model with a distribution to recalibrate, got one that returns a tensor"):
        train(config(tmp_path, *overrides, "recalibration.method=affine"), tmp_path / "run", progress=False)
    assert Counted.steps == 2, "the first batch, and once more to check whether the prediction is finite"
    assert not (tmp_path / "run").exists()


def test_failed_run_does_not_block_the_corrected_command(tmp_path):
    (tmp_path / "run").mkdir()  # the user's own
    with pytest.raises(ValueError, match="monitor"):
        train(
            config(tmp_path, "model.options.deterministic=true", "objective.name=mse", "fit.monitor=nll"),
            tmp_path / "run",
            progress=False,
        )
    assert list((tmp_path / "run").iterdir()) == []
    train(config(tmp_path), tmp_path / "run", progress=False)


def test_error_after_a_checkpoint_removes_nothing(tmp_path):
    class Later(Net):
        left = 6

        def forward(self, x):
            Later.left -= 1
            if not Later.left:
                raise ValueError("expected better weather")
            return super().forward(x)

    models.register("later", Later)
    with pytest.raises(ValueError, match="better weather"):
        train(config(tmp_path, "model.name=later", "fit.checkpoint_every_steps=2"), tmp_path / "run", progress=False)
    assert read_checkpoint(tmp_path / "run/training/checkpoint.fcal")["fcal"]["record"]["step"] == 4


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("key", ["objective.beta", "model.options.x", "data.options.deep.list"])
def test_error_of_a_number_that_is_not_finite_names_its_key(tmp_path, key, value):
    shown = f"[0.5, {value}]" if key.endswith("list") else value
    dotted = key.split(".")[-1]
    with pytest.raises(ValueError, match=rf"{dotted}.*` a finite number, got {value}"):
        config(tmp_path, f"{key}={shown}")


def test_run_config_in_python_is_checked():
    parts = {"data": DataConfig(name="waves"), "model": ModelConfig(name="toy")}
    with pytest.raises(ValueError, match="expected `objective.beta` a finite number, got nan"):
        RunConfig(**parts, objective=ObjectiveConfig(beta=float("nan")))
    with pytest.raises(ValueError, match=r"expected `model.options.a\[0\]` a finite number, got inf"):
        RunConfig(**{**parts, "model": ModelConfig(name="toy", options={"a": [float("inf")]})})
    with pytest.raises(TypeError, match="expected `data` a DataConfig, got str"):
        RunConfig(**{**parts, "data": "bokeh"})
    with pytest.raises(TypeError, match="expected `fit` a FitConfig, got dict"):
        RunConfig(**parts, fit={})
    with pytest.raises(TypeError, match="expected `model.options` a dict with string keys, got list"):
        RunConfig(**{**parts, "model": ModelConfig(name="toy", options=[])})
    with pytest.raises(TypeError, match="scalars, lists and tables, got object"):
        RunConfig(**{**parts, "data": DataConfig(name="waves", options={"a": object()})})


# -- options by name


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.options.row=3", "`data.options` keys among 'rows', 'noise', got 'row' .did you mean 'rows'"),
        ("data.options.name=x", "`data.options` keys among 'rows', 'noise', got 'name'"),
        ("model.options.name=x", "`model.options` keys among 'hidden', 'deterministic', got 'name'"),
    ],
)
def test_options_of_registered_data_and_networks_are_checked(tmp_path, override, message):
    with pytest.raises(ValueError, match=f"expected {message}"):
        train(config(tmp_path, override), tmp_path / "run")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.name=convnet", "model.options.width=0"], "^model.options: expected `width` >= 1, got 0"),
        (["data.name=bokeh", "data.options.seed=-1"], "^data.options: expected `seed` >= 0, got -1"),
        (["data.name=bokeh", "data.options.name=x"], "^expected `data.options` keys among .*, got 'name'"),
        (
            ["model.start_from='a\\u0000b'"],
            "^expected `model.start_from` the folder of a finished run, .*, got no folder",
        ),
        (["model.name=toi"], "^model.name: expected `model` one of .*did you mean 'toy'"),
        (["data.name=wave"], "^data.name: expected `data` one of .*did you mean 'waves'"),
    ],
)
def test_errors_name_the_table_of_the_config(tmp_path, overrides, message):
    given = [word.replace("'a\\u0000b'", '"a\\u0000b"') for word in overrides]
    with pytest.raises(ValueError, match=message):
        train(config(tmp_path, *given), tmp_path / "run")


def test_error_of_a_value_out_of_range_names_its_table(tmp_path):
    with pytest.raises(ValueError, match="config: fit: expected `seed` >= 0, got -1"):
        config(tmp_path, "fit.seed=-1")


# -- checkpoints


def interrupted(folder: Path) -> Path:
    """A checkpoint in mid-training."""

    def stops(model, batch):
        stops.left -= 1
        if not stops.left:
            raise KeyError("stop")
        return objective(ObjectiveConfig())(model, batch)

    stops.left = 6
    with pytest.raises(KeyError):
        fit(net(), stops, wave(40), None, replace(SHORT, checkpoint_every_steps=2), folder=folder)
    return folder / "checkpoint.fcal"


def resumed(folder: Path, named: str = "stops"):
    def stops(model, batch):
        return objective(ObjectiveConfig())(model, batch)

    stops.__qualname__ = "interrupted.<locals>.stops" if named == "stops" else named
    return fit(net(), stops, wave(40), None, replace(SHORT, checkpoint_every_steps=2), folder=folder, resume=True)


def test_folder_of_another_objective_is_refused(tmp_path):
    interrupted(tmp_path)
    with pytest.raises(ValueError, match="expected `objective` as in .*, .*stops, got .*other"):
        resumed(tmp_path, named="other")
    assert resumed(tmp_path).step_count == 10


def test_description_of_an_objective_depends_on_its_config_alone():
    from fcal.training.objectives import description

    one, same = (description(objective(ObjectiveConfig(name="fcal", lam=0.3))) for _ in range(2))
    assert one == same
    others = [ObjectiveConfig(name="fcal", lam=0.4), ObjectiveConfig(name="beta-nll"), ObjectiveConfig(name="mse")]
    assert len({one, *(description(objective(other)) for other in others)}) == 4
    assert "0x" not in description(objective(ObjectiveConfig(name="mse")))


@pytest.mark.parametrize(
    "change",
    [
        lambda saved: saved["fcal"]["record"].update(epoch=-1),
        lambda saved: saved["fcal"]["record"].update(position=99),
        lambda saved: saved["fcal"]["record"].update(step="3"),
        lambda saved: saved["fcal"]["record"].update(seconds=float("nan")),
        lambda saved: saved["fcal"]["record"].update(history=[{}, {}]),
        lambda saved: saved["fcal"]["record"].pop("rows"),
        lambda saved: saved["fcal"]["record"].update(more=1),
        lambda saved: saved["fcal"].pop("config"),
        lambda saved: saved.pop("fcal"),
        lambda saved: saved.pop("state_dict"),
        lambda saved: saved.update(state_dict={"model.x": 3}),
        lambda saved: saved.pop("optimizer_states"),
        lambda saved: saved.update(optimizer_states=[{"state": 3}]),
        lambda saved: saved.update(loops={}),
        lambda saved: saved.pop("pytorch-lightning_version"),
    ],
)
def test_edited_checkpoint_with_a_valid_checksum_is_refused(tmp_path, change):
    path = interrupted(tmp_path)
    saved = read_checkpoint(path)
    change(saved)
    CheckedIO().save_checkpoint(saved, path)
    with pytest.raises(ValueError, match="damaged"):
        resumed(tmp_path)


@pytest.mark.parametrize("content", [b"", b"rubbish", b"PK\x03\x04" + bytes(100), b"\x80\x02}q\x00."])
def test_garbage_with_a_valid_checksum_is_refused(tmp_path, content):
    import hashlib

    path = tmp_path / "checkpoint.fcal"
    path.write_bytes(hashlib.sha256(content).hexdigest().encode() + b"\n" + content)
    with pytest.raises(ValueError, match="checkpoint.fcal a checkpoint, got one that is damaged"):
        read_checkpoint(path)


def test_missing_checkpoint_is_refused(tmp_path):
    with pytest.raises(ValueError, match="expected a checkpoint .*checkpoint.fcal, got: No such file or directory"):
        read_checkpoint(tmp_path / "checkpoint.fcal")


# -- arguments in Python


def no_gradient(model, batch):
    return {"error": (model(batch["input"]).mean - batch["target"]).square().mean().detach()}


def in_a_list(model, batch):
    return {"error": (model(batch["input"]).mean - batch["target"]).square().mean().reshape(1)}


def called_loss(model, batch):
    return {"loss": model(batch["input"]).mean.mean(), "other": model(batch["input"]).mean.mean()}


@pytest.mark.parametrize(
    ("of", "error", "message"),
    [
        (no_gradient, ValueError, "`objective` with a gradient, got none in 'error'"),
        (in_a_list, TypeError, r"`objective` to return scalar tensors, got 'error' of shape \(1,\)"),
        (called_loss, ValueError, "`objective` to name its terms, and none 'loss', which is their sum, got 'loss'"),
    ],
)
def test_objective_with_invalid_terms_is_refused(of, error, message):
    with pytest.raises(error, match=f"expected {message}"):
        fit(net(), of, wave(8), None, SHORT)


def test_callbacks_are_checked():
    with pytest.raises(TypeError, match="expected `callbacks` of lightning's Callback, got int"):
        fit(net(), None, wave(8), None, SHORT, callbacks=[3])
    with pytest.raises(TypeError, match="expected `callbacks` a list, got int"):
        fit(net(), None, wave(8), None, SHORT, callbacks=3)


def test_train_checks_its_arguments(tmp_path):
    with pytest.raises(TypeError, match="expected `config` a RunConfig, got dict"):
        train({}, tmp_path / "run")
    for folder in ("", "a\0b"):
        with pytest.raises(ValueError, match="expected `out` the name of a folder, got "):
            train(config(tmp_path), folder)


def test_factories_must_be_callable():
    for add in (models.register, data.register, register):
        with pytest.raises(TypeError, match="expected `factory` to call with .*, got NoneType"):
            add("zz", None)
    with pytest.raises(TypeError, match="expected `config` an ObjectiveConfig, got str"):
        objective("nll")


def test_batch_with_fewer_rows_than_asked_for_is_refused():
    class Short:
        def __len__(self):
            return 10

        def __getitems__(self, indices):
            return {"input": torch.zeros(len(indices) - 1, 1), "target": torch.zeros(len(indices) - 1, 1)}

    with pytest.raises(ValueError, match="expected `__getitems__` of the dataset to return 5 rows, got 4"):
        next(iter(Batches(Short(), 5)))


def test_third_part_of_an_item_is_a_mask():
    x, y = wave(40).tensors
    masked = torch.arange(40).reshape(40, 1) % 2 == 0
    parts = [(torch.where(masked, y, 1e6), masked), (y.where(masked, torch.nan),)]
    given = [torch.utils.data.TensorDataset(x, *part) for part in parts]
    masked_out, missing = (fit(net(), None, each, each, SHORT).history for each in given)
    assert masked_out == missing, "masked targets count as little as missing ones"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([torch.ones(8, 1)], "a third part of a batch to be a boolean valid_mask, got one of torch.float32"),
        ([torch.arange(8)], "a third part of a batch to be a boolean valid_mask, got one of torch.int64"),
        ([torch.ones(8, 1)] * 2, r"a batch of \(input, target\) or \(input, target, valid_mask\), got 4 parts"),
    ],
)
def test_items_of_other_forms_are_refused(more, message):
    hint = "for more use a mapping with the keys 'input', 'target', and perhaps 'valid_mask' and 'weight'"
    given = torch.utils.data.TensorDataset(*wave(8).tensors, *more)
    with pytest.raises(TypeError, match=f"^expected {message}; {hint}$"):
        fit(net(), objective(ObjectiveConfig(name="mse")), given, None, SHORT)


def test_network_that_is_none_is_refused(tmp_path):
    models.register("none", lambda: None)
    with pytest.raises(TypeError, match="expected `model` 'none' a torch.nn.Module, got NoneType"):
        train(config(tmp_path, "model.name=none"), tmp_path / "run")


def test_fit_refuses_a_loader_by_name():
    loader = torch.utils.data.DataLoader(wave(8))
    with pytest.raises(TypeError, match="expected a dataset, got a DataLoader: pass its `dataset`"):
        fit(net(), None, loader, None, FitConfig(epochs=1), progress=False)
