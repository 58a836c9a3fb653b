"""Axes of the drawings of a page: from data to pixels, and where the ticks are."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from fcal.plots.captions import shortened
from fcal.plots.figure import Axis, Band, Bars, Dots, Figure, Line, Mark, Rule

CHARACTER, NAME_CHARACTER = 6.1, 7.4  # widths of a character of a number and of a name, in pixels
_LONGEST_NAME = 24
_STEPS = (1, 2, 5, 10)
_PAD = 0.04  # of the range of data, beside them
_SHARE_PAD = 0.01  # dots at 0 % and 100 % are seen whole
_REACH = 3.0  # drawings end this many lengths of the axis beyond it: browsers count in single precision
_HIDDEN_REACH = 0.5  # lines that are hidden at first widen an axis by at most this share
_FEWEST_LOG_TICKS = 3
_PLAIN = 1e-4, 1e7  # magnitudes of ticks without an exponent


@dataclass(frozen=True)
class Scale:
    """The way from data to pixels along an axis.

    Attributes:
        low: Value at its start; the logarithm to base 10 where ``log``.
        high: Value at its end.
        length: In pixels.
        log: Whether it is logarithmic.
        upward: Whether pixels are counted from its end, as they are for a vertical axis.

    Example:
        >>> Scale(0.0, 2.0, 100.0)(0.5), Scale(0.0, 2.0, 100.0, upward=True)(0.5), Scale(0.0, 2.0, 100.0, log=True)(10)
        (25.0, 75.0, 50.0)
    """

    low: float
    high: float
    length: float
    log: bool = False
    upward: bool = False

    def __call__(self, value: float) -> float:
        """Pixels of a value; NaN of what the axis cannot show, and a place beyond the axis of what is far away."""
        if self.log:
            value = math.log10(value) if value > 0 else math.nan
        share = (value - self.low) / (self.high - self.low)
        share = min(max(share, -_REACH), 1 + _REACH) if share == share else share
        return self.length * (1 - share if self.upward else share)

    @property
    def ends(self) -> tuple[float, float]:
        """First and last value, as data."""
        return (10**self.low, 10**self.high) if self.log else (self.low, self.high)


def scale_of(figure: Figure, name: str, length: float) -> Scale:
    """Scale of the axis ``"x"`` or ``"y"`` of a figure; without limits it spans the data."""
    axis: Axis = getattr(figure, name)
    low, high = axis.limits or _data_limits(figure.marks, name, axis)
    if axis.log:
        low, high = math.log10(low), math.log10(high)
    elif axis.share and axis.limits:
        low, high = low - _SHARE_PAD, high + _SHARE_PAD
    return Scale(low, high, length, axis.log, upward=name == "y")


def _data_limits(marks: Sequence[Mark], name: str, axis: Axis) -> tuple[float, float]:
    visible = [mark for mark in marks if getattr(mark, "visible", True)]
    low, high = _ends(value for mark in visible for value in _values(mark, name))
    span = (high - low) or abs(low) or 1.0
    hidden_low, hidden_high = _ends((low, high, *(value for mark in marks for value in _values(mark, name))))
    low, high = max(hidden_low, low - _HIDDEN_REACH * span), min(hidden_high, high + _HIDDEN_REACH * span)
    if axis.log:
        return low / (1 + _PAD), high * (1 + _PAD)
    return (0.0 if axis.from_zero else low - _PAD * span), high + _PAD * span


def _ends(values: Iterable[float]) -> tuple[float, float]:
    finite = [value for value in values if math.isfinite(value)]
    return (min(finite), max(finite)) if finite else (0.0, 1.0)


def _values(mark: Mark, name: str) -> Sequence[float]:
    match mark:
        case Line() | Dots():
            return mark.x if name == "x" else mark.y
        case Band():
            return mark.x if name == "x" else (*mark.low, *mark.high)
        case Bars():
            return mark.edges if name == "x" else (0.0, *mark.heights)
        case Rule():
            return (mark.at,) if mark.axis == name else ()
    return ()


def ticks_of(axis: Axis, scale: Scale) -> list[tuple[float, str]]:
    """Values and labels of the ticks, so many that no two labels touch."""
    if not axis.ticks:
        return []
    if axis.names:
        return [(float(i), shortened(name, _LONGEST_NAME)) for i, name in enumerate(axis.names)]
    for most in (8, 6, 5, 4, 3):
        ticks = _labelled(axis, scale, most)
        if _fit(ticks, scale):
            return ticks
    return ticks[:: max(1, len(ticks) - 1)]


def _fit(ticks: Sequence[tuple[float, str]], scale: Scale) -> bool:
    places = sorted(scale(value) for value, _ in ticks)
    room = 26.0 if scale.upward else CHARACTER * max((len(label) for _, label in ticks), default=0) + 8
    return all(after - place >= room for place, after in pairwise(places))


def _labelled(axis: Axis, scale: Scale, most: int) -> list[tuple[float, str]]:
    low, high = sorted(scale.ends)
    if axis.log:
        values = log_ticks(low, high, most)
        return [(value, f"{value:.6g}") for value in values]
    if axis.share:
        values, step = linear_ticks(100 * low, 100 * high, most)
        return [(value / 100, f"{label}%") for value, label in zip(values, _labels(values, step), strict=True)]
    values, step = linear_ticks(low, high, most, least=1.0 if axis.whole else 0.0)
    return list(zip(values, _labels(values, step), strict=True))


def linear_ticks(low: float, high: float, most: int, least: float = 0.0) -> tuple[list[float], float]:
    """At most about ``most`` round numbers from ``low`` to ``high``, and the step between them, at least ``least``.

    Example:
        >>> linear_ticks(-0.04, 1.04, 5)
        ([0.0, 0.5, 1.0], 0.5)
        >>> linear_ticks(0.0, 7.2, 8, least=1.0)[1]
        1.0
    """
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = max(next(factor * power for factor in _STEPS if factor * power >= raw * (1 - 1e-9)), least)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [k * step for k in range(first, last + 1)], step


def log_ticks(low: float, high: float, most: int) -> list[float]:
    """Powers of ten; on less than two decades also twice and five times them; on an even shorter axis round numbers.

    Example:
        >>> log_ticks(0.08, 3.0, 8)
        [0.1, 0.2, 0.5, 1.0, 2.0]
        >>> log_ticks(1e-3, 1e3, 4)
        [0.001, 0.1, 10.0, 1000.0]
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1, 2, 5) if high / low < 100 else (1,)
    every = max(1, math.ceil((last - first) / most)) if factors == (1,) else 1
    values = [float(f"{factor}e{k}") for k in range(first, last + 1, every) for factor in factors]
    inside = [value for value in values if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]
    if len(inside) >= _FEWEST_LOG_TICKS:
        return inside
    return [value for value in linear_ticks(low, high, most)[0] if value > 0]


def _labels(values: Sequence[float], step: float) -> list[str]:
    largest = max(map(abs, values), default=0.0)
    if largest and not _PLAIN[0] <= largest < _PLAIN[1]:
        digits = max(0, math.ceil(math.log10(largest / step) - 1e-9))
        return [f"{value:.{digits}e}" if value else "0" for value in values]
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return [f"{0.0 if value == 0 else value:.{decimals}f}" for value in values]
