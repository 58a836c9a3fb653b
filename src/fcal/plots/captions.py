"""Numbers as text, the same in pictures, tables and pages."""

import math

from fcal.metrics.report import Interval

MISSING = "—"
_MOST_PLAIN = 1e5


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


def shortened(name: str, most: int) -> str:
    """A name of at most ``most`` characters, on one line.

    Example:
        >>> shortened("a rather long name", 9)
        'a rather…'
    """
    line = " ".join(name.split())
    return line if len(line) <= most else line[: most - 1].rstrip() + "…"
