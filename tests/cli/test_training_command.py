"""``fcal train`` as users type it."""

import errno
import json
import re
from pathlib import Path

import pytest
import torch

from fcal.cli import main

PLUGIN = Path(__file__).parent.parent / "training" / "toys.py"
pytestmark = pytest.mark.usefixtures("names_forgotten")


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """A config, and a plugin that registers its network and data."""
    from training.toys import CONFIG

    (tmp_path / "waves.toml").write_text(CONFIG)
    (tmp_path / "plugin.py").write_text(PLUGIN.read_text() + "\nregister()\n")
    return str(tmp_path / "waves.toml"), str(tmp_path / "plugin.py")


def test_training_by_command_prints_and_writes(files, tmp_path, capsys):
    config, plugin = files
    words = ["train", config, "--plugin", plugin, "--out", str(tmp_path / "run")]
    assert main([*words, "--set", "fit.epochs=2", "--set", "recalibration.method=temperature"]) == 0
    out = capsys.readouterr()
    assert "verdict" in out.out
    assert "epoch" in out.out
    assert "before" in out.out
    assert out.err == f"written to {tmp_path / 'run'}\n"
    assert "epochs = 2" in (tmp_path / "run/config.toml").read_text()
    page = (tmp_path / "run/report.html").read_text("utf-8")
    assert f"page: {tmp_path / 'run/report.html'}" in out.out
    assert re.findall("<h2>(.*?)</h2>", page)[:3] == ["Learning", "Before and after", "Pictures"]
    assert "epochs = 2" in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")
    assert len(page.encode()) < 300_000


def test_json_is_one_document_and_nothing_else(files, tmp_path, capsys):
    config, plugin = files
    assert main(["train", config, "--plugin", plugin, "--out", str(tmp_path / "run"), "--json"]) == 0
    out = capsys.readouterr()
    document = json.loads(out.out)
    assert out.err == ""
    assert document["out"] == str(tmp_path / "run")
    assert document["test"]["n"] == 60
    assert document["config"]["seed"] == 3
    assert document["command"].startswith("fcal train ")


def test_default_of_out_is_named_after_the_file(files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", files[0], "--plugin", files[1], "--json", "--set", "fit.epochs=1"]) == 0
    assert (tmp_path / "runs/waves/SHA256SUMS").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "fit.epoch=3"], "waves.toml: expected `fit` keys among .*did you mean 'epochs'"),
        (["--set", "fit.epochs=no"], "waves.toml: expected `fit: epochs` of type int, got 'no'"),
        (["--set", "objective.lam=3"], "waves.toml: objective: expected `lam` within"),
        (["--set", "model.options.hiden=3"], "waves.toml: expected `model.options` keys .*did you mean 'hidden'"),
        (["--set", "data.options.row=3"], "waves.toml: expected `data.options` keys .* 'row' .did you mean 'rows'"),
        (["--set", "recalibration.method=isotone"], "waves.toml: recalibration: expected .*did you mean 'isotonic'"),
        (["--set", "model.name=toi"], "waves.toml: model.name: expected `model` one of .*did you mean 'toy'.\\)$"),
        (["--set", "model.start_from=nowhere"], "waves.toml: expected `model.start_from` .*, got no folder nowhere$"),
        (["--plugin", "absent.py"], "expected `--plugin` a Python file, got absent.py, which is not there"),
        (
            ["--plugin", "no_such_module"],
            r"got no_such_module: No module .*\(a .py file, or a module .* current folder\)$",
        ),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(files, tmp_path, capsys, words, message):
    config, plugin = files
    assert main(["train", config, "--plugin", plugin, "--out", str(tmp_path / "run"), *words]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert re.search(message, err), err
    assert not (tmp_path / "run").exists()


def test_unknown_network_hints_at_plugin(files, tmp_path, capsys):
    words = ["--set", "model.name=of-nobody", "--out", str(tmp_path / "run")]  # other tests may have registered more
    assert main(["train", files[0], *words]) == 2
    err = capsys.readouterr().err
    assert "waves.toml: model.name: expected `model` one of 'convnet'" in err
    assert err.endswith("; for one of your own, --plugin names the module or .py file that registers it\n")
    assert err.count("\n") == 1


def test_unknown_objective_hints_at_plugin_unless_one_is_given(files, tmp_path, capsys):
    (tmp_path / "mine.toml").write_text(Path(files[0]).read_text() + '[objective]\nname = "mine"\n')
    assert main(["train", str(tmp_path / "mine.toml"), "--out", str(tmp_path / "run")]) == 2
    assert "; for one of your own, --plugin names" in capsys.readouterr().err
    assert main(["train", str(tmp_path / "mine.toml"), "--plugin", files[1], "--out", str(tmp_path / "run")]) == 2
    assert "--plugin" not in capsys.readouterr().err


def test_finished_run_says_so_and_prints_its_metrics_again(files, tmp_path, capsys):
    words = ["train", files[0], "--plugin", files[1], "--out", str(tmp_path / "run"), "--set", "fit.epochs=1"]
    assert main(words) == 0
    first = capsys.readouterr()
    assert main([*words, "--resume"]) == 0
    again = capsys.readouterr()
    assert again.out == first.out
    assert again.err == f"already finished: nothing to do in {tmp_path / 'run'}\n"


def test_interruption_before_a_checkpoint_says_that_resuming_starts_again(files, tmp_path, capsys, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("fcal.training.pipeline.fit", interrupt)
    assert main(["train", files[0], "--plugin", files[1], "--out", str(tmp_path / "run")]) == 130
    told = "stopped before the first checkpoint; the same command with --resume starts again"
    assert capsys.readouterr().err == f"fcal: {told}\n"
    assert not (tmp_path / "run").exists()


def test_divergence_is_exit_code_1_with_step_and_term(files, tmp_path, capsys):
    words = ["train", files[0], "--plugin", files[1], "--out", str(tmp_path / "run")]
    far_too_much = ["objective.name=fcal", "objective.form=additive", "objective.lam=1e60"]
    assert main([*words, *(word for key in far_too_much for word in ("--set", key))]) == 1
    assert capsys.readouterr().err.startswith("fcal: Diverged: training diverged: fcal = inf after 0 steps")


SPOILT = """
class Spoilt(Net):
    good = {good}

    def forward(self, x):
        self.good -= 1
        pred = super().forward(x)
        return Normal(pred.loc, pred.scale * (self.good >= 0))

register()
models.register("spoilt", Spoilt)
"""


@pytest.mark.parametrize(
    ("good", "code", "message"),
    [
        (3, 1, r"^fcal: Diverged: training diverged: invalid prediction after 3 steps: Normal with scale 0.0, .*\n$"),
        (
            0,
            2,
            r"^fcal: expected `model` to return a valid distribution, got Normal with scale 0.0, .*"
            r"; no weight has changed .*\n$",
        ),
    ],
)
def test_invalid_prediction_is_one_line(files, tmp_path, capsys, good, code, message):
    (tmp_path / "spoilt.py").write_text(PLUGIN.read_text() + SPOILT.format(good=good))
    words = ["train", files[0], "--plugin", str(tmp_path / "spoilt.py"), "--out", str(tmp_path / "run")]
    assert main([*words, "--set", "model.name=spoilt"]) == code
    assert re.search(message, capsys.readouterr().err)


def test_full_disk_is_exit_code_1_and_the_run_goes_on(files, tmp_path, capsys, monkeypatch):
    save, calls = torch.save, []

    def failing(*arguments, **options):
        calls.append(1)
        if len(calls) == 5:
            raise OSError(errno.ENOSPC, "No space left on device")
        return save(*arguments, **options)

    words = ["train", files[0], "--out", str(tmp_path / "run"), "--plugin", files[1]]
    words += ["--set", "fit.checkpoint_every_steps=1"]
    monkeypatch.setattr(torch, "save", failing)
    assert main(words) == 1
    err = capsys.readouterr().err
    told = f"No space left on device in {tmp_path / 'run'}; the same command with --resume continues"
    assert err == f"fcal: OSError: {told} (--debug shows where)\n"
    assert main([*words, "--resume"]) == 0
    assert (tmp_path / "run/SHA256SUMS").is_file()
