"""The page of depth results in the docs, written from finished cells."""

from matplotlib.figure import Figure

from depth.bars import bars, bars_markdown
from depth.tradeoff import tradeoff
from fcal.benchmarks import Benchmark, Table
from fcal.benchmarks.depth import Settings
from fcal.benchmarks.depth.task import DEPTH
from fcal.benchmarks.markdown import failures, results_markdown
from fcal.benchmarks.methods import row_styles
from fcal.plots import calibration_sheet
from fcal.plots.styles import footnotes
from fcal.sweeps import Store

PRESETS = ("street", "kitti-mini")
_RULE = (
    "The band of a calibration error is that of calibrated models whose pixels depend on each other as those of the "
    "oracle, or of the first row, do, by resampling whole frames; other rows depend more, and have wider bands of "
    "their own (`bands` in the JSON file). ECE(q) in frames sums pixels of one frame: it shows dependence.\n"
)
_NOT_ABOVE = (
    "Below means that the upper limit of the paired difference is below 0, not above that its lower limit is not above "
    "0.\n"
)


def page(benchmark: Benchmark[Settings], facts: str) -> str:
    """Every world with its table, and the goals."""
    columns = {column.name: column for column in DEPTH.columns}
    parts = [
        "# Depth: results\n",
        "Written by `experiments/publish.py depth` from the cells in [depth/cells.jsonl](depth/cells.jsonl); all "
        "numbers, unrounded, in [depth/results.json](depth/results.json). [What is compared](../depth.md).\n",
        *(f"{note}\n" for note in (*DEPTH.notes, *footnotes(columns, columns))),
        _RULE,
        *map(_table_part, benchmark.tables),
    ]
    return "\n".join([*parts, facts])


def _table_part(table: Table) -> str:
    document, frames = table.as_dict(), table.details["frames"]
    title = DEPTH.table_title(table)
    parts = [
        f"## {title[0].upper()}{title[1:]}\n",
        f"{frames['train']:,} frames to train on, {frames['validation']:,} to choose by, {frames['test']:,} to test: "
        f"n = {table.n_test:,} pixels; S = {table.bins}, K = {table.df}; "
        f"{'mean ± sd over ' if table.seeds > 1 else ''}{table.seeds} seed{'s' if table.seeds > 1 else ''}.\n",
        results_markdown(DEPTH.columns, table),
        *(f"{failure}.\n" for failure in failures(table)),
    ]
    for sentence, text in DEPTH.sections(table):
        parts += [f"{sentence}\n", text]
    judged = bars_markdown(bars(document))
    parts += [f"Goals. {_NOT_ABOVE}", judged] if judged else []
    world = table.labels["world"]
    parts += [
        "Accuracy against calibration; lines join the weights of a calibration loss (small numbers), dots are rows:\n",
        f"![accuracy against calibration](depth/tradeoff-{world}.png)\n",
        f"![calibration](depth/calibration-{world}.png)\n",
    ]
    return "\n".join(parts)


def pictures(benchmark: Benchmark[Settings]) -> dict[str, Figure]:
    """Trade-off of every world, and calibration of its first seed."""
    drawn = {}
    for table in benchmark.tables:
        results = benchmark.results[tuple(table.labels.values())]
        shown = {
            DEPTH.table_title(table): {**table.as_dict(), **DEPTH.for_pictures(benchmark.settings, table, results)}
        }
        world = table.labels["world"]
        drawn[f"calibration-{world}"] = calibration_sheet(shown, rows=row_styles(table.rows))
        drawn[f"tradeoff-{world}"] = tradeoff(table.as_dict())
    return drawn


def more_files(benchmark: Benchmark[Settings], store: Store) -> dict[str, str]:
    """The part of the page of claims."""
    del store
    parts = ["[Results](results/depth.md).\n"]
    for table in benchmark.tables:
        judged = bars_markdown(bars(table.as_dict()))
        parts += [f"{DEPTH.table_title(table)}:\n", judged] if judged else []
    return {"depth/claims.md": "\n".join(parts)}
