"""The table of one sensor: laws of all test rows against their errors, and against the noise that is known."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from statistics import stdev
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

from fcal.benchmarks.sensors.folds import ROWS, kept
from fcal.benchmarks.sensors.laws import law, spread
from fcal.benchmarks.sensors.readings import Array, Flags, Readings
from fcal.benchmarks.sensors.settings import NORMAL, Settings, Task
from fcal.distributions.batching import cat, index_select
from fcal.metrics import evaluate
from fcal.residuals import standardize
from fcal.scores import crps, nll
from fcal.selection import select_family

COLUMNS = ("rmse", "ll", "crps", "ece_z", "ece_q", "coverage", "z2")
STATED = "stated"
_LEVEL = "0.9"  # of the column `coverage`
_CURVE = 14  # points of a curve
_TO_CHOOSE = 5000  # rows that families are told apart by, about
_NORMAL_QUARTILE = 0.6745


class Tested:
    """Laws of all test rows by one method, in parts: one for each fold, in the order of its rows.

    Args:
        parts: Predictions by fold.
        rows: Numbers of the readings that each fold tests.
    """

    def __init__(self, parts: Sequence[Distribution], rows: Sequence[Tensor]) -> None:
        self.parts = list(parts)
        self.rows = list(rows)

    def of(self, wanted: Tensor) -> list[Distribution]:
        """Laws of some readings. ``wanted`` is True where a reading is one of them."""
        some = [(part, wanted[rows].nonzero().squeeze(1)) for part, rows in zip(self.parts, self.rows, strict=True)]
        return [
            law for part, places in some if len(places) and isinstance(law := index_select(part, places), Distribution)
        ]


def table(
    name: str,
    task: Task,
    readings: Readings,
    settings: Settings,
    folds: Sequence[tuple[Mapping[str, Any], Mapping[str, Tensor]]],
    tested: Tensor,
) -> dict[str, Any]:
    """One table, as it is printed by ``--json``.

    Args:
        name: Of the task.
        task: What was learnt.
        readings: All readings of the sensor.
        settings: Of the benchmark.
        folds: What :func:`fcal.benchmarks.sensors.folds.fold` returned for each.
        tested: The fold that tests each reading.
    """
    rows = [(tested == number).nonzero().squeeze(1) for number in range(len(folds))]

    def tested_by(method: str) -> Tested:
        return Tested([law(found["families"][method], kept(tensors, method)) for found, tensors in folds], rows)

    stated = torch.from_numpy(readings.stated)
    methods = {STATED: Tested([Normal(torch.zeros(len(some)).double(), stated[some]) for some in rows], rows)}
    methods |= {method: tested_by(method) for method in ROWS}
    by_family = {family: tested_by(f"family-{family}") for family in task.families}
    return {
        "name": name,
        "sensor": task.sensor,
        "state": task.state,
        "inputs": list(task.inputs),
        "unit": readings.unit,
        "corrects": task.corrects,
        "folds": settings.folds,
        "df": settings.df,
        "bins": settings.bins,
        "n_test": len(readings),
        "clusters": len(np.unique(readings.track)),
        "stretches": len(np.unique(readings.stretch)),
        "columns": list(COLUMNS),
        "rows": {method: _row(laws, readings, settings) for method, laws in methods.items()},
        "known": known(task, readings, methods),
        "curve": _curve(task, readings, methods),
        "family": {
            "chosen": [found["chosen"] for found, _ in folds],
            **_family(task, by_family[NORMAL], readings, settings),
            "log_likelihood": {family: _log_likelihood(laws, readings) for family, laws in by_family.items()},
        },
    }


def _row(laws: Tested, readings: Readings, settings: Settings) -> dict[str, Any]:
    """Columns of all test rows together, with their sd over folds, and the verdict of all."""
    errors, track = torch.from_numpy(readings.error), torch.from_numpy(readings.track)
    parts = [_numbers(part, errors[rows]) for part, rows in zip(laws.parts, laws.rows, strict=True)]
    order = torch.cat(laws.rows)
    together = {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
    columns, report = _columns(together, track[order], settings)
    by_fold = [_columns(part, track[rows], settings)[0] for part, rows in zip(parts, laws.rows, strict=True)]
    return {
        **{column: {"mean": columns[column], "sd": stdev(one[column] for one in by_fold)} for column in COLUMNS},
        "verdict": report["verdict"],
        "conclusive": report["conclusive"],
        "reason": report["reason"],
        "scale": report["scale"],
        "shift": report["shift"],
        "covered": report["coverage"],
        "floors": {column: report[f"{column}_floor"] for column in ("ece_z", "ece_q")},
    }


def _numbers(pred: Distribution, errors: Tensor) -> dict[str, Tensor]:
    return {
        "square": (errors - pred.mean).square(),
        "ll": -nll(pred, errors),
        "crps": crps(pred, errors),
        "z": standardize(pred, errors),
    }


def _columns(
    numbers: Mapping[str, Tensor], track: Tensor, settings: Settings
) -> tuple[dict[str, float], dict[str, Any]]:
    """Columns of some rows, and what an evaluation of their residuals says; clusters are tracks."""
    z = numbers["z"]
    report = evaluate(Normal(torch.zeros_like(z), 1.0), z, df=settings.df, bins=settings.bins, cluster=track).as_dict()
    columns = {
        "rmse": float(numbers["square"].mean().sqrt()),
        "ll": float(numbers["ll"].mean()),
        "crps": float(numbers["crps"].mean()),
        "ece_z": report["ece_z"],
        "ece_q": report["ece_q"],
        "coverage": report["coverage"][_LEVEL],
        "z2": float(z.square().mean()),
    }
    return columns, report


def known(task: Task, readings: Readings, methods: Mapping[str, Tested]) -> dict[str, Any]:
    """Learnt sds beside the stated one, and beside those of the source in its bins.

    Args:
        task: Names bins, the source's sds and how near learnt ones should be.
        readings: All readings.
        methods: Laws by row.

    Returns:
        ``stated_sd`` and ``measured_sd`` of all readings; ``learnt``, by row, with its ratio to the stated one;
        ``bins`` with the same beside the source's sd; ``reached``, by row, whether all that is asked for is near.
    """
    everything = np.ones(len(readings), dtype=bool)
    stated = float(np.sqrt(np.square(readings.stated).mean()))
    learnt = {method: _compared(task, laws, everything, stated) for method, laws in methods.items()}
    axis = readings.state[task.axis]
    bins: list[dict[str, Any]] = []
    for (low, high), source in zip(pairwise(task.edges), task.source, strict=True):
        inside = (axis >= low) & (axis < high)
        if not inside.any():
            continue
        measured = _measured(task, readings.error[inside])
        bins.append(
            {
                "low": low,
                "high": high,
                "n": int(inside.sum()),
                "source_sd": source,
                "measured_sd": measured,
                "learnt": {
                    method: _compared(task, laws, inside, measured if source is None else source)
                    for method, laws in methods.items()
                },
            }
        )
    return {
        "stated_sd": stated,
        "measured_sd": _measured(task, readings.error),
        "learnt": learnt,
        "bins": bins,
        "bar": {"stated_within": task.stated_within, "bins_within": task.within},
        "reached": {
            method: _reached(task, learnt[method], [one["learnt"][method] for one in bins]) for method in methods
        },
    }


def _compared(task: Task, laws: Tested, inside: Flags, truth: float) -> dict[str, float | None]:
    """Spreads that laws tell of some readings, and the ratio of theirs to the truth."""
    found = spread(laws.of(torch.from_numpy(inside)), robust=task.robust)
    sd = found.robust if found.robust is not None else found.total
    return {"sd": sd, **asdict(found), "ratio": sd / truth, "noise_ratio": found.noise / truth}


def _measured(task: Task, errors: Array) -> float:
    """The sd of errors; of wild ones 1.4826 times the median of their sizes."""
    return float(np.median(np.abs(errors)) / _NORMAL_QUARTILE if task.robust else errors.std())


def _reached(task: Task, learnt: Mapping[str, Any], bins: Sequence[Mapping[str, Any]]) -> bool | None:
    """Whether a row is as near to the truth as is asked for; None where nothing is."""
    asked = [] if task.stated_within is None else [abs(learnt["ratio"] - 1) <= task.stated_within]
    asked += [] if task.within is None else [abs(one["ratio"] - 1) <= task.within for one in bins]
    return all(asked) if asked else None


def _curve(task: Task, readings: Readings, methods: Mapping[str, Tested]) -> dict[str, Any]:
    """Sds along the axis, in bins of equally many readings: measured, stated and learnt."""
    axis = readings.state[task.axis]
    edges = np.unique(np.quantile(axis, np.linspace(0, 1, _CURVE + 1)))
    which = np.clip(np.searchsorted(edges, axis, side="right") - 1, 0, len(edges) - 2)
    parts = [which == number for number in range(len(edges) - 1) if (which == number).any()]
    return {
        "axis": task.axis,
        "x": [float(axis[part].mean()) for part in parts],
        "n": [int(part.sum()) for part in parts],
        "measured": [_measured(task, readings.error[part]) for part in parts],
        "stated": [float(np.sqrt(np.square(readings.stated[part]).mean())) for part in parts],
        "learnt": {
            method: [_compared(task, laws, part, 1.0)["sd"] for part in parts]
            for method, laws in methods.items()
            if method != STATED
        },
    }


def _family(task: Task, laws: Tested, readings: Readings, settings: Settings) -> dict[str, Any]:
    """The family that errors speak for, by the predictions of normal networks that have not seen them.

    Readings of a track count as one, as in the verdicts; beside it what is said where those of a stretch do, of all
    landmarks or satellites together, which errs on the side of not telling. All readings are asked where networks of
    several families are trained, else about 5000, which is quicker.
    """
    pred = cat(laws.parts)
    assert isinstance(pred, Distribution)
    order = torch.cat(laws.rows)
    errors = torch.from_numpy(readings.error)[order]
    some = torch.zeros(len(order), dtype=torch.bool)
    some[:: 1 if len(task.families) > 1 else -(-len(order) // _TO_CHOOSE)] = True
    by_track, by_stretch = (
        select_family(
            pred,
            errors,
            groups=torch.from_numpy(groups)[order],
            valid_mask=some,
            folds=settings.folds,
            seed=settings.seed,
        )
        for groups in (readings.track, readings.stretch)
    )
    return {
        "named": by_track.family,
        "verdict": by_track.verdict,
        "ranking": [asdict(one) for one in by_track.ranking],
        "by_stretches": {"named": by_stretch.family, "verdict": by_stretch.verdict},
    }


def _log_likelihood(laws: Tested, readings: Readings) -> float:
    errors = torch.from_numpy(readings.error)
    parts = [-nll(part, errors[rows]) for part, rows in zip(laws.parts, laws.rows, strict=True)]
    return float(torch.cat(parts).mean())
