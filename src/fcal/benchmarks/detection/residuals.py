"""Boxes of a real detector and what was there: error bars learnt from the geometry and the score of a box alone."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Normal
from torch.utils.data import TensorDataset

from fcal._files import sha256_of
from fcal.benchmarks.detection.scoring import box_scores
from fcal.benchmarks.detection.settings import Settings
from fcal.benchmarks.network_problem import NetworkProblem
from fcal.benchmarks.trainings import Datasets, NetworkTrainings
from fcal.models import NormalHead, PointHead
from fcal.sweeps import Store

FILE = "car_matches.csv"
_HEADER = "split,frame,score,px1,py1,px2,py2,gx1,gy1,gx2,gy2,iou"
_OUT_OF_SAMPLE = "val"  # the half of the frames that the detector was not trained on
_FRAME = (1242.0, 375.0)  # pixels of a frame of KITTI
_EDGE = 2.0  # pixels from an edge of the frame at which a box may be cut off
_SHARES = (0.6, 0.8)  # frames to train on end at the first, those to choose by at the second
_SMALLEST = 1e-6


class Matches(NamedTuple):
    """Detected boxes and the objects they were matched to.

    Attributes:
        inputs: Score and corners ``x1, y1, x2, y2`` of the detected box in pixels. Shape ``(n, 5)``.
        residuals: Corners of the object minus those of the box, in pixels. Shape ``(n, 4)``.
        frame: Number of the frame of each. Shape ``(n,)``.
    """

    inputs: Tensor
    residuals: Tensor
    frame: Tensor


@lru_cache(maxsize=2)
def read_matches(path: str) -> Matches:
    """The matches of frames that the detector was not trained on.

    Raises:
        ValueError: The file is missing, or no table of matches.
    """
    try:
        with Path(path).open(encoding="utf-8") as file:
            header = file.readline().strip()
            if header != _HEADER:
                raise ValueError(f"expected {path} with the header {_HEADER}, got {header[:80]!r}")
            lines = [line for line in file if line.startswith(f"{_OUT_OF_SAMPLE},")]
        columns = np.loadtxt(lines, delimiter=",", usecols=range(1, 11), ndmin=2)
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"expected {path} a file of matched boxes, got: {error}") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    values = torch.from_numpy(columns)
    residuals = (values[:, 6:] - values[:, 2:6]).float()
    return Matches(values[:, 1:6].float(), residuals, values[:, 0].long())


def split_of_frames(frame: Tensor, seed: int) -> list[Tensor]:
    """Rows to train on, to choose by and to test on, as masks; rows of a frame stay together.

    Example:
        >>> masks = split_of_frames(torch.arange(10).repeat_interleave(2), seed=0)
        >>> [int(mask.sum()) for mask in masks], int(torch.stack(masks).sum(0).max())
        ([12, 4, 4], 1)
    """
    frames, number = frame.unique(return_inverse=True)
    place = torch.randperm(len(frames), generator=torch.Generator().manual_seed(seed))[number] / len(frames)
    train, validation = _SHARES
    return [place < train, (place >= train) & (place < validation), place >= validation]


class CornerNetwork(nn.Module):
    """Corrections of the corners of a box and their standard deviations, in pixels, from its geometry and score.

    Both are predicted relative to the width and height of the box, as errors of large boxes are larger.

    Args:
        hidden: Units of each of two layers.
        deterministic: Predict the corrections alone.

    Example:
        >>> CornerNetwork()(torch.tensor([[0.9, 10.0, 10.0, 50.0, 30.0]])).stddev.shape
        torch.Size([1, 4])
    """

    def __init__(self, hidden: int = 64, *, deterministic: bool = False) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU())
        self.head = PointHead(hidden, 4) if deterministic else NormalHead(hidden, 4, sigma=0.1)

    def forward(self, inputs: Tensor) -> Normal | Tensor:
        """Predict the residuals. Shape ``(N, 5)`` to a batch shape of ``(N, 4)``."""
        score, corners = inputs[:, :1].clamp(_SMALLEST, 1 - _SMALLEST), inputs[:, 1:]
        sides = (corners[:, 2:] - corners[:, :2]).clamp(min=1.0)
        frame = corners.new_tensor(_FRAME)
        gaps = torch.cat([corners[:, :2], frame - corners[:, 2:]], 1)  # to the edges of the frame
        features = [torch.logit(score) / 4, sides.log() - math.log(50.0), (corners / frame.repeat(2))[:, 1:]]
        relative = self.head(self.body(torch.cat([*features, (gaps <= _EDGE).to(corners)], 1)))
        scale = sides.repeat(1, 2)
        if isinstance(relative, Tensor):
            return relative * scale
        return Normal(relative.mean * scale, relative.stddev * scale, validate_args=False)


@dataclass(frozen=True)
class ResidualTrainings(NetworkTrainings):
    """Networks of corner errors on the matches of a real detector.

    Args:
        root: Folder of the data; None where nothing is computed.
    """

    root: str | None = field(default=None)

    task = "detection-residuals"
    version = 1
    predicted_at_once = 10_000
    held_out_at_once = 10_000

    @property
    def path(self) -> str:
        """The file of matches, in the folder of the data or below it."""
        known = [] if self.root is None else sorted(Path(self.root).glob(f"**/{FILE}"))
        if not known:
            raise ValueError(f"expected `--data` a folder with {FILE} in it or below, got {self.root or 'none'}")
        return str(known[0])

    def digest(self) -> str:
        """Checksum of the file, which is part of every address."""
        return sha256_of(Path(self.path))[:16]

    def matches(self) -> Matches:
        """All matches."""
        return read_matches(self.path)

    def datasets(self, data: Mapping[str, Any]) -> Datasets:
        """Matches split by frame; frames are left out together."""
        matches = self.matches()
        masks = split_of_frames(matches.frame, data["seed"])
        train, validation, test = (TensorDataset(matches.inputs[mask], matches.residuals[mask]) for mask in masks)
        groups = torch.cat([matches.frame[mask] for mask in masks[:2]]).tolist()
        return Datasets(train=train, validation=validation, test=test, groups=groups)

    def network(self, options: Mapping[str, Any]) -> CornerNetwork:
        """The network of these options."""
        return CornerNetwork(**options)

    def name_of(self, data: Mapping[str, Any]) -> str:
        """Its seed."""
        return f"residuals {data['seed']}"


class ResidualProblem(NetworkProblem):
    """The matches of one seed, which splits the frames.

    Args:
        settings: Network and budget.
        data: Address of the matches: the checksum of their file, and the seed.
        store: Where finished trainings are kept.
        root: Folder of the data; None where nothing is computed.
    """

    source = ResidualTrainings()
    timed_repeats = 1
    of_pictures = ("curves", "history")

    def __init__(self, settings: Settings, data: Mapping[str, Any], store: Store, root: str | None) -> None:
        self.source = ResidualTrainings(root)  # type: ignore[misc]
        super().__init__(settings, data, {"hidden": settings.hidden}, store)
        self.labels = {"set": settings.set}

    def scored(self, pred: Distribution | Tensor) -> dict[str, Any]:
        """Numbers of a prediction for the test boxes."""
        matches = self.source.matches()
        masks = split_of_frames(matches.frame, self.cells.seed)
        scores = box_scores(pred, matches.residuals[masks[2]], matches.frame[masks[2]], bins=self.bins, df=self.df)
        counts = dict(zip(("train", "validation", "test"), (int(mask.sum()) for mask in masks), strict=True))
        return {**scores, "boxes": counts}
