"""The sensor benchmark: learn the noise of real sensors as a function of the state, and compare with what is known."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from fcal.benchmarks.problem import Problem
from fcal.benchmarks.sensors import tables, trainings
from fcal.benchmarks.sensors.problem import FACTS, SensorsProblem
from fcal.benchmarks.sensors.readings import checksum, readings_of
from fcal.benchmarks.sensors.settings import PRESETS, TABLES, SensorTable, Settings
from fcal.benchmarks.table import Table
from fcal.benchmarks.task import Results, Task
from fcal.sweeps import Cell, Store

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    columns = tables.TABLE_COLUMNS
    problem = SensorsProblem
    version = trainings.VERSION
    rows = ("stated", "nll", "temperature", "oof_temperature", "oof_nll", "oof_fcal")
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
        cell = problem.facts_cell()
        facts = problem.store.get(cell.kind, cell.config)
        return tables.sensors_table(settings, problem.name, problem.table, results, facts)

    def table_title(self, table: Table) -> str:
        """Sensor and state."""
        return tables.title(table)

    def caption(self, table: Table) -> str:
        """Size of the test data."""
        return tables.size_sentence(table) or super().caption(table)

    def sections(self, table: Table) -> list[tuple[str, str]]:
        """Verdicts, learnt and known standard deviations, how much of them is noise, and the family of the noise."""
        return tables.sections(table)

    def printed_sections(self, table: Table) -> list[tuple[str, str]]:
        """Verdicts, standard deviations, and the sentence about the family."""
        sections = tables.sections(table)
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
    counts: dict[str, Counter[str]] = {}
    for record in store.records(f"{SensorsTask.name}-row"):
        problem = record.config["problem"]
        counts.setdefault(problem["table"]["sensor"], Counter())[problem["data"]] += 1
    return {sensor: of_sensor.most_common(1)[0][0] for sensor, of_sensor in counts.items()}


def _tuples(config: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a table, with lists converted back to tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in config.items()}
