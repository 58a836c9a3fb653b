"""Tests of fcal.metrics.detection.matching, against loops over all pairs or all assignments."""

import csv
import itertools
import os
from pathlib import Path

import pytest
import torch
from metrics.detection.random_images import SIZE, random_images
from numpy.testing import assert_allclose

from fcal.metrics.detection import Detections, MatchingRule, Truths, match, pairwise_covered_share, pairwise_iou

DATA = Path(os.environ.get("FCAL_DATA", Path(__file__).parents[4] / "shared/data"))
PAIRS = DATA / "kitti_det2d_residuals/car_matches.csv"


def area(box):
    return max(box[2] - box[0], 0.0) * max(box[3] - box[1], 0.0)


def shared_area(a, b):
    return area([max(a[0], b[0]), max(a[1], b[1]), min(a[2], b[2]), min(a[3], b[3])])


def iou(a, b):
    shared = shared_area(a, b)
    return shared / (area(a) + area(b) - shared) if shared else 0.0


def image(boxes, truths, *, scores=None, labels=None, truth_labels=None, ignored=None):
    """An image whose detections and objects are of class 1 unless said otherwise."""
    boxes, truths = torch.tensor(boxes).reshape(-1, 4), torch.tensor(truths).reshape(-1, 4)
    scores = torch.linspace(0.9, 0.5, len(boxes)) if scores is None else torch.tensor(scores)
    labels, truth_labels = (
        torch.ones(len(rows), dtype=torch.int64) if given is None else torch.tensor(given)
        for given, rows in ((labels, boxes), (truth_labels, truths))
    )
    return (
        Detections.of_sigmas(boxes, torch.ones_like(boxes), scores=scores, labels=labels),
        Truths(
            boxes=truths,
            labels=truth_labels,
            image_size=SIZE,
            ignored=None if ignored is None else torch.tensor(ignored),
        ),
    )


def plain_greedy(detections, truths, rule):
    """COCO's loops: detections by falling score, objects that are not ignored first."""
    boxes, there = detections.boxes.double().tolist(), truths.boxes.double().tolist()
    pairs, passed, mistakes, taken = {}, [], [], set()
    order = sorted(range(len(boxes)), key=lambda k: -float(detections.scores[k]))
    for d in (k for k in order if float(detections.scores[k]) >= rule.score):
        best, overlap = None, rule.iou
        for t in range(len(there)):
            alike = not rule.same_class or int(detections.labels[d]) == int(truths.labels[t])
            if t not in taken and alike and not truths.is_ignored[t] and iou(boxes[d], there[t]) >= overlap:
                best, overlap = t, iou(boxes[d], there[t])
        if best is not None:
            pairs[d] = best
            taken.add(best)
            continue
        on_ignored = any(
            truths.is_ignored[t]
            and (not rule.same_class or int(detections.labels[d]) == int(truths.labels[t]))
            and shared_area(boxes[d], there[t]) / max(area(boxes[d]), 1e-9) >= rule.iou
            for t in range(len(there))
        )
        (passed if on_ignored else mistakes).append(d)
    missed = [t for t in range(len(there)) if t not in taken and not truths.is_ignored[t]]
    return pairs, sorted(mistakes), missed, sorted(passed)


RULES = [
    MatchingRule(),
    MatchingRule(iou=0.3, score=0.4),
    MatchingRule(iou=0.7),
    MatchingRule(same_class=False, iou=0.2),
]


@pytest.mark.parametrize("rule", RULES)
def test_match_is_that_of_a_plain_loop_in_order_of_score(rule):
    kinds = {"pairs": 0, "passed": 0, "mistakes": 0}
    for detections, truths in zip(*random_images(80, copies=3, noise=5.0, ignored=0.3, grid=8), strict=True):
        pairs, mistakes, missed, passed = plain_greedy(detections, truths, rule)
        matches = match(detections, truths, rule)
        assert dict(zip(matches.detections.tolist(), matches.truths.tolist(), strict=True)) == pairs
        assert matches.unmatched_detections.tolist() == mistakes
        assert matches.unmatched_truths.tolist() == missed
        assert matches.ignored_detections.tolist() == passed
        kinds = {
            "pairs": kinds["pairs"] + len(pairs),
            "passed": kinds["passed"] + len(passed),
            "mistakes": kinds["mistakes"] + len(mistakes),
        }
    assert min(kinds.values()) > 10


def test_greedy_match_resolves_long_chains_of_conflicts():
    """All detections like the same object best, so that each round rejects all but one."""
    truths = [[0.0, 0.0, 50.0, 50.0 + step] for step in range(6)]
    boxes = [[0.0, 0.0, 50.0, 50.0 - 0.1 * step] for step in range(6)]
    detections, objects = image(boxes, truths, scores=[0.9, 0.8, 0.7, 0.6, 0.5, 0.4])
    assert match(detections, objects).truths.tolist() == [0, 1, 2, 3, 4, 5]


def test_optimal_match_has_the_largest_total_overlap_of_all_assignments():
    rule, improved = MatchingRule(assignment="optimal", iou=0.3, same_class=False), 0
    generator = torch.Generator().manual_seed(3)
    for _ in range(40):
        base = torch.tensor([[20.0, 20.0, 60.0, 60.0]]) + 8 * torch.randn(8, 4, generator=generator)
        detections, truths = image(base[:4].tolist(), base[4:].tolist())
        table = [[iou(d, t) for t in base[4:].double().tolist()] for d in base[:4].double().tolist()]
        table = [[value if value >= 0.3 else 0.0 for value in row] for row in table]
        best = max(sum(table[d][t] for d, t in enumerate(order)) for order in itertools.permutations(range(4)))
        total = float(match(detections, truths, rule).iou.sum())
        assert total == pytest.approx(best, abs=1e-12)
        improved += total > float(match(detections, truths, MatchingRule(iou=0.3, same_class=False)).iou.sum()) + 1e-9
    assert improved > 3


def test_many_to_one_match_gives_every_detection_its_nearest_object():
    rule, shared = MatchingRule(assignment="many", iou=0.4), 0
    for detections, truths in zip(*random_images(40, copies=4, noise=4.0), strict=True):
        matches = match(detections, truths, rule)
        expected = {}
        for d, box in enumerate(detections.boxes.double().tolist()):
            overlaps = [
                iou(box, there) if truths.labels[t] == detections.labels[d] else 0.0
                for t, there in enumerate(truths.boxes.double().tolist())
            ]
            if overlaps and max(overlaps) >= 0.4:
                expected[d] = overlaps.index(max(overlaps))
        assert dict(zip(matches.detections.tolist(), matches.truths.tolist(), strict=True)) == expected
        shared += len(expected) - len(set(expected.values()))
    assert shared > 20


def test_match_prefers_an_object_that_counts_to_a_nearer_ignored_one():
    detections, truths = image(
        [[0.0, 0.0, 10.0, 10.0]], [[0.0, 0.0, 10.0, 10.0], [0.0, 0.0, 10.0, 8.0]], ignored=[True, False]
    )
    assert match(detections, truths).truths.tolist() == [1]


def test_match_lets_many_detections_fall_on_one_ignored_region():
    boxes = [[0.0, 0.0, 10.0, 10.0], [12.0, 0.0, 22.0, 10.0], [95.0, 0.0, 107.0, 10.0]]
    detections, truths = image(boxes, [[0.0, 0.0, 100.0, 50.0]], ignored=[True])
    matches = match(detections, truths)
    assert matches.ignored_detections.tolist() == [0, 1]
    assert matches.unmatched_detections.tolist() == [2]  # 5 of its 12 columns are inside
    assert matches.unmatched_truths.tolist() == []


def test_match_lets_a_region_without_class_take_detections_of_all_classes():
    boxes = [[0.0, 0.0, 10.0, 10.0], [12.0, 0.0, 22.0, 10.0]]
    for label, expected in ((0, [0, 1]), (2, [1])):
        detections, truths = image(boxes, [[0.0, 0.0, 50.0, 50.0]], labels=[1, 2], truth_labels=[label], ignored=[True])
        assert match(detections, truths).ignored_detections.tolist() == expected


def test_match_leaves_out_detections_below_the_score():
    detections, truths = image(
        [[0.0, 0.0, 10.0, 10.0], [0.0, 0.0, 10.0, 9.0]], [[0.0, 0.0, 10.0, 10.0]], scores=[0.2, 0.6]
    )
    matches = match(detections, truths, MatchingRule(score=0.5))
    assert matches.detections.tolist() == [1]
    assert matches.unmatched_detections.tolist() == []


@pytest.mark.parametrize("assignment", ["greedy", "optimal", "many"])
def test_match_of_an_empty_image_has_no_pairs(assignment):
    box, rule = [[0.0, 0.0, 10.0, 10.0]], MatchingRule(assignment=assignment)
    assert match(*image([], []), rule).detections.tolist() == []
    assert match(*image(box, []), rule).unmatched_detections.tolist() == [0]
    assert match(*image([], box), rule).unmatched_truths.tolist() == [0]


def test_match_of_equal_boxes_passes_a_threshold_of_one():
    box = [[0.1, 0.3, 10.7, 20.9]]
    assert match(*image(box, box), MatchingRule(iou=1.0)).detections.tolist() == [0]


def test_overlaps_are_those_of_single_pairs():
    (detections,), (truths,) = (side[-1:] for side in random_images(6, noise=3.0))
    boxes, there = detections.boxes.double().tolist(), truths.boxes.double().tolist()
    ious = torch.tensor([[iou(a, b) for b in there] for a in boxes], dtype=torch.float64)
    covered = torch.tensor([[shared_area(a, b) / area(a) for b in there] for a in boxes], dtype=torch.float64)
    torch.testing.assert_close(pairwise_iou(detections.boxes, truths.boxes), ious)
    torch.testing.assert_close(pairwise_covered_share(detections.boxes, truths.boxes), covered)
    assert int((ious > 0).sum()) > 5


def test_overlap_of_a_box_without_area_is_zero():
    empty, box = torch.tensor([[5.0, 5.0, 5.0, 9.0]]), torch.tensor([[0.0, 0.0, 10.0, 10.0]])
    assert pairwise_iou(empty, box).item() == 0.0
    assert pairwise_covered_share(empty, box).item() == 0.0


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"iou": 0.0}, ValueError, "expected `iou` > 0, got 0"),
        ({"iou": 1.5}, ValueError, r"expected `iou` within \[0, 1\], got 1.5"),
        ({"score": -1.0}, ValueError, r"expected `score` within \[0, 1\], got -1.0"),
        ({"same_class": 1}, TypeError, "expected `same_class` a bool, got int 1"),
        ({"assignment": "gredy"}, ValueError, r"expected `assignment` one of 'greedy', 'optimal', 'many', got 'gredy'"),
    ],
)
def test_matching_rule_rejects(options, error, message):
    with pytest.raises(error, match=message):
        MatchingRule(**options)


@pytest.mark.skipif(not PAIRS.exists(), reason=f"no kitti_det2d_residuals in {DATA}; set FCAL_DATA")
def test_match_finds_the_pairs_of_a_real_detector_on_kitti():
    """The file has pairs that were found greedily by score at an overlap of 0.5, with their overlap to 4 digits."""
    frames = {}
    with PAIRS.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["split"] == "val":
                frames.setdefault(row["frame"], []).append(row)
    for rows in itertools.islice(frames.values(), 400):
        boxes, truths = (
            [[float(row[f"{kind}{c}"]) for c in ("x1", "y1", "x2", "y2")] for row in rows] for kind in "pg"
        )
        scores = [min(max(float(row["score"]), 0.0), 1.0) for row in rows]
        matches = match(*image(boxes, truths, scores=scores))
        assert matches.detections.tolist() == matches.truths.tolist() == list(range(len(rows)))
        assert_allclose(matches.iou, [float(row["iou"]) for row in rows], atol=6e-5)
