"""Costs of the metrics of probabilistic detection, one process, one thread.

Detection quality (PDQ) of an image of 375 x 1242 with 10 truths and 10 detections, beside an evaluation in NumPy over
the whole image for each pair (``whole_image_pdq.py``); values agree to 1e-6, or the script ends with an error. Corners
with correlated x and y, which need the bivariate normal law, have a row of their own beside the same.

Memory: peak of the quality of 1000 detections beside 100 truths, in heat maps of the whole image in float64.

Average precision by contours (mMAP) of 5000 images of 3 classes with 7 truths and 20 detections on average, beside
COCO's average precision by pycocotools: its defaults, and only what mMAP has too (all areas, 100 detections). The time
to read files and build pycocotools' index is left out.
"""

import contextlib
import io
import statistics
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from measuring import Row, Step, extra_bytes, extra_bytes_in_fresh_process, faster, main, rounds, timed
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from rich.console import Console
from whole_image_pdq import pdq

from fcal.metrics.detection import Detections, Truths, detection_quality, mahalanobis_average_precision

SIZE = (375, 1242)
BOXES = 10
MANY_DETECTIONS, MANY_TRUTHS = 1000, 100
IMAGES, CLASSES = 5000, 3
REPEATS = 5
SCORE = 0.75
CORRELATION = 0.4


def scene(
    detections: int, truths: int, *, correlation: float = 0.0, size: tuple[int, int] = SIZE, seed: int = 0
) -> tuple[Detections, Truths]:
    """An image whose detections are truths with Gaussian errors of 1 to 6 pixels, each its predicted error bar."""
    generator = torch.Generator().manual_seed(seed)
    height, width = size

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    start = uniform(truths, 2) * torch.tensor([0.8 * width, 0.65 * height])
    sides = 20 + uniform(truths, 2) * torch.tensor([0.15 * width, 0.25 * height])
    boxes, sigmas = torch.cat([start, start + sides], 1), 1 + 5 * uniform(detections, 4)
    noise = torch.randn(detections, 4, generator=generator, dtype=torch.float64)
    correlations = torch.eye(4, dtype=torch.float64)
    for first, second in ((0, 1), (1, 0), (2, 3), (3, 2)):
        correlations[first, second] = correlation
    found = Detections(
        boxes=boxes[torch.arange(detections) % truths] + sigmas * noise,
        covariances=sigmas[:, :, None] * correlations * sigmas[:, None, :],
        scores=torch.full((detections,), SCORE, dtype=torch.float64),
        labels=torch.ones(detections, dtype=torch.int64),
    )
    return found, Truths(boxes=boxes, labels=torch.ones(truths, dtype=torch.int64), image_size=size)


def quality_rows(shrink: int) -> list[Row]:
    height, width = (max(side // shrink, 64) for side in SIZE)
    found, there = scene(BOXES, BOXES, size=(height, width))
    correlated, _ = scene(BOXES, BOXES, correlation=CORRELATION, size=(height, width))
    arrays = (found.boxes.numpy(), found.sigmas.numpy(), np.full((BOXES, BOXES), SCORE), there.boxes.numpy())
    ours, theirs = detection_quality([found], [there]).pdq, pdq(*arrays, (height, width))
    if ours is None or not abs(ours - theirs) <= 1e-6:
        raise ArithmeticError(f"expected the same quality to 1e-6, got {ours} and {theirs}")
    steps: list[Step] = [
        lambda: timed(lambda: [detection_quality([found], [there]) for _ in range(10)]) / 10,
        lambda: timed(lambda: detection_quality([correlated], [there])),
        lambda: timed(lambda: pdq(*arrays, (height, width))),
    ]
    independent, dependent, whole = (statistics.median(each) for each in rounds(steps, max(REPEATS // shrink, 1)))
    against, pixels = "NumPy over the whole image per pair", height * width
    return [
        faster("PDQ of 10 x 10 boxes", pixels, against, (independent, whole), 30),
        faster("PDQ of 10 x 10 boxes, correlated corners", pixels, against, (dependent, whole), 30),
    ]


def memory_row(shrink: int) -> Row:
    sizes = [max(n // shrink, 1) for n in (MANY_DETECTIONS, MANY_TRUTHS)]
    used = extra_bytes_in_fresh_process(__file__, "--memory-of", *map(str, sizes), MALLOC_MMAP_THRESHOLD_="262144")
    ratio = used / (8 * SIZE[0] * SIZE[1])
    return Row(
        work=f"PDQ of {sizes[0]} x {sizes[1]} boxes, peak memory",
        count=sizes[0] * sizes[1],
        against="a heat map of the image in float64",
        ratio=ratio,
        unit="x as much",
        reach="<= 30x as much",
        met=ratio <= 30,
    )


def memory_of(detections: int, truths: int) -> int:
    """Peak memory of the quality of one image, beyond that of the process."""
    found, there = scene(2, 2)
    detection_quality([found], [there])  # imports what it needs
    found, there = scene(detections, truths)
    return extra_bytes(lambda: detection_quality([found], [there]))


def data_set(images: int) -> tuple[list[Detections], list[Truths]]:
    """Images with Poisson numbers of truths and detections, two thirds of these near truths."""
    draw = np.random.default_rng(0)
    found, there = [], []
    for seed in range(images):
        m, n = max(int(draw.poisson(7)), 1), max(int(draw.poisson(20)), 1)
        detections, truths = scene(n, m, seed=seed)
        labels = torch.from_numpy(draw.integers(1, CLASSES + 1, m))
        near = torch.from_numpy(draw.random(n) < 2 / 3)
        guesses = torch.from_numpy(draw.integers(1, CLASSES + 1, n))
        shifts = torch.from_numpy(draw.uniform(-300, 300, (n, 1))) * ~near[:, None]
        found.append(
            Detections(
                boxes=detections.boxes + shifts,
                covariances=detections.covariances,
                scores=torch.from_numpy(draw.random(n)),
                labels=torch.where(near, labels[torch.arange(n) % m], guesses),
            )
        )
        there.append(Truths(boxes=truths.boxes, labels=labels, image_size=SIZE))
    return found, there


def coco_evaluation(found: Sequence[Detections], there: Sequence[Truths]) -> tuple[Any, Any]:
    """Truths and detections as pycocotools holds them."""
    truths, detections = COCO(), []
    truths.dataset = {
        "images": [{"id": image} for image in range(len(there))],
        "categories": [{"id": label} for label in range(1, CLASSES + 1)],
        "annotations": [],
    }
    for image, (detected, real) in enumerate(zip(found, there, strict=True)):
        for box, label in zip(real.boxes.tolist(), real.labels.tolist(), strict=True):
            x, y, width, height = box[0], box[1], box[2] - box[0], box[3] - box[1]
            truths.dataset["annotations"].append(
                {
                    "id": len(truths.dataset["annotations"]) + 1,
                    "image_id": image,
                    "category_id": label,
                    "bbox": [x, y, width, height],
                    "area": width * height,
                    "iscrowd": 0,
                }
            )
        for box, label, score in zip(
            *(x.tolist() for x in (detected.boxes, detected.labels, detected.scores)), strict=True
        ):
            size = [box[2] - box[0], box[3] - box[1]]
            detections.append({"image_id": image, "category_id": label, "bbox": [*box[:2], *size], "score": score})
    truths.createIndex()
    return truths, truths.loadRes(detections)


def evaluated(truths: Any, detections: Any, *, everything: bool) -> None:
    evaluation = COCOeval(truths, detections, "bbox")
    if not everything:
        evaluation.params.areaRng, evaluation.params.areaRngLbl = evaluation.params.areaRng[:1], ["all"]
        evaluation.params.maxDets = [100]
    evaluation.evaluate()
    evaluation.accumulate()


def precision_rows(shrink: int) -> list[Row]:
    images = max(IMAGES // shrink, 2)
    found, there = data_set(images)
    with contextlib.redirect_stdout(io.StringIO()):
        truths, detections = coco_evaluation(found, there)
        steps: list[Step] = [
            lambda: timed(lambda: mahalanobis_average_precision(found, there)),
            lambda: timed(lambda: evaluated(truths, detections, everything=True)),
            lambda: timed(lambda: evaluated(truths, detections, everything=False)),
        ]
        ours, whole, same = rounds(steps, 1)
    work, count = f"mMAP of {images} images", sum(map(len, found))
    return [
        slower(work, "pycocotools' mAP, all areas, 100 detections", ours, same, count),
        slower(work, "pycocotools' mAP, its defaults", ours, whole, count),
    ]


def slower(work: str, against: str, ours: Sequence[float], theirs: Sequence[float], count: int) -> Row:
    ratio = statistics.median(own / other for own, other in zip(ours, theirs, strict=True))
    return Row(
        work=work,
        count=count,
        against=against,
        ratio=ratio,
        unit="x as long",
        reach="<= 1.2x as long",
        met=ratio <= 1.2,
        ours_ms=1e3 * statistics.median(ours),
        theirs_ms=1e3 * statistics.median(theirs),
    )


def measure(shrink: int, console: Console) -> list[Row]:
    console.print("detection quality")
    rows = [*quality_rows(shrink), memory_row(shrink)]
    console.print("average precision")
    return [*rows, *precision_rows(shrink)]


if __name__ == "__main__":
    sys.exit(main(__doc__, "detection", measure, memory_of))
