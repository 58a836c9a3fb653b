"""Tables of the detection benchmark: their columns, and what stands beside them."""

from collections.abc import Mapping, Sequence
from typing import Any

from fcal.benchmarks.cost import COST, with_cost
from fcal.benchmarks.detection.scoring import CORNERS
from fcal.benchmarks.detection.settings import RESIDUALS, Settings
from fcal.benchmarks.markdown import lines_of, row_label
from fcal.benchmarks.scoring import (
    COVERAGE,
    CRPS,
    ECE_Q,
    ECE_Z,
    ENCE,
    MCE_Q,
    MCE_Z,
    NLL,
    PREDICT_MS,
    TRAIN_S,
    WIDTH,
)
from fcal.benchmarks.table import Column, Row, Spread, Table, candidates_of, row_of
from fcal.benchmarks.task import Result, Results

_OF_BOXES = (
    Column(name="rmse", title="RMSE", description="root mean square error of the corners, in pixels"),
    Column(name="l1", printed=False, title="L1", description="SmoothL1 of the corners"),
    ECE_Z,
    MCE_Z,
    ECE_Q,
    MCE_Q,
    NLL,
    CRPS,
    ENCE,
    Column(name="ause", printed=False, title="AUSE", description="area between sparsification curves"),
    COVERAGE,
    WIDTH,
    TRAIN_S,
    PREDICT_MS,
    COST,
)
_OF_DETECTIONS = (
    Column(
        name="map",
        title="mAP",
        description="average precision of COCO, over overlaps of 0.5 to 0.95",
        factor=100,
        percent=True,
        lower_is_better=False,
    ),
    Column(name="ap50", printed=False, title="AP50", factor=100, percent=True, lower_is_better=False),
    Column(name="ap75", printed=False, title="AP75", factor=100, percent=True, lower_is_better=False),
    Column(
        name="mmap",
        title="mMAP",
        description="average precision with confidence contours in place of overlaps",
        factor=100,
        percent=True,
        lower_is_better=False,
    ),
    Column(
        name="pdq",
        title="PDQ",
        description="probability-based detection quality",
        factor=100,
        percent=True,
        lower_is_better=False,
    ),
    Column(name="pdq_spatial", printed=False, title="PDQ, boxes", factor=100, percent=True, lower_is_better=False),
    Column(name="pdq_label", printed=False, title="PDQ, classes", factor=100, percent=True, lower_is_better=False),
)
COLUMNS = (*_OF_DETECTIONS, *_OF_BOXES)
_OF_CANDIDATES = ("map", "rmse", "ece_z", "ece_q", "nll")
_AT_PROPOSALS = ("ece_z", "ece_q", "nll", "coverage")
_MISSING = "-"


def detection_table(
    settings: Settings, labels: Mapping[str, str], results: Results, changes: Mapping[str, Mapping[str, Any]]
) -> Table:
    """The table of one set.

    Args:
        settings: Of the benchmark.
        labels: Its set.
        results: Results of the rows' cells, one per seed.
        changes: Options of methods that the task sets otherwise.
    """
    finished = [result for row in results.values() for result in row if "boxes" in result]
    boxes = dict(finished[0]["boxes"]) if finished else {}
    if boxes:
        results = with_cost(settings, results, (boxes["train"], boxes["validation"]), changes)
    shown = _OF_BOXES if labels["set"] == RESIDUALS else COLUMNS
    columns = tuple(column.name for column in shown)
    return Table(
        labels=labels,
        seeds=settings.seeds,
        bins=settings.bins,
        df=settings.df,
        n_test=next((result["n"] for result in finished), 0),
        columns=columns,
        rows={name: _row(repetitions, columns) for name, repetitions in results.items()},
        floors=_floors(results),
        details={"boxes": boxes, "images": next((result["images"] for result in finished if "images" in result), {})},
    )


def _row(results: Sequence[Result], columns: tuple[str, ...]) -> Row:
    known = [result for result in results if "floors" in result]
    details: dict[str, Any] = {}
    if known:
        names = ("ece_z", "ece_q")
        details["bands"] = {name: [result["floors"].get(name) for result in known] for name in names}
        for name in ("by_corner", "at_proposals", "consistency", "counts"):
            details |= {name: [result[name] for result in known]} if name in known[0] else {}
    with_candidates = [result for result in results if "candidates" in result]
    if with_candidates:
        details["candidates"] = candidates_of(with_candidates, _OF_CANDIDATES)
    return row_of(results, columns, **details)


def _floors(results: Results) -> dict[str, Any]:
    """Scores of a calibrated model whose boxes depend on each other as those of the oracle, or the first row, do."""
    known = [result for row in ("oracle", *results) for result in results.get(row, ()) if "floors" in result]
    return dict(known[0]["floors"]) if known else {}


def corner_section(table: Table) -> str:
    """Scale of residuals and ECE(z) of each corner coordinate, means over seeds; 1 is right."""
    lines = []
    for name, row in table.rows.items():
        seeds = row.details.get("by_corner") or []
        cells = []
        for corner in CORNERS:
            scale, ece = (Spread.of([seed[corner][value] for seed in seeds]).mean for value in ("scale", "ece_z"))
            cells.append(_MISSING if scale is None or ece is None else f"{scale:.3g} ({100 * ece:.3g})")
        if seeds:
            lines.append([row_label(name, table), *cells])
    return lines_of(["", *CORNERS], lines) if lines else ""


def consistency_section(table: Table) -> str:
    """Share of objects within each contour of the detections that overlap with them, in per cent; means over seeds."""
    lines, contours = [], []
    for name, row in table.rows.items():
        seeds = row.details.get("consistency") or []
        if seeds:
            contours = list(seeds[0])
            means = (Spread.of([seed[contour] for seed in seeds]).mean for contour in contours)
            lines.append([row_label(name, table), *(_MISSING if m is None else f"{100 * m:.1f}" for m in means)])
    return lines_of(["contour", *contours], lines) if lines else ""


def proposal_section(table: Table) -> str:
    """Calibration at all proposals of objects, as in training, before suppression; means over seeds."""
    columns = [column for column in COLUMNS if column.name in _AT_PROPOSALS]
    lines = []
    for name, row in table.rows.items():
        seeds = row.details.get("at_proposals") or []
        if seeds:
            means = (Spread.of([seed.get(column.name) for seed in seeds]).mean for column in columns)
            lines.append(
                [row_label(name, table), *(column.text(mean) for column, mean in zip(columns, means, strict=True))]
            )
    return lines_of(["", *(column.heading for column in columns)], lines) if lines else ""
