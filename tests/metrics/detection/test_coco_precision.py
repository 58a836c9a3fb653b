"""Tests of average_precision, against a plain loop over COCO's rules and by known answers."""

import numpy as np
import pytest
import torch
from metrics.detection.random_images import SIZE, random_images
from metrics.detection.test_matching import area, image, iou, shared_area
from numpy.testing import assert_allclose

from fcal.metrics.detection import Detections, Truths, average_precision


def plain_ap(detections, truths, label, threshold, limit=100):
    """Greedy matches at one overlap, then the mean over 101 recall points of the precision at or beyond each."""
    outcomes, objects = [], 0
    for found, there in zip(detections, truths, strict=True):
        boxes, targets = found.boxes.double().tolist(), there.boxes.double().tolist()
        ours = [d for d in range(len(boxes)) if int(found.labels[d]) == label]
        ours = sorted(ours, key=lambda d: -float(found.scores[d]))[:limit]
        objects += sum(int(there.labels[t]) == label and not there.is_ignored[t] for t in range(len(targets)))
        taken = set()
        for d in ours:
            candidates = [
                (iou(boxes[d], targets[t]), t)
                for t in range(len(targets))
                if int(there.labels[t]) == label and not there.is_ignored[t] and t not in taken
            ]
            best = max(candidates, default=(0.0, None))
            if best[0] >= threshold:
                taken.add(best[1])
                outcomes.append((float(found.scores[d]), True))
                continue
            on_crowd = any(
                there.is_ignored[t]
                and int(there.labels[t]) in (label, 0)
                and shared_area(boxes[d], targets[t]) / area(boxes[d]) >= threshold
                for t in range(len(targets))
            )
            if not on_crowd:
                outcomes.append((float(found.scores[d]), False))
    if objects == 0:
        return None
    hits = np.array([hit for _, hit in sorted(outcomes, key=lambda pair: -pair[0])])
    if not len(hits):
        return 0.0
    recall, precision = hits.cumsum() / objects, hits.cumsum() / np.arange(1, len(hits) + 1)
    return np.mean([precision[recall >= r].max(initial=0.0) for r in np.linspace(0, 1, 101)])


def plain_map(detections, truths, labels, thresholds):
    values = [plain_ap(detections, truths, label, t) for label in labels for t in thresholds]
    return np.mean([value for value in values if value is not None])


def test_average_precision_is_that_of_a_plain_loop():
    detections, truths = random_images(40, copies=3, noise=3.0, classes=3, ignored=0.2)
    report = average_precision(detections, truths)
    overlaps = np.linspace(0.5, 0.95, 10)
    assert_allclose(report.map, plain_map(detections, truths, (1, 2, 3), overlaps), rtol=1e-9)
    assert_allclose(report.ap50, plain_map(detections, truths, (1, 2, 3), [0.5]), rtol=1e-9)
    assert_allclose(report.ap75, plain_map(detections, truths, (1, 2, 3), [0.75]), rtol=1e-9)
    assert 0.05 < report.ap75 < report.ap50 < 0.9
    for label in (1, 2, 3):
        assert_allclose(report.per_class[f"class {label}"]["ap50"], plain_ap(detections, truths, label, 0.5), rtol=1e-9)


def test_average_precision_of_regions_without_class_forgives_all_classes():
    boxes = [[10.0, 10.0, 50.0, 50.0], [100.0, 10.0, 140.0, 50.0], [101.0, 10.0, 141.0, 50.0]]
    there = [[10.0, 10.0, 50.0, 50.0], [90.0, 0.0, 199.0, 99.0], [10.0, 60.0, 40.0, 90.0]]
    for label, expected in ((0, 1.0), (3, 0.5)):
        found, objects = image(
            boxes,
            there,
            scores=[0.5, 0.9, 0.4],
            labels=[1, 1, 2],
            truth_labels=[1, label, 2],
            ignored=[False, True, False],
        )
        report = average_precision([found], [objects])
        assert_allclose(report.per_class["class 1"]["ap50"], expected)
        assert report.per_class["class 2"]["ap50"] == 0.0


def test_average_precision_counts_detections_of_empty_images_as_mistakes():
    box = [[10.0, 10.0, 50.0, 50.0]]
    found, there = image(box, box, scores=[0.5])
    nothing = image(box, [], scores=[0.9])
    report = average_precision([found, nothing[0]], [there, nothing[1]])
    assert (report.images, report.detections, report.truths) == (2, 2, 1)
    assert_allclose(report.ap50, 0.5)


def test_average_precision_without_detections_is_zero_and_without_objects_none():
    box = [[10.0, 10.0, 50.0, 50.0]]
    blind, empty = image([], box), image(box, [])
    report = average_precision(*([side] for side in blind))
    assert (report.map, report.ap50, report.per_class["class 1"]["ap75"]) == (0.0, 0.0, 0.0)
    report = average_precision(*([side] for side in empty))
    assert (report.map, report.ap50, report.ap75, dict(report.per_class)) == (None, None, None, {})
    assert average_precision([], []).map is None


def test_average_precision_counts_only_so_many_detections_of_an_image():
    boxes = [[10.0, 10.0, 50.0, 50.0], [100.0, 10.0, 140.0, 50.0]]
    found, there = image(boxes, boxes, scores=[0.9, 0.8])
    assert_allclose(average_precision([found], [there], max_detections=1).ap50, 51 / 101)
    assert_allclose(average_precision([found], [there]).ap50, 1.0)


def test_average_precision_prints_nothing(capsys):
    average_precision(*random_images(3), classes=("car", "cyclist"))
    assert capsys.readouterr() == ("", "")


def test_average_precision_takes_streams():
    detections, truths = random_images(10)
    assert average_precision(iter(detections), iter(truths)) == average_precision(detections, truths)


def test_average_precision_rejects_different_numbers_of_images():
    detections, truths = random_images(4)
    with pytest.raises(ValueError, match="expected `truths` of as many images as the others, got 3"):
        average_precision(detections, truths[:3])
    with pytest.raises(ValueError, match="expected `max_detections` >= 1, got 0"):
        average_precision(detections, truths, max_detections=0)


def test_average_precision_does_not_need_error_bars():
    there = Truths(boxes=torch.tensor([[10.0, 10.0, 50.0, 50.0]]), labels=torch.tensor([1]), image_size=SIZE)
    output = {"boxes": there.boxes, "scores": torch.tensor([0.9]), "labels": there.labels}
    assert_allclose(average_precision([Detections.from_output(output)], [there]).map, 1.0)
