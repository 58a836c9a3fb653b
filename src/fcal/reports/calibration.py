"""The page of one evaluation, and the sections it is made of."""

import math
import os

from fcal._files import provenance
from fcal.metrics.report import Floor, Report, above_floors
from fcal.metrics.report_text import ERRORS, MARK, legend
from fcal.plots import report_figures, row_figures
from fcal.plots.captions import MISSING, count, interval, number, share, shortened
from fcal.reports.page import Cell, Column, Section, escaped, page, table, write_html
from fcal.reports.svg_renderer import grid

_FITTED_ON = "Measured on the rows the recalibrator was fitted on: expect new data to do worse."
_MOST_GROUPS = 1000
_MOST_DRAWN_GROUPS = 60
_LONGEST_NAME = 80


def calibration_page(report: Report, *, source: str, command: str) -> str:
    """The whole page of ``fcal evaluate --out``: verdict, pictures, groups, numbers, command and versions.

    Args:
        report: From ``fcal.evaluate``.
        source: Where the predictions come from, such as a file name.
        command: The command that was run.

    Returns:
        One self-contained HTML document; it makes no request and opens from disk.

    Raises:
        TypeError: ``report`` is not a Report.
    """
    if not isinstance(report, Report):
        raise TypeError(f"expected `report` a Report of fcal.evaluate, got {type(report).__name__}")
    return page(f"Calibration of {source}", calibration_sections(report), command=command, versions=provenance())


def write_page(report: Report, path: str | os.PathLike[str]) -> None:
    """Write the page of a report made in Python, atomically.

    Args:
        report: From ``fcal.evaluate``.
        path: File for the page.
    """
    write_html(path, calibration_page(report, source=f"{report.n:,} values", command="fcal.evaluate(...)"))


def calibration_sections(report: Report) -> list[Section]:
    """The sections of :func:`calibration_page`, for pages that hold more."""
    groups = [groups_section(report)] if report.groups else []
    rows = rows_section(report)
    parts = [verdict_section(report), plots_section(report), *([rows] if rows else []), *groups]
    return [*parts, numbers_section(report), glossary_section()]


def verdict_section(report: Report) -> Section:
    """The verdict, its reason, the moments of z, and the assumptions."""
    facts = (
        ("sd of z", interval(report.scale), "1 is right; above, error bars are too short"),
        ("mean of z", interval(report.shift), "0 is right; else predictions are biased"),
        ("shape of z", number(report.shape), "largest gap to a normal CDF of this mean and sd"),
        ("values", count(report.n), _clusters(report)),
    )
    shown = "".join(f"<div><dt>{n}</dt><dd>{escaped(v)}<small>{escaped(w)}</small></dd></div>" for n, v, w in facts)
    css_class = report.verdict.replace(" ", "-")
    notes = [report.assumption.rstrip(".") + ".", *report.warnings]
    if report.fitted_on and not any("fitted on" in warning for warning in report.warnings):
        notes.append(_FITTED_ON)
    p = f"The smooth test of z against N(0, 1) gives p = {number(report.p_value)}; on much data any real model gets 0."
    listed = "".join(f"<li>{escaped(note[0].upper() + note[1:])}</li>" for note in (*notes, p) if note)
    return Section(
        "",
        f'<div class="verdict {escaped(css_class)}"><p class="word">{escaped(report.word)}</p>'
        f'<p class="reason">{escaped(report.reason)}</p><dl>{shown}</dl><ul class="notes">{listed}</ul></div>',
    )


def _clusters(report: Report) -> str:
    return "rows count as independent" if report.clusters is None else f"in {count(report.clusters)} clusters"


def numbers_section(report: Report) -> Section:
    """Every number; calibration errors beside the scores of calibrated models, with bins, K and n."""
    tables = _errors_table(report), _coverage_table(report), _scores_table(report), _splits_table(report)
    symbols = "".join(f"<li>{escaped(line)}</li>" for line in legend(report))
    return Section("Numbers", f'<div class="tables">{"".join(tables)}</div><ul class="notes">{symbols}</ul>')


def _errors_table(report: Report) -> str:
    columns = [
        Column("calibration error", number=False),
        Column("value"),
        Column("floor", hint="mean of what calibrated models score on as much data"),
        Column("95 % below", hint="what 95 % of calibrated models stay below"),
        Column("S", hint="bins"),
        Column("K", hint="degrees of freedom of q"),
        Column("n", hint="values"),
    ]
    rows: list[list[Cell | str]] = []
    for name, title in ERRORS.items():
        bins, df = (MISSING, MISSING) if name == "ence" else (str(report.bins), str(report.df))
        cells = _against(getattr(report, name), getattr(report, f"{name}_floor"))
        rows.append([title, *cells, bins, df, count(report.n)])
    return table(columns, rows, caption="Calibration errors, beside what a perfectly calibrated model would score")


def _against(value: float | None, floor: Floor | None) -> tuple[Cell, str, str]:
    """A value and its floor; a value above the scores of 95 % of calibrated models is marked."""
    if floor is None:
        return Cell(number(value), value), MISSING, MISSING
    above = bool(above_floors({"": (value, floor)}))
    marked = Cell(f"{number(value)} {MARK}", value, "above") if above else Cell(number(value), value)
    return marked, number(floor.expected), number(floor.q95)


def _coverage_table(report: Report) -> str:
    columns = [Column("central interval", number=False), Column("held"), Column("difference")]
    rows = []
    for level, held in report.coverage.items():
        difference = f"{100 * (held - float(level)):+.2f}" if math.isfinite(held) else MISSING
        rows.append((share(float(level), 0), share(held, 2), difference))
    return table(columns, rows, caption="Share of targets inside")


def _scores_table(report: Report) -> str:
    columns = [Column("score", number=False), Column("value"), Column("what it is", number=False)]
    scores = (
        ("NLL", report.nll, "mean negative log-likelihood"),
        ("CRPS", report.crps, "in the target's unit"),
        ("RMSE", report.rmse, "of the predicted mean"),
        ("bias", report.bias, "target minus prediction, mean"),
        ("sharpness", report.sharpness, "root mean square of the predicted sd"),
        ("AUSE", report.ause, "0 when sigma ranks the errors perfectly"),
        ("KLD(z)", report.kld_z, "KL from N(0, 1) to the fit of z"),
        ("W-dist(z)", report.wdist_z, "squared 2-Wasserstein distance of the same"),
        ("KLD(q)", report.kld_q, "KL from N(K, 2K) to the fit of q"),
        ("W-dist(q)", report.wdist_q, "squared 2-Wasserstein distance of the same"),
    )
    rows = [(name, number(value, 4), description) for name, value, description in scores]
    return table(columns, rows, caption="Scores and distances")


def _splits_table(report: Report) -> str:
    rows = [
        [name, *map(number, (split.miscalibration, split.discrimination, split.uncertainty, score))]
        for name, split, score in (("NLL", report.nll_split, report.nll), ("CRPS", report.crps_split, report.crps))
        if split
    ]
    columns = [
        Column("score", number=False),
        Column("miscalibration", hint="what the best map of the predicted probabilities would save"),
        Column("- discrimination", hint="what predictions, so repaired, gain over one law for all"),
        Column("+ uncertainty", hint="score of that one law"),
        Column("= score"),
    ]
    return table(columns, rows, caption="Scores taken apart") if rows else ""


def plots_section(report: Report) -> Section:
    """Interactive figures with hover."""
    figures = [
        report_figures.reliability_central(report),
        report_figures.reliability_z(report),
        report_figures.reliability_q(report),
        report_figures.z_histogram(report),
        report_figures.q_histogram(report),
        report_figures.qq(report),
    ]
    if report.curves.sigma is not None:
        figures += [report_figures.error_by_sigma(report), report_figures.sparsification(report)]
    text = "<p>Grey bands: where 95 % of perfectly calibrated models would lie on as much data.</p>"
    return Section("Pictures", text + grid(figures))


def rows_section(report: Report) -> Section | None:
    """Single rows: a sample with its error bars, errors against sigma, and the rows with the largest residuals."""
    figures = row_figures.row_figures(report)
    if not figures:
        return None
    beside, wide = [f for f in figures if not f.y.names], [f for f in figures if f.y.names]
    text = "<p>A fair sample, the same for every page of these rows, and the rows that surprise the model most.</p>"
    return Section("Rows", text + grid(beside, classes="two-columns") + grid(wide))


_GLOSSARY = {
    "z": "residual: target minus predicted mean, in units of the predicted sigma; of a prediction that is not normal, "
    "the normal quantile of the target's predicted probability. N(0, 1) where error bars are true.",
    "q": "sum of K squared residuals. Chi-squared with K degrees of freedom where error bars are true; a wrong scale "
    "shows in q much earlier than in z.",
    "K, S, n": "K: squared residuals in a q. S: bins of equal probability behind ECE and MCE. n: values.",
    "ECE": "expected calibration error: how far the shares of z (or q) in S bins are from 1/S, weighted by the shares. "
    "Comparable only for the same S, K and n.",
    "MCE": "maximum calibration error: the largest of these gaps.",
    "ENCE": "mean relative gap between predicted sigma and actual root mean square error, in bins of sigma.",
    "NLL": "mean negative log-likelihood of the targets: lower is better, calibrated and sharp at once.",
    "CRPS": "continuous ranked probability score, in the target's unit: the absolute error, for predictions with error "
    "bars.",
    "sharpness": "root mean square of the predicted sigma: among calibrated models the smaller is the better.",
    "AUSE": "area between the error left after dropping by sigma and by error: 0 where sigma ranks errors perfectly.",
    "floor": "what a perfectly calibrated model scores on as much data, on average, and what 95 % of such models stay "
    "below. No real model is at 0.",
    "band": "grey: where 95 % of perfectly calibrated models would lie on as much data, at each place.",
    "▲": "above what 95 % of calibrated models reach: more than chance.",
}


def glossary_section() -> Section:
    """What the symbols of the page mean."""
    entries = "".join(
        f"<div><dt>{escaped(term)}</dt><dd>{escaped(text)}</dd></div>" for term, text in _GLOSSARY.items()
    )
    return Section("Glossary", f'<dl class="glossary">{entries}</dl>')


def groups_section(report: Report, *, most: int = _MOST_GROUPS) -> Section:
    """A table of all groups that is sorted by a click on a heading, and a figure where groups are few.

    Args:
        report: Of data in groups.
        most: Largest number of rows; of more groups, the table shows those whose sd of z is farthest from 1.
    """
    groups = report.groups
    if not groups:
        raise ValueError("expected `report` with groups, got none")
    chosen = list(groups)
    text = f"{count(len(groups))} groups; intervals are corrected for their number. Click a column to sort by it."
    if len(groups) > most:
        chosen = sorted(groups, key=lambda name: -_distance(groups[name]))[:most]
        text += f" Shown are the {count(most)} whose sd of z is farthest from 1."
    caption = "Groups, by the column you choose"
    rows = (_group_row(name, groups[name]) for name in chosen)
    body = f"<p>{text}</p>{table(_GROUP_COLUMNS, rows, caption=caption, sortable=True)}"
    drawn = len(groups) <= _MOST_DRAWN_GROUPS
    return Section("Groups", body + (grid([report_figures.coverage_by_group(report)]) if drawn else ""))


def _distance(group: Report) -> float:
    scale = group.scale.value
    return abs(math.log(scale)) if scale > 0 and math.isfinite(scale) else math.inf


_GROUP_COLUMNS = (
    Column("group", number=False),
    Column("verdict", number=False),
    Column("n"),
    Column("sd of z", hint="1 is right; above, error bars are too short"),
    Column("its interval", hint="sorted by its lower end"),
    Column("mean of z", hint="0 is right"),
    Column("90 % holds"),
    Column("ECE(z)", hint="marked where above what 95 % of calibrated groups reach"),
    Column("95 % below", hint="what 95 % of calibrated groups of this size stay below"),
    Column("RMSE"),
    Column("sharpness", hint="root mean square of the predicted sd"),
    Column("NLL"),
    Column("CRPS"),
)


def _group_row(name: str, group: Report) -> list[Cell | str]:
    scale, held, (ece, _, _) = group.scale, group.coverage.get("0.9"), _against(group.ece_z, group.ece_z_floor)
    span = f"[{number(scale.low)}, {number(scale.high)}]"
    return [
        shortened(name, _LONGEST_NAME) or "(empty)",
        Cell(group.word, kind=f"chip {group.verdict.replace(' ', '-')}"),
        Cell(count(group.n), group.n),
        Cell(number(scale.value), scale.value),
        Cell(span, scale.low),
        Cell(number(group.shift.value), group.shift.value),
        Cell(share(held), held),
        ece,
        Cell(number(group.ece_z_floor.q95), group.ece_z_floor.q95),
        *(Cell(number(value), value) for value in (group.rmse, group.sharpness, group.nll, group.crps)),
    ]


def comparison_section(before: Report, after: Report) -> Section:
    """Two reports, before and after a recalibration, side by side in a table and in the same figures."""
    verdicts = "".join(
        f'<div class="verdict small {escaped(report.verdict.replace(" ", "-"))}"><p class="when">{when}</p>'
        f'<p class="word">{escaped(report.verdict)}</p><p class="reason">{escaped(report.reason)}</p></div>'
        for when, report in (("before", before), ("after", after))
    )
    note = f'<ul class="notes"><li>{escaped(_FITTED_ON)}</li></ul>' if after.fitted_on else ""
    body = f'<div class="pair">{verdicts}</div>{note}{_comparison_table(before, after)}'
    return Section("Before and after", body + grid(report_figures.comparison(before, after)))


def _comparison_table(before: Report, after: Report) -> str:
    columns = [Column("", number=False), Column("before"), Column("after"), Column("a calibrated model")]
    rows = [
        ("sd of z", interval(before.scale), interval(after.scale), "1"),
        ("mean of z", interval(before.shift), interval(after.shift), "0"),
    ]
    for level, held in after.coverage.items():
        nominal = share(float(level), 0)
        rows.append((f"{nominal} interval holds", share(before.coverage.get(level)), share(held), nominal))
    for name, title in ERRORS.items():
        floor: Floor | None = getattr(after, f"{name}_floor")
        most = MISSING if floor is None else f"below {number(floor.q95)} in 95 %"
        rows.append((title, number(getattr(before, name)), number(getattr(after, name)), most))
    rows += [
        (title, number(getattr(before, name), 4), number(getattr(after, name), 4), MISSING)
        for name, title in {"nll": "NLL", "crps": "CRPS", "rmse": "RMSE", "sharpness": "sharpness"}.items()
    ]
    sizes = f"S = {after.bins}, K = {after.df}, n = {count(before.n)} before and {count(after.n)} after"
    return table(columns, rows, caption=f"Numbers before and after; {sizes}")
