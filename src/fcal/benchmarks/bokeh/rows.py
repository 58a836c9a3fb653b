"""One row of a table for one seed: numbers of a prediction on images that nothing was chosen by."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal
from torch.nn.functional import smooth_l1_loss

import fcal
from fcal.data import Bokeh
from fcal.metrics.report import Histogram, Reliability, Report

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
    "sigma_corr",
    "train_s",
    "predict_ms",
)
ERRORS = ("ece_z", "mce_z", "ece_q", "mce_q", "ence")
GRIDS = ((20, 75), (200, 75), (1000, 75), (20, 100), (200, 100), (1000, 100))  # S and K
GALLERY = 8
LEVEL = 0.9  # of intervals
STRATA = 8  # of predicted sigma
_DIGITS = 6


def columns_together(parts: tuple[Bokeh, ...]) -> dict[str, Tensor]:
    """Targets, truths and true sigmas of several splits."""
    batches = [part.__getitems__(range(len(part))) for part in parts]
    return {name: torch.cat([batch[name] for batch in batches]) for name in ("target", "truth", "sigma")}


def scored(pred: Distribution | Tensor, test: Mapping[str, Tensor], *, bins: int, df: int) -> dict[str, Any]:
    """Accuracy, likelihood and calibration, with what a calibrated model would score. Shapes ``(N, 2)``."""
    mean = pred.mean if isinstance(pred, Distribution) else pred
    row: dict[str, Any] = dict.fromkeys(COLUMNS)
    row["l1_gt"] = smooth_l1_loss(mean.double(), test["truth"].double()).item()
    row["l1"] = smooth_l1_loss(mean.double(), test["target"].double()).item()
    if not isinstance(pred, Distribution):
        return {"columns": _rounded(row)}
    report = fcal.evaluate(pred, test["target"].to(mean.dtype), df=df, bins=bins)
    row |= {name: getattr(report, name) for name in (*ERRORS, "nll", "crps")}
    row["sigma_corr"] = _correlation(pred.stddev.double().log(), test["sigma"].double().log())
    return {
        "columns": _rounded(row),
        "floors": _floors(report),
        "verdict": report.word,
        "scale": _rounded({"value": report.scale.value, "low": report.scale.low, "high": report.scale.high}),
        "coverage": _rounded(dict(report.coverage)),
        "curves": _curves(report),
    }


def by_sigma(pred: Distribution, test: Mapping[str, Tensor], *, bins: int, df: int) -> dict[str, list[float | None]]:
    """ECE(z) and ECE(q) of equally many residuals each, from the smallest predicted sigmas to the largest."""
    sigma = pred.stddev.flatten()
    z = fcal.standardize(pred, test["target"].to(pred.mean.dtype)).flatten()
    reports = [
        fcal.evaluate(Normal(torch.zeros_like(part), torch.ones_like(part)), part, bins=bins, df=df)
        for part in z[sigma.argsort(stable=True)].tensor_split(STRATA)
    ]
    return {name: [_number(getattr(report, name)) for report in reports] for name in ("ece_z", "ece_q")}


def interval(low: Tensor, high: Tensor, test: Mapping[str, Tensor]) -> dict[str, Any]:
    """Share of targets inside intervals of a level, and their mean width."""
    inside = (test["target"] >= low) & (test["target"] <= high)
    return {"level": LEVEL} | _rounded(
        {"coverage": inside.double().mean().item(), "width": (high - low).double().mean().item()}
    )


def milliseconds(predict: Callable[[], object], images: int, repeats: int = 3) -> float:
    """Processor time of one image, the quickest of some repetitions."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        predict()
        times.append(time.process_time() - start)
    return 1000 * min(times) / images


def gallery(pred: Distribution | Tensor) -> dict[str, Any]:
    """What is said of the first images, for pictures."""
    mean = pred.mean if isinstance(pred, Distribution) else pred
    sigma = pred.stddev[:GALLERY] if isinstance(pred, Distribution) else None
    return {"mean": _listed(mean[:GALLERY]), "sigma": None if sigma is None else _listed(sigma)}


def _correlation(one: Tensor, two: Tensor) -> float | None:
    """Pearson's, over all values; None where one of them does not vary."""
    a, b = one.flatten() - one.mean(), two.flatten() - two.mean()
    scale = (a.square().sum() * b.square().sum()).sqrt()
    constant = two.max() - two.min() < 1e-6 or one.max() - one.min() < 1e-12
    return None if constant else ((a * b).sum() / scale).item()


def _floors(report: Report) -> dict[str, Any]:
    found = {name: getattr(report, f"{name}_floor") for name in ERRORS}
    return {
        name: None if floor is None else _rounded({"expected": floor.expected, "q95": floor.q95})
        for name, floor in found.items()
    }


def other_grids(pred: Distribution, test: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    """ECE and MCE for other numbers of bins and of residuals in a sum; residuals are computed once."""
    z = fcal.standardize(pred, test["target"].to(pred.mean.dtype))
    law = Normal(torch.zeros_like(z), torch.ones_like(z))
    rows = []
    for bins, df in GRIDS:
        report = fcal.evaluate(law, z, bins=bins, df=df)
        numbers = {name: getattr(report, name) for name in ERRORS if name != "ence"}
        floors = {name: floor for name, floor in _floors(report).items() if name != "ence"}
        rows.append({"bins": bins, "df": df, **_rounded(numbers), "floors": floors})
    return rows


def _curves(report: Report) -> dict[str, Any]:
    return {
        "z": _reliability(report.curves.z),
        "q": _reliability(report.curves.q),
        "z_histogram": _histogram(report.curves.z_histogram),
        "q_histogram": _histogram(report.curves.q_histogram),
    }


def _reliability(curve: Reliability) -> dict[str, list[float]]:
    return {name: [float(f"{v:.4g}") for v in getattr(curve, name)] for name in ("nominal", "empirical", "low", "high")}


def _histogram(bars: Histogram) -> dict[str, Any]:
    return {name: [float(f"{v:.4g}") for v in getattr(bars, name)] for name in ("edges", "density")}


def _listed(values: Tensor) -> list[list[float]]:
    return [[float(f"{v:.5g}") for v in row] for row in values.tolist()]


def _rounded(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Few digits, and None for what JSON has no word for."""
    return {name: _number(value) for name, value in numbers.items()}


def _number(value: float | None) -> float | None:
    if value is None or value != value or abs(value) == float("inf"):
        return None
    return float(f"{value:.{_DIGITS}g}")
