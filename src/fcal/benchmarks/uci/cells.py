"""Cells of the benchmark: what there is to compute, and how each is computed."""

import dataclasses
import hashlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from fcal.benchmarks.uci import fits
from fcal.benchmarks.uci.methods import METHODS, Shared, options_of
from fcal.benchmarks.uci.rows import scored
from fcal.benchmarks.uci.settings import Settings
from fcal.data.uci import UCITable, read_uci
from fcal.sweeps import Cell, Store

KIND = "uci-row"
_OF_ROWS = ("tune_batch", "tune_rate", "candidates", "lam", "shorten")


def row_cell(settings: Settings, dataset: str, network: str, row: str, *, digest: str) -> Cell:
    """The cell of one row of a table: all splits of it, which train as one; ``digest`` is the table's fingerprint."""
    method = METHODS[row]
    fit = fits.fit_cell(settings, dataset, network, digest=digest)
    config = {
        "fit": fit.config,
        "settings": {name: getattr(settings, name) for name in _OF_ROWS},
        "row": row,
        "options": options_of(method),
    }
    return Cell(KIND, config, needs=(fit,), affinity=dataset, label=f"{row} ({dataset} {network})")


@lru_cache(maxsize=64)
def digest_of(data: str, dataset: str) -> str:
    """Fingerprint of a table's numbers and splits: results are of these."""
    return _digest(read_uci(data, dataset))


def _digest(table: UCITable) -> str:
    content = hashlib.sha256()
    for tensor in (table.x, table.y, *table.train, *table.test):
        content.update(str(tuple(tensor.shape)).encode() + tensor.contiguous().numpy().tobytes())
    return content.hexdigest()[:16]


def compute(kind: str, config: Mapping[str, Any], store: Store, *, data: str) -> dict[str, Any]:
    """The result of a cell of either kind.

    Args:
        kind: Of the cell.
        config: Of the cell.
        store: Where weights are kept.
        data: Folder of the tables.
    """
    if kind == fits.KIND:
        return fits.fit(config, data, store)
    shared = _shared(config, data, store)
    method = METHODS[config["row"]]
    try:
        answer = method.answer(shared, config["options"])
    except FloatingPointError as error:
        return {"status": "failed", "reason": str(error)}
    task = shared.task
    return scored(answer, [task.raw[rows] for rows in task.test])


def _shared(config: Mapping[str, Any], data: str, store: Store) -> Shared:
    of_fit = config["fit"]
    cell = Cell(fits.KIND, of_fit, label=f"{of_fit['dataset']} {of_fit['network']}: networks")
    task = fits.problem_of(data, of_fit["dataset"], of_fit["splits"], of_fit["folds"], of_fit["seed"])
    network = of_fit["network"]
    settings = dataclasses.replace(
        Settings(),
        datasets=(of_fit["dataset"],),
        networks=(network,),
        splits={network: of_fit["splits"]},
        folds=of_fit["folds"],
        members=of_fit["members"],
        seed=of_fit["seed"],
        **config["settings"],
    )
    return Shared(
        settings=settings,
        dataset=of_fit["dataset"],
        network=network,
        task=task,
        networks=fits.networks_of(cell, task, store),
        fit=store.get(fits.KIND, of_fit) or {},
    )
