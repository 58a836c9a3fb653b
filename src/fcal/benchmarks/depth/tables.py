"""Tables of the depth benchmark: its columns, and what stands beside them."""

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from fcal.benchmarks.cost import COST, with_cost
from fcal.benchmarks.depth.settings import Settings
from fcal.benchmarks.markdown import lines_of, row_label, spread_text
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
    SIGMA_CORR,
    TRAIN_S,
    WIDTH,
)
from fcal.benchmarks.table import Column, Row, Spread, Table, candidates_of, row_of
from fcal.benchmarks.task import Result, Results

_POOLED = "over all pixels of all frames together"
COLUMNS = (
    Column(
        name="silog",
        title="SiLog",
        description=f"sd of the log of predicted by measured depth, {_POOLED}",
        factor=100,
    ),
    Column(name="rmse", title="RMSE", description=f"root mean square error in metres, {_POOLED}"),
    Column(name="abs_rel", title="AbsRel", description="mean of |error| / depth", factor=100),
    Column(
        name="d1",
        title="d1",
        description="share of pixels whose depth is within a factor of 1.25",
        factor=100,
        percent=True,
        lower_is_better=False,
    ),
    Column(name="l1_gt", printed=False, title="L1(GT)", description="SmoothL1 of the mean to the depth without noise"),
    Column(name="l1", printed=False, title="L1", description="SmoothL1 of the mean to the measured depth"),
    ECE_Z,
    MCE_Z,
    ECE_Q,
    MCE_Q,
    Column(
        name="ece_q_within",
        title="ECE(q) in frames",
        description="the same of sums within a frame, which shows that pixels depend on each other",
        factor=100,
    ),
    NLL,
    CRPS,
    ENCE,
    Column(name="ause", printed=False, title="AUSE", description="area between sparsification curves"),
    COVERAGE,
    WIDTH,
    SIGMA_CORR,
    TRAIN_S,
    PREDICT_MS,
    COST,
)
_BY_NAME = {column.name: column for column in COLUMNS}
_OF_CANDIDATES = ("silog", "ece_z", "ece_q", "nll")
_OF_PAPER = ("silog", "rmse", "ece_z", "ece_q", "nll")
_MISSING = "-"


def depth_table(
    settings: Settings, labels: Mapping[str, str], results: Results, changes: Mapping[str, Mapping[str, Any]]
) -> Table:
    """The table of one world.

    Args:
        settings: Of the benchmark.
        labels: Its world.
        results: Results of the rows' cells, one per seed.
        changes: Options of methods that the task sets otherwise.
    """
    finished = [result for row in results.values() for result in row if "frames" in result]
    frames = dict(finished[0]["frames"]) if finished else {}
    if frames:
        results = with_cost(settings, results, (frames["train"], frames["validation"]), changes)
    return Table(
        labels=labels,
        seeds=settings.seeds,
        bins=settings.bins,
        df=settings.df,
        n_test=next((result["n"] for result in finished), 0),
        columns=tuple(_BY_NAME),
        rows={name: _row(repetitions) for name, repetitions in results.items()},
        floors=_floors(results),
        details={"frames": frames, "paper": paper_numbers()},
    )


def _row(results: Sequence[Result]) -> Row:
    known = [result for result in results if "floors" in result]
    details: dict[str, Any] = {}
    if known:
        details["bands"] = {
            name: [result["floors"].get(name) for result in known] for name in ("ece_z", "ece_q", "ece_q_within")
        }
        for name in ("by_distance", "by_row", "by_drive"):
            details |= {name: [result[name] for result in known]} if name in known[0] else {}
    with_candidates = [result for result in results if "candidates" in result]
    if with_candidates:
        details["candidates"] = candidates_of(with_candidates, _OF_CANDIDATES)
    return row_of(results, tuple(_BY_NAME), **details)


def _floors(results: Results) -> dict[str, Any]:
    """Scores of a calibrated model whose pixels depend on each other as those of the oracle, or the first row, do."""
    known = [result for row in ("oracle", *results) for result in results.get(row, ()) if "floors" in result]
    return dict(known[0]["floors"]) if known else {}


def paper_numbers() -> dict[str, Any]:
    """What the paper's appendix reports for depth on KITTI, by method.

    Example:
        >>> paper_numbers()["nll"]["rmse"]["mean"]
        2.85
    """
    text = resources.files("fcal.benchmarks.depth").joinpath("paper.json").read_text(encoding="utf-8")
    return {
        method: {column: dict(zip(("mean", "sd"), pair, strict=True)) for column, pair in columns.items()}
        for method, columns in json.loads(text)["rows"].items()
    }


def paper_section(table: Table) -> tuple[str, str]:
    """The paper's numbers beside ours, with a sentence before them."""
    rows = {name: row for name, row in table.details["paper"].items() if name in table.rows}
    headings = ["", *(f"{_BY_NAME[name].heading}, {who}" for name in _OF_PAPER for who in ("ours", "paper"))]
    lines = []
    for name, paper in rows.items():
        cells = []
        for column in (_BY_NAME[key] for key in _OF_PAPER):
            cells += [spread_text(column, table.rows[name].columns[column.name])]
            cells += [spread_text(column, paper.get(column.name, {}))]
        lines.append([name, *cells])
    sentence = (
        "Beside the paper's appendix, whose networks, data (all of KITTI, accumulated ground truth) and bins are "
        "others:"
    )
    return sentence, lines_of(headings, lines) if lines else ""


def part_section(table: Table, key: str) -> str:
    """Scale of residuals and ECE(z) by range of depth or place in the image, means over seeds; 1 is right."""
    rows = {name: row.details[key] for name, row in table.rows.items() if row.details.get(key)}
    parts = list(dict.fromkeys(part for seeds in rows.values() for seed in seeds for part in seed))
    lines = []
    for name, seeds in rows.items():
        cells = []
        for part in parts:
            numbers = [seed[part] for seed in seeds if part in seed]
            scale, ece = (Spread.of([entry[value] for entry in numbers]).mean for value in ("scale", "ece_z"))
            cells.append(_MISSING if scale is None or ece is None else f"{scale:.3g} ({100 * ece:.3g})")
        lines.append([row_label(name, table), *cells])
    return lines_of(["", *parts], lines) if lines else ""


def drive_section(table: Table) -> str:
    """SiLog and scale of residuals of every row, drive by drive, means over seeds."""
    rows = {name: row.details["by_drive"] for name, row in table.rows.items() if row.details.get("by_drive")}
    frames = {drive: entry["frames"] for seeds in rows.values() for seed in seeds for drive, entry in seed.items()}
    lines = []
    for drive, count in frames.items():
        cells = []
        for seeds in rows.values():
            numbers = [seed[drive] for seed in seeds if drive in seed]
            silog, scale = (Spread.of([entry[value] for entry in numbers]).mean for value in ("silog", "scale"))
            cells.append(_MISSING if silog is None or scale is None else f"{100 * silog:.3g} / {scale:.3g}")
        lines.append([f"{drive} ({count})", *cells])
    return lines_of(["drive (frames)", *(row_label(name, table) for name in rows)], lines) if lines else ""
