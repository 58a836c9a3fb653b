"""Images with boxes as a dataset: items, batches, flips, a common size, and the truths that metrics take."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex

import torch
from torch import Tensor
from torch.utils.data import Dataset

from fcal._checks import check_flag
from fcal.data.depth_frames import FrameError, read_image, read_map
from fcal.data.depth_views import DepthView, Placement, resized_image
from fcal.data.detection.annotations import AnnotatedImage
from fcal.data.folds import group_numbers
from fcal.metrics.detection import Truths

_BOXES = ("boxes", "true_boxes")  # entries of a target that are edges of boxes
_SIDES = ("sigmas",)  # entries that have a value for every edge


@dataclass(frozen=True, kw_only=True, eq=False)
class Picture:
    """An image as bytes, shape ``(3, H, W)``, and the target of its item."""

    image: Tensor
    target: Mapping[str, Any]

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.image.shape[1], self.image.shape[2]

    def flipped(self) -> "Picture":
        """The mirror image; edges keep their standard deviations."""
        width, target = self.image.shape[2], dict(self.target)
        for name in _BOXES:
            if name in target:
                left, top, right, bottom = target[name].unbind(1)
                target[name] = torch.stack([width - right, top, width - left, bottom], 1)
        for name in _SIDES:
            if name in target:
                target[name] = target[name][:, [2, 1, 0, 3]]
        if "masks" in target:
            target["masks"] = target["masks"].flip(-1)
        return Picture(image=self.image.flip(-1), target=target)

    def item(self) -> dict[str, Any]:
        """The item: colours from 0 to 1, and tensors that share no memory with what is kept."""
        target = {name: value.clone() if isinstance(value, Tensor) else value for name, value in self.target.items()}
        return {"input": self.image.float().div_(255), "target": target}


class DetectionDataset(Dataset[Mapping[str, Any]], ABC):
    """Images with boxes.

    An item is a mapping with ``input``, an image of values from 0 to 1 (float32, shape ``(3, H, W)``), and ``target``,
    a mapping of torchvision's names:

    - ``boxes``: left, top, right and bottom edges in pixels; the first pixel spans 0 to 1. Shape ``(n, 4)``, float32.
    - ``labels``: numbers of classes from 1. Shape ``(n,)``, int64.
    - ``ignored``: objects that are neither to be found nor a mistake to find. Shape ``(n,)``, bool.
    - ``crowd``: those of them that are regions, in which there may be several objects or none. A region that concerns
      all classes appears once for each of them. Shape ``(n,)``, bool.
    - ``image_id``: number of the image in its data set, an int.
    - ``masks``: pixels of each object, if asked for. Shape ``(n, H, W)``, bool.
    - further values of the objects that the data set knows, such as ``truncation``, ``occlusion``, ``distance``,
      ``difficulty``, ``sigmas`` (standard deviations of the noise of the edges in pixels, shape ``(n, 4)``) and
      ``true_boxes`` (the boxes without that noise).

    ``__getitems__`` returns lists of images and targets. An image without objects is an item like others.

    Args:
        classes: Names of classes; that of label k is ``classes[k - 1]``.
        names: Names of the images.
        group_names: Names of the groups of the images.
        flip: Mirror every other item at random, decided by torch's global random state: after
            ``torch.manual_seed``, the same items are mirrored. Truths are those of the image as it is.
    """

    def __init__(
        self, *, classes: Sequence[str], names: Sequence[str], group_names: Sequence[str], flip: bool = False
    ) -> None:
        self.classes = tuple(classes)
        self.names = list(names)
        self.group_names = list(group_names)
        self.flip = check_flag("flip", flip)

    @property
    def groups(self) -> list[int]:
        """Group number of each image; images that depend on each other have the same."""
        return group_numbers(self.group_names, len(self)).tolist()

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        picture = self._picture(self._position(index))
        is_mirrored = self.flip and torch.rand(()).item() < 0.5
        return (picture.flipped() if is_mirrored else picture).item()

    def __getitems__(self, indices: Sequence[int]) -> Mapping[str, Any]:
        """Items as lists of images and targets."""
        items = [self[index] for index in indices]
        return {name: [item[name] for item in items] for name in ("input", "target")}

    def truths(self, index: int, *, exact: bool = False) -> Truths:
        """Objects of an image for metrics.

        Args:
            index: The image.
            exact: Return the boxes without noise, where they are known, instead of the labels.

        Raises:
            ValueError: Boxes without noise are not known.
        """
        picture = self._picture(self._position(index))
        if check_flag("exact", exact) and "true_boxes" not in picture.target:
            raise ValueError("expected `exact` False for labels of unknown noise, got True")
        target = picture.item()["target"]
        return Truths(
            boxes=target["true_boxes" if exact else "boxes"],
            labels=target["labels"],
            image_size=picture.size,
            masks=target.get("masks"),
            ignored=target["ignored"],
        )

    @abstractmethod
    def _picture(self, position: int) -> Picture:
        """The image at a non-negative index."""

    def _position(self, index: int) -> int:
        if isinstance(index, bool) or not isinstance(index, SupportsIndex):
            raise TypeError(f"expected `index` an int, got {type(index).__name__}")
        position = index.__index__()
        if not -len(self) <= position < len(self):
            raise IndexError(f"expected `index` within {len(self)} images, got {position}")
        return position % len(self)


class DetectionFrames(DetectionDataset):
    """Images with boxes, read from files when they are needed. See :class:`DetectionDataset` for items.

    With ``size``, an image is resized to it as a whole, so that no object is cut or lost; boxes and standard deviations
    are scaled along, by different factors for height and width if the image has another aspect ratio.

    Args:
        images: The images and their objects.
        classes: Names of classes; that of label k is ``classes[k - 1]``.
        size: Height and width of items; None keeps those of each image.
        flip: Mirror every other item at random; see :class:`DetectionDataset`.
        masks: Add pixels of objects, for images that have a map of instances.
        cache: Keep what was read in memory, at the size of the items and with bytes for colours.

    Raises:
        ValueError: There are no images, labels are not those of the classes, or masks are not known.

    Example:
        >>> from pathlib import Path
        >>> empty = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.long), "size": (8, 8)}
        >>> images = [AnnotatedImage(image=Path(f"{k}.png"), group=f"drive {k % 2}", **empty) for k in range(4)]
        >>> frames = DetectionFrames(images, classes=["cell"])
        >>> frames.groups, frames.subset([3, 0]).names
        ([0, 1, 0, 1], ['3', '0'])
    """

    def __init__(
        self,
        images: Iterable[AnnotatedImage],
        classes: Sequence[str],
        *,
        size: tuple[int, int] | None = None,
        flip: bool = False,
        masks: bool = False,
        cache: bool = False,
    ) -> None:
        self.images = tuple(images)
        if not self.images:
            raise ValueError("expected `images` with at least 1 image, got none")
        super().__init__(
            classes=classes,
            names=[image.name for image in self.images],
            group_names=[image.group for image in self.images],
            flip=flip,
        )
        self._view = DepthView(size=size)
        self._masks = check_flag("masks", masks)
        self._keeps = check_flag("cache", cache)
        self._cached: dict[AnnotatedImage, Picture] = {}
        self._all_groups = sorted(set(self.group_names))
        for image in self.images:
            self._check(image)

    def _check(self, image: AnnotatedImage) -> None:
        count = len(self.classes)
        if len(image.labels) and not 1 <= int(image.labels.min()) <= int(image.labels.max()) <= count:
            raise ValueError(
                f"expected `labels` of {image.image} from 1 to {count}, got {image.labels.unique().tolist()}"
            )
        if self._masks and (image.instances is None or "instance" not in image.extras):
            raise ValueError(
                f"expected `masks` False for images without a map of instances, got True for {image.image}"
            )

    @property
    def groups(self) -> list[int]:
        """Group number of each image; a subset has the numbers of the whole."""
        numbers = {name: number for number, name in enumerate(self._all_groups)}
        return [numbers[name] for name in self.group_names]

    @property
    def objects(self) -> int:
        """Number of objects of all images, without ignored ones."""
        return sum(int((~image.ignored).sum()) for image in self.images)

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width of items; None if each has that of its image."""
        return self._view.size

    def subset(self, indices: Iterable[int], *, flip: bool | None = None) -> "DetectionFrames":
        """These images as a dataset, which shares what is kept in memory.

        Args:
            indices: The images.
            flip: Whether to mirror items at random; None for the same as here.
        """
        part = DetectionFrames(
            [self.images[self._position(index)] for index in indices],
            self.classes,
            size=self.size,
            flip=self.flip if flip is None else flip,
            masks=self._masks,
            cache=self._keeps,
        )
        part._cached, part._all_groups = self._cached, self._all_groups
        return part

    def __getstate__(self) -> dict[str, Any]:
        """Pickle what to read, not what was read."""
        return {**self.__dict__, "_cached": {}}

    def _picture(self, position: int) -> Picture:
        image = self.images[position]
        if image in self._cached:
            return self._cached[image]
        picture = self._read(image)
        if self._keeps:
            self._cached[image] = picture
        return picture

    def _read(self, image: AnnotatedImage) -> Picture:
        pixels = read_image(image.image)
        if pixels.shape[:2] != image.size:
            expected, actual = (" x ".join(map(str, sides)) for sides in (image.size, pixels.shape[:2]))
            message = f"expected {image.image} of the size that its labels state, {expected}, got {actual}"
            raise FrameError(image.image, message)
        placement = self._view.placement(image.size, focal=1.0)
        factors = torch.tensor([placement.scale[1], placement.scale[0]] * 2, dtype=torch.float64)
        columns = {"boxes": image.boxes, "labels": image.labels, "ignored": image.ignored, "crowd": image.crowd}
        target = {
            name: (values * factors).float() if name in _BOXES + _SIDES else values
            for name, values in {**columns, **image.extras}.items()
        }
        if self._masks:
            target["masks"] = _masks(image, target["boxes"], placement)
        return Picture(
            image=resized_image(torch.from_numpy(pixels), placement), target={**target, "image_id": image.number}
        )


def _masks(image: AnnotatedImage, boxes: Tensor, placement: Placement) -> Tensor:
    """Pixels of the objects of an item; those of an object too thin to have any are its box's."""
    assert image.instances is not None  # checked when the dataset was made
    numbers = torch.from_numpy(read_map(image.instances, image.size))
    height, width = placement.shape
    rows = ((torch.arange(height) + 0.5) / placement.scale[0]).long().clamp(max=image.size[0] - 1)
    columns = ((torch.arange(width) + 0.5) / placement.scale[1]).long().clamp(max=image.size[1] - 1)
    within = _box_masks(boxes, (height, width))
    masks = (numbers[rows][:, columns] == image.extras["instance"][:, None, None]) & within
    return torch.where(masks.any((1, 2))[:, None, None], masks, within)


def _box_masks(boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Pixels that a box covers at least in part. Shape ``(n, H, W)``."""
    (left, top), (right, bottom) = boxes[:, :2].floor().unbind(1), boxes[:, 2:].ceil().unbind(1)
    rows, columns = torch.arange(size[0]), torch.arange(size[1])
    across = (columns >= left[:, None]) & (columns < right[:, None])
    down = (rows >= top[:, None]) & (rows < bottom[:, None])
    return down[:, :, None] & across[:, None, :]
