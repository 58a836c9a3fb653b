"""Are the error bars of detected boxes true? Residuals of matched corners, of whole boxes, and by kind of object."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, Normal

from fcal._checks import check_integer, check_number
from fcal.metrics.clusters import ClusterReport, cluster_calibration, draw_seed
from fcal.metrics.detection.energy_scores import energy_score
from fcal.metrics.detection.image_streams import Attributes
from fcal.metrics.detection.matched_boxes import FACETS, MatchedBoxes, facet_groups, match_images
from fcal.metrics.detection.matching import MatchingRule
from fcal.metrics.detection.records import Detections, Truths
from fcal.metrics.detection.score_reports import ScoreReport, score_calibration
from fcal.metrics.evaluation import evaluate
from fcal.metrics.report import Report, plain
from fcal.metrics.state import Grid

_SMALLEST_SHARE = 1e-6  # of a corner's variance that the others leave; below, a covariance is singular but for rounding


@dataclass(frozen=True, kw_only=True)
class BoxReport:
    """Calibration of matched boxes. It depends on the rule that matched them.

    Attributes:
        rule: When a detection and an object were a pair.
        images: Number of images, empty ones included.
        empty_images: Number of images without any object.
        detections: Number of detections that found an object or are a mistake.
        truths: Number of objects that are not ignored.
        matched: Number of pairs.
        ignored: Number of detections on ignored objects, which do not count.
        zero_variances: Number of corners of pairs that are left out because their variance is 0.
        singular_boxes: Number of pairs that are left out of ``boxes`` and ``clusters`` because their covariance is not
            positive definite.
        corners: Report of single corners, z = (t - b) / sigma.
        boxes: Report of whole boxes, their residuals whitened by Cholesky's factor, which are those of corners where
            covariances are diagonal. Coverage is that of 4-D ellipsoids, NLL that of the joint density per corner. None
            where all covariances are singular.
        clusters: ECE(z) and ECE(q) of ``boxes`` with bands and intervals by resampling whole images; None with fewer
            than 2 images.
        energy_score: Mean energy score of pairs in pixels, also where a variance is 0.
        scores: Calibration of scores against right and wrong detections.
        facets: Reports of single corners by name of facet, then of group. Intervals and verdicts are corrected for the
            number of groups of a facet.
    """

    rule: MatchingRule
    images: int
    empty_images: int
    detections: int
    truths: int
    matched: int
    ignored: int
    zero_variances: int
    singular_boxes: int
    corners: Report
    boxes: Report | None
    clusters: ClusterReport | None
    energy_score: float
    scores: ScoreReport
    facets: Mapping[str, Mapping[str, Report]] = field(repr=False)

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, strings, lists and dictionaries for JSON; numbers that are not finite become None."""
        document = {f.name: plain(getattr(self, f.name)) for f in fields(self) if f.name not in _REPORTS}
        for name in ("corners", "boxes", "clusters"):
            report = getattr(self, name)
            document[name] = None if report is None else report.as_dict()
        document["facets"] = {
            facet: {name: report.as_dict() for name, report in groups.items()} for facet, groups in self.facets.items()
        }
        return document


_REPORTS = ("corners", "boxes", "clusters", "facets")


@dataclass(frozen=True, kw_only=True)
class BoxOptions:
    """Options of a report of boxes.

    Args:
        df: Number K of squared residuals in a sum q.
        bins: Number S of equal-probability bins, at most 100.
        score_bins: Number of bins of equal width of scores.
        facets: What to group corners by: ``"class"``, ``"corner"``, ``"size"`` (COCO's areas), ``"height"`` (KITTI's),
            ``"edge"`` (objects within a pixel of the border of the image), and, where attributes have them,
            ``"distance"`` and ``"truncation"``; all by default.
        classes: Names of classes 1, 2, ...; their numbers by default.
        tolerance: Relative error of the scale that still counts as calibrated, as for :func:`fcal.evaluate`.
    """

    df: int = 75
    bins: int = 20
    score_bins: int = 20
    facets: Sequence[str] | None = None
    classes: Sequence[str] | None = None
    tolerance: float = 0.05

    def __post_init__(self) -> None:
        Grid(self.df, self.bins)  # rejects what no report can have
        check_number("tolerance", self.tolerance, low=0.0, high=1.0)
        check_integer("bins", self.bins, at_least=2, at_most=100)
        for facet in self.facets or ():
            FACETS[facet]


def box_calibration(
    detections: Iterable[Detections],
    truths: Iterable[Truths],
    *,
    rule: MatchingRule | None = None,
    attributes: Iterable[Attributes] | None = None,
    options: BoxOptions | None = None,
    generator: torch.Generator | None = None,
) -> BoxReport:
    """Are the error bars of detected boxes true?

    Detections are matched with objects by ``rule``; residuals of corners are those of pairs. Images are clusters:
    intervals, bands and tests treat them as independent, not the corners in them. A corner with a variance of 0 has no
    likelihood and no residual: it is left out and counted, as is a box with a singular covariance in ``boxes``.

    A match selects by the error: boxes far from their object are mistakes, not residuals. The less strict the rule, the
    less it selects; :func:`matching_effect` compares rules. Groups by the size, height or distance of objects select a
    little by the error too, where sigma is not small beside the width of a group.

    Args:
        detections: Detections of each image, from a list or a stream.
        truths: Objects of each image. An image without objects counts.
        rule: When a detection and an object are a pair.
        attributes: Of each image, a mapping that may have ``"distance"`` (metres) and ``"truncation"`` (share of the
            object outside the image), one number per object, NaN where unknown; other keys are allowed, so that
            the targets of a data set will do.
        options: Bins, facets and names.
        generator: Source of randomness of resampling; torch's default where None. One number is drawn from it.

    Returns:
        Reports of corners, of whole boxes and of scores.

    Raises:
        TypeError: Not one record per image.
        ValueError: Different numbers of images, no pair, or no error bars at all.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> there = torch.tensor([[20.0, 20.0, 60.0, 50.0], [80.0, 30.0, 99.0, 70.0]])
        >>> labels, noise = torch.tensor([1, 2]), 2 * torch.randn(50, 2, 4, generator=generator)
        >>> truths = [Truths(boxes=there, labels=labels, image_size=(80, 100))] * 50
        >>> detections = [
        ...     Detections.of_sigmas(box, torch.ones(2, 4), scores=torch.tensor([0.9, 0.8]), labels=labels)
        ...     for box in there + noise
        ... ]
        >>> report = box_calibration(detections, truths, generator=generator)
        >>> report.matched, report.corners.verdict, 1.9 < report.corners.scale.value < 2.1
        (100, 'over-confident', True)
        >>> sorted(report.facets["edge"])  # the second object touches the right border
        ['at an edge', 'beside a corner at an edge', 'inside']
    """
    rule, options = rule or MatchingRule(), options or BoxOptions()
    state = match_images(detections, truths, rule=rule, attributes=attributes)
    return box_report(state, rule, options, seed=draw_seed(generator))


def box_report(state: MatchedBoxes, rule: MatchingRule, options: BoxOptions, *, seed: int) -> BoxReport:
    """Report of a state.

    Raises:
        ValueError: No pair, or no error bars at all.
    """
    state = state.in_order()
    sigmas = state.covariances.diagonal(dim1=1, dim2=2).sqrt()
    _check_pairs(state, sigmas)
    image = torch.unique(state.image, return_inverse=True)[1]
    factors, regular = _cholesky_factors(state.covariances)
    boxes, clusters = _whole_boxes(state, factors, regular, image, options, seed)
    return BoxReport(
        rule=rule,
        images=state.count("images"),
        empty_images=state.count("empty_images"),
        detections=state.count("detections"),
        truths=state.count("truths"),
        matched=len(state.boxes),
        ignored=state.count("ignored"),
        zero_variances=int((sigmas == 0).sum()),
        singular_boxes=int((~regular).sum()),
        corners=_single_corners(state, sigmas, image, options),
        boxes=boxes,
        clusters=clusters,
        energy_score=float(energy_score(state.boxes, state.covariances, state.targets).mean()),
        scores=score_calibration(state.scores, state.right, image=state.image_of_score, bins=options.score_bins),
        facets=_facets(state, sigmas, image, options),
    )


def _check_pairs(state: MatchedBoxes, sigmas: Tensor) -> None:
    if not len(state.boxes):
        found, there = state.count("detections"), state.count("truths")
        raise ValueError(
            f"expected `detections` that match an object, got {found} without a match ({there} objects in "
            f"{state.count('images')} images)"
        )
    if int((sigmas > 0).sum()) < 2:
        raise ValueError(
            f"expected `detections` with error bars, got a variance of 0 in {int((sigmas == 0).sum())} of "
            f"{sigmas.numel()} corners"
        )


def _cholesky_factors(covariances: Tensor) -> tuple[Tensor, Tensor]:
    """Factors of covariances, and whether each is positive definite beyond rounding. Shape ``(n, 4, 4)``, ``(n,)``."""
    sigmas = covariances.diagonal(dim1=1, dim2=2).sqrt()
    positive = torch.where(sigmas > 0, sigmas, 1.0)
    correlations = covariances / (positive[:, :, None] * positive[:, None, :])
    factors, failed = torch.linalg.cholesky_ex(correlations)
    pivots = factors.diagonal(dim1=1, dim2=2).square().amin(1)
    regular = (failed == 0) & (sigmas > 0).all(1) & (pivots > _SMALLEST_SHARE)
    return positive[:, :, None] * factors, regular


def _whole_boxes(
    state: MatchedBoxes, factors: Tensor, regular: Tensor, image: Tensor, options: BoxOptions, seed: int
) -> tuple[Report | None, ClusterReport | None]:
    """Report of boxes with their whitened residuals, and its bands."""
    if not bool(regular.any()):
        return None, None
    pred = MultivariateNormal(state.boxes[regular], scale_tril=factors[regular])
    target, image = state.targets[regular], image[regular]
    report = evaluate(pred, target, df=options.df, bins=options.bins, tolerance=options.tolerance, cluster=image)
    if len(torch.unique(image)) < 2:
        return report, None
    generator = torch.Generator().manual_seed(seed)
    return report, cluster_calibration(
        pred, target, cluster=image, df=options.df, bins=options.bins, generator=generator
    )


def _single_corners(
    state: MatchedBoxes,
    sigmas: Tensor,
    image: Tensor,
    options: BoxOptions,
    groups: tuple[Tensor, list[str]] | None = None,
) -> Report:
    """Report of corners whose variance is positive and whose group is known."""
    codes, names = (None, None) if groups is None else groups
    counted = sigmas > 0 if codes is None else (sigmas > 0) & (codes >= 0)
    pred = Normal(state.boxes[counted], sigmas[counted])
    return evaluate(
        pred,
        state.targets[counted],
        df=options.df,
        bins=options.bins,
        tolerance=options.tolerance,
        cluster=image[:, None].expand(-1, 4)[counted],
        group=None if codes is None else codes[counted],
        group_names=names,
    )


def _facets(state: MatchedBoxes, sigmas: Tensor, image: Tensor, options: BoxOptions) -> dict[str, Mapping[str, Report]]:
    reports: dict[str, Mapping[str, Report]] = {}
    for facet in FACETS.names() if options.facets is None else options.facets:
        codes, names = facet_groups(state, facet, options.classes)
        if int(((sigmas > 0) & (codes >= 0)).sum()) >= 2:
            reports[facet] = _single_corners(state, sigmas, image, options, (codes, names)).groups
    return reports
