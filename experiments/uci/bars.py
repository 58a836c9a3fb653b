"""Goals of the UCI benchmark: on how many tables they are reached."""

from collections.abc import Mapping, Sequence
from typing import Any

from fcal.benchmarks.markdown import lines_of
from fcal.benchmarks.table import Row, Table
from fcal.benchmarks.uci.task import BASELINE, LOG_LIKELIHOOD

OUT_OF_FOLD = ("oof_temperature", "oof_nll", "oof_fcal")
_AGAINST_BASELINE = 7
_AGAINST_PUBLISHED = 5
_STANDARD_ERRORS = 2.0


def bars(tables: Sequence[Table]) -> dict[str, Any]:
    """For each network, on how many tables the best out-of-fold row reaches temperature scaling and published figures.

    The best row is the one of the highest mean test log-likelihood, so its choice is slightly optimistic; every
    out-of-fold row is also counted by itself. Published figures have two decimals, and so has what is compared.

    Args:
        tables: Tables of the benchmark.

    Returns:
        By network: ``datasets`` with the numbers of each, and counts with the bar they should reach. ``clear`` counts
        tables where the best row is ahead of temperature scaling by more than two standard errors of the paired
        difference; splits share rows, so these are too small. ``ensemble_above`` counts those where an ensemble is
        better still, ``above_unrepaired`` those where the best row is above a network of all rows without
        recalibration, and ``calibrated``, for each row, those where its ECE(q) over all splits is not above that of
        temperature scaling.
    """
    networks = dict.fromkeys(table.labels["network"] for table in tables)
    return {network: _of(network, tables) for network in networks}


def _of(network: str, tables: Sequence[Table]) -> dict[str, Any]:
    comparisons = {table.labels["dataset"]: _compared(table) for table in tables if table.labels["network"] == network}
    known = {name: numbers for name, numbers in comparisons.items() if numbers is not None}
    values = list(known.values())
    rows = sorted({row for numbers in values for row in numbers["rows"]}, key=OUT_OF_FOLD.index)
    return {
        "datasets": known,
        BASELINE: {"reached": sum(numbers[f"reaches_{BASELINE}"] for numbers in values), "bar": _AGAINST_BASELINE},
        "published": {"reached": sum(numbers["reaches_published"] for numbers in values), "bar": _AGAINST_PUBLISHED},
        "clear": sum(numbers["clear"] for numbers in values),
        "ensemble_above": sum(
            numbers["ensemble"] is not None and numbers["ensemble"] > numbers["ll"] for numbers in values
        ),
        "above_unrepaired": sum(
            numbers["unrepaired"] is not None and numbers["ll"] > numbers["unrepaired"] for numbers in values
        ),
        "each": {
            row: {
                "calibrated": sum(row in numbers["calibrated"] for numbers in values),
                BASELINE: sum(numbers["rows"].get(row, float("-inf")) >= numbers[BASELINE] for numbers in values),
                "published": sum(_reaches(numbers["rows"].get(row), numbers["published"]) for numbers in values),
            }
            for row in rows
        },
    }


def _compared(table: Table) -> dict[str, Any] | None:
    means = {row: _log_likelihood(table.rows.get(row)) for row in OUT_OF_FOLD}
    baseline, rows = _log_likelihood(table.rows.get(BASELINE)), {row: ll for row, ll in means.items() if ll is not None}
    if baseline is None or not rows:
        return None
    best = max(rows, key=rows.__getitem__)
    published = table.details["published"].get("ll", {}).get("mean")
    pair = table.details["paired"].get(f"{best} - {BASELINE}", {})
    return {
        "best": best,
        "ll": rows[best],
        "rows": rows,
        BASELINE: baseline,
        "published": published,
        "ensemble": _log_likelihood(table.rows.get("ensemble")),
        "unrepaired": _log_likelihood(table.rows.get("nll_all")),
        "calibrated": [row for row in rows if _is_no_worse_calibrated(table, row)],
        "clear": pair.get("se") is not None and pair["mean"] > _STANDARD_ERRORS * pair["se"],
        f"reaches_{BASELINE}": rows[best] >= baseline,
        "reaches_published": _reaches(rows[best], published),
    }


def _log_likelihood(row: Row | None) -> float | None:
    return None if row is None else row.columns["ll"].mean


def _is_no_worse_calibrated(table: Table, row: str) -> bool:
    """Whether a row's ECE(q) over all splits is known and not above that of temperature scaling."""
    own, baseline = (table.rows[name].details.get("pooled", {}).get("ece_q") for name in (row, BASELINE))
    return own is not None and baseline is not None and own <= baseline


def _reaches(value: float | None, published: float | None) -> bool:
    return value is not None and published is not None and round(value, 2) >= published


def bars_markdown(bars: Mapping[str, Any], network: str) -> str:
    """The best out-of-fold row of every table, next to temperature scaling and the published figure."""
    headings = ["", "best out-of-fold row", "its log-likelihood", BASELINE, "ensemble", "published", "no worse than"]
    lines = []
    for name, numbers in bars[network]["datasets"].items():
        reached = [baseline for baseline in (BASELINE, "published") if numbers[f"reaches_{baseline}"]]
        lines.append(
            [
                name,
                numbers["best"],
                *(LOG_LIKELIHOOD.text(numbers[row]) for row in ("ll", BASELINE, "ensemble")),
                f"{numbers['published']:.2f}",
                ", ".join(reached) or "neither",
            ]
        )
    return lines_of(headings, lines)


def bars_sentences(bars: Mapping[str, Any], network: str) -> list[str]:
    """The counts, in words."""
    counts = bars[network]
    total, each = len(counts["datasets"]), counts["each"]
    sentences = [
        f"{network}: the best out-of-fold row is at least as good as temperature scaling in log-likelihood on "
        f"{counts[BASELINE]['reached']} of {total} tables, and at or above the published MC dropout on "
        f"{counts['published']['reached']}. It is ahead of temperature scaling by more than two standard errors of the "
        f"paired difference on {counts['clear']}; the ensemble of five is better still on {counts['ensemble_above']}.",
        "Not all of that is calibration: temperature scaling trains on four fifths of the rows. The best row is above "
        f"a network of all rows that nothing repairs (`nll_all`) on {counts['above_unrepaired']} of {total}. ECE(q) of "
        "all splits together is not above temperature scaling's for "
        + ", ".join(f"{row} on {numbers['calibrated']}" for row, numbers in each.items())
        + ".",
    ]
    alone = [f"{row} alone {numbers[BASELINE]} and {numbers['published']}" for row, numbers in each.items()]
    return [*sentences, *([f"{'; '.join(alone)}."] if alone else [])]
