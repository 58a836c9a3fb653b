"""Tables: numbers over repetitions, and to JSON and back."""

import json
import math

import pytest

from fcal.benchmarks.markdown import failures, results_markdown
from fcal.benchmarks.scoring import ECE_Q, NLL
from fcal.benchmarks.table import Column, Row, Spread, Table, row_of

COLUMNS = (NLL, ECE_Q)


def result(nll, ece_q=0.1):
    return {"status": "done", "columns": {"nll": [nll], "ece_q": [ece_q]}}


def table(**rows):
    return Table(
        labels={"noise": "gamma"},
        seeds=3,
        bins=20,
        df=75,
        n_test=1000,
        columns=("nll", "ece_q"),
        rows={name: row_of(results, ("nll", "ece_q")) for name, results in rows.items()},
        floors={"ece_q": {"expected": 0.01, "q95": 0.02}},
        details={"images": {"train": 5}},
    )


def test_spread_is_mean_sd_and_standard_error():
    spread = Spread.of([1.0, None, 2.0, 6.0], se=True)
    assert spread.mean == 3.0
    assert spread.sd == pytest.approx(math.sqrt(7))
    assert spread.se == pytest.approx(math.sqrt(7 / 3))


def test_table_comes_back_from_json():
    before = table(nll=[result(1.0), result(2.0), result(4.0)], mmd=[{"status": "failed", "reason": "lost"}] * 3)
    after = Table.from_dict(json.loads(json.dumps(before.as_dict(), allow_nan=False)))
    assert after == before
    assert after.as_dict() == before.as_dict()


def test_row_counts_repetitions_that_are_finished():
    row = row_of([result(1.0), {"status": "missing"}, result(3.0)], ("nll", "ece_q"))
    assert (row.finished, row.status, row.seeds["nll"]) == (2, "done", [1.0, None, 3.0])
    assert row.columns["nll"].mean == 2.0


def test_row_of_splits_that_train_together_counts_each():
    row = row_of([{"status": "done", "columns": {"nll": [1.0, 2.0, 3.0]}}], ("nll",))
    assert (row.finished, row.columns["nll"].mean) == (3, 2.0)


@pytest.mark.parametrize(
    ("results", "status", "reason"),
    [
        ([result(1.0), {"status": "failed", "reason": "lost"}], "failed", "1 of 2 seeds: lost"),
        ([{"status": "crashed", "reason": "killed"}, {"status": "failed"}], "crashed", "2 of 2 seeds: killed"),
        ([{"status": "failed", "reason": "lost"}], "failed", "lost"),
    ],
)
def test_row_says_why_it_is_not_done(results, status, reason):
    row = row_of(results, ("nll",))
    assert (row.status, row.reason) == (status, reason)


def test_markdown_shows_spread_floors_and_unfinished_seeds():
    text = results_markdown(COLUMNS, table(nll=[result(1.0), result(3.0), {"status": "missing"}]))
    assert text.splitlines() == [
        "|  | NLL | ECE(q) x100 |",
        "| --- | ---: | ---: |",
        "| nll (2 of 3 seeds) | 2 ± 1.4 | 10 ± 0 |",
        "| *calibrated model* |  | 1 |",
        "| *95 % of them below* |  | 2 |",
    ]


def test_failures_are_sentences():
    assert failures(table(mmd=[{"status": "failed", "reason": "lost"}] * 3)) == ["mmd failed: 3 of 3 seeds: lost"]


def test_column_shows_its_factor_unless_it_makes_a_percentage():
    share = Column(name="coverage", title="in 90 %", factor=100, percent=True)
    assert (share.heading, share.text(0.8912)) == ("in 90 %", "89.1")
    assert ECE_Q.heading == "ECE(q) x100"
    precision = Column(name="map", title="mAP", factor=100, percent=True)
    assert (precision.heading, precision.text(0.000456)) == ("mAP, %", "0.0456")


def test_row_keeps_what_a_task_adds():
    row = Row(columns={"nll": Spread(1.0)}, seeds={"nll": [1.0]}, finished=1, details={"epochs": [3]})
    assert Row.from_dict(row.as_dict()) == row
