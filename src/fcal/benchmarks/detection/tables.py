"""Tables of the detection benchmark: their columns, and what stands beside them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.distributions import Normal

from fcal.benchmarks import scoring
from fcal.benchmarks.clustered_tables import ClusteredTable, scale_and_error
from fcal.benchmarks.cost import COST
from fcal.benchmarks.detection.scoring import CORNERS
from fcal.benchmarks.detection.settings import CITYSCAPES, KITTI, MINI, RESIDUALS, STREET, Settings
from fcal.benchmarks.markdown import lines_of, row_label
from fcal.benchmarks.paper_tables import beside_paper, paper_details
from fcal.benchmarks.table import Column, Spread, Table
from fcal.benchmarks.task import Results

_OF_BOXES = (
    Column(name="rmse", title="RMSE", description="root mean square error of the corners, in pixels"),
    Column(name="l1", printed=False, title="L1", description="SmoothL1 of the corners"),
    *scoring.CALIBRATION,
    scoring.NLL,
    scoring.CRPS,
    scoring.ENCE,
    scoring.AUSE,
    scoring.COVERAGE,
    scoring.WIDTH,
    Column(
        name="wdist_z",
        printed=False,
        title="W(z)",
        description="squared Wasserstein distance of a normal law fitted to the residuals from N(0, 1)",
    ),
    Column(name="kld_z", printed=False, title="KL(z)", description="KL divergence of N(0, 1) from that law"),
    Column(name="wdist_q", printed=False, title="W(q)", description="the same of sums of K squared residuals"),
    Column(name="kld_q", printed=False, title="KL(q)", description="the same of these sums"),
    scoring.TRAIN_S,
    scoring.PREDICT_MS,
    COST,
)


def _share(name: str, title: str, description: str = "") -> Column:
    """A column of shares in per cent, the more the better; those without a description are not printed."""
    return Column(
        name=name,
        title=title,
        description=description,
        factor=100,
        percent=True,
        lower_is_better=False,
        printed=bool(description),
    )


_OF_DETECTIONS = (
    _share("map", "mAP", "average precision of COCO, over overlaps of 0.5 to 0.95"),
    _share("ap50", "AP50"),
    _share("ap75", "AP75"),
    _share("mmap", "mMAP", "average precision with confidence contours in place of overlaps"),
    _share("pdq", "PDQ", "probability-based detection quality"),
    _share("pdq_spatial", "PDQ, boxes"),
    _share("pdq_label", "PDQ, classes"),
)
COLUMNS = (*_OF_DETECTIONS, *_OF_BOXES)
_TABLE = ClusteredTable(
    columns=tuple(column.name for column in COLUMNS),
    counted="boxes",
    bands=("ece_z", "ece_q"),
    kept=("by_corner", "at_proposals", "consistency", "kitti", "counts", "residuals", "pairs"),
    of_candidates=("map", "rmse", "ece_z", "ece_q", "nll"),
)
# The two tables of the paper's appendix, and the set beside whose table they stand.
_CONSISTENCY = ("map", "ap50", "ap75", "mmap", "pdq", "pdq_spatial", "pdq_label", "nll")
_CALIBRATION = ("ece_z", "mce_z", "ece_q", "mce_q", "wdist_z", "kld_z", "wdist_q", "kld_q")
_PAPER_OF = {STREET: KITTI, MINI: KITTI, KITTI: KITTI, CITYSCAPES: CITYSCAPES}
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
    shown = _OF_BOXES if labels["set"] == RESIDUALS else COLUMNS
    table = replace(_TABLE, columns=tuple(column.name for column in shown))
    finished = (result for row in results.values() for result in row)
    images: dict[str, int] = next((dict(result["images"]) for result in finished if "images" in result), {})
    paper = paper_details("detection", _PAPER_OF.get(labels["set"], ""))
    return table.of(settings, labels, results, changes, images=images, **paper)


def paper_sections(table: Table) -> list[tuple[str, str]]:
    """The paper's two tables beside ours, with a sentence before each."""
    grid, by_name = table.details["paper_grid"], {column.name: column for column in COLUMNS}
    others = f"whose network, images and matches are others (its S is probably {grid['bins']}, its K {grid['df']})"
    return [
        (f"{name} beside the paper's appendix, {others}:", beside_paper([by_name[key] for key in columns], table))
        for name, columns in (("Consistency", _CONSISTENCY), ("Calibration", _CALIBRATION))
    ]


def kitti_section(table: Table) -> str:
    """Average precision of KITTI by class and difficulty, in per cent; means over seeds."""
    rows = {name: row.details["kitti"] for name, row in table.rows.items() if any(row.details.get("kitti") or [])}
    kinds = [(each, kind) for each, values in next(iter(rows.values()))[0].items() for kind in values] if rows else []
    lines = []
    for name, seeds in rows.items():
        means = (Spread.of([seed[each][kind] for seed in seeds]).mean for each, kind in kinds)
        lines.append([row_label(name, table), *(_MISSING if m is None else f"{100 * m:.1f}" for m in means)])
    return lines_of(["", *(f"{each}, {kind}" for each, kind in kinds)], lines) if lines else ""


def pooled_section(table: Table) -> str:
    """Calibration of the matched boxes of all folds together; empty for sets without folds."""
    shown = (scoring.ECE_Z, scoring.ECE_Q, scoring.COVERAGE)
    lines = []
    for name, row in table.rows.items():
        folds = row.details.get("residuals") or []
        if not folds:
            continue
        scores = _pooled_scores(folds, bins=table.bins, df=table.df)
        pairs = row.details["pairs"]
        nll = sum(count * value for count, value in zip(pairs, row.seeds["nll"], strict=True)) / sum(pairs)
        scale = scores["scale"]
        cells = [f"{sum(pairs):,}", f"{scale['value']:.3g} ({scale['low']:.3g} to {scale['high']:.3g})"]
        for column in shown:
            band = scores["floors"].get(column.name)
            limit = "" if band is None else f" ({column.text(band['q95'])})"
            cells.append(f"{column.text(scores['columns'][column.name])}{limit}")
        lines.append([row_label(name, table), *cells, scoring.NLL.text(nll)])
    headings = ["", "boxes", "scale", *(column.heading for column in shown), scoring.NLL.heading]
    return lines_of(headings, lines) if lines else ""


def _pooled_scores(folds: Sequence[Mapping[str, Any]], *, bins: int, df: int) -> dict[str, Any]:
    """Scores of the residuals of several folds, whose images are different ones."""
    z = torch.cat([torch.tensor(fold["z"], dtype=torch.float64).reshape(-1, 4) for fold in folds])
    images = [torch.tensor(fold["image"]) for fold in folds]
    number = torch.cat([(fold << 32) + image for fold, image in enumerate(images)])
    pred = Normal(torch.zeros_like(z), torch.ones_like(z))
    return scoring.clustered_scores(pred, z, number.unique(return_inverse=True)[1], bins=bins, df=df)


def corner_section(table: Table) -> str:
    """Scale of residuals and ECE(z) of each corner coordinate, means over seeds; 1 is right."""
    lines = []
    for name, row in table.rows.items():
        seeds = row.details.get("by_corner") or []
        if seeds:
            cells = (scale_and_error([seed[corner] for seed in seeds]) for corner in CORNERS)
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
