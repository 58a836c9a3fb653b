"""Page and picture of Bokeh under other conditions."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from paired import Difference, difference

from bokeh_conditions.conditions import SAME, SHIFTED
from fcal.benchmarks.markdown import lines_of
from fcal.benchmarks.methods import RECOMMENDED, row_styles
from fcal.plots.matplotlib_renderer import quiet

Table = Mapping[str, Any]
_LEVEL = 0.9
_COLUMNS = {
    "nll": ("NLL", 1.0),
    "crps": ("CRPS x1000", 1000.0),
    "ece_z": ("ECE(z) x100", 100.0),
    "ece_q": ("ECE(q) x100", 100.0),
    "strata": ("worst stratum x100", 100.0),
    "joint": ("in 90 % ellipse", 1.0),
}
_RIVALS = ("temperature", "conformal", "ensemble_3")
_COLOURS = ("#333333", "#d95f02", "#1b9e77", "#7570b3", "#66a61e", "#e7298a", "#a6761d")
_MISSING = "-"


def page(document: Mapping[str, Any]) -> str:
    """Results as Markdown."""
    config = document["config"]
    parts = [
        "# Bokeh with fewer images, and with other test images: results\n",
        "Written by `experiments/bokeh_conditions/run.py` from cells in "
        "[bokeh_conditions/cells.jsonl](bokeh_conditions/cells.jsonl) and [bokeh/cells.jsonl](bokeh/cells.jsonl); all "
        "numbers, unrounded, in [bokeh_conditions/results.json](bokeh_conditions/results.json). "
        "[What is compared](../../experiments/bokeh_conditions/README.md).\n",
        f"Paper-like regime, means of {config['seeds']} seeds unless stated. Test images as in training have 4 to 10 "
        f"discs besides the red one, shifted ones {config['fewest']} to {config['most']}; the networks are the same.\n",
        "![Likelihood and coverage by number of images](bokeh_conditions/conditions.png)\n",
    ]
    for table in document["tables"]:
        heading = f"{table['training_images']:,} images, {table['noise']} noise, test images {_test_words(table)}"
        parts += [f"## {heading}\n", _numbers(document, table), _against(table)]
    return "\n".join([*parts, _origin(document)])


def _test_words(table: Table) -> str:
    return table["test"] if table["test"] == SAME else f"with {table['test']}"


def _numbers(document: Mapping[str, Any], table: Table) -> str:
    """Every row; on shifted images also how much errors and intervals have grown."""
    shifted = table["test"] == SHIFTED
    usual = _like(document, table, SAME) if shifted else None
    headings = ["", "seeds", *(title for title, _ in _COLUMNS.values()), f"in {_LEVEL:.0%}"]
    headings += ["errors grow by", "intervals grow by"] if shifted else []
    lines = []
    for name, row in table["rows"].items():
        numbers = [_number(row.get(column, {}).get("mean"), factor) for column, (_, factor) in _COLUMNS.items()]
        interval = table["intervals"].get(name)
        line = [name, str(row["finished"]), *numbers, _number(interval and interval["coverage"]["mean"])]
        lines.append(line + (_growth(table, usual, name) if shifted else []))
    return lines_of(headings, lines)


def _growth(table: Table, usual: Table | None, name: str) -> list[str]:
    """Root of the ratio of L1, which is half a squared error, and ratio of widths."""
    if usual is None or name not in usual["rows"] or name not in usual["intervals"]:
        return [_MISSING, _MISSING]
    errors = [one["rows"][name]["l1"]["mean"] for one in (table, usual)]
    widths = [one["intervals"][name]["width"]["mean"] for one in (table, usual)]
    return [_number((errors[0] / errors[1]) ** 0.5), _number(widths[0] / widths[1])]


def _like(document: Mapping[str, Any], table: Table, test: str) -> Table | None:
    same = ("training_images", "noise")
    found = (other for other in document["tables"] if other["test"] == test)
    return next((other for other in found if all(other[name] == table[name] for name in same)), None)


def _against(table: Table) -> str:
    """The recommended row against rivals, paired over seeds; empty if it is not there."""
    rivals = [name for name in _RIVALS if name in table["rows"] and RECOMMENDED in table["rows"]]
    if not rivals:
        return ""
    columns = ("nll", "crps", "ece_z", "ece_q")
    lines = [
        [f"{RECOMMENDED} - {rival}", *(_paired(table, rival, column).text(_COLUMNS[column][1]) for column in columns)]
        for rival in rivals
    ]
    sentence = "Paired over seeds, with limits by Student's t, each with a confidence of 95 %:\n"
    return f"{sentence}\n{lines_of(['', *(_COLUMNS[column][0] for column in columns)], lines)}"


def _paired(table: Table, rival: str, column: str) -> Difference:
    one, two = (table["rows"][name]["seeds"].get(column, ()) for name in (RECOMMENDED, rival))
    return difference([a - b for a, b in zip(one, two, strict=False) if a is not None and b is not None])


def _number(value: float | None, factor: float = 1.0) -> str:
    return _MISSING if value is None else f"{factor * value:.4g}"


def _origin(document: Mapping[str, Any]) -> str:
    lines = [f"- {name}: {', '.join(values)}" for name, values in document["provenance"].items()]
    return "\n".join(["## Origin\n", *lines, f"- {document['cells']} cells", ""])


def picture(document: Mapping[str, Any]) -> Figure:
    """Likelihood and coverage by number of images: a column of panels for every noise and test set."""
    columns = list(dict.fromkeys((table["noise"], table["test"]) for table in document["tables"]))
    figure = Figure(figsize=(3.4 * len(columns), 6.4), layout="constrained")
    axes = figure.subplots(2, len(columns), squeeze=False)
    for number, (noise, test) in enumerate(columns):
        tables = [table for table in document["tables"] if (table["noise"], table["test"]) == (noise, test)]
        _curves(axes[0][number], tables, _excess, "NLL above the oracle's")
        _curves(axes[1][number], tables, _coverage, "share of labels in 90 % intervals")
        axes[1][number].axhline(_LEVEL, color="#999999", lw=0.8, ls=":")
        axes[0][number].set_title(f"{noise}\n{test}", fontsize=9, loc="left")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    return figure


def _curves(ax: Axes, tables: Sequence[Table], value: Any, label: str) -> None:
    names = [name for name in document_rows(tables) if name != "oracle"]
    styles = row_styles(names)
    for name, colour in zip(names, _COLOURS, strict=False):
        points = [(table["training_images"], value(table, name)) for table in tables if name in table["rows"]]
        known = [(x, y) for x, y in points if y is not None]
        thick = 2.2 if name == RECOMMENDED else 1.2
        ax.plot(*zip(*known, strict=True), marker="o", ms=3, lw=thick, color=colour, label=styles[name].full_title)
    ax.set(xscale="log", xlabel="images", ylabel=label)
    ax.set_xticks([table["training_images"] for table in tables], [f"{t['training_images']:,}" for t in tables])
    ax.minorticks_off()
    quiet(ax)


def document_rows(tables: Sequence[Table]) -> list[str]:
    """Rows of tables, in order."""
    return list(dict.fromkeys(name for table in tables for name in table["rows"]))


def _excess(table: Table, name: str) -> float | None:
    oracle, row = table["rows"].get("oracle"), table["rows"][name]
    if oracle is None or row["nll"]["mean"] is None:
        return None
    return float(row["nll"]["mean"] - oracle["nll"]["mean"])


def _coverage(table: Table, name: str) -> float | None:
    interval = table["intervals"].get(name)
    return None if interval is None else float(interval["coverage"]["mean"])
