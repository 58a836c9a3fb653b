"""Tests of kitti_average_precision, against the benchmark's rules in plain loops, and by known answers."""

import time

import numpy as np
import pytest
import torch
from metrics.detection.random_images import SIZE
from metrics.detection.test_matching import area, iou, shared_area
from numpy.testing import assert_allclose

from fcal.metrics.detection import Detections, Truths, kitti_average_precision

CLASSES = ("Car", "Pedestrian", "Cyclist", "Van", "Person_sitting")
NEIGHBOUR = {"Car": "Van", "Pedestrian": "Person_sitting"}
LIMITS = {"easy": (40, 0, 0.15), "moderate": (25, 1, 0.3), "hard": (25, 2, 0.5)}
LEAST = {"Car": 0.7, "Pedestrian": 0.5, "Cyclist": 0.5}


def roles(found, there, attributes, name, limits):
    """0: counts; 1: neither counts nor is a mistake; None: does not matter. Of objects, then of detections."""
    height, occlusion, truncation = limits
    of_objects, of_detections = [], []
    for t in range(len(there)):
        label = int(there.labels[t])
        kind = CLASSES[label - 1] if label else "DontCare"
        hard = (
            float(there.boxes[t, 3] - there.boxes[t, 1]) < height
            or float(attributes["occlusion"][t]) > occlusion
            or round(float(attributes["truncation"][t]), 6) > truncation
        )
        if kind == name and not hard and not there.is_ignored[t]:
            of_objects.append(0)
        else:
            of_objects.append(1 if kind in (name, NEIGHBOUR.get(name)) else None)
    for d in range(len(found)):
        if float(found.boxes[d, 3] - found.boxes[d, 1]) < height:
            of_detections.append(1)
        else:
            of_detections.append(0 if CLASSES[int(found.labels[d]) - 1] == name else None)
    return of_objects, of_detections


def choices(found, there, of_objects, of_detections, least, threshold):
    """Detection of each object that matters; without a threshold by score, otherwise by overlap."""
    taken, chosen = set(), {}
    scores, boxes, targets = (
        found.scores.double().tolist(),
        found.boxes.double().tolist(),
        there.boxes.double().tolist(),
    )
    for t, target in enumerate(targets):
        if of_objects[t] is None:
            continue
        free = [
            d
            for d, box in enumerate(boxes)
            if of_detections[d] is not None
            and d not in taken
            and (threshold is None or scores[d] >= threshold)
            and iou(box, target) > least
        ]
        if not free:
            continue
        if threshold is None:
            best = max(free, key=lambda d: scores[d])
        else:
            counted = [d for d in free if of_detections[d] == 0]
            best = max(counted, key=lambda d: iou(boxes[d], target)) if counted else free[0]
        taken.add(best)
        chosen[t] = best
    return chosen


def plain_thresholds(scores, count):
    scores, thresholds, recall = sorted(scores, reverse=True), [], 0.0
    for i, score in enumerate(scores):
        left = (i + 1) / count
        right = (i + 2) / count if i < len(scores) - 1 else left
        if right - recall < recall - left and i < len(scores) - 1:
            continue
        thresholds.append(score)
        recall += 1 / 40
    return thresholds


def plain_precision(images, name, kind):
    """Precision at 41 points, and the number of objects that count."""
    prepared = [(found, there, *roles(found, there, extra, name, LIMITS[kind])) for found, there, extra in images]
    count = sum(of_objects.count(0) for _, _, of_objects, _ in prepared)
    scores = []
    for found, there, of_objects, of_detections in prepared:
        for t, d in choices(found, there, of_objects, of_detections, LEAST[name], None).items():
            if of_objects[t] == 0 and of_detections[d] == 0:
                scores.append(float(found.scores[d].double()))
    precision = [0.0] * 41
    for k, threshold in enumerate(plain_thresholds(scores, count)):
        hits = mistakes = 0
        for found, there, of_objects, of_detections in prepared:
            chosen = choices(found, there, of_objects, of_detections, LEAST[name], threshold)
            hits += sum(of_objects[t] == 0 and of_detections[d] == 0 for t, d in chosen.items())
            for d in range(len(found)):
                box = found.boxes[d].double().tolist()
                if of_detections[d] != 0 or d in chosen.values() or float(found.scores[d].double()) < threshold:
                    continue
                covered = any(
                    int(there.labels[t]) == 0
                    and shared_area(box, there.boxes[t].double().tolist()) / area(box) > LEAST[name]
                    for t in range(len(there))
                )
                mistakes += not covered
        precision[k] = hits / (hits + mistakes)
    return [max(precision[k:]) for k in range(41)], count


def kitti_image(generator, objects, copies, noise):
    """Objects of five classes and DontCare regions with attributes; detections of all but regions."""
    sides = torch.stack([15 + 45 * torch.rand(objects, generator=generator) for _ in range(2)], 1)
    start = torch.rand(objects, 2, generator=generator) * (torch.tensor([SIZE[1], SIZE[0]]) - sides)
    boxes = torch.cat([start, start + sides], 1)
    labels = torch.tensor([1, 1, 1, 2, 2, 3, 4, 5, 0])[torch.randint(9, (objects,), generator=generator)]
    attributes = {
        "truncation": torch.tensor([0.0, 0.0, 0.15, 0.2, 0.4, 0.8])[torch.randint(6, (objects,), generator=generator)],
        "occlusion": torch.randint(4, (objects,), generator=generator)
        % 4
        // 2
        * torch.randint(4, (objects,), generator=generator),
    }
    found = boxes.repeat(copies, 1) + noise * torch.randn(objects * copies, 4, generator=generator)
    found[:, 2:] = torch.maximum(found[:, 2:], found[:, :2] + 5)
    guesses = torch.where(torch.rand(len(found), generator=generator) < 0.9, labels.repeat(copies), 1).clamp(min=1)
    scores = (torch.rand(len(found), generator=generator) * 50).round() / 50
    detections = Detections.of_sigmas(found, torch.ones_like(found), scores=scores, labels=guesses)
    ignored = (labels == 0) | (torch.rand(objects, generator=generator) < 0.05)
    return detections, Truths(boxes=boxes, labels=labels, image_size=SIZE, ignored=ignored), attributes


def kitti_images(count, seed=0, copies=2, noise=2.0):
    generator = torch.Generator().manual_seed(seed)
    return [kitti_image(generator, number % 9, copies, noise) for number in range(count)]


@pytest.mark.parametrize("seed", [0, 1])
def test_kitti_precision_is_that_of_plain_loops(seed):
    images = kitti_images(90, seed)
    detections, truths, attributes = zip(*images, strict=True)
    report = kitti_average_precision(detections, truths, attributes=attributes, classes=CLASSES)
    values = []
    for name in ("Car", "Pedestrian", "Cyclist"):
        for kind in LIMITS:
            precision, count = plain_precision(images, name, kind)
            assert report.truths[name][kind] == count > 2
            assert_allclose(report.precision[name][kind], precision, rtol=1e-12, err_msg=f"{name} {kind}")
            assert_allclose(report.ap[name][kind], np.mean(precision[1:]), rtol=1e-12)
            values.append(report.ap[name][kind])
    assert 0.05 < values[1] < 0.95
    assert len(set(values)) > 6


def cars(scores, *, boxes=None, label=1):
    """One image with a car at (10, 10, 60, 60) and detections of it, or of other boxes."""
    there = torch.tensor([[10.0, 10.0, 60.0, 60.0]])
    found = there.repeat(len(scores), 1) if boxes is None else torch.tensor(boxes)
    detections = Detections.of_sigmas(
        found, torch.ones_like(found), scores=torch.tensor(scores), labels=torch.full((len(scores),), label)
    )
    return detections, Truths(boxes=there, labels=torch.tensor([1]), image_size=SIZE)


def ap_of(images, **options):
    detections, truths = zip(*images, strict=True)
    return kitti_average_precision(detections, truths, **options).ap["Car"]


def test_kitti_precision_of_perfect_detections_is_one_and_of_none_zero():
    perfect = [cars([0.01 * k + 0.1]) for k in range(60)]
    assert_allclose(list(ap_of(perfect).values()), 1.0)
    assert list(ap_of([cars([])] * 3).values()) == [0.0, 0.0, 0.0]


def test_kitti_precision_of_ten_objects_ends_at_the_tenth_recall_point():
    assert_allclose(ap_of([cars([0.05 * k + 0.1]) for k in range(10)])["hard"], 9 / 40)


def test_kitti_precision_of_twice_detected_objects_is_a_half():
    """The second detection of each is a mistake, at every threshold that takes both."""
    assert_allclose(ap_of([cars([0.9, 0.9]) for _ in range(80)])["easy"], 0.5)


def test_kitti_precision_without_objects_that_count_is_none():
    images = [cars([0.9])] * 3
    detections, truths = zip(*images, strict=True)
    hidden = [{"occlusion": [3.0]}] * 3
    report = kitti_average_precision(detections, truths, attributes=hidden)
    assert report.ap["Car"] == {"easy": None, "moderate": None, "hard": None}
    assert report.truths["Car"]["hard"] == 0
    assert report.ap["Cyclist"]["easy"] is None


def test_kitti_precision_takes_a_truncation_of_float32_at_its_limit():
    images = [cars([0.01 * k + 0.1]) for k in range(60)]
    detections, truths = zip(*images, strict=True)
    report = kitti_average_precision(detections, truths, attributes=[{"truncation": torch.tensor([0.15])}] * 60)
    assert report.truths["Car"]["easy"] == 60


def test_kitti_precision_forgives_detections_in_regions_without_labels():
    found, there = cars([0.5, 0.9], boxes=[[10.0, 10.0, 60.0, 60.0], [100.0, 10.0, 150.0, 60.0]])
    region = Truths(
        boxes=torch.cat([there.boxes, torch.tensor([[95.0, 0.0, 199.0, 99.0]])]),
        labels=torch.tensor([1, 0]),
        image_size=SIZE,
        ignored=torch.tensor([False, True]),
    )
    assert_allclose(ap_of([(found, region)] * 60)["easy"], 1.0)
    assert_allclose(ap_of([(found, there)] * 60)["easy"], 0.5)


def test_kitti_precision_of_no_images_is_none():
    assert kitti_average_precision([], []).ap["Car"]["easy"] is None


def test_kitti_precision_of_a_thousand_images_takes_seconds():
    """A guard against loops over objects: the bound is ten times what it takes."""
    images = kitti_images(1000, copies=8)
    detections, truths, attributes = zip(*images, strict=True)
    start = time.perf_counter()
    kitti_average_precision(detections, truths, attributes=attributes, classes=CLASSES)
    assert time.perf_counter() - start < 10


def test_kitti_precision_rejects_classes_it_does_not_know():
    with pytest.raises(ValueError, match="expected `classes` with one of Car, Pedestrian, Cyclist, got RBC, WBC"):
        kitti_average_precision([], [], classes=("RBC", "WBC"))
    with pytest.raises(ValueError, match=r"expected `overlaps\['Car'\]` within \[0, 1\], got 70"):
        kitti_average_precision([], [], overlaps={"Car": 70})
