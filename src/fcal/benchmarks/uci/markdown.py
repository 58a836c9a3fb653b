"""Tables of the benchmark as text, for terminals and the docs: written from the document, never typed."""

from collections.abc import Mapping, Sequence
from typing import Any

from fcal.benchmarks.titles import COLUMN_STYLES
from fcal.benchmarks.uci.rows import LEVELS
from fcal.benchmarks.uci.tables import RIVAL
from fcal.plots.styles import column_style

Table = Mapping[str, Any]
_FACTORS = {"ece_z": 100, "ece_q": 100, **dict.fromkeys(LEVELS, 100)}
_WIDER = ("ece_z", "ece_q")  # whose factor is named; a share times 100 is per cent
_MISSING = "-"


def title_of(column: str) -> str:
    """What a column is called where its numbers are scaled.

    Example:
        >>> title_of("ece_q"), title_of("coverage"), title_of("ll")
        ('ECE(q) x100', 'in 90 %', 'log-likelihood')
    """
    return column_style(COLUMN_STYLES, column).title + (" x100" if column in _WIDER else "")


def number(column: str, value: float | None, digits: int = 4) -> str:
    """A value of a column with few digits.

    Example:
        >>> number("ece_q", 0.12345), number("ll", -2.93456), number("ll", None)
        ('12.3', '-2.935', '-')
    """
    if value is None:
        return _MISSING
    return f"{value * _FACTORS.get(column, 1):.{min(digits, 3) if column in _FACTORS else digits}g}"


def results_markdown(table: Table) -> str:
    """Every row: mean ± standard error over splits, what calibrated models score, and the published figures."""
    lines = _header(["", *(title_of(column) for column in table["columns"])])
    for name, row in table["rows"].items():
        mark = f" ({row['status']})" if "status" in row else ""
        lines.append(_line([name + mark, *(_spread(row[column], column) for column in table["columns"])]))
    lines += [_line(words) for words in _beside(table)]
    return "\n".join(lines) + "\n"


def _beside(table: Table) -> list[list[str]]:
    """Lines of what is no method of ours."""
    lines = []
    for what, label in (("expected", "*calibrated model*"), ("q95", "*95 % of them below*")):
        floors = {name: floor[what] for name, floor in table["floors"].items()}
        lines.append([label, *(number(c, floors[c]) if c in floors else "" for c in table["columns"])])
    published = {name: _published(one) for name, one in table["published"].items()}
    return [*lines, ["*published, MC dropout*", *(published.get(column, "") for column in table["columns"])]]


def _published(one: Mapping[str, float | None]) -> str:
    return f"{one['mean']:.2f}" + ("" if one["se"] is None else f" ± {one['se']:.2f}")


def pooled_markdown(table: Table) -> str:
    """Calibration errors of the residuals of all splits together, x100."""
    grid = table["pooled"]
    lines = _header(["", "ECE(z) x100", "ECE(q) x100"])
    for name, row in table["rows"].items():
        if "pooled" in row:
            lines.append(_line([name, *(number(column, row["pooled"][column]) for column in ("ece_z", "ece_q"))]))
    floors = [number(column, grid["floors"][column]["expected"]) for column in ("ece_z", "ece_q")]
    return "\n".join([*lines, _line(["*calibrated model*", *floors])]) + "\n"


def paired_markdown(table: Table) -> str:
    """Differences of log-likelihood, split by split."""
    lines = _header(["", "difference, mean ± standard error", "splits where it is no worse"])
    for name, pair in table["paired"].items():
        lines.append(_line([name, _spread(pair, "ll", 3), f"{pair['above']} of {len(pair['ll'])}"]))
    return "\n".join(lines) + "\n"


def bars_markdown(bars: Mapping[str, Any], network: str) -> str:
    """The best out-of-fold row of every table beside temperature scaling and the published figure."""
    mine = bars[network]
    lines = _header(["", "best out-of-fold row", "its log-likelihood", RIVAL, "ensemble", "published", "no worse than"])
    for name, one in mine["datasets"].items():
        reached = [what for what in (RIVAL, "published") if one[f"reaches_{what}"]]
        lines.append(
            _line(
                [
                    name,
                    one["best"],
                    number("ll", one["ll"]),
                    number("ll", one[RIVAL]),
                    number("ll", one["ensemble"]),
                    f"{one['published']:.2f}",
                    ", ".join(reached) or "neither",
                ]
            )
        )
    return "\n".join(lines) + "\n"


def bars_sentences(bars: Mapping[str, Any], network: str) -> list[str]:
    """The counts, in words."""
    mine = bars[network]
    count = len(mine["datasets"])
    sentences = [
        f"{network}: the best out-of-fold row is at least as good as temperature scaling in log-likelihood on "
        f"{mine[RIVAL]['reached']} of {count} tables, and at or above the published MC dropout on "
        f"{mine['published']['reached']}. It is ahead of temperature scaling by more than two standard errors of the "
        f"paired difference on {mine['clear']}; the ensemble of five is better still on {mine['ensemble_above']}."
    ]
    sentences.append(
        "Not all of that is calibration: temperature scaling trains on four fifths of the rows. Above a network of all "
        f"rows that nothing repairs (`nll_all`) the best row is on {mine['above_unrepaired']} of {count}. ECE(q) of "
        "all splits together is not above temperature scaling's for "
        + ", ".join(f"{row} on {one['calibrated']}" for row, one in mine["each"].items())
        + "."
    )
    each = [f"{row} alone {one[RIVAL]} and {one['published']}" for row, one in mine["each"].items()]
    return [*sentences, *([f"{'; '.join(each)}."] if each else [])]


def plain_tables(document: Mapping[str, Any]) -> str:
    """All tables for a terminal, columns aligned."""
    parts = []
    for table in document["tables"]:
        words = [["", *(title_of(column) for column in table["columns"])]]
        for name, row in table["rows"].items():
            words.append([name, *(number(column, row[column]["mean"]) for column in table["columns"])])
        words += [[text.strip("*") for text in line] for line in _beside(table)]
        heading = (
            f"{table['dataset']}, network {table['network']}, {table['splits']} splits, n = {table['n_test']:,} each; "
            f"S = {table['bins']}, K = {table['df']}; means over splits, in original units"
        )
        parts.append("\n".join([heading, *_aligned(words), *failures(table)]))
    for network in document["bars"]:
        parts += bars_sentences(document["bars"], network) if document["bars"][network]["datasets"] else []
    return "\n\n".join(parts)


def failures(table: Table) -> list[str]:
    """A sentence for every method that failed to train or could not be computed."""
    return [f"{name} {row['status']}: {row['reason']}" for name, row in table["rows"].items() if "status" in row]


def _aligned(words: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(line[i]) for line in words) for i in range(len(words[0]))]
    return [
        "  ".join(
            [line[0].ljust(widths[0]), *(text.rjust(width) for text, width in zip(line[1:], widths[1:], strict=True))]
        ).rstrip()
        for line in words
    ]


def _header(titles: Sequence[str]) -> list[str]:
    return [_line(titles), _line(["---", *["---:"] * (len(titles) - 1)])]


def _line(words: Sequence[str]) -> str:
    return f"| {' | '.join(words)} |"


def _spread(value: Mapping[str, float | None], column: str, digits: int = 4) -> str:
    mean, error = value["mean"], value["se"]
    text = number(column, mean, digits)
    return text if error is None or mean is None else f"{text} ± {number(column, error, 2)}"
