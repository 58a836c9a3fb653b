"""Pictures of test images with the final detections of rows, from the stored weights of a run."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fcal._checks import check_positions
from fcal.benchmarks.detection.final_boxes import clipped, kept_rows
from fcal.benchmarks.detection.heads import DetectionProblem
from fcal.benchmarks.detection.settings import Settings
from fcal.benchmarks.detection.task import DETECTION
from fcal.benchmarks.methods import method_of
from fcal.metrics.detection import Truths
from fcal.plots import PredictedBoxes, box_gallery
from fcal.sweeps import Store

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEAST_SCORE = 0.5  # of detections that are drawn


def gallery(
    settings: Settings,
    store: Store,
    rows: Sequence[str],
    *,
    frames: int | Sequence[int] = 3,
    seed: int = 0,
    data: str | None = None,
) -> "Figure":
    """Test images with the detections of rows, one column for every row.

    Args:
        settings: Of the benchmark that was run.
        store: Its cells and weights.
        rows: Methods that predict distributions.
        frames: Numbers of test images, or how many of them, evenly spaced.
        seed: Seed of the heads.
        data: Folder of the data, for real images.

    Raises:
        ValueError: A row predicts no distribution, or there is no such image.
    """
    problem = DETECTION.problems(settings, store, data)[seed]
    if not isinstance(problem, DetectionProblem):
        raise ValueError(f"expected a set with images, got {settings.set!r}")
    columns = [drawn_images(problem, row, frames) for row in rows]
    return box_gallery([image for of_image in zip(*columns, strict=True) for image in of_image], columns=len(rows))


def drawn_images(problem: DetectionProblem, row: str, frames: int | Sequence[int]) -> list[PredictedBoxes]:
    """Test images with the detections of a row that have a high score."""
    method = problem.resolved(method_of(row, DETECTION.changes))
    prediction = method.predict(problem)
    if not prediction.dists:
        raise ValueError(f"expected `rows` that predict distributions, got {row!r}")
    law, features = prediction.dists[0], problem.source.features(problem.cells.data)
    address = problem.cells.data["images"]
    truths, test = problem.images.truths(address), problem.images.splits(address).test
    numbers = check_positions("frames", frames, len(test))
    kept, mean, sigma = kept_rows(law.mean, features, truths), law.mean, law.stddev
    labels = features["test.input"][:, -1].long()
    scores = features["test.label_probs"].gather(1, labels.unsqueeze(1)).squeeze(1)
    drawn = []
    for number in numbers:
        own = kept[number][scores[kept[number]] >= LEAST_SCORE]
        image = (test[number]["input"] * 255).round().byte().permute(1, 2, 0).numpy()
        boxes = clipped(mean[own], truths[number].image_size).double().numpy()
        drawn.append(
            PredictedBoxes(
                image=image,
                boxes=boxes,
                sigmas=sigma[own].double().numpy(),
                truths=_counted(truths[number]),
                title=f"test image {number}, {method.title}",
            )
        )
    return drawn


def _counted(truths: Truths) -> "np.ndarray[tuple[int, int], np.dtype[np.float64]]":
    counted: np.ndarray[tuple[int, int], np.dtype[np.float64]] = truths.boxes[~truths.is_ignored].double().numpy()
    return counted
