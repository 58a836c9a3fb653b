"""Tables of the Bokeh benchmark: its columns, and what stands beside them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from fcal.benchmarks.bokeh.settings import Settings
from fcal.benchmarks.cost import COST, with_cost
from fcal.benchmarks.paper_tables import beside_paper, paper_details
from fcal.benchmarks.scoring import (
    CRPS,
    ECE_Q,
    ECE_Z,
    ENCE,
    ERRORS,
    MCE_Q,
    MCE_Z,
    NLL,
    PREDICT_MS,
    SIGMA_CORR,
    TRAIN_S,
    rounded,
    shortened,
)
from fcal.benchmarks.table import Column, Row, Spread, Table, candidates_of, row_of
from fcal.benchmarks.task import Result, Results
from fcal.data import Bokeh
from fcal.data.bokeh import SPLITS
from fcal.metrics import repaired_floors

_FEWEST_IMAGES = 1000  # a network that saw fewer has hardly learnt the task: the paper's numbers say nothing of it
_OF_CANDIDATES = ("l1_gt", "ece_z", "ece_q", "nll")
_OF_PAPER = ("l1_gt", "l1", "ece_z", "ece_q", "nll")
_MISSING = "-"

_SMOOTH_NOTE = (
    "L1 is a smooth L1 (Huber's loss) of the predicted mean to the labels, L1(GT) to the truth without noise: of an "
    "error below 1 it is half the square."
)
TABLE_COLUMNS = (
    Column(
        name="l1_gt",
        title="L1(GT)",
        description="SmoothL1 of the mean to the truth without noise",
        footnote=_SMOOTH_NOTE,
        factor=1000,
    ),
    Column(
        name="l1",
        title="L1",
        description="SmoothL1 of the mean to the labels",
        footnote=_SMOOTH_NOTE,
        factor=1000,
    ),
    ECE_Z,
    MCE_Z,
    ECE_Q,
    MCE_Q,
    NLL,
    Column(name="crps", title=CRPS.title, description=CRPS.description, factor=1000),
    ENCE,
    Column(
        name="strata",
        printed=False,
        title="worst stratum",
        description="largest ECE(z) among eight strata of the predicted sigma",
        factor=100,
    ),
    Column(
        name="joint",
        printed=False,
        title="in 90 % ellipse",
        description="share of images whose two residuals lie within the ellipse that should hold 90 % of them",
        factor=100,
        percent=True,
        ranked=False,
    ),
    SIGMA_CORR,
    TRAIN_S,
    PREDICT_MS,
    COST,
)
_BY_NAME = {column.name: column for column in TABLE_COLUMNS}


def bokeh_table(settings: Settings, labels: Mapping[str, str], results: Results) -> Table:
    """The table of one noise and regime.

    Args:
        settings: Of the benchmark.
        labels: Its noise and regime.
        results: Results of the rows' cells, one per seed.
    """
    noise, regime = labels["noise"], labels["regime"]
    sizes = {split: len(Bokeh(split, settings.data(noise, regime, 0))) for split in SPLITS}
    test_images = sizes["test"] + sizes["extra"]
    results = with_cost(settings, results, (sizes["train"], sizes["validation"]))
    like_the_paper = regime == "paper-like" and settings.images >= _FEWEST_IMAGES
    return Table(
        labels=labels,
        seeds=settings.seeds,
        bins=settings.bins,
        df=settings.df,
        n_test=2 * test_images,
        columns=tuple(_BY_NAME),
        rows={name: _row(repetitions) for name, repetitions in results.items()},
        floors=_floors(results),
        details={
            "repaired_floors": _repaired_floors(settings, results, (2 * sizes["validation"], 2 * test_images)),
            "images": {"train": sizes["train"], "validation": sizes["validation"], "test": test_images},
            "intervals": _intervals(results),
            "strata": _strata(results),
            **paper_details("bokeh", noise if like_the_paper else ""),
        },
    )


def _row(results: Sequence[Result]) -> Row:
    """Columns over seeds; other grids; and what each candidate would have scored."""
    details: dict[str, Any] = {
        "ence_floor": next((result["floors"]["ence"] for result in results if "floors" in result), None)
    }
    grids = [result["grids"] for result in results if "grids" in result]
    if grids:
        details["grids"] = _grids(grids)
    with_candidates = [result for result in results if "candidates" in result]
    if with_candidates:
        details["candidates"] = candidates_of(with_candidates, _OF_CANDIDATES)
    return row_of(results, tuple(_BY_NAME), **details)


def _grids(grids: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Calibration errors for every number of bins and of residuals in a sum."""
    names = [name for name in ERRORS if name != "ence"]
    return [
        {"bins": grid[0]["bins"], "df": grid[0]["df"]}
        | {name: _spread([seed[name] for seed in grid]) for name in names}
        | {"floors": {name: grid[0]["floors"][name] for name in names}}
        for grid in zip(*grids, strict=True)
    ]


def _spread(values: Sequence[float | None]) -> dict[str, float | None]:
    return Spread.of(values).as_dict()


def _floors(results: Results) -> dict[str, Any]:
    """What a calibrated model scores on as many test images; that of ENCE depends on the sigmas: the oracle's."""
    known = [result for row in ("oracle", *results) for result in results.get(row, ()) if "floors" in result]
    return dict(known[0]["floors"]) if known else {}


def _repaired_floors(settings: Settings, results: Results, counts: tuple[int, int]) -> dict[str, Any]:
    """What a model scores that is right up to one factor, fitted to the validation images; see the metric.

    How much the two residuals of an image depend on each other is the mean of all rows that have such a number.
    """
    measured = [result["dependence"] for row in results.values() for result in row if result.get("dependence")]
    fitted_on, n = counts
    effect = max(fmean(measured), 1.0) if measured else 1.0
    floors = repaired_floors(n, fitted_on=fitted_on, df=settings.df, bins=settings.bins, dependence=effect)
    return {"dependence": shortened(effect)} | {name: rounded(asdict(floor)) for name, floor in floors.items()}


def value_of(result: Result, column: str) -> Any:
    """The number of a seed in a column; None where there is none."""
    values = result.get("columns", {}).get(column)
    return values[0] if values else None


def _intervals(results: Results) -> dict[str, Any]:
    """Coverage and width of central intervals of a level."""
    known = _known(results, "interval")
    return {
        row: {"level": intervals[0]["level"]}
        | {name: _spread([interval[name] for interval in intervals]) for name in ("coverage", "width")}
        for row, intervals in known.items()
    }


def _strata(results: Results) -> dict[str, Any]:
    """Mean and worst calibration error of residuals by size of the predicted sigma."""
    return {
        row: {
            f"{name}_{word}": _spread([reduce(seed[name]) for seed in strata])
            for name in ("ece_z", "ece_q")
            for word, reduce in (("mean", fmean), ("worst", max))
        }
        for row, strata in _known(results, "strata").items()
    }


def _known(results: Results, name: str) -> dict[str, list[Any]]:
    known = {row: [result[name] for result in seeds if name in result] for row, seeds in results.items()}
    return {row: values for row, values in known.items() if values}


def paper_section(table: Table) -> tuple[str, str]:
    """The paper's numbers beside ours, with a sentence before them."""
    grid = table.details["paper_grid"]
    sentence = f"Beside the paper's appendix (its S is not stated, probably {grid['bins']}; its K {grid['df']}):"
    return sentence, beside_paper([_BY_NAME[name] for name in _OF_PAPER], table)
