"""The picture and the page of the experiment, from its document."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fcal.benchmarks.markdown import lines_of, spread_text
from fcal.benchmarks.scoring import CRPS, ECE_Q, ECE_Z, NLL
from fcal.benchmarks.table import Column, Spread
from fcal.plots.matplotlib_renderer import log_ticks, quiet

L1_GT = Column(name="l1_gt", title="L1(GT)", description="smooth L1 to the truth", factor=1000)
Z2 = Column(name="z2", title="z²", description="mean squared residual, 1 if calibrated")
SHOWN = (L1_GT, NLL, Column(name="crps", title=CRPS.title, factor=1000), ECE_Q, ECE_Z, Z2)
REFERENCES = {
    "nll": "NLL",
    "nll_tuned": "NLL, tuned as long",
    "nll_stopped": "NLL, stopped early",
    "nll_short": "NLL, short schedule",
    "nll_decay": "NLL, weight decay",
    "temperature": "NLL, temperature",
}
RULES = {"nll": "NLL", "ece_q": "ECE(q)", "ece_q_l1": "ECE(q), L1 kept"}
DIVERGENCES = {"kl": "KL", "wasserstein": "Wass"}
_MARKS = {"nll": "o", "nll_tuned": "P", "nll_stopped": "*", "nll_short": "X", "nll_decay": "s", "temperature": "D"}
_INK = {"nll_stopped": "#00805F", "nll_short": "#8A6D00", "nll_decay": "#A8487F", "temperature": "#6A5ACD"}
_COLOURS = ("#0072B2", "#C75500", "#56B4E9", "#E69F00")
_DASHES = ("-", "--", ":", "-.")
_NAME = "fcal_regimes"
_SHOWN_WORDS = {"below": "**below**", "above": "above", "unclear": "unclear", "unknown": "-"}


def level_title(document: Mapping[str, Any], level: str) -> str:
    """A level of overfitting in words."""
    config = document["config"]
    if level == "paper":
        first = f"first epoch with z² of validation images at least {config['paper_z2']:g}"
        return f"as overfit as the paper's network ({first})"
    return f"after {config['epochs']} epochs"


def form_title(row: str) -> str:
    """A form of f-Cal in words.

    Example:
        >>> form_title("fcal_kl_detached")
        'f-Cal-KL, mean detached'
    """
    name = row.removeprefix("fcal_").removesuffix("_detached")
    return f"f-Cal-{DIVERGENCES.get(name, name)}" + (", mean detached" if row.endswith("_detached") else "")


def row_title(row: str) -> str:
    """A row of the table in words."""
    form, _, rule = row.partition("/")
    return f"{form_title(form)}, by {RULES[rule]}" if rule else REFERENCES[row]


# The picture


def tradeoff(document: Mapping[str, Any]) -> Figure:
    """Accuracy against calibration: a column of panels for each noise, a row for each level of overfitting."""
    noises = document["results"]
    levels = list(next(iter(noises.values())))
    figure = Figure(figsize=(5.6 * len(noises), 4.2 * len(levels) + 1), layout="constrained")
    axes = figure.subplots(len(levels), len(noises), squeeze=False)
    for line, level in zip(axes, levels, strict=True):
        for ax, (noise, of_levels) in zip(line, noises.items(), strict=True):
            _panel(ax, of_levels[level])
            ax.set_title(f"{noise}, {level_title(document, level).partition(' (')[0]}", loc="left", fontsize=9)
    handles = {label: handle for ax in axes.flat for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside lower center",
        ncols=3,
        frameon=False,
        fontsize=7.5,
        handlelength=4,
    )
    return figure


def _panel(ax: Axes, results: Mapping[str, Any]) -> None:
    curves: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for point in results["points"]:
        if point["row"].startswith("fcal_"):
            curves.setdefault((point["row"], point["options"]["batch"]), []).append(point)
    forms, batches = (list(dict.fromkeys(keys)) for keys in zip(*curves, strict=True)) if curves else ([], [])
    for (row, batch), points in curves.items():
        points.sort(key=lambda point: point["options"]["lam"])
        style = {"color": _COLOURS[forms.index(row) % 4], "ls": _DASHES[batches.index(batch) % 4]}
        _draw(ax, points, f"{form_title(row)}, batches of {batch}", marker=".", lw=1.2, **style)
        for point in (points[0], points[-1]):
            where = tuple(factor * point["test"][name]["mean"] for name, factor in (("l1_gt", 1000), ("ece_q", 100)))
            ax.annotate(f"{point['options']['lam']:g}", where, fontsize=6, xytext=(3, 3), textcoords="offset points")
    for row, mark in _MARKS.items():
        points = [point for point in results["points"] if point["row"] == row]
        if points:
            colour = _INK.get(row, "#333333")
            _draw(ax, points, REFERENCES[row], marker=mark, ls="none", ms=7, color=colour, zorder=3)
    if "ece_q" in results["floors"]:
        ax.axhline(100 * results["floors"]["ece_q"], color="#666666", lw=0.8, ls=":", label="95 % of calibrated models")
    ax.set(xlabel="L1(GT) x1000", ylabel="ECE(q) x100", xscale="log", yscale="log")  # decay may lose the mean
    log_ticks(ax.xaxis)
    log_ticks(ax.yaxis)
    quiet(ax)


def _draw(ax: Axes, points: Sequence[Mapping[str, Any]], label: str, **style: Any) -> None:
    """Means over seeds, with standard errors."""
    spreads = {
        name: [Spread.of(point["test"][name]["seeds"], se=True) for point in points] for name in ("l1_gt", "ece_q")
    }
    x, y = ([factor * (s.mean or 0.0) for s in spreads[name]] for name, factor in (("l1_gt", 1000), ("ece_q", 100)))
    dx, dy = ([factor * (s.se or 0.0) for s in spreads[name]] for name, factor in (("l1_gt", 1000), ("ece_q", 100)))
    dx, dy = ([min(e, 0.9 * v) for e, v in zip(errors, values, strict=True)] for errors, values in ((dx, x), (dy, y)))
    ax.errorbar(x, y, xerr=dx, yerr=dy, label=label, elinewidth=0.7, **style)


# The page


def page(document: Mapping[str, Any]) -> str:
    """Results as Markdown."""
    parts = [
        "# f-Cal where networks overfit: results\n",
        "Written by `experiments/fcal_regimes/run.py` from the cells in "
        "[fcal_regimes/cells.jsonl](fcal_regimes/cells.jsonl); all numbers, unrounded, in "
        "[fcal_regimes/results.json](fcal_regimes/results.json). "
        "[What is compared](../../experiments/fcal_regimes/README.md), [the paper's claims](../claims.md).\n",
        f"Bokeh, paper-like, {_seeds(document)}. A network trains by likelihood at a constant rate, without stopping; "
        "f-Cal tunes it from two levels of overfitting. f-Cal's weight and batch are chosen on validation images: by "
        "NLL, by ECE(q), or by ECE(q) among candidates whose L1 is at most 1.02 times that of the network they start "
        "from (if there is none, that network stays as it is).\n",
        "![Accuracy against calibration](fcal_regimes/tradeoff.png)\n",
        "Means over seeds with standard errors; small numbers are the smallest and the largest weight of f-Cal.\n",
        "## Which claims hold\n",
        "Differences are paired over seeds; *below* means that the upper limit by Student's t, with a confidence of "
        "95 %, is below 0. "
        f"Counted over {_counted(document)}, as in the paper (mean not detached).\n",
        _claims(document),
        *(_level(document, level) for level in _levels(document)),
        _facts(document),
    ]
    return "\n".join(parts)


def claims_part(document: Mapping[str, Any]) -> str:
    """The part of the page of claims that this experiment decides."""
    return (
        f"{_seeds(document)}, [results](results/{_NAME}.md). Networks are trained by likelihood without stopping, and "
        "tuned by f-Cal when they are as overfit as the paper's (column *paper*) and at the last epoch. A cell counts "
        f"{_counted(document)}; weight and batch of f-Cal are chosen on validation images in three ways.\n\n"
        f"{_claims(document, folder='results/')}"
    )


def _levels(document: Mapping[str, Any]) -> list[str]:
    return list(next(iter(document["results"].values())))


def _seeds(document: Mapping[str, Any]) -> str:
    counts = {row["count"] for results in _all(document) for row in results["rows"].values()}
    shown = f"{min(counts)}" if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
    return f"{shown} of {document['config']['seeds']} seeds" if counts else "no seeds"


def _all(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [results for levels in document["results"].values() for results in levels.values()]


def _counted(document: Mapping[str, Any]) -> str:
    forms = " and ".join(form_title(form) for form in document["forms_of_paper"])
    return f"{len(document['results'])} noises for {forms}"


def _claims(document: Mapping[str, Any], folder: str = "") -> str:
    """How often every claim holds, by level and rule; links begin with the folder of results."""
    keys = [(level, rule) for level in _levels(document) for rule in RULES]
    headings = [
        "claim",
        *(f"{'paper' if level == 'paper' else 'last epoch'}, by {RULES[rule]}" for level, rule in keys),
    ]
    some = _all(document)[0]["claims"]
    texts = dict.fromkeys((claim["text"], claim["of_paper"]) for claim in some)
    rows = [
        [text if of_paper else f"*{text}*", *(_count(document, text, level, rule) for level, rule in keys)]
        for text, of_paper in texts
    ]
    return lines_of(headings, rows) + (
        "\nClaims in italics are not the paper's. Every difference with its limits: "
        f"[differences]({folder}{_NAME}/differences.md). Rows of weight decay and of likelihood tuned as "
        "long are chosen by NLL of validation images.\n"
    )


def _count(document: Mapping[str, Any], text: str, level: str, rule: str) -> str:
    words = [
        claim["forms"][form]["word"]
        for levels in document["results"].values()
        for claim in levels[level]["claims"]
        if (claim["text"], claim["rule"]) == (text, rule)
        for form in document["forms_of_paper"]
    ]
    held = f"{words.count('below')} of {len(words)}"
    return f"**{held}**" if words and set(words) == {"below"} else held


def _level(document: Mapping[str, Any], level: str) -> str:
    parts = [f"## {_sentence(level_title(document, level))}\n"]
    for noise, levels in document["results"].items():
        results = levels[level]
        rows = results["rows"]
        if "nll" not in rows:
            continue
        stopped = f"{fmean(rows['nll_stopped']['epochs']):.1f}" if "nll_stopped" in rows else "-"
        epochs = ", ".join(map(str, rows["nll"]["epochs"]))
        parts += [
            f"### {_sentence(noise)} noise\n",
            f"Starts from epochs {epochs}; likelihood on validation images would stop after {stopped} on average.\n",
            _table(rows),
        ]
    return "\n".join(parts)


def _table(rows: Mapping[str, Any]) -> str:
    def text(numbers: Mapping[str, Any], column: Column) -> str:
        return spread_text(column, Spread.of(numbers["test"][column.name]["seeds"]))

    headings = ["", *(column.heading for column in SHOWN)]
    return lines_of(headings, [[row_title(n), *(text(row, column) for column in SHOWN)] for n, row in rows.items()])


def differences(document: Mapping[str, Any]) -> str:
    """Every claim with its difference, by noise and level, as Markdown."""
    parts = [
        "# Differences of f-Cal to other rows\n",
        "Mean over seeds, and limits by Student's t with a confidence of 95 % each, paired.\n",
    ]
    for noise, levels in document["results"].items():
        for level, results in levels.items():
            parts += [f"## {_sentence(noise)} noise, {level_title(document, level)}\n", _differences(results["claims"])]
    return "\n".join(parts)


def _differences(claims: Sequence[Mapping[str, Any]]) -> str:
    columns = {column.name: column for column in SHOWN}
    forms = list(claims[0]["forms"])
    rows = [
        [
            f"{claim['text']} ({columns[claim['column']].heading})",
            RULES[claim["rule"]],
            *(_difference(columns[claim["column"]], claim["forms"][form]) for form in forms),
        ]
        for claim in claims
    ]
    return lines_of(["claim", "chosen by", *map(form_title, forms)], rows)


def _difference(column: Column, found: Mapping[str, Any]) -> str:
    if found["mean"] is None:
        return "-"
    limits = "" if found["low"] is None else f" [{column.text(found['low'])}, {column.text(found['high'])}]"
    return f"{column.text(found['mean'])}{limits} {_SHOWN_WORDS[found['word']]}"


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _facts(document: Mapping[str, Any]) -> str:
    origin = document["provenance"]
    lines = [f"- {name}: {', '.join(values)}" for name, values in origin.items()]
    lines.append(f"- {document['cells']} cells, {document['hours']:.1f} hours of one process")
    if document["failed"]:
        lines.append(f"- failed to train: {', '.join(document['failed'])}")
    return "\n".join(["## Origin\n", *lines, ""])
