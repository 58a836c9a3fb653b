"""What the benchmark was set up to show, and whether it does: counts over tables, from their numbers alone."""

from collections.abc import Mapping, Sequence
from typing import Any

from fcal.benchmarks.uci.tables import OUT_OF_FOLD, RIVAL

_AGAINST_RIVAL = 7
_AGAINST_PUBLISHED = 5
_STANDARD_ERRORS = 2.0


def bars(tables: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """For each network: on how many tables the best out-of-fold row reaches its rival and the published figure.

    The best row is the one of the highest mean test log-likelihood, so the choice of it flatters a little; every
    out-of-fold row is counted for itself beside it. Published figures have two decimals, and so has what is compared.

    Args:
        tables: As in the document.

    Returns:
        By network: ``datasets`` with the numbers of each, and counts with the bar they should reach. ``clear`` counts
        tables where the best row is ahead of its rival by more than two standard errors of the paired difference;
        splits share rows, so these are too small. ``ensemble_above`` counts those where an ensemble is better still,
        ``above_unrepaired`` those where the best row is above a network of all rows that nothing repairs, and
        ``calibrated``, for each row, those where its ECE(q) over all splits is not above the rival's.
    """
    return {network: _of(network, tables) for network in dict.fromkeys(one["network"] for one in tables)}


def _of(network: str, tables: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    found = {one["dataset"]: _compared(one) for one in tables if one["network"] == network}
    known = {name: one for name, one in found.items() if one is not None}
    rows = sorted({row for one in known.values() for row in one["rows"]}, key=OUT_OF_FOLD.index)
    return {
        "datasets": known,
        RIVAL: {"reached": sum(one[f"reaches_{RIVAL}"] for one in known.values()), "bar": _AGAINST_RIVAL},
        "published": {"reached": sum(one["reaches_published"] for one in known.values()), "bar": _AGAINST_PUBLISHED},
        "clear": sum(one["clear"] for one in known.values()),
        "ensemble_above": sum(one["ensemble"] is not None and one["ensemble"] > one["ll"] for one in known.values()),
        "above_unrepaired": sum(
            one["unrepaired"] is not None and one["ll"] > one["unrepaired"] for one in known.values()
        ),
        "each": {
            row: {
                "calibrated": sum(row in one["calibrated"] for one in known.values()),
                RIVAL: sum(one["rows"].get(row, float("-inf")) >= one[RIVAL] for one in known.values()),
                "published": sum(_reaches(one["rows"].get(row), one["published"]) for one in known.values()),
            }
            for row in rows
        },
    }


def _compared(one: Mapping[str, Any]) -> dict[str, Any] | None:
    means = {row: one["rows"][row]["ll"]["mean"] for row in (RIVAL, *OUT_OF_FOLD) if row in one["rows"]}
    rival, rows = means.pop(RIVAL, None), {row: value for row, value in means.items() if value is not None}
    if rival is None or not rows:
        return None
    best = max(rows, key=rows.__getitem__)
    published = one["published"].get("ll", {}).get("mean")
    pair = one["paired"].get(f"{best} - {RIVAL}", {})
    return {
        "best": best,
        "ll": rows[best],
        "rows": rows,
        RIVAL: rival,
        "published": published,
        "ensemble": one["rows"]["ensemble"]["ll"]["mean"] if "ensemble" in one["rows"] else None,
        "unrepaired": one["rows"]["nll_all"]["ll"]["mean"] if "nll_all" in one["rows"] else None,
        "calibrated": [row for row in rows if _is_no_worse_calibrated(one, row)],
        "clear": pair.get("se") is not None and pair["mean"] > _STANDARD_ERRORS * pair["se"],
        f"reaches_{RIVAL}": rows[best] >= rival,
        "reaches_published": _reaches(rows[best], published),
    }


def _is_no_worse_calibrated(one: Mapping[str, Any], row: str) -> bool:
    """Whether a row's ECE(q) over all splits is known and not above the rival's."""
    mine, theirs = (one["rows"][name].get("pooled", {}).get("ece_q") for name in (row, RIVAL))
    return mine is not None and theirs is not None and mine <= theirs


def _reaches(value: float | None, published: float | None) -> bool:
    return value is not None and published is not None and round(value, 2) >= published
