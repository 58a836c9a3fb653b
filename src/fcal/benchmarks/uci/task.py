"""The UCI benchmark: regression on eight tables with the standard splits, next to published figures."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from fcal.benchmarks.problem import Problem
from fcal.benchmarks.table import Table
from fcal.benchmarks.task import Results, Task
from fcal.benchmarks.uci import tables, trainings
from fcal.benchmarks.uci.problem import UCIProblem
from fcal.benchmarks.uci.settings import PRESETS, Settings
from fcal.benchmarks.uci.splits import fingerprint
from fcal.data.uci import uci_folder
from fcal.sweeps import Store

_DF = 50  # K of the losses: a batch has 256 rows, or all rows of a small table
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
    columns = tables.TABLE_COLUMNS
    problem = UCIProblem
    error = "se"
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
        "ensemble",
        "oof_temperature",
        "oof_nll",
        "oof_fcal",
        "oof_conformal",
        "cv_plus_absolute",
    )
    rows_of_1x50 = ("nll", "nll_all", "temperature", "ensemble", "oof_temperature", "oof_nll", "oof_fcal")
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
        assert kind == trainings.FIT
        assert data is not None
        return trainings.fit(config, str(uci_folder(data)), store)

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
        """The table of one UCI table and network."""
        return tables.uci_table(settings, problems[0].labels, results)

    def table_title(self, table: Table) -> str:
        """Names of the table and the network."""
        return f"{table.labels['dataset']}, network {table.labels['network']}"

    def describe(self, settings: Settings, tables: Sequence[Table], preset: str) -> list[str]:
        """A warning for the smallest preset."""
        del settings, tables
        return [_TINY] if preset == "tiny" else []

    def beside(self, table: Table) -> list[list[str]]:
        """Published figures."""
        return tables.published_lines(table)

    def sections(self, table: Table) -> list[tuple[str, str]]:
        """Paired differences and pooled residuals."""
        return tables.sections(table)


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
