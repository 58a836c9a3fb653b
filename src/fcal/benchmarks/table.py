"""Tables of a benchmark: columns, rows and their numbers, typed, to and from JSON."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

from fcal.plots.styles import ColumnStyle

DONE, FAILED, CRASHED, MISSING = "done", "failed", "crashed", "missing"  # missing: not computed yet
_ROW_FIELDS = ("seeds", "finished", "status", "reason")
_MISSING = "-"


@dataclass(frozen=True, kw_only=True)
class Column(ColumnStyle):
    """A column of a table: how it is presented, and its name in the JSON document.

    Attributes:
        name: Its key in the JSON document.
        percent: Whether the factor of 100 turns a fraction into a percentage; the heading has a % in place of it.
        digits: Significant digits in printed tables.
        printed: Whether it is shown in a terminal.
    """

    name: str
    percent: bool = False
    digits: int = 3
    printed: bool = True

    @property
    def heading(self) -> str:
        """The title, and the factor that values are multiplied by for display.

        Example:
            >>> Column(name="ece_q", title="ECE(q)", factor=100).heading
            'ECE(q) x100'
            >>> Column(name="map", title="mAP", factor=100, percent=True).heading
            'mAP, %'
        """
        if self.percent:
            return self.title if "%" in self.title else f"{self.title}, %"
        return self.title if self.factor == 1 else f"{self.title} x{self.factor:g}"

    def text(self, value: float | None, digits: int | None = None) -> str:
        """A value, formatted for display.

        Example:
            >>> column = Column(name="ece_q", title="ECE(q)", factor=100)
            >>> column.text(0.12345), column.text(None)
            ('12.3', '-')
        """
        return _MISSING if value is None else f"{value * self.factor:.{digits or self.digits}g}"


@dataclass(frozen=True)
class Spread:
    """Mean and spread of several repetitions.

    Attributes:
        mean: Their mean; None if there are none.
        sd: Their standard deviation; None for fewer than two.
        se: Standard error of the mean, in tables that show it; None for fewer than two.
    """

    mean: float | None = None
    sd: float | None = None
    se: float | None = None

    @classmethod
    def of(cls, values: Sequence[float | None], *, se: bool = False) -> "Spread":
        """The spread of the defined values.

        Args:
            values: Values of the repetitions; None where undefined.
            se: Whether the standard error of the mean is computed too.

        Example:
            >>> Spread.of([1.0, 3.0, None], se=True)
            Spread(mean=2.0, sd=1.4142135623730951, se=1.0)
        """
        known = [value for value in values if value is not None]
        sd = stdev(known) if len(known) > 1 else None
        error = sd / math.sqrt(len(known)) if se and sd is not None else None
        return cls(mean=fmean(known) if known else None, sd=sd, se=error)

    def as_dict(self) -> dict[str, float | None]:
        """Mean and sd, and the standard error where it is known.

        Example:
            >>> Spread.of([1.0]).as_dict()
            {'mean': 1.0, 'sd': None}
        """
        return {"mean": self.mean, "sd": self.sd} | ({} if self.se is None else {"se": self.se})


@dataclass(frozen=True, kw_only=True)
class Row:
    """One method's numbers.

    Attributes:
        columns: Spread over repetitions, by column.
        seeds: The value of every repetition, by column; None where undefined.
        finished: How many repetitions are finished.
        status: ``"done"``, ``"failed"`` to train in some repetition, or ``"crashed"`` while computing it.
        reason: Reason of the failure; empty if it is done.
        details: Further results that a task shows, as JSON.
    """

    columns: Mapping[str, Spread]
    seeds: Mapping[str, Sequence[float | None]]
    finished: int
    status: str = DONE
    reason: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The row as a JSON document."""
        failure = {} if self.status == DONE else {"status": self.status, "reason": self.reason}
        spreads = {name: spread.as_dict() for name, spread in self.columns.items()}
        seeds = {name: list(values) for name, values in self.seeds.items()}
        return {**spreads, "seeds": seeds, "finished": self.finished, **self.details, **failure}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> "Row":
        """The row of a document from :meth:`as_dict`."""
        columns = {name: Spread(**document[name]) for name in document["seeds"]}
        known = {name: document[name] for name in _ROW_FIELDS if name in document}
        details = {name: value for name, value in document.items() if name not in (*columns, *_ROW_FIELDS)}
        return cls(columns=columns, details=details, **known)


@dataclass(frozen=True, kw_only=True)
class Table:
    """All methods on one data set.

    Attributes:
        labels: Labels that identify it among the tables of its task, such as noise and regime.
        seeds: Number of repetitions: seeds, splits or folds.
        bins: Number S of bins of calibration errors.
        df: Number K of squared residuals in a sum q.
        n_test: Number of scalar test targets.
        columns: Names of the columns.
        rows: By name of the method.
        floors: Scores of a calibrated model on the same number of test rows: ``expected`` and ``q95`` by column.
        details: Further results that a task shows, as JSON.
    """

    labels: Mapping[str, str]
    seeds: int
    bins: int
    df: int
    n_test: int
    columns: tuple[str, ...]
    rows: Mapping[str, Row]
    floors: Mapping[str, Any] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The table as a JSON document, with labels and details at its top level."""
        fields = {name: getattr(self, name) for name in ("seeds", "bins", "df", "n_test", "floors")}
        rows = {name: row.as_dict() for name, row in self.rows.items()}
        document = {**self.labels, "labels": list(self.labels), **fields, "columns": list(self.columns), "rows": rows}
        return {**document, **self.details}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> "Table":
        """The table of a document from :meth:`as_dict`."""
        labels = {name: document[name] for name in document["labels"]}
        names = [field.name for field in dataclasses.fields(cls) if field.name not in ("labels", "details")]
        known = {name: document[name] for name in names}
        known["columns"] = tuple(known["columns"])
        known["rows"] = {name: Row.from_dict(row) for name, row in known["rows"].items()}
        details = {name: value for name, value in document.items() if name not in (*names, "labels", *labels)}
        return cls(labels=labels, details=details, **known)


def row_of(results: Sequence[Mapping[str, Any]], columns: Sequence[str], *, se: bool = False, **details: Any) -> Row:
    """The row of finished repetitions.

    Args:
        results: Results of cells: ``status``, and ``columns`` with a list of values each.
        columns: Names of the columns.
        se: Whether standard errors are computed too.
        details: Further results that a task shows.
    """
    values = {
        name: [value for result in results for value in result.get("columns", {}).get(name, [None])] for name in columns
    }
    known = [result for result in results if result["status"] != MISSING]
    failed = [result for result in known if result["status"] != DONE]
    status, reason = DONE, ""
    if failed:
        status = CRASHED if any(result["status"] == CRASHED for result in failed) else FAILED
        share = f"{len(failed)} of {len(known)} seeds: " if len(known) > 1 else ""
        reason = share + failed[0].get("reason", "unknown")
    return Row(
        columns={name: Spread.of(numbers, se=se) for name, numbers in values.items()},
        seeds=values,
        finished=sum(_repetitions(result) for result in known if result["status"] != CRASHED),
        status=status,
        reason=reason,
        details=details,
    )


def candidates_of(results: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> list[dict[str, Any]]:
    """Options of every candidate, in how many seeds it was chosen, and its test numbers, which chose nothing.

    Args:
        results: Results of cells that have ``candidates``.
        columns: Names of the columns to keep.
    """
    return [
        {
            "options": records[0]["options"],
            "chosen": sum(result.get("chosen") == index for result in results),
            "diverged": sum(record["status"] == "diverged" for record in records),
            "validation_nll": Spread.of([record.get("nll") for record in records]).as_dict(),
            **{
                name: Spread.of([(record.get("test") or {}).get(name) for record in records]).as_dict()
                for name in columns
            },
        }
        for index, records in enumerate(zip(*(result["candidates"] for result in results), strict=True))
    ]


def _repetitions(result: Mapping[str, Any]) -> int:
    """How many repetitions a cell holds: one, or all splits that train together."""
    return max((len(values) for values in result.get("columns", {}).values()), default=1)
