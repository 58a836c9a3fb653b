"""Tables of the depth benchmark: its columns, and what stands beside them."""

from collections.abc import Mapping
from typing import Any

from fcal.benchmarks import scoring
from fcal.benchmarks.clustered_tables import ClusteredTable, scale_and_error
from fcal.benchmarks.cost import COST
from fcal.benchmarks.depth.settings import Settings
from fcal.benchmarks.markdown import lines_of, row_label
from fcal.benchmarks.paper_tables import beside_paper, paper_details
from fcal.benchmarks.table import Column, Spread, Table
from fcal.benchmarks.task import Results

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
    *scoring.CALIBRATION,
    Column(
        name="ece_q_within",
        title="ECE(q) in frames",
        description="the same of sums within a frame, which shows that pixels depend on each other",
        factor=100,
    ),
    scoring.NLL,
    scoring.CRPS,
    scoring.ENCE,
    scoring.AUSE,
    scoring.COVERAGE,
    scoring.WIDTH,
    scoring.SIGMA_CORR,
    scoring.TRAIN_S,
    scoring.PREDICT_MS,
    COST,
)
_BY_NAME = {column.name: column for column in COLUMNS}
_TABLE = ClusteredTable(
    columns=tuple(_BY_NAME),
    counted="frames",
    bands=("ece_z", "ece_q", "ece_q_within"),
    kept=("by_distance", "by_row", "by_drive"),
    of_candidates=("silog", "ece_z", "ece_q", "nll"),
)
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
    return _TABLE.of(settings, labels, results, changes, **paper_details("depth", "kitti"))


def paper_section(table: Table) -> tuple[str, str]:
    """The paper's numbers beside ours, with a sentence before them."""
    sentence = (
        "Beside the paper's appendix, whose networks, data (all of KITTI, accumulated ground truth) and bins are "
        "others:"
    )
    return sentence, beside_paper([_BY_NAME[name] for name in _OF_PAPER], table)


def part_section(table: Table, key: str) -> str:
    """Scale of residuals and ECE(z) by range of depth or place in the image, means over seeds; 1 is right."""
    rows = {name: row.details[key] for name, row in table.rows.items() if row.details.get(key)}
    parts = list(dict.fromkeys(part for seeds in rows.values() for seed in seeds for part in seed))
    lines = []
    for name, seeds in rows.items():
        cells = [scale_and_error([seed[part] for seed in seeds if part in seed]) for part in parts]
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
