"""Copy finished cells of the UCI benchmark into the docs, and write its page of results from them."""

import argparse
import os
from collections import Counter
from collections.abc import Mapping
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
    parser.add_argument("--datasets", help="tables that are finished (default: all)")
    parser.add_argument("--networks", help="networks that are finished (default: all)")
    arguments = parser.parse_args()
    mpl.use("agg")
    settings = uci.preset(
        arguments.preset,
        datasets=None if arguments.datasets is None else tuple(arguments.datasets.split(",")),
        networks=None if arguments.networks is None else tuple(arguments.networks.split(",")),
    )
    folder = arguments.out / "uci"
    run, store = Store(arguments.run / "cells"), Store(folder / "cells")
    cells = uci.cells_of(settings, _digests(settings, run, store))
    every = [cell for by_row in cells.values() for cell in by_row.values()]
    run.publish(folder / "cells", only={each.key for cell in every for each in (cell, *cell.needs)})
    missing = [cell.name for cell in every if store.get(cell.kind, cell.config) is None]
    if missing:
        raise SystemExit(f"expected all cells of the tables, got none of {missing[0]} and {len(missing) - 1} more")
    document = uci.document(settings, cells, {cell: store.get(cell.kind, cell.config) for cell in every})
    write_json(folder / "results.json", {**document, "settings": uci.described(settings)})
    _save(folder / "log-likelihood.png", _picture(document))
    _write(arguments.out / "uci.md", _page(settings, document, every, store))
    print(f"{arguments.out / 'uci.md'}: {len(document['tables'])} tables")


def _digests(settings: uci.Settings, *stores: Store) -> dict[str, str]:
    """Fingerprints of the tables that there are cells of: no data are needed to publish."""
    found = {
        record.config["fit"]["dataset"]: record.config["fit"]["digest"]
        for store in stores
        for record in store.records(KIND)
    }
    missing = [name for name in settings.datasets if name not in found]
    if missing:
        raise SystemExit(f"expected cells of every table, got none of {', '.join(missing)}")
    return found


def _page(settings: uci.Settings, document: Mapping[str, Any], cells: list[Cell], store: Store) -> str:
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
