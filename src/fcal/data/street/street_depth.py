"""The street world as a dataset of images with measured depth."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, SupportsIndex

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Normal
from torch.utils.data import Dataset

from fcal._checks import check_integer
from fcal._config import config_from
from fcal.data.street.frames import StreetConfig, depth_picture, drive_name

SPLITS = ("train", "validation", "test")
_SHARES = {"train": 3, "validation": 1, "test": 1}
# Mean and standard deviation of colours that torchvision's pretrained encoders expect.
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class _Kept:
    """What is kept of a frame: 15 bytes per pixel, 0.2 MB at 64 x 208."""

    image: Tensor
    measured: Tensor
    depth: Tensor
    sigma: Tensor


class StreetDepth(Dataset[Mapping[str, Tensor]]):
    """Images of streets with measured depth as target, rendered when they are needed.

    An item is a mapping with ``input`` (the image, normalised by ImageNet's mean and standard deviation, float32, shape
    ``(3, H, W)``) and ``target`` (measured depth in metres, NaN where there is none, float32, shape ``(H, W)``).
    ``__getitems__`` returns a stacked batch: ``DataLoader(data, batch_size=8, collate_fn=dict)``.

    Args:
        config: The street world; default: ``StreetConfig()``.
        split: ``"train"``, ``"validation"`` or ``"test"``: three fifths, a fifth and a fifth of the drives. None for
            all frames.
        kept: Frames that stay in memory once they are rendered, 15 bytes per pixel each: 160 MB for 800 frames of
            64 x 208. The oldest one is dropped first.

    Attributes:
        config: The street world.
        groups: Name of every frame's drive; frames of a drive show the same street.

    Example:
        >>> tiny = StreetDepth(StreetConfig(frames=10, frames_per_drive=2, height=16, width=52), "train")
        >>> len(tiny), tiny[0]["input"].shape, tiny[0]["target"].shape
        (6, torch.Size([3, 16, 52]), torch.Size([16, 52]))
        >>> tiny.groups[:3]
        ['2011_09_26_drive_0001_sync', '2011_09_26_drive_0001_sync', '2011_09_26_drive_0002_sync']
    """

    def __init__(self, config: StreetConfig | None = None, split: str | None = None, *, kept: int = 1000) -> None:
        if config is not None and not isinstance(config, StreetConfig):
            raise TypeError(f"expected `config` a StreetConfig, got {type(config).__name__}")
        self.config = StreetConfig() if config is None else config
        self.split = split
        self._start, self._stop = (0, self.config.frames) if split is None else frames_of(self.config, split)
        self._capacity = check_integer("kept", kept, at_least=0)
        self._frames: OrderedDict[int, _Kept] = OrderedDict()

    def __len__(self) -> int:
        return self._stop - self._start

    def __getitem__(self, index: int) -> Mapping[str, Tensor]:
        if isinstance(index, bool) or not isinstance(index, SupportsIndex):
            raise TypeError(f"expected `index` an int, got {type(index).__name__}")
        return {name: values[0] for name, values in self.__getitems__([index.__index__()]).items()}

    def __getitems__(self, indices: Sequence[int]) -> Mapping[str, Tensor]:
        """A stacked batch of items."""
        frames = [self._frame(int(index)) for index in indices]
        images = torch.stack([frame.image for frame in frames]).float().div_(255)
        mean, std = (torch.tensor(values).reshape(3, 1, 1) for values in (_MEAN, _STD))
        return {"input": images.sub_(mean).div_(std), "target": torch.stack([frame.measured for frame in frames])}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the configuration only: a worker renders its own frames."""
        return _unpickled, (self.config, self.split, self._capacity)

    @cached_property
    def groups(self) -> list[str]:
        """Name of every frame's drive."""
        return [drive_name(index // self.config.frames_per_drive) for index in range(self._start, self._stop)]

    def truth(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """True depth, infinite for the sky, and the sigma of the measured depth. Shapes ``(B, H, W)``."""
        frames = [self._frame(int(index)) for index in indices]
        return torch.stack([frame.depth for frame in frames]), torch.stack([frame.sigma for frame in frames])

    def law(self, indices: Sequence[int]) -> Normal:
        """Distribution that targets are drawn from, the best possible prediction. Batch shape ``(B, H, W)``.

        The sky, which is never measured, has a finite mean beyond the reach of the lidar.
        """
        depth, sigma = self.truth(indices)
        return Normal(depth.clamp(max=10 * self.config.lidar.reach), sigma)

    def _frame(self, index: int) -> _Kept:
        if not -len(self) <= index < len(self):
            raise IndexError(f"expected `index` within {len(self)} frames, got {index}")
        number = self._start + index % len(self)
        if number in self._frames:
            return self._frames[number]
        frame = depth_picture(self.config, number)
        arrays = (np.ascontiguousarray(frame.image.transpose(2, 0, 1)), frame.measured, frame.depth, frame.sigma)
        tensors = _Kept(*(torch.from_numpy(array) for array in arrays))
        if self._capacity:
            if len(self._frames) >= self._capacity:
                self._frames.popitem(last=False)
            self._frames[number] = tensors
        return tensors


def _unpickled(config: StreetConfig, split: str | None, kept: int) -> StreetDepth:
    return StreetDepth(config, split, kept=kept)


def frames_of(config: StreetConfig, split: str) -> tuple[int, int]:
    """First and last + 1 frame of a split, which consists of whole drives.

    Raises:
        ValueError: There is no such split, or there are too few drives for one of each.

    Example:
        >>> frames_of(StreetConfig(frames=100, frames_per_drive=10), "validation")
        (60, 80)
    """
    if split not in SPLITS:
        raise ValueError(f"expected `split` one of {', '.join(map(repr, SPLITS))}, got {split!r}")
    if config.drives < len(SPLITS):
        raise ValueError(
            f"expected `frames` of at least {len(SPLITS)} drives of {config.frames_per_drive} frames for the splits "
            f"{', '.join(SPLITS)}, got {config.frames}"
        )
    whole, ends = sum(_SHARES.values()), [0]
    for name in SPLITS:
        share = sum(_SHARES[other] for other in SPLITS[: SPLITS.index(name) + 1])
        left = len(SPLITS) - len(ends)  # splits behind this one, which get a drive each
        ends.append(min(max(config.drives * share // whole, ends[-1] + 1), config.drives - left))
    first, last = (min(end * config.frames_per_drive, config.frames) for end in ends[SPLITS.index(split) :][:2])
    return first, last


@dataclass(frozen=True)
class StreetSplits:
    """Training, validation and test frames of one street world, which have no drive in common.

    Args:
        config: The street world.

    Example:
        >>> len(StreetSplits(StreetConfig(frames=10, frames_per_drive=2)).test)
        2
    """

    config: StreetConfig

    @classmethod
    def from_options(cls, **options: Any) -> "StreetSplits":
        """Splits of a configuration given as keywords; misspelt ones are rejected."""
        return cls(config_from(options, StreetConfig, source="data.options"))

    @cached_property
    def train(self) -> StreetDepth:
        """Frames that the weights are fitted to."""
        return StreetDepth(self.config, "train")

    @cached_property
    def validation(self) -> StreetDepth:
        """Frames for choosing epochs, hyper-parameters and recalibrators."""
        return StreetDepth(self.config, "validation")

    @cached_property
    def test(self) -> StreetDepth:
        """Frames for the report only."""
        return StreetDepth(self.config, "test")
