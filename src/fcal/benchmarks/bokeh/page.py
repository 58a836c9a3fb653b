"""The page of the benchmark: its tables with what the pictures of the first seed are drawn from."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from fcal.benchmarks.bokeh.rows import GALLERY
from fcal.benchmarks.bokeh.running import Benchmark
from fcal.benchmarks.bokeh.settings import Settings
from fcal.benchmarks.titles import COLUMN_STYLES, ROW_STYLES
from fcal.data import Bokeh
from fcal.reports.benchmark import benchmark_page
from fcal.reports.page import write_html

REGIME_WORDS = {
    "paper-like": "the network's own error dominates, as in the paper",
    "noise-dominated": "the noise of the labels dominates",
}
_TASK = (
    "Bokeh: find the centre of the one red disc among coloured ones that may hide it. A label is the true centre plus "
    "noise whose law is known for every image, so a predicted uncertainty can be compared with the true one, and a "
    "network with an oracle that knows the noise."
)
_RULE = (
    "Epochs and hyper-parameters are chosen by the negative log-likelihood of the validation images, with as many "
    "candidates for every method (the deterministic network by its accuracy); nothing is chosen by the test images."
)
_PRESET_WORDS = {"tiny": "Preset tiny, which shows that everything runs and says nothing about methods"}
_LEARNT = {"train/loss": "train_loss", "validation/nll": "val_nll", "validation/l1": "val_l1"}


def write_page(
    path: str | os.PathLike[str], settings: Settings, done: Benchmark, *, command: str, preset: str = ""
) -> None:
    """Write one self-contained page of all tables.

    Args:
        path: Where to.
        settings: Of the benchmark.
        done: What came out.
        command: What was run.
        preset: Name of the preset that the settings are of, if any.
    """
    tables = [with_pictures(settings, done, table) for table in done.document["tables"]]
    notes = [_TASK, *(contents(settings, table["images"], preset=preset) for table in tables[:1]), _RULE]
    text = benchmark_page(
        tables,
        command=command,
        title="Bokeh benchmark",
        notes=notes,
        seconds=done.document["wall_s"],
        rows=ROW_STYLES,
        columns=COLUMN_STYLES,
    )
    write_html(path, text)


def contents(settings: Settings, images: Mapping[str, int], *, preset: str = "") -> str:
    """What all tables are of, in a sentence: preset, noises, regimes, images and seeds."""
    what = _PRESET_WORDS.get(preset, f"Preset {preset}") if preset else "This page"
    regimes = " and ".join(f"the {regime} regime ({REGIME_WORDS[regime]})" for regime in settings.regimes)
    parts = [
        f"{' and '.join(settings.noises)} noise in {regimes}",
        f"{images['train']:,} images to train on, {images['validation']:,} to choose by, {images['test']:,} to test",
        "one seed" if settings.seeds == 1 else f"{settings.seeds} seeds, each with images and weights of its own",
    ]
    return f"{what}: {'; '.join(parts)}."


def with_pictures(settings: Settings, done: Benchmark, table: Mapping[str, Any]) -> dict[str, Any]:
    """A table with what its pictures are drawn from: curves, images and learning curves of the first seed."""
    results = done.results[table["noise"], table["regime"]]
    return {
        **table,
        "curves": {row: found["curves"] for row, found in results.items() if "curves" in found},
        "gallery": _gallery(settings, table, results),
        "learning": {row: _epochs(found["history"]) for row, found in results.items() if "history" in found},
    }


def _gallery(settings: Settings, table: Mapping[str, Any], results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The first test images and what every method says about them."""
    test = Bokeh("test", settings.data(table["noise"], table["regime"], 0))
    batch = test.__getitems__(range(min(GALLERY, len(test))))
    said = {
        row: found["gallery"]
        for row, found in results.items()
        if found.get("gallery") and found["gallery"]["sigma"] is not None
    }
    return [
        {
            "image": batch["input"][i].numpy(),
            "centre": batch["truth"][i].tolist(),
            "label": batch["target"][i].tolist(),
            "sigma": batch["sigma"][i].tolist(),
            "predictions": {row: {"mean": one["mean"][i], "sigma": one["sigma"][i]} for row, one in said.items()},
        }
        for i in range(len(batch["input"]))
    ]


def _epochs(history: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Epochs by the plain loss and by the method's own, one after another."""
    lines = [(stage, line) for stage, part in enumerate(("base", "tune"), start=1) for line in history[part]]
    return [
        {"epoch": epoch, "stage": stage} | {new: line[old] for old, new in _LEARNT.items() if line.get(old) is not None}
        for epoch, (stage, line) in enumerate(lines, start=1)
    ]
