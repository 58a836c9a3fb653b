"""Cells of the benchmark: what there is to compute, and how each is computed."""

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

from fcal import recalibration
from fcal._datasets import BatchConcat
from fcal.benchmarks.bokeh import choosing, crossfits, fits
from fcal.benchmarks.bokeh.methods import ALL_IMAGES, METHODS, CrossFitted, Ensembled, Method, Oracle, PostHoc, Trained
from fcal.benchmarks.bokeh.rows import (
    LEVEL,
    by_sigma,
    columns_together,
    gallery,
    interval,
    milliseconds,
    other_grids,
    scored,
)
from fcal.benchmarks.bokeh.settings import Settings
from fcal.crossfitting import CrossFit
from fcal.data import Bokeh, BokehConfig, BokehSplits, label_noise
from fcal.distributions import quantile
from fcal.models import mixture, predict
from fcal.sweeps import Cell, Store

KIND = "bokeh-row"
_PREDICTED_AT_ONCE = 250
_FOR_PICTURES = ("curves", "gallery", "history")
_OF_CROSSFITS = ("folds", "early_epochs", "fold_epochs", "scale_epochs")
_BEFORE_ROWS = {
    fits.KIND: fits.train,
    crossfits.KIND: crossfits.compute,
    crossfits.SCALES_KIND: crossfits.compute_scales,
}


def row_cell(settings: Settings, data: BokehConfig, row: str) -> Cell:
    """The cell of one row, table and seed."""
    name, all_images = split_name(row)
    method = METHODS[name]
    config = {
        "version": fits.VERSION,
        "settings": _relevant(settings),
        "data": dataclasses.asdict(data),
        "row": row,
        "method": dataclasses.asdict(method),
    }
    if isinstance(method, CrossFitted):
        config["crossfit"] = {option: getattr(settings, option) for option in _OF_CROSSFITS}
    where = f"{data.regime} {data.noise} {data.seed}"
    needs = _needs(settings, data, method, name if all_images else "")
    return Cell(KIND, config, needs=needs, affinity=where, label=f"{row} ({where})")


def _needs(settings: Settings, data: BokehConfig, method: Method, chooses: str) -> tuple[Cell, ...]:
    """What is computed before a row; ``chooses`` is the row, if any, that chose for it on fewer images."""
    if isinstance(method, CrossFitted):
        base = crossfits.crossfit_cell(settings, data)
        return (base,) if method.scales is None else (base, crossfits.scales_cell(settings, data, method))
    if isinstance(method, Trained):
        return (row_cell(settings, data, chooses) if chooses else fits.base_cell(settings, data, method),)
    return () if isinstance(method, Oracle) else (row_cell(settings, data, "nll"),)


def split_name(row: str) -> tuple[str, bool]:
    """Method of a row, and whether it trains on the images that others hold out."""
    name = row.removesuffix(ALL_IMAGES)
    return name, name != row


def compute(kind: str, config: Mapping[str, Any], store: Store) -> dict[str, Any]:
    """The result of a cell of either kind."""
    if kind in _BEFORE_ROWS:
        return _BEFORE_ROWS[kind](config, store)
    result = _row(settings_of(config), BokehConfig(**config["data"]), config["row"], store)
    pictured = config["data"]["seed"] == 0  # pictures are of the first seed; the other files stay small
    return result if pictured else {name: value for name, value in result.items() if name not in _FOR_PICTURES}


def _row(settings: Settings, data: BokehConfig, row: str, store: Store) -> dict[str, Any]:
    name, all_images = split_name(row)
    method = METHODS[name]
    if isinstance(method, Oracle):
        return _oracle(settings, data)
    if isinstance(method, PostHoc):
        return _post_hoc(settings, data, method, store)
    if isinstance(method, Ensembled):
        return _ensembled(settings, data, method, store)
    if isinstance(method, CrossFitted):
        return _cross_fitted(settings, data, method, store)
    return _all_images(settings, data, name, method, store) if all_images else _trained(settings, data, method, store)


def settings_of(config: Mapping[str, Any]) -> Settings:
    """Settings that a cell was computed with."""
    return Settings(**config["settings"], **config.get("crossfit", {}))


def _relevant(settings: Settings) -> dict[str, Any]:
    """What a row depends on: neither how many seeds nor which other tables there are."""
    beside = ("noises", "regimes", "seeds", "images", "extra", "shape", *_OF_CROSSFITS)
    return {name: value for name, value in dataclasses.asdict(settings).items() if name not in beside}


def _oracle(settings: Settings, data: BokehConfig) -> dict[str, Any]:
    test = _test(data)
    law = label_noise.noise_distribution(data.noise, test["truth"].double(), test["sigma"].double(), data.shape)
    return {"status": "done", **_scored(settings, test, law)}


def _trained(settings: Settings, data: BokehConfig, method: Trained, store: Store) -> dict[str, Any]:
    """Train every candidate, choose one on validation, score it on test."""
    base = fits.fitted(fits.base_cell(settings, data, method), store)
    if base["status"] == "failed":
        return base
    cells = fits.candidate_cells(settings, data, method)
    results = [fits.fitted(cell, store) for cell in cells]
    candidates = [
        choosing.candidate(options, result, base) for options, result in zip(method.candidates, results, strict=False)
    ]
    place = choosing.chosen(candidates, by=method.monitor)
    outcome = {"candidates": candidates, "search_s": round(sum(r.get("seconds", 0.0) for r in results), 3)}
    if place is None:
        return {"status": "failed", "reason": candidates[0]["reason"], **outcome}
    for candidate, cell in zip(candidates, cells, strict=True):
        candidate["test"] = None if candidate["status"] == "diverged" else _test_columns(settings, cell, store)
    best = _network_scores(settings, data, cells[place], store)
    is_base = fits.is_base(method.candidates[place])
    best["columns"]["train_s"] = round(base["seconds"] + (0.0 if is_base else results[place]["seconds"]), 3)
    judged = {name: value for name, value in candidates[place].items() if name in ("status", "reason")}
    return {
        **judged,
        **best,
        **outcome,
        "chosen": place,
        "epochs": {"base": base["best_epoch"] + 1, "tune": 0 if is_base else results[place]["best_epoch"] + 1},
        "history": {"base": base["history"], "tune": [] if is_base else results[place]["history"]},
    }


def _all_images(settings: Settings, data: BokehConfig, name: str, method: Trained, store: Store) -> dict[str, Any]:
    """The same with the validation images to train on, too: hyper-parameters and epochs are those chosen before."""
    before = store.get(KIND, row_cell(settings, data, name).config)
    assert before is not None, "the row that chooses is computed first"
    if "chosen" not in before:
        return {"status": "failed", "reason": before["reason"]}
    base = fits.base_cell(settings, data, method, stop_after=before["epochs"]["base"])
    cell, options = base, method.candidates[before["chosen"]]
    if not fits.is_base(options):
        cell = fits.tuned_cell(settings, data, method, options, start=base, stop_after=before["epochs"]["tune"])
    seconds = 0.0
    for each in dict.fromkeys((base, cell)):
        result = fits.fitted(each, store)
        if result["status"] == "failed":
            return result
        seconds += result["seconds"]
    scores = _network_scores(settings, data, cell, store)
    scores["columns"]["train_s"] = round(seconds, 3)
    kept = {name: before[name] for name in ("status", "reason") if name in before}
    return {**kept, **scores, "chosen": before["chosen"], "epochs": before["epochs"]}


def _post_hoc(settings: Settings, data: BokehConfig, method: PostHoc, store: Store) -> dict[str, Any]:
    """Repair the predictions of the network trained by likelihood."""
    before = store.get(KIND, row_cell(settings, data, "nll").config)
    assert before is not None, "the row that is repaired is computed first"
    if "chosen" not in before:
        return {"status": "failed", "reason": f"NLL: {before['reason']}"}
    nll = METHODS["nll"]
    assert isinstance(nll, Trained)
    cell = fits.candidate_cells(settings, data, nll)[before["chosen"]]
    splits, network = _splits(data), fits.network_of(cell, store)
    held_out = fits.predicted(network, splits.validation)
    assert isinstance(held_out, Distribution)
    start = time.process_time()
    recalibrator = recalibration.by_name(method.recalibrator)()
    recalibrator.fit(held_out, columns_together((splits.validation,))["target"])
    seconds = time.process_time() - start

    def repaired(pred: Distribution | Tensor) -> Distribution:
        assert isinstance(pred, Distribution)
        law = recalibrator.transform(pred)
        return Normal(law.mean, law.stddev) if method.moments else law

    test = _test(data)
    scores = _scored(settings, test, repaired(_test_prediction(cell, store)))
    scores["columns"]["train_s"] = round(before["columns"]["train_s"] + seconds, 3)
    scores["columns"]["predict_ms"] = _time_of(
        lambda: _moments(repaired(fits.predicted(network, splits.test))), splits.test
    )
    return {"status": "done", **scores, "recalibrator": repr(recalibrator)}


def _ensembled(settings: Settings, data: BokehConfig, method: Ensembled, store: Store) -> dict[str, Any]:
    """The mixture of networks trained by likelihood on all images, for as many epochs as the likelihood chose."""
    before = store.get(KIND, row_cell(settings, data, "nll").config)
    assert before is not None, "the row that chooses is computed first"
    if "chosen" not in before:
        return {"status": "failed", "reason": f"NLL: {before['reason']}"}
    cells = fits.member_cells(settings, data, method.members, stop_after=before["epochs"]["base"])
    results = [fits.fitted(cell, store) for cell in cells]
    failed = next((result for result in results if result["status"] == "failed"), None)
    if failed is not None:
        return failed
    members = [fits.network_of(cell, store) for cell in cells]
    scores = _scored(settings, _test(data), mixture([_law(_test_prediction(cell, store)) for cell in cells]))
    images = _splits(data).test
    scores["columns"]["train_s"] = round(sum(result["seconds"] for result in results), 3)
    scores["columns"]["predict_ms"] = _time_of(
        lambda: _moments(mixture([_law(fits.predicted(member, images)) for member in members])), images
    )
    return {"status": "done", **scores}


def _cross_fitted(settings: Settings, data: BokehConfig, method: CrossFitted, store: Store) -> dict[str, Any]:
    """The network of all images, with error bars that held-out images tell."""
    found, seconds = crossfits.crossfit_of(settings, data, method, store)
    splits, test = _splits(data), _test(data)
    images = BatchConcat([splits.test, splits.extra])
    if method.intervals:
        scores = _interval_scores(found, test, images)
    else:
        start = time.process_time()
        model = found.calibrated(method.recalibrator)
        seconds += time.process_time() - start
        pred = _law(predict(model, images, batch_size=_PREDICTED_AT_ONCE, channels_last=True).pred)
        scores = _scored(settings, test, pred) | {"strata": by_sigma(pred, test, bins=settings.bins, df=settings.df)}
        scores["columns"]["predict_ms"] = _time_of(
            lambda: _moments(predict(model, splits.test, batch_size=_PREDICTED_AT_ONCE, channels_last=True).pred),
            splits.test,
        )
    scores["columns"]["train_s"] = round(seconds, 3)
    before = store.get(crossfits.KIND, crossfits.crossfit_cell(settings, data).config)
    return {"status": "done", **scores, "crossfit": before}


def _interval_scores(found: CrossFit, test: Mapping[str, Tensor], images: BatchConcat) -> dict[str, Any]:
    """Accuracy of the full network, and coverage and width of intervals; they are no law."""
    mean = _law(predict(found.full, images, batch_size=_PREDICTED_AT_ONCE, channels_last=True).pred).mean
    whole = images.__getitems__(range(len(images)))["input"].contiguous(memory_format=torch.channels_last)
    pieces = [found.intervals(piece, level=LEVEL) for piece in whole.split(_PREDICTED_AT_ONCE)]
    low, high = (torch.cat(ends) for ends in zip(*pieces, strict=True))
    return scored(mean, test, bins=2, df=1) | {"interval": interval(low, high, test)}


def _law(pred: Distribution | Tensor) -> Distribution:
    assert isinstance(pred, Distribution)
    return pred


def _test_columns(settings: Settings, cell: Cell, store: Store) -> dict[str, Any]:
    """The numbers of a candidate beside those of the chosen one: shown, never used."""
    test = _test(BokehConfig(**cell.config["data"]))
    found: dict[str, Any] = scored(_test_prediction(cell, store), test, bins=settings.bins, df=settings.df)["columns"]
    return found


def _network_scores(settings: Settings, data: BokehConfig, cell: Cell, store: Store) -> dict[str, Any]:
    """Test numbers of a finished training."""
    scores = _scored(settings, _test(data), _test_prediction(cell, store))
    network, images = fits.network_of(cell, store), _splits(data).test
    scores["columns"]["predict_ms"] = _time_of(lambda: _moments(fits.predicted(network, images)), images)
    return scores


def _scored(settings: Settings, test: Mapping[str, Tensor], pred: Distribution | Tensor) -> dict[str, Any]:
    numbers = scored(pred, test, bins=settings.bins, df=settings.df)
    if not isinstance(pred, Distribution):
        return {**numbers, "gallery": gallery(pred)}
    low, high = (quantile(pred, (1 + sign * LEVEL) / 2) for sign in (-1, 1))
    beside = {"grids": other_grids(pred, test), "interval": interval(low, high, test)}
    return {**numbers, **beside, "gallery": gallery(pred)}


def _moments(pred: Distribution | Tensor) -> object:
    """What a user of a prediction needs at least; a repaired law computes it only when asked."""
    return (pred.mean, pred.stddev) if isinstance(pred, Distribution) else pred


def _time_of(predict: Callable[[], object], images: Bokeh) -> float:
    return round(milliseconds(predict, len(images)), 6)


def _splits(data: BokehConfig) -> BokehSplits:
    return fits.splits_of(**dataclasses.asdict(data))


def _test(data: BokehConfig) -> dict[str, Tensor]:
    splits = _splits(data)
    return columns_together((splits.test, splits.extra))


def _test_prediction(cell: Cell, store: Store) -> Distribution | Tensor:
    """What the network of a training says about the test images; nothing else is asked about them."""
    splits = _splits(BokehConfig(**cell.config["data"]))
    return fits.predicted(fits.network_of(cell, store), BatchConcat([splits.test, splits.extra]))
