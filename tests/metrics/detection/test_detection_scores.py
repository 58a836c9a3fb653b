"""Tests of fcal.metrics.detection.detection_report: one pass over images in batches."""

import pytest
import torch
from metrics.detection.whole_image import random_scene

from fcal.metrics.detection import Detections, detection_report, detection_scores


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


def test_a_single_corner_with_a_variance_is_too_few_for_calibration_but_not_for_the_rest():
    scenes = [random_scene(i, 4, 3, labels=2, size=(40, 60), least=15) for i in range(3)]
    there = [scene[1] for scene in scenes]
    exact = [
        Detections.of_sigmas(truths.boxes, torch.zeros(3, 4), scores=torch.ones(3), labels=truths.labels)
        for truths in there
    ]
    sigmas = torch.zeros(3, 4)
    sigmas[0, 0] = 1.0
    one = Detections.of_sigmas(there[0].boxes, sigmas, scores=torch.ones(3), labels=there[0].labels)
    report = detection_report([one, *exact[1:]], there)
    assert report["calibration"] is None
    assert report["map"] == 1.0


@pytest.mark.parametrize("values", [None, [None, None, "a"], "abc", [5.0, 0.0, 0.0], [1j, 0, 0]])
def test_attributes_that_are_no_share_are_refused_by_name(values):
    found, there = random_scene(0, 4, 3, labels=2, size=(40, 60), least=15)[:2]
    with pytest.raises((TypeError, ValueError), match="truncation"):
        detection_report([found], [there], attributes=[{"truncation": values}])
