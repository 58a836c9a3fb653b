"""Training in which every row is held out once: networks of the folds, and what they tell of new rows."""

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from fcal._datasets import BatchConcat, get_batch, length_of
from fcal.crossfitting import CrossFit, crossfit, recentred
from fcal.data.folds import fold_numbers
from fcal.training.configuration import FitConfig
from fcal.training.fitting import fit
from fcal.training.objectives import objective
from fcal.training.results import Fit
from fcal.training.run_configuration import ConfigError, RunConfig


class CrossFits:
    """The trainings of a run with folds, each in a folder of its own, so that a killed one goes on where it was.

    Args:
        config: Of the run.
        first: The network with its first weights.
        train: Rows to train on.
        validation: Further rows to train on, if any; nothing is held out for good.
        how: How to train, with the seed of the run.
        folder: Of the training.
        options: Of every training: callbacks and progress.
    """

    def __init__(
        self,
        config: RunConfig,
        first: nn.Module,
        train: Any,
        validation: Any,
        how: FitConfig,
        folder: Path,
        **options: Any,
    ) -> None:
        self.config = config
        self.rows = train if validation is None else BatchConcat([train, validation])
        self.how = how
        self.folder = folder
        self.options = options
        self.fits: dict[int, Fit] = {}
        named = config.crossfit.groups
        self.groups = _groups(self.rows, named, how.batch_size) if named else None
        fold_numbers(length_of(self.rows), config.crossfit.folds, groups=self.groups)  # refused before the work
        self.start = self._early(first)

    def run(self) -> tuple[CrossFit, Fit]:
        """All networks, and how the training of the one of all rows went."""
        options = self.config.crossfit
        found = crossfit(
            self._fit,
            self.rows,
            folds=options.folds,
            groups=self.groups,
            seed=self.config.seed,
            correct=not options.early_epochs,  # a common start knows a little of all rows, which makes up for it
            batch_size=self.how.batch_size,
        )
        history = self.fits[id(found.full)]
        return (found.with_scales(self._fit_scales) if options.scales else found), history

    def _early(self, first: nn.Module) -> nn.Module:
        """The network that all start from."""
        epochs = self.config.crossfit.early_epochs
        if epochs:
            how = replace(self.how, epochs=epochs, stop_after=0, schedule="constant", patience=0)
            self._trained(first, self.rows, None, how, "early")
        return first

    def _fit(self, rows: Any, held_out: Any, fold_models: tuple[nn.Module, ...]) -> nn.Module:
        """The network of a fold, judged on it; then that of all rows, for as many epochs as were best for those."""
        model = copy.deepcopy(self.start)
        how = replace(self.how, epochs=self.how.epochs - self.config.crossfit.early_epochs)
        if fold_models:
            stop = round(fmean(self.fits[id(one)].best_epoch + 1 for one in fold_models))
            how = replace(how, stop_after=stop, patience=0)
        name = "" if fold_models else f"fold-{len(self.fits) + 1}"
        self.fits[id(model)] = self._trained(model, rows, held_out, how, name)
        return model

    def _fit_scales(self, rows: Any, start: nn.Module) -> nn.Module:
        """A network of error bars around locations that come from networks without the row."""
        options = self.config.crossfit
        of_law = objective(replace(self.config.objective, name=options.scales))

        def around_center(model: nn.Module, batch: Mapping[str, Any]) -> Mapping[str, Tensor]:
            return of_law(lambda given: recentred(model(given), batch["center"]), batch)  # type: ignore[arg-type]

        how = replace(self.how, epochs=options.scale_epochs, learning_rate=options.scale_rate, stop_after=0, patience=0)
        number = len(self.fits) - options.folds - 1  # 0 is that of all rows
        fitted = self._trained(start, rows, None, how, f"scales-{number}" if number else "scales", around_center)
        self.fits[id(start)] = fitted
        return start

    def _trained(self, model: nn.Module, rows: Any, held_out: Any, how: FitConfig, name: str, terms: Any = None) -> Fit:
        folder = self.folder / name if name else self.folder
        terms = objective(self.config.objective) if terms is None else terms
        return fit(model, terms, rows, held_out, how, folder=folder, resume=True, **self.options)


def _groups(rows: Any, name: str, batch_size: int) -> list[Any]:
    """The group of every row."""
    found: list[Any] = []
    for piece in torch.arange(length_of(rows)).split(batch_size):
        batch = get_batch(rows, piece.tolist())
        if name not in batch:
            raise ConfigError(f"expected `crossfit.groups` an entry of the rows, got {name!r}, not in {sorted(batch)}")
        found += batch[name].tolist() if isinstance(batch[name], Tensor) else list(batch[name])
    return found
