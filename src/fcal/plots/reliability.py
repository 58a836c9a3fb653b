"""Reliability diagrams: the probability that was promised against the share of data that kept to it."""

from collections.abc import Iterable

from matplotlib.axes import Axes

from fcal.metrics.report import Reliability, Report
from fcal.plots.canvas import BAND, DATA, FAINT, OVER, UNDER, axes_for, caption, checked, quiet, write
from fcal.plots.captions import count, share, sizes, with_floor
from fcal.plots.geometry import CDF_REGIONS, INTERVAL_REGIONS, Region

_TINTS = {"over-confident": (OVER, 0.07), "under-confident": (UNDER, 0.11)}
_TOLD = ("0.5", "0.9", "0.95")  # levels named in the caption
_MOST_MARKERS = 60


def reliability_z(report: Report, *, ax: Axes | None = None) -> Axes:
    """CDF of the residuals z against N(0, 1), with the band in which calibrated models would lie.

    An over-confident model lies above the diagonal left of 1/2 and below it on the right, an under-confident one the
    other way round; a biased one lies on one side all along.

    Args:
        report: What ``fcal.evaluate`` returned.
        ax: Axes to draw on; new ones where absent.

    Returns:
        The axes.
    """
    report = checked(report)
    ax = axes_for(ax)
    _draw(ax, report.curves.z, CDF_REGIONS)
    caption(ax, "CDF of z", with_floor("ECE(z)", report.ece_z, report.ece_z_floor), sizes(report))
    ax.set(xlabel="nominal probability", ylabel="share of z below")
    return ax


def reliability_q(report: Report, *, ax: Axes | None = None) -> Axes:
    """CDF of the sums q of squared residuals against chi-squared; over-confidence lies below the diagonal.

    Args:
        report: What ``fcal.evaluate`` returned.
        ax: Axes to draw on; new ones where absent.

    Returns:
        The axes.
    """
    report = checked(report)
    ax = axes_for(ax)
    _draw(ax, report.curves.q, INTERVAL_REGIONS)
    caption(ax, "CDF of q", with_floor("ECE(q)", report.ece_q, report.ece_q_floor), sizes(report))
    ax.set(xlabel="nominal probability", ylabel="share of q below")
    return ax


def reliability_central(report: Report, *, ax: Axes | None = None) -> Axes:
    """Central intervals: nominal level against the share of targets inside; over-confidence lies below the diagonal.

    Args:
        report: What ``fcal.evaluate`` returned.
        ax: Axes to draw on; new ones where absent.

    Returns:
        The axes.
    """
    report = checked(report)
    ax = axes_for(ax)
    _draw(ax, report.curves.central, INTERVAL_REGIONS)
    held = ", ".join(
        f"{float(level):.0%} held {share(value)}" for level, value in report.coverage.items() if level in _TOLD
    )
    caption(ax, "Central intervals", held, f"n = {count(report.n)}")
    ax.set(xlabel="nominal level", ylabel="share of targets inside")
    return ax


def _draw(ax: Axes, curve: Reliability, regions: Iterable[Region]) -> None:
    for region in regions:
        colour, strength = _TINTS[region.name]
        ax.fill(*zip(*region.corners, strict=True), color=colour, alpha=strength, lw=0)
        write(ax, *region.spot(curve), region.name, ha=region.side, va="center")
    ax.fill_between(curve.nominal, curve.low, curve.high, color=BAND, alpha=0.45, lw=0)
    ax.plot([0, 1], [0, 1], color=FAINT, lw=0.8, ls="--")
    marker = "o" if len(curve.nominal) <= _MOST_MARKERS else None
    ax.plot(curve.nominal, curve.empirical, color=DATA, lw=1.6, marker=marker, ms=3, clip_on=False, zorder=3)
    ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    quiet(ax)
