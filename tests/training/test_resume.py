"""A resumed training equals an uninterrupted one bit for bit; checkpoints are complete and never unpickled."""

import csv
import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback
from training import toys
from training.toys import net, wave

from fcal.cli import main
from fcal.training import FitConfig, ObjectiveConfig, fit, objective
from fcal.training.checkpoints import CheckedIO, checkpoint_to_resume, read_checkpoint

CONFIG = FitConfig(
    epochs=3, batch_size=16, learning_rate=0.01, schedule="one-cycle", patience=5, checkpoint_every_steps=1
)
STEPS = 12  # 60 rows in batches of at most 16, 3 epochs


class Interrupted(Exception):  # noqa: N818
    pass


class Interrupt(Callback):
    """Raises after a number of steps: before the next step, or in validation."""

    def __init__(self, step: int, where: str) -> None:
        self.step = step
        self.where = where

    def on_train_batch_start(self, _, module, *__) -> None:
        if self.where == "train" and module.record.step == self.step:
            raise Interrupted

    def on_validation_batch_start(self, _, module, *__) -> None:
        if self.where == "validation" and module.record.step == self.step:
            raise Interrupted


class Noisy(torch.nn.Module):
    """An objective with randomness, a warm-up and a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.of = objective(ObjectiveConfig(name="mmd", lam=0.3, warmup_steps=7, draws=2))
        self.generator = torch.Generator().manual_seed(5)

    def forward(self, model, batch):
        terms = self.of(model, batch)
        return {**terms, "noise": 0.1 * torch.rand(1, generator=self.generator).squeeze() * sum(terms.values())}


def run(folder: Path | None = None, *, config: FitConfig = CONFIG, rows: int = 60, **options):
    model = net()
    return model, fit(model, Noisy(), wave(rows), wave(40, seed=1), config, folder=folder, **options)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return *run(folder), folder


def assert_same(one, two, path="") -> None:
    """Assert that nested containers are equal, and tensors bit for bit."""
    if isinstance(one, dict):
        assert one.keys() == two.keys(), path
        for key in one:
            assert_same(one[key], two[key], f"{path}/{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(two), path
        for index, (a, b) in enumerate(zip(one, two, strict=True)):
            assert_same(a, b, f"{path}/{index}")
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, two), path
    else:
        assert one == two, path


def comparable(folder: Path) -> dict:
    """The content of a checkpoint without the duration and the counters of Lightning's loops."""
    saved = read_checkpoint(folder / "checkpoint.fcal")
    saved["fcal"]["record"].pop("seconds")
    saved.pop("loops")
    return saved


@pytest.mark.parametrize(
    ("where", "step"), [*(("train", step) for step in range(1, STEPS)), ("validation", 4), ("validation", 8)]
)
def test_resumed_equals_uninterrupted(uninterrupted, tmp_path, where, step):
    model, result, folder = uninterrupted
    with pytest.raises(Interrupted):
        run(tmp_path, callbacks=[Interrupt(step, where)])
    again, resumed = run(tmp_path, resume=True)
    assert resumed.history == result.history
    assert (resumed.step_count, resumed.best_epoch) == (STEPS, result.best_epoch)
    assert_same(again.state_dict(), model.state_dict())
    assert_same(comparable(tmp_path), comparable(folder))  # optimizer, best weights, generators, warm-up
    assert (tmp_path / "history.csv").read_bytes() == (folder / "history.csv").read_bytes()


def test_resumed_after_several_interruptions_and_rare_checkpoints(uninterrupted, tmp_path):
    rare = FitConfig(**{**vars(CONFIG), "checkpoint_every_steps": 3})
    for step in (5, 7, 10):
        with pytest.raises(Interrupted):
            run(tmp_path, resume=True, config=rare, callbacks=[Interrupt(step, "train")])
    again, resumed = run(tmp_path, resume=True, config=rare)
    assert resumed.history == uninterrupted[1].history
    assert_same(again.state_dict(), uninterrupted[0].state_dict())


def test_early_stopping_counts_across_an_interruption(tmp_path):
    rates = {"learning_rate": 0.3, "schedule": "constant", "checkpoint_every_steps": 4}
    config = FitConfig(epochs=60, batch_size=16, patience=3, **rates)
    model, result = run(config=config)
    assert result.stopped_early
    last = 4 * (result.epochs_run - 1)  # patience has begun to run out
    with pytest.raises(Interrupted):
        run(tmp_path, config=config, callbacks=[Interrupt(last, "train")])
    again, resumed = run(tmp_path, config=config, resume=True)
    assert (resumed.history, resumed.best_epoch) == (result.history, result.best_epoch)
    assert_same(again.state_dict(), model.state_dict())
    finished, same = run(tmp_path, config=config, resume=True)  # and is not taken up again
    assert same.history == result.history
    assert_same(finished.state_dict(), model.state_dict())


def test_finished_training_returns_its_result(uninterrupted):
    model, result, folder = uninterrupted
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    again, same = run(folder, resume=True)
    assert same.history == result.history
    assert_same(again.state_dict(), model.state_dict())
    assert before == {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_history_file_has_one_line_per_epoch(uninterrupted):
    with (uninterrupted[2] / "history.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [int(line["epoch"]) for line in lines] == [0, 1, 2]
    assert [float(line["train/loss"]) for line in lines] == [line["train/loss"] for line in uninterrupted[1].history]


def test_tensorboard_shows_each_epoch_once_after_a_resume(uninterrupted, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with pytest.raises(Interrupted):
        run(tmp_path, callbacks=[Interrupt(10, "train")])
    run(tmp_path, resume=True)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload().Scalars("validation/nll")
    assert [event.step for event in events] == [0, 1, 2]
    expected = [line["validation/nll"] for line in uninterrupted[1].history]
    assert [event.value for event in events] == pytest.approx(expected, rel=1e-6)


def test_folder_of_another_config_is_refused_by_its_key(uninterrupted):
    other = FitConfig(**{**vars(CONFIG), "learning_rate": 0.02})
    with pytest.raises(ValueError, match="of the same config, got learning_rate = 0.01 there and 0.02 here"):
        run(uninterrupted[2], resume=True, config=other)


def test_folder_of_other_data_or_another_network_is_refused(tmp_path):
    with pytest.raises(Interrupted):
        run(tmp_path, callbacks=[Interrupt(6, "train")])
    with pytest.raises(ValueError, match="expected `train` with 60 rows as in .*, got 61"):
        run(tmp_path, resume=True, rows=61)
    other = net(hidden=5)
    with pytest.raises(ValueError, match=r"of this network, got trunk.0.weight of shape \(8, 1\), not \(5, 1\)"):
        fit(other, Noisy(), wave(60), wave(40, seed=1), CONFIG, folder=tmp_path, resume=True)


def test_folder_with_a_training_needs_resume(uninterrupted):
    with pytest.raises(ValueError, match="expected `folder` without a training, or `resume`, got .*, which holds one"):
        run(uninterrupted[2])


@pytest.mark.parametrize("where", ["checksum", "end of the checksum", "content", "last byte"])
def test_one_flipped_bit_is_refused(tmp_path, where):
    with pytest.raises(Interrupted):
        run(tmp_path, callbacks=[Interrupt(6, "train")])
    (path,) = tmp_path.glob("checkpoint*")
    content = bytearray(path.read_bytes())
    flipped = {"checksum": 0, "end of the checksum": 64, "content": len(content) * 2 // 3, "last byte": -1}
    content[flipped[where]] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"checkpoint.fcal with the checksum in its first line, got another: the file"):
        run(tmp_path, resume=True)


def test_truncated_checkpoint_is_refused(tmp_path):
    with pytest.raises(Interrupted):
        run(tmp_path, callbacks=[Interrupt(6, "train")])
    path = tmp_path / "checkpoint.fcal"
    for size in (path.stat().st_size // 2, 64, 0):
        path.write_bytes(path.read_bytes()[:size])
        with pytest.raises(ValueError, match="the file is damaged"):
            run(tmp_path, resume=True)


def test_full_disk_leaves_the_last_checkpoint(uninterrupted, tmp_path, monkeypatch):
    save, calls = torch.save, []

    def failing(*arguments, **options):
        calls.append(1)
        if len(calls) == 6:
            raise OSError(errno.ENOSPC, "No space left on device")
        return save(*arguments, **options)

    monkeypatch.setattr(torch, "save", failing)
    with pytest.raises(OSError, match="No space left"):
        run(tmp_path)
    monkeypatch.undo()
    assert read_checkpoint(tmp_path / "checkpoint.fcal")["fcal"]["record"]["step"] == 5
    again, resumed = run(tmp_path, resume=True)
    assert resumed.history == uninterrupted[1].history
    assert_same(again.state_dict(), uninterrupted[0].state_dict())


def test_ctrl_c_in_python_is_a_keyboard_interrupt_and_stays_possible(tmp_path):
    class Press(Callback):
        def on_train_batch_start(self, _, module, *__) -> None:
            if module.record.step == 3:
                signal.raise_signal(signal.SIGINT)

    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, callbacks=[Press()])
    assert signal.getsignal(signal.SIGINT) is handler


def test_training_works_in_a_thread(uninterrupted):
    found = []
    thread = threading.Thread(target=lambda: found.append(run()))
    thread.start()
    thread.join()
    assert found[0][1].history == uninterrupted[1].history


# One process imports Lightning, then forks a child for each signal, which really gets it in the middle of an epoch.
KILLED = """
import os, signal, sys
import torch
from fcal import models
from fcal.cli import main
from training import toys
import fcal.cli.training

class Killed(toys.Net):
    def forward(self, x):
        if self.training:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), self.signal)
        return super().forward(x)

toys.register()
models.register("toy", Killed, replace=True)
for name in sys.argv[2:]:
    Killed.left, Killed.signal = 7, getattr(signal, name)  # 4 steps in an epoch
    child = os.fork()
    if not child:
        sys.argv = ["fcal", "train", f"{sys.argv[1]}/config.toml", "--out", f"{sys.argv[1]}/{name}"]
        os._exit(main())
    print(name, os.waitpid(child, 0)[1], flush=True)
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory) -> tuple[Path, dict[str, int], str]:
    folder = tmp_path_factory.mktemp("killed")
    (folder / "config.toml").write_text(f"{toys.CONFIG}checkpoint_every_steps = 1\n[data.options]\nrows = 60\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent.parent), *sys.path])}
    run = subprocess.run(
        [sys.executable, "-c", KILLED, str(folder), "SIGKILL", "SIGTERM", "SIGINT"],
        capture_output=True, text=True, check=True, env=environment, timeout=120,
    )  # fmt: skip
    status = {name: int(code) for name, code in map(str.split, run.stdout.splitlines())}
    return folder, status, run.stderr


def test_killed_process_has_the_exit_code_of_its_signal(killed):
    _, status, complaints = killed
    assert os.WTERMSIG(status["SIGKILL"]) == signal.SIGKILL
    assert [os.waitstatus_to_exitcode(status[name]) for name in ("SIGTERM", "SIGINT")] == [130, 130]
    assert complaints == "fcal: stopped; the same command with --resume continues from the last checkpoint\n" * 2


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGINT"])
def test_killed_run_goes_on_and_equals_an_uninterrupted_one(killed, tmp_path, name):
    folder = killed[0]
    step = read_checkpoint(folder / name / "training" / "checkpoint.fcal")["fcal"]["record"]["step"]
    assert step == 6, "it was killed in its seventh step"
    assert main(["train", str(folder / "config.toml"), "--out", str(folder / name), "--resume"]) == 0
    assert main(["train", str(folder / "config.toml"), "--out", str(tmp_path / "whole")]) == 0
    for file in ("weights.safetensors", "config.toml", "training/history.csv"):
        assert (folder / name / file).read_bytes() == (tmp_path / "whole" / file).read_bytes(), file


# The process is killed just before, or just after, each of its files gets its name: between the first checkpoint and
# whatever follows it, too. A child per case; all of them share the imports.
KILLED_AT_FILES = """
import os, signal, sys
from pathlib import Path
from fcal.cli import main
from training import toys

toys.register()
folder, rename, names = sys.argv[1], Path.replace, []
assert main(["train", f"{folder}/config.toml", "--out", f"{folder}/whole", "--json"]) == 0  # imports everything, too

def numbered(path, target):
    names.append(Path(target).name)
    if len(names) == stop and moment == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    done = rename(path, target)
    if len(names) == stop:
        os.kill(os.getpid(), signal.SIGKILL)
    return done

Path.replace = numbered
for stop in range(1, int(sys.argv[2]) + 1):
    for moment in ("before", "after"):
        words = ["train", f"{folder}/config.toml", "--out", f"{folder}/{stop}-{moment}", "--json"]
        child = os.fork()
        if not child:
            os._exit(main(words))
        status = os.waitpid(child, 0)[1]
        if not status:
            raise SystemExit(0 if moment == "before" else 1)  # there are no more files
        assert os.WTERMSIG(status) == signal.SIGKILL, status
        child = os.fork()
        if not child:
            Path.replace = rename
            os._exit(main([*words, "--resume"]))
        print(stop, moment, os.waitpid(child, 0)[1], flush=True, file=sys.stderr)
"""


def files_of(folder: Path) -> set[Path]:
    """Files below a folder, except those of TensorBoard, whose names have the number of the process."""
    return {path.relative_to(folder) for path in folder.rglob("*") if "tfevents" not in path.name}


# The first files are the config, the first checkpoint and the next one; with all of them it takes minutes.
@pytest.mark.parametrize("files", [3, pytest.param(100, marks=pytest.mark.soak)])
@pytest.mark.timeout(900)
def test_run_killed_at_any_of_its_files_goes_on_and_leaves_nothing_half_written(tmp_path, files):
    config = toys.CONFIG.replace("epochs = 3", "epochs = 1")
    (tmp_path / "config.toml").write_text(
        f"{config}checkpoint_every_steps = 2\n[recalibration]\nmethod = 'temperature'\n"
    )
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent.parent), *sys.path]),
    }
    run = subprocess.run(
        [sys.executable, "-c", KILLED_AT_FILES, str(tmp_path), str(files)],
        capture_output=True, text=True, check=True, env=environment, timeout=800,
    )  # fmt: skip
    cases = [line.split() for line in run.stderr.splitlines()]
    # Config, checkpoints, history, weights, report, recalibrator and checksums, each before and after.
    assert len(cases) >= min(2 * files, 20)
    assert {status for _, _, status in cases} == {"0"}
    whole = tmp_path / "whole"
    for stop, moment, _ in cases:
        folder = tmp_path / f"{stop}-{moment}"
        assert files_of(folder) == files_of(whole), folder.name
        for name in ("weights.safetensors", "training/history.csv"):
            assert (folder / name).read_bytes() == (whole / name).read_bytes(), (folder.name, name)


def test_folder_with_a_training_of_an_earlier_version_is_refused(tmp_path):
    (tmp_path / "checkpoint.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ValueError, match=r"without a training of an earlier version, got its checkpoint\.json"):
        checkpoint_to_resume(tmp_path / "checkpoint.fcal", FitConfig(), None, None, resume=True)


def test_checkpoint_without_the_loops_of_lightning_is_refused(tmp_path):
    """With a checksum that fits: it would train past its end."""
    with pytest.raises(Interrupted):
        run(tmp_path, callbacks=[Interrupt(6, "train")])
    path = tmp_path / "checkpoint.fcal"
    checkpoint = read_checkpoint(path)
    CheckedIO().save_checkpoint({**checkpoint, "loops": None}, path)
    with pytest.raises(ValueError, match="a checkpoint, got one that is damaged: ValueError: it has no loops"):
        run(tmp_path, resume=True)
