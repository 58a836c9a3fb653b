"""Numbers of a prediction for Bokeh's test images: columns, and what pictures and further tables show."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.nn.functional import smooth_l1_loss

import fcal
from fcal.benchmarks.scoring import ERRORS, curves_of, floors_of, interval_columns, rounded, shortened, standard_report

COLUMNS = (
    "l1_gt",
    "l1",
    "ece_z",
    "mce_z",
    "ece_q",
    "mce_q",
    "nll",
    "crps",
    "ence",
    "strata",
    "joint",
    "sigma_corr",
    "train_s",
    "predict_ms",
)
GRIDS = ((20, 75), (200, 75), (1000, 75), (20, 100), (200, 100), (1000, 100))  # S and K
GALLERY = 8  # images
STRATA = 8  # of predicted sigma
LEVEL = 0.9  # of intervals


def scored(pred: Distribution | Tensor, test: Mapping[str, Tensor], *, bins: int, df: int) -> dict[str, Any]:
    """Accuracy, likelihood and calibration, with what a calibrated model would score. Shapes ``(N, 2)``."""
    mean = pred.mean if isinstance(pred, Distribution) else pred
    row: dict[str, float | None] = dict.fromkeys(COLUMNS)
    row["l1_gt"] = smooth_l1_loss(mean.double(), test["truth"].double()).item()
    row["l1"] = smooth_l1_loss(mean.double(), test["target"].double()).item()
    if not isinstance(pred, Distribution):
        return {"columns": rounded(row)}
    report = fcal.evaluate(pred, test["target"].to(mean.dtype), df=df, bins=bins)
    row |= {name: getattr(report, name) for name in (*ERRORS, "nll", "crps")}
    row["joint"] = joint_coverage(pred, test["target"])
    row["sigma_corr"] = _correlation(pred.stddev.double().log(), test["sigma"].double().log())
    return {
        "columns": rounded(row),
        "floors": floors_of(report, ERRORS),
        "verdict": report.word,
        "scale": rounded({"value": report.scale.value, "low": report.scale.low, "high": report.scale.high}),
        "coverage": rounded(dict(report.coverage)),
        "dependence": shortened(dependence(pred, test["target"])),
        "curves": curves_of(report),
    }


def joint_coverage(pred: Distribution, target: Tensor) -> float:
    """Share of images whose two residuals together lie within the ellipse that should hold 90 % of them.

    The two coordinates are predicted as independent, so the sum of their squared residuals should follow a chi-squared
    distribution of two degrees of freedom, whose quantile is known.
    """
    z = fcal.standardize(pred, target.to(pred.mean.dtype)).double()
    return (z.square().sum(-1) <= -2 * math.log(1 - LEVEL)).double().mean().item()


def dependence(pred: Distribution, target: Tensor) -> float:
    """Variance of the mean squared residual relative to that of independent ones: the two of an image belong together.

    Where the red disc is hidden, both coordinates are wrong at once, so their squared residuals are correlated.
    """
    squares = fcal.standardize(pred, target.to(pred.mean.dtype)).double().square()
    return 1 + torch.corrcoef(squares.T)[0, 1].item()


def by_sigma(pred: Distribution, target: Tensor, *, bins: int, df: int) -> dict[str, list[float | None]]:
    """ECE(z) and ECE(q) of equally many residuals each, from the smallest predicted sigmas to the largest."""
    sigma = pred.stddev.flatten()
    z = fcal.standardize(pred, target.to(pred.mean.dtype)).flatten()
    strata = z[sigma.argsort(stable=True)].tensor_split(STRATA)
    reports = [standard_report(stratum, bins=bins, df=df) for stratum in strata]
    return {name: [shortened(getattr(report, name)) for report in reports] for name in ("ece_z", "ece_q")}


def other_grids(pred: Distribution, target: Tensor) -> list[dict[str, Any]]:
    """ECE and MCE for other numbers of bins and of residuals in a sum; residuals are computed once."""
    z = fcal.standardize(pred, target.to(pred.mean.dtype))
    names = [name for name in ERRORS if name != "ence"]
    rows = []
    for bins, df in GRIDS:
        report = standard_report(z, bins=bins, df=df)
        numbers = rounded({name: getattr(report, name) for name in names})
        rows.append({"bins": bins, "df": df, **numbers, "floors": floors_of(report, names)})
    return rows


def gallery(pred: Distribution | Tensor) -> dict[str, Any]:
    """Predictions for the first images, for pictures."""
    mean = pred.mean if isinstance(pred, Distribution) else pred
    sigma = pred.stddev[:GALLERY] if isinstance(pred, Distribution) else None
    return {"mean": _listed(mean[:GALLERY]), "sigma": None if sigma is None else _listed(sigma)}


def interval(ends: tuple[Tensor, Tensor], target: Tensor) -> dict[str, Any]:
    """Coverage and mean width of intervals."""
    return {"level": LEVEL} | rounded(interval_columns({LEVEL: ends}, target))


def _correlation(one: Tensor, two: Tensor) -> float | None:
    """Pearson's, over all values; None where one of them does not vary."""
    a, b = one.flatten() - one.mean(), two.flatten() - two.mean()
    scale = (a.square().sum() * b.square().sum()).sqrt()
    constant = two.max() - two.min() < 1e-6 or one.max() - one.min() < 1e-12
    return None if constant else ((a * b).sum() / scale).item()


def _listed(values: Tensor) -> list[list[float]]:
    return [[float(f"{v:.5g}") for v in row] for row in values.tolist()]
