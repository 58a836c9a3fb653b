"""Ablations of the Bokeh benchmark: varied quantity, curves, panels, and points, each the scores of one training."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import nn
from torch.distributions import Distribution

from fcal import divergences, recalibration
from fcal._registry import Registry
from fcal.benchmarks.bokeh.problem import BokehTrainings, labels_of
from fcal.benchmarks.bokeh.scoring import COLUMNS, scored
from fcal.benchmarks.bokeh.settings import Settings
from fcal.benchmarks.method_kinds import Trained
from fcal.benchmarks.methods import METHODS
from fcal.benchmarks.problem import Options
from fcal.benchmarks.training_cells import TrainingCells
from fcal.data import BokehConfig
from fcal.sweeps import Cell, Store
from fcal.training import Objective, ObjectiveConfig, objective
from fcal.training.objectives import Terms, register

KIND = "bokeh-point"
POINT_COLUMNS = tuple(name for name in COLUMNS if name != "predict_ms")  # the networks are the same, so is their speed
WEIGHTED_LIKELIHOOD = "smooth-l1-nll"  # objective by name
_FLOORS = ("ece_z", "mce_z", "ece_q", "mce_q")  # the others depend on more than the number of images
_LIKELIHOOD = {"name": "nll"}
_TRAININGS = BokehTrainings()
DEGREES = (2, 5, 10, 25, 50, 75, 100, 200)
SHAPES = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 100.0)
WEIGHTS = (0.001, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 0.9)
# Gradients of these two are a thousand times smaller and larger than the likelihood's, in image units.
LIKELIHOOD_WEIGHTS = (1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.1, 0.5)
CALIBRATION_LOSS_WEIGHTS = (1.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10000.0)
_LAM = 0.05  # large enough for f-Cal to have an effect, small enough to keep the mean
_KL = {"name": "fcal", "divergence": "kl"}
_WASSERSTEIN = {"name": "fcal", "divergence": "wasserstein"}
_CALIBRATION_LOSS = {"name": "calibration-loss", "form": "additive", "on": "variance", "p": 1}


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
    cells = TrainingCells(source=_TRAININGS, budget=settings, data=asdict(data), network=settings.network)
    base = cells.base(method)
    fit = cells.tuned(method, options, start=base)
    config = {
        "version": _TRAININGS.version,
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
    return compute_point(config, store) if kind == KIND else _TRAININGS.train(kind, config, store)


def compute_point(config: Mapping[str, Any], store: Store) -> dict[str, Any]:
    """Train the network of a point if necessary, and score it on test images.

    Returns:
        Columns, floors and the chosen epoch; or the reason why the network could not be trained.
    """
    fit = _TRAININGS.fit_cell(config["fit"])
    results = []
    for cell in (*fit.needs, fit):
        results.append(_TRAININGS.finished(cell, store))
        if results[-1]["status"] == "failed":
            return {"status": "failed", "reason": results[-1]["reason"]}
    data = config["fit"]["data"]
    rows, network = _TRAININGS.datasets(data), _TRAININGS.network_of(fit, store)
    pred = _TRAININGS.predict(network, rows.test).pred
    if config["recalibrator"] is not None:
        held_out = _TRAININGS.predict(network, rows.validation)
        assert isinstance(pred, Distribution)
        assert isinstance(held_out.pred, Distribution)
        repair = recalibration.by_name(config["recalibrator"])()
        pred = repair.fit(held_out.pred, held_out.target).transform(pred)
    scores = scored(pred, labels_of(data), bins=config["bins"], df=config["df"])
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


@dataclass(frozen=True, kw_only=True)
class Panel:
    """A panel that shows one column.

    Attributes:
        column: Column on the vertical axis.
        label: Its label.
        factor: Factor by which it is multiplied.
        against: Column on the horizontal axis; the varied quantity if None.
        against_label: Its label.
        against_factor: Factor by which it is multiplied.
        log: Whether the vertical axis is logarithmic.
    """

    column: str
    label: str
    factor: float = 1.0
    against: str | None = None
    against_label: str = ""
    against_factor: float = 1.0
    log: bool = False


@dataclass(frozen=True, kw_only=True)
class Ablation:
    """A quantity that is varied while all others are fixed.

    Attributes:
        title: Title of the picture.
        points: Function from settings and data to the points of all curves.
        varied: Name of the varied quantity.
        log: Whether its axis is logarithmic.
        titles: Title of each curve.
        panels: Panels of the picture.
        noise: The only noise that it applies to; None for any.
        baseline: Curve relative to which the loss of accuracy is measured, if any.
    """

    title: str
    points: Callable[[Settings, BokehConfig], list[Point]]
    varied: str
    log: bool = False
    titles: Mapping[str, str]
    panels: tuple[Panel, ...]
    noise: str | None = None
    baseline: str | None = None


def _by_degrees(settings: Settings, data: BokehConfig) -> list[Point]:
    r"""K at a fixed weight lam, and at a fixed weight of the term with K.

    With the mean m and variance s^2 of z^2, f-Cal-KL is (log(2/s^2) + s^2/2 - 1) / 2 + (K/4) (m - 1)^2. In the
    additive form, nll + a * f-Cal, the term with K has the weight a K / 4 beside a likelihood of weight 1. The convex
    form at lam is 1 - lam times the additive one at a = lam / (1 - lam), so a = lam / (1 - lam) * df / K keeps that
    weight at its value for K = df exactly. Then only the weight of the term of s varies with K.
    """
    points = [likelihood(settings, data)]
    points.append(trained(settings, data, "z", None, {**_KL, "lam": _LAM, "on": "z"}))
    for df in DEGREES:
        convex, additive = (
            {"lam": _LAM, "df": df},
            {"lam": _LAM / (1 - _LAM) * settings.df / df, "form": "additive", "df": df},
        )
        of_series: dict[str, dict[str, Any]] = {
            "fixed_lam": {**_KL, **convex},
            "fixed_lam_k": {**_KL, **additive},
            "both": {**_KL, **convex, "on": "both"},
            "chi2": {**_KL, **convex, "divergence": "chi2_moments"},
        }
        points += [trained(settings, data, series, df, options) for series, options in of_series.items()]
    return points


def _by_shape(settings: Settings, data: BokehConfig) -> list[Point]:
    """Noise from strongly skewed to nearly normal, and networks that assume normal noise."""
    points = []
    for shape in SHAPES:
        here = replace(data, shape=shape)
        points += [
            trained(settings, here, "deterministic", shape, {"name": "smooth-l1"}, like="deterministic"),
            likelihood(settings, here, x=shape),
            trained(settings, here, "fcal_kl", shape, {**_KL, "lam": _LAM}),
            trained(settings, here, "fcal_wass", shape, {**_WASSERSTEIN, "lam": _LAM}),
        ]
    return points


def _by_weight(settings: Settings, data: BokehConfig) -> list[Point]:
    """Calibration and accuracy at each weight."""
    of_series: dict[str, tuple[dict[str, Any], tuple[float, ...]]] = {
        "l1_nll": ({"name": WEIGHTED_LIKELIHOOD}, LIKELIHOOD_WEIGHTS),
        "calibration_loss": (_CALIBRATION_LOSS, CALIBRATION_LOSS_WEIGHTS),
        "fcal_kl": (_KL, WEIGHTS),
        "fcal_kl_detached": ({**_KL, "detach_mean": True}, WEIGHTS),
        "fcal_wass": (_WASSERSTEIN, WEIGHTS),
    }
    references = [likelihood(settings, data), repaired(settings, data, "temperature")]
    return references + [
        trained(settings, data, series, lam, {**options, "lam": lam})
        for series, (options, weights) in of_series.items()
        for lam in weights
    ]


def _by_divergence(settings: Settings, data: BokehConfig) -> list[Point]:
    """Every divergence at one weight; those of sorted residuals apply to z, not to q."""
    points = [likelihood(settings, data)]
    for name in divergences.names():
        options = {"name": "fcal", "divergence": name, "lam": _LAM}
        if divergences.takes_residuals(divergences.by_name(name)):
            options["on"] = "z"
        points.append(trained(settings, data, "fcal", name, options))
    return points


def _against_accuracy(panel: Panel) -> Panel:
    accuracy = _COSTS[1]
    return replace(panel, against=accuracy.column, against_label=accuracy.label, against_factor=accuracy.factor)


_ECE_Q = Panel(column="ece_q", label="ECE(q)", log=True)
_ECE_Z = Panel(column="ece_z", label="ECE(z)", log=True)
_COSTS = (
    Panel(column="nll", label="negative log-likelihood"),
    Panel(column="l1_gt", label="smooth L1 to the truth, x 1000", factor=1000.0, log=True),
)

ABLATIONS: Registry[Ablation] = Registry("ablation")
ABLATIONS.add(
    "k",
    Ablation(
        title="Degrees of freedom K of the constraint",
        points=_by_degrees,
        varied="K in the loss",
        log=True,
        titles={
            "nll": "NLL",
            "z": "KL on z (no K)",
            "fixed_lam": "KL on q, fixed λ",
            "fixed_lam_k": "KL on q, fixed λK",
            "both": "KL on q and z, fixed λ",
            "chi2": "exact chi-squared target, fixed λ",
        },
        panels=(_ECE_Q, _ECE_Z, *_COSTS),
    ),
)
ABLATIONS.add(
    "gamma",
    Ablation(
        title="Gamma label noise, normal model",
        points=_by_shape,
        varied="shape of the Gamma noise",
        log=True,
        titles={"deterministic": "deterministic", "nll": "NLL", "fcal_kl": "f-Cal-KL", "fcal_wass": "f-Cal-Wass"},
        panels=(
            Panel(column="drop_l1_gt", label="accuracy lost, against the truth, %"),
            Panel(column="drop_l1", label="accuracy lost, against the labels, %"),
        ),
        noise="gamma",
        baseline="deterministic",
    ),
)
ABLATIONS.add(
    "lambda",
    Ablation(
        title="Accuracy against calibration by the weight λ",
        points=_by_weight,
        varied="weight λ",
        titles={
            "nll": "NLL",
            "temperature": "NLL, temperature",
            "l1_nll": "smooth L1 + NLL",
            "calibration_loss": "NLL + calibration loss",
            "fcal_kl": "NLL + f-Cal-KL",
            "fcal_kl_detached": "NLL + f-Cal-KL, mean detached",
            "fcal_wass": "NLL + f-Cal-Wass",
        },
        panels=tuple(_against_accuracy(panel) for panel in (_ECE_Q, _ECE_Z)),
    ),
)
ABLATIONS.add(
    "divergence",
    Ablation(
        title="Divergence of the constraint",
        points=_by_divergence,
        varied="divergence",
        titles={"nll": "NLL", "fcal": "NLL + f-Cal"},
        panels=(_ECE_Q, _ECE_Z, *_COSTS),
    ),
)
