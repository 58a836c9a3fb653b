"""The page of UCI results in the docs, and the bars that it counts."""

import importlib
import json
import shutil
from pathlib import Path

import pytest
from numpy.testing import assert_allclose
from uci_tables import write_table

from fcal.benchmarks.markdown import results_markdown
from fcal.benchmarks.runner import benchmark, collect
from fcal.benchmarks.table import Row, Spread, Table
from fcal.benchmarks.task import preset
from fcal.benchmarks.uci import UCI, Settings
from fcal.benchmarks.uci.problem import COLUMNS, UCIProblem
from fcal.sweeps import Store

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "docs/results"
FINISHED = pytest.mark.skipif(not (RESULTS / "uci/results.json").is_file(), reason="no results of UCI in this checkout")


@pytest.fixture
def experiment(monkeypatch):
    """The modules of the experiment, by name."""
    monkeypatch.syspath_prepend(str(ROOT))
    return lambda name: importlib.import_module(f"uci.{name}")


def test_page_is_written_from_the_cells_alone(experiment, tmp_path):
    """Once after a run, and once more from its cells without the data: the same text."""
    tables = write_table(tmp_path / "tables", rows=80)
    settings = preset(UCI, "tiny", datasets=("yacht",), networks=("1x50",))
    store = Store(tmp_path / "run/cells")
    done = benchmark(UCI, settings, store=store, data=str(tables), workers=1, progress=False)
    assert not done.crashed
    shutil.copytree(tmp_path / "run/cells", tmp_path / "cells")
    shutil.rmtree(tables)
    stored = collect(UCI, settings, store=Store(tmp_path / "cells"))
    page = experiment("page").page
    assert page(stored, "facts\n") == page(done, "facts\n")
    whole = collect(UCI, UCI.presets["tiny"], store=Store(tmp_path / "cells"))
    text = page(whole, "facts\n")
    assert "Not finished yet: energy 1x50, energy 2x64, yacht 2x64." in text
    assert text.endswith("facts\n")
    for table in whole.tables:
        assert results_markdown(UCI.columns, table, error="se", beside=UCI.beside(table)) in text
    (figure,) = experiment("page").pictures(whole).values()
    figure.savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_collect_refuses_when_nothing_is_finished(tmp_path):
    with pytest.raises(ValueError, match="expected finished cells of the UCI benchmark, got none"):
        collect(UCI, UCI.presets["tiny"], store=Store(tmp_path / "none"))


@FINISHED
def test_committed_numbers_are_those_of_the_page(experiment):
    document = json.loads((RESULTS / "uci/results.json").read_text())
    page = (RESULTS / "uci.md").read_text()
    tables = [Table.from_dict(table) for table in document["tables"]]
    assert len(tables) == 16
    for sentence in (
        s for n in ("1x50", "2x64") for s in experiment("bars").bars_sentences(experiment("bars").bars(tables), n)
    ):
        assert sentence in page
    for table in tables:
        assert results_markdown(UCI.columns, table, error="se", beside=UCI.beside(table)) in page
        for row in table.rows.values():
            known = [value for value in row.seeds["ll"] if value is not None]
            if known:
                assert row.columns["ll"].mean == pytest.approx(sum(known) / len(known))


def test_paired_differences_and_bars_count_tables(experiment):
    def cell(values):
        return [{"status": "done", "columns": {**{name: [None, None] for name in COLUMNS}, "ll": values}}]

    rows = {"temperature": cell([-1.0, -2.0]), "oof_nll": cell([-1.1, -1.0]), "oof_fcal": cell([-3.0, -3.0])}
    problem = UCIProblem({"dataset": "yacht", "network": "1x50"}, Settings(), Store("cells"))
    table = UCI.table(Settings(), [problem], rows)
    pair = table.details["paired"]["oof_nll - temperature"]
    assert pair["above"] == 1
    assert_allclose(pair["ll"], [-0.1, 1.0])
    assert_allclose([pair["mean"], pair["se"]], [0.45, 0.55])
    counts = experiment("bars").bars([table])["1x50"]
    assert counts["datasets"]["yacht"]["best"] == "oof_nll"
    assert counts["temperature"] == {"reached": 1, "bar": 7}
    assert counts["published"]["reached"] == 1  # -1.05 is above -1.25
    assert counts["clear"] == 0  # 0.45 is less than twice 0.55
    assert counts["ensemble_above"] == 0
    assert counts["above_unrepaired"] == 0
    assert counts["each"]["oof_fcal"] == {"temperature": 0, "published": 0, "calibrated": 0}


def test_bars_count_calibration_and_the_network_that_nothing_repairs(experiment):
    def row(ll, ece_q):
        return Row(columns={"ll": Spread(mean=ll)}, seeds={}, finished=1, details={"pooled": {"ece_q": ece_q}})

    table = Table(
        labels={"dataset": "wine", "network": "1x50"},
        seeds=1,
        bins=5,
        df=5,
        n_test=1,
        columns=("ll",),
        rows={
            "temperature": row(-1.0, 0.2),
            "nll_all": row(-0.9, 0.5),
            "oof_nll": row(-0.8, 0.1),
            "oof_fcal": row(-2.0, 0.3),
        },
        details={"published": {}, "paired": {}},
    )
    counts = experiment("bars").bars([table])["1x50"]
    assert counts["above_unrepaired"] == 1
    assert [counts["each"][name]["calibrated"] for name in ("oof_nll", "oof_fcal")] == [1, 0]
