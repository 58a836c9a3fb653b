"""Costs of calibrated depth beside what a depth network costs anyway, one process, one thread.

The network is BTS with MobileNetV2 and both decoders, on images of 64 x 208 of which a quarter of the pixels have a
target.

Training steps (forward, backward, Adam) with a calibration loss: the baseline is SiLog written by hand, plus the mean
of sigma, the cheapest loss that trains both decoders. Without it autograd skips the backward pass of the uncertainty
decoder; the row without a bar shows what that pass costs.

Evaluation: calibration with clusters, calibration within images and depth errors of a batch of 8, streaming, and this
batch's share of the report on 697 images (Eigen's test set), beside the forward pass of the network.

Street world: a frame of a drive of 20 frames in random order, beside its share of a training step of batch 8.

Memory: peak of a streaming evaluation of 12 images of 352 x 1216, one by one, beside that of 3.
"""

import math
import statistics
import sys
from collections.abc import Sequence
from itertools import count

import torch
from measuring import Row, Step, extra_bytes, extra_bytes_in_fresh_process, main, rounds, timed
from rich.console import Console
from torch import Tensor, nn
from torch.distributions import Distribution

from fcal._datasets import Batch
from fcal.data.street import StreetConfig, StreetDepth
from fcal.metrics import Calibration, ClusterCalibration, DepthErrors
from fcal.models.depth import BTS
from fcal.training import ObjectiveConfig, objective
from fcal.training.objectives import Objective, Terms

BATCH, HEIGHT, WIDTH = 16, 64, 208
DENSITY = 0.25
REPEATS = 25
EVALUATED = 8  # images of a batch
TEST_IMAGES = 697
DRIVE = 20  # frames
FULL_SIZE = (352, 1216)
FEW_IMAGES, IMAGES_IN_TURN = 3, 12
LAM = 0.1
COMPOSED = {
    "SiLog + f-Cal (Wasserstein)": {"name": "fcal"},
    "SiLog + f-Cal (KL)": {"name": "fcal", "divergence": "kl"},
    "SiLog + f-Cal of 10 000 drawn pixels": {"name": "fcal", "pixels": 10_000},
    "SiLog + likelihood": {"name": "nll"},
}


def sparse_batch(images: int, size: tuple[int, int] = (HEIGHT, WIDTH), seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    target = 2 + 60 * torch.rand(images, *size, generator=generator)
    target[torch.rand(images, *size, generator=generator) > DENSITY] = math.nan
    pictures = torch.randn(images, 3, *size, generator=generator)
    return {"input": pictures.contiguous(memory_format=torch.channels_last), "target": target}


def silog_by_hand(model: nn.Module, batch: Batch) -> Terms:
    return {"silog": plain_silog(model(batch["input"]), batch["target"])}


def silog_and_sigma_by_hand(model: nn.Module, batch: Batch) -> Terms:
    pred = model(batch["input"])
    return {"silog": plain_silog(pred, batch["target"]), "sigma": 1e-3 * pred.stddev.mean()}


def plain_silog(pred: Distribution, target: Tensor) -> Tensor:
    known = ~target.isnan()
    gap = pred.mean[known].log() - target[known].log()
    return 10 * (gap.square().mean() - 0.85 * gap.mean().square()).sqrt()


def training(of: Objective, batch: Batch) -> Step:
    torch.manual_seed(0)
    network = BTS().to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-5, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        loss: Tensor = torch.stack(list(of(network, batch).values())).sum()
        loss.backward()
        optimizer.step()

    return lambda: timed(step)


class Evaluation:
    """The network in evaluation mode, and all streaming metrics of its predictions."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.network = BTS().to(memory_format=torch.channels_last).eval()
        self.images = 0
        self.errors, self.calibration = DepthErrors(), Calibration(clustered=True)
        self.within_images = ClusterCalibration(generator=torch.Generator().manual_seed(0))

    @torch.no_grad()
    def predict(self, batch: Batch) -> Distribution:
        pred: Distribution = self.network(batch["input"])
        return pred

    def add(self, pred: Distribution, target: Tensor) -> None:
        image = torch.arange(len(target)) + self.images
        self.errors.update(pred.mean, target)
        self.calibration.update(pred, target, cluster=image)
        self.within_images.update(pred, target, cluster=image)
        self.images += len(target)

    def report(self) -> list[object]:
        return [metric.compute() for metric in (self.errors, self.calibration, self.within_images)]


def plausible(pred: Distribution, target: Tensor) -> Tensor:
    """Targets at the same pixels as in ``target``, drawn from the prediction: residuals are those of a fair network."""
    drawn: Tensor = pred.sample().clamp(min=0.1)
    return drawn.where(~target.isnan(), math.nan)


def row(
    work: str,
    against: str,
    ours: Sequence[float],
    theirs: Sequence[float],
    *,
    largest: float | None = 1.05,
    pixels: int = BATCH * HEIGHT * WIDTH,
) -> Row:
    """A line on seconds that were measured in turns: the median of their quotients."""
    ratio = statistics.median(own / other for own, other in zip(ours, theirs, strict=True))
    return Row(
        work=work,
        count=pixels,
        against=against,
        ratio=ratio,
        unit="x as long",
        reach="none" if largest is None else f"<= {largest:.3g}x as long",
        met=largest is None or ratio <= largest,
        ours_ms=1e3 * statistics.median(ours),
        theirs_ms=1e3 * statistics.median(theirs),
    )


def training_rows(shrink: int) -> list[Row]:
    batch = sparse_batch(max(BATCH // shrink, 1))
    objectives: list[Objective] = [silog_by_hand, silog_and_sigma_by_hand]
    for options in COMPOSED.values():
        config = ObjectiveConfig(task="silog", form="additive", lam=LAM, **options)  # type: ignore[arg-type]
        objectives.append(objective(config))
    steps = [training(each, batch) for each in objectives]
    depth_alone, both, *ours = rounds(steps, max(REPEATS // shrink, 1))
    rows = [
        row(work, "SiLog and the mean of sigma", seconds, both) for work, seconds in zip(COMPOSED, ours, strict=True)
    ]
    decoder = row("training both decoders", "SiLog, which trains the depth decoder", both, depth_alone, largest=None)
    return [*rows, decoder]


def evaluation_row(shrink: int) -> Row:
    images, evaluation = max(EVALUATED // shrink, 2), Evaluation()
    batch = sparse_batch(images)
    pred = evaluation.predict(batch)
    target = plausible(pred, batch["target"])

    def added() -> float:
        pred = evaluation.predict(batch)  # caches are those of an evaluation, in which the metrics follow the network
        return timed(lambda: evaluation.add(pred, target))

    repeats = max(3 * REPEATS // shrink, 1)
    forward, metrics = rounds([lambda: timed(lambda: evaluation.predict(batch)), added], repeats)
    while evaluation.images < TEST_IMAGES // shrink:
        evaluation.add(pred, target)
    report = timed(evaluation.report) * images / max(TEST_IMAGES // shrink, images)
    return row(
        "evaluating depth and calibration",
        "the network's forward pass",
        [seconds + report for seconds in metrics],
        forward,
        largest=0.1,
        pixels=images * HEIGHT * WIDTH,
    )


def rendering_row(shrink: int) -> Row:
    frames, seeds = max(DRIVE // shrink, 1), count()

    def rendered() -> float:
        config = StreetConfig(frames=frames, frames_per_drive=frames, height=HEIGHT, width=WIDTH, seed=next(seeds))
        order = torch.randperm(frames, generator=torch.Generator().manual_seed(0))
        data = StreetDepth(config, kept=0)
        return timed(lambda: [data.__getitems__(batch.tolist()) for batch in order.split(EVALUATED)]) / frames

    images = max(EVALUATED // shrink, 1)
    trained = training(objective(ObjectiveConfig(name="nll", task="silog", form="additive")), sparse_batch(images))
    ours, whole_steps = rounds([rendered, trained], max(REPEATS // shrink, 1))
    share = [seconds / images for seconds in whole_steps]
    against = "its share of a training step of batch 8"
    return row("rendering a street frame", against, ours, share, largest=1 / 3, pixels=HEIGHT * WIDTH)


def memory_row(shrink: int) -> Row:
    height, width = (max(side // shrink, 64) for side in FULL_SIZE)
    few, many = (
        # Freed blocks of this size go back at once: what is measured is in use.
        extra_bytes_in_fresh_process(
            __file__, "--memory-of", str(images), str(height), str(width), MALLOC_MMAP_THRESHOLD_="262144"
        )
        for images in (FEW_IMAGES, IMAGES_IN_TURN)
    )
    return Row(
        work=f"evaluating {IMAGES_IN_TURN} images one by one, peak memory",
        count=IMAGES_IN_TURN * height * width,
        against=f"evaluating {FEW_IMAGES}",
        ratio=many / few,
        unit="x as much",
        reach="<= 1.05x as much",
        met=many / few <= 1.05,
    )


def memory_of(images: int, height: int, width: int) -> int:
    """Peak memory of a streaming evaluation, report included, beyond that of the network."""
    evaluation = Evaluation()

    def evaluate() -> None:
        for number in range(images):
            batch = sparse_batch(1, (height, width), seed=number)
            pred = evaluation.predict(batch)
            evaluation.add(pred, batch["target"])
            del batch, pred  # else the next image is made beside this one
        evaluation.errors.compute()
        evaluation.calibration.compute()

    return extra_bytes(evaluate)


def measure(shrink: int, console: Console) -> list[Row]:
    console.print("evaluation, rendering and memory")
    others = [evaluation_row(shrink), rendering_row(shrink), memory_row(shrink)]
    console.print("training steps")  # of six networks at once, whose objects Python's collector would visit before
    return [*training_rows(shrink), *others]


if __name__ == "__main__":
    sys.exit(main(__doc__, "depth", measure, memory_of))
