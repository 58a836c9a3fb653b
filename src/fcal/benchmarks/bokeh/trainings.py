"""Trainings of the Bokeh benchmark: one network by one objective, and cross-fits, each a cell with its weights."""

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Normal
from torch.utils.data import Dataset

import fcal
from fcal._datasets import BatchConcat
from fcal.benchmarks.bokeh.settings import Settings
from fcal.benchmarks.methods import Trained
from fcal.benchmarks.problem import Options
from fcal.benchmarks.scoring import rounded
from fcal.benchmarks.trainings import in_order, load_networks, save_networks, training_cell
from fcal.crossfitting import CrossFit, recentred
from fcal.data import Bokeh, BokehConfig, BokehSplits
from fcal.models import ConvNet
from fcal.sweeps import Cell, Store
from fcal.training import Diverged, FitConfig, ObjectiveConfig, fit, objective

FIT, CROSSFIT, SCALES = "bokeh-fit", "bokeh-crossfit", "bokeh-scales"
FIT_VERSION = 2  # part of every address; increase it when the same config gives different numbers
_CROSSFIT_VERSION = 1
_REPETITION = 1000  # from one order of the images to the next; seeds of a table are fewer
_PREDICTED_AT_ONCE = 1000
HELD_OUT_AT_ONCE = 250
_LOST = 1.0  # a candidate with twice the smooth L1 of the network it starts from has failed to train


def base_cell(settings: Settings, data: BokehConfig, method: Trained, *, stop_after: int = 0) -> Cell:
    """The training by the plain loss; with ``stop_after``, only this many epochs, on all images."""
    options = {
        "epochs": settings.base_epochs,
        "stop_after": stop_after,
        "batch_size": settings.base_batch,
        "learning_rate": settings.base_rate,
        "seed": data.seed,
    }
    return _fit_cell(settings, data, method, {"name": method.plain}, options, start=None)


def tuned_cell(
    settings: Settings, data: BokehConfig, method: Trained, candidate: Options, *, start: Cell, stop_after: int = 0
) -> Cell:
    """The training of one candidate, from the weights of another cell; see :func:`base_cell` for ``stop_after``."""
    options = {
        "epochs": settings.tune_epochs,
        "stop_after": stop_after,
        "batch_size": settings.tune_batch,
        "learning_rate": settings.tune_rate,
        "seed": data.seed + _REPETITION * candidate.get("repetition", 0),
    }
    own = {name: value for name, value in candidate.items() if name != "repetition"}
    if own["name"] == "fcal":
        own.setdefault("df", settings.df)
    return _fit_cell(settings, data, method, own, options, start=start)


def candidate_cells(settings: Settings, data: BokehConfig, method: Trained) -> list[Cell]:
    """A method's own training, once for every candidate."""
    base = base_cell(settings, data, method)
    return [
        base if is_base(candidate) else tuned_cell(settings, data, method, candidate, start=base)
        for candidate in method.candidates
    ]


def is_base(candidate: Options) -> bool:
    """Whether a candidate is the network that the others start from."""
    return candidate.get("repetition") == 0


def member_cells(settings: Settings, data: BokehConfig, nll: Trained, count: int, *, stop_after: int) -> list[Cell]:
    """Trainings by likelihood on all images, with other initial weights and orders of the images."""
    first = base_cell(settings, data, nll, stop_after=stop_after)
    cells = [first]
    for seed in range(data.seed + _REPETITION, data.seed + count * _REPETITION, _REPETITION):
        config = {**first.config, "weights_seed": seed, "fit": {**first.config["fit"], "seed": seed}}
        cells.append(training_cell(FIT, config))
    return cells


def _fit_cell(
    settings: Settings,
    data: BokehConfig,
    method: Trained,
    own: Options,
    options: Mapping[str, Any],
    *,
    start: Cell | None,
) -> Cell:
    fit_config = FitConfig(**options, monitor=method.monitor, channels_last=True, schedule="cosine")
    config = {
        "version": FIT_VERSION,
        "data": asdict(data),
        "network": {**settings.network, "deterministic": method.deterministic},
        "objective": _objective_address(ObjectiveConfig(**own)),
        "fit": asdict(fit_config),
        "all_images": options["stop_after"] > 0,
        "start": None if start is None else start.config,
    }
    return fit_cell_of(config)


def fit_cell_of(config: Mapping[str, Any]) -> Cell:
    """The training of a config, with those that it starts from."""
    start, data = config["start"], config["data"]
    return training_cell(
        FIT,
        config,
        needs=() if start is None else (fit_cell_of(start),),
        affinity=name_of(BokehConfig(**data)),
        label=f"{config['objective']['name']} network ({name_of(BokehConfig(**data))})",
    )


def _objective_address(config: ObjectiveConfig) -> dict[str, Any]:
    """Address of an objective, without the options that have no effect if there is one stratum."""
    options = asdict(config)
    if config.strata == 1:
        del options["strata"], options["by"]
    return options


def name_of(data: BokehConfig) -> str:
    """Name of a data set, for display."""
    return f"{data.regime} {data.noise} {data.seed}"


def train(config: Mapping[str, Any], store: Store) -> dict[str, Any]:
    """Train one network: the weights become an artifact, the history is the result."""
    splits = splits_of(**config["data"])
    network = _new_network(config) if config["start"] is None else network_of(fit_cell_of(config["start"]), store)
    images: Dataset[Mapping[str, Tensor]] = splits.train
    if config["all_images"]:
        images = BatchConcat([splits.train, splits.validation])
    validation = None if config["all_images"] else splits.validation
    criterion = objective(ObjectiveConfig(**config["objective"]))
    start = time.process_time()  # other work on the machine does not count
    try:
        done = fit(network.train(), criterion, images, validation, FitConfig(**config["fit"]), progress=False)
    except Diverged as failure:
        save_networks(store, FIT, config, [network])  # nothing loads them, but the cell needs its artifact
        return {"status": "failed", "reason": str(failure)}
    save_networks(store, FIT, config, [network])
    history = [rounded(line) for line in done.history]
    return {
        "status": "done",
        "history": history,
        "best_epoch": done.best_epoch,
        "best": history[done.best_epoch],
        "seconds": round(time.process_time() - start, 3),
    }


def crossfit_cell(settings: Settings, data: BokehConfig) -> Cell:
    """Networks of all images and without each fold, from a common early checkpoint."""
    common = FitConfig(batch_size=settings.base_batch, learning_rate=settings.base_rate, channels_last=True)
    early = replace(common, epochs=settings.early_epochs, schedule="constant", seed=data.seed)
    # No early stopping: overfitted error bars are recalibrated, and a learning rate that has decayed leaves less bias.
    later = replace(common, epochs=settings.fold_epochs, seed=data.seed + 1)
    config = {
        "version": _CROSSFIT_VERSION,
        "data": asdict(data),
        "network": settings.network,
        "folds": settings.folds,
        "early": asdict(early),
        "fit": asdict(later),
    }
    return training_cell(CROSSFIT, config, affinity=name_of(data), label=f"cross-fit ({name_of(data)})")


def scales_cell(settings: Settings, data: BokehConfig, scales: Options, batch: int) -> Cell:
    """Networks of error bars, trained on the errors of held-out images."""
    base = crossfit_cell(settings, data)
    fit_config = FitConfig(
        epochs=settings.scale_epochs,
        batch_size=batch or settings.tune_batch,
        learning_rate=settings.tune_rate,
        seed=data.seed,
        channels_last=True,
    )
    config = {
        "version": _CROSSFIT_VERSION,
        "crossfit": base.config,
        "objective": _objective_address(ObjectiveConfig(**scales)),
        "fit": asdict(fit_config),
    }
    label = f"error bars by {scales['name']} of the {base.label}"
    return training_cell(SCALES, config, needs=(base,), affinity=base.affinity, label=label)


def train_crossfit(config: Mapping[str, Any], store: Store) -> dict[str, Any]:
    """Train the networks of a cross-fit: weights become an artifact; the result has their errors on held-out images."""
    start = time.process_time()
    early, fit_config = _new_network(config), FitConfig(**config["fit"])
    fit(early, None, _all_images(config), None, FitConfig(**config["early"]), progress=False)

    def fit_on(rows: Any) -> nn.Module:
        network = copy.deepcopy(early)
        fit(network, None, rows, None, fit_config, progress=False)
        return network

    crossfit = _crossfit(fit_on, config)
    seconds = time.process_time() - start
    save_networks(store, CROSSFIT, config, (crossfit.full, *crossfit.without))
    return {"seconds": round(seconds, 3), **_errors_of_folds(crossfit, config)}


def train_scales(config: Mapping[str, Any], store: Store) -> dict[str, Any]:
    """Train the networks of error bars of a cross-fit."""
    crossfit = crossfit_of(config["crossfit"], store)
    start = time.process_time()
    scaled = crossfit.with_scales(_fit_scales(config))
    seconds = time.process_time() - start
    save_networks(store, SCALES, config, [model.scales for model in (scaled.full, *scaled.without)])
    return {"seconds": round(seconds, 3)}


def crossfit_of(config: Mapping[str, Any], store: Store, scales: Cell | None = None) -> CrossFit:
    """A cross-fit from stored weights, with the error bars of another training if ``scales`` is given."""
    count = config["folds"] + 1
    networks = load_networks(store, CROSSFIT, config, lambda: _new_network(config), count)
    crossfit = _crossfit(in_order(networks), config)
    if scales is None:
        return crossfit
    return crossfit.with_scales(
        in_order(load_networks(store, SCALES, scales.config, lambda: _new_network(config), count))
    )


TRAIN: Mapping[str, Callable[[Mapping[str, Any], Store], dict[str, Any]]] = {
    FIT: train,
    CROSSFIT: train_crossfit,
    SCALES: train_scales,
}


def finished(cell: Cell, store: Store) -> dict[str, Any]:
    """The result of a training, which runs now if its result or its weights are missing."""
    result = store.compute(cell, lambda kind, config, store: TRAIN[kind](config, store))
    return dict(result)


def network_of(cell: Cell, store: Store) -> ConvNet:
    """The network of a training."""
    finished(cell, store)
    (network,) = load_networks(store, FIT, cell.config, lambda: _new_network(cell.config))
    return network


def candidate_record(options: Options, result: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """Record of a candidate, for the choice among candidates.

    Args:
        options: Its hyper-parameters.
        result: Its training.
        base: The training that it started from.
    """
    if result["status"] == "failed":
        return {"options": dict(options), "status": "diverged", "reason": result["reason"]}
    best = result["best"]
    lost = best["validation/l1"] / base["best"]["validation/l1"] - 1
    record = {
        "options": dict(options),
        "status": "done",
        "epoch": result["best_epoch"] + 1,
        "l1": best["validation/l1"],
        "accuracy_lost": round(lost, 4),
        "nll": best.get("validation/nll"),
        "ece_q": best.get("validation/ece_q"),
    }
    if lost > _LOST:
        record |= {"status": "failed", "reason": f"smooth L1 on validation rose by {lost:.0%}"}
    return record


def chosen(candidates: Sequence[Mapping[str, Any]], *, by: str) -> int | None:
    """Index of the chosen candidate; None if none could be trained.

    A proper score on validation images chooses the epoch of a training and the candidate of a method, the same for
    every method. ECE is not a proper score: chosen by it, a method is rewarded for losing its mean.

    Args:
        candidates: Records of :func:`candidate_record`.
        by: Score that the chosen candidate minimizes.

    Example:
        >>> plain, better = {"status": "done", "nll": 1.0}, {"status": "done", "nll": 0.8}
        >>> chosen([plain, better, {"status": "diverged"}], by="nll")
        1
    """
    for allowed in (("done",), ("done", "failed")):
        indices = [index for index, record in enumerate(candidates) if record["status"] in allowed]
        if indices:
            return min(indices, key=lambda index: candidates[index][by])
    return None


def predicted(network: nn.Module, images: Bokeh | BatchConcat) -> Distribution | Tensor:
    """Predictions of a network for every image: a distribution, or the values of a deterministic one."""
    means, scales = [], []
    with torch.inference_mode():
        for start in range(0, len(images), _PREDICTED_AT_ONCE):
            batch = images.__getitems__(range(start, min(start + _PREDICTED_AT_ONCE, len(images))))
            pred = network(batch["input"].contiguous(memory_format=torch.channels_last))
            means.append(pred.mean if isinstance(pred, Distribution) else pred)
            if isinstance(pred, Distribution):
                scales.append(pred.stddev)
    mean = torch.cat(means).clone()
    return Normal(mean, torch.cat(scales).clone()) if scales else mean


@lru_cache(maxsize=2)
def splits_of(**config: Any) -> BokehSplits:
    """The images of a config; those of two configs are cached."""
    return BokehSplits(BokehConfig(**config))


def targets_of(*splits: Bokeh) -> dict[str, Tensor]:
    """Targets, truths and true sigmas of several splits."""
    batches = [split.__getitems__(range(len(split))) for split in splits]
    return {name: torch.cat([batch[name] for batch in batches]) for name in ("target", "truth", "sigma")}


def _new_network(config: Mapping[str, Any]) -> ConvNet:
    """The network of a config with initial weights of its seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.get("weights_seed", config["data"]["seed"]))
        return ConvNet(**config["network"]).to(memory_format=torch.channels_last)


def _all_images(config: Mapping[str, Any]) -> BatchConcat:
    splits = splits_of(**config["data"])
    return BatchConcat([splits.train, splits.validation])


def _crossfit(fit_on: Callable[..., nn.Module], config: Mapping[str, Any]) -> CrossFit:
    # Networks start from a common checkpoint, which has seen all rows: no further correction.
    return fcal.crossfit(
        fit_on,
        _all_images(config),
        folds=config["folds"],
        seed=config["data"]["seed"],
        batch_size=HELD_OUT_AT_ONCE,
        correct=False,
    )


def _fit_scales(config: Mapping[str, Any]) -> Callable[[Any, nn.Module], nn.Module]:
    """A function that trains a network by an objective of its distribution around the centers of the rows."""
    criterion, fit_config = objective(ObjectiveConfig(**config["objective"])), FitConfig(**config["fit"])

    def around_center(model: nn.Module, batch: Mapping[str, Any]) -> Mapping[str, Tensor]:
        return criterion(lambda images: recentred(model(images), batch["center"]), batch)  # type: ignore[arg-type]

    def fit_scales(rows: Any, start: nn.Module) -> nn.Module:
        fit(start, around_center, rows, None, fit_config, progress=False)
        return start.eval()

    return fit_scales


def _errors_of_folds(crossfit: CrossFit, config: Mapping[str, Any]) -> dict[str, Any]:
    """Squared errors and z² of fold networks on held-out and on test images, and of the full one on test images."""
    splits = splits_of(**config["data"])
    test = targets_of(splits.test, splits.extra)["target"]
    images = BatchConcat([splits.test, splits.extra])
    *folds, full = (
        _mean_squares(predicted(network.eval(), images), test) for network in (*crossfit.without, crossfit.full)
    )
    by_fold = [sum(column) / len(folds) for column in zip(*folds, strict=True)]
    held_out = _mean_squares(crossfit.held_out, crossfit.target)
    return {
        name: {"held_out": held_out[index], "test": by_fold[index], "full_test": full[index]}
        for index, name in enumerate(("mse", "z2"))
    }


def _mean_squares(pred: Distribution | Tensor, target: Tensor) -> tuple[float, float]:
    assert isinstance(pred, Distribution)
    error = target.double() - pred.mean.double()
    return float(error.square().mean()), float((error / pred.stddev.double()).square().mean())
