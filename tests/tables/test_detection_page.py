"""The blocks of docs/detection.md: examples of files are read, and Python runs and writes what the page says."""

import json
import re
from pathlib import Path

import pytest
import torch

from fcal.tables import read_coco_results, read_coco_truths, read_rvc1

PAGE = (Path(__file__).parents[2] / "docs" / "detection.md").read_text(encoding="utf-8")
COCO = {
    "images": [{"id": number, "height": 80, "width": 100} for number in (2, 1)],
    "categories": [{"id": 1, "name": "car"}, {"id": 3, "name": "person"}],
    "annotations": [],
}


def blocks(kind):
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def truths(tmp_path):
    (tmp_path / "coco.json").write_text(json.dumps(COCO))
    return read_coco_truths(tmp_path / "coco.json")


def test_both_examples_of_files_hold_the_same_detection(tmp_path, truths):
    for name, block in zip(("rvc1.json", "results.json"), blocks("json"), strict=True):
        (tmp_path / name).write_text(block)
    one, other = read_rvc1(tmp_path / "rvc1.json", truths), read_coco_results(tmp_path / "results.json", truths)
    assert [len(image) for image in one] == [len(image) for image in other] == [1, 0]
    for name in ("boxes", "covariances", "scores", "labels"):
        torch.testing.assert_close(getattr(one[0], name), getattr(other[0], name))
    assert one[0].boxes.tolist() == [[20.0, 21.5, 60.0, 50.0]]
    assert one[0].covariances[0, :2, :2].tolist() == [[4.0, 0.5], [0.5, 1.0]]


def test_python_runs_and_writes_files_that_are_read_again(tmp_path, truths, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    assert len(blocks("python")) == 2
    for block in blocks("python"):
        exec(block, names)
    assert capsys.readouterr().out == "over-confident 2.0\n100 True\n"
    for read in (read_rvc1("rvc1.json", truths), read_coco_results("results.json", truths)):
        assert [len(image) for image in read] == [1, 0]
        torch.testing.assert_close(read[0].sigmas, torch.tensor([[2.0, 1.0, 2.0, 1.4]]).double())
        assert read[0].labels.tolist() == [1]
