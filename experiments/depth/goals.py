"""Claims of the paper and our own goals on depth."""

from bars import Bar, Table, has_rows, not_above, pairs_of
from paired import difference

from fcal.benchmarks.methods import RECOMMENDED

_FCAL = ("fcal_kl", "fcal_wass")
_ACCURACY = 1.05  # largest ratio of SiLog
_FACTORS = {"ece_z": 100.0, "nll": 1.0, "crps": 1.0}


def goals(table: Table) -> list[Bar]:
    """Every goal whose rows the table has."""
    judged = [_better_calibrated(table, row) for row in _FCAL]
    judged += [_accurate(table, row) for row in _FCAL]
    judged += [not_above(table, RECOMMENDED, "temperature", column, factor) for column, factor in _FACTORS.items()]
    judged.append(not_above(table, RECOMMENDED, "ensemble_3", "nll"))
    return [bar for bar in judged if bar is not None]


def _better_calibrated(table: Table, row: str) -> Bar | None:
    """ECE(z) below that of the likelihood, in seeds in which the likelihood is outside its band."""
    if not has_rows(table, row, "nll"):
        return None
    errors = [table["rows"][name]["seeds"]["ece_z"] for name in (row, "nll")]
    bands = table["rows"]["nll"]["bands"]["ece_z"]
    off = [(a, b) for a, b, band in zip(*errors, bands, strict=False) if None not in (a, b) and b > band["q95"]]
    found = difference([a - b for a, b in off])
    goal = f"`{row}`: ECE(z) x100 below that of `nll`, where that is outside its band"
    measured = f"{found.text(100)}, {len(off)} of {table['seeds']} seeds"
    return Bar(goal=goal, reached=found.is_below() if len(off) > 1 else None, measured=measured)


def _accurate(table: Table, row: str) -> Bar | None:
    if not has_rows(table, row, "nll"):
        return None
    found = difference([a / b for a, b in pairs_of(table, row, "nll", "silog")])
    goal = f"`{row}`: SiLog at most {_ACCURACY:g} times that of `nll`"
    return Bar(goal=goal, reached=found.mean is not None and found.mean <= _ACCURACY, measured=f"{found.mean:.3f}")
