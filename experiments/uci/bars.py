"""Goals of the UCI benchmark: on how many tables they are reached."""

from collections.abc import Mapping, Sequence
from typing import Any

from paired import difference

from fcal.benchmarks.markdown import lines_of
from fcal.benchmarks.table import Row, Table
from fcal.benchmarks.uci.task import BASELINE, LOG_LIKELIHOOD

OUT_OF_FOLD = ("oof_temperature", "oof_nll", "oof_fcal")
_AGAINST_BASELINE = 7
_AGAINST_PUBLISHED = 5
_AGAINST_ENSEMBLE = 6
ENSEMBLES = {"oob_auto": "ensemble_3", "oob_auto_5": "ensemble"}  # of the same cost
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
        "out_of_bag": {row: _beside_ensemble(row, ensemble, values) for row, ensemble in ENSEMBLES.items()},
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
        "out_of_bag": _out_of_bag(table),
        "clear": pair.get("se") is not None and pair["mean"] > _STANDARD_ERRORS * pair["se"],
        f"reaches_{BASELINE}": rows[best] >= baseline,
        "reaches_published": _reaches(rows[best], published),
    }


def _out_of_bag(table: Table) -> dict[str, Any]:
    """Out-of-bag ensembles beside ensembles of the same cost: differences paired over splits, and calibration."""
    found = {}
    for row, ensemble in ENSEMBLES.items():
        one, two = (table.rows.get(name) for name in (row, ensemble))
        if one is None or two is None:
            continue
        pairs = zip(one.seeds["ll"], two.seeds["ll"], strict=True)
        share = 1 / 9  # of the standard splits: a tenth of the rows is tested
        log_likelihood = difference([a - b for a, b in pairs if a is not None and b is not None], test_share=share)
        found[row] = {
            "ll": log_likelihood.as_dict(),
            "at_or_above": log_likelihood.mean is not None and log_likelihood.mean >= 0,
            "calibrated": _is_no_worse_calibrated(table, row),
        }
    return found


def _beside_ensemble(row: str, ensemble: str, values: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """On how many tables an out-of-bag ensemble is at or above an ensemble, and not above temperature's ECE(q)."""
    known = [numbers["out_of_bag"][row] for numbers in values if row in numbers["out_of_bag"]]
    return {
        "ensemble": ensemble,
        "tables": len(known),
        "at_or_above": sum(one["at_or_above"] for one in known),
        "clearly_above": sum(one["ll"]["word"] == "above" for one in known),
        "clearly_below": sum(one["ll"]["word"] == "below" for one in known),
        "calibrated": sum(one["calibrated"] for one in known),
        "bar": _AGAINST_ENSEMBLE,
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
    sentences = []
    for row, numbers in counts["out_of_bag"].items():
        if numbers["tables"]:
            sentences.append(
                f"{network}: `{row}` has at least the log-likelihood of `{numbers['ensemble']}` on "
                f"{numbers['at_or_above']} of {numbers['tables']} tables (by the limits of the paired "
                "difference, corrected for splits that share "
                f"rows: above on {numbers['clearly_above']}, below on {numbers['clearly_below']}), and an ECE(q) of "
                f"all splits together not above temperature scaling's on {numbers['calibrated']}; the goal is "
                f"{numbers['bar']} of 8 each."
            )
    sentences += [
        "The best out-of-fold row is at least as good as temperature scaling in log-likelihood on "
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
