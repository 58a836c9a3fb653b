"""The detection benchmark: boxes of objects, with the error bars of their corners."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from fcal.benchmarks.detection import tables
from fcal.benchmarks.detection.residuals import ResidualProblem, ResidualTrainings
from fcal.benchmarks.detection.settings import PRESETS, SETS, Settings
from fcal.benchmarks.problem import Problem
from fcal.benchmarks.table import Table
from fcal.benchmarks.task import Results, Task
from fcal.sweeps import Store


class DetectionTask(Task[Settings]):
    """Boxes of objects in images; the paper's third and fourth experiments."""

    name = "detection"
    title = "Detection benchmark"
    notes = (
        "Detection: predict the four corner coordinates of the box of an object, each with its uncertainty.",
        "Boxes of an image are not independent: bands of ECE are of calibrated models with the same dependence, by "
        "resampling whole images. Hyper-parameters and epochs are chosen by the negative log-likelihood of validation "
        "images; nothing is chosen by the test images.",
    )
    presets = PRESETS
    columns = tables.COLUMNS
    problem = ResidualProblem
    rows = (
        "oob_auto",
        "deterministic",
        "nll",
        "calibration_loss",
        "temperature",
        "isotonic",
        "gp_beta",
        "conformal",
        "fcal_kl",
        "fcal_wass",
        "ensemble_3",
        "ensemble",
    )
    changes: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    def problems(self, settings: Settings, store: Store, data: str | None = None) -> list[Problem]:
        """Every seed."""
        digests = _known_digests(store) if data is None else [ResidualTrainings(data).digest()]
        addresses = [{"digest": digest, "seed": seed} for digest in digests for seed in range(settings.seeds)]
        return [ResidualProblem(settings, address, store, data) for address in addresses]

    def check(self, settings: Settings, data: str | None) -> None:
        """Refuse a missing folder, or a file that is no table of matches."""
        del settings
        ResidualTrainings(data).matches()

    def problem_of(self, config: Mapping[str, Any], store: Store, data: str | None = None) -> ResidualProblem:
        """The problem of an address."""
        return ResidualProblem(Settings(**config["settings"]), config["data"], store, data)

    def train(self, kind: str, config: Mapping[str, Any], store: Store, data: str | None = None) -> dict[str, Any]:
        """Train networks that rows share."""
        return ResidualTrainings(data).train(kind, config, store)

    def table(self, settings: Settings, problems: Sequence[Problem], results: Results) -> Table:
        """The table of one set."""
        return tables.detection_table(settings, problems[0].labels, results, self.changes)

    def table_title(self, table: Table) -> str:
        """The set."""
        return SETS[table.labels["set"]]

    def caption(self, table: Table) -> str:
        """Bins, sums, numbers of boxes and of seeds."""
        boxes = table.details["boxes"]
        counts = f"{boxes['train']:,} boxes to train on, {boxes['validation']:,} to choose by, " if boxes else ""
        return f"{super().caption(table)}: {counts}{boxes.get('test', 0):,} to test; {table.seeds} seed(s)"

    def sections(self, table: Table) -> list[tuple[str, str]]:
        """Calibration by corner."""
        text = tables.corner_section(table)
        return [("By corner: scale of the residuals, 1 is right (ECE(z) x100):", text)] if text else []


def _known_digests(store: Store) -> list[str]:
    """Checksums of the files that finished rows were computed from."""
    addresses = [record.config["problem"]["data"] for record in store.records() if record.kind == "detection-row"]
    return sorted({address["digest"] for address in addresses if "digest" in address})


DETECTION = DetectionTask()
