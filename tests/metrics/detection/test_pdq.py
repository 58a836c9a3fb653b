"""Tests of fcal.metrics.detection.pdq."""

import re

import numpy as np
import pytest
import torch
from metrics.detection.whole_image import best_sum, random_scene, spatial_quality
from numpy.testing import assert_allclose

from fcal.metrics.detection import Detections, Truths, detection_quality
from fcal.metrics.detection.pdq import label_quality

ONE = torch.ones(1, dtype=torch.int64)


def found(boxes, sigma=1.0, *, scores=None, labels=None, **rest):
    boxes = torch.tensor(boxes, dtype=torch.float64).reshape(-1, 4)
    n = len(boxes)
    scores = torch.ones(n) if scores is None else torch.tensor(scores)
    labels = torch.ones(n, dtype=torch.int64) if labels is None else torch.tensor(labels)
    return Detections.of_sigmas(boxes, torch.full((n, 4), sigma).double(), scores=scores, labels=labels, **rest)


def there(boxes, labels=None, **rest):
    boxes = torch.tensor(boxes, dtype=torch.float64).reshape(-1, 4)
    labels = torch.ones(len(boxes), dtype=torch.int64) if labels is None else torch.tensor(labels)
    return Truths(boxes=boxes, labels=labels, image_size=(40, 60), **rest)


BOX, OTHER = [4.0, 5.0, 20.0, 15.0], [30.0, 20.0, 50.0, 35.0]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("shape", [(3, 2), (2, 3)])
def test_pdq_is_the_largest_sum_over_all_assignments(seed, shape):
    detected, objects = random_scene(seed, *shape, labels=2)
    size = objects.image_size
    spatial = np.array(
        [
            [spatial_quality(b, c, t, size) for t in objects.boxes.numpy()]
            for b, c in zip(detected.boxes.numpy(), detected.covariances.numpy(), strict=True)
        ]
    )
    same = detected.labels.numpy()[:, None] == objects.labels.numpy()
    quality = np.sqrt(np.where(spatial > 1e-8, spatial, 0) * detected.scores.numpy()[:, None] * same)
    report = detection_quality([detected], [objects])
    every = report.true_positives + report.false_positives + report.false_negatives
    assert_allclose(report.pdq * every, best_sum(quality), atol=1e-8)
    assert report.true_positives + report.false_positives == len(detected)
    assert report.true_positives + report.false_negatives == len(objects)


def test_parts_are_means_over_true_positives():
    report = detection_quality([found([BOX, OTHER], 0.0, scores=[0.25, 0.5])], [there([BOX, OTHER])])
    assert_allclose([report.pdq_spatial, report.pdq_foreground, report.pdq_background], 1.0, atol=1e-9)
    assert_allclose(report.pdq_label, 0.375, rtol=1e-9)
    assert_allclose(report.pdq, (np.sqrt(0.25) + np.sqrt(0.5)) / 2, rtol=1e-9)


def test_false_positives_and_false_negatives_divide_the_quality():
    report = detection_quality([found([BOX, [40.0, 2.0, 50.0, 9.0]], 0.0)], [there([BOX, OTHER])])
    assert (report.true_positives, report.false_positives, report.false_negatives) == (1, 1, 1)
    assert_allclose(report.pdq, 1 / 3, atol=1e-9)


def test_empty_images_count():
    nothing = found([])
    report = detection_quality([nothing, found([BOX], 0.0), nothing], [there([BOX]), there([]), there([])])
    assert (report.true_positives, report.false_positives, report.false_negatives, report.images) == (0, 1, 1, 3)
    assert report.pdq == 0
    assert report.pdq_spatial is None


def test_pdq_of_nothing_is_undefined():
    report = detection_quality([found([])], [there([])])
    assert report.pdq is None
    assert report.as_dict()["pdq"] is None


def test_pairs_of_numerically_zero_quality_do_not_count():
    # missed pixels are at the floor: of 16 columns 10, (1e-14) ** (10 / 16) is 2e-9, or 8, 1e-7
    short = [BOX[0], BOX[1], BOX[0] + 6, BOX[3]]
    near = [BOX[0], BOX[1], BOX[0] + 8, BOX[3]]
    for box, counted in ((short, 0), (near, 1)):
        report = detection_quality([found([box], 0.0)], [there([BOX])])
        assert report.true_positives == counted
        assert report.false_positives == report.false_negatives == 1 - counted


def test_a_detection_of_another_class_does_not_count():
    report = detection_quality([found([BOX], labels=[2])], [there([BOX])])
    assert (report.true_positives, report.false_positives, report.false_negatives) == (0, 1, 1)


def test_label_quality_is_the_probability_of_the_true_class():
    probabilities = torch.tensor([[0.1, 0.2, 0.7], [0.5, 0.4, 0.1]])
    detected = found([BOX, BOX], labels=[2, 1], scores=[0.7, 0.4], label_probs=probabilities)
    expected = [[0.2, 0.7, 0.0], [0.4, 0.1, 0.0]]  # class 7 is unknown to the detector
    assert_allclose(label_quality(detected, there([BOX, BOX, BOX], [1, 2, 7])).numpy(), expected, rtol=1e-6)


def test_ignored_truths_are_neither_missed_nor_mistakes():
    ignored = torch.tensor([False, True])
    for boxes, counts in (
        ([BOX], (1, 0, 0, 0)),
        ([BOX, OTHER], (1, 0, 0, 1)),
        ([BOX, OTHER, OTHER], (1, 0, 0, 2)),
        ([BOX, [44.0, 20.0, 60.0, 35.0]], (1, 1, 0, 0)),  # less than half of it lies on the ignored truth
    ):
        report = detection_quality([found(boxes, 0.0)], [there([BOX, OTHER], ignored=ignored)])
        numbers = (report.true_positives, report.false_positives, report.false_negatives, report.ignored_detections)
        assert numbers == counts


@pytest.mark.parametrize(("label", "ignored"), [(0, 1), (1, 1), (2, 0)])
def test_ignored_truths_take_detections_of_their_class_or_if_of_none_of_all(label, ignored):
    objects = there([OTHER], [label], ignored=torch.tensor([True]))
    report = detection_quality([found([OTHER])], [objects])
    assert (report.ignored_detections, report.false_positives) == (ignored, 1 - ignored)


def test_a_detection_goes_to_a_truth_that_counts_rather_than_to_an_ignored_one():
    objects = there([BOX, [4.0, 5.0, 20.0, 16.0]], ignored=torch.tensor([True, False]))
    report = detection_quality([found([BOX])], [objects])
    assert (report.true_positives, report.ignored_detections) == (1, 0)


def test_masks_of_truths_that_count_stay_with_them():
    masks = torch.zeros(2, 40, 60, dtype=torch.bool)
    masks[0, 20:35, 30:50], masks[1, 5:15, 4:12] = True, True
    objects = there([OTHER, BOX], masks=masks, ignored=torch.tensor([True, False]))
    alone = there([BOX], masks=masks[1:])
    assert detection_quality([found([BOX])], [objects]).pdq == detection_quality([found([BOX])], [alone]).pdq


@pytest.mark.parametrize("temperature", [10.0, 3.0])
def test_mask_free_quality_is_that_of_the_mahalanobis_distance(temperature):
    detected, objects = random_scene(3, 1, 1, correlated=True)
    residual = (objects.boxes - detected.boxes)[0].numpy()
    distance = residual @ np.linalg.solve(detected.covariances[0].numpy(), residual)
    report = detection_quality([detected], [objects], spatial="mahalanobis", temperature=temperature)
    assert_allclose(report.pdq_spatial, np.exp(-distance / temperature), rtol=1e-9)
    assert report.pdq_foreground is None


def test_mask_free_quality_of_a_box_without_variance_is_one_or_nothing():
    for shift, expected in ((0.0, 1), (1e-3, 0)):
        box = [BOX[0] + shift, *BOX[1:]]
        report = detection_quality([found([box], 0.0)], [there([BOX])], spatial="mahalanobis")
        assert report.true_positives == expected


def test_singular_covariances_have_a_distance():
    covariance = torch.ones(1, 4, 4, dtype=torch.float64)  # all corners move together
    for shift, expected in (([1.0] * 4, np.exp(-0.1)), ([1.0, 1.0, 1.0, 1.1], None)):
        box = torch.tensor([BOX], dtype=torch.float64) + torch.tensor(shift)
        detected = Detections(boxes=box, covariances=covariance, scores=torch.ones(1), labels=ONE)
        report = detection_quality([detected], [there([BOX])], spatial="mahalanobis")
        if expected is None:
            assert report.true_positives == 0
        else:
            assert_allclose(report.pdq_spatial, expected, rtol=1e-6)


@pytest.mark.parametrize("spatial", ["pixels", "mahalanobis"])
def test_outputs_of_a_network_in_training_are_taken(spatial):
    detected, objects = random_scene(1, 4, 3)
    names = ("boxes", "covariances", "scores")
    attached = {name: getattr(detected, name).clone().requires_grad_() for name in names}
    report = detection_quality([Detections(**attached, labels=detected.labels)], [objects], spatial=spatial)
    assert report == detection_quality([detected], [objects], spatial=spatial)


def test_pdq_does_not_depend_on_float32():
    detected, objects = random_scene(1, 4, 3)
    single = Detections(
        boxes=detected.boxes.float(),
        covariances=detected.covariances.float(),
        scores=detected.scores.float(),
        labels=detected.labels,
    )
    one, other = (detection_quality([each], [objects]).pdq for each in (detected, single))
    assert_allclose(one, other, rtol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (([found([BOX])], []), {}, "expected `detections` and `truths` of as many images, got 1 and 0"),
        (([], []), {"spatial": "pixel"}, "expected `spatial` one of 'pixels', 'mahalanobis', got 'pixel' (did you"),
        (([], []), {"temperature": 0.0}, "expected `temperature` within [1e-06, 1e+06], got 0.0"),
    ],
)
def test_wrong_arguments_are_refused(arguments, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        detection_quality(*arguments, **options)


def test_a_single_record_instead_of_a_list_is_refused():
    with pytest.raises(
        TypeError, match="expected `detections` a sequence of Detections, one per image, got Detections"
    ):
        detection_quality(found([BOX]), there([BOX]))
    with pytest.raises(TypeError, match="expected `truths` a sequence of Truths, got an item Detections"):
        detection_quality([found([BOX])], [found([BOX])])
