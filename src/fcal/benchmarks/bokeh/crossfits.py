"""Cross-fits of the benchmark: no image is held out for good, and each is judged by a network that has not seen it."""

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

import fcal
from fcal._datasets import BatchConcat
from fcal.benchmarks.bokeh import fits
from fcal.benchmarks.bokeh.methods import CrossFitted
from fcal.benchmarks.bokeh.rows import columns_together
from fcal.benchmarks.bokeh.settings import Settings
from fcal.crossfitting import CrossFit, recentred
from fcal.data import BokehConfig
from fcal.models import ConvNet
from fcal.sweeps import Cell, Store, load_tensors, save_tensors
from fcal.training import FitConfig, ObjectiveConfig, fit, objective

KIND = "bokeh-crossfit"
SCALES_KIND = "bokeh-scales"
VERSION = 1  # part of every address; to be raised when the same config would give other numbers
_WEIGHTS = ".safetensors"
_PREDICTED_AT_ONCE = 250


def crossfit_cell(settings: Settings, data: BokehConfig) -> Cell:
    """Networks of all images and without each fold, from a common early checkpoint."""
    common = FitConfig(batch_size=settings.base_batch, learning_rate=settings.base_rate, channels_last=True)
    early = replace(common, epochs=settings.early_epochs, schedule="constant", seed=data.seed)
    # To the end of the schedule: error bars that overfit are repaired, and a rate that has come down leaves less bias.
    later = replace(common, epochs=settings.fold_epochs, seed=data.seed + 1)
    config = {
        "version": VERSION,
        "data": asdict(data),
        "network": {"size": settings.size, "width": settings.width, "hidden": settings.hidden},
        "folds": settings.folds,
        "early": asdict(early),
        "fit": asdict(later),
    }
    where = f"{data.regime} {data.noise} {data.seed}"
    return Cell(KIND, config, artifacts=(_WEIGHTS,), affinity=where, label=f"cross-fit ({where})")


def scales_cell(settings: Settings, data: BokehConfig, method: CrossFitted) -> Cell:
    """Networks of error bars, fitted to the errors of held-out images."""
    assert method.scales is not None
    base = crossfit_cell(settings, data)
    how = FitConfig(
        epochs=settings.scale_epochs,
        batch_size=method.batch or settings.tune_batch,
        learning_rate=settings.tune_rate,
        seed=data.seed,
        channels_last=True,
    )
    config = {
        "version": VERSION,
        "crossfit": base.config,
        "objective": fits.objective_words(ObjectiveConfig(**method.scales)),
        "fit": asdict(how),
    }
    label = f"error bars by {method.scales['name']} of the {base.label}"
    return Cell(SCALES_KIND, config, needs=(base,), artifacts=(_WEIGHTS,), affinity=base.affinity, label=label)


def compute(config: Mapping[str, Any], store: Store) -> dict[str, Any]:
    """A cross-fit: weights become an artifact, time and what held-out images tell its result."""
    start = time.process_time()
    early, how = _network(config), FitConfig(**config["fit"])
    fit(early, None, _images(config), None, FitConfig(**config["early"]), progress=False)

    def fit_on(rows: Any) -> nn.Module:
        network = copy.deepcopy(early)
        fit(network, None, rows, None, how, progress=False)
        return network

    found = _run(fit_on, config)
    seconds = time.process_time() - start
    networks = (found.full, *found.without)
    save_tensors(store.artifact(KIND, config, _WEIGHTS), _weights(networks))
    return {"seconds": round(seconds, 3), **_leak(found, config)}


def compute_scales(config: Mapping[str, Any], store: Store) -> dict[str, Any]:
    """The error bars of every network of a cross-fit."""
    found = _crossfit(config["crossfit"], store)
    start = time.process_time()
    scaled = found.with_scales(_scale_fit(config))
    seconds = time.process_time() - start
    networks = [model.scales for model in (scaled.full, *scaled.without)]
    save_tensors(store.artifact(SCALES_KIND, config, _WEIGHTS), _weights(networks))
    return {"seconds": round(seconds, 3)}


def crossfit_of(settings: Settings, data: BokehConfig, method: CrossFitted, store: Store) -> tuple[CrossFit, float]:
    """The cross-fit that a method calibrates, from finished cells, and what it cost in seconds."""
    base = crossfit_cell(settings, data)
    seconds = _finished(base, store)["seconds"]
    found = _crossfit(base.config, store)
    if method.scales is None:
        return found, seconds
    cell = scales_cell(settings, data, method)
    seconds += _finished(cell, store)["seconds"]
    networks = _read(base.config, SCALES_KIND, cell.config, store)
    return found.with_scales(_given(networks)), seconds


def _finished(cell: Cell, store: Store) -> Mapping[str, Any]:
    """The result of a cell that was computed before; its weights may be missing, then it is computed here."""
    known = store.get(cell.kind, cell.config)
    if known is not None and load_tensors(store.artifact(cell.kind, cell.config, _WEIGHTS)) is not None:
        return known
    for need in cell.needs:
        _finished(need, store)
    result = (compute if cell.kind == KIND else compute_scales)(cell.config, store)
    store.put(cell.kind, cell.config, result, seconds=result["seconds"])
    return result


def _given(networks: list[ConvNet]) -> Callable[[Any, Any], ConvNet]:
    """In place of training: networks that were trained before, in the order in which they are asked for."""
    waiting = iter(networks)
    return lambda rows, start: next(waiting)  # noqa: ARG005


def _scale_fit(config: Mapping[str, Any]) -> Callable[[Any, nn.Module], nn.Module]:
    """Trains a network by an objective of its law around the centers that come with the rows."""
    of_law, how = objective(ObjectiveConfig(**config["objective"])), FitConfig(**config["fit"])

    def around_center(model: nn.Module, batch: Mapping[str, Any]) -> Mapping[str, Tensor]:
        return of_law(lambda given: recentred(model(given), batch["center"]), batch)  # type: ignore[arg-type]

    def fit_scales(rows: Any, start: nn.Module) -> nn.Module:
        fit(start, around_center, rows, None, how, progress=False)
        return start.eval()

    return fit_scales


def _crossfit(config: Mapping[str, Any], store: Store) -> CrossFit:
    """A cross-fit of networks that were trained before."""
    networks = iter(_read(config, KIND, config, store))
    return _run(lambda rows: next(networks), config)  # noqa: ARG005 - in the order in which they were trained


def _run(fit_on: Callable[..., nn.Module], config: Mapping[str, Any]) -> CrossFit:
    # Networks start from a common checkpoint, which knows a little of all rows: nothing further is corrected.
    return fcal.crossfit(
        fit_on,
        _images(config),
        folds=config["folds"],
        seed=config["data"]["seed"],
        batch_size=_PREDICTED_AT_ONCE,
        correct=False,
    )


def _leak(found: CrossFit, config: Mapping[str, Any]) -> dict[str, Any]:
    """What held-out images tell of the networks without them, beside what test images tell, and of the full one."""
    splits = fits.splits_of(**config["data"])
    test = columns_together((splits.test, splits.extra))["target"]
    images = BatchConcat([splits.test, splits.extra])
    preds = [fits.predicted(network.eval(), images) for network in (*found.without, found.full)]
    assert all(isinstance(pred, Distribution) for pred in preds)
    errors = [_mean_squares(pred, test) for pred in preds]
    folds = [sum(column) / len(found.without) for column in zip(*errors[:-1], strict=True)]
    held_out = _mean_squares(found.held_out, found.target)
    return {
        name: {"held_out": held_out[place], "test": folds[place], "full_test": errors[-1][place]}
        for place, name in enumerate(("mse", "z2"))
    }


def _mean_squares(pred: Any, target: Tensor) -> tuple[float, float]:
    error = target.double() - pred.mean.double()
    return float(error.square().mean()), float((error / pred.stddev.double()).square().mean())


def _images(config: Mapping[str, Any]) -> BatchConcat:
    splits = fits.splits_of(**config["data"])
    return BatchConcat([splits.train, splits.validation])


def _network(config: Mapping[str, Any]) -> ConvNet:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config["data"]["seed"])
        return ConvNet(**config["network"]).to(memory_format=torch.channels_last)


def _weights(networks: Sequence[nn.Module]) -> dict[str, Tensor]:
    """Weights of several networks in one file."""
    return {f"{n}.{name}": value for n, network in enumerate(networks) for name, value in network.state_dict().items()}


def _read(shape: Mapping[str, Any], kind: str, config: Mapping[str, Any], store: Store) -> list[ConvNet]:
    """Those networks again."""
    tensors = load_tensors(store.artifact(kind, config, _WEIGHTS))
    if tensors is None:
        raise FileNotFoundError(f"expected the weights of {kind} in {store.artifact(kind, config, _WEIGHTS)}")
    networks = []
    for number in range(shape["folds"] + 1):
        network = _network(shape)
        network.load_state_dict({name: tensors[f"{number}.{name}"] for name in network.state_dict()})
        networks.append(network.eval())
    return networks
