"""The page of UCI results in the docs, written from finished cells."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from fcal.benchmarks.markdown import failures, results_markdown
from fcal.benchmarks.runner import Benchmark
from fcal.benchmarks.table import Table
from fcal.benchmarks.uci import UCI, Settings
from fcal.benchmarks.uci.task import BASELINE
from fcal.sweeps import Cell
from uci.bars import bars, bars_markdown, bars_sentences

_PICTURE = "log-likelihood"
_DRAWN = ("ensemble_3", "oob_auto", "ensemble", "oob_auto_5", "oof_nll")
_MARKERS = "os^Dv"
_ABOUT_NUMBERS = (
    "ECE(z) and ECE(q) of a split have S bins and sums of K squared residuals, fewer of both for small tables: "
    "S = n / 15 within 5 and 20, K = n / 8 within 5 and 75. Residuals of all splits together are judged by the same "
    "rule; splits share rows, so its floor is a little too low. `train_s` is processor time of one split's share of "
    "stacked trainings. Published: MC dropout with a network of one layer of 50 units (100 for protein), after a grid "
    "search, from the repository of the splits."
)
_ABOUT_BEST = (
    "The best row is the one that is best on the test rows, which flatters it a little; the counts of each row alone "
    "are above. Published figures have two decimals, and so has what is compared with them."
)


def page(benchmark: Benchmark[Settings], facts: str) -> str:
    """The page as Markdown.

    Args:
        benchmark: Finished tables.
        facts: Commits, machine and settings of the cells, as Markdown, for the end of the page.
    """
    counts = bars(benchmark.tables)
    unfinished = _unfinished(benchmark)
    parts = [
        "# UCI: results\n",
        "Written by `experiments/publish.py` from the cells in [uci/cells.jsonl](uci/cells.jsonl); all numbers, "
        "unrounded and split by split, in [uci/results.json](uci/results.json).\n",
        *(f"{note}\n" for note in UCI.notes),
        f"{_ABOUT_NUMBERS}\n",
        *([f"Not finished yet: {', '.join(unfinished)}.\n"] if unfinished else []),
        "## In short\n",
    ]
    for network, numbers in counts.items():
        if numbers["datasets"]:
            parts += [f"{sentence}\n" for sentence in bars_sentences(counts, network)]
            parts.append(bars_markdown(counts, network))
    parts += [f"{_ABOUT_BEST}\n", f"![log-likelihood beside that of temperature scaling](uci/{_PICTURE}.png)\n"]
    return "\n".join([*parts, *map(_table_part, benchmark.tables), facts])


def _unfinished(benchmark: Benchmark[Settings]) -> list[str]:
    """Tables that lack rows, or are not there."""
    known = {tuple(table.labels.values()): set(table.rows) for table in benchmark.tables}
    names = []
    for network in benchmark.settings.networks:
        for dataset in benchmark.settings.datasets:
            missing = set(UCI.rows_of_1x50 if network == "1x50" else UCI.rows) - known.get((dataset, network), set())
            if missing:
                names.append(f"{dataset} {network}")
    return names


def _table_part(table: Table) -> str:
    parts = [
        f"## {table.labels['dataset']}, {table.labels['network']}\n",
        f"n = {table.n_test:,} rows to test on in each split; S = {table.bins}, K = {table.df}; mean ± standard error "
        f"over {table.seeds} splits.\n",
        results_markdown(UCI.columns, table, error=UCI.error, beside=UCI.beside(table)),
        *(f"{sentence}.\n" for sentence in failures(table)),
    ]
    for sentence, text in UCI.sections(table):
        parts += [f"{sentence}\n", text]
    return "\n".join(parts)


def more_cells(settings: Settings, rows: Sequence[Any]) -> list[Cell]:
    """The trainings that rows share, which have the chosen epochs."""
    del settings
    return [cell for row in rows for cell in row.cell.needs]


def pictures(benchmark: Benchmark[Settings]) -> dict[str, Figure]:
    """Paired differences of log-likelihood to temperature scaling, table by table."""
    networks = list(dict.fromkeys(table.labels["network"] for table in benchmark.tables))
    figure = Figure(figsize=(5.0 * len(networks), 4.2), layout="constrained")
    axes = figure.subplots(1, len(networks), sharey=True, squeeze=False)[0]
    for axis, network in zip(axes, networks, strict=True):
        tables = [table for table in benchmark.tables if table.labels["network"] == network]
        for number, row in enumerate(_DRAWN):
            _draw_row(axis, number, row, [table.details["paired"].get(f"{row} - {BASELINE}") for table in tables])
        axis.axhline(0, color="0.4", linewidth=0.8)
        axis.set_xticks(range(len(tables)), [table.labels["dataset"] for table in tables], rotation=45, ha="right")
        axis.set_title(f"network {network}", fontsize=10)
    axes[0].set_ylabel("log-likelihood minus that of temperature\n(bars: two standard errors)")
    axes[0].legend(fontsize=8)
    return {_PICTURE: figure}


def _draw_row(axis: Any, number: int, row: str, pairs: list[dict[str, Any] | None]) -> None:
    known = [(index, pair) for index, pair in enumerate(pairs) if pair is not None]
    axis.errorbar(
        [index + 0.13 * (number - 2) for index, _ in known],
        [pair["mean"] for _, pair in known],
        yerr=[2 * (pair["se"] or 0.0) for _, pair in known],
        fmt=_MARKERS[number],
        markersize=4,
        linewidth=1,
        label=row,
    )
