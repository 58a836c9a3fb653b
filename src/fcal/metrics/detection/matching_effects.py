"""What the matching rule does to the calibration of boxes: the same detections under several rules."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from fcal.metrics.clusters import draw_seed
from fcal.metrics.detection.box_reports import BoxOptions, BoxReport, box_report
from fcal.metrics.detection.matched_boxes import match_images
from fcal.metrics.detection.matching import MatchingRule
from fcal.metrics.detection.records import Detections, Truths
from fcal.metrics.report import plain

RULES: Mapping[str, MatchingRule] = {
    "IoU 0.5": MatchingRule(),
    "IoU 0.3": MatchingRule(iou=0.3),
    "IoU 0.7": MatchingRule(iou=0.7),
    "score 0.5": MatchingRule(score=0.5),
    "any class": MatchingRule(same_class=False),
    "optimal": MatchingRule(assignment="optimal"),
    "many to one": MatchingRule(assignment="many"),
}
_OF_CORNERS = ("rmse", "nll", "crps", "ece_z", "ece_q")
_WIDTH = 7  # of a column, at least


def matching_effect(
    detections: Iterable[Detections],
    truths: Iterable[Truths],
    rules: Mapping[str, MatchingRule] | None = None,
    *,
    options: BoxOptions | None = None,
    generator: torch.Generator | None = None,
) -> "MatchingEffect":
    """Calibration of the same boxes under several matching rules.

    A match selects by the error. Under a strict rule only boxes with small errors remain, and error bars that are right
    for all detections of an object look too wide.

    Args:
        detections: Detections of each image.
        truths: Objects of each image.
        rules: Rules by name; by default that of COCO at an overlap of 0.5, and others that change one choice each.
        options: Bins; facets are not computed.
        generator: Source of randomness of resampling; torch's default where None. One number is drawn from it.

    Returns:
        A report of each rule; as a string, a small table.

    Raises:
        ValueError: No rule, or detections without error bars.
    """
    rules = RULES if rules is None else rules
    if not rules:
        raise ValueError("expected `rules` with at least 1 rule, got 0")
    images = list(detections), list(truths)
    chosen, seed = replace(options or BoxOptions(), facets=()), draw_seed(generator)
    reports: dict[str, BoxReport | None] = {}
    for name, rule in rules.items():
        state = match_images(*images, rule=rule)
        reports[name] = box_report(state, rule, chosen, seed=seed) if len(state.boxes) else None
    return MatchingEffect(reports=reports)


@dataclass(frozen=True, kw_only=True)
class MatchingEffect:
    """The same detections under several matching rules.

    Attributes:
        reports: Report of each rule, without facets; None where it leaves no pair.

    Example:
        >>> boxes, labels = torch.tensor([[0.0, 0.0, 40.0, 20.0]]), torch.tensor([1])
        >>> there = [Truths(boxes=boxes, labels=labels, image_size=(30, 50))] * 3
        >>> found = [
        ...     Detections.of_sigmas(boxes + shift, torch.ones(1, 4), scores=torch.tensor([0.9]), labels=labels)
        ...     for shift in (0.0, 1.0, 3.0)
        ... ]
        >>> rules = {"IoU 0.5": MatchingRule(), "IoU 0.9": MatchingRule(iou=0.9)}
        >>> print(matching_effect(found, there, rules))  # the strict rule leaves out the large error
        rule    matched    rmse     nll ...
        IoU 0.5       3   1.826   2.586 ...
        IoU 0.9       1   0.000   0.919 ...
    """

    reports: Mapping[str, BoxReport | None]

    def rows(self) -> dict[str, dict[str, float | None]]:
        """Numbers of each rule, by name; all None but ``matched`` where it leaves no pair."""
        return {name: _numbers(report) for name, report in self.reports.items()}

    def as_dict(self) -> dict[str, Any]:
        """Rules and numbers for JSON."""
        rules = {name: None if report is None else plain(report.rule) for name, report in self.reports.items()}
        return {"rules": rules, "rows": plain(self.rows())}

    def __str__(self) -> str:
        rows = self.rows()
        columns = list(next(iter(rows.values()))) if rows else []
        width = max(map(len, ("rule", *rows)))
        lines = [" ".join([f"{'rule':<{width}}", *(column.rjust(_WIDTH) for column in columns)])]
        for name, row in rows.items():
            cells = (_cell(row[column]).rjust(max(len(column), _WIDTH)) for column in columns)
            lines.append(" ".join([f"{name:<{width}}", *cells]))
        return "\n".join(lines)


def _numbers(report: BoxReport | None) -> dict[str, float | None]:
    if report is None:
        names = ("matched", *_OF_CORNERS, "scale", "coverage_90", "energy_score", "score_ece")
        return {**dict.fromkeys(names), "matched": 0}
    corners = report.corners
    return {
        "matched": report.matched,
        **{name: getattr(corners, name) for name in _OF_CORNERS},
        "scale": corners.scale.value,
        "coverage_90": corners.coverage["0.9"],
        "energy_score": report.energy_score,
        "score_ece": report.scores.ece.value,
    }


def _cell(value: float | None) -> str:
    return "-" if value is None else str(value) if isinstance(value, int) else f"{value:.3f}"
