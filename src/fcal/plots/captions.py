"""Numbers as text, the same in pictures, tables and pages."""

import math

from fcal.metrics.report import Floor, Histogram, Interval, Report

MISSING = "—"
_MOST_PLAIN = 1e5
_LEAST_SHARE = 5e-5


def number(value: float | None, digits: int = 3) -> str:
    """A number with ``digits`` significant digits; a dash where it is missing or not finite.

    Example:
        >>> number(0.012345), number(1.5), number(1234.5), number(None), number(float("nan"))
        ('0.0123', '1.50', '1234', '—', '—')
        >>> number(0.0), number(250.0), number(-2.5e-9), number(3e8)
        ('0', '250', '-2.50e-09', '3.00e+08')
    """
    if value is None or not math.isfinite(value):
        return MISSING
    if 1000 <= abs(value) < _MOST_PLAIN:
        return f"{value:.0f}"
    return f"{value:#.{digits}g}".rstrip(".") if value else "0"


def share(value: float | None, digits: int = 1) -> str:
    """A share in percent.

    Example:
        >>> share(0.6827), share(1.0, 0), share(None)
        ('68.3 %', '100 %', '—')
    """
    return MISSING if value is None or not math.isfinite(value) else f"{100 * value:.{digits}f} %"


def count(value: int) -> str:
    """A count with thousands separators: ``12,345``."""
    return f"{value:,}"


def interval(value: Interval) -> str:
    """An estimate and its interval.

    Example:
        >>> interval(Interval(1.5, 1.42, 1.58))
        '1.50 [1.42, 1.58]'
    """
    return f"{number(value.value)} [{number(value.low)}, {number(value.high)}]"


def floor(value: Floor | None) -> str:
    """The scores of calibrated models.

    Example:
        >>> floor(Floor(0.0041, 0.007))
        'floor 0.00410 (95 % below 0.00700)'
    """
    return "" if value is None else f"floor {number(value.expected)} (95 % below {number(value.q95)})"


def sizes(report: Report) -> str:
    """Bins, degrees of freedom and amount of data, which calibration errors depend on."""
    return f"S = {report.bins}, K = {report.df}, n = {count(report.n)}"


def with_floor(name: str, value: float | None, least: Floor | None) -> str:
    """A named score beside those of calibrated models.

    Example:
        >>> with_floor("ECE(z)", 0.0213, Floor(0.0041, 0.007))
        'ECE(z) 0.0213; floor 0.00410 (95 % below 0.00700)'
    """
    return "; ".join(filter(None, (f"{name} {number(value)}", floor(least))))


def sigma_bins(report: Report, bins: int) -> str:
    """How errors were grouped by sigma."""
    grouped = "one bin" if bins == 1 else f"{bins} bins of about equal counts"
    return f"{grouped}, n = {count(report.n)}"


def beyond(histogram: Histogram) -> str:
    """The share of the data beyond the axis of a histogram; empty where that rounds to 0.

    Example:
        >>> beyond(Histogram(edges=(0.0, 1.0), density=(0.9,), beyond=0.1))
        '; 10.00 % beyond the axis'
    """
    return f"; {share(histogram.beyond, 2)} beyond the axis" if histogram.beyond >= _LEAST_SHARE else ""


def shortened(name: str, most: int) -> str:
    """A name of at most ``most`` characters, on one line.

    Example:
        >>> shortened("a rather long name", 9)
        'a rather…'
    """
    line = " ".join(name.split())
    return line if len(line) <= most else line[: most - 1].rstrip() + "…"
