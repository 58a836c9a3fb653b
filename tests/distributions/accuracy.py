"""Errors of the hard families against mpmath, over the whole range of their parameters.

Shared by the tests, which look at a seeded part of the grid, and by ``experiments/family_accuracy``, which walks all.
"""

import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import mpmath as mp
import torch
from references import REFERENCES, Exact, Reference
from torch import Tensor

import fcal
from fcal.distributions import log_cdf, log_survival
from fcal.residuals import unstandardize

Z64 = (-37.0, -30.0, -20.0, -12.0, -8.3, -5.0, -2.0, -0.7, -1e-3, 1e-3, 0.5, 1.9, 5.5, 8.0, 12.0, 20.0, 31.0, 37.0)
Z32 = (-12.0, -9.0, -5.5, -2.0, -0.7, -1e-3, 1e-3, 0.5, 1.9, 5.5, 9.0, 12.0)
SMALLEST = 1e-304  # tail probability, at |z| = 37.2

# Both sides of every switch in the source: 5 and 16 (degrees of freedom), 1, 5, 10, 12, 100 (shapes).
DFS = (0.5, 0.9, 1.0, 2.0, 4.9, 5.1, 15.9, 16.1, 30.0, 1e3, 1e5)
SHAPES = (0.05, 0.3, 0.99, 1.0, 4.9, 5.1, 9.9, 10.1, 11.9, 12.1, 99.0, 101.0, 1e3, 1e4)
TAIL_INDICES = (-0.9, -0.5, -0.1, -1e-3, -1e-9, 0.0, 1e-9, 1e-3, 0.1, 0.5, 1.0, 3.0)
ASYMMETRIES = (0.05, 0.3, 0.9, 1.0, 1.1, 3.0, 20.0)

Parameters = tuple[float, ...]
Switches = Callable[..., Iterable[float]]


def _around(*values: float) -> list[float]:
    return [v * (1 + side) for v in values for side in (-1e-9, 0.0, 1e-9)]


def _no_switches(*_: float) -> list[float]:
    return []


@dataclass(frozen=True)
class Grid:
    """Parameters to test a family with, and where its formulas change."""

    reference: Reference
    rows: tuple[Parameters, ...]
    names: tuple[str, ...]
    switches: Switches = _no_switches


def _grid(name: str, rows: Iterable[Parameters], names: str, switches: Switches = _no_switches) -> Grid:
    return Grid(REFERENCES[name], tuple(rows), tuple(names.split()), switches)


_TRUNCATIONS = (
    (0.3, 1.7, 0.0, 2.5),
    (0.0, 1.0, 0.0, math.inf),
    (0.5, 2.0, -math.inf, 0.0),
    (0.3, 1.7, -math.inf, math.inf),
    (0.0, 1.0, -1.0, 1.0),
    (0.0, 1.0, -40.0, 40.0),
    (-8.0, 1.0, 0.0, 3.0),  # eight scales outside of its bounds
    (30.0, 1.0, 0.0, 2.0),
    (-30.0, 1.0, 0.0, math.inf),
    (0.4, 100.0, 0.0, 1.0),  # nearly uniform
    (0.4, 1e5, 0.0, 1.0),
    (0.4, 1e-2, 0.0, 1.0),  # nearly normal
    (0.0, 1.0, 0.0, 1e-6),
    (0.0, 1.0, 5.0, 5.3),
    (0.0, 1.0, -5.3, -5.0),
)
_PAIR = (0.2, -0.5)  # logits
HARD: dict[str, Grid] = {
    "StudentT": _grid(
        "StudentT",
        [(df, 0.0, 1.0) for df in DFS] + [(4.2, 0.3, 1.7)],
        "df loc scale",
        lambda df, loc, scale: (loc + scale * t for t in _around(0.1 * math.sqrt(df), -math.sqrt(df))),
    ),
    "Gamma": _grid(
        "Gamma",
        [(a, 1.0) for a in SHAPES] + [(2.3, 1e-3), (2.3, 1e3)],
        "concentration rate",
        lambda a, rate: _around(a / rate),
    ),
    "Chi2": _grid("Chi2", [(df,) for df in DFS], "df", lambda df: _around(df)),
    "InverseGamma": _grid(
        "InverseGamma",
        [(a, 1.0) for a in SHAPES] + [(2.3, 20.0)],
        "concentration rate",
        lambda a, rate: _around(rate / a),
    ),
    "Beta": _grid(
        "Beta",
        itertools.product(SHAPES, SHAPES),
        "concentration1 concentration0",
        lambda a, b: _around(a / (a + b), 0.5),
    ),
    "FisherSnedecor": _grid(
        "FisherSnedecor",
        itertools.product((0.5, 1.0, 9.9, 10.1, 30.0, 1e3, 1e5), repeat=2),
        "df1 df2",
        lambda df1, df2: _around(1.0, df2 / df1),
    ),
    "GeneralizedPareto": _grid(
        "GeneralizedPareto",
        [(0.0, 1.3, k) for k in TAIL_INDICES] + [(0.4, 2.0, 0.2), (0.4, 2.0, -0.2)],
        "loc scale concentration",
        lambda loc, scale, k: _around(loc + scale * 0.1 / abs(k)) if abs(k) > 1e-2 else [],
    ),
    "AsymmetricLaplace": _grid(
        "AsymmetricLaplace",
        [(0.0, 1.0, k) for k in ASYMMETRIES] + [(0.3, 1.7, 1.4)],
        "loc scale asymmetry",
        lambda loc, scale, _: [loc + 1e-9 * scale, loc - 1e-9 * scale],
    ),
    "TruncatedNormal": _grid("TruncatedNormal", _TRUNCATIONS, "loc scale low high"),
    "mixture of Normal": _grid(
        "mixture of Normal",
        [
            (*_PAIR, -1.0, 2.0, 0.7, 1.6),
            (*_PAIR, 0.0, 0.0, 1.0, 30.0),  # a narrow component in a wide one
            (-20.0, 0.0, -5.0, 5.0, 1.0, 1.0),  # a weight of 2e-9
            (0.0, 0.0, -20.0, 20.0, 1.0, 1.0),  # the median in a gap
        ],
        "logits logits loc loc scale scale",
    ),
    "mixture of Gamma": _grid(
        "mixture of Gamma",
        [(*_PAIR, 2.3, 14.0, 1.3, 0.8), (*_PAIR, 0.05, 1e3, 1.0, 10.0)],
        "logits logits concentration concentration rate rate",
    ),
    "mixture of StudentT": _grid(
        "mixture of StudentT",
        [(*_PAIR, 3.0, 1e3, -1.0, 2.0, 0.7, 1.6), (*_PAIR, 1.0, 30.0, 0.0, 0.0, 0.2, 3.0)],
        "logits logits df df loc loc scale scale",
    ),
    "mixture of Beta": _grid(
        "mixture of Beta",
        [(*_PAIR, 0.3, 101.0, 4.9, 12.1), (*_PAIR, 2.0, 8.0, 8.0, 2.0)],
        "logits logits concentration1 concentration1 concentration0 concentration0",
    ),
}


@dataclass(frozen=True)
class Points:
    """Points of a family's grid: parameters ``(N, P)``, requested residuals and values ``(N,)``."""

    parameters: Tensor
    z: Tensor
    y: Tensor

    def part(self, chosen: Tensor) -> "Points":
        return Points(self.parameters[chosen], self.z[chosen], self.y[chosen])


def law_of(grid: Grid, parameters: Tensor) -> torch.distributions.Distribution:
    return grid.reference.kind(*parameters.unbind(1))


def representable(grid: Grid, parameters: Tensor, y: Tensor) -> Tensor:
    """True where y is finite and, by mpmath, strictly inside the support and within |z| = 37.2."""

    def inside(value: float, row: list[float]) -> bool:
        if not math.isfinite(value):
            return False
        lower, upper = grid.reference.tails(mp.mpf(value), *map(mp.mpf, row))
        return min(lower, upper) > SMALLEST

    return torch.tensor([inside(v, row) for v, row in zip(y.tolist(), parameters.tolist(), strict=True)])


def points(
    name: str, *, z_values: tuple[float, ...] = Z64, dtype: torch.dtype = torch.float64, rows: Iterable[Parameters] = ()
) -> Points:
    """Every row of the grid at every z, and around every switch, where y is representable (z is NaN at switches)."""
    grid = HARD[name]
    parameters, z = [], []
    switched: list[tuple[Parameters, float]] = []
    for row in rows or grid.rows:
        for value in z_values:
            parameters.append(row)
            z.append(value)
        switched += [(row, y) for y in grid.switches(*row)]
    rounded, goal = torch.tensor(parameters, dtype=dtype), torch.tensor(z, dtype=dtype)
    y = unstandardize(law_of(grid, rounded), goal).detach()
    if switched:
        extra = torch.tensor([row for row, _ in switched], dtype=dtype)
        rounded = torch.cat([rounded, extra])
        y = torch.cat([y, torch.tensor([v for _, v in switched], dtype=dtype)])
        goal = torch.cat([goal, torch.full((len(switched),), math.nan, dtype=dtype)])
    found = Points(rounded, goal, y)
    return found.part(representable(grid, rounded, y))


def chosen(found: Points, count: int, seed: int) -> Points:
    """A seeded sample of the points."""
    if len(found.y) <= count:
        return found
    return found.part(torch.tensor(sorted(random.Random(seed).sample(range(len(found.y)), count))))


def measured(grid: Grid, at: Points) -> dict[str, Tensor]:
    """Residual, log-tails and their gradients by fcal; quantile and its gradients where a z was requested."""
    result: dict[str, Tensor] = {}
    for title, function in (("z", fcal.standardize), ("log_cdf", log_cdf), ("log_survival", log_survival)):
        y, rows = at.y.clone().requires_grad_(), at.parameters.clone().requires_grad_()
        value = function(law_of(grid, rows), y)
        result[title] = value.detach()
        result[f"d {title}"] = _gradients(value, y, rows)
    z, rows = at.z.nan_to_num(0.5).requires_grad_(), at.parameters.clone().requires_grad_()
    value = unstandardize(law_of(grid, rows), z)
    result["quantile"] = value.detach()
    result["d quantile"] = _gradients(value, z, rows)
    return result


def _gradients(value: Tensor, first: Tensor, rows: Tensor) -> Tensor:
    by_first, by_rows = torch.autograd.grad(value.sum(), [first, rows])
    return torch.cat([by_first.unsqueeze(1), by_rows], 1)


def exact_points(grid: Grid, at: Points) -> Iterator[Exact]:
    for y, row in zip(at.y.tolist(), at.parameters.tolist(), strict=True):
        yield grid.reference.exact(y, [mp.mpf(v) for v in row])


def expected(at: Points, exact: list[Exact]) -> dict[str, Tensor]:
    """The same numbers by mpmath; ``quantile`` by one exact step of Newton from the value at hand."""
    columns: dict[str, list[float | list[float]]] = {}

    def put(title: str, value: float | list[float]) -> None:
        columns.setdefault(title, []).append(value)

    for one, z, y in zip(exact, at.z.tolist(), at.y.tolist(), strict=True):
        residual = one.residual
        density = mp.npdf(residual)
        put("z", float(residual))
        put("log_cdf", float(one.log_cdf))
        put("log_survival", float(one.log_survival))
        put("d z", [float(s / density) for s in one.slopes])
        put("d log_cdf", [float(s / one.lower) for s in one.slopes])
        put("d log_survival", [float(-s / one.upper) for s in one.slopes])
        by_z = density / one.slopes[0]
        put("quantile", math.nan if math.isnan(z) else float(mp.mpf(y) + (mp.mpf(z) - residual) * by_z))
        put("d quantile", [float(by_z), *(float(-s / one.slopes[0]) for s in one.slopes[1:])])
    return {title: torch.tensor(values, dtype=torch.float64) for title, values in columns.items()}


def relative_errors(found: dict[str, Tensor], wanted: dict[str, Tensor], at: Points) -> dict[str, Tensor]:
    """Relative errors; NaN where a number is not compared, 0 where the truth is beyond the floats of the dtype.

    What passes through 0 has a floor: 1e-3 for z, and for a derivative one that moves its quantity by 1e-5 of itself
    (z by 1e-5, a quantile by 1e-5 of what a unit of z moves it) when the parameter moves by all of itself.
    """
    errors = {}
    for title, truth in wanted.items():
        limits = torch.finfo(found[title].dtype)
        error = (found[title].double() - truth).abs() / torch.maximum(truth.abs(), _floor(title, wanted, at))
        inside = (truth.abs() <= limits.max) & (truth.abs() >= limits.tiny)
        if title.startswith("d "):  # the chain rule goes through the slope by y, which may underflow
            inside &= torch.minimum(truth.abs(), truth[:, :1].abs()) >= (1e-290 if limits.bits == 64 else 1e-36)
        error = torch.where(inside, torch.where(error.isnan(), math.inf, error), 0.0)
        errors[title] = torch.where(_compared(title, wanted, at), error, math.nan)
    return errors


def _floor(title: str, wanted: dict[str, Tensor], at: Points) -> Tensor:
    if title == "z":
        return torch.full_like(at.z, 1e-3, dtype=torch.float64)
    if not title.startswith("d "):
        return torch.zeros(len(at.z), dtype=torch.float64)
    size = torch.ones(len(at.z)).double() if title == "d z" else wanted[title[2:]].nan_to_num(1.0).abs()
    if title == "d quantile":
        size = torch.maximum(size, wanted[title][:, 0].abs())
    first = at.z.nan_to_num(1.0) if title == "d quantile" else at.y
    arguments = torch.cat([first.unsqueeze(1), at.parameters], 1).double().abs()
    return 1e-5 * size.unsqueeze(1) / torch.where(arguments.isfinite() & (arguments > 0), arguments, 1.0)


def _compared(title: str, wanted: dict[str, Tensor], at: Points) -> Tensor:
    """Quantiles where a z was requested; their gradients where the rounding of y leaves z alone."""
    if "quantile" not in title:
        return torch.tensor(True)
    asked = ~at.z.isnan()
    if title == "quantile":
        return asked
    moved = (wanted["z"] - at.z).abs()
    same = asked & (moved < torch.minimum(1e-8 * (1 + at.z.abs()), 1e-6 * at.z.abs()))
    compared = same.unsqueeze(1).expand(-1, at.parameters.shape[1] + 1).clone()
    # dy/dz goes through the probability, and dy/dp = (dy/dz) / phi(z) may be beyond the floats where dy/dz is not
    compared[:, 0] &= (wanted["d quantile"][:, 0].log() + at.z.double().square() / 2) < math.log(1e306)
    return compared
