"""Models on the same targets: paired differences of their scores, with their noise."""

import importlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from fcal._arrays import as_flags, as_labels, as_numbers, check_same_index
from fcal._checks import check_count
from fcal._files import write_json
from fcal._registry import Registry
from fcal.distributions.functional import index_select
from fcal.metrics.paired_scores import COVERAGES, LEVELS, WIDTH, PairedScores
from fcal.metrics.report import Interval, Report, plain
from fcal.metrics.report_from_state import report_from_state
from fcal.metrics.report_text import MISSING, aligned, html_table, number
from fcal.metrics.state import Grid

ArrayLike = Any  # a tensor, or an array, series or list of another library
SCORES = {
    "nll": "NLL",
    "crps": "CRPS",
    "rmse": "RMSE",
    "ece_z": "ECE(z) - floor",
    "ece_q": "ECE(q) - floor",
    **{name: f"in {level:.0%}" for name, level in zip(COVERAGES, LEVELS, strict=True)},
    WIDTH: "90% width",
    "sharpness": "sharpness",
}
LEGEND = (
    "NLL, CRPS, RMSE: lower is better. ECE: mean gap, weighted by shares, of the shares in S equal-probability bins of "
    "residuals z and of sums q of K squared ones; its floor is what a calibrated model scores on as many rows. in 50%: "
    "share of targets in central 50 % intervals. width: mean width of 90 % intervals. sharpness: root mean square of "
    "the predicted sd."
)
_FEWER_ROWS = 1 << 18  # scalars that are scored at a time
_FEWEST_UNITS = 100  # rows or clusters that an interval takes to be trusted


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Scores of models on the same targets, and their differences from the first one.

    Attributes:
        reference: Name of the first model.
        n: Number of valid scalars.
        rows: Number of rows that count.
        clusters: Number of clusters that the intervals take as independent; None where rows are.
        scores: Scores of every model, by the names of ``SCORES``; ECE less its floor. None where one does not exist.
        differences: Score less that of the first model with its 95 % interval, by model and name of the score.
        same: Models whose predictions are those of the first.
        reports: Report of every model.

    Example:
        >>> from torch.distributions import Normal
        >>> target = torch.randn(2000, generator=torch.Generator().manual_seed(0))
        >>> narrow, right = (Normal(torch.zeros(2000), scale) for scale in (0.5, 1.0))
        >>> result = fcal.compare({"narrow": narrow, "right": right}, target)
        >>> result.differences["right"]["nll"].high < 0
        True
    """

    reference: str
    n: int
    rows: int
    clusters: int | None
    scores: Mapping[str, Mapping[str, float | None]]
    differences: Mapping[str, Mapping[str, Interval]]
    same: tuple[str, ...]
    reports: Mapping[str, Report]

    @property
    def sentences(self) -> tuple[str, ...]:
        """What the differences say, a sentence for every model but the first."""
        return tuple(_sentence(self, name) for name in self.differences)

    @property
    def assumption(self) -> str:
        """What the intervals assume, and how many there are."""
        units = (
            f"{self.rows:,} independent rows" if self.clusters is None else f"{self.clusters:,} independent clusters"
        )
        pairs = "" if len(self.differences) == 1 else f" ({len(self.differences)} pairs: not adjusted for their number)"
        few = self.rows if self.clusters is None else self.clusters
        doubt = f"; {_FEWEST_UNITS} are needed to trust them" if few < _FEWEST_UNITS else ""
        return f"95 % intervals of each difference by itself{pairs}, of {units}{doubt}"

    def __str__(self) -> str:
        """Sentences, scores and differences, as tables of text."""
        parts = [*self.sentences, "", *aligned([("", *SCORES.values()), *score_rows(self)])]
        for name in self.differences:
            parts += [
                "",
                f"{name} less {self.reference}",
                *aligned([DIFFERENCE_HEADINGS, *difference_rows(self, name)]),
            ]
        return "\n".join([*parts, "", self.assumption, LEGEND])

    def _repr_html_(self) -> str:
        said = "".join(f"<p>{escape(sentence)}</p>" for sentence in self.sentences)
        tables = [html_table(("", *SCORES.values()), score_rows(self))]
        for name in self.differences:
            head = f"<p>{escape(name)} less {escape(self.reference)}</p>"
            tables.append(head + html_table(DIFFERENCE_HEADINGS, difference_rows(self, name)))
        return f"<div>{said}{''.join(tables)}<p>{escape(self.assumption)}</p><p>{escape(LEGEND)}</p></div>"

    def to_frame(self) -> Any:
        """A pandas data frame: a row for every model and score, with the difference from the first and its interval.

        Raises:
            ImportError: pandas is not installed.
        """
        try:
            import pandas as pd
        except ModuleNotFoundError as error:
            raise ImportError("expected pandas for `to_frame`; pip install pandas") from error
        return pd.DataFrame(self._records()).set_index(["model", "score"])

    def _records(self) -> list[dict[str, Any]]:
        records = []
        for model, own in self.scores.items():
            for score, value in own.items():
                gap = self.differences.get(model, {}).get(score)
                ends = {key: None if gap is None else getattr(gap, key) for key in ("value", "low", "high")}
                ends["difference"] = ends.pop("value")
                records.append({"model": model, "score": score, "value": value, **ends})
        return records

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the comparison as a page with pictures (``.html``) or as numbers (``.json``).

        Raises:
            ValueError: The name has another ending.
        """
        _WRITERS[os.path.splitext(os.fspath(path))[1].lower()](self, path)  # noqa: PTH122 - also of plain strings

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, strings, lists and dictionaries for JSON; numbers that are not finite become None."""
        names = ("reference", "n", "rows", "clusters", "assumption", "scores", "differences", "same", "sentences")
        document: dict[str, Any] = {name: plain(getattr(self, name)) for name in names}
        return document | {"reports": {name: report.as_dict() for name, report in self.reports.items()}}


def _write_page(comparison: Comparison, path: str | os.PathLike[str]) -> None:
    # By name, since pages are made in a room above this one.
    importlib.import_module("fcal.reports.comparison").write_page(comparison, path)


def _write_numbers(comparison: Comparison, path: str | os.PathLike[str]) -> None:
    write_json(path, comparison.as_dict())


_WRITERS: Registry[Callable[[Comparison, str | os.PathLike[str]], None]] = Registry("ending of the file's name")
_WRITERS.add(".html", _write_page)
_WRITERS.add(".json", _write_numbers)


def compare(
    preds: Mapping[str, Distribution],
    target: ArrayLike,
    *,
    cluster: ArrayLike | None = None,
    valid_mask: ArrayLike | None = None,
    df: int = 75,
    bins: int = 20,
) -> Comparison:
    """Which of several models has the better error bars, and is that more than chance?

    Scores are paired: what counts is their difference on the same target, so that targets which are hard for every
    model do not hide it. Intervals of means are those of the paired t-test (with clusters, of cluster totals), of RMSE
    and sharpness by the delta method, of calibration errors by leaving out one of 64 blocks of rows (of clusters).

    Args:
        preds: Predictions by the name of the model, of any registered families; the first is what others are compared
            with.
        target: The targets of all of them, NaN where missing; a tensor, array, series or list.
        cluster: Equal for rows that belong together, as for :func:`fcal.evaluate`.
        valid_mask: True where a target counts; shaped like ``target`` or its rows.
        df: Number K of squared residuals in a sum q.
        bins: Number S of equal-probability bins of the calibration errors.

    Returns:
        Scores, differences with 95 % intervals, and sentences; ``print`` shows them, ``save`` writes a page.

    Raises:
        TypeError: Wrong types, or a family that is not registered.
        ValueError: Fewer than two models or valid targets, or shapes that do not fit.

    Example:
        >>> from torch.distributions import Laplace, Normal
        >>> target = torch.linspace(-2, 2, 100)
        >>> result = fcal.compare({"A": Normal(torch.zeros(100), 1.0), "B": Laplace(torch.zeros(100), 3.0)}, target)
        >>> result.differences["B"]["coverage_0.9"].value
        0.1...
    """
    grid = Grid(df, bins)
    if not isinstance(preds, Mapping) or not all(isinstance(pred, Distribution) for pred in preds.values()):
        raise TypeError(f"expected `preds` a mapping of names to Distributions, got {type(preds).__name__}")
    if len(preds) < 2:
        raise ValueError(f"expected `preds` of at least 2 models, got {len(preds)}; fcal.evaluate judges one")
    check_same_index(target=target, cluster=cluster, valid_mask=valid_mask)
    values = as_numbers("target", target)
    mask = None if valid_mask is None else as_flags("valid_mask", valid_mask)
    labels = cluster if cluster is None or isinstance(cluster, Tensor) else as_labels("cluster", cluster)[0]
    scores = PairedScores(len(preds), grid, clustered=labels is not None)
    step = max(_FEWER_ROWS // max(values[:1].numel(), 1), 1) if values.dim() else 1
    if not values.dim() or len(values) <= step:
        scores.add(list(preds.values()), values, valid_mask=mask, cluster=labels)
    else:
        for start in range(0, len(values), step):
            rows = torch.arange(start, min(start + step, len(values)), device=values.device)
            chosen = [_rows(pred, rows) for pred in preds.values()]
            own_mask, own_labels = (None if x is None else x[start : start + step] for x in (mask, labels))
            scores.add(chosen, values[start : start + step], valid_mask=own_mask, cluster=own_labels)
    return comparison_of(scores, list(preds))


def _rows(pred: Distribution, rows: Tensor) -> Distribution:
    selected = index_select(pred, rows)
    assert isinstance(selected, Distribution)
    return selected


def comparison_of(scores: PairedScores, names: Sequence[str]) -> Comparison:
    """The result of paired scores.

    Raises:
        ValueError: Fewer than 2 targets count.
    """
    count = int(scores.states[0].n.sum()) if scores.states else 0
    check_count(count, at_least=2)
    reports = {
        name: report_from_state(state.whole(), scores.grid) for name, state in zip(names, scores.states, strict=True)
    }
    floors = {
        name: {"ece_z": own.ece_z_floor.expected, "ece_q": own.ece_q_floor.expected} for name, own in reports.items()
    }
    values: dict[str, dict[str, float | None]] = {}
    differences: dict[str, dict[str, Interval]] = {}
    for index, name in enumerate(names):
        own, report = scores.means(index), reports[name]
        own |= {"ece_z": report.ece_z - floors[name]["ece_z"], "ece_q": report.ece_q - floors[name]["ece_q"]}
        values[name] = {score: own[score] for score in SCORES}
        if index:
            gaps = scores.differences(index)
            for score, floor in floors[name].items():
                gaps[score] = _moved(gaps[score], floors[names[0]][score] - floor)
            differences[name] = {score: gaps[score] for score in SCORES if score in gaps}
    return Comparison(
        reference=names[0],
        n=count,
        rows=scores.units() if not scores.clustered else int(scores.states[0].rows.sum()),
        clusters=reports[names[0]].clusters,
        scores=values,
        differences=differences,
        same=tuple(name for index, name in enumerate(names) if index and scores.is_same(index)),
        reports=reports,
    )


def _moved(interval: Interval, step: float) -> Interval:
    return Interval(interval.value + step, interval.low + step, interval.high + step)


# For people: rows of tables, and sentences.

DIFFERENCE_HEADINGS = ("", "difference", "95 % interval", "")


def shown(score: str, value: float | None, *, signed: bool = False) -> str:
    """A score as text; shares in per cent."""
    if value is None or not math.isfinite(value):
        return MISSING
    if score in COVERAGES:
        return f"{100 * value:+.2f} %" if signed else f"{100 * value:.1f} %"
    return f"{value:+.4g}" if signed else number(value)


def score_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """Name and scores of every model."""
    return [(name, *(shown(key, own[key]) for key in SCORES)) for name, own in comparison.scores.items()]


def difference_rows(comparison: Comparison, name: str) -> list[tuple[str, str, str, str]]:
    """Score, difference, its interval, and what it says, of a model."""
    rows = []
    for score, gap in comparison.differences[name].items():
        interval = f"{shown(score, gap.low, signed=True)} to {shown(score, gap.high, signed=True)}"
        rows.append((SCORES[score], shown(score, gap.value, signed=True), interval, _said(score, gap)))
    return rows


def is_clear(gap: Interval) -> bool:
    """Whether an interval does not contain 0."""
    return gap.low > 0 or gap.high < 0


def _said(score: str, gap: Interval) -> str:
    if not is_clear(gap):
        return "no clear difference"
    if score in COVERAGES:
        return "holds more" if gap.value > 0 else "holds less"
    if score in (WIDTH, "sharpness"):
        return "wider" if gap.value > 0 else "narrower"
    return "worse" if gap.value > 0 else "better"


def _sentence(comparison: Comparison, name: str) -> str:
    """What the differences of a model say."""
    first, gaps = comparison.reference, comparison.differences[name]
    if name in comparison.same:
        return f"{name} has the predictions of {first}: there is nothing to compare."
    said = [_clause(name, score, gaps[score]) for score in ("nll", "crps", "rmse") if score in gaps]
    text = "; ".join(said)
    own, other = comparison.scores[name], comparison.scores[first]
    shares = [shown("coverage_0.9", scores["coverage_0.9"]) for scores in (own, other)]
    held = f"hold {shares[0]} of targets, those of {first} {shares[1]}"
    width, reference_width = own[WIDTH], other[WIDTH]
    size = ""
    if width is not None and reference_width:
        ratio = f"{width / reference_width:.3g}"
        size = f"are {'' if ratio == '1' else f'{ratio} times '}as wide as those of {first} and "
    words = f"{name} is {comparison.reports[name].word}, {first} {comparison.reports[first].word}"
    return f"{text}. Its 90 % intervals {size}{held}: {words}."


def _clause(name: str, score: str, gap: Interval) -> str:
    title = SCORES[score]
    if not math.isfinite(gap.low):
        return f"{name} has {'a lower' if gap.value < 0 else 'no lower'} {title}, by an unknown margin"
    if is_clear(gap):
        near, far = sorted((abs(gap.low), abs(gap.high)))
        side = "lower" if gap.value < 0 else "higher"
        return f"{name} has the {side} {title} by {abs(gap.value):.3g} ({near:.3g} to {far:.3g})"
    return f"no clear difference in {title} ({gap.low:+.2g} to {gap.high:+.2g})"
