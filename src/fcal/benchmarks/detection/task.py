"""The detection benchmark: boxes of objects, with the error bars of their corners."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from fcal.benchmarks.detection import detectors, tables
from fcal.benchmarks.detection.heads import DetectionProblem, HeadTrainings
from fcal.benchmarks.detection.images import ImageSource
from fcal.benchmarks.detection.residuals import ResidualProblem, ResidualTrainings
from fcal.benchmarks.detection.settings import (
    BCCD,
    CITYSCAPES,
    KITTI,
    MINI,
    PRESETS,
    RESIDUALS,
    SETS,
    STREET,
    Settings,
)
from fcal.benchmarks.problem import Problem
from fcal.benchmarks.table import Table
from fcal.benchmarks.task import Results, Task
from fcal.crossfitting import Bags
from fcal.data.detection import DetectionFrames
from fcal.sweeps import Store

_CLASSES = {STREET: 3, MINI: 3, KITTI: 3, BCCD: 3, CITYSCAPES: 8}  # of sets whose classes are always the same
_OF_RESIDUALS = ("gp_beta", "ensemble")  # rows that images do not have
_OF_IMAGES = ("oracle", "nll_base")
_BAGS = Bags(members=4, leave_out=0.25)  # drives are few, however many proposals they have


class DetectionTask(Task[Settings]):
    """Boxes of objects in images; the paper's third and fourth experiments."""

    name = "detection"
    title = "Detection benchmark"
    notes = (
        "Detection: predict the four corner coordinates of the box of an object, each with its uncertainty.",
        "Of images: a Faster R-CNN is trained once, first without error bars, then as a whole with the likelihood of "
        "its boxes. Rows are heads, the mean and the spread of boxes, on the features of its proposals; these features "
        "have seen the training images, which heads that leave out some of them cannot undo. Numbers of calibration "
        "are those of final detections that overlap with an object of their class by half.",
        "Boxes of an image are not independent: bands of ECE are of calibrated models with the same dependence, by "
        "resampling whole images. Hyper-parameters and epochs are chosen by the negative log-likelihood of validation "
        "images; nothing is chosen by the test images.",
    )
    presets = PRESETS
    columns = tables.COLUMNS
    problem = DetectionProblem
    rows = (
        "oracle",
        "oob_auto",
        "deterministic",
        "nll_base",
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
    changes: ClassVar[Mapping[str, Mapping[str, Any]]] = {"oob_auto": {"bags": _BAGS}}

    def problems(self, settings: Settings, store: Store, data: str | None = None) -> list[Problem]:
        """Every seed."""
        settings = self.set_of(settings, data)
        if settings.set == RESIDUALS:
            known = _known_digests(store) if data is None else []
            digests = known or [ResidualTrainings(data).digest()]
            addresses = [{"digest": digest, "seed": seed} for digest in digests for seed in range(settings.seeds)]
            return [ResidualProblem(settings, address, store, data) for address in addresses]
        source = ImageSource(data)
        return [self._of_images(settings, settings.data(seed), store, source) for seed in range(settings.seeds)]

    def _of_images(
        self, settings: Settings, data: Mapping[str, Any], store: Store, source: ImageSource
    ) -> DetectionProblem:
        name = data["images"]["set"]
        classes = _CLASSES[name] if name in _CLASSES else len(source.splits(data["images"]).train.classes)
        return DetectionProblem(settings, data, classes, store, source)

    def set_of(self, settings: Settings, data: str | None) -> Settings:
        """With a folder of data, KITTI's images instead of rendered ones, unless a format was given."""
        return replace(settings, set=KITTI) if data is not None and settings.set == STREET else settings

    def check(self, settings: Settings, data: str | None) -> None:
        """Refuse a missing folder, one without images or objects, or files that cannot be read."""
        settings = self.set_of(settings, data)
        if settings.set == RESIDUALS:
            ResidualTrainings(data).matches()
            return
        splits = ImageSource(data).splits(settings.images(0))
        for name in ("train", "validation", "test"):
            part = getattr(splits, name)
            part[0]
            if isinstance(part, DetectionFrames) and not part.objects:
                raise ValueError(
                    f"expected `--data` with objects in the labels of each part, got {data}: none in the {len(part)} "
                    f"images of {name}"
                )

    def problem_of(self, config: Mapping[str, Any], store: Store, data: str | None = None) -> Problem:
        """The problem of an address."""
        own = {name: value for name, value in config["settings"].items() if name not in ("features", "classes")}
        if "digest" in config["data"]:
            return ResidualProblem(Settings(set=RESIDUALS, **own), config["data"], store, data)
        return self._of_images(Settings(**own), config["data"], store, ImageSource(data))

    def train(self, kind: str, config: Mapping[str, Any], store: Store, data: str | None = None) -> dict[str, Any]:
        """Train networks that rows share."""
        if kind.startswith(ResidualTrainings.task):
            return ResidualTrainings(data).train(kind, config, store)
        shared = detectors.Detectors(ImageSource(data), str(store.folder))
        if kind in (detectors.KIND, detectors.FEATURES):
            return shared.train(kind, config, store)
        return HeadTrainings(shared).train(kind, config, store)

    def rows_of(self, problem: Problem, methods: Sequence[str]) -> list[str]:
        """Every method that the set has; the oracle only where boxes without noise are known."""
        name = problem.labels["set"]
        left_out = set(_OF_IMAGES if name == RESIDUALS else _OF_RESIDUALS)
        left_out |= set() if name == STREET else {"oracle"}
        return [method for method in methods if method not in left_out]

    def table(self, settings: Settings, problems: Sequence[Problem], results: Results) -> Table:
        """The table of one set."""
        return tables.detection_table(settings, problems[0].labels, results, self.changes)

    def table_title(self, table: Table) -> str:
        """The set."""
        return SETS[table.labels["set"]]

    def caption(self, table: Table) -> str:
        """Bins, sums, numbers of images, of boxes and of seeds."""
        counted = table.details["images"] or table.details["boxes"]
        what = "images" if table.details["images"] else "boxes"
        counts = ", ".join(
            f"{counted.get(name, 0):,} {words}"
            for name, words in (("train", f"{what} to train on"), ("validation", "to choose by"), ("test", "to test"))
        )
        return f"{super().caption(table)} corner coordinates, 4 of a box: {counts}; {table.seeds} seed(s)"

    def sections(self, table: Table) -> list[tuple[str, str]]:
        """Folds together, the paper's tables, consistency, KITTI's precision, and calibration by part."""
        parts = [
            (
                "Matched boxes of all folds together; in brackets the limits of the scale, and below what 95 % of "
                "calibrated models score (mAP and its like are means over folds, each of a few images):",
                tables.pooled_section(table),
            ),
            *tables.paper_sections(table),
            (
                "Average precision as KITTI defines it, in per cent (40 recall points; heights as in KITTI's images):",
                tables.kitti_section(table),
            ),
            ("Consistency: per cent of the objects inside each contour:", tables.consistency_section(table)),
            ("Calibration at all proposals of objects, before suppression:", tables.proposal_section(table)),
            (
                "By corner: scale of the residuals, 1 is right (ECE(z) x100):",
                tables.corner_section(table),
            ),
        ]
        return [(sentence, text) for sentence, text in parts if text]


def _known_digests(store: Store) -> list[str]:
    """Checksums of the files that finished rows were computed from."""
    addresses = [record.config["problem"]["data"] for record in store.records() if record.kind == "detection-row"]
    return sorted({address["digest"] for address in addresses if "digest" in address})


DETECTION = DetectionTask()
