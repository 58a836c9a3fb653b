"""The street world as a dataset of images with boxes, whose labels have noise of known standard deviation."""

from collections import OrderedDict
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fcal._checks import check_flag, check_integer, check_number
from fcal._config import config_from
from fcal.data.bokeh import uniforms
from fcal.data.detection.detection_frames import DetectionDataset, Picture
from fcal.data.detection.kitti_object import CLASSES, NEIGHBOURS, difficulty
from fcal.data.street.frames import StreetConfig, StreetFrame, StreetObject, drive_name, street_frame
from fcal.data.street.lidar import SIGMA_STEP
from fcal.data.street.street_depth import SPLITS

_STREAM = 2  # of a seed's random numbers; the world itself has 0 and 1
_MOST_OBJECTS = 1 << 13  # of a drive
_FARTHEST_NORMAL = 4.0  # standard deviations at which noise is cut, so that no box is turned inside out
_FAR = 50.0  # metres
_STEP = 2.0**-20  # normal numbers are multiples of it, whatever the last digits of a machine's logarithm


@dataclass(frozen=True, kw_only=True)
class BoxNoise:
    r"""Noise of the edges of boxes: normal and independent, with a standard deviation in pixels that is known.

    .. math:: \sigma = \min(f + r \, s \, (1 + a_o o) (1 + a_t t) (1 + a_d d / 50), \; m \, s)

    for an edge across a side of s pixels (left and right across the width, top and bottom across the height) of an
    object of which a share o is occluded and a share t truncated, d metres away. Relative to its box, the label of an
    object that is farther away is thus less certain. Noise is cut at four standard deviations, which changes the
    standard deviation by less than 0.01 %.

    Args:
        floor: Standard deviation f of every edge in pixels.
        relative: Further share r of the side of a box.
        occlusion: Its increase :math:`a_o` for a hidden object.
        truncation: Its increase :math:`a_t` for an object outside of the image.
        distance: Its increase :math:`a_d` for an object at 50 m.
        most: Largest share m of the side.

    Example:
        >>> noise = BoxNoise(floor=0.5, relative=0.02, occlusion=2.0)
        >>> noise.sigmas(torch.tensor([[0.0, 0.0, 100.0, 50.0]]), *torch.tensor([[0.5], [0.0], [0.0]]))
        tensor([[4.5000, 2.5000, 4.5000, 2.5000]], dtype=torch.float64)
    """

    floor: float = 0.25
    relative: float = 0.025
    occlusion: float = 2.0
    truncation: float = 2.0
    distance: float = 0.5
    most: float = 0.12

    def __post_init__(self) -> None:
        check_number("floor", self.floor, low=0.0, high=100.0)
        for name in ("relative", "most"):
            check_number(name, getattr(self, name), low=1e-3, high=0.12)
        for name in ("occlusion", "truncation", "distance"):
            check_number(name, getattr(self, name), low=0.0, high=100.0)

    def sigmas(self, boxes: Tensor, occluded: Tensor, truncated: Tensor, distance: Tensor) -> Tensor:
        """Standard deviations of edges.

        Args:
            boxes: Boxes without noise, in pixels. Shape ``(n, 4)``.
            occluded: Share of an object that others hide. Shape ``(n,)``.
            truncated: Share of an object outside of the image. Shape ``(n,)``.
            distance: Distance in metres. Shape ``(n,)``.

        Returns:
            Multiples of 1/4096 pixel. Shape ``(n, 4)``, float64.
        """
        sides = (boxes[:, 2:] - boxes[:, :2]).double().repeat(1, 2)
        factor = (1 + self.occlusion * occluded.double()) * (1 + self.truncation * truncated.double())
        factor = factor * (1 + self.distance * distance.double() / _FAR)
        sigmas = (self.floor + self.relative * factor[:, None] * sides).minimum(self.most * sides)
        return (sigmas / SIGMA_STEP).floor() * SIGMA_STEP


@dataclass(frozen=True, kw_only=True)
class StreetDetectionConfig:
    """Configuration of a street world with boxes.

    Args:
        train: Number of frames to train on, of whole drives.
        validation: Number of frames to validate on.
        test: Number of frames to test on.
        frames_per_drive: Frames of one drive: they show the same street, through which the camera moves.
        seed: Seed of everything; the same seed gives the same frames on every machine.
        height: Height of frames in pixels.
        width: Width of frames in pixels.
        antialiasing: See :class:`~fcal.data.StreetConfig`.
        visible: Whether boxes surround the visible pixels of objects, or those that they would have if nothing stood
            in front of them.
        least_height: Objects of a smaller box are ignored. In pixels.
        most_hidden: Objects of which a larger share is occluded, or truncated, are ignored.
        flip: Whether training items are mirrored at random.
        noise: Noise of the boxes.
    """

    train: int = 400
    validation: int = 100
    test: int = 200
    frames_per_drive: int = 10
    seed: int = 0
    height: int = 96
    width: int = 320
    antialiasing: bool = True
    visible: bool = True
    least_height: float = 7.0
    most_hidden: float = 0.8
    flip: bool = True
    noise: BoxNoise = field(default_factory=BoxNoise)

    def __post_init__(self) -> None:
        for name in SPLITS:
            count = check_integer(name, getattr(self, name), at_least=1, at_most=1_000_000)
            if count % check_integer("frames_per_drive", self.frames_per_drive, at_least=1, at_most=100):
                raise ValueError(f"expected `{name}` of whole drives of {self.frames_per_drive} frames, got {count}")
        check_flag("visible", self.visible)
        check_flag("flip", self.flip)
        check_number("least_height", self.least_height, low=0.0, high=1e4)
        check_number("most_hidden", self.most_hidden, low=0.0, high=1.0)
        if not isinstance(self.noise, BoxNoise):
            raise TypeError(f"expected `noise` a BoxNoise, got {type(self.noise).__name__}")
        self.street  # noqa: B018  checks the rest

    @property
    def street(self) -> StreetConfig:
        """The street world of all frames."""
        return StreetConfig(
            frames=self.train + self.validation + self.test,
            frames_per_drive=self.frames_per_drive,
            seed=self.seed,
            height=self.height,
            width=self.width,
            antialiasing=self.antialiasing,
        )

    def frames_of(self, split: str | None) -> range:
        """Numbers of the frames of a split; all if None."""
        if split is None:
            return range(self.street.frames)
        if split not in SPLITS:
            raise ValueError(f"expected `split` one of {', '.join(map(repr, SPLITS))}, got {split!r}")
        start = sum(getattr(self, name) for name in SPLITS[: SPLITS.index(split)])
        return range(start, start + getattr(self, split))


class StreetDetection(DetectionDataset):
    """Images of streets with noisy boxes, rendered when they are needed. See :class:`DetectionDataset` for items.

    Classes are KITTI's: cars, pedestrians and cyclists; vans are ignored near cars, trucks belong to the background.
    Objects that are too small or too hidden are ignored. Targets have ``sigmas``, the true standard deviations of the
    edges in pixels, and ``true_boxes``, the boxes without noise: ``boxes`` are normal around them. A noisy box may
    reach out of the image; clipped, it would not be normal. They also have ``truncation`` and ``occlusion`` (shares
    from 0 to 1), ``distance`` in metres and KITTI's ``difficulty``.

    Args:
        config: The street world; default: ``StreetDetectionConfig()``.
        split: ``"train"``, ``"validation"`` or ``"test"``; None for all frames.
        flip: Mirror every other item at random; see :class:`DetectionDataset`.
        masks: Add visible pixels of objects to items.
        kept: Frames that stay in memory once they are rendered: 92 kB each at 96 x 320, without masks. The oldest one
            is dropped first.

    Example:
        >>> config = StreetDetectionConfig(train=4, validation=2, test=2, frames_per_drive=2, height=48, width=160)
        >>> streets = StreetDetection(config, "train")
        >>> len(streets), streets.groups, streets.classes
        (4, [0, 0, 1, 1], ('Car', 'Pedestrian', 'Cyclist'))
        >>> target = streets[0]["target"]
        >>> bool(((target["boxes"] - target["true_boxes"]).abs() <= 4 * target["sigmas"] + 1e-4).all())
        True
    """

    def __init__(
        self,
        config: StreetDetectionConfig | None = None,
        split: str | None = None,
        *,
        flip: bool = False,
        masks: bool = False,
        kept: int = 1000,
    ) -> None:
        if config is not None and not isinstance(config, StreetDetectionConfig):
            raise TypeError(f"expected `config` a StreetDetectionConfig, got {type(config).__name__}")
        self.config = StreetDetectionConfig() if config is None else config
        self.split = split
        self._frames = self.config.frames_of(split)
        self._masks = check_flag("masks", masks)
        self._capacity = check_integer("kept", kept, at_least=0)
        self._kept: OrderedDict[int, Picture] = OrderedDict()
        super().__init__(
            classes=CLASSES,
            names=[f"{number:06d}" for number in self._frames],
            group_names=[drive_name(number // self.config.frames_per_drive) for number in self._frames],
            flip=flip,
        )

    @property
    def groups(self) -> list[int]:
        """Number of every frame's drive among all drives; frames of a drive show the same street."""
        return [number // self.config.frames_per_drive for number in self._frames]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the configuration only: a worker renders its own frames."""
        return _unpickled, (self.config, self.split, self.flip, self._masks, self._capacity)

    def _picture(self, position: int) -> Picture:
        number = self._frames[position]
        if number in self._kept:
            return self._kept[number]
        frame = street_frame(self.config.street, number)
        image = torch.from_numpy(np.ascontiguousarray(frame.image.transpose(2, 0, 1)))
        picture = Picture(image=image, target={**self._target(frame, number), "image_id": number})
        if self._capacity:
            if len(self._kept) >= self._capacity:
                self._kept.popitem(last=False)
            self._kept[number] = picture
        return picture

    def _target(self, frame: StreetFrame, number: int) -> dict[str, Tensor]:
        objects = [each for each in frame.objects if NEIGHBOURS.get(each.kind, each.kind) in CLASSES]
        boxes = [each.box if self.config.visible else each.full_box for each in objects]
        truth = torch.tensor(boxes, dtype=torch.float64).reshape(-1, 4)
        hidden = torch.tensor([[each.occluded, each.truncated] for each in objects], dtype=torch.float64).reshape(-1, 2)
        distance = torch.tensor([each.location for each in objects], dtype=torch.float64).reshape(-1, 3).norm(dim=1)
        sigmas = self.config.noise.sigmas(truth, hidden[:, 0], hidden[:, 1], distance)
        noisy = truth + sigmas * _normals(self.config.seed, number, [each.number for each in objects])
        is_small = truth[:, 3] - truth[:, 1] < self.config.least_height
        is_neighbour = torch.tensor([each.kind in NEIGHBOURS for each in objects], dtype=torch.bool)
        target = {
            "boxes": noisy.float(),
            "labels": torch.tensor([CLASSES.index(NEIGHBOURS.get(e.kind, e.kind)) + 1 for e in objects]).long(),
            "ignored": is_small | is_neighbour | (hidden > self.config.most_hidden).any(1),
            "crowd": torch.zeros(len(objects), dtype=torch.bool),
            "truncation": hidden[:, 1].float(),
            "occlusion": hidden[:, 0].float(),
            "distance": distance.float(),
            "difficulty": torch.tensor([_difficulty(each, self.config.width) for each in objects]).long(),
            "sigmas": sigmas.float(),
            "true_boxes": truth.float(),
        }
        if self._masks:
            numbers = torch.tensor([each.number for each in objects], dtype=torch.int32)
            target["masks"] = torch.from_numpy(frame.instances) == numbers[:, None, None]
        return target


def _unpickled(config: StreetDetectionConfig, split: str | None, flip: bool, masks: bool, kept: int) -> StreetDetection:
    return StreetDetection(config, split, flip=flip, masks=masks, kept=kept)


def _difficulty(found: StreetObject, width: int) -> int:
    """KITTI's difficulty, from the box of the whole object as in KITTI's labels."""
    top, bottom = found.full_box[1], found.full_box[3]
    return difficulty(bottom - top - 1, found.occlusion, found.truncated, width=width)


def _normals(seed: int, frame: int, objects: list[int]) -> Tensor:
    """Normal numbers of four edges of objects, which depend on nothing else. Shape ``(n, 4)``, float64."""
    if not objects:
        return torch.zeros(0, 4, dtype=torch.float64)
    first = frame * _MOST_OBJECTS
    numbers: NDArray[np.float64] = uniforms(seed + (_STREAM << 64), first, first + max(objects) + 1, 4)[objects]
    normal = torch.special.ndtri(torch.from_numpy(numbers)).clamp(-_FARTHEST_NORMAL, _FARTHEST_NORMAL)
    return (normal / _STEP).round() * _STEP


@dataclass(frozen=True)
class StreetDetectionSplits:
    """Training, validation and test frames of one street world, which have no drive in common.

    Args:
        config: The street world.

    Example:
        >>> len(StreetDetectionSplits(StreetDetectionConfig()).test)
        200
    """

    config: StreetDetectionConfig

    @classmethod
    def from_options(cls, **options: Any) -> "StreetDetectionSplits":
        """Splits of a configuration given as keywords; misspelt ones are rejected."""
        return cls(config_from(options, StreetDetectionConfig, source="data.options"))

    @cached_property
    def train(self) -> StreetDetection:
        """Frames that the weights are fitted to."""
        return StreetDetection(self.config, "train", flip=self.config.flip)

    @cached_property
    def validation(self) -> StreetDetection:
        """Frames for choosing epochs, hyper-parameters and recalibrators."""
        return StreetDetection(self.config, "validation")

    @cached_property
    def test(self) -> StreetDetection:
        """Frames for the report only."""
        return StreetDetection(self.config, "test")
