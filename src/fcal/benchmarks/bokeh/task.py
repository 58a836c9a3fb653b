"""The Bokeh benchmark: predict the centre of the one red disc, with its uncertainty."""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from fcal.benchmarks.bokeh import ablations, tables
from fcal.benchmarks.bokeh.problem import BokehProblem
from fcal.benchmarks.bokeh.scoring import GALLERY
from fcal.benchmarks.bokeh.settings import PRESETS, Settings
from fcal.benchmarks.method_kinds import Trained
from fcal.benchmarks.methods import ALL_ROWS, METHODS, USUAL_ROWS
from fcal.benchmarks.problem import Problem
from fcal.benchmarks.table import Table
from fcal.benchmarks.task import Results, Task
from fcal.data import Bokeh, BokehConfig
from fcal.sweeps import Store

REGIME_NOTES = {
    "paper-like": "the network's own error dominates, as in the paper",
    "noise-dominated": "the noise of the labels dominates",
}
_TINY = "Preset tiny, which shows that everything runs and says nothing about methods"
_LEARNT = {"train/loss": "train_loss", "validation/nll": "val_nll", "validation/l1": "val_l1"}


class BokehTask(Task[Settings]):
    """Images whose label noise is known; the paper's first experiment."""

    name = "bokeh"
    title = "Bokeh benchmark"
    notes = (
        "Bokeh: find the centre of the one red disc among coloured ones that may hide it. A label is the true centre "
        "plus noise whose distribution is known for every image, so a predicted uncertainty can be compared with the "
        "true one, and a network with an oracle that knows the noise.",
        "Epochs and hyper-parameters are chosen by the negative log-likelihood of the validation images, with equally "
        "many candidates for every method (the deterministic network by its accuracy); nothing is chosen by the test "
        "images.",
    )
    presets = PRESETS
    columns = tables.TABLE_COLUMNS
    problem = BokehProblem
    rows = (
        "oracle",
        "oob_auto",
        "deterministic",
        "nll",
        "calibration_loss",
        "beta_nll",
        "mmd",
        "pce_kde",
        "temperature",
        "isotonic",
        "isotonic_moments",
        "gp_beta",
        "conformal",
        "fcal_kl",
        "fcal_wass",
        "ensemble_3",
        "ensemble",
        "ensemble_3_temperature",
        "ensemble_3_conformal",
        "ensemble_5_temperature",
        "ensemble_5_conformal",
        "oob_auto_5",
        "oob_temperature",
        "oob_conformal",
        "oob_power",
        "oob_mse",
        "oob_heads",
        "deterministic_3",
        "oof_temperature",
        "oof_nll",
        "oof_fcal",
        "oof_fcal_strata",
        "oof_conformal",
        "oof_nll_conformal",
        "cv_plus",
    )
    usual = USUAL_ROWS
    # In image units the gradients of these two are small beside the likelihood's: at the weight tried first they are
    # about as large. The last candidate of MMD is MMD alone, as its authors train.
    changes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "calibration_loss": {
            "candidates": tuple(
                {"name": "calibration-loss", "lam": lam, "form": "additive", "on": "variance", "p": 1}
                for lam in (100.0, 10.0, 1000.0)
            )
        },
        "mmd": {
            "candidates": (
                {"name": "mmd", "lam": 100.0, "form": "additive"},
                {"name": "mmd", "lam": 10.0, "form": "additive"},
                {"name": "mmd", "lam": 1.0},
            )
        },
    }

    def problems(self, settings: Settings, store: Store, data: str | None = None) -> list[Problem]:
        """Every noise and regime, seed by seed."""
        del data
        return [
            BokehProblem(settings, settings.data(noise, regime, seed), store)
            for seed in range(settings.seeds)
            for regime in settings.regimes
            for noise in settings.noises
        ]

    def problem_of(self, config: Mapping[str, Any], store: Store, data: str | None = None) -> BokehProblem:
        """The problem of an address."""
        del data
        return BokehProblem(Settings(**config["settings"]), BokehConfig(**config["data"]), store)

    def train(self, kind: str, config: Mapping[str, Any], store: Store, data: str | None = None) -> dict[str, Any]:
        """Train networks, or compute a point of an ablation."""
        del data
        return ablations.compute(kind, config, store)

    def rows_of(self, problem: Problem, methods: Sequence[str]) -> list[str]:
        """Every method, and those that train once more with all images; of the usual ones each is one row."""
        del problem
        if list(methods) == self.usual_methods():
            return list(methods)
        trained = [name for name in methods if isinstance(METHODS[name], Trained)]
        return [*methods, *(name + ALL_ROWS for name in trained)]

    def table(self, settings: Settings, problems: Sequence[Problem], results: Results) -> Table:
        """The table of one noise and regime."""
        return tables.bokeh_table(settings, problems[0].labels, results)

    def table_title(self, table: Table) -> str:
        """Noise and regime."""
        return f"{table.labels['noise']} noise, {table.labels['regime']} regime"

    def describe(self, settings: Settings, tables: Sequence[Table], preset: str) -> list[str]:
        """Preset, noises, regimes, images and seeds, in a sentence."""
        images = tables[0].details["images"]
        subject = {"": "This page", "tiny": _TINY}.get(preset, f"Preset {preset}")
        regimes = " and ".join(f"the {regime} regime ({REGIME_NOTES[regime]})" for regime in settings.regimes)
        seeds = (
            "one seed" if settings.seeds == 1 else f"{settings.seeds} seeds, each with images and weights of its own"
        )
        return [
            f"{subject}: {' and '.join(settings.noises)} noise in {regimes}; {images['train']:,} images to train on, "
            f"{images['validation']:,} to choose by, {images['test']:,} to test; {seeds}."
        ]

    def for_pictures(self, settings: Settings, table: Table, results: Results) -> dict[str, Any]:
        """Curves, images and learning curves of the first seed."""
        first = {row: repetitions[0] for row, repetitions in results.items()}
        return {
            "curves": {row: result["curves"] for row, result in first.items() if "curves" in result},
            "gallery": _gallery(settings, table, first),
            "learning": {row: _epochs(result["history"]) for row, result in first.items() if "history" in result},
        }

    def caption(self, table: Table) -> str:
        """Bins, sums, numbers of images and of seeds."""
        images = table.details["images"]
        return (
            f"{super().caption(table)}: {images['train']:,} images to train on, {images['validation']:,} to choose by, "
            f"{images['test']:,} to test; {_seeds(table.seeds)}"
        )

    def printed_sections(self, table: Table) -> list[tuple[str, str]]:
        """The paper's numbers next to ours, if it has any."""
        section = tables.paper_section(table)
        return [section] if section[1] else []

    def ablations(self) -> Any:
        """The module of the ablations, each on one seed."""
        return importlib.import_module("fcal.benchmarks.bokeh.ablation_results")


BOKEH = BokehTask()


def _seeds(count: int) -> str:
    return f"{count} seed{'s' if count > 1 else ''}"


def _gallery(settings: Settings, table: Table, results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The first test images and what every method predicts for them."""
    test = Bokeh("test", settings.data(table.labels["noise"], table.labels["regime"], 0))
    batch = test.__getitems__(range(min(GALLERY, len(test))))
    preds = {
        row: result["gallery"]
        for row, result in results.items()
        if result.get("gallery") and result["gallery"]["sigma"] is not None
    }
    return [
        {
            "image": batch["input"][i].numpy(),
            "centre": batch["truth"][i].tolist(),
            "label": batch["target"][i].tolist(),
            "sigma": batch["sigma"][i].tolist(),
            "predictions": {row: {"mean": pred["mean"][i], "sigma": pred["sigma"][i]} for row, pred in preds.items()},
        }
        for i in range(len(batch["input"]))
    ]


def _epochs(history: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Epochs by the plain loss and by the method's own, one after another."""
    lines = [(stage, line) for stage, name in enumerate(("base", "tune"), start=1) for line in history[name]]
    return [
        {"epoch": epoch, "stage": stage} | {new: line[old] for old, new in _LEARNT.items() if line.get(old) is not None}
        for epoch, (stage, line) in enumerate(lines, start=1)
    ]
