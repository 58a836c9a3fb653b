"""Cells of the benchmark: what there is to compute, and how each is computed."""

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.distributions import Distribution, Normal

from fcal import recalibration
from fcal.benchmarks.bokeh import choosing, fits
from fcal.benchmarks.bokeh.methods import ALL_IMAGES, METHODS, Oracle, PostHoc, Trained
from fcal.benchmarks.bokeh.rows import columns_together, gallery, milliseconds, other_grids, scored
from fcal.benchmarks.bokeh.settings import Settings
from fcal.data import Bokeh, BokehConfig, BokehSplits, label_noise
from fcal.sweeps import Cell, Store

KIND = "bokeh-row"
_FOR_PICTURES = ("curves", "gallery", "history")


def row_cell(settings: Settings, data: BokehConfig, row: str) -> Cell:
    """The cell of one row, table and seed."""
    name, all_images = split_name(row)
    method = METHODS[name]
    needs: tuple[Cell, ...] = ()
    if isinstance(method, PostHoc):
        needs = (row_cell(settings, data, "nll"),)
    elif isinstance(method, Trained):
        needs = (row_cell(settings, data, name) if all_images else fits.base_cell(settings, data, method),)
    config = {
        "version": fits.VERSION,
        "settings": _relevant(settings),
        "data": dataclasses.asdict(data),
        "row": row,
        "method": dataclasses.asdict(method),
    }
    where = f"{data.regime} {data.noise} {data.seed}"
    return Cell(KIND, config, needs=needs, affinity=where, label=f"{row} ({where})")


def split_name(row: str) -> tuple[str, bool]:
    """Method of a row, and whether it trains on the images that others hold out."""
    name = row.removesuffix(ALL_IMAGES)
    return name, name != row


def compute(kind: str, config: Mapping[str, Any], store: Store) -> dict[str, Any]:
    """The result of a cell of either kind."""
    if kind == fits.KIND:
        return fits.train(config, store)
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
    return _all_images(settings, data, name, method, store) if all_images else _trained(settings, data, method, store)


def settings_of(config: Mapping[str, Any]) -> Settings:
    """Settings that a cell was computed with."""
    return Settings(**config["settings"])


def _relevant(settings: Settings) -> dict[str, Any]:
    """What a row depends on: neither how many seeds nor which other tables there are."""
    beside = ("noises", "regimes", "seeds", "images", "extra", "shape")
    return {name: value for name, value in dataclasses.asdict(settings).items() if name not in beside}


def _oracle(settings: Settings, data: BokehConfig) -> dict[str, Any]:
    test = _test(data)
    law = label_noise.law_of(data.noise, test["truth"].double(), test["sigma"].double(), data.shape)
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
    beside = {"grids": other_grids(pred, test)} if isinstance(pred, Distribution) else {}
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
    return fits.predicted(fits.network_of(cell, store), fits.Together([splits.test, splits.extra]))
