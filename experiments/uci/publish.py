"""Copy finished cells of the UCI benchmark into the docs, and write its page of results from them."""

import argparse
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from fcal._config import to_toml
from fcal._files import atomic_path, write_json
from fcal.benchmarks import uci
from fcal.benchmarks.uci import markdown
from fcal.benchmarks.uci.cells import KIND
from fcal.benchmarks.uci.page import RULE, TASK
from fcal.sweeps import Cell, Store

_ROWS = ("temperature", "ensemble", "oof_temperature", "oof_nll", "oof_fcal")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, default=Path("runs/uci"))
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--preset", default="full")
    arguments = parser.parse_args()
    mpl.use("agg")
    settings = uci.preset(arguments.preset)
    folder = arguments.out / "uci"
    run, store = Store(arguments.run / "cells"), Store(folder / "cells")
    digests = _digests(run, store)
    settings = replace(settings, datasets=tuple(name for name in settings.datasets if name in digests))
    cells = uci.cells_of(settings, digests)
    wanted = {each.key for by_row in cells.values() for cell in by_row.values() for each in (cell, *cell.needs)}
    run.publish(folder / "cells", only=wanted)
    whole = {name: by_row for name, by_row in cells.items() if _is_whole(by_row.values(), store)}
    if not whole:
        raise SystemExit(f"expected all cells of at least one table, got none in {arguments.run}")
    every = [cell for by_row in whole.values() for cell in by_row.values()]
    document = uci.document(settings, whole, {cell: store.get(cell.kind, cell.config) for cell in every})
    write_json(folder / "results.json", {**document, "settings": uci.described(settings)})
    _save(folder / "log-likelihood.png", _picture(document))
    known = uci.preset(arguments.preset)
    open_tables = [
        f"{dataset} {network}"
        for network in known.networks
        for dataset in known.datasets
        if (dataset, network) not in whole
    ]
    _write(arguments.out / "uci.md", _page(known, document, every, store, open_tables))
    print(f"{arguments.out / 'uci.md'}: {len(document['tables'])} tables, {len(open_tables)} not finished")


def _is_whole(cells: Iterable[Cell], store: Store) -> bool:
    return all(store.get(cell.kind, cell.config) is not None for cell in cells)


def _digests(*stores: Store) -> dict[str, str]:
    """Fingerprints of the tables that there are cells of: no data are needed to publish."""
    found = {
        record.config["fit"]["dataset"]: record.config["fit"]["digest"]
        for store in stores
        for record in store.records(KIND)
    }
    if not found:
        raise SystemExit("expected finished cells of the UCI benchmark, got none")
    return found


def _page(
    settings: uci.Settings, document: Mapping[str, Any], cells: list[Cell], store: Store, open_tables: list[str]
) -> str:
    parts = [
        "# UCI: results\n",
        "Written by `experiments/uci/publish.py` from the cells in [uci/cells](uci/cells); all numbers, unrounded and "
        "split by split, in [uci/results.json](uci/results.json).\n",
        f"{TASK}\n",
        f"{RULE}\n",
        "ECE(z) and ECE(q) of a split have S bins and sums of K squared residuals, fewer of both for small tables: "
        "S = n / 15 within 5 and 20, K = n / 8 within 5 and 75. Residuals of all splits together are judged by the "
        "same rule; splits share rows, so its floor is a little too low. `train_s` is processor time of one split's "
        "share of stacked trainings. Published: MC dropout with a network of one layer of 50 units (100 for protein), "
        "after a grid search, from the repository of the splits.\n",
        *([f"Not finished yet: {', '.join(open_tables)}.\n"] if open_tables else []),
        "## In short\n",
    ]
    for network in document["bars"]:
        parts += [f"{sentence}\n" for sentence in markdown.bars_sentences(document["bars"], network)]
        parts += [markdown.bars_markdown(document["bars"], network)]
    parts += [
        "The best row is the one that is best on the test rows, which flatters it a little; the counts of each row "
        "alone stand above. Published figures have two decimals, and so has what is compared with them.\n",
        "![log-likelihood beside that of temperature scaling](uci/log-likelihood.png)\n",
    ]
    for table in document["tables"]:
        parts.append(_table_part(table))
    return "\n".join([*parts, _facts(settings, cells, store)])


def _table_part(table: Mapping[str, Any]) -> str:
    grid = table["pooled"]
    parts = [
        f"## {table['dataset']}, {table['network']}\n",
        f"n = {table['n_test']:,} rows to test on in each split; S = {table['bins']}, K = {table['df']}; mean ± "
        f"standard error over {table['splits']} splits.\n",
        markdown.results_markdown(table),
        *(f"{sentence}.\n" for sentence in markdown.failures(table)),
        "Log-likelihood against temperature scaling, split by split:\n",
        markdown.paired_markdown(table),
        f"Residuals of all splits together, n = {grid['n']:,}, S = {grid['bins']}, K = {grid['df']}:\n",
        markdown.pooled_markdown(table),
    ]
    return "\n".join(parts)


def _facts(settings: uci.Settings, cells: list[Cell], store: Store) -> str:
    """Config, commits, machine and time of the cells in these tables."""
    wanted = dict.fromkeys(each for cell in cells for each in (cell, *cell.needs))
    known = (store.record(cell.kind, cell.config) for cell in wanted)
    records = [record for record in known if record is not None]
    seconds = sum(record.seconds or 0.0 for record in records)
    found = {
        name: ", ".join(sorted(Counter(str(record.provenance[name]) for record in records)))
        for name in ("commit", "cpu", "cores", "torch", "python")
    }
    lines = ["## What was run\n", *(f"- {name}: {value}" for name, value in found.items())]
    lines.append(f"- {len(records)} cells, {seconds / 60:.0f} minutes of one process")
    return "\n".join([*lines, "", "```toml", to_toml(settings).strip(), "```", ""])


def _picture(document: Mapping[str, Any]) -> Figure:
    """Paired differences of log-likelihood to temperature scaling, table by table."""
    networks = list(document["bars"])
    figure = Figure(figsize=(5.0 * len(networks), 4.2), layout="constrained")
    axes = figure.subplots(1, len(networks), sharey=True, squeeze=False)[0]
    for axis, network in zip(axes, networks, strict=True):
        tables = [table for table in document["tables"] if table["network"] == network]
        for place, row in enumerate(name for name in _ROWS if name != "temperature"):
            pairs = [table["paired"].get(f"{row} - temperature") for table in tables]
            heights = [None if pair is None else pair["mean"] for pair in pairs]
            where = [i + 0.15 * (place - 1.5) for i, height in enumerate(heights) if height is not None]
            axis.errorbar(
                where,
                [height for height in heights if height is not None],
                yerr=[2 * (pair["se"] or 0.0) for pair in pairs if pair is not None],
                fmt="os^D"[place],
                markersize=4,
                linewidth=1,
                label=row,
            )
        axis.axhline(0, color="0.4", linewidth=0.8)
        axis.set_xticks(range(len(tables)), [table["dataset"] for table in tables], rotation=45, ha="right")
        axis.set_title(f"network {network}", fontsize=10)
    axes[0].set_ylabel("log-likelihood minus that of temperature\n(bars: two standard errors)")
    axes[0].legend(fontsize=8)
    return figure


def _save(path: Path, figure: Figure) -> None:
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=110, metadata={"Software": None})


def _write(path: Path, text: str) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
