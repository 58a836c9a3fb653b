"""An ablation from settings to its curves: as a document of plain values, a table and a picture."""

import importlib
import time
from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import TYPE_CHECKING, Any

from fcal._checks import check_integer
from fcal.benchmarks.bokeh.ablations import ABLATIONS, POINT_COLUMNS, Ablation, Point, compute
from fcal.benchmarks.bokeh.settings import Settings
from fcal.sweeps import Cell, Outcome, Store, run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LABELS = ("noise", "regime")  # arguments that choose the data
SEEDS = 3  # of every point, if the settings have as many
_USUAL_NOISE, _USUAL_REGIME = "heteroscedastic", "paper-like"
_DROPS = ("l1_gt", "l1")
_SHOWN = ("l1_gt", "l1", "ece_z", "ece_q", "nll", "crps", "epoch")


def ablation_points(
    name: str,
    settings: Settings,
    noise: str | None = None,
    regime: str | None = None,
    *,
    seed: int = 0,
    ends_only: bool = False,
) -> list[Point]:
    """The points of an ablation with one seed; see :func:`ablation`.

    Raises:
        ValueError: An unknown ablation (the known ones are listed), noise or regime, or a noise that does not fit.
    """
    design = ABLATIONS[name]
    noise = noise or design.noise or _USUAL_NOISE
    if design.noise not in (None, noise):
        raise ValueError(f"expected `noise` {design.noise!r} for the ablation {name!r}, got {noise!r}")
    points = design.points(settings, settings.data(noise, regime or _USUAL_REGIME, seed))
    return _ends(points) if ends_only else points


def ablation_cells(
    name: str, settings: Settings, noise: str | None = None, regime: str | None = None, *, seed: int = 0
) -> list[Cell]:
    """The cells of an ablation with one seed, each once.

    Example:
        >>> from fcal.benchmarks.bokeh import PRESETS
        >>> len(ablation_cells("gamma", PRESETS["tiny"]))  # 7 shapes, 4 networks
        28
    """
    return list(dict.fromkeys(point.cell for point in ablation_points(name, settings, noise, regime, seed=seed)))


def ablation(
    name: str,
    settings: Settings,
    *,
    store: Store,
    noise: str | None = None,
    regime: str | None = None,
    seeds: int | None = None,
    workers: int = 2,
    progress: bool = True,
    ends_only: bool = False,
) -> dict[str, Any]:
    """Compute missing points of an ablation, and collect its curves.

    Every point of a seed starts from the same stored weights and trains for ``settings.tune_epochs``, of which the one
    with the lowest validation likelihood is kept.

    Args:
        name: ``"k"``, ``"gamma"``, ``"lambda"`` or ``"divergence"``.
        settings: Data, network and budget.
        store: Store of finished cells.
        noise: Kind of label noise; heteroscedastic by default, and Gamma for ``"gamma"``.
        regime: Regime of the data; paper-like by default.
        seeds: Number of seeds, each with images and weights of its own; by default three, or as many as the settings
            have.
        workers: Processes.
        progress: Whether a bar is shown.
        ends_only: Whether only the first and the last point of every curve are computed.

    Returns:
        Plain values: ``series`` has a list of points for every curve, each with ``x``, ``status``, ``options``, the
        columns as means over seeds, and ``by_seed``; ``x`` is None for points that do not depend on the varied
        quantity. A network that could not be trained has the status ``"failed"``, one that could not be computed
        ``"crashed"``, both with a reason, without numbers; so has a point with such a network in any seed.

    Raises:
        ValueError: An unknown ablation (the known ones are listed), noise or regime, or a noise that does not fit.
    """
    start = time.perf_counter()
    count = check_integer("seeds", min(SEEDS, settings.seeds) if seeds is None else seeds, at_least=1, at_most=1000)
    of_seeds = [ablation_points(name, settings, noise, regime, seed=seed, ends_only=ends_only) for seed in range(count)]
    cells = [point.cell for points in of_seeds for point in points]
    outcomes = run(cells, compute, store=store, workers=workers, progress=progress)
    design, data = ABLATIONS[name], cells[0].config["fit"]["data"]
    series = _over_seeds([_curves(design, points, outcomes) for points in of_seeds])
    return {
        "task": "bokeh",
        "ablation": name,
        "title": design.title,
        "varied": design.varied,
        "noise": data["noise"],
        "regime": data["regime"],
        "seeds": count,
        "bins": settings.bins,
        "df": settings.df,
        "n_test": 2 * (settings.images // 5 + settings.extra),
        "columns": _columns(design),
        "titles": {name: design.titles[name] for name in series},
        "series": series,
        "floors": _floors(outcomes.values()),
        "wall_s": round(time.perf_counter() - start, 3),
    }


def markdown(document: Mapping[str, Any]) -> str:
    """The document as a table, a line for every point.

    Example:
        >>> point = {"x": 75, "status": "done", "ece_q": 0.0123456}
        >>> document = {"varied": "K", "columns": ["ece_q"], "titles": {"kl": "KL"}, "series": {"kl": [point]}}
        >>> print(markdown(document))
        | | K | ece_q |
        |---|---|---|
        | KL | 75 | 0.01235 |
    """
    columns = [name for name in document["columns"] if name in _SHOWN or name.startswith("drop_")]
    lines = [f"| | {' | '.join([document['varied'], *columns])} |", "|---" * (len(columns) + 2) + "|"]
    for series, points in document["series"].items():
        for point in points:
            labels = [document["titles"][series], _text(point["x"])]
            numbers = [_text(point.get(name)) for name in columns]
            lines.append(
                f"| {' | '.join(labels + (numbers if point['status'] == 'done' else _failed(point, columns)))} |"
            )
    return "\n".join(lines)


def _ends(points: list[Point]) -> list[Point]:
    of_series: dict[str, list[Point]] = {}
    for point in points:
        of_series.setdefault(point.series, []).append(point)
    kept = {id(point) for curve in of_series.values() for point in (curve[0], curve[-1])}
    return [point for point in points if id(point) in kept]


def _curves(design: Ablation, points: list[Point], outcomes: Mapping[Cell, Outcome]) -> dict[str, list[dict[str, Any]]]:
    """Every point of one seed, by curve."""
    series: dict[str, list[dict[str, Any]]] = {}
    for point in points:
        series.setdefault(point.series, []).append(_entry(point, outcomes[point.cell]))
    _add_drops(design, series)
    return series


def _over_seeds(of_seeds: list[dict[str, list[dict[str, Any]]]]) -> dict[str, list[dict[str, Any]]]:
    """Curves of several seeds as one: means, and the numbers of every seed."""
    return {
        name: [_mean_point(points) for points in zip(*(series[name] for series in of_seeds), strict=True)]
        for name in of_seeds[0]
    }


def _mean_point(points: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    broken = next((point for point in points if point["status"] != "done"), None)
    if broken is not None:
        return broken
    known = {name: points[0][name] for name in ("x", "options", "status")}
    by_seed = {name: [point[name] for point in points] for name in points[0] if name not in known}
    means = {name: None if None in values else fmean(values) for name, values in by_seed.items()}
    return {**known, **means, "by_seed": by_seed}


def _entry(point: Point, outcome: Outcome) -> dict[str, Any]:
    known = {"x": point.x, "options": dict(point.options)}
    if outcome.status == "failed":
        return {**known, "status": "crashed", "reason": outcome.reason}
    result = outcome.result
    if result["status"] == "failed":
        return {**known, "status": "failed", "reason": result["reason"]}
    return {**known, "status": "done", "epoch": result["epoch"], **result["columns"]}


def _columns(design: Ablation) -> list[str]:
    return [*POINT_COLUMNS, "epoch", *(f"drop_{name}" for name in _DROPS if design.baseline)]


def _add_drops(design: Ablation, series: Mapping[str, list[dict[str, Any]]]) -> None:
    """Add to every point how much larger its error is than that of the baseline at the same ``x``, in per cent."""
    if design.baseline is None:
        return
    baseline = {point["x"]: point for point in series[design.baseline]}
    for point in (point for curve in series.values() for point in curve):
        for name in _DROPS:
            reference = baseline[point["x"]].get(name)
            if point["status"] == "done" and reference:
                point[f"drop_{name}"] = float(f"{100 * (point[name] / reference - 1):.6g}")


def _floors(outcomes: Iterable[Outcome]) -> dict[str, Any]:
    """Scores of a calibrated model on the same number of test images, which are the same for every point."""
    floors = [outcome.result["floors"] for outcome in outcomes if outcome.result and outcome.result.get("floors")]
    return dict(floors[0]) if floors else {}


def _text(value: float | str | None) -> str:
    return "" if value is None else value if isinstance(value, str) else f"{value:.4g}"


def _failed(point: Mapping[str, Any], columns: list[str]) -> list[str]:
    reason = str(point["reason"]).replace("|", "/")  # a bar would start a column
    return [f"{point['status']}: {reason}", *[""] * (len(columns) - 1)]


def draw(document: Mapping[str, Any]) -> "Figure":
    """The picture of an ablation; see :mod:`fcal.benchmarks.bokeh.ablation_pictures`."""
    # Processes that compute points need no matplotlib.
    return importlib.import_module("fcal.benchmarks.bokeh.ablation_pictures").draw(document)
