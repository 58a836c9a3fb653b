"""The result of an evaluation: numbers with their noise, a verdict, and curves."""

import importlib
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from fcal._files import write_json
from fcal._registry import Registry
from fcal.metrics.report_text import ERRORS, as_frame, as_html, as_records, as_text

VERDICTS = ("calibrated", "over-confident", "under-confident", "biased", "wrong shape")
LEVELS = (0.5, 0.68, 0.9, 0.95, 0.99)


@dataclass(frozen=True)
class Interval:
    """An estimate and its 95 % confidence interval, corrected for the number of groups in a report of several."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Floor:
    """Score of a perfectly calibrated model on the same n: its mean and its 95 % quantile."""

    expected: float
    q95: float


@dataclass(frozen=True)
class WildValues:
    """Few residuals that are far beyond all others and beyond any plausible distribution: a unit, a broken label.

    Attributes:
        count: How many there are, of ``n``.
        n: Number of residuals.
        farthest: Size of a large one: of several, the root of the mean square weighted by squares, at most the largest.
    """

    count: int
    n: int
    farthest: float

    def __str__(self) -> str:
        verb, size = ("is", "") if self.count == 1 else ("are", "about ")
        return f"{self.count:,} of {self.n:,} values {verb} wild (|z| {size}{self.farthest:.3g})"


@dataclass(frozen=True)
class ScoreDecomposition:
    """Parts of a mean score: ``score = miscalibration - discrimination + uncertainty``.

    Attributes:
        miscalibration: What the best map of the predicted probabilities would save.
        discrimination: What the predictions, thus repaired, gain over one normal distribution for all targets.
        uncertainty: Score of that distribution, which has the mean and sd of the targets.
    """

    miscalibration: float
    discrimination: float
    uncertainty: float


@dataclass(frozen=True)
class Reliability:
    """Nominal against empirical probabilities, with a band that holds 95 % of calibrated models at each level.

    Attributes:
        nominal: Rising levels from 0 to 1. Shape ``(levels,)``, as are all below.
        empirical: Share of the data below each level.
        low: Lower end of the consistency band.
        high: Upper end.
    """

    nominal: tuple[float, ...]
    empirical: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class Histogram:
    """Densities over bins.

    Attributes:
        edges: Shape ``(bins + 1,)``.
        density: Share of all data in each bin, divided by its width. Shape ``(bins,)``.
        beyond: Share of the data beyond the edges.
    """

    edges: tuple[float, ...]
    density: tuple[float, ...]
    beyond: float


@dataclass(frozen=True)
class SigmaBins:
    """Predicted sigma against actual errors, in bins of sigma of about equal counts.

    Attributes:
        sigma: Root mean square of the predicted sd in each bin, rising. Shape ``(bins,)``, as are all below.
        error: Root mean square of the errors in each bin.
        low: Lower end of the band that holds ``error`` of 95 % of calibrated models.
        high: Upper end.
        count: Number of scalars.
    """

    sigma: tuple[float, ...]
    error: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    count: tuple[int, ...]


@dataclass(frozen=True)
class Sparsification:
    """Error (in a report, the RMSE) of the remaining predictions when some are dropped, relative to that of all.

    Attributes:
        dropped: Rising shares from 0 to nearly 1. Shape ``(points,)``, as are all below.
        by_sigma: Dropping those with the largest sigma first.
        by_error: Dropping those with the largest error first: the best possible order.
    """

    dropped: tuple[float, ...]
    by_sigma: tuple[float, ...]
    by_error: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Single rows of an evaluation (scalars, where rows have several outputs).

    Attributes:
        row: Their numbers, from 1. Shape ``(rows,)``, as are the next four.
        mean: Predicted mean.
        sigma: Predicted sd.
        target: What was measured.
        z: Residual.
        low: Lower ends of the central 90 % intervals of the first rows, of some or all; none where the family has no
            quantiles.
        high: Upper ends.
    """

    row: tuple[int, ...]
    mean: tuple[float, ...]
    sigma: tuple[float, ...]
    target: tuple[float, ...]
    z: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Curves:
    """Data of every figure of a report.

    Attributes:
        z: CDF of the residuals z: nominal against empirical, ``bins`` steps.
        central: Central intervals: nominal level against coverage.
        q: CDF of the sums q of ``df`` squared residuals.
        z_histogram: Residuals, to compare with N(0, 1).
        q_histogram: Sums, to compare with chi-squared.
        qq: Quantiles of the standard normal distribution, and of z at the same probabilities.
        sigma: Errors by predicted sigma; None where the prediction has no sd.
        sparsification: None where the prediction has no sd.
        sample: A fair sample of rows, in random order; None where rows were not seen one by one, or are vectors.
        worst: Rows with the largest residuals, those first.
    """

    z: Reliability
    central: Reliability
    q: Reliability
    z_histogram: Histogram
    q_histogram: Histogram
    qq: tuple[tuple[float, ...], tuple[float, ...]]
    sigma: SigmaBins | None
    sparsification: Sparsification | None
    sample: Rows | None = None
    worst: Rows | None = None


@dataclass(frozen=True, kw_only=True)
class Report:
    """Are these error bars true? Every number of one evaluation.

    ECE, MCE and ENCE depend on ``n``, ``bins`` and ``df``: compare them with their floors, never across ``bins``.
    Numbers that do not exist for a prediction (an RMSE without a mean, a CRPS of vectors) are None.

    Attributes:
        n: Number of valid scalars.
        df: Degrees of freedom K of the sums q.
        bins: Number S of equal-probability bins.
        nll: Mean negative log-likelihood per scalar, constant included.
        crps: Mean CRPS per scalar, in the target's unit.
        rmse: Root mean square error of the predicted mean.
        bias: Mean of target minus predicted mean.
        sharpness: Root mean square of the predicted sd.
        ece_z: Expected calibration error of the residuals z; ``mce_z``, ``ece_q`` and ``mce_q`` as in the paper.
        kld_z: KL(N(0, 1) || normal distribution with the moments of z); ``kld_q`` likewise, against N(K, 2K).
        wdist_z: Squared 2-Wasserstein distance between the same two; ``wdist_q`` likewise.
        ence: Mean relative gap between predicted and actual RMS error over bins of sigma.
        ause: Area between the sparsification curves; 0 when sigma ranks the errors perfectly.
        coverage: Share of targets in the central interval (of vectors: ellipsoid) of each level.
        scale: sd of z; 1 when error bars have the right size, above when they are too small. Like the next two and
            the verdict it is that of all values but ``wild`` ones.
        shift: Mean of z; 0 when the prediction is not biased.
        shape: Largest gap between the CDF of z and the normal one with its moments.
        wild: Values that are so far out that nothing about the others should be concluded from them; None without any.
        verdict: One of ``VERDICTS``.
        reason: Why, in one sentence.
        conclusive: False where "calibrated" only means that the data are too few to detect a deviation.
        p_value: Of a smooth test (four Legendre sums) that z is N(0, 1); on enough data it is 0 for any real model.
        clusters: Number of clusters behind intervals, bands and tests; None where rows count as independent.
        assumption: What intervals, bands and tests assume.
        fitted_on: Whether the recalibrator of this prediction was fitted on these rows.
        warnings: Reasons to distrust some of the numbers.
        nll_split: Decomposition of the NLL.
        crps_split: Decomposition of the CRPS.
        curves: Data of the figures.
        groups: Report of each group, by name.

    Example:
        >>> from torch.distributions import Normal
        >>> report = fcal.evaluate(Normal(torch.zeros(3), 1.0), torch.tensor([-0.5, 0.0, 0.5]))
        >>> report.n, report.coverage["0.5"], sorted(report.as_dict()["scale"])
        (3, 1.0, ['high', 'low', 'value'])
    """

    n: int
    df: int
    bins: int
    nll: float | None
    crps: float | None
    rmse: float | None
    bias: float | None
    sharpness: float | None
    ece_z: float
    mce_z: float
    ece_q: float
    mce_q: float
    kld_z: float
    wdist_z: float
    kld_q: float
    wdist_q: float
    ence: float | None
    ause: float | None
    coverage: Mapping[str, float]
    scale: Interval
    shift: Interval
    shape: float
    verdict: str
    reason: str
    conclusive: bool
    p_value: float
    ece_z_floor: Floor
    mce_z_floor: Floor
    ece_q_floor: Floor
    mce_q_floor: Floor
    ence_floor: Floor | None
    clusters: int | None
    assumption: str
    fitted_on: bool
    warnings: tuple[str, ...]
    nll_split: ScoreDecomposition | None
    crps_split: ScoreDecomposition | None
    curves: Curves = field(repr=False)
    wild: WildValues | None = None
    groups: "Mapping[str, Report]" = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        """Verdict, numbers beside those of a calibrated model, scores and groups, as a table of text."""
        return as_text(self)

    def _repr_html_(self) -> str:
        return as_html(self)

    def to_frame(self) -> Any:
        """The main numbers as a pandas data frame: a row ``all``, and one of every group.

        Raises:
            ImportError: pandas is not installed.
        """
        return as_frame(as_records(self), "group")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report as a page with pictures (``.html``) or as numbers (``.json``).

        Raises:
            ValueError: The name has another ending.
        """
        WRITERS[os.path.splitext(os.fspath(path))[1].lower()](self, path)  # noqa: PTH122 - also of plain strings

    @property
    def word(self) -> str:
        """The verdict, with a question mark where it is not conclusive, and the number of wild values."""
        word = self.verdict if self.conclusive else f"{self.verdict}?"
        return word if self.wild is None else f"{word}, {self.wild.count:,} wild"

    @property
    def marked(self) -> tuple[str, ...]:
        """Calibration errors above what 95 % of calibrated models score on as much data."""
        return above_floors({name: (getattr(self, name), getattr(self, f"{name}_floor")) for name in ERRORS})

    def sizes_are_off(self, tolerance: float) -> bool:
        """Whether error bars of different sizes are wrong by more than a tolerance and chance, by the ENCE."""
        floor = self.ence_floor
        return "ence" in self.marked and floor is not None and (self.ence or 0.0) - floor.expected > tolerance

    def as_dict(self, *, curves: bool = False) -> dict[str, Any]:
        """Plain numbers, strings, lists and dictionaries for JSON; numbers that are not finite become None."""
        names = [f.name for f in fields(self) if f.name not in ("groups", "curves")]
        document = {name: plain(getattr(self, name)) for name in names}
        if curves:
            document["curves"] = plain(self.curves)
        document["groups"] = {name: group.as_dict(curves=curves) for name, group in self.groups.items()}
        return document


def above_floors(errors: Mapping[str, tuple[float | None, Floor | None]]) -> tuple[str, ...]:
    """Names of calibration errors that 95 % of calibrated models stay below.

    Example:
        >>> floor = Floor(expected=0.01, q95=0.015)
        >>> above_floors({"ece_z": (0.02, floor), "ece_q": (0.01, floor), "ence": (None, None)})
        ('ece_z',)
    """
    return tuple(
        name
        for name, (value, floor) in errors.items()
        if value is not None and floor is not None and math.isfinite(value) and value > floor.q95
    )


def _write_numbers(report: Report, path: str | os.PathLike[str]) -> None:
    write_json(path, report.as_dict())


def _write_page(report: Report, path: str | os.PathLike[str]) -> None:
    # By name, since pages are made in a room above this one.
    importlib.import_module("fcal.reports.calibration").write_page(report, path)


WRITERS: Registry[Callable[[Report, str | os.PathLike[str]], None]] = Registry("ending of the file's name")
WRITERS.add(".html", _write_page)
WRITERS.add(".json", _write_numbers)


def plain(value: Any) -> Any:
    """A value of a report as JSON knows it; numbers that are not finite become None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value
