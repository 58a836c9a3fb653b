"""The pages of Bokeh's results and of the paper's claims, written from finished cells."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from bokeh import claims, goals
from bokeh.comparisons import with_comparisons
from bokeh.sections import sections
from fcal.benchmarks import Benchmark, Table
from fcal.benchmarks.bokeh import ablation_results
from fcal.benchmarks.bokeh.ablations import ABLATIONS
from fcal.benchmarks.bokeh.settings import Settings
from fcal.benchmarks.bokeh.task import REGIME_NOTES
from fcal.benchmarks.markdown import failures, results_markdown
from fcal.benchmarks.methods import RECOMMENDED, row_styles
from fcal.plots import calibration_sheet, disc_gallery
from fcal.plots.styles import footnotes
from fcal.reports.results_table import ONE_SEED
from fcal.sweeps import Cell, Store

_ALONE = "With one seed a difference has no limits, and none counts as below.\n"
_RULE = (
    "Epochs and hyper-parameters are chosen by the negative log-likelihood of the validation images, three "
    "candidates for every method (the deterministic network by its accuracy). Post-hoc methods are fitted to the "
    "same validation images. Networks that leave images out (rows `oob_...`, `oof_...`) choose their epochs by the "
    "likelihood, after one factor, of the images that the others left out. `train_s` is the training of the chosen "
    "candidate with what it starts from, "
    "`predict_ms` one image; both are processor time of one thread. The scores of "
    "calibrated models take residuals as independent. Those of one factor fitted to held-out rows are of a model that "
    "is right up to the scale of its error bars, which it learns from as many validation images as there are; they "
    "take into account that the two residuals of an image depend on each other.\n"
)


__all__ = ["more_cells", "more_files", "page", "pictures", "with_comparisons"]


def more_cells(settings: Settings, rows: Sequence[Any]) -> list[Cell]:
    """Points of the ablations."""
    del rows
    return [
        cell
        for name in ABLATIONS.names()
        for seed in range(ablation_results.SEEDS)
        for cell in ablation_results.ablation_cells(name, settings, seed=seed)
    ]


def page(benchmark: Benchmark[Settings], facts: str) -> str:
    """Tables and pictures of every regime, and the ablations."""
    settings = benchmark.settings
    columns = {column.name: column for column in benchmark.task.columns}
    notes = [*footnotes(columns, columns), *([ONE_SEED] if settings.seeds == 1 else [])]
    parts = [
        "# Bokeh: results\n",
        "Written by `experiments/publish.py bokeh` from the cells in [bokeh/cells.jsonl](bokeh/cells.jsonl); all "
        "numbers, unrounded, in [bokeh/results.json](bokeh/results.json). [What Bokeh is](../bokeh.md), "
        "[the paper's claims](../claims.md).\n",
        _RULE,
        *(f"{note}\n" for note in notes),
        facts,
    ]
    for regime in settings.regimes:
        parts.append(f"## {_sentence(regime)} regime\n\n{_sentence(REGIME_NOTES[regime])}.\n")
        tables = [table for table in benchmark.tables if table.labels["regime"] == regime]
        parts += [_table_part(benchmark, table) for table in tables]
        names = [f"calibration-{regime}", *(f"gallery-{regime}-{table.labels['noise']}" for table in tables)]
        parts += [f"![{name.replace('-', ' ')}](bokeh/{name}.png)\n" for name in names]
    parts += _ablation_parts(benchmark)
    return "\n".join(parts)


def _table_part(benchmark: Benchmark[Settings], table: Table) -> str:
    images = table.details["images"]
    sentence = (
        f"{images['train']:,} images to train on, {images['validation']:,} to choose by (rows `..._all` train on "
        f"both), {images['test']:,} to test on: n = {table.n_test:,}; S = {table.bins}, K = {table.df}; "
        f"{'mean ± sd over ' if table.seeds > 1 else ''}{_seeds(table.seeds)}."
    )
    parts = [f"### {table.labels['noise'].capitalize()} noise\n", f"{sentence}\n"]
    parts += [results_markdown(benchmark.task.columns, table)]
    parts += [f"{failure}.\n" for failure in failures(table)]
    for heading, text in sections(table):
        parts += [f"{heading}\n", text]
    return "\n".join(parts)


def pictures(benchmark: Benchmark[Settings]) -> dict[str, Figure]:
    """Calibration of every regime, test images of every table, and the ablations."""
    drawn: dict[str, Figure] = {}
    for regime in benchmark.settings.regimes:
        shown = {}
        for table in benchmark.tables:
            if table.labels["regime"] == regime:
                results = benchmark.results[tuple(table.labels.values())]
                extra = benchmark.task.for_pictures(benchmark.settings, table, results)
                shown[table.labels["noise"]] = {**table.as_dict(), **extra}
        rows = row_styles(dict.fromkeys(name for table in shown.values() for name in table["rows"]))
        drawn[f"calibration-{regime}"] = calibration_sheet(shown, rows=rows)
        for noise, document in shown.items():
            drawn[f"gallery-{regime}-{noise}"] = disc_gallery(document["gallery"], rows=rows)
    return drawn | {
        f"ablation-{name}": ablation_results.draw(document) for name, document in _ablations(benchmark).items()
    }


def more_files(benchmark: Benchmark[Settings], store: Store) -> dict[str, str]:
    """Claims and goals, parts of the page of claims, and the ablations as JSON."""
    del store
    ablations = _ablations(benchmark)
    files = {
        f"bokeh/ablation-{name}.json": json.dumps(document, indent=1) + "\n" for name, document in ablations.items()
    }
    parts = {"bokeh/claims.md": _claims(_complete(benchmark.document), ablations)}
    goals_part = _goals(benchmark.document)
    return parts | ({"bokeh/goals.md": goals_part} if goals_part else {}) | files


def _complete(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document without rows that lack seeds: claims are judged on all seeds."""
    tables = []
    for table in document["tables"]:
        names = {name for name, row in table["rows"].items() if row["finished"] == table["seeds"]}
        parts = {
            part: {name: entry for name, entry in table[part].items() if name in names}
            for part in ("rows", "against_temperature", "strata")
        }
        tables.append({**table, **parts})
    return {**document, "tables": tables}


def _ablations(benchmark: Benchmark[Settings]) -> dict[str, dict[str, Any]]:
    """Every ablation, with the seeds that are finished."""
    store, settings = benchmark.store, benchmark.settings

    def finished(name: str, seed: int) -> bool:
        cells = ablation_results.ablation_cells(name, settings, seed=seed)
        return all(store.get(cell.kind, cell.config) is not None for cell in cells)

    known = {}
    for name in ABLATIONS.names():
        seeds = range(ablation_results.SEEDS)
        count = next((seed for seed in seeds if not finished(name, seed)), len(seeds))
        if count:
            document = ablation_results.ablation(name, settings, store=store, seeds=count, workers=1, progress=False)
            known[name] = {key: value for key, value in document.items() if key != "wall_s"}  # nothing ran
    return known


def _ablation_parts(benchmark: Benchmark[Settings]) -> list[str]:
    return [
        f"\n## Ablation: {document['title']}\n\n![ablation {name}](bokeh/ablation-{name}.png)\n\n"
        f"{ablation_results.markdown(document)}"
        for name, document in _ablations(benchmark).items()
    ]


def _claims(document: Mapping[str, Any], varied: Mapping[str, Mapping[str, Any]]) -> str:
    """The paper's claims about Bokeh."""
    seeds = max(table["seeds"] for table in document["tables"])
    rules = "the rules are in `experiments/bokeh/claims.py`"
    sentence = f"{_sentence(_seeds(seeds))}, [results](results/bokeh.md); {rules}.\n"
    table = claims.claims_markdown([*claims.claims(document), *claims.ablation_claims(varied)])
    return "\n".join([sentence, *([_ALONE] if seeds == 1 else []), table])


def _goals(document: Mapping[str, Any]) -> str:
    """Beyond the paper: error bars that hold on new images; empty if no table has such rows."""
    text = goals.goals_markdown(document)
    if not text:
        return ""
    introduction = (
        f"`{RECOMMENDED}` is what [`fcal.crossfit`](crossfitting.md) does by default: networks that each leave out "
        "some images predict together, and are repaired by the images they left out. Its loss and its "
        "design were chosen on inner splits of training images, before any test image was looked at; how judged images "
        "stand for all networks and all images, and the choice of the repair, were changed once after test numbers of "
        "the first seed had shown error bars 2 to 3 % too small. Later the choice between two repairs became a weight, "
        "because spoilt rows could turn the choice ([measured](recalibration.md), without these images). Differences "
        "are paired over seeds, with their limits by Student's t, each with a confidence of 95 %: below means that the "
        "upper limit is below 0, not above that "
        "it is below the margin: the 95 % quantile less the mean of models that are right up to one factor, fitted to "
        "as many held-out images, because no repair can know its factor better than that; beside it, in brackets, the "
        "margin of models that know it. The same question on real data: "
        "[UCI](results/uci.md), [sensors](results/sensors.md).\n"
    )
    return f"{introduction}\n{text}"


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _seeds(count: int) -> str:
    return f"{count} seeds" if count > 1 else "one seed"
