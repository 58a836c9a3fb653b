"""One fold: networks that have not seen some stretches of time say what errors are like there."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from fcal.benchmarks.sensors.fits import Fit, FitScales, Rows
from fcal.benchmarks.sensors.laws import parameters
from fcal.benchmarks.sensors.readings import Readings
from fcal.benchmarks.sensors.settings import NORMAL, Settings, Task
from fcal.crossfitting import CrossFit, crossfit
from fcal.data.folds import fold_numbers
from fcal.models import predict
from fcal.recalibration import Temperature
from fcal.selection import select_family

ROWS = ("nll", "temperature", "oof_temperature", "oof_nll", "oof_fcal")
_HELD_OUT = 5  # one of so many parts of the stretches to train on is held out for `temperature`
_AT_ONCE = 16_384  # rows predicted
_TO_CHOOSE = 3000  # rows that families are chosen by, about


def inputs_of(task: Task, readings: Readings) -> Tensor:
    """What a network is told. Shape ``(n, features)``."""
    names = [
        name
        for wanted in task.inputs
        for name in readings.state
        if name == wanted or (wanted.endswith("*") and name.startswith(wanted[:-1]))
    ]
    return torch.from_numpy(np.stack([readings.state[name] for name in names], axis=1)).float()


def fold_of(readings: Readings, settings: Settings) -> Tensor:
    """The fold that tests each reading: whole stretches of time."""
    return fold_numbers(len(readings), settings.folds, groups=torch.from_numpy(readings.stretch), seed=settings.seed)


def fold(task: Task, readings: Readings, settings: Settings, number: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Train without one fold, and predict it.

    Args:
        task: What is learnt.
        readings: All readings of the sensor.
        settings: Network and budget.
        number: The fold.

    Returns:
        The family of every prediction, by name, and its parameters as tensors ``"name.loc"`` and so on.
    """
    inputs, errors = inputs_of(task, readings), torch.from_numpy(readings.error).float()
    stretch, tested = torch.from_numpy(readings.stretch), fold_of(readings, settings) == number
    rows = Rows(inputs[~tested], errors[~tested])
    test = Rows(inputs[tested], errors[tested])
    groups = stretch[~tested]
    normal = _cross(task, rows, groups, settings, NORMAL)
    chosen = _family(task, normal, groups, settings)
    cross = normal if chosen == NORMAL else _cross(task, rows, groups, settings, chosen)
    models = {
        "nll": cross.full,
        "temperature": _tempered(task, rows, groups, settings, chosen),
        "oof_temperature": cross.calibrated(),
        "oof_nll": cross.with_scales(FitScales(settings=settings, lam=0.0), nested=False).full,
        "oof_fcal": cross.with_scales(FitScales(settings=settings, lam=settings.lam), nested=False).full,
    }
    families = dict.fromkeys(models, chosen)
    for family in task.families:
        known = {NORMAL: normal.full, chosen: cross.full}
        models[f"family-{family}"] = known.get(family) or Fit(settings=settings, family=family, corrects=task.corrects)(
            rows
        )
        families[f"family-{family}"] = family
    tensors = {
        f"{name}.{key}": value
        for name, model in models.items()
        for key, value in parameters(_predicted(model, test)).items()
    }
    return {"chosen": chosen, "families": families, "rows": int(tested.sum())}, tensors


def _cross(task: Task, rows: Rows, groups: Tensor, settings: Settings, family: str) -> CrossFit:
    return crossfit(
        Fit(settings=settings, family=family, corrects=task.corrects),
        rows,
        folds=settings.inner_folds,
        groups=groups,
        seed=settings.seed,
        batch_size=_AT_ONCE,
    )


def _family(task: Task, cross: CrossFit, groups: Tensor, settings: Settings) -> str:
    """The best of the families by the errors of rows to train on, as networks say that have not seen them."""
    if len(task.families) == 1:
        return task.families[0]
    some = torch.zeros(len(groups), dtype=torch.bool)
    some[:: -(-len(groups) // _TO_CHOOSE)] = True
    found = select_family(
        cross.held_out,
        cross.target,
        groups=groups,
        families=task.families,
        valid_mask=some,
        folds=settings.inner_folds,
        seed=settings.seed,
    )
    return found.ranking[0].family


def _tempered(task: Task, rows: Rows, groups: Tensor, settings: Settings, family: str) -> Any:
    """The usual way: a part of the stretches is held out of training, and tells one factor."""
    held = fold_numbers(len(rows), _HELD_OUT, groups=groups, seed=settings.seed) == 0
    model = Fit(settings=settings, family=family, corrects=task.corrects)(Rows(rows.inputs[~held], rows.errors[~held]))
    repair = Temperature().fit(_predicted(model, Rows(rows.inputs[held], rows.errors[held])), rows.errors[held])
    return lambda inputs: repair.transform(model(inputs))


def _predicted(model: Any, rows: Rows) -> Distribution:
    pred = predict(model, rows, batch_size=_AT_ONCE).pred
    assert isinstance(pred, Distribution)
    return pred


def kept(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """Parameters of one prediction among those of a fold."""
    return {key: tensors[f"{name}.{key}"] for key in ("loc", "scale", "df")}
