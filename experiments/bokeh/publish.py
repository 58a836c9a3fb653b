"""Copy finished cells of the Bokeh benchmark into the docs, and write its page of results from them."""

import argparse
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl

from fcal._config import to_toml
from fcal._files import atomic_path, write_json
from fcal.benchmarks import bokeh
from fcal.benchmarks.bokeh import ablations, claims, goals, markdown
from fcal.benchmarks.bokeh.methods import METHODS
from fcal.benchmarks.bokeh.page import REGIME_WORDS, with_pictures
from fcal.benchmarks.bokeh.rows import COLUMNS
from fcal.benchmarks.titles import COLUMN_STYLES, ROW_STYLES
from fcal.plots import calibration_sheet, disc_gallery
from fcal.plots.styles import footnotes
from fcal.reports.results_table import ONE_SEED
from fcal.sweeps import Cell, Store

_ALONE = "Of one seed there is no standard error: where a rule asks for two of them, a difference of any size counts.\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, default=Path("runs/bokeh"))
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument(
        "--claims", type=Path, help="where the claims go; claims.md beside the folder --out where absent"
    )
    parser.add_argument("--preset", default="paper")
    parser.add_argument("--seeds", type=int)
    arguments = parser.parse_args()
    mpl.use("agg")
    settings = bokeh.preset(arguments.preset, seeds=arguments.seeds)
    folder = arguments.out / "bokeh"
    wanted = {cell.key for cell in _cells(bokeh.preset(arguments.preset))}  # also seeds that are not finished yet
    Store(arguments.run / "cells").publish(folder / "cells", only=wanted)
    store = Store(folder / "cells")  # from here on the docs' own cells are all there is
    done, left = _finished(settings, store)
    write_json(folder / "results.json", {**done.document, "settings": bokeh.described(settings)})
    drawn = _pictures(folder, settings, done)
    varied = _ablations(folder, settings, store)
    text = _page(settings, done, store, drawn) + _ablation_parts(varied)
    _write(arguments.out / "bokeh.md", text + _unfinished(left))
    _write(arguments.claims or arguments.out.parent / "claims.md", _claims(done.document, varied))
    print(f"{arguments.out / 'bokeh.md'}: {len(done.document['tables'])} tables, {_seeds(settings.seeds)}")


def _finished(settings: bokeh.Settings, store: Store) -> tuple[bokeh.Benchmark, list[str]]:
    """Tables of the methods that are finished, regime by regime, and which are not."""
    tables: list[Any] = []
    results: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}
    left: list[str] = []
    for regime in settings.regimes:
        part = replace(settings, regimes=(regime,))
        missing = {name: _missing(part, store, [name]) for name in METHODS.names()}
        if missing["nll"]:
            first, *others = [name for names in missing.values() for name in names]
            raise SystemExit(
                f"expected all cells of {settings.seeds} seeds, got none of {first} and {len(others)} more"
            )
        methods = [name for name, names in missing.items() if not names]
        left += [f"{name} ({regime})" for name, names in missing.items() if names]
        done = bokeh.benchmark(part, store=store, methods=methods, workers=1)
        tables += done.document["tables"]
        results |= done.results
    document = {**done.document, "tables": tables}
    return bokeh.Benchmark(document=document, results=results, crashed={}), left


def _missing(settings: bokeh.Settings, store: Store, methods: list[str]) -> list[str]:
    """Names of cells that are not computed yet."""
    return [cell.name for cell in bokeh.cells_of(settings, methods) if store.get(cell.kind, cell.config) is None]


def _unfinished(left: list[str]) -> str:
    return f"\nNot in these tables, because not all their cells are computed yet: {', '.join(left)}.\n" if left else ""


def _cells(settings: bokeh.Settings) -> list[Cell]:
    """All that is worth keeping: the rows of the tables and the points of the ablations, not their trainings."""
    points = [cell for name in ablations.ABLATIONS.names() for cell in ablations.ablation_cells(name, settings)]
    return [*bokeh.cells_of(settings), *points]


def _pictures(folder: Path, settings: bokeh.Settings, done: bokeh.Benchmark) -> dict[str, list[str]]:
    """Pictures of every regime; their names by regime."""
    drawn: dict[str, list[str]] = {}
    tables = [with_pictures(settings, done, table) for table in done.document["tables"]]
    for regime in settings.regimes:
        mine = {table["noise"]: table for table in tables if table["regime"] == regime}
        names = [f"calibration-{regime}.png"]
        _save(folder / names[0], calibration_sheet(mine, rows=ROW_STYLES))
        for noise, table in mine.items():
            names.append(f"gallery-{regime}-{noise}.png")
            _save(folder / names[-1], disc_gallery(table["gallery"], rows=ROW_STYLES))
        drawn[regime] = names
    return drawn


def _save(path: Path, figure: Any) -> None:
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=110, metadata={"Software": None})


def _page(settings: bokeh.Settings, done: bokeh.Benchmark, store: Store, drawn: Mapping[str, list[str]]) -> str:
    parts = [
        "# Bokeh: results\n",
        "Written by `experiments/bokeh/publish.py` from the cells in [bokeh/cells](bokeh/cells); all numbers, "
        "unrounded, in [bokeh/results.json](bokeh/results.json). [What Bokeh is](../bokeh.md), "
        "[what became of the paper's claims](../claims.md).\n",
        _facts(settings, store),
    ]
    for regime in settings.regimes:
        parts.append(f"## {_sentence(regime)} regime\n\n{_sentence(REGIME_WORDS[regime])}.\n")
        parts += [_table_part(table) for table in done.document["tables"] if table["regime"] == regime]
        parts += [f"![{name.removesuffix('.png').replace('-', ' ')}](bokeh/{name})\n" for name in drawn[regime]]
    return "\n".join(parts)


def _table_part(table: Mapping[str, Any]) -> str:
    images = table["images"]
    words = (
        f"{images['train']:,} images to train on, {images['validation']:,} to choose by (rows `..._all` train on "
        f"both), {images['test']:,} to test on: n = {table['n_test']:,}; S = {table['bins']}, K = {table['df']}; "
        f"{'mean ± sd over ' if table['seeds'] > 1 else ''}{_seeds(table['seeds'])}."
    )
    parts = [f"### {table['noise'].capitalize()} noise\n", words + "\n", markdown.results_markdown(table)]
    parts += [f"{sentence}.\n" for sentence in markdown.failures(table)]
    parts += ["f-Cal against the likelihood, seed by seed (`..._all`: both trained on all images):\n"]
    parts += [markdown.paired_markdown(table)]
    parts += _without_held_out(table)
    parts += ["What there was to choose from (the test numbers beside it chose nothing):\n"]
    parts += [markdown.candidates_markdown(table)]
    beside = markdown.paper_markdown(table)
    if beside:
        grid = table["paper_grid"]
        parts += [f"Beside the paper's appendix (its S is not stated, probably {grid['bins']}; its K {grid['df']}):\n"]
        parts += [beside]
    parts += ["The same with other numbers of bins and of residuals in a sum, x100:\n", markdown.grids_markdown(table)]
    return "\n".join(parts)


def _without_held_out(table: Mapping[str, Any]) -> list[str]:
    """What is said of the rows that hold out nothing for good."""
    parts = []
    for words, text in (
        (
            "Out-of-fold rows less temperature scaling, mean and seed by seed (L1(GT): ratio to the network that it "
            "repairs; band: what 95 % of calibrated models stay below):\n",
            markdown.against_markdown(table),
        ),
        ("Central intervals:\n", markdown.intervals_markdown(table)),
        (
            "What the networks of folds know of the images held out, because they start from one that has seen all for "
            "a few epochs (1 would be nothing, or luck of the draw of images), and what they lack:\n",
            markdown.folds_markdown(table),
        ),
        ("By size of the predicted sigma, eight strata:\n", markdown.strata_markdown(table)),
    ):
        parts += [words, text] if text else []
    return parts


def _facts(settings: bokeh.Settings, store: Store) -> str:
    """Config, commits, machine and time of the cells in these tables."""
    known = (store.record(cell.kind, cell.config) for cell in dict.fromkeys(_cells(settings)))
    records = [record for record in known if record is not None]
    seconds = sum(record.seconds or 0.0 for record in records)
    found = {
        name: ", ".join(sorted(Counter(str(record.provenance[name]) for record in records)))
        for name in ("commit", "cpu", "cores", "torch", "python")
    }
    lines = [f"- {name}: {value}" for name, value in found.items()]
    lines.append(
        f"- {len(records)} cells, {seconds / 3600:.1f} hours of one process of two, without shared first trainings"
    )
    rule = (
        "Epochs and hyper-parameters are chosen by the negative log-likelihood of the validation images, three "
        "candidates for every method (the deterministic network by its accuracy). Post-hoc methods are fitted to the "
        "same validation images. `train_s` is the training of the chosen candidate with what it starts from, "
        "`predict_ms` one image; both are processor time of one thread. Floors take residuals as independent; the two "
        "of an image are not quite, which makes bands of ECE(q) up to a sixth too narrow.\n"
    )
    notes = [*footnotes(COLUMN_STYLES, COLUMNS), *([ONE_SEED] if settings.seeds == 1 else [])]
    words = [rule, *(f"{note}\n" for note in notes)]
    return "\n".join([*words, *lines, "", "```toml", to_toml(settings).strip(), "```", ""])


def _ablations(folder: Path, settings: bokeh.Settings, store: Store) -> dict[str, dict[str, Any]]:
    """Every ablation that is finished, written and drawn."""
    found = {}
    for name in ablations.ABLATIONS.names():
        cells = ablations.ablation_cells(name, settings)
        if any(store.get(cell.kind, cell.config) is None for cell in cells):
            continue
        found[name] = ablations.ablation(name, settings, store=store, workers=1, progress=False)
        write_json(folder / f"ablation-{name}.json", found[name])
        _save(folder / f"ablation-{name}.png", ablations.draw(found[name]))
    return found


def _ablation_parts(found: Mapping[str, Mapping[str, Any]]) -> str:
    return "\n".join(
        f"\n## Ablation: {document['title']}\n\n![ablation {name}](bokeh/ablation-{name}.png)\n\n"
        f"{ablations.markdown(document)}"
        for name, document in found.items()
    )


def _claims(document: Mapping[str, Any], varied: Mapping[str, Mapping[str, Any]]) -> str:
    seeds = max(table["seeds"] for table in document["tables"])
    return "\n".join(
        [
            "# The paper's claims\n",
            "What the paper says, when we would call it reproduced, and what we found. Written by "
            "`experiments/bokeh/publish.py` from [the results](results/bokeh.md); the rules are in "
            "`fcal.benchmarks.bokeh.claims`.\n",
            f"## Bokeh, {_seeds(seeds)}\n",
            *([_ALONE] if seeds == 1 else []),
            claims.claims_markdown([*claims.claims(document), *claims.ablation_claims(varied)]),
            "## Depth on KITTI, detection on KITTI and Cityscapes\n",
            "Not tested yet.\n",
            *_goals(document),
        ]
    )


def _goals(document: Mapping[str, Any]) -> list[str]:
    """What goes beyond the paper: error bars that are true on new images."""
    text = goals.goals_markdown(document)
    if not text:
        return []
    words = (
        "Rows `oof_...` train on all images and learn error bars from networks that have not seen an image "
        "([cross-fitting](crossfitting.md)); temperature scaling holds out a quarter of them. Means of differences "
        "paired by seed; what was reached is counted over all tables. The same question on real data: "
        "[UCI](results/uci.md), [sensors](results/sensors.md).\n"
    )
    return ["# Beyond the paper: calibration without a held-out set\n", words, text]


def _sentence(words: str) -> str:
    return words[0].upper() + words[1:]


def _seeds(count: int) -> str:
    return f"{count} seeds" if count > 1 else "one seed"


def _write(path: Path, text: str) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
