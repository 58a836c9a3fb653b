"""Histograms of residuals and of their sums, beside the laws they would follow."""

from matplotlib.axes import Axes

from fcal.metrics.report import Histogram, Report
from fcal.plots.canvas import DATA, LAW, axes_for, caption, checked, quiet
from fcal.plots.captions import beyond, count, interval, sizes, with_floor
from fcal.plots.laws import chi2_curve, normal_curve


def z_histogram(report: Report, *, ax: Axes | None = None) -> Axes:
    """Histogram of the residuals z beside N(0, 1).

    Args:
        report: What ``fcal.evaluate`` returned.
        ax: Axes to draw on; new ones where absent.

    Returns:
        The axes.
    """
    report = checked(report)
    ax = axes_for(ax, height=3.4)
    _draw(ax, report.curves.z_histogram, normal_curve(report.curves.z_histogram), ("z", "N(0, 1)"))
    moments = f"mean {interval(report.shift)}, sd {interval(report.scale)}"
    caption(ax, "Residuals z", moments, f"n = {count(report.n)}{beyond(report.curves.z_histogram)}")
    ax.set(xlabel="z, errors in units of the predicted sigma", ylabel="density")
    return ax


def q_histogram(report: Report, *, ax: Axes | None = None) -> Axes:
    """Histogram of the sums q of K squared residuals beside chi-squared with K degrees of freedom.

    Args:
        report: What ``fcal.evaluate`` returned.
        ax: Axes to draw on; new ones where absent.

    Returns:
        The axes.
    """
    report = checked(report)
    ax = axes_for(ax, height=3.4)
    histogram = report.curves.q_histogram
    _draw(ax, histogram, chi2_curve(histogram, report.df), ("q", f"chi-squared({report.df})"))
    ece = with_floor("ECE(q)", report.ece_q, report.ece_q_floor)
    caption(ax, "Sums q of squared residuals", ece, sizes(report) + beyond(histogram))
    ax.set(xlabel="q, sum of K squared residuals", ylabel="density")
    return ax


def _draw(ax: Axes, histogram: Histogram, law: tuple[list[float], list[float]], names: tuple[str, str]) -> None:
    ax.stairs(histogram.density, histogram.edges, fill=True, color=DATA, alpha=0.35, lw=0, label=names[0])
    ax.stairs(histogram.density, histogram.edges, color=DATA, lw=1.2)
    ax.plot(*law, color=LAW, lw=1.4, label=names[1])
    # A direct label would sit on the data of one model or another; the corner above the taller peak is always free.
    ax.legend(loc="upper right", frameon=False, fontsize=8, handlelength=1.2, borderaxespad=0.1)
    ax.set_xlim(histogram.edges[0], histogram.edges[-1])
    ax.set_ylim(0, 1.12 * max(*histogram.density, *law[1]))
    quiet(ax)
