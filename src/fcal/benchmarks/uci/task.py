"""The UCI benchmark: regression on eight tables with the standard splits, next to published figures."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from importlib import resources
from typing import Any, ClassVar

from fcal.benchmarks.markdown import lines_of, spread_text
from fcal.benchmarks.problem import Problem
from fcal.benchmarks.scoring import COVERAGE, CRPS, ECE_Q, ECE_Z, RMSE, TRAIN_S, WIDTH, rounded
from fcal.benchmarks.table import Column, Row, Spread, Table, row_of
from fcal.benchmarks.task import Result, Results, Task
from fcal.benchmarks.uci import bagging, trainings
from fcal.benchmarks.uci.problem import COLUMNS, DIGITS, UCIProblem, grid_of
from fcal.benchmarks.uci.settings import PRESETS, Settings
from fcal.benchmarks.uci.splits import fingerprint, splits_of
from fcal.data.uci import uci_folder
from fcal.metrics.calibration_errors import floors
from fcal.sweeps import Store

BASELINE = "temperature"  # row that other methods are compared with
LOG_LIKELIHOOD = Column(
    name="ll",
    title="log-likelihood",
    description="mean over test rows, in the target's unit; more is better",
    lower_is_better=False,
    digits=4,
)
_DF = 50  # K of the losses: a batch has 256 rows, or all rows of a small table
_ROW_DETAILS = ("pooled", "epochs", "candidates")
_POOLED = (ECE_Z, ECE_Q)
_TINY = "Preset tiny shows that everything runs and says nothing about methods."


def _fcal(divergence: str) -> dict[str, Any]:
    options = {"name": "fcal", "divergence": divergence, "df": _DF}
    return {"candidates": tuple({**options, "lam": lam} for lam in (0.02, 0.1, 0.005))}


class UCITask(Task[Settings]):
    """Eight tables, two networks; all splits of a table train together and are one cell."""

    name = "uci"
    title = "UCI benchmark"
    notes = (
        "Eight regression tables of the UCI repository with the standard splits of Hernandez-Lobato and Gal; a network "
        "of one hidden layer of 50 units and one of two of 64; all numbers are in original units, means over splits "
        "(which take the place of seeds).",
        "Methods with a held-out set hold out a fifth of the rows to train on, and epochs and hyper-parameters are "
        "chosen by its negative log-likelihood; those of recalibrated rows by that after one factor. Rows “nll_all”, "
        "ensemble and out-of-fold train on all rows; epochs of the last two are chosen by networks trained "
        "without each of five folds, on that fold. Nothing is chosen by the test rows.",
    )
    presets = PRESETS
    columns = (
        RMSE,
        LOG_LIKELIHOOD,
        replace(CRPS, digits=4),
        ECE_Z,
        ECE_Q,
        replace(
            COVERAGE,
            name="coverage_68",
            title="in 68 %",
            description="share of targets in the central interval of 68 %",
        ),
        COVERAGE,
        replace(
            COVERAGE,
            name="coverage_95",
            title="in 95 %",
            description="share of targets in the central interval of 95 %",
        ),
        replace(WIDTH, digits=4, ranked=False),  # a narrow interval that does not cover is no better
        replace(TRAIN_S, digits=4, ranked=False),
    )
    problem = UCIProblem
    error = "se"
    usual = (
        "deterministic",
        "nll",
        "temperature",
        "isotonic",
        "conformal",
        "fcal_kl",
        "fcal_wass",
        "ensemble_3",
        "ensemble",
        "oob_auto",
        "oof_nll",
    )
    rows = (
        "deterministic",
        "nll",
        "nll_all",
        "calibration_loss",
        "beta_nll",
        "mmd",
        "pce_kde",
        "temperature",
        "isotonic",
        "gp_beta",
        "conformal",
        "fcal_kl",
        "fcal_wass",
        "ensemble_3",
        "ensemble",
        "oob_auto",
        "oob_auto_5",
        "oob_temperature",
        "oob_conformal",
        "oob_nll",
        "oof_temperature",
        "oof_nll",
        "oof_fcal",
        "oof_conformal",
        "cv_plus_absolute",
    )
    rows_of_1x50 = (
        "nll",
        "nll_all",
        "temperature",
        "ensemble_3",
        "ensemble",
        "oob_auto",
        "oob_auto_5",
        "oob_temperature",
        "oob_conformal",
        "oob_nll",
        "oof_temperature",
        "oof_nll",
        "oof_fcal",
    )
    changes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "deterministic": {"plain": "mse", "candidates": ({"name": "mse"},), "monitor": "mse"},
        "nll": {"candidates": ({"name": "nll"},)},
        "fcal_kl": _fcal("kl"),
        "fcal_wass": _fcal("wasserstein"),
        "oof_fcal": {"scales": {"name": "fcal", "divergence": "kl", "df": _DF}, "batch": 0},
    }

    def problems(self, settings: Settings, store: Store, data: str | None) -> list[Problem]:
        """Every table with every network.

        Raises:
            ValueError: A table is missing or malformed, or without ``data`` the store has no cells.
        """
        folder = None if data is None else str(uci_folder(data))
        if folder is None:
            digests = _known_digests(store)
        else:
            digests = {dataset: fingerprint(folder, dataset) for dataset in settings.datasets}
        return [
            UCIProblem(
                trainings.fit_config(settings, dataset, network, digest=digests[dataset]), settings, store, folder
            )
            for network in settings.networks
            for dataset in settings.datasets
            if dataset in digests
        ]

    def problem_of(self, config: Mapping[str, Any], store: Store, data: str | None) -> UCIProblem:
        """The problem of a row's address."""
        folder = None if data is None else str(uci_folder(data))
        return UCIProblem(config["fit"], Settings(**config.get("settings", {})), store, folder)

    def train(self, kind: str, config: Mapping[str, Any], store: Store, data: str | None) -> dict[str, Any]:
        """Train the networks that the rows of a table share."""
        assert data is not None
        folder = str(uci_folder(data))
        if kind == bagging.BAGS:
            splits = splits_of(folder, config["dataset"], config["splits"], Settings().folds, config["seed"])
            return bagging.fit_bags(config, splits, store)
        assert kind == trainings.FIT
        return trainings.fit(config, folder, store)

    def rows_of(self, problem: Problem, methods: Sequence[str]) -> list[str]:
        """All methods for the larger network, fewer for the smaller one.

        Example:
            >>> problem = UCIProblem({"dataset": "yacht", "network": "1x50"}, Settings(), Store("cells"))
            >>> UCI.rows_of(problem, ["temperature", "isotonic", "oof_nll"])
            ['temperature', 'oof_nll']
        """
        if problem.labels["network"] != "1x50":
            return list(methods)
        return [name for name in methods if name in self.rows_of_1x50 or name not in self.rows]

    def table(self, settings: Settings, problems: Sequence[Problem], results: Results) -> Table:
        """The table of one UCI table and network; a cell holds all splits."""
        labels = problems[0].labels
        cells = {name: repetitions[0] for name, repetitions in results.items()}
        done = [cell for cell in cells.values() if "columns" in cell]
        splits = max((len(cell["columns"]["rmse"]) for cell in done), default=0)
        pooled: Mapping[str, Any] = next((cell["pooled"] for cell in done if "pooled" in cell), {})
        n_test = pooled["n"] // splits if pooled else 0
        bins, df = grid_of(n_test)
        return Table(
            labels=labels,
            seeds=splits,
            bins=bins,
            df=df,
            n_test=n_test,
            columns=COLUMNS,
            rows={name: _row(cell, splits) for name, cell in cells.items()},
            floors=_floors(n_test, bins, df) if n_test else {},
            details={
                "splits": splits,
                "folds": settings.folds,
                "pooled": _pooled_grid(pooled),
                "published": published_numbers(labels["dataset"]),
                "paired": _paired(cells),
            },
        )

    def table_title(self, table: Table) -> str:
        """Names of the table and the network."""
        return f"{table.labels['dataset']}, network {table.labels['network']}"

    def describe(self, settings: Settings, tables: Sequence[Table], preset: str) -> list[str]:
        """A warning for the smallest preset."""
        del settings, tables
        return [_TINY] if preset == "tiny" else []

    def beside(self, table: Table) -> list[list[str]]:
        """Published figures."""
        published = {
            name: f"{figure['mean']:.2f}" + ("" if figure["se"] is None else f" ± {figure['se']:.2f}")
            for name, figure in table.details["published"].items()
        }
        return [["*published, MC dropout*", *(published.get(column.name, "") for column in self.columns)]]

    def sections(self, table: Table) -> list[tuple[str, str]]:
        """Paired differences and pooled residuals."""
        grid, sections = table.details["pooled"], []
        if table.details["paired"]:
            sections.append(("Log-likelihood against temperature scaling, split by split:", _paired_lines(table)))
        if grid:
            sentence = f"Residuals of all splits together, n = {grid['n']:,}, S = {grid['bins']}, K = {grid['df']}:"
            sections.append((sentence, _pooled_lines(table)))
        return sections


UCI = UCITask()


def _known_digests(store: Store) -> dict[str, str]:
    """Fingerprints of the tables that a store has cells of, so that publishing needs no data."""
    fits = [
        record.config if record.kind == trainings.FIT else record.config["problem"]["fit"]
        for record in store.records()
        if record.kind == trainings.FIT or (record.kind == f"{UCITask.name}-row" and "problem" in record.config)
    ]
    if not fits:
        raise ValueError(f"expected finished cells of the UCI benchmark, got none in {store.folder}")
    return {fit["dataset"]: fit["digest"] for fit in fits}


def published_numbers(dataset: str) -> dict[str, dict[str, float | None]]:
    """Figures of MC dropout, by column.

    Example:
        >>> published_numbers("yacht")["ll"]
        {'mean': -1.25, 'se': 0.01}
    """
    text = resources.files("fcal.benchmarks.uci").joinpath("published.json").read_text(encoding="utf-8")
    return {
        column: dict(zip(("mean", "se"), pair, strict=True))
        for column, pair in json.loads(text)["tables"].get(dataset, {}).items()
    }


def _row(cell: Result, splits: int) -> Row:
    if "columns" not in cell:
        cell = {**cell, "columns": {name: [None] * splits for name in COLUMNS}}
    return row_of([cell], COLUMNS, se=True, **{name: cell[name] for name in _ROW_DETAILS if name in cell})


def _floors(count: int, bins: int, df: int) -> dict[str, dict[str, float | None]]:
    """Scores of calibrated models on the same number of independent rows."""
    of_ece = {"ece_z": floors(count, bins, 1).ece, "ece_q": floors(count, bins, df).ece}
    return {name: rounded({"expected": floor.expected, "q95": floor.q95}, DIGITS) for name, floor in of_ece.items()}


def _pooled_grid(pooled: Mapping[str, Any]) -> dict[str, Any]:
    """Number of residuals of all splits together, bins and sums, and the scores of calibrated models.

    Splits share rows, so residuals are not quite independent and the floors are a little too low.
    """
    if not pooled:
        return {}
    grid = {name: pooled[name] for name in ("n", "bins", "df")}
    return {**grid, "floors": _floors(grid["n"], grid["bins"], grid["df"])}


def _paired(cells: Mapping[str, Result]) -> dict[str, Any]:
    """Log-likelihood minus that of temperature scaling, split by split."""
    values = {name: cell["columns"]["ll"] for name, cell in cells.items() if "columns" in cell}
    known = {name: column for name, column in values.items() if None not in column}
    baseline = known.pop(BASELINE, None)
    if baseline is None:
        return {}
    pairs = {}
    for name, column in known.items():
        differences = [a - b for a, b in zip(column, baseline, strict=True)]
        above = sum(difference >= 0 for difference in differences)
        pairs[f"{name} - {BASELINE}"] = {**asdict(Spread.of(differences, se=True)), "above": above, "ll": differences}
    return pairs


def _paired_lines(table: Table) -> str:
    column = replace(LOG_LIKELIHOOD, digits=3)
    lines = [
        [
            name,
            spread_text(column, {statistic: pair[statistic] for statistic in ("mean", "sd", "se")}, "se"),
            f"{pair['above']} of {len(pair['ll'])}",
        ]
        for name, pair in table.details["paired"].items()
    ]
    return lines_of(["", "difference, mean ± standard error", "splits where it is no worse"], lines)


def _pooled_lines(table: Table) -> str:
    rows = {name: row.details["pooled"] for name, row in table.rows.items() if "pooled" in row.details}
    floors = {name: floor["expected"] for name, floor in table.details["pooled"]["floors"].items()}
    lines = [
        [name, *(column.text(numbers[column.name]) for column in _POOLED)]
        for name, numbers in {**rows, "*calibrated model*": floors}.items()
    ]
    return lines_of(["", *(column.heading for column in _POOLED)], lines)
