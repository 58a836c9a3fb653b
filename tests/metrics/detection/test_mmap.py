"""Tests of fcal.metrics.detection.mmap; pycocotools with another overlap is the oracle of average precision."""

import contextlib
import io

import numpy as np
import pytest
import torch
from metrics.detection.whole_image import random_scene
from numpy.testing import assert_allclose
from scipy import stats

from fcal.metrics.detection import Detections, Truths, consistency, mahalanobis_average_precision
from fcal.metrics.detection.mmap import CONTOURS, average_precision

BOX = [4.0, 5.0, 20.0, 15.0]


def scenes(images=30, seed=0, **options):
    draw = np.random.default_rng(seed)
    made = [
        random_scene(1000 * seed + i, int(draw.integers(0, 9)), int(draw.integers(0, 5)), labels=3, **options)
        for i in range(images)
    ]
    return [found for found, _ in made], [there for _, there in made]


def distance(box, covariance, truth):
    residual = truth - box
    return residual @ np.linalg.solve(covariance, residual)


def by_pycocotools(found, there, contours=CONTOURS):
    """COCO's evaluation in which the overlap of a pair is the probability outside of the contour through the truth."""
    mask = pytest.importorskip("pycocotools.mask", reason="needs pycocotools")
    assert mask
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    class ByContour(COCOeval):
        def computeIoU(self, image, category):
            gt, dt = self._gts[image, category], self._dts[image, category]
            if not gt or not dt:
                return []
            order = np.argsort([-d["score"] for d in dt], kind="mergesort")[:100]
            return np.array([[stats.chi2.sf(distance(*dt[i]["law"], g["truth"]), df=4) for g in gt] for i in order])

    truths, annotations, results = COCO(), [], []
    for image, (detected, objects) in enumerate(zip(found, there, strict=True)):
        for box, label in zip(objects.boxes.numpy(), objects.labels.tolist(), strict=True):
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": image,
                    "category_id": label,
                    "bbox": [0, 0, 10, 10],
                    "area": 100,
                    "iscrowd": 0,
                    "truth": box,
                }
            )
        for i in range(len(detected)):
            law = (detected.boxes[i].numpy(), detected.covariances[i].numpy())
            row = {"image_id": image, "category_id": int(detected.labels[i]), "score": float(detected.scores[i])}
            results.append(row | {"bbox": [0, 0, 10, 10], "law": law})
    truths.dataset = {
        "images": [{"id": i} for i in range(len(there))],
        "categories": [{"id": k} for k in range(1, 4)],
        "annotations": annotations,
    }
    with contextlib.redirect_stdout(io.StringIO()):
        truths.createIndex()
        evaluation = ByContour(truths, truths.loadRes(results), "bbox")
        evaluation.params.iouThrs = 1 - np.array(contours)
        evaluation.params.areaRng, evaluation.params.areaRngLbl = [[0, 1e10]], ["all"]
        evaluation.params.maxDets = [100]
        evaluation.evaluate()
        evaluation.accumulate()
    precision = evaluation.eval["precision"][..., 0, 0]  # contours, recalls, classes
    return np.where(precision > -1, precision, np.nan).mean(1)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("correlated", [False, True])
def test_mmap_is_pycocotools_mean_average_precision_with_contours_for_overlaps(seed, correlated):
    found, there = scenes(seed=seed, correlated=correlated)
    expected = by_pycocotools(found, there)
    report = mahalanobis_average_precision(found, there)
    assert 0.05 < report.mmap < 0.95
    assert_allclose(report.mmap, np.nanmean(expected), rtol=1e-9)
    assert_allclose(list(report.contours.values()), np.nanmean(expected, axis=1), rtol=1e-9)
    assert_allclose([report.classes[k] for k in (1, 2, 3)], expected.mean(0), rtol=1e-9)


def test_mmap_counts_only_the_first_hundred_detections_of_an_image_and_class():
    n = 130
    scores = torch.linspace(0.9, 0.1, n)
    boxes = torch.tensor([BOX]).repeat(n, 1) + 200
    boxes[110] = torch.tensor(BOX)  # the only one near the truth, with rank 111 of its class
    truths = [Truths(boxes=torch.tensor([BOX]), labels=torch.tensor([1]), image_size=(400, 400))]
    for labels, expected in ((torch.ones(n), 0.0), (torch.arange(n) % 2 + 1, 1 / 56)):
        found = Detections.of_sigmas(boxes, torch.ones(n, 4), scores=scores, labels=labels.long())
        report = mahalanobis_average_precision([found], truths)
        assert_allclose(report.mmap, expected, rtol=1e-6)
        assert report.detections == (100 if expected == 0 else 130)


def test_each_contour_has_pairs_of_its_own():
    # The best detection is inside the wide contour of both truths, nearer to the second, and inside the narrow of none.
    truths = Truths(
        boxes=torch.tensor([[10.0, 10.0, 30.0, 30.0], [14.0, 10.0, 34.0, 30.0]]),
        labels=torch.tensor([1, 1]),
        image_size=(50, 50),
    )
    boxes = torch.tensor([[12.5, 10.0, 32.5, 30.0], [14.0, 10.0, 34.0, 30.0]])
    found = Detections.of_sigmas(boxes, torch.ones(2, 4), scores=torch.tensor([0.9, 0.8]), labels=torch.tensor([1, 1]))
    report = mahalanobis_average_precision([found], [truths], contours=(0.9, 0.1))
    # Distances: first to both 12.5 and 4.5, second to them 32 and 0; chi2_4 quantiles 7.8 and 1.06.
    # At 0.9 the first takes the second truth, the second finds nothing; at 0.1 only the second finds its own.
    assert_allclose(list(report.contours.values()), [51 / 101, 51 / 101 / 2], rtol=1e-9)


def test_detections_on_ignored_truths_are_left_out():
    ignored = torch.tensor([False, True])
    other = [30.0, 20.0, 50.0, 35.0]
    truths = Truths(boxes=torch.tensor([BOX, other]), labels=torch.tensor([1, 0]), image_size=(40, 60), ignored=ignored)
    boxes = torch.tensor([other, other, BOX])
    for labels, expected in (([1, 1, 1], 1.0), ([1, 2, 1], 1.0)):
        found = Detections.of_sigmas(
            boxes, torch.ones(3, 4), scores=torch.tensor([0.9, 0.8, 0.7]), labels=torch.tensor(labels)
        )
        report = mahalanobis_average_precision([found], [truths])
        assert report.mmap == expected
        assert (report.truths, list(report.classes)) == (1, [1])


def test_average_precision_by_hand():
    hits = np.array([[True], [False], [True]])
    # precision 1 up to a recall of 1/4, 2/3 up to 1/2, 0 beyond: 26, 25 and 50 of the 101 recalls
    assert_allclose(average_precision(hits, np.zeros(3, dtype=bool), 4), (26 + 25 * 2 / 3) / 101, rtol=1e-12)
    passed_over = np.array([False, True, False])
    assert_allclose(average_precision(hits, passed_over, 4), (26 + 25) / 101, rtol=1e-12)


def test_mmap_without_truths_is_undefined():
    report = mahalanobis_average_precision([], [])
    assert report.mmap is None
    assert set(report.contours.values()) == {None}


def test_a_box_without_variance_finds_only_an_equal_truth():
    truths = [Truths(boxes=torch.tensor([BOX]), labels=torch.tensor([1]), image_size=(40, 60))]
    for shift, expected in ((0.0, 1.0), (1e-3, 0.0)):
        found = Detections.of_sigmas(
            torch.tensor([BOX]) + shift, torch.zeros(1, 4), scores=torch.ones(1), labels=torch.tensor([1])
        )
        assert mahalanobis_average_precision([found], truths).mmap == expected


def plain_overlap(one, other):
    width, height = np.minimum(one[2:], other[2:]) - np.maximum(one[:2], other[:2])
    shared = max(width, 0) * max(height, 0)
    return shared / (np.prod(one[2:] - one[:2]) + np.prod(other[2:] - other[:2]) - shared)


def matched_levels(found, there, iou):
    """Probabilities of contours through matched truths, pair by pair."""
    levels = []
    for detected, objects in zip(found, there, strict=True):
        free = ~objects.is_ignored.numpy()
        for i in np.argsort(-detected.scores.numpy(), kind="stable"):
            box = detected.boxes[i].numpy()
            shared = [
                plain_overlap(box, truth) if free[j] and objects.labels[j] == detected.labels[i] else 0
                for j, truth in enumerate(objects.boxes.numpy())
            ]
            if shared and max(shared) >= iou:
                j = int(np.argmax(shared))
                free[j] = False
                squared = distance(box, detected.covariances[i].numpy(), objects.boxes[j].numpy())
                levels.append(stats.chi2.cdf(squared, df=4))
    return np.array(levels)


@pytest.mark.parametrize("iou", [0.5, 0.2])
def test_consistency_is_the_share_of_matched_truths_inside_each_contour(iou):
    found, there = scenes(60, seed=7, ignored=0.3)
    levels = matched_levels(found, there, iou)
    report = consistency(found, there, iou=iou)
    assert report.n == len(levels) > 30
    assert_allclose(list(report.share.values()), [(levels <= c).mean() for c in CONTOURS], rtol=1e-12)


def test_consistency_of_true_error_bars_is_the_level_of_the_contour():
    """Within five standard errors of a share of 4000: a false alarm in 2e5 seeds, for 8 contours."""
    n = 4000
    generator = torch.Generator().manual_seed(0)
    boxes = torch.tensor([[100.0, 100.0, 300.0, 300.0]]).repeat(n, 1)
    factor = torch.randn(4, 4, generator=generator)
    noise = torch.randn(n, 4, generator=generator) @ factor.T
    label = torch.ones(1, dtype=torch.int64)
    found = [
        Detections(boxes=b[None], covariances=(factor @ factor.T)[None], scores=torch.ones(1), labels=label)
        for b in boxes + noise
    ]
    there = [Truths(boxes=b[None], labels=label, image_size=(400, 400)) for b in boxes]
    report = consistency(found, there)
    assert report.n == n
    for level in CONTOURS:
        assert abs(report.share[f"{level:g}"] - level) < 5 * np.sqrt(level * (1 - level) / n)


@pytest.mark.parametrize("contours", [[], [0.0], [0.5, 1.0], [float("nan")]])
def test_contours_outside_of_zero_to_one_are_refused(contours):
    for metric in (mahalanobis_average_precision, consistency):
        with pytest.raises(ValueError, match=r"expected `contours` levels within \(0, 1\), got \["):
            metric([], [], contours=contours)


def test_a_large_number_of_inflated_boxes_finds_each_truth_once():
    n, m = 100, 40
    truths = Truths(
        boxes=torch.rand(m, 4, generator=torch.Generator().manual_seed(0)) + torch.tensor([0.0, 0.0, 5.0, 5.0]),
        labels=torch.ones(m, dtype=torch.int64),
        image_size=(20, 20),
    )
    boxes = torch.rand(n, 4, generator=torch.Generator().manual_seed(1)) + torch.tensor([0.0, 0.0, 5.0, 5.0])
    ones = torch.ones(n, dtype=torch.int64)
    found = Detections.of_sigmas(boxes, torch.full((n, 4), 50.0), scores=torch.linspace(0.9, 0.1, n), labels=ones)
    assert mahalanobis_average_precision([found], [truths]).mmap == 1.0


def test_singular_covariance_in_single_precision_holds_a_truth_along_its_direction():
    """A box that can move along one direction only: rounding must not put the truth outside of every contour."""
    sigmas = torch.tensor([1.3, 2.7, 0.4, 5.1], dtype=torch.float64)
    box = torch.tensor([[5.0, 5.0, 20.0, 20.0]])
    found = Detections(
        boxes=box + sigmas.float(),
        covariances=torch.outer(sigmas, sigmas).float().unsqueeze(0),
        scores=torch.tensor([0.9]),
        labels=torch.tensor([1]),
    )
    there = Truths(boxes=box, labels=torch.tensor([1]), image_size=(50, 50))
    assert mahalanobis_average_precision([found], [there]).mmap == 1.0
