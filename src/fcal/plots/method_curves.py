"""Curves of several methods as plain data, as they come from a results file: read once, the same for every picture."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from fcal.metrics.report import Histogram, Reliability
from fcal.plots.methods import MAIN, method_order

Curve = tuple[list[float], list[float]]

_LEAST_BEYOND = 0.005

_FIELDS = {
    "z": ("nominal", "empirical"),
    "q": ("nominal", "empirical"),
    "z_histogram": ("edges", "density"),
    "q_histogram": ("edges", "density"),
}


@dataclass(frozen=True)
class Panel:
    """One of the four rows of the figure: of z or of q, its distribution or its reliability."""

    name: str
    title: str
    x: str
    y: str

    @property
    def is_histogram(self) -> bool:
        """Whether it shows densities; else shares below nominal levels."""
        return self.name.endswith("_histogram")

    @property
    def is_of_q(self) -> bool:
        """Whether it is of sums of squares; else of the residuals themselves."""
        return self.name.startswith("q")


PANELS = (
    Panel("q_histogram", "Chi-squared distribution", "q, sum of K squared residuals", "density"),
    Panel("q", "Chi-squared reliability", "nominal probability", "share of q below"),
    Panel("z_histogram", "Normal distribution", "z, errors in units of the predicted sigma", "density"),
    Panel("z", "Normal reliability", "nominal probability", "share of z below"),
)


def curves_of(methods: Mapping[str, Any], name: str) -> dict[str, Curve]:
    """One kind of curve of every method that has it, in the order in which tables show methods.

    Args:
        methods: By method a mapping of ``"z"``, ``"q"`` (``{"nominal": .., "empirical": ..}``), ``"z_histogram"`` and
            ``"q_histogram"`` (``{"edges": .., "density": ..}``); a pair of lists will do for each.
        name: Which of these.

    Raises:
        ValueError: Two lists do not fit each other; says whose.

    Example:
        >>> curves_of({"nll": {"z": [[0.0, 1.0], [0.0, 1.0]]}, "mmd": {}}, "z")
        {'nll': ([0.0, 1.0], [0.0, 1.0])}
    """
    found = {}
    for method in sorted(methods, key=method_order):
        entry = (methods[method] or {}).get(name)
        if entry:
            found[method] = _curve(entry, name, f"curves.{method}.{name}")
    return found


def _curve(entry: Any, name: str, where: str) -> Curve:
    first, second = _FIELDS[name]
    pair = (entry.get(first), entry.get(second)) if isinstance(entry, Mapping) else tuple(entry)
    if len(pair) != 2 or any(not isinstance(part, Sequence) for part in pair):
        raise ValueError(f"expected `{where}` lists of {first} and {second}, got {str(entry)[:60]}")
    x, y = ([math.nan if value is None else float(value) for value in part] for part in pair)
    more = 1 if name.endswith("_histogram") else 0
    if len(x) != len(y) + more or not y:
        raise ValueError(f"expected `{where}` with {len(x) - more} values of {second} as of {first}, got {len(y)}")
    return x, y


def band_of(methods: Mapping[str, Any], name: str) -> tuple[list[float], list[float], list[float]] | None:
    """Where calibrated models would lie: levels, lower and upper ends, from the first method that has them.

    It depends on the amount of data alone, so one band serves all methods.
    """
    for method in sorted(methods, key=method_order):
        entry = (methods[method] or {}).get(name)
        if isinstance(entry, Mapping) and entry.get("low") and entry.get("high"):
            nominal, low, high = ([float(value) for value in entry[part]] for part in ("nominal", "low", "high"))
            if len(nominal) == len(low) == len(high):
                return nominal, low, high
    return None


def shown_at_first(methods: Sequence[str]) -> set[str]:
    """The methods most often compared, or all where there are few: more lines than that nobody can tell apart."""
    main = {method for method in methods if method in MAIN}
    return main if len(methods) > len(MAIN) and main else set(methods)


def together(curves: Mapping[str, Curve]) -> Reliability:
    """All reliability curves as one, for what must keep clear of each of them."""
    nominal = tuple(value for x, _ in curves.values() for value in x)
    empirical = tuple(value for _, y in curves.values() for value in y)
    return Reliability(nominal=nominal, empirical=empirical, low=nominal, high=nominal)


def beyond_axis(curves: Mapping[str, Curve]) -> dict[str, float]:
    """Share of each method's data that its histogram does not show, where that is more than half a percent."""
    shares = {}
    for method, (edges, density) in curves.items():
        inside = sum(d * (high - low) for d, (low, high) in zip(density, pairwise(edges), strict=True))
        if inside < 1 - _LEAST_BEYOND:
            shares[method] = 1 - inside
    return shares


def spanned(curves: Mapping[str, Curve]) -> Histogram:
    """A histogram over the range of all, for the law beside them."""
    low, high = min(x[0] for x, _ in curves.values()), max(x[-1] for x, _ in curves.values())
    return Histogram(edges=(low, high), density=(0.0,), beyond=0.0)
