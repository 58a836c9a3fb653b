"""Points of an ablation: a training each, in a cell of its own, and what it scores on test images."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor
from torch.distributions import Distribution

from fcal import recalibration
from fcal._datasets import BatchConcat
from fcal.benchmarks.bokeh import fits
from fcal.benchmarks.bokeh.methods import METHODS, Trained
from fcal.benchmarks.bokeh.rows import COLUMNS, columns_together, scored
from fcal.benchmarks.bokeh.settings import Settings
from fcal.data import BokehConfig, BokehSplits
from fcal.sweeps import Cell, Store

KIND = "bokeh-point"
POINT_COLUMNS = tuple(name for name in COLUMNS if name != "predict_ms")  # the networks are the same, so is their speed
_FLOORS = ("ece_z", "mce_z", "ece_q", "mce_q")  # the others depend on more than how many images there are
_LIKELIHOOD = {"name": "nll"}


@dataclass(frozen=True, kw_only=True)
class Point:
    """A place on a curve, and the cell that holds its numbers.

    Attributes:
        series: The curve.
        x: Where on it; None for what does not depend on what is varied.
        options: What it was trained by.
        cell: The cell; points of several ablations may share one.
    """

    series: str
    x: float | str | None
    options: Mapping[str, Any]
    cell: Cell


def trained(
    settings: Settings,
    data: BokehConfig,
    series: str,
    x: float | str | None,
    options: Mapping[str, Any],
    *,
    like: str = "nll",
) -> Point:
    """A point whose network was trained from stored weights.

    Args:
        settings: Network and budget.
        data: Images and labels.
        series: Its curve.
        x: Its place on the curve.
        options: Of the objective, with its name.
        like: Method of the table whose network, first training and choice of the epoch it shares.
    """
    method = METHODS[like]
    assert isinstance(method, Trained)
    base = fits.base_cell(settings, data, method)
    fit = fits.tuned_cell(settings, data, method, options, start=base)
    config = {**_scoring(settings), "fit": fit.config, "recalibrator": None}
    return Point(series=series, x=x, options=dict(options), cell=_cell(config, data, f"{series} {x}", base))


def likelihood(settings: Settings, data: BokehConfig, series: str = "nll", x: float | None = None) -> Point:
    """The network trained by likelihood alone, for as long as the others."""
    return trained(settings, data, series, x, _LIKELIHOOD)


def repaired(settings: Settings, data: BokehConfig, recalibrator: str) -> Point:
    """The network trained by likelihood, repaired on the validation images; ``recalibrator`` names how."""
    # It needs that network's own point, lest two processes train it at the same time.
    before = likelihood(settings, data).cell
    cell = _cell({**before.config, "recalibrator": recalibrator}, data, recalibrator, before)
    return Point(series=recalibrator, x=None, options={**_LIKELIHOOD, "recalibrator": recalibrator}, cell=cell)


def compute(kind: str, config: Mapping[str, Any], store: Store) -> dict[str, Any]:
    """The result of a point, or of a training that points start from."""
    return fits.train(config, store) if kind == fits.KIND else compute_point(kind, config, store)


def compute_point(kind: str, config: Mapping[str, Any], store: Store) -> dict[str, Any]:
    """Train a point's network where that is still to be done, and score it on test images.

    Args:
        kind: ``"bokeh-point"``.
        config: Of the cell.
        store: Where trainings are.

    Returns:
        Columns, floors and the chosen epoch; or why the network could not be trained.
    """
    if kind != KIND:
        raise ValueError(f"expected `kind` {KIND!r}, got {kind!r}")
    fit = _fit_cell(config["fit"])
    (base,) = fit.needs
    results = []
    for cell in (base, fit):
        results.append(fits.fitted(cell, store))
        if results[-1]["status"] == "failed":
            return {"status": "failed", "reason": results[-1]["reason"]}
    splits = fits.splits_of(**config["fit"]["data"])
    pred = _prediction(fit, splits, config["recalibrator"], store)
    test = columns_together((splits.test, splits.extra))
    scores = scored(pred, test, bins=config["bins"], df=config["df"])
    scores["columns"]["train_s"] = round(sum(result["seconds"] for result in results), 3)
    return {
        "status": "done",
        "columns": {name: scores["columns"][name] for name in POINT_COLUMNS},
        "floors": {name: scores["floors"][name] for name in _FLOORS} if "floors" in scores else {},
        "epoch": results[-1]["best_epoch"] + 1,
    }


def _prediction(fit: Cell, splits: BokehSplits, recalibrator: str | None, store: Store) -> Distribution | Tensor:
    network = fits.network_of(fit, store)
    pred = fits.predicted(network, BatchConcat([splits.test, splits.extra]))
    if recalibrator is None:
        return pred
    held_out = fits.predicted(network, splits.validation)
    assert isinstance(pred, Distribution)
    assert isinstance(held_out, Distribution)
    repair = recalibration.by_name(recalibrator)()
    return repair.fit(held_out, columns_together((splits.validation,))["target"]).transform(pred)


def _scoring(settings: Settings) -> dict[str, Any]:
    return {"version": fits.VERSION, "bins": settings.bins, "df": settings.df}


def _cell(config: Mapping[str, Any], data: BokehConfig, what: str, *needs: Cell) -> Cell:
    where = " ".join(str(asdict(data)[name]) for name in ("regime", "noise", "shape", "seed"))
    return Cell(KIND, config, needs=needs, affinity=where, label=f"{what} ({where})")


def _fit_cell(config: Mapping[str, Any]) -> Cell:
    """The training of a config, with those that it starts from."""
    start = config["start"]
    return Cell(fits.KIND, config, needs=() if start is None else (_fit_cell(start),))
