"""Points of an ablation: each is a training in a cell of its own, and the scores of its network on test images."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn
from torch.distributions import Distribution

from fcal import recalibration
from fcal._datasets import BatchConcat
from fcal.benchmarks.bokeh import trainings
from fcal.benchmarks.bokeh.scoring import COLUMNS, scored
from fcal.benchmarks.bokeh.settings import Settings
from fcal.benchmarks.methods import METHODS, Trained
from fcal.benchmarks.problem import Options
from fcal.data import BokehConfig
from fcal.sweeps import Cell, Store
from fcal.training import Objective, ObjectiveConfig, objective
from fcal.training.objectives import Terms, register

KIND = "bokeh-point"
POINT_COLUMNS = tuple(name for name in COLUMNS if name != "predict_ms")  # the networks are the same, so is their speed
WEIGHTED_LIKELIHOOD = "smooth-l1-nll"  # objective by name
_FLOORS = ("ece_z", "mce_z", "ece_q", "mce_q")  # the others depend on more than the number of images
_LIKELIHOOD = {"name": "nll"}


@dataclass(frozen=True, kw_only=True)
class Point:
    """A point of a curve, and the cell that holds its numbers.

    Attributes:
        series: The curve.
        x: Value of the varied quantity; None for a point that does not depend on it.
        options: Options of its training.
        cell: The cell; points of several ablations may share one.
    """

    series: str
    x: float | str | None
    options: Options
    cell: Cell


def trained(
    settings: Settings, data: BokehConfig, series: str, x: float | str | None, options: Options, *, like: str = "nll"
) -> Point:
    """A point whose network was trained from stored weights.

    Args:
        settings: Network and budget.
        data: Images and labels.
        series: Its curve.
        x: Value of the varied quantity.
        options: Options of the objective, with its name.
        like: Method of the table whose network, first training and choice of the epoch it shares.
    """
    method = METHODS[like]
    assert isinstance(method, Trained)
    base = trainings.base_cell(settings, data, method)
    fit = trainings.tuned_cell(settings, data, method, options, start=base)
    config = {
        "version": trainings.FIT_VERSION,
        "bins": settings.bins,
        "df": settings.df,
        "fit": fit.config,
        "recalibrator": None,
    }
    return Point(series=series, x=x, options=dict(options), cell=_cell(config, data, f"{series} {x}", base))


def likelihood(settings: Settings, data: BokehConfig, series: str = "nll", x: float | None = None) -> Point:
    """The network trained by likelihood alone, for as many epochs as the others."""
    return trained(settings, data, series, x, _LIKELIHOOD)


def repaired(settings: Settings, data: BokehConfig, recalibrator: str) -> Point:
    """The network trained by likelihood, recalibrated on the validation images."""
    # It needs the point of that network, so that two processes do not train it at the same time.
    before = likelihood(settings, data).cell
    cell = _cell({**before.config, "recalibrator": recalibrator}, data, recalibrator, before)
    return Point(series=recalibrator, x=None, options={**_LIKELIHOOD, "recalibrator": recalibrator}, cell=cell)


def compute(kind: str, config: Mapping[str, Any], store: Store) -> dict[str, Any]:
    """The result of a point, or of a training that points start from."""
    return trainings.train(config, store) if kind == trainings.FIT else compute_point(kind, config, store)


def compute_point(kind: str, config: Mapping[str, Any], store: Store) -> dict[str, Any]:
    """Train the network of a point if necessary, and score it on test images.

    Args:
        kind: ``"bokeh-point"``.
        config: Config of the cell.
        store: Store of finished trainings.

    Returns:
        Columns, floors and the chosen epoch; or the reason why the network could not be trained.
    """
    if kind != KIND:
        raise ValueError(f"expected `kind` {KIND!r}, got {kind!r}")
    fit = trainings.fit_cell_of(config["fit"])
    results = []
    for cell in (*fit.needs, fit):
        results.append(trainings.finished(cell, store))
        if results[-1]["status"] == "failed":
            return {"status": "failed", "reason": results[-1]["reason"]}
    splits, network = trainings.splits_of(**config["fit"]["data"]), trainings.network_of(fit, store)
    pred = trainings.predicted(network, BatchConcat([splits.test, splits.extra]))
    if config["recalibrator"] is not None:
        held_out = trainings.predicted(network, splits.validation)
        assert isinstance(pred, Distribution)
        assert isinstance(held_out, Distribution)
        repair = recalibration.by_name(config["recalibrator"])()
        pred = repair.fit(held_out, trainings.targets_of(splits.validation)["target"]).transform(pred)
    scores = scored(pred, trainings.targets_of(splits.test, splits.extra), bins=config["bins"], df=config["df"])
    scores["columns"]["train_s"] = round(sum(result["seconds"] for result in results), 3)
    return {
        "status": "done",
        "columns": {name: scores["columns"][name] for name in POINT_COLUMNS},
        "floors": {name: scores["floors"][name] for name in _FLOORS} if "floors" in scores else {},
        "epoch": results[-1]["best_epoch"] + 1,
    }


def _cell(config: Mapping[str, Any], data: BokehConfig, subject: str, *needs: Cell) -> Cell:
    where = " ".join(str(asdict(data)[name]) for name in ("regime", "noise", "shape", "seed"))
    return Cell(KIND, config, needs=needs, affinity=where, label=f"{subject} ({where})")


class WeightedLikelihood(nn.Module):
    r"""Smooth L1 of the mean and the likelihood, :math:`(1 - \lambda) L_1 + \lambda L_{nll}`, as an objective.

    Args:
        lam: Weight :math:`\lambda` of the likelihood.
    """

    def __init__(self, lam: float) -> None:
        super().__init__()
        self.weights = {"smooth-l1": 1 - lam, "nll": lam}
        self._terms: dict[str, Objective] = {name: objective(ObjectiveConfig(name=name)) for name in self.weights}

    def forward(self, model: nn.Module, batch: Mapping[str, Any]) -> Terms:
        """Both terms of a batch; the network runs once."""
        pred = model(batch["input"])
        return {name: weight * self._terms[name](lambda _: pred, batch)[name] for name, weight in self.weights.items()}  # type: ignore[arg-type]


register(WEIGHTED_LIKELIHOOD, lambda config: WeightedLikelihood(config.lam))
