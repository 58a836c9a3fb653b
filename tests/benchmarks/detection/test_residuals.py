"""Boxes of a detector and what was there: reading, splitting, and a whole run."""

import json
import re

import numpy as np
import pytest
import torch

from fcal.benchmarks.detection.residuals import CornerNetwork, ResidualTrainings, read_matches, split_of_frames
from fcal.cli import main

HEADER = "split,frame,score,px1,py1,px2,py2,gx1,gy1,gx2,gy2,iou"


def write(folder, frames=60, seed=0):
    """Matches whose errors are a tenth of the box's sides."""
    generator, lines = np.random.default_rng(seed), [HEADER]
    for frame in range(frames):
        for _ in range(3):
            x, y, w, h = generator.uniform([0, 100, 20, 20], [1000, 200, 200, 100])
            box = np.array([x, y, x + w, y + h])
            there = box + 0.1 * np.array([w, h, w, h]) * generator.standard_normal(4)
            score, split = generator.uniform(0.2, 1), "val" if frame % 6 else "train"
            lines.append(
                ",".join([split, f"{frame:06d}", f"{score:.4f}", *(f"{v:.2f}" for v in (*box, *there)), "0.7"])
            )
    (folder / "car_matches.csv").write_text("\n".join(lines) + "\n")
    return folder


def test_matches_are_those_of_frames_that_the_detector_has_not_seen(tmp_path):
    path = write(tmp_path) / "car_matches.csv"
    matches = read_matches(str(path))
    rows = [line.split(",") for line in path.read_text().splitlines()[1:] if line.startswith("val")]
    np.testing.assert_allclose(matches.inputs, np.array([row[2:7] for row in rows], dtype=float), rtol=1e-6)
    corners = np.array([row[3:11] for row in rows], dtype=float)
    np.testing.assert_allclose(matches.residuals, corners[:, 4:] - corners[:, :4], rtol=1e-4, atol=1e-3)
    assert matches.frame.tolist() == [int(row[1]) for row in rows]


def test_frames_stay_together_and_every_row_is_used_once():
    frame = torch.randint(0, 50, (400,), generator=torch.Generator().manual_seed(0))
    masks = split_of_frames(frame, seed=1)
    assert torch.equal(torch.stack(masks).sum(0), torch.ones(400, dtype=torch.int64))
    parts = [set(frame[mask].tolist()) for mask in masks]
    assert sum(map(len, parts)) == len(set.union(*parts))


def test_network_scales_its_errors_with_the_box():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = CornerNetwork()
    small = torch.tensor([[0.9, 100.0, 100.0, 140.0, 120.0]])
    sides = network(small).stddev.detach() / torch.tensor([[40.0, 20.0, 40.0, 20.0]])
    assert float(sides.max() / sides.min()) < 2  # before training, about the same share of the sides


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("frame,score\n", f"with the header {HEADER}, got 'frame,score'"),
        (f"{HEADER}\nval,000001,0.5,1,2,3\n", "car_matches.csv"),
        (f"{HEADER}\nval,000001,high,1,2,3,4,1,2,3,4,0.9\n", "could not convert string 'high'"),
    ],
)
def test_other_files_are_refused_by_name(tmp_path, text, message):
    (tmp_path / "car_matches.csv").write_text(text)
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        ResidualTrainings(str(tmp_path)).matches()
    assert "car_matches.csv" in str(caught.value)


def test_run_on_a_file_of_matches(tmp_path):
    folder = write(tmp_path, frames=240)
    words = ["--data", str(folder), "--methods", "nll,temperature,oob_auto", "--seeds", "1", "--workers", "1"]
    assert main(["benchmark", "detection", "--preset", "residuals", *words, "--out", str(tmp_path / "out")]) == 0
    (table,) = json.loads((tmp_path / "out/results.json").read_text())["tables"]
    assert "map" not in table["columns"]
    assert table["boxes"] == {"train": 360, "validation": 120, "test": 120}
    for name in ("nll", "temperature", "oob_auto"):
        # 480 residuals, and what the network learns wrongly from 360 boxes
        assert table["rows"][name]["coverage"]["mean"] == pytest.approx(0.9, abs=0.08), name
