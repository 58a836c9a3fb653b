"""``fcal data street`` as users type it."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from PIL import Image

from fcal.cli import main

SMALL = ["--frames", "5", "--height", "16", "--width", "52"]


@pytest.mark.parametrize("layout", ["kitti-depth", "kitti-object", "cityscapes"])
def test_command_writes_the_files_that_it_counts(layout, tmp_path, capsys):
    folder = tmp_path / "streets"
    assert main(["data", "street", "--out", str(folder), "--layout", layout, *SMALL]) == 0
    out = capsys.readouterr()
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert out.out == ""
    assert out.err == f"5 frames of 5 streets, 16 x 52: {len(files)} files in {folder} (5 frames rendered)\n"
    images = [
        path for path in files if "image_02/data" in str(path) or "image_2" in str(path) or "leftImg" in path.name
    ]
    assert len(images) == 5
    with Image.open(images[0]) as image:
        assert image.size == (52, 16)


def test_json_is_one_document_and_nothing_else(tmp_path, capsys):
    words = ["data", "street", "--out", str(tmp_path), *SMALL, "--seed", "3", "--density", "0.1", "--json"]
    assert main(words) == 0
    out = capsys.readouterr()
    document = json.loads(out.out)
    assert out.err == ""
    assert document["rendered"] == document["frames"] == 5
    assert document["config"]["seed"] == 3
    assert document["config"]["lidar"]["density"] == 0.1
    assert document["command"] == f"fcal {' '.join(words)}"


def test_frames_per_drive_default_leaves_drives_for_all_splits(tmp_path, capsys):
    assert main(["data", "street", "--out", str(tmp_path), "--frames", "11", *SMALL[2:], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["config"]["frames_per_drive"] == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--layout", "coco"],
            "fcal: expected `layout` one of 'kitti-depth', 'kitti-object', 'cityscapes', got 'coco'",
        ),
        (["--frames", "0"], "fcal: expected `frames` >= 1, got 0"),
        (["--frames", "2"], "fcal: expected `frames` of at least 3 drives"),
        (["--width", "4"], "fcal: expected `width` >= 8, got 4"),
        (["--density", "2"], "fcal: expected `density` within [0.001, 1], got 2.0"),
        (["--out", ""], "fcal: expected `--out` the name of a folder, got ''"),
    ],
)
def test_bad_input_is_one_line(words, message, tmp_path, capsys):
    assert main(["data", "street", "--out", str(tmp_path / "new"), *SMALL, *words]) == 2
    out = capsys.readouterr()
    assert out.err.startswith(message)
    assert out.err.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_killed_run_leaves_whole_files_and_is_completed(tmp_path):
    words = [sys.executable, "-m", "fcal", "data", "street", "--out", str(tmp_path), "--frames", "60", *SMALL[2:]]
    run = subprocess.Popen(words, stderr=subprocess.PIPE, env=os.environ)
    while len(list(tmp_path.rglob("image_02/data/0*.png"))) < 3 and run.poll() is None:
        time.sleep(0.02)
    run.send_signal(signal.SIGKILL)
    run.wait()
    run.stderr.close()
    images = [path for path in tmp_path.rglob("*.png") if not path.name.startswith(".")]
    assert 0 < len(images) < 300
    for path in images:
        with Image.open(path) as image:
            image.load()
    assert not list(tmp_path.glob("eigen*"))
    again = subprocess.run([*words, "--json"], capture_output=True, text=True, check=True)
    document = json.loads(again.stdout)
    assert document["rendered"] < 60
    assert document["files"] == sum(path.is_file() for path in tmp_path.rglob("*"))


def test_resumed_run_removes_its_own_unfinished_files_alone(tmp_path):
    words = ["data", "street", "--out", str(tmp_path), *SMALL, "--json"]
    assert main(words) == 0
    frame = next(tmp_path.rglob("image_02/data/*.png"))
    unfinished = [frame.with_name(f".{frame.stem}.fcal-a1b2c3d4.png"), tmp_path / ".street.fcal-a1b2c3d4.toml"]
    others = [tmp_path / ".pre-commit-config.yaml", frame.with_name(".my-notes.png")]
    (tmp_path / ".a-folder").mkdir()
    for path in (*unfinished, *others):
        path.write_bytes(b"")
    assert main(words) == 0
    assert not any(path.exists() for path in unfinished)
    assert all(path.exists() for path in others)
