"""``fcal train`` on KITTI's layout, as ``fcal data street`` writes it, with files that are damaged."""

import json
from pathlib import Path

import pytest
import torch
import torchvision

from fcal.cli import main

FRAMES = 100
CONFIG = """
[data]
name = "kitti-depth"

[data.options]
root = "{root}"
train_list = "{root}/eigen_train_files_with_gt.txt"
validation_list = "{root}/eigen_val_files_with_gt.txt"
test_list = "{root}/eigen_test_files_with_gt.txt"
size = [16, 52]
focal = 0.0
crop = ""
garg = false

[model]
name = "bts"
options = {{width = 8}}

[objective]
name = "nll"
task = "silog"
form = "additive"
lam = 0.1

[fit]
epochs = 1
batch_size = 1
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("streets")
    words = ["data", "street", "--layout", "kitti-depth", "--height", "16", "--width", "52", "--json"]
    assert main([*words, "--frames", str(FRAMES), "--out", str(folder / "kitti")]) == 0
    (folder / "depth.toml").write_text(CONFIG.format(root=folder / "kitti"))
    return folder


@pytest.fixture
def damaged():
    """Truncates a file until the end of the test."""
    whole = {}

    def damage(path: Path) -> Path:
        whole[path] = path.read_bytes()
        path.write_bytes(whole[path][: len(whole[path]) // 2])
        return path

    yield damage
    for path, content in whole.items():
        path.write_bytes(content)


def maps_of(tree: Path, split: str) -> list[Path]:
    lines = (tree / "kitti" / f"eigen_{split}_files_with_gt.txt").read_text().splitlines()
    return [next((tree / "kitti").glob(f"*/{line.split()[1]}")) for line in lines]


def test_one_truncated_file_of_a_hundred_frames_is_skipped_and_reported(tree, damaged, tmp_path, capsys):
    bad = damaged(maps_of(tree, "train")[7])
    assert main(["train", str(tree / "depth.toml"), "--out", str(tmp_path / "run"), "--json"]) == 0
    out = capsys.readouterr()
    report = json.loads(out.out)
    frame, batches = out.err.splitlines()
    assert frame.startswith(f"fcal: warning: skipped a frame: expected {bad} an image file that can be read, got: ")
    assert batches == "fcal: warning: skipped batches without a target that counts: 1 of 60 of training"
    assert (report["fit"]["step_count"], report["fit"]["skipped_batches"]) == (59, 1)
    assert report["fit"]["history"][0]["train/skipped"] == 1
    assert report["skipped"] == [frame.removeprefix("fcal: warning: skipped a frame: ")]
    assert json.loads((tmp_path / "run/report.json").read_text())["skipped"] == report["skipped"]


def test_more_than_one_percent_of_damaged_frames_is_one_line(tree, damaged, tmp_path, capsys):
    bad = [damaged(path) for path in maps_of(tree, "train")[10:12]]
    assert main(["train", str(tree / "depth.toml"), "--out", str(tmp_path / "run"), "--json"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len([line for line in lines if not line.startswith("fcal: warning: ")]) == 1
    first = "expected at most 1% unreadable frames, got 2 of 100, the first: expected"
    assert lines[-1].startswith(f"fcal: {first} {bad[0]} an image file")
    assert not (tmp_path / "run").exists()


def test_damaged_files_of_all_parts_count_together(tree, damaged, tmp_path, capsys):
    damaged(maps_of(tree, "val")[0])
    damaged(maps_of(tree, "test")[0])
    words = ["--set", "fit.batch_size=20", "--out", str(tmp_path / "run"), "--json"]
    assert main(["train", str(tree / "depth.toml"), *words]) == 2
    assert "got 2 of 100, the first: expected" in capsys.readouterr().err


def test_weights_of_another_encoder_are_one_line_with_the_file(tree, tmp_path, capsys):
    weights = tmp_path / "resnet.pth"
    torch.save(torchvision.models.resnet18(weights=None).state_dict(), weights)
    words = ["--set", f'model.options.weights="{weights}"', "--out", str(tmp_path / "run")]
    assert main(["train", str(tree / "depth.toml"), *words]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert f"expected {weights} of the encoder 'mobilenet_v2' with " in line
    assert not (tmp_path / "run").exists()


def test_run_of_another_encoder_to_start_from_is_one_line_with_the_file(tree, tmp_path, capsys):
    words = ["train", str(tree / "depth.toml"), "--set", "fit.batch_size=30", "--json", "--out"]
    assert main([*words, str(tmp_path / "first")]) == 0
    capsys.readouterr()
    other = ["--set", 'model.options.encoder="resnet18"', "--set", f'model.start_from="{tmp_path / "first"}"']
    assert main([*words, str(tmp_path / "run"), *other]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert f"expected {tmp_path / 'first/weights.safetensors'} with weights of this network, got " in line
    assert not (tmp_path / "run").exists()
