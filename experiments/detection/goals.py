"""Claims of the paper and our own goals on detection."""

from bars import Bar, Table, has_rows, not_above, pairs_of
from paired import difference

from fcal.benchmarks.methods import RECOMMENDED

_FCAL = ("fcal_kl", "fcal_wass")
_SHARE = 0.5  # of the excess of ECE(q) over the floor
_PRECISION = 0.97  # smallest ratio of mAP
_FACTORS = {"ece_q": 100.0, "nll": 1.0, "crps": 1.0}


def goals(table: Table) -> list[Bar]:
    """Every goal whose rows the table has."""
    judged: list[Bar | None] = []
    if "map" in table["columns"]:
        judged += [_better_calibrated(table), _precise(table)]
    for other in ("temperature", "conformal"):  # the second is no goal, but what a reader would compare with
        judged += [not_above(table, RECOMMENDED, other, column, factor) for column, factor in _FACTORS.items()]
    return [bar for bar in judged if bar is not None]


def _chosen(table: Table) -> str:
    """KL or Wasserstein, by the likelihood of validation images, as mean over seeds."""

    def validation_nll(row: str) -> float:
        return min(float(record["validation_nll"]["mean"]) for record in table["rows"][row]["candidates"])

    return min(_FCAL, key=validation_nll)


def _better_calibrated(table: Table) -> Bar | None:
    """ECE(q) less its floor at most half of that of the likelihood, in seeds in which that is outside its band."""
    if not has_rows(table, *_FCAL, "nll"):
        return None
    row, floor = _chosen(table), table["floors"]["ece_q"]["expected"]
    bands = table["rows"]["nll"]["bands"]["ece_q"]
    pairs = zip(pairs_of(table, row, "nll", "ece_q"), bands, strict=False)
    off = [(a - floor, b - floor) for (a, b), band in pairs if b > band["q95"]]
    found = difference([a - _SHARE * b for a, b in off])
    shares = ", ".join(f"{a / b:.2f}" for a, b in off)
    goal = f"`{row}`, chosen on validation: ECE(q) less its floor at most half of that of `nll`, where that is off"
    measured = f"ratios {shares or '-'}; {len(off)} of {table['seeds']} seeds"
    return Bar(goal=goal, reached=found.mean <= 0 if found.mean is not None else None, measured=measured)


def _precise(table: Table) -> Bar | None:
    if not has_rows(table, *_FCAL, "nll"):
        return None
    row = _chosen(table)
    found = difference([a / b for a, b in pairs_of(table, row, "nll", "map") if b])
    goal = f"`{row}`: mAP at least {_PRECISION:g} times that of `nll`"
    return Bar(goal=goal, reached=found.mean is not None and found.mean >= _PRECISION, measured=f"{found.mean:.3f}")
