"""Tests of box_calibration and matching_effect, against NumPy and SciPy on pairs found by plain loops."""

import json

import numpy as np
import pytest
import torch
from metrics.detection.random_images import SIZE, random_images
from metrics.detection.test_matching import plain_greedy
from numpy.testing import assert_allclose
from scipy import stats

from fcal.metrics.detection import (
    BoxOptions,
    Detections,
    MatchingRule,
    Truths,
    box_calibration,
    matching_effect,
)

GENERATOR = 7


def report_of(detections, truths, **options):
    return box_calibration(detections, truths, generator=torch.Generator().manual_seed(GENERATOR), **options)


def pairs_of(detections, truths, rule=None):
    """Boxes, covariances, targets and image of all pairs, by plain loops."""
    rows = []
    for number, (found, there) in enumerate(zip(detections, truths, strict=True)):
        for d, t in plain_greedy(found, there, rule or MatchingRule())[0].items():
            rows.append(
                (
                    found.boxes[d].double().numpy(),
                    found.covariances[d].double().numpy(),
                    there.boxes[t].double().numpy(),
                    number,
                )
            )
    return [np.stack(column) for column in zip(*rows, strict=True)]


def ece(z, bins=20):
    shares = np.bincount((stats.norm.cdf(z).ravel() * bins).astype(int), minlength=bins) / z.size
    return (shares * np.abs(1 / bins - shares)).sum()


@pytest.fixture(scope="module")
def images():
    return random_images(60, correlated=True, ignored=0.1)


@pytest.fixture(scope="module")
def report(images):
    return report_of(*images)


def test_corners_have_the_scores_of_their_pairs(images, report):
    boxes, covariances, targets, _ = pairs_of(*images)
    sigma = np.sqrt(np.diagonal(covariances, axis1=1, axis2=2))
    z = (targets - boxes) / sigma
    crps = sigma * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / np.sqrt(np.pi))
    corners = report.corners
    assert report.matched == len(boxes) > 50
    assert corners.n == 4 * len(boxes)
    assert_allclose(corners.ece_z, ece(z), rtol=1e-10)
    assert_allclose(corners.nll, -stats.norm.logpdf(targets, boxes, sigma).mean(), rtol=1e-10)
    assert_allclose(corners.crps, crps.mean(), rtol=1e-10)
    assert_allclose(corners.coverage["0.9"], (np.abs(z) <= stats.norm.ppf(0.95)).mean())
    assert_allclose(corners.rmse, np.sqrt(((targets - boxes) ** 2).mean()), rtol=1e-10)


def test_whole_boxes_have_residuals_whitened_by_cholesky(images, report):
    boxes, covariances, targets, number = pairs_of(*images)
    z = np.stack(
        [np.linalg.solve(np.linalg.cholesky(c), t - b) for b, c, t in zip(boxes, covariances, targets, strict=True)]
    )
    joint = [stats.multivariate_normal.logpdf(t, b, c) for b, c, t in zip(boxes, covariances, targets, strict=True)]
    q = 75 * (z**2).mean(), 75 * (z**2).var()
    whole = report.boxes
    assert_allclose(whole.ece_z, ece(z), rtol=1e-10)
    assert_allclose(whole.nll, -np.mean(joint) / 4, rtol=1e-10)
    assert_allclose(whole.coverage["0.9"], ((z**2).sum(1) <= stats.chi2.ppf(0.9, 4)).mean())
    assert_allclose(whole.wdist_q, (q[0] - 75) ** 2 + (np.sqrt(q[1]) - np.sqrt(150)) ** 2, rtol=1e-8)
    assert_allclose(whole.wdist_z, z.mean() ** 2 + (z.std() - 1) ** 2, rtol=1e-8)
    assert report.clusters.clusters == len(set(number.tolist()))
    assert_allclose(report.clusters.ece_z.value, ece(z), rtol=1e-10)


def test_whole_boxes_with_diagonal_covariances_have_the_residuals_of_their_corners():
    report = report_of(*random_images(30))
    for name in ("ece_z", "ece_q", "kld_z", "kld_q", "nll"):
        assert_allclose(getattr(report.boxes, name), getattr(report.corners, name), rtol=1e-9)


def test_counts_of_boxes_are_those_of_plain_loops(images, report):
    plain = [plain_greedy(*image, MatchingRule()) for image in zip(*images, strict=True)]
    assert report.images == 60
    assert report.empty_images == sum(len(there) == 0 for there in images[1]) == 10
    assert report.detections == sum(len(pairs) + len(mistakes) for pairs, mistakes, _, _ in plain)
    assert report.truths == sum(int((~there.is_ignored).sum()) for there in images[1])
    assert report.ignored == sum(len(passed) for *_, passed in plain) > 0


def test_scores_of_boxes_are_right_where_they_found_an_object(images, report):
    plain = [plain_greedy(*image, MatchingRule()) for image in zip(*images, strict=True)]
    found = sum(len(pairs) for pairs, *_ in plain)
    assert_allclose(report.scores.right, found / report.detections)
    scores = [
        float(image.scores[d])
        for image, (pairs, mistakes, _, _) in zip(images[0], plain, strict=True)
        for d in [*pairs, *mistakes]
    ]
    assert_allclose(report.scores.mean_score, np.mean(scores))


def test_scores_of_a_wrong_class_are_not_right():
    truths = [Truths(boxes=torch.tensor([[10.0, 10.0, 50.0, 50.0]]), labels=torch.tensor([1]), image_size=SIZE)] * 2
    detections = [
        Detections.of_sigmas(
            truths[0].boxes + 1, torch.ones(1, 4), scores=torch.tensor([0.9]), labels=torch.tensor([label])
        )
        for label in (1, 2)
    ]
    report = report_of(detections, truths, rule=MatchingRule(same_class=False))
    assert (report.matched, report.scores.right) == (2, 0.5)


def one_object(box, **attributes):
    """An image with one object of class 1, and its detection a pixel off."""
    truth = Truths(boxes=torch.tensor([box]), labels=torch.tensor([1]), image_size=SIZE)
    detection = Detections.of_sigmas(truth.boxes + 1, torch.ones(1, 4), scores=torch.tensor([0.9]), labels=truth.labels)
    return detection, truth, {name: torch.tensor([value]) for name, value in attributes.items()}


def test_facets_count_the_corners_of_their_groups():
    images = [
        one_object([10.0, 20.0, 30.0, 41.0], distance=5.0, truncation=0.0),  # inside, small, 21 px high
        one_object([0.5, 20.0, 60.0, 59.9], distance=45.0, truncation=0.15),  # left edge, medium, 39.9 px high
        one_object([90.0, 0.0, 199.0, 99.0], distance=float("nan"), truncation=0.8),  # top, right and bottom, large
    ]
    detections, truths, attributes = zip(*images, strict=True)
    facets = report_of(detections, truths, attributes=attributes, options=BoxOptions(classes=("Car",))).facets
    counts = {facet: {name: group.n for name, group in groups.items()} for facet, groups in facets.items()}
    assert counts == {
        "class": {"Car": 12},
        "corner": {"x1": 3, "y1": 3, "x2": 3, "y2": 3},
        "size": {"small": 4, "medium": 4, "large": 4},
        "height": {"height below 25 px": 4, "height 25 to 40 px": 4, "height from 40 px": 4},
        "edge": {"inside": 4, "at an edge": 4, "beside a corner at an edge": 4},
        "distance": {"distance 0 to 10 m": 4, "distance 40 to 80 m": 4},
        "truncation": {"truncation up to 0.15": 8, "truncation above 0.5": 4},
    }


def test_facets_of_corners_have_the_errors_of_their_corner(images):
    boxes, _, targets, _ = pairs_of(*images)
    groups = report_of(*images, options=BoxOptions(facets=("corner",))).facets["corner"]
    for column, name in enumerate(("x1", "y1", "x2", "y2")):
        assert_allclose(groups[name].bias, (targets - boxes)[:, column].mean(), rtol=1e-9)


def test_facets_without_attributes_have_no_distance_and_no_truncation(report):
    assert set(report.facets) == {"class", "corner", "size", "height", "edge"}


def zeroed(detections, where):
    sigmas = detections.sigmas.clone()
    sigmas[where] = 0.0
    return Detections.of_sigmas(detections.boxes, sigmas, scores=detections.scores, labels=detections.labels)


def test_corners_without_variance_are_left_out_and_counted():
    detections, truths = random_images(30)
    whole = report_of(detections, truths)
    partly = report_of([zeroed(found, (..., 1)) for found in detections], truths)
    assert partly.zero_variances == partly.singular_boxes == partly.matched == whole.matched
    assert partly.corners.n == 3 * whole.matched
    assert partly.boxes is None
    assert partly.clusters is None
    assert set(partly.facets["corner"]) == {"x1", "x2", "y2"}
    assert np.isfinite(partly.energy_score)


def test_a_box_with_a_singular_covariance_is_left_out_of_whole_boxes():
    detections, truths = random_images(30)
    rows = torch.tensor([[3.0, 3.0, 0.0, 0.0], [0.0, 0.0, 2.0, 0.0], [0.0, 0.0, 0.0, 2.0]])
    first = detections[5]
    singular = Detections(
        boxes=first.boxes,
        covariances=(rows.T @ rows).expand(len(first), 4, 4),
        scores=first.scores,
        labels=first.labels,
    )
    report = report_of([*detections[:5], singular, *detections[6:]], truths)
    assert report.zero_variances == 0
    assert 0 < report.singular_boxes <= len(truths[5])
    assert report.boxes.n == 4 * (report.matched - report.singular_boxes)


def test_true_error_bars_of_boxes_look_calibrated_and_too_small_ones_do_not():
    """Boxes are drawn from their own normal distribution; pairs at an overlap of 0.1 lose hardly any."""
    generator = torch.Generator().manual_seed(5)
    verdicts, truths, rule = {}, [], MatchingRule(iou=0.1)
    noise = torch.randn(300, 5, 4, generator=generator)
    sigma = 0.5 + 2 * torch.rand(300, 5, 4, generator=generator)
    there = torch.tensor([[30.0 * k, 10.0, 30.0 * k + 25, 60.0] for k in range(1, 6)])
    labels = torch.ones(5, dtype=torch.int64)
    truths = [Truths(boxes=there, labels=labels, image_size=SIZE)] * 300
    for factor in (1.0, 0.7):
        detections = [
            Detections.of_sigmas(there + z * s, factor * s, scores=torch.full((5,), 0.9), labels=labels)
            for z, s in zip(noise, sigma, strict=True)
        ]
        report = report_of(detections, truths, rule=rule, options=BoxOptions(facets=()))
        verdicts[factor] = report.corners.verdict
        within = report.clusters.ece_z.value < report.clusters.ece_z_band.q95
        assert within == (factor == 1.0)
    assert verdicts == {1.0: "calibrated", 0.7: "over-confident"}


def test_report_of_boxes_becomes_json(report):
    document = json.loads(json.dumps(report.as_dict()))
    assert document["rule"] == {"iou": 0.5, "score": 0.0, "same_class": True, "assignment": "greedy"}
    assert document["facets"]["corner"]["x1"]["n"] == report.matched
    assert document["scores"]["ece_floor"]["expected"] > 0


def test_matching_effect_shows_that_a_strict_rule_selects_small_errors():
    images = random_images(60, noise=6.0)
    effect = matching_effect(*images, generator=torch.Generator().manual_seed(0))
    rows = effect.rows()
    assert rows["IoU 0.7"]["matched"] < rows["IoU 0.5"]["matched"] < rows["IoU 0.3"]["matched"]
    assert rows["IoU 0.7"]["rmse"] < rows["IoU 0.5"]["rmse"] < rows["IoU 0.3"]["rmse"]
    assert rows["many to one"]["matched"] > rows["IoU 0.5"]["matched"]
    assert len(str(effect).splitlines()) == 1 + len(rows)
    assert json.loads(json.dumps(effect.as_dict()))["rules"]["IoU 0.7"]["iou"] == 0.7


def test_matching_effect_of_a_rule_without_pairs_is_empty(images):
    effect = matching_effect(*images, {"strict": MatchingRule(iou=1.0)})
    assert effect.rows()["strict"]["matched"] == 0
    assert effect.rows()["strict"]["ece_z"] is None
    assert str(effect).splitlines()[1].split()[:3] == ["strict", "0", "-"]


EMPTY = Detections.of_sigmas(
    torch.zeros(0, 4), torch.zeros(0, 4), scores=torch.zeros(0), labels=torch.zeros(0, dtype=torch.int64)
)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda d, t: (d[:-1], t), ValueError, "expected `detections` of as many images as the others, got 29"),
        (lambda d, t: (d, t[:-1]), ValueError, "expected `truths` of as many images as the others, got 29"),
        (
            lambda d, t: (d[0], t[0]),
            TypeError,
            "expected `detections` a sequence with one record per image, got Detections",
        ),
        (lambda d, t: (t, d), TypeError, "expected `detections` of image 0 a Detections, got Truths"),
        (
            lambda d, t: ([EMPTY] * len(d), t),
            ValueError,
            r"expected `detections` that match an object, got 0 without a match \(75 objects in 30 images\)",
        ),
        (
            lambda d, t: ([zeroed(found, ...) for found in d], t),
            ValueError,
            r"expected `detections` with error bars, got a variance of 0 in (\d+) of \1 corners",
        ),
    ],
)
def test_box_calibration_rejects(change, error, message):
    with pytest.raises(error, match=message):
        report_of(*change(*random_images(30)))


def test_box_calibration_rejects_attributes_that_do_not_fit():
    detection, truth, _ = one_object([10.0, 20.0, 30.0, 41.0])
    with pytest.raises(ValueError, match=r"expected attribute 'distance' of shape \(1,\), one per object, got \(2,\)"):
        report_of([detection], [truth], attributes=[{"distance": torch.zeros(2)}])
    with pytest.raises(ValueError, match=r"expected `truncation` within \[0, 1\], got 3 \(1 of 1 values\)"):
        report_of([detection], [truth], attributes=[{"truncation": [3.0]}])
    with pytest.raises(ValueError, match=r"expected `facet` one of 'class', .*, got 'weather'"):
        BoxOptions(facets=("weather",))
    with pytest.raises(ValueError, match="expected `tolerance`"):
        BoxOptions(tolerance=2.0)
    with pytest.raises(ValueError, match="expected `df`"):
        BoxOptions(df=0)


def test_verdicts_depend_on_the_tolerance():
    generator = torch.Generator().manual_seed(0)
    there = torch.tensor([[20.0, 20.0, 60.0, 50.0]]).expand(400, 1, 4)
    labels = torch.tensor([1])
    noise = 1.12 * torch.randn(there.shape, generator=generator)
    truths = [Truths(boxes=box, labels=labels, image_size=(80, 100)) for box in there]
    detections = [
        Detections.of_sigmas(box, torch.ones(1, 4), scores=torch.tensor([0.9]), labels=labels) for box in there + noise
    ]
    strict, lenient = (
        report_of(detections, truths, options=BoxOptions(tolerance=tolerance, facets=())) for tolerance in (0.02, 0.5)
    )
    assert "calibrated" not in (strict.corners.verdict, strict.boxes.verdict)
    assert lenient.corners.verdict == lenient.boxes.verdict == "calibrated"
