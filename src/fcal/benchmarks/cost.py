"""What rows cost: rows times epochs of all trainings, relative to one training on all rows."""

import itertools
from collections.abc import Mapping
from typing import Any

from fcal.benchmarks.method_kinds import Method
from fcal.benchmarks.methods import method_of
from fcal.benchmarks.table import Column
from fcal.benchmarks.task import Result, Results
from fcal.benchmarks.training_cells import Budget

COST = Column(
    name="cost",
    title="cost",
    description="rows times epochs of all trainings, choices included, relative to one training on all rows",
    ranked=False,
)


def with_cost(
    budget: Budget,
    results: Results,
    rows: tuple[int, int],
    changes: Mapping[str, Mapping[str, Any]] | None = None,
) -> Results:
    """Every row with its cost, seed by seed.

    Args:
        budget: How long networks train.
        results: Results of the rows' cells, one per seed.
        rows: Numbers of rows to train on and of rows that methods with a held-out set hold out.
        changes: Options of methods that the task sets otherwise.
    """
    chosen = [result.get("epochs", {}).get("base") for result in results.get("nll", ())]
    return {
        row: [
            _costed(method_of(row, changes), budget, rows, result, epochs)
            for result, epochs in itertools.zip_longest(repetitions, chosen[: len(repetitions)])
        ]
        for row, repetitions in results.items()
    }


def _costed(method: Method, budget: Budget, rows: tuple[int, int], result: Result, epochs: int | None) -> Result:
    """A result with its cost; ``epochs`` are those of the network that chooses for ensembles."""
    if "columns" not in result:
        return result
    cost = method.relative_cost(budget, rows, {"member_epochs": epochs, **result})
    return {**result, "columns": {**result["columns"], "cost": [None if cost is None else round(cost, 4)]}}
