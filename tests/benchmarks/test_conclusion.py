"""What a benchmark says it showed: at most three sentences, counted from its tables."""

import json
from pathlib import Path

import numpy as np
import pytest

from fcal.benchmarks import TASKS
from fcal.benchmarks.conclusion import conclusion
from fcal.benchmarks.table import Column, Row, Spread, Table

COLUMNS = (Column(name="ece_z", title="ECE(z)"), Column(name="crps", title="CRPS"))
RESULTS = Path(__file__).parents[2] / "docs/results"


def table(means, *, seeds=4, floor=0.01, noise=1e-4):
    """A table of rows with these means of both columns, with independent noise of every seed."""
    rng = np.random.default_rng(0)
    rows = {}
    for name, mean in means.items():
        values = {column.name: (mean + noise * rng.standard_normal(seeds)).tolist() for column in COLUMNS}
        spreads = {column: Spread.of(numbers) for column, numbers in values.items()}
        rows[name] = Row(columns=spreads, seeds=values, finished=seeds)
    floors = {"ece_z": {"expected": floor / 2, "q95": floor}}
    names = tuple(column.name for column in COLUMNS)
    return Table(labels={"t": "t"}, seeds=seeds, bins=20, df=75, n_test=9, columns=names, rows=rows, floors=floors)


def test_clear_differences_are_counted_and_those_within_the_noise_are_not():
    tables = [
        table({"oob_auto": 0.5, "nll": 1.0, "temperature": 0.5}),
        table({"oob_auto": 0.5, "nll": 1.0, "temperature": 0.5}),
        table({"oob_auto": 1.0, "nll": 0.5, "temperature": 1.0}),
    ]
    first, second, third = conclusion(tables, COLUMNS)
    assert first == (
        "Out-of-bag ensemble (recommended) against NLL: "
        "ECE(z) 21 % lower (clearly lower in 2 of 3 tables, clearly higher in 1); "  # (1/2 * 1/2 * 2) ** (1/3) = 0.79
        "CRPS 21 % lower (clearly lower in 2 of 3 tables, clearly higher in 1)."
    )
    assert second == "Against temperature: ECE(z) the same (within the noise); CRPS the same (within the noise)."
    assert third == "Its ECE(z) is what calibrated models reach in 0 of 3 tables."


def test_one_seed_is_said_to_know_no_noise():
    sentences = conclusion([table({"oob_auto": 0.005, "nll": 0.02}, seeds=1, noise=0.0)], COLUMNS)
    assert sentences[0].endswith("CRPS 75 % lower (in one table).")
    assert (
        sentences[1]
        == "Its ECE(z) is what calibrated models reach in 1 of 1 table; of one seed, differences may be noise."
    )


def test_without_the_recommended_row_the_best_ones_are_named():
    (sentence,) = conclusion([table({"oracle": 0.1, "nll": 1.0, "temperature": 0.5})], COLUMNS)
    assert sentence.startswith("ECE(z) is lowest for temperature in 1 of 1 table; CRPS is lowest for temperature")


def test_of_nothing_nothing_is_said():
    assert conclusion([], COLUMNS) == []
    assert conclusion([table({"nll": 1.0})], COLUMNS) == []


@pytest.mark.parametrize("name", ["bokeh", "uci", "sensors", "depth", "detection"])
def test_every_published_benchmark_has_a_conclusion_of_at_most_three_sentences(name):
    tables = [Table.from_dict(entry) for entry in json.loads((RESULTS / name / "results.json").read_text())["tables"]]
    sentences = conclusion(tables, TASKS[name].load().columns)
    assert 1 <= len(sentences) <= 3
    assert sentences[0].startswith("Out-of-bag ensemble (recommended) against NLL: ")
    assert "oob_" not in " ".join(sentences)


@pytest.mark.parametrize("name", ["bokeh", "uci", "sensors", "depth", "detection"])
def test_a_benchmark_computes_at_most_a_dozen_rows_unless_told_otherwise(name):
    task = TASKS[name].load()
    usual = task.usual_methods()
    rows = task.methods(usual)
    assert "oob_auto" in rows
    assert set(rows) <= set(task.methods(None))
    assert usual is None or len(usual) <= 12
