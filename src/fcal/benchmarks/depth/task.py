"""The depth benchmark: the distance of every pixel, with its error bar."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from fcal.benchmarks.depth import tables
from fcal.benchmarks.depth.frames import Source
from fcal.benchmarks.depth.problem import DepthProblem, DepthTrainings
from fcal.benchmarks.depth.settings import KITTI, PRESETS, STREET, WORLDS, Settings
from fcal.benchmarks.methods import USUAL_ROWS
from fcal.benchmarks.problem import Problem
from fcal.benchmarks.table import Table
from fcal.benchmarks.task import Results, Task
from fcal.crossfitting import Bags
from fcal.sweeps import Store

_SILOG = {"name": "silog"}
_BAGS = Bags(members=4, leave_out=0.25)  # drives are few, however many frames they have


class DepthTask(Task[Settings]):
    """Depth of streets from one image; the paper's second experiment."""

    name = "depth"
    title = "Depth benchmark"
    notes = (
        "Depth: predict the distance of every pixel of an image, with its uncertainty, from sparse measurements of a "
        "lidar. On rendered streets the noise of every measurement is known, so there is an oracle.",
        "Networks are BTS with a second decoder for the uncertainty, trained by SiLog and a calibration term. Epochs "
        "and hyper-parameters are chosen by the negative log-likelihood of the validation frames, which are of other "
        "drives (the deterministic network by its accuracy); nothing is chosen by the test frames.",
        "Pixels of a frame are not independent: bands of ECE are of calibrated models with the same dependence, by "
        "resampling whole frames.",
    )
    presets = PRESETS
    columns = tables.COLUMNS
    problem = DepthProblem
    rows = (*USUAL_ROWS, "oob_heads")
    changes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "deterministic": {
            "plain": "silog",
            "candidates": tuple({**_SILOG, "repetition": repetition} for repetition in range(3)),
        },
        "oob_auto": {"bags": _BAGS},
        "oob_heads": {"bags": _BAGS},
        "calibration_loss": {
            "candidates": tuple(
                {"name": "calibration-loss", "lam": lam, "form": "additive", "on": "std"} for lam in (1.0, 0.1, 10.0)
            )
        },
        **{
            f"fcal_{word}": {
                "candidates": tuple(
                    {"name": "fcal", "lam": lam, "form": "additive", "divergence": divergence}
                    for lam in (0.02, 0.1, 0.005)
                )
            }
            for word, divergence in (("kl", "kl"), ("wass", "wasserstein"))
        },
    }

    def problems(self, settings: Settings, store: Store, data: str | None = None) -> list[Problem]:
        """Every seed."""
        settings = self.world_of(settings, data)
        return [DepthProblem(settings, settings.data(seed), store, Source(data)) for seed in range(settings.seeds)]

    def world_of(self, settings: Settings, data: str | None) -> Settings:
        """With a folder of data, frames of KITTI instead of rendered ones."""
        return replace(settings, world=KITTI) if data is not None and settings.world == STREET else settings

    def check(self, settings: Settings, data: str | None) -> None:
        """Refuse a missing folder, one without frames, or frames that cannot be read."""
        Source(data).check(self.world_of(settings, data).data(0))

    def problem_of(self, config: Mapping[str, Any], store: Store, data: str | None = None) -> DepthProblem:
        """The problem of an address."""
        return DepthProblem(Settings(**config["settings"]), config["data"], store, Source(data))

    def train(self, kind: str, config: Mapping[str, Any], store: Store, data: str | None = None) -> dict[str, Any]:
        """Train networks that rows share."""
        return DepthTrainings(Source(data)).train(kind, config, store)

    def rows_of(self, problem: Problem, methods: Sequence[str]) -> list[str]:
        """Every method; the oracle only where depth without noise is known."""
        has_truth = problem.labels["world"] == STREET
        return [name for name in methods if name != "oracle" or has_truth]

    def table(self, settings: Settings, problems: Sequence[Problem], results: Results) -> Table:
        """The table of one world."""
        return tables.depth_table(settings, problems[0].labels, results, self.changes)

    def table_title(self, table: Table) -> str:
        """The world."""
        return WORLDS[table.labels["world"]]

    def caption(self, table: Table) -> str:
        """Bins, sums, numbers of frames and of seeds."""
        frames = table.details["frames"]
        counts = f"{frames['train']:,} frames to train on, {frames['validation']:,} to choose by" if frames else ""
        return f"{super().caption(table)}: {counts}, {frames.get('test', 0):,} to test; {table.seeds} seed(s)"

    def describe(self, settings: Settings, tables: Sequence[Table], preset: str) -> list[str]:
        """Preset, world, frames and seeds, in a sentence."""
        frames = tables[0].details["frames"]
        subject = f"Preset {preset}" if preset else "This page"
        seeds = "one seed" if settings.seeds == 1 else f"{settings.seeds} seeds"
        return [
            f"{subject}: {self.table_title(tables[0])} at {settings.height} x {settings.width} pixels, "
            f"{frames.get('train', 0):,} frames to train on, {frames.get('validation', 0):,} to choose by, "
            f"{frames.get('test', 0):,} to test; {seeds}."
        ]

    def sections(self, table: Table) -> list[tuple[str, str]]:
        """The paper's numbers, and calibration by distance and by place in the image."""
        parts = [
            tables.paper_section(table),
            (
                "By predicted depth: scale of the residuals, 1 is right (ECE(z) x100):",
                tables.part_section(table, "by_distance"),
            ),
            ("By place in the image: the same:", tables.part_section(table, "by_row")),
            ("By drive: SiLog x100 / scale of the residuals:", tables.drive_section(table)),
        ]
        return [(sentence, text) for sentence, text in parts if text]


DEPTH = DepthTask()
