"""Pictures of test frames with what a row predicts for every pixel, from the stored weights of a run."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from fcal._checks import check_positions
from fcal._datasets import get_batch
from fcal.benchmarks.depth.frames import Source
from fcal.benchmarks.depth.problem import DepthProblem
from fcal.benchmarks.depth.settings import Settings
from fcal.benchmarks.depth.task import DEPTH
from fcal.benchmarks.methods import method_of
from fcal.benchmarks.trainings import Datasets
from fcal.data.depth_views import colours
from fcal.plots import PredictedDepth, depth_gallery
from fcal.sweeps import Cell, Store
from fcal.sweeps.store import CellFunction

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def gallery(
    settings: Settings,
    store: Store,
    rows: Sequence[str],
    *,
    frames: int | Sequence[int] = 3,
    seed: int = 0,
    data: str | None = None,
) -> "Figure":
    """Test frames with the predictions of rows, one column for every frame and row.

    Nothing is trained: the weights must be in the store.

    Args:
        settings: Of the benchmark that was run.
        store: Its cells and weights.
        rows: Methods that predict distributions.
        frames: Numbers of test frames, or how many of them, evenly spaced.
        seed: Seed of the frames and weights.
        data: Folder of the data, for real frames.

    Raises:
        ValueError: A row is unknown, is not trained yet or predicts no distribution, or there is no such frame.
    """
    if not rows:
        raise ValueError("expected `rows` with at least one, got none")
    columns = [predicted_frames(settings, store, row, frames=frames, seed=seed, data=data) for row in rows]
    return depth_gallery([frame for of_frame in zip(*columns, strict=True) for frame in of_frame])


def predicted_frames(
    settings: Settings,
    store: Store,
    row: str,
    *,
    frames: int | Sequence[int] = 3,
    seed: int = 0,
    data: str | None = None,
) -> list[PredictedDepth]:
    """Test frames with the prediction of a row for every pixel; see :func:`gallery`."""
    world = DEPTH.world_of(settings, data)
    problem = _Pictured(world, world.data(seed), _Finished(store.folder, published=store.published), Source(data))
    problem.frames = check_positions("frames", frames, len(problem.test_frames))
    method = problem.resolved(method_of(row, DEPTH.changes))
    prediction = method.predict(problem)
    if not prediction.dists:
        raise ValueError(f"expected `rows` that predict distributions, got {row!r}")
    return _columns(problem, prediction.dists[0], method.title)


def _columns(problem: "_Pictured", pred: Distribution, title: str) -> list[PredictedDepth]:
    batch = get_batch(problem.test_frames, problem.frames)
    shape = batch["target"].shape
    images = colours(batch["input"]).permute(0, 2, 3, 1).numpy()
    depth, sigma = (values.reshape(shape).numpy().astype(np.float64) for values in (pred.mean, pred.stddev))
    targets = batch["target"].numpy().astype(np.float64)
    titles = [f"test frame {number}, {title}" for number in problem.frames]
    return [
        PredictedDepth(image=image, depth=metres, sigma=spread, target=target, title=title)
        for image, metres, spread, target, title in zip(images, depth, sigma, targets, titles, strict=True)
    ]


class _Finished(Store):
    """A store that is only read: a training that it lacks is an error."""

    def compute(self, cell: Cell, function: CellFunction) -> Any:
        """The stored result of a cell."""
        del function
        if not self.is_finished(cell):
            raise ValueError(f"expected {self.folder} with the finished training {cell.name}, got none")
        return self.get(cell.kind, cell.config)


class _Pictured(DepthProblem):
    """A problem whose test rows are all pixels of a few test frames; its trainings are those of the benchmark."""

    frames: Sequence[int] = ()

    @property
    def test_frames(self) -> Any:
        """All test frames."""
        return super().datasets.test

    @property
    def datasets(self) -> Datasets:
        """The rows of the benchmark, with these frames to test on."""
        frames = _EveryPixel(self.test_frames, self.frames)
        return super().datasets._replace(test=frames, timed=frames)

    def scored(self, pred: Distribution | Tensor) -> dict[str, Any]:
        """Nothing: pictures show no scores."""
        del pred
        return {"columns": {}}


class _EveryPixel(torch.utils.data.Dataset[Mapping[str, Tensor]]):
    """Frames in which every pixel counts as measured, so that it is predicted."""

    def __init__(self, frames: Any, numbers: Sequence[int]) -> None:
        self._frames = frames
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitems__(self, indices: Sequence[int]) -> Mapping[str, Tensor]:
        """A stacked batch of items."""
        batch = get_batch(self._frames, [self._numbers[index] for index in indices])
        return {**batch, "target": batch["target"].nan_to_num()}
