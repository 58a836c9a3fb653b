"""What the tables of a benchmark showed, in at most three sentences."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean

from fcal.benchmarks.methods import RECOMMENDED, row_styles
from fcal.benchmarks.table import DONE, Column, Table
from fcal.reports.results_table import Score, within_noise

_ERROR, _SCORE = "ece_z", "crps"  # of calibration, and of calibration and accuracy together
_ALONE = "nll"
_REPAIRED = "temperature"
_ENSEMBLES = ("ensemble", "ensemble_3")  # the first that a table has


def conclusion(tables: Sequence[Table], columns: Sequence[Column]) -> list[str]:
    r"""Sentences that compare the recommended row with plain training, with temperature scaling and with an ensemble.

    A difference counts if it is beyond the noise: more than twice its standard error, paired over seeds.

    Args:
        tables: Finished tables.
        columns: Columns of the benchmark, for their titles.

    Returns:
        At most three sentences; without the recommended row, one on the best rows.

    Example:
        >>> from fcal.benchmarks.table import Row, Spread
        >>> rows = {
        ...     name: Row(columns={"crps": Spread(x, 0.01)}, seeds={"crps": [x - 0.01, x, x + 0.01]}, finished=3)
        ...     for name, x in (("nll", 0.5), ("oob_auto", 0.4))
        ... }
        >>> table = Table(
        ...     labels={"name": "a"}, seeds=3, bins=20, df=75, n_test=100, columns=("crps",), rows=rows, floors={}
        ... )
        >>> print(*conclusion([table], [Column(name="crps", title="CRPS")]), sep="\n")
        Out-of-bag ensemble (recommended) against NLL: CRPS 20 % lower (clearly lower).
    """
    titles = {column.name: column.title for column in columns if column.name in (_ERROR, _SCORE)}
    names = {name for table in tables for name in table.rows}
    ensemble = [name for name in _ENSEMBLES if name in names][:1]
    rivals = [name for name in (_ALONE, _REPAIRED, *ensemble) if name in names]
    styles = row_styles([RECOMMENDED, *rivals])
    clauses = []
    for rival in rivals:
        parts = filter(None, (_compared(tables, rival, column, title) for column, title in titles.items()))
        clauses += [f"{styles[rival].full_title}: {text}" for text in ["; ".join(parts)] if text]
    if not clauses:
        return _best_rows(tables, titles)
    sentences = [f"{_capitalized(styles[RECOMMENDED].full_title)} against {clauses[0]}."]
    if len(clauses) > 1:
        sentences.append(f"Against {'; against '.join(clauses[1:])}.")
    return [*sentences, *_reservations(tables, titles)]


def _compared(tables: Sequence[Table], rival: str, column: str, title: str) -> str:
    """How a column of the recommended row compares with that of another, over all tables that have both."""
    ratios, lower, higher = [], 0, 0
    for table in tables:
        ours, theirs = _score(table, RECOMMENDED, column), _score(table, rival, column)
        if not ours or not theirs or not ours.mean or not theirs.mean or ours.mean * theirs.mean < 0:
            continue
        ratios.append(math.log(ours.mean / theirs.mean))
        clear = table.seeds < 2 or not within_noise(ours, theirs, table.seeds)  # of one seed no noise is known
        lower += clear and ours.mean < theirs.mean
        higher += clear and ours.mean > theirs.mean
    if not ratios:
        return ""
    clearly = "clearly " if any(table.seeds > 1 for table in tables) else ""
    return f"{title} {_change(math.expm1(fmean(ratios)))} ({_counts(clearly, lower, higher, len(ratios))})"


def _change(change: float) -> str:
    """A relative change in words.

    Example:
        >>> _change(-0.2), _change(0.004), _change(2.0)
        ('20 % lower', 'the same', '3.0 times as high')
    """
    if abs(change) < 0.005:
        return "the same"
    if change >= 1:
        return f"{1 + change:.1f} times as high"
    return f"{abs(100 * change):.0f} % {'lower' if change < 0 else 'higher'}"


def _counts(clearly: str, lower: int, higher: int, count: int) -> str:
    """In how many tables a difference was seen.

    Example:
        >>> _counts("clearly ", 3, 1, 5), _counts("", 0, 0, 1)
        ('clearly lower in 3 of 5 tables, clearly higher in 1', 'within the noise')
    """
    if not lower and not higher:
        return "within the noise"
    (word, number), *rest = [(w, n) for w, n in (("lower", lower), ("higher", higher)) if n]
    if count == 1:
        return f"{clearly}{word}" if clearly else "in one table"
    more = "".join(f", {clearly}{w} in {n}" for w, n in rest)
    return f"{clearly}{word} in {number} of {_tables(count)}{more}"


def _tables(count: int) -> str:
    return f"{count} table{'s' if count > 1 else ''}"


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


def _score(table: Table, row: str, column: str) -> Score | None:
    entry = table.rows.get(row)
    if entry is None or entry.status != DONE or column not in entry.columns:
        return None
    spread = entry.columns[column]
    return Score(spread.mean, spread.sd, tuple(entry.seeds.get(column, ())))


def _reservations(tables: Sequence[Table], titles: Mapping[str, str]) -> list[str]:
    """In how many tables the recommended row is where calibrated models are; and what one seed means."""
    known = [(_score(table, RECOMMENDED, _ERROR), table.floors.get(_ERROR)) for table in tables]
    limits = [(score.mean, floor["q95"]) for score, floor in known if score and score.mean is not None and floor]
    parts = []
    if limits:
        reached = sum(value <= q95 for value, q95 in limits)
        parts.append(f"its {titles[_ERROR]} is what calibrated models reach in {reached} of {_tables(len(limits))}")
    if any(table.seeds < 2 for table in tables):
        parts.append("of one seed, differences may be noise")
    return [f"{_capitalized('; '.join(parts))}."] if parts else []


def _best_rows(tables: Sequence[Table], titles: Mapping[str, str]) -> list[str]:
    """The row that has the lowest mean of a column in the most tables."""
    parts = []
    for column, title in titles.items():
        best = Counter(name for table in tables if (name := _best_row(table, column)))
        for name, count in best.most_common(1):
            where = f"{count} of {_tables(best.total())}"
            parts.append(f"{title} is lowest for {row_styles([name])[name].full_title} in {where}")
    return [f"{'; '.join(parts)}."] if parts else []


def _best_row(table: Table, column: str) -> str | None:
    styles = row_styles(table.rows)
    scores = {name: _score(table, name, column) for name in table.rows if not styles[name].reference}
    means = {name: score.mean for name, score in scores.items() if score and score.mean is not None}
    return min(means, key=lambda name: means[name]) if len(means) > 1 else None
