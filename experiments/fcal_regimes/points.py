"""Points of the experiment and their cells: trainings by likelihood, and networks that start from them."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.nn.functional import smooth_l1_loss

import fcal
from fcal import divergences, recalibration
from fcal._checks import check_flag, check_integer, check_number
from fcal.benchmarks.bokeh.problem import BokehTrainings, labels_of
from fcal.benchmarks.bokeh.scoring import scored
from fcal.benchmarks.bokeh.settings import Settings
from fcal.benchmarks.scoring import rounded
from fcal.benchmarks.trainings import load_networks, save_networks, seeded, training_cell
from fcal.data import BokehConfig
from fcal.sweeps import Cell, Store
from fcal.training import Diverged, Fit, FitConfig, ObjectiveConfig, Stages, fit, objective
from fcal.training.objectives import options_of

TRAINING, POINT = "regimes-training", "regimes-point"
VERSION = 1  # part of every address; increase it when the same config gives different numbers
REGIME = "paper-like"
LEVELS = ("paper", "last")  # of overfitting: epochs of the long training that others start from
STAGES = ("stopped", *LEVELS)  # epochs whose weights are kept
TEST_COLUMNS = ("l1_gt", "l1", "nll", "crps", "ece_q", "ece_z", "ence")
HISTORY = ("train/nll", "validation/nll", "validation/l1", "validation/ece_q", "validation/ece_z", "validation/z_sq")
_SOURCE = BokehTrainings()
Options = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of the experiment.

    Attributes:
        workers: Number of processes, each with one thread.
        seeds: Number of seeds; each has images, noise and initial weights of its own.
        noises: Kinds of label noise.
        images: Images of train, validation and test together, 3:1:1.
        extra: Further test images.
        size: Pixels of an edge.
        width: Channels of the network's first layer.
        hidden: Units of its hidden layer.
        epochs: Epochs of the long training by likelihood, at a constant rate.
        rate: Its learning rate.
        batch: Its images in a batch.
        paper_z2: Mean squared residual of the validation images at which a network is as overfit as the paper's.
        decays: Weight decays (AdamW) of further trainings like the long one.
        short_epochs: Epochs of the training by likelihood of the Bokeh benchmark, with a cosine schedule.
        tune_epochs: Epochs of the fine-tuning, with a cosine schedule.
        tune_rate: Its learning rate.
        tune_batches: Its images in a batch.
        divergences: Divergences of f-Cal.
        detach_mean: Whether the gradient of f-Cal reaches the mean (false, as in the paper) or not.
        lams: Weights of f-Cal beside the likelihood.
        df: Number K of squared residuals in a sum q.
        bins: Number S of bins of calibration errors.
    """

    workers: int
    seeds: int
    noises: list[str]
    images: int
    extra: int
    size: int
    width: int
    hidden: int
    epochs: int
    rate: float
    batch: int
    paper_z2: float
    decays: list[float]
    short_epochs: int
    tune_epochs: int
    tune_rate: float
    tune_batches: list[int]
    divergences: list[str]
    detach_mean: list[bool]
    lams: list[float]
    df: int
    bins: int

    def __post_init__(self) -> None:
        check_integer("workers", self.workers, at_least=1, at_most=64)
        for name in ("epochs", "short_epochs", "tune_epochs", "batch"):
            check_integer(name, getattr(self, name), at_least=1, at_most=100_000)
        for name in ("rate", "tune_rate"):
            check_number(name, getattr(self, name), low=1e-9, high=1.0)
        check_number("paper_z2", self.paper_z2, low=1.0, high=100.0)
        for name in ("noises", "decays", "tune_batches", "divergences", "detach_mean", "lams"):
            if not getattr(self, name):
                raise ValueError(f"expected `{name}` with a value at least, got none")
        for size in self.tune_batches:
            check_integer("tune_batches", size, at_least=2, at_most=100_000)
        for decay in self.decays:
            check_number("decays", decay, low=1e-9, high=1e3)
        for lam in self.lams:
            check_number("lams", lam, low=1e-9, high=1.0)
        for detached in self.detach_mean:
            check_flag("detach_mean", detached)
        for name in self.divergences:
            divergences.by_name(name)
        _ = self.settings  # checks the others

    @property
    def settings(self) -> Settings:
        """Data and network, as the Bokeh benchmark has them."""
        return Settings(
            noises=tuple(self.noises),
            regimes=(REGIME,),
            seeds=self.seeds,
            images=self.images,
            extra=self.extra,
            size=self.size,
            width=self.width,
            hidden=self.hidden,
            df=self.df,
            bins=self.bins,
        )


@dataclass(frozen=True, kw_only=True)
class Point:
    """A network, and the cell that holds its scores.

    Attributes:
        noise: Label noise of its images.
        seed: Seed of its images and weights.
        level: How overfit the network that it starts from is; None if it does not start from an overfit network.
        row: Method.
        options: Options of the method.
        cell: The cell.
    """

    noise: str
    seed: int
    level: str | None
    row: str
    options: Options
    cell: Cell


def points(config: Config) -> list[Point]:
    """Every point, seed by seed, so that the first seeds are finished first."""
    return [
        point
        for seed in range(config.seeds)
        for noise in config.noises
        for point in _Problem(config, config.settings.data(noise, REGIME, seed)).points()
    ]


def row_of(divergence: str, detached: bool) -> str:
    """Name of a form of f-Cal."""
    return f"fcal_{divergence}_detached" if detached else f"fcal_{divergence}"


def forms_of(config: Config, *, detached: bool) -> list[str]:
    """Rows of f-Cal whose gradient reaches the mean, as in the paper, or does not."""
    return [row_of(name, detached) for name in config.divergences if detached in config.detach_mean]


@dataclass(frozen=True)
class _Problem:
    """Trainings and points of one noise and seed."""

    config: Config
    data: BokehConfig

    def points(self) -> Iterator[Point]:
        """References first, then what is tuned from each level."""
        base = self._training(epochs=self.config.epochs, schedule="constant")
        yield self._point("nll_short", self._training(epochs=self.config.short_epochs, schedule="cosine"), "stopped")
        yield self._point("nll_stopped", base, "stopped")
        for level in LEVELS:
            yield self._point("nll", base, level)
            yield self._point("temperature", base, level, recalibrator="temperature")
            for decay in self.config.decays:
                decayed = self._training(epochs=self.config.epochs, schedule="constant", decay=decay, like=base)
                yield self._point("nll_decay", decayed, level, options={"decay": decay})
            for batch in self.config.tune_batches:
                yield self._tuned("nll_tuned", base, level, {"batch": batch}, {"name": "nll"})
                yield from self._by_weight(base, level, batch)

    def _by_weight(self, base: Cell, level: str, batch: int) -> Iterator[Point]:
        for divergence in self.config.divergences:
            for detached in self.config.detach_mean:
                for lam in self.config.lams:
                    loss = {"name": "fcal", "divergence": divergence, "lam": lam, "detach_mean": detached}
                    yield self._tuned(row_of(divergence, detached), base, level, {"batch": batch, "lam": lam}, loss)

    def _training(self, *, epochs: int, schedule: str, decay: float = 0.0, like: Cell | None = None) -> Cell:
        """A training by likelihood; weights are kept at the epochs of ``like``, or at its own."""
        fit_config = FitConfig(
            epochs=epochs,
            batch_size=self.config.batch,
            learning_rate=self.config.rate,
            schedule=schedule,
            optimizer="adamw" if decay else "adam",
            weight_decay=decay,
            monitor="nll",
            channels_last=_SOURCE.channels_last,
            seed=self.data.seed,
        )
        return _training_cell(
            {
                "version": VERSION,
                "data": asdict(self.data),
                "network": self.config.settings.network,
                "fit": asdict(fit_config),
                "paper_z2": self.config.paper_z2,
                "like": None if like is None else like.config,
            }
        )

    def _tuned(self, row: str, base: Cell, level: str, options: Options, loss: Options) -> Point:
        fit_config = FitConfig(
            epochs=self.config.tune_epochs,
            batch_size=options["batch"],
            learning_rate=self.config.tune_rate,
            channels_last=_SOURCE.channels_last,
            seed=self.data.seed,
        )
        full = ObjectiveConfig(**loss, df=self.config.df)
        return self._point(
            row, base, level, options=options, tune={"objective": options_of(full), "fit": asdict(fit_config)}
        )

    def _point(
        self,
        row: str,
        start: Cell,
        stage: str,
        *,
        options: Options | None = None,
        tune: Options | None = None,
        recalibrator: str | None = None,
    ) -> Point:
        config = {
            "version": VERSION,
            "bins": self.config.bins,
            "df": self.config.df,
            "start": start.config,
            "stage": stage,
            "tune": tune,
            "recalibrator": recalibrator,
        }
        name = _SOURCE.name_of(asdict(self.data))
        return Point(
            noise=self.data.noise,
            seed=self.data.seed,
            level=stage if stage in LEVELS else None,
            row=row,
            options=dict(options or {}),
            cell=Cell(POINT, config, needs=(start,), affinity=name, label=f"{row} {stage} ({name})"),
        )


def _training_cell(config: Options) -> Cell:
    """A training with the one that decides at which epochs its weights are kept."""
    needs = () if config["like"] is None else (_training_cell(config["like"]),)
    name = _SOURCE.name_of(config["data"])
    return training_cell(TRAINING, config, needs=needs, affinity=name, label=f"training ({name})")


# How cells are computed, in any process


def compute(kind: str, config: Options, store: Store) -> dict[str, Any]:
    """The result of a training or of a point; one that diverged is a result, too."""
    try:
        return _train(config, store) if kind == TRAINING else _score(config, store)
    except Diverged as failure:
        return {"status": "failed", "reason": str(failure)}


def _train(config: Options, store: Store) -> dict[str, Any]:
    """Train by likelihood to the last epoch; keep the history and the weights of some epochs."""
    like = None
    if config["like"] is not None:
        like = store.compute(_training_cell(config["like"]), compute)
        if like["status"] == "failed":
            return dict(like)
    rows, stages, start = _SOURCE.rows(config["data"]), Stages(), time.process_time()
    nll = objective(ObjectiveConfig(name="nll"))
    done = fit(
        _new_network(config),
        nll,
        rows.train,
        rows.validation,
        FitConfig(**config["fit"]),
        progress=False,
        callbacks=[stages],
    )
    seconds = time.process_time() - start
    epochs = stage_epochs(done, config["paper_z2"])
    if like is not None:
        epochs |= {level: like["epochs"][level] for level in LEVELS}
    save_networks(store, TRAINING, config, [stages.models[epochs[stage] - 1] for stage in STAGES])
    return {
        "status": "done",
        "seconds": round(seconds, 3),
        "epochs": epochs,
        "history": [rounded({name: line.get(name) for name in HISTORY}) for line in done.history],
    }


def stage_epochs(done: Fit, paper_z2: float) -> dict[str, int]:
    """Number of epochs at each stage; a network that never is as overfit as the paper's counts at its last epoch."""
    last = len(done.history)
    reached = (number for number, line in enumerate(done.history, 1) if line["validation/z_sq"] >= paper_z2)
    return {"stopped": done.best_epoch + 1, "paper": next(reached, last), "last": last}


def _score(config: Options, store: Store) -> dict[str, Any]:
    """Fine-tune or recalibrate the network of a stage, and score it on test and validation images."""
    start = config["start"]
    trained = store.compute(_training_cell(start), compute)
    if trained["status"] == "failed":
        return dict(trained)
    networks = load_networks(store, TRAINING, start, lambda: _new_network(start), len(STAGES))
    network: nn.Module = networks[STAGES.index(config["stage"])]
    rows, began = _SOURCE.rows(start["data"]), time.process_time()
    if config["tune"] is not None:
        loss = objective(ObjectiveConfig(**config["tune"]["objective"]))
        fit(network.train(), loss, rows.train, None, FitConfig(**config["tune"]["fit"]), progress=False)
    seconds = time.process_time() - began
    on_test, on_validation = _SOURCE.predict(network, rows.test), _SOURCE.predict(network, rows.validation)
    pred, held_out = on_test.pred, on_validation.pred
    assert isinstance(pred, Distribution)
    assert isinstance(held_out, Distribution)
    if config["recalibrator"] is not None:
        repair = recalibration.by_name(config["recalibrator"])().fit(held_out, on_validation.target)
        pred, held_out = repair.transform(pred), repair.transform(held_out)
    scores = scored(pred, labels_of(start["data"]), bins=config["bins"], df=config["df"])
    test = {name: scores["columns"][name] for name in TEST_COLUMNS}
    return {
        "status": "done",
        "seconds": round(seconds, 3),
        "epochs": trained["epochs"][config["stage"]],
        "test": test | rounded({"z2": _mean_square(pred, on_test.target)}),
        "floors": {name: scores["floors"][name] for name in ("ece_q", "ece_z")},
        "validation": _validation(held_out, on_validation.target, config),
    }


def _validation(pred: Distribution, target: Tensor, config: Options) -> dict[str, float | None]:
    """Numbers of the validation images, by which a choice is made; L1 is that to the labels, as truths are unknown."""
    report = fcal.evaluate(pred, target.to(pred.mean.dtype), df=config["df"], bins=config["bins"])
    return rounded(
        {
            "l1": smooth_l1_loss(pred.mean.double(), target.double()).item(),
            "nll": report.nll,
            "ece_q": report.ece_q,
            "ece_z": report.ece_z,
            "z2": _mean_square(pred, target),
        }
    )


def _mean_square(pred: Distribution, target: Tensor) -> float:
    """Mean squared residual."""
    return fcal.standardize(pred, target.to(pred.mean.dtype)).double().square().mean().item()


def _new_network(config: Options) -> nn.Module:
    """The network with initial weights of its seed."""
    with seeded(config["data"]["seed"]):
        network = _SOURCE.network(config["network"])
    return network.to(memory_format=torch.channels_last)
