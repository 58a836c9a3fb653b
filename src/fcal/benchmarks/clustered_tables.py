"""Tables of benchmarks whose targets depend on each other within images, from results of ``clustered_scores``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fcal.benchmarks.cost import with_cost
from fcal.benchmarks.table import Row, Spread, Table, candidates_of, row_of
from fcal.benchmarks.task import Result, Results

_MISSING = "-"


@dataclass(frozen=True, kw_only=True)
class ClusteredTable:
    """What the tables of a task keep of the results of its rows.

    Args:
        columns: Names of the columns.
        counted: Entry of a result with the numbers of rows to train on, to choose by and to test on.
        bands: Calibration errors whose bands are kept, seed by seed.
        kept: Further entries of results that are kept, seed by seed.
        of_candidates: Columns of the candidates of a method.
    """

    columns: tuple[str, ...]
    counted: str
    bands: tuple[str, ...]
    kept: tuple[str, ...]
    of_candidates: tuple[str, ...]

    def of(
        self,
        settings: Any,
        labels: Mapping[str, str],
        results: Results,
        changes: Mapping[str, Mapping[str, Any]],
        **details: Any,
    ) -> Table:
        """The table of results.

        Args:
            settings: Of the benchmark.
            labels: Of the table.
            results: Results of the rows' cells, one per seed.
            changes: Options of methods that the task sets otherwise.
            **details: What else the table shows.
        """
        finished = [result for row in results.values() for result in row if self.counted in result]
        counts = dict(finished[0][self.counted]) if finished else {}
        if counts:
            results = with_cost(settings, results, (counts["train"], counts["validation"]), changes)
        return Table(
            labels=labels,
            seeds=settings.seeds,
            bins=settings.bins,
            df=settings.df,
            n_test=next((result["n"] for result in finished), 0),
            columns=self.columns,
            rows={name: self._row(repetitions) for name, repetitions in results.items()},
            floors=_floors(results),
            details={self.counted: counts, **details},
        )

    def _row(self, results: Sequence[Result]) -> Row:
        known = [result for result in results if "floors" in result]
        details: dict[str, Any] = {}
        if known:
            details["bands"] = {name: [result["floors"].get(name) for result in known] for name in self.bands}
            details |= {name: [result[name] for result in known] for name in self.kept if name in known[0]}
        with_candidates = [result for result in results if "candidates" in result]
        if with_candidates:
            details["candidates"] = candidates_of(with_candidates, self.of_candidates)
        return row_of(results, self.columns, **details)


def _floors(results: Results) -> dict[str, Any]:
    """Scores of a calibrated model whose targets depend on each other as those of the oracle, or the first row, do."""
    known = [result for row in ("oracle", *results) for result in results.get(row, ()) if "floors" in result]
    return dict(known[0]["floors"]) if known else {}


def scale_and_error(numbers: Sequence[Mapping[str, float]]) -> str:
    """Scale of residuals and ECE(z) x100 of a part, means over seeds.

    Example:
        >>> scale_and_error([{"scale": 1.0, "ece_z": 0.01}, {"scale": 1.2, "ece_z": 0.03}])
        '1.1 (2)'
    """
    scale, ece = (Spread.of([entry[value] for entry in numbers]).mean for value in ("scale", "ece_z"))
    return _MISSING if scale is None or ece is None else f"{scale:.3g} ({100 * ece:.3g})"
