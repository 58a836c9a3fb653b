"""The page of the benchmark: the tables of the document, with a sentence on what each is of."""

import os
from collections.abc import Mapping
from typing import Any

from fcal.benchmarks.titles import COLUMN_STYLES, ROW_STYLES
from fcal.benchmarks.uci.markdown import bars_sentences
from fcal.reports.benchmark import benchmark_page
from fcal.reports.page import write_html

TASK = (
    "Eight regression tables of the UCI repository with the standard splits of Hernandez-Lobato and Gal; a network of "
    "one hidden layer of 50 units and one of two of 64; all numbers are in original units, means over splits (which "
    "stand for seeds here)."
)
RULE = (
    "Methods with a held-out set hold out a fifth of the rows to train on, and epochs and hyper-parameters are chosen "
    "by its negative log-likelihood; repaired rows by that after one factor. Rows “nll_all”, ensemble and "
    "out-of-fold train on all rows; epochs of the last two are chosen by networks that were trained without each of "
    "five folds, on that fold. Nothing is chosen by the test rows."
)
_TINY = "Preset tiny shows that everything runs and says nothing about methods."


def write_page(path: str | os.PathLike[str], document: Mapping[str, Any], *, preset: str = "") -> None:
    """Write one self-contained page of all tables.

    Args:
        path: Where to.
        document: What ``fcal benchmark uci --json`` prints.
        preset: Name of the preset that the settings are of, if any.
    """
    tables = [
        {**table, "title": f"{table['dataset']}, network {table['network']}", "paper": {}}
        for table in document["tables"]
    ]
    found = [line for network, one in document["bars"].items() if one["datasets"] for line in _bars(document, network)]
    notes = [TASK, RULE, *([_TINY] if preset == "tiny" else []), *found]
    text = benchmark_page(
        tables,
        command=document.get("command", ""),
        title="UCI benchmark",
        notes=notes,
        seconds=document.get("wall_s"),
        versions=document.get("versions"),
        rows=ROW_STYLES,
        columns=COLUMN_STYLES,
    )
    write_html(path, text)


def _bars(document: Mapping[str, Any], network: str) -> list[str]:
    return bars_sentences(document["bars"], network)
