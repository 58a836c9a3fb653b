"""Training runs of the benchmark: one network, one objective, one cell of the store."""

import dataclasses
import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Normal
from torch.utils.data import Dataset

from fcal._datasets import BatchConcat
from fcal.benchmarks.bokeh.methods import Trained
from fcal.benchmarks.bokeh.settings import Settings
from fcal.data import Bokeh, BokehConfig, BokehSplits
from fcal.models import ConvNet
from fcal.sweeps import Cell, Store, load_tensors, save_tensors
from fcal.training import Diverged, FitConfig, ObjectiveConfig, fit, objective

KIND = "bokeh-fit"
VERSION = 2  # part of every address; to be raised when the same config would give other numbers
_WEIGHTS = ".safetensors"
_PREDICTED_AT_ONCE = 1000
_REPETITION = 1000  # from one order of the images to the next; seeds of a table are fewer
_SMALL = 6  # significant digits of the numbers kept of a training


def base_cell(settings: Settings, data: BokehConfig, method: Trained, *, stop_after: int = 0) -> Cell:
    """The training before a method's own; with ``stop_after``, so many epochs of it, on all images."""
    options = {
        "epochs": settings.base_epochs,
        "stop_after": stop_after,
        "batch_size": settings.base_batch,
        "learning_rate": settings.base_rate,
        "seed": data.seed,
    }
    return _cell(settings, data, method, {"name": method.plain}, options, start=None)


def member_cells(settings: Settings, data: BokehConfig, members: int, *, stop_after: int) -> list[Cell]:
    """Trainings by likelihood on all images, from other first weights and in other orders."""
    first = base_cell(settings, data, Trained(title="", candidates=()), stop_after=stop_after)
    others = range(_REPETITION, members * _REPETITION, _REPETITION)
    return [first, *(_of_seed(first, data.seed + more) for more in others)]


def _of_seed(cell: Cell, seed: int) -> Cell:
    config = {**cell.config, "weights_seed": seed, "fit": {**cell.config["fit"], "seed": seed}}
    return Cell(cell.kind, config, artifacts=cell.artifacts, needs=cell.needs)


def candidate_cells(settings: Settings, data: BokehConfig, method: Trained) -> list[Cell]:
    """A method's own training, once for every candidate."""
    base = base_cell(settings, data, method)
    chosen = method.candidates[: settings.candidates]
    return [base if is_base(one) else tuned_cell(settings, data, method, one, start=base) for one in chosen]


def is_base(chosen: Mapping[str, Any]) -> bool:
    """Whether a candidate is the network that the others start from."""
    return chosen.get("repetition") == 0


def tuned_cell(
    settings: Settings,
    data: BokehConfig,
    method: Trained,
    chosen: Mapping[str, Any],
    *,
    start: Cell,
    stop_after: int = 0,
) -> Cell:
    """One candidate of a method, from the weights of another cell; see :func:`base_cell` for ``stop_after``."""
    options = {
        "epochs": settings.tune_epochs,
        "stop_after": stop_after,
        "batch_size": settings.tune_batch,
        "learning_rate": settings.tune_rate,
        "seed": data.seed + _REPETITION * chosen.get("repetition", 0),
    }
    own = {name: value for name, value in chosen.items() if name != "repetition"}
    if own["name"] == "fcal":
        own.setdefault("df", settings.df)
    return _cell(settings, data, method, own, options, start=start)


def _cell(
    settings: Settings,
    data: BokehConfig,
    method: Trained,
    own: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    start: Cell | None,
) -> Cell:
    config = {
        "version": VERSION,
        "data": dataclasses.asdict(data),
        "network": {
            "size": settings.size,
            "width": settings.width,
            "hidden": settings.hidden,
            "deterministic": method.deterministic,
        },
        "objective": objective_words(ObjectiveConfig(**own)),
        "fit": dataclasses.asdict(FitConfig(**options, monitor=method.monitor, channels_last=True, schedule="cosine")),
        "all_images": options["stop_after"] > 0,
        "start": None if start is None else start.config,
    }
    return Cell(KIND, config, artifacts=(_WEIGHTS,), needs=() if start is None else (start,))


def objective_words(config: ObjectiveConfig) -> dict[str, Any]:
    """An objective in an address; options that came later than the first cells are left out where they do nothing."""
    words = dataclasses.asdict(config)
    if config.strata == 1:
        del words["strata"], words["by"]
    return words


def train(config: Mapping[str, Any], store: Store) -> dict[str, Any]:
    """Compute such a cell: the weights become an artifact, the history its result."""
    splits = splits_of(**config["data"])
    network = _network(config, store, config["start"])
    images: Dataset[Mapping[str, Tensor]] = splits.train
    if config["all_images"]:
        images = BatchConcat([splits.train, splits.validation])
    validation = None if config["all_images"] else splits.validation
    start = time.process_time()  # of one thread: what else runs on the machine does not count
    try:
        done = fit(
            network,
            objective(ObjectiveConfig(**config["objective"])),
            images,
            validation,
            FitConfig(**config["fit"]),
            progress=False,
        )
    except Diverged as failure:
        return {"status": "failed", "reason": str(failure)}
    save_tensors(store.artifact(KIND, config, _WEIGHTS), network.state_dict())
    history = [{name: _rounded(value) for name, value in line.items()} for line in done.history]
    return {
        "status": "done",
        "history": history,
        "best_epoch": done.best_epoch,
        "best": history[done.best_epoch],
        "seconds": round(time.process_time() - start, 3),
    }


def fitted(cell: Cell, store: Store) -> dict[str, Any]:
    """The result of a training that may still have to be done here."""
    whole = load_tensors(store.artifact(KIND, cell.config, _WEIGHTS)) is not None
    known = store.get(KIND, cell.config)
    if known is not None and (whole or known["status"] != "done"):
        return dict(known)
    for need in cell.needs:
        fitted(need, store)
    result = train(cell.config, store)
    store.put(KIND, cell.config, result, seconds=result.get("seconds"))
    return result


def network_of(cell: Cell, store: Store) -> nn.Module:
    """The network of a finished training."""
    fitted(cell, store)
    return _network(cell.config, store, cell.config).eval()


def predicted(network: nn.Module, dataset: Bokeh | BatchConcat) -> Distribution | Tensor:
    """What a network says about every image: a law, or the values of a deterministic one."""
    means, scales = [], []
    with torch.inference_mode():
        for start in range(0, len(dataset), _PREDICTED_AT_ONCE):
            batch = dataset.__getitems__(range(start, min(start + _PREDICTED_AT_ONCE, len(dataset))))
            images = batch["input"].contiguous(memory_format=torch.channels_last)
            pred = network(images)
            means.append(pred.mean if isinstance(pred, Distribution) else pred)
            if isinstance(pred, Distribution):
                scales.append(pred.stddev)
    mean = torch.cat(means).clone()
    return Normal(mean, torch.cat(scales).clone()) if scales else mean


@lru_cache(maxsize=2)
def splits_of(**config: Any) -> BokehSplits:
    """The data of a config; two are kept in memory."""
    return BokehSplits(BokehConfig(**config))


def _network(config: Mapping[str, Any], store: Store, weights_of: Mapping[str, Any] | None) -> ConvNet:
    """The network of a config with fresh weights of its seed, or those of another training."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.get("weights_seed", config["data"]["seed"]))
        network = ConvNet(**config["network"]).to(memory_format=torch.channels_last)
    if weights_of is not None:
        weights = load_tensors(store.artifact(KIND, weights_of, _WEIGHTS))
        if weights is None:
            raise FileNotFoundError(f"expected the weights of {KIND} in {store.artifact(KIND, weights_of, _WEIGHTS)}")
        network.load_state_dict(weights)
    return network


def _rounded(value: float) -> float | None:
    """A number with few digits; None where JSON has no word for it."""
    return float(f"{value:.{_SMALL}g}") if value == value and abs(value) != float("inf") else None
