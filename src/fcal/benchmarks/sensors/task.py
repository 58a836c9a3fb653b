"""The sensor benchmark: learn the noise of real sensors as a function of the state, and compare with what is known."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from fcal.benchmarks.markdown import lines_of
from fcal.benchmarks.problem import Problem
from fcal.benchmarks.scoring import COVERAGE, CRPS, ECE_Q, ECE_Z, RMSE
from fcal.benchmarks.sensors import trainings
from fcal.benchmarks.sensors.problem import FACTS, SensorsProblem
from fcal.benchmarks.sensors.readings import checksum, readings_of
from fcal.benchmarks.sensors.settings import PRESETS, STATES, TABLES, TITLES, SensorTable, Settings
from fcal.benchmarks.sensors.spreads import ErrorSpread
from fcal.benchmarks.table import DONE, Column, Row, Spread, Table, row_of
from fcal.benchmarks.task import Result, Results, Task
from fcal.sweeps import Cell, Store

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STATED = "stated"
_ROW_DETAILS = ("verdict", "conclusive", "verdict_reason", "scale", "shift", "covered", "floors")
_BANDED = (ECE_Z, ECE_Q)
_MISSING = "-"
_PRINTED = 2  # sections, in a terminal


class SensorsTask(Task[Settings]):
    """A robot's laser, range and bearing to landmarks, and GNSS pseudoranges, each with the true value beside it."""

    name = "sensors"
    title = "Sensors whose noise is known"
    notes = (
        "A robot's laser, range and bearing to landmarks, and GNSS pseudoranges, each with the true value beside it. "
        "Small networks learn the distribution of the error as a function of the state, from some stretches of time, "
        "and are tested on others.",
        "Stretches are 20 seconds long (GNSS: 10). Clusters of the verdicts are tracks: one landmark or satellite, "
        "seen without a break, within one stretch. Columns are of all test rows together, ± over folds.",
    )
    presets = PRESETS
    columns = (
        RMSE,
        Column(name="ll", title="LL", description="mean log-likelihood", lower_is_better=False, digits=4),
        CRPS,
        ECE_Z,
        ECE_Q,
        COVERAGE,
        Column(
            name="z2", title="mean z²", description="mean squared residual; 1 is calibrated", ranked=False, digits=4
        ),
    )
    problem = SensorsProblem
    version = trainings.VERSION
    rows = ("stated", "nll", "temperature", "oob_auto", "oof_temperature", "oof_nll", "oof_fcal")
    changes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "oof_fcal": {"scales": {"name": "fcal", "divergence": "kl", "lam": 0.5}, "batch": 0}
    }

    def problems(self, settings: Settings, store: Store, data: str | None = None) -> list[Problem]:
        """Every table. Files are read and checked now, before any training."""
        finished = _finished_checksums(store) if data is None else {}
        problems: list[Problem] = []
        for name in settings.tables:
            sensor = TABLES[name].sensor
            digest = finished[sensor] if sensor in finished else checksum(sensor, data)
            problem = SensorsProblem(TABLES[name], settings, store, checksum=digest, data=data, name=name)
            if data is not None:
                readings_of(data, sensor, settings.rows, digest)
            problems.append(problem)
        return problems

    def problem_of(self, config: Mapping[str, Any], store: Store, data: str | None = None) -> SensorsProblem:
        """The problem of an address."""
        table, settings = SensorTable(**_tuples(config["table"])), Settings(**config["settings"])
        return SensorsProblem(table, settings, store, checksum=config["data"], data=data)

    def train(self, kind: str, config: Mapping[str, Any], store: Store, data: str | None = None) -> dict[str, Any]:
        """Train the networks of a fold, or compute the facts of a table."""
        if kind == FACTS:
            return self.problem_of(config, store, data).facts()
        fold = config if kind == trainings.FOLD else config["fold"]
        return trainings.train(kind, config, store, self.problem_of(fold, store, data).fold(fold["fold"]))

    def facts(self, problem: Problem) -> Cell:
        """Facts of a table's data, which depend on no method."""
        assert isinstance(problem, SensorsProblem)
        return problem.facts_cell()

    def table(self, settings: Settings, problems: Sequence[Problem], results: Results) -> Table:
        """The table of one sensor and state."""
        (problem,) = problems
        assert isinstance(problem, SensorsProblem)
        definition, cell = problem.table, problem.facts_cell()
        facts = problem.store.get(cell.kind, cell.config)
        return Table(
            labels=problem.labels,
            seeds=settings.folds,
            bins=settings.bins,
            df=settings.df,
            n_test=0 if facts is None else facts["n_test"],
            columns=tuple(column.name for column in self.columns),
            rows={row: _row(result) for row, (result,) in results.items()},
            details={
                "sensor": definition.sensor,
                "state": definition.state,
                "inputs": list(definition.inputs),
                "corrects": definition.corrects,
                "robust": definition.robust,
                "folds": settings.folds,
                **({} if facts is None else _details(definition, facts, results)),
            },
        )

    def table_title(self, table: Table) -> str:
        """Sensor and state."""
        sensor, state = table.details["sensor"], table.details["state"]
        return f"{TITLES[sensor]}, given {STATES[state]}"

    def caption(self, table: Table) -> str:
        """Size of the test data and what networks learn."""
        details = table.details
        if "known" not in details:
            return super().caption(table)
        learnt = "a correction of the known model and the scale" if details["corrects"] else "the scale"
        return (
            f"{table.n_test:,} readings in {details['clusters']:,} tracks and {details['stretches']} stretches of "
            f"time, {details['folds']} folds of stretches; networks learn {learnt} of its errors. "
            f"RMSE and CRPS in {details['unit']}; S = {table.bins}, K = {table.df}."
        )

    def sections(self, table: Table) -> list[tuple[str, str]]:
        """Verdicts, learnt and known standard deviations, how much of them is noise, and the family of the noise."""
        sentence = (
            "Verdicts (what 95 % of calibrated models stay below, given the clusters, and the scale of z with its 95 % "
            "interval):"
        )
        sections = [(sentence, _verdict_lines(table))]
        if "known" not in table.details:
            return sections
        sentence = (
            "Standard deviations of errors about the known model, in brackets their ratio to those that were measured "
            "before, or here:"
        )
        sections.append((sentence, _known_lines(table)))
        if table.details["corrects"]:
            sections.append(("How much of these is noise about the learnt correction:", _noise_lines(table)))
        return [*sections, (_family_sentence(table), _family_lines(table))]

    def printed_sections(self, table: Table) -> list[tuple[str, str]]:
        """Verdicts, standard deviations, and the sentence about the family."""
        sections = self.sections(table)
        sentences = [(sentence, "") for sentence, _ in sections[_PRINTED:][-1:]]
        return [*sections[:_PRINTED], *sentences]

    def pictures(self, tables: Sequence[Table]) -> "Mapping[str, Figure]":
        """Standard deviations along the state."""
        from fcal.benchmarks.sensors.picture import draw  # matplotlib takes a second to import

        known = [table for table in tables if "curve" in table.details]
        return {"sensors": draw(known)} if known else {}


SENSORS = SensorsTask()


def _finished_checksums(store: Store) -> dict[str, str]:
    """For every sensor, the checksum of the data of most finished rows."""
    problems = [record.config["problem"] for record in store.records(f"{SensorsTask.name}-row")]
    counts = Counter((problem["table"]["sensor"], problem["data"]) for problem in problems)
    return dict(pair for pair, _ in reversed(counts.most_common()))  # the most common one is set last


def _tuples(config: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a table, with lists converted back to tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in config.items()}


def _row(result: Result) -> Row:
    """Columns of all test rows together, and their standard deviation over folds."""
    columns = [column.name for column in SensorsTask.columns]
    row = row_of([result], columns, **{name: result[name] for name in _ROW_DETAILS if name in result})
    overall = result.get("overall", {})
    return replace(row, columns={name: Spread(**overall.get(name, {})) for name in columns})


def _details(definition: SensorTable, facts: Result, results: Results) -> dict[str, Any]:
    """Learnt and known standard deviations, and the family of the noise."""
    learnt = {row: result["learnt"] for row, (result,) in results.items() if "learnt" in result}
    stated = facts["stated_sd"]
    sources = dict(zip(definition.edges, definition.source, strict=False))
    bins = []
    for number, facts_of_bin in enumerate(facts["bins"]):
        source = sources.get(facts_of_bin["low"])
        truth = facts_of_bin["measured_sd"] if source is None else source
        compared = {row: _compared(spreads["bins"][number], truth) for row, spreads in learnt.items()}
        bins.append({**facts_of_bin, "source_sd": source, "learnt": compared})
    return {
        **{name: facts[name] for name in ("unit", "clusters", "stretches")},
        "known": {
            "stated_sd": stated,
            "measured_sd": facts["measured_sd"],
            "learnt": {row: _compared(spreads["all"], stated) for row, spreads in learnt.items()},
            "bins": bins,
        },
        "curve": {
            "axis": definition.axis,
            **facts["curve"],
            "learnt": {row: spreads["curve"] for row, spreads in learnt.items() if row != _STATED},
        },
        "family": facts["family"],
    }


def _compared(spread: Mapping[str, Any], truth: float) -> dict[str, Any]:
    """A predicted spread, and its ratio to a known one."""
    sd = ErrorSpread(**spread).sd
    return {"sd": sd, **spread, "ratio": sd / truth, "noise_ratio": spread["noise"] / truth}


def _verdict_lines(table: Table) -> str:
    lines = []
    for name, row in table.rows.items():
        details = row.details
        if row.status != DONE or "verdict" not in details:
            continue
        bands = [column.text(details["floors"][column.name]["q95"]) for column in _BANDED]
        scale = "{value:.3f} ({low:.2f}-{high:.2f})".format(**details["scale"])
        lines.append([name, *bands, scale, details["verdict"] + ("" if details["conclusive"] else "?")])
    return lines_of(["", *(f"{column.heading} below" for column in _BANDED), "scale of z", "verdict"], lines)


def _known_lines(table: Table) -> str:
    known, unit = table.details["known"], table.details["unit"]
    bins = known["bins"]
    headings = ["", f"all, {unit}", "ratio to the stated sd", *(f"{_bin(table, each)}, {unit}" for each in bins)]
    sources = [_MISSING if each["source_sd"] is None else _number(each["source_sd"]) for each in bins]
    ratio = f"{known['measured_sd'] / known['stated_sd']:.3f}"
    lines = [
        ["*stated; bins as measured before*", _number(known["stated_sd"]), "", *sources],
        ["*measured here*", _number(known["measured_sd"]), ratio, *(_number(each["measured_sd"]) for each in bins)],
    ]
    for name, learnt in known["learnt"].items():
        cells = [f"{_number(each['learnt'][name]['sd'])} ({each['learnt'][name]['ratio']:.3f})" for each in bins]
        lines.append([name, _number(learnt["sd"]), f"{learnt['ratio']:.3f}", *cells])
    return lines_of(headings, lines)


def _noise_lines(table: Table) -> str:
    known = table.details["known"]
    headings = ["", "sd", "of it noise", "noise / stated", *(f"noise, {_bin(table, each)}" for each in known["bins"])]
    lines = []
    for name, learnt in known["learnt"].items():
        noise = [_number(each["learnt"][name]["noise"]) for each in known["bins"]]
        totals = [_number(learnt["total"]), _number(learnt["noise"]), f"{learnt['noise_ratio']:.3f}"]
        lines.append([name, *totals, *noise])
    return lines_of(headings, lines)


def _family_sentence(table: Table) -> str:
    family = table.details["family"]
    chosen = ", ".join(f"{name} in {count}" for name, count in Counter(family["chosen"]).items())
    return (
        f"Family of the noise, with readings of a track as one: {family['verdict']}. With those of a stretch as one: "
        f"{family['by_stretches']['verdict']}. Networks predict: {chosen} of the folds."
    )


def _family_lines(table: Table) -> str:
    """Families ranked by held-out errors, and the log-likelihood of networks of each."""
    family = table.details["family"]
    headings = ["", "log-likelihood of held-out errors", "behind the best", "shape", "LL of networks of the family"]
    lines = []
    for candidate in family["ranking"]:
        behind = f"{candidate['behind']:.4f} ± {candidate['standard_error']:.4f}"
        shape = "" if candidate["shape"] is None else f"{candidate['shape']:.3g}"
        trained = family["log_likelihood"].get(candidate["family"])
        own = "" if trained is None else f"{trained:.4f}"
        lines.append([candidate["family"], f"{candidate['log_likelihood']:.4f}", behind, shape, own])
    return lines_of(headings, lines)


def _bin(table: Table, bounds: Mapping[str, Any]) -> str:
    unit = "dBHz" if table.details["curve"]["axis"] == "strength" else "m"
    return f"{bounds['low']:g}-{bounds['high']:g} {unit}"


def _number(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1 else f"{value:.4g}"
