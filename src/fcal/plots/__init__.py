"""Pictures of reports and benchmarks: ``ax=`` in, ``ax`` out; no metric is recomputed, no global style is touched."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fcal.plots.benchmark_plots import calibration_sheet, disc_gallery, learning_curves, tradeoff
    from fcal.plots.covariance_ellipses import didactic
    from fcal.plots.predicted_boxes import PredictedBoxes, box_gallery
    from fcal.plots.predicted_depth import PredictedDepth, depth_gallery
    from fcal.plots.report_plots import (
        before_after,
        coverage_by_group,
        error_bars,
        error_by_sigma,
        overview,
        q_histogram,
        qq,
        reliability_central,
        reliability_q,
        reliability_z,
        residuals_by_sigma,
        sparsification,
        worst_rows,
        z_histogram,
    )

__all__ = [
    "PredictedBoxes",
    "PredictedDepth",
    "before_after",
    "box_gallery",
    "calibration_sheet",
    "coverage_by_group",
    "depth_gallery",
    "didactic",
    "disc_gallery",
    "error_bars",
    "error_by_sigma",
    "learning_curves",
    "overview",
    "q_histogram",
    "qq",
    "reliability_central",
    "reliability_q",
    "reliability_z",
    "residuals_by_sigma",
    "sparsification",
    "tradeoff",
    "worst_rows",
    "z_histogram",
]

# Names resolve on first use: pages use the figure model too, and need no matplotlib.
_MODULES = {
    "didactic": "covariance_ellipses",
    **dict.fromkeys(("PredictedBoxes", "box_gallery"), "predicted_boxes"),
    **dict.fromkeys(("PredictedDepth", "depth_gallery"), "predicted_depth"),
    **dict.fromkeys(("calibration_sheet", "disc_gallery", "learning_curves", "tradeoff"), "benchmark_plots"),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'fcal.plots' has no attribute {name!r}")
    importlib.import_module("fcal.plots.matplotlib_renderer")  # its error says what to install if matplotlib is missing
    value = getattr(importlib.import_module(f"fcal.plots.{_MODULES.get(name, 'report_plots')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
