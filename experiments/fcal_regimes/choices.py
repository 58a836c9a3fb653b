"""Choices by validation images, differences paired over seeds, and the claims that they decide."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from paired import Difference, difference

from fcal.benchmarks.table import Spread
from fcal_regimes.points import LEVELS, Config, Options, Point, forms_of

COLUMNS = ("l1_gt", "nll", "crps", "ece_q", "ece_z", "z2")
VALIDATION = ("l1", "nll", "ece_q")
REFERENCES = ("nll", "nll_tuned", "nll_stopped", "nll_short", "nll_decay", "temperature")
ACCURACY_LOST = 1.02  # largest factor on the smooth L1 that counts as keeping accuracy


@dataclass(frozen=True)
class Scored:
    """Options of a point of one seed, and its result."""

    options: Options
    result: Mapping[str, Any]

    def on(self, images: str, column: str) -> float:
        """A number on ``"test"`` or ``"validation"`` images; infinite where it is undefined."""
        value = self.result[images][column]
        return math.inf if value is None else float(value)


Seeds = dict[int, Scored]  # a row of a table: its network of every seed that is finished


def _on_validation(column: str) -> Callable[[Scored], tuple[float, float]]:
    """Order by a column, and of equal values, such as an ECE(q) at its ceiling, by likelihood."""
    return lambda point: (point.on("validation", column), point.on("validation", "nll"))


def _smallest(column: str) -> Callable[[Sequence[Scored], Scored], Scored]:
    return lambda candidates, _: min(candidates, key=_on_validation(column))


def _calibrated_and_accurate(candidates: Sequence[Scored], start: Scored) -> Scored:
    """Smallest ECE(q) among candidates that keep the accuracy; the network that they start from if none does."""
    most = ACCURACY_LOST * start.on("validation", "l1")
    accurate = [point for point in candidates if point.on("validation", "l1") <= most]
    return min(accurate, key=_on_validation("ece_q"), default=start)


RULES: dict[str, Callable[[Sequence[Scored], Scored], Scored]] = {
    "nll": _smallest("nll"),
    "ece_q": _smallest("ece_q"),
    "ece_q_l1": _calibrated_and_accurate,
}


def paired(one: Seeds, two: Seeds, column: str, factor: float = 1.0) -> Difference:
    """Difference of a column on test images between a row and ``factor`` times another."""
    pairs = ((one[seed].on("test", column), two[seed].on("test", column)) for seed in sorted(one.keys() & two.keys()))
    return difference([a - factor * b for a, b in pairs])


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A column of f-Cal that should be below that of another row.

    Attributes:
        text: The claim.
        column: The column.
        against: The other row.
        factor: Factor on the other row.
        of_paper: Whether the paper makes it.
    """

    text: str
    column: str
    against: str
    factor: float = 1.0
    of_paper: bool = True


CLAIMS = (
    Claim(text="better calibrated than likelihood: ECE(q)", column="ece_q", against="nll"),
    Claim(text="... tuned for as many epochs", column="ece_q", against="nll_tuned"),
    Claim(text="accuracy is kept: L1(GT) below 1.02 times", column="l1_gt", against="nll", factor=ACCURACY_LOST),
    Claim(text="better calibrated than temperature scaling: ECE(q)", column="ece_q", against="temperature"),
    Claim(text="... in ECE(z)", column="ece_z", against="temperature"),
    Claim(text="ECE(q) below early stopping's", column="ece_q", against="nll_stopped", of_paper=False),
    Claim(text="NLL below early stopping's", column="nll", against="nll_stopped", of_paper=False),
    Claim(text="CRPS below early stopping's", column="crps", against="nll_stopped", of_paper=False),
    Claim(text="ECE(q) below weight decay's", column="ece_q", against="nll_decay", of_paper=False),
)


class Results:
    """Finished points of one noise and one level of overfitting.

    Args:
        config: Settings of the experiment.
        points: Points of this noise and level, and of this noise without a level, with their results.
    """

    def __init__(self, config: Config, points: Iterable[tuple[Point, Mapping[str, Any]]]) -> None:
        self.config = config
        self._points: dict[str, dict[int, list[Scored]]] = {}
        for point, result in points:
            if result["status"] == "done":
                seeds = self._points.setdefault(point.row, {})
                seeds.setdefault(point.seed, []).append(Scored(point.options, result))

    @property
    def forms(self) -> list[str]:
        """Rows of f-Cal, those of the paper first."""
        return [form for detached in (False, True) for form in forms_of(self.config, detached=detached)]

    def reference(self, row: str) -> Seeds:
        """A row without f-Cal; several candidates are chosen from by likelihood."""
        return {seed: _smallest("nll")(found, found[0]) for seed, found in self._points.get(row, {}).items()}

    def chosen(self, form: str, rule: str) -> Seeds:
        """A form of f-Cal, by one of ``RULES``."""
        start = self.reference("nll")
        candidates = self._points.get(form, {})
        return {seed: RULES[rule](found, start[seed]) for seed, found in candidates.items() if seed in start}

    def curves(self) -> list[dict[str, Any]]:
        """Every point: mean and spread over seeds of all columns."""
        return [
            {"row": row, "options": dict(options), **_summary(seeds)}
            for row, of_seeds in self._points.items()
            for options, seeds in _by_options(of_seeds)
        ]

    def rows(self) -> dict[str, Any]:
        """Rows of the table: references, and every form of f-Cal by every rule."""
        rows = {name: seeds for name in REFERENCES if (seeds := self.reference(name))}
        rows |= {f"{form}/{rule}": self.chosen(form, rule) for form in self.forms for rule in RULES}
        return {
            name: _summary(seeds) | {"chosen": {str(seed): dict(seeds[seed].options) for seed in sorted(seeds)}}
            for name, seeds in rows.items()
            if seeds
        }

    def differences(self) -> dict[str, Any]:
        """Every chosen row of f-Cal less every reference, in all columns."""
        return {
            f"{form}/{rule}": {
                row: {
                    column: paired(self.chosen(form, rule), self.reference(row), column).as_dict() for column in COLUMNS
                }
                for row in REFERENCES
            }
            for form in self.forms
            for rule in RULES
        }

    def claims(self) -> list[dict[str, Any]]:
        """Every claim by every rule, for every form of f-Cal."""
        return [
            {
                **asdict(claim),
                "rule": rule,
                "forms": {
                    form: paired(
                        self.chosen(form, rule), self.reference(claim.against), claim.column, claim.factor
                    ).as_dict()
                    for form in self.forms
                },
            }
            for claim in CLAIMS
            for rule in RULES
        ]

    def floors(self) -> dict[str, float]:
        """ECE that 95 % of calibrated models are below, mean over seeds."""
        results = [found[0].result for found in self._points.get("nll", {}).values()]
        return (
            {name: fmean(r["floors"][name]["q95"] for r in results) for name in ("ece_q", "ece_z")} if results else {}
        )

    def summary(self) -> dict[str, Any]:
        """All of it, for the document."""
        return {
            "points": self.curves(),
            "rows": self.rows(),
            "differences": self.differences(),
            "claims": self.claims(),
            "floors": self.floors(),
        }


def _by_options(of_seeds: Mapping[int, Sequence[Scored]]) -> list[tuple[Options, Seeds]]:
    groups: dict[tuple[tuple[str, Any], ...], Seeds] = {}
    for seed, found in of_seeds.items():
        for point in found:
            groups.setdefault(tuple(point.options.items()), {})[seed] = point
    return [(dict(options), seeds) for options, seeds in groups.items()]


def _summary(seeds: Seeds) -> dict[str, Any]:
    """Mean, spread and every seed's number of each column."""
    ordered = [seeds[seed] for seed in sorted(seeds)]

    def numbers(images: str, column: str) -> dict[str, Any]:
        values = [point.result[images][column] for point in ordered]
        return Spread.of([value for value in values if value is not None]).as_dict() | {"seeds": values}

    return {
        "count": len(ordered),
        "epochs": [point.result["epochs"] for point in ordered],
        "test": {column: numbers("test", column) for column in COLUMNS},
        "validation": {column: numbers("validation", column) for column in VALIDATION},
    }


def summaries(config: Config, results: Sequence[tuple[Point, Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """By noise and level."""
    return {
        noise: {
            level: Results(
                config,
                [(point, result) for point, result in results if point.noise == noise and point.level in (None, level)],
            ).summary()
            for level in LEVELS
        }
        for noise in config.noises
    }
