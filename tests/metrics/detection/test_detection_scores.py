"""Tests of fcal.metrics.detection.detection_report: one pass over images in batches."""

import torch
from metrics.detection.whole_image import random_scene

from fcal.metrics.detection import detection_report, detection_scores


def test_scores_do_not_depend_on_how_masks_split_images_into_batches(monkeypatch):
    scenes = [random_scene(i, 4, 3, labels=2, size=(40, 60), least=15, masks=True) for i in range(5)]
    found, there = ([scene[k] for scene in scenes] for k in (0, 1))
    whole: list[int] = []
    expected = detection_report(found, there, on_images=whole.append)
    monkeypatch.setattr(detection_scores, "_MOST_MASKS", 3 * 40 * 60 + 1)
    batches: list[int] = []
    report = detection_report(found, there, on_images=batches.append)
    assert (whole, batches) == ([5], [2, 2, 1])
    assert report["true_positives"] > 0
    torch.testing.assert_close(report["pdq"], expected["pdq"])
    assert {name: report[name] for name in ("map", "mmap", "ece_q")} == {
        name: expected[name] for name in ("map", "mmap", "ece_q")
    }
